"""Sweeps: local jobs that differ by a row of parameters, or by their share of input files."""

import io
import os
import re
import stat
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from pathlib import PurePosixPath
from typing import Any

from .attributes import Attribute, Kind, RequestFile

PARAMETERS = Attribute(
    "parameters",
    "File with a header line of names and a row for each local job, as CSV, or as JSON lines: {NAME} in arguments and "
    "environment becomes the row's value.",
    Kind.FILE,
)
SPLIT_FILES = Attribute(
    "split_files",
    "Input files, with * ? [] and ** as in the shell, that are shared out among the local jobs: {files} in arguments "
    "and environment becomes the local job's own. They are not copied: all hosts must see them.",
    Kind.FILES,
    default=(),
)
FILES_PER_LOCAL_JOB = Attribute(
    "files_per_local_job", "How many of split_files one local job gets; by default 1.", Kind.INTEGER, "files", minimum=1
)
SWEEP = (PARAMETERS, SPLIT_FILES, FILES_PER_LOCAL_JOB)
"""Attributes that a job type declares to permit sweeps; the framework does the rest."""

_MOST_BYTES = 16_000_000
_MOST_ROWS = 1_000_000
"""No site permits more local jobs, and 16 MB of short rows would need gigabytes of memory."""
_MOST_NAMES = 1000
_SHOWN_NAMES = 10
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,99}", re.ASCII)
_SPACES = re.compile(r'(?P<quoted>(?:^|,) *+"(?:[^"]|"")*")|(?<! ) ++(?=[,\r\n]|\Z)', re.MULTILINE)
"""Spaces before a comma, or at a line's end, as nobody means them; ``csv`` itself drops those behind a comma."""

Row = Mapping[str, Sequence[str]]
"""The values that replace each name in one local job's command line."""


class BadSweep(ValueError):
    """A sweep that cannot be made; the message is one sentence for people."""


@dataclass(frozen=True)
class Sweep:
    """How local jobs differ: one row for each, all with the same names."""

    rows: Sequence[Row]
    source: str = field(default="", compare=False)
    """The attribute that the rows come from, with the files it names, for messages."""

    @cached_property
    def digest(self) -> str:
        """A checksum of the rows, which does not depend on the order of their names."""
        import hashlib
        import json

        return hashlib.sha256(json.dumps(self.rows, sort_keys=True).encode()).hexdigest()

    def check_digest(self, accepted: str | None) -> None:
        """Check that the rows are those of the time when the request was accepted.

        :raises BadSweep: rows or files have changed.
        """
        if self.digest != accepted:
            raise BadSweep(
                f"{self.source}: what local jobs get from it has changed since the request was accepted: put it back, "
                "or submit a new request"
            )

    @property
    def placeholders(self) -> str:
        """The placeholders for arguments and environment, for messages, at most ten: ``{mass}, {seed}``."""
        shown = [f"{{{name}}}" for name in islice(self.rows[0], _SHOWN_NAMES)]
        more = len(self.rows[0]) - len(shown)
        return ", ".join([*shown, f"… ({more} more)"] if more else shown)

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        return re.compile(r"(?<!\$)\{(" + "|".join(map(re.escape, self.rows[0])) + r")\}")

    def is_in(self, text: str) -> bool:
        """True for a text that has a placeholder, and so differs between local jobs."""
        return self._pattern.search(text) is not None

    def count_letters(self, texts: Sequence[str]) -> Iterator[int]:
        """For each local job the total length of the texts, at most; computed without filling them in."""
        names = Counter(name for text in texts for name in self._pattern.findall(text))
        written = sum(map(len, texts))
        for row in self.rows:
            yield written + sum(times * sum(len(value) + 1 for value in row[name]) for name, times in names.items())

    def find_unknown(self, words: Iterable[str]) -> list[str]:
        """Placeholders of unknown names, as a whole word or after its ``=``: they may be misspelt."""
        found = [re.fullmatch(rf"(?:[^{{}}]*=)?\{{({_NAME.pattern})\}}", word, re.ASCII) for word in words]
        return [f"{{{match[1]}}}" for match in found if match and match[1] not in self.rows[0]]

    def fill(self, text: str, index: int) -> str:
        """A text for one local job: several values are joined by commas, braces of unknown names stay."""
        row = self.rows[index - 1]
        return self._pattern.sub(lambda found: ",".join(row[found[1]]), text)

    def fill_words(self, words: Iterable[str], index: int) -> Iterator[str]:
        """Words for one local job: a word that is only a placeholder becomes one word per value."""
        for word in words:
            if placeholder := self._pattern.fullmatch(word):
                yield from self.rows[index - 1][placeholder[1]]
            else:
                yield self.fill(word, index)


def read_sweep(request: Mapping[str, Any]) -> Sweep | None:
    """The sweep that a request with the attributes of `SWEEP` asks for, or None.

    :raises BadSweep: with a sentence about the first fault.
    """
    points: RequestFile | None = request["parameters"]
    files: Sequence[RequestFile] = request["split_files"]
    if points is not None and files:
        raise BadSweep("parameters and split_files do not go together: either says what each local job gets")
    if request["files_per_local_job"] is not None and not files:
        raise BadSweep("files_per_local_job goes with split_files only")
    if points is not None:
        return Sweep(_read_file(points), f"parameters {points.name!r}")
    if files:
        looks = iter(range(_MOST_ROWS))
        found = list(dict.fromkeys(path for pattern in files for path in _find_files(pattern, looks)))
        share = request["files_per_local_job"] or 1
        rows = [{"files": found[start : start + share]} for start in range(0, len(found), share)]
        return Sweep(rows, f"split_files {' '.join(repr(pattern.name) for pattern in files)}")
    return None


def _find_files(pattern: RequestFile, looks: Iterator[int]) -> list[str]:
    """The absolute names of the files that match a pattern, sorted."""
    # Without ./ and //, so that it is the end of the path.
    name = PurePosixPath(pattern.name)
    # The request's folder is not a pattern, whatever its name.
    folder = str(pattern.path).removesuffix(str(name)) if pattern.travels else ""
    found = set(_find_paths(folder, name.parts or (".",), _spend(looks, pattern.name)))
    files = sorted(os.path.abspath(path) for path in found if _is_file(path))  # noqa: PTH100
    if not files:
        raise BadSweep(f"split_files: no file is called {pattern.name!r}" + (f" in {folder}" if folder else ""))
    strange = [path for path in files if "," in path or not path.isprintable()]
    if strange:
        raise BadSweep(f"split_files: {strange[0]!r} has a comma or a control character in its name: rename it")
    return files


def _is_file(path: str) -> bool:
    """True for a regular file; raises BadSweep: nobody can say, and to leave it out would lose data."""
    try:
        return stat.S_ISREG(os.stat(path).st_mode)  # noqa: PTH116
    except OSError as error:
        if not os.path.lexists(path):
            return False
        raise BadSweep(f"split_files: {path!r} cannot be read: {error.strerror}") from error


def _spend(looks: Iterator[int], pattern: str) -> Iterator[int]:
    """The looks that are left.

    :raises BadSweep: after the last one, about the pattern.
    """
    yield from looks
    raise BadSweep(
        f"split_files: {pattern!r} leads through more than {_MOST_ROWS} files and folders:"
        " write more of the path before the first * or **"
    )


def _find_paths(folder: str, parts: Sequence[str], looks: Iterator[int]) -> Iterator[str]:
    """What matches the parts of a pattern below a folder, as ``glob`` does, which looks at entries without limit.

    :param looks: one is taken for each entry.
    """
    import fnmatch  # imported late, here and below: seldom needed, and GRAM waits for the import
    import glob

    todo = [(folder, parts)]
    while todo:
        folder, (part, *rest) = todo.pop()
        if part == "**":
            todo.append((folder, rest or ["*"]))
            todo += [(path, [part, *rest]) for _, path in _list_shown(folder, looks) if os.path.isdir(path)]  # noqa: PTH112
            continue
        if glob.has_magic(part):
            entries = _list_shown(folder, looks, part.startswith("."))
            # As the shell does: what matches nothing may be a name.
            paths = [path for name, path in entries if fnmatch.fnmatchcase(name, part)] or [
                path for name, path in entries if name == part
            ]
        else:
            paths = [os.path.join(folder, part)]  # noqa: PTH118
        if rest:
            todo += [(path, rest) for path in paths]
        else:
            yield from paths


def _list_shown(folder: str, looks: Iterator[int], with_hidden: bool = False) -> list[tuple[str, str]]:
    """The names and paths in a folder; raises BadSweep: it is there, and cannot be read."""
    shown = []
    try:
        with suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder or ".") as entries:
            for entry in entries:
                next(looks)
                if with_hidden or not entry.name.startswith("."):
                    shown.append((entry.name, os.path.join(folder, entry.name)))  # noqa: PTH118
    except OSError as error:
        raise BadSweep(f"split_files: {folder!r} cannot be read: {error.strerror}") from error
    return shown


def _read_file(file: RequestFile) -> Sequence[Row]:
    try:
        with open(file.path, "rb", opener=_open_at_once) as stream:
            if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
                raise BadSweep(f"parameters: {file.name!r} is no regular file")
            data = stream.read(_MOST_BYTES + 1)
    except OSError as error:
        raise BadSweep(f"parameters: {file.name!r} cannot be read: {error.strerror}") from error
    if len(data) > _MOST_BYTES:
        raise BadSweep(f"parameters: {file.name!r} has more than {_MOST_BYTES} bytes")
    try:
        return read_parameters(data.decode("utf-8-sig"))
    except BadSweep as error:
        raise BadSweep(f"parameters: {file.name!r}: {error}") from error
    except UnicodeDecodeError as error:
        raise BadSweep(
            f"parameters: {file.name!r}: byte {error.start + 1} is no UTF-8 text: save it as UTF-8"
        ) from error


def _open_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


def read_parameters(text: str) -> Sequence[Row]:
    """The rows of a CSV text with a header line, or of JSON lines; at least one.

    :raises BadSweep: naming the line.
    """
    if "\0" in text:
        raise BadSweep("it has NUL characters")
    if not text.strip():
        raise BadSweep("it is empty")
    rows = list(islice(_read_json(text) if text.lstrip()[0] in "{[" else _read_csv(text), _MOST_ROWS + 1))
    if not rows:
        raise BadSweep("it has no rows")
    if len(rows) > _MOST_ROWS:
        raise BadSweep(f"it has more than {_MOST_ROWS} rows")
    return rows


def _read_csv(text: str) -> Iterator[Row]:
    import csv

    text = _SPACES.sub(lambda found: found["quoted"] or "", text)
    reader = csv.reader(io.StringIO(text, newline=""), strict=True, skipinitialspace=True)
    names: list[str] = []
    start = 1  # of the row that is read; one with a quote may have several lines
    try:
        for row in reader:
            number, start = start, reader.line_num + 1
            if names and row:
                if len(row) != len(names):
                    few = "few" if len(row) < len(names) else "many"
                    raise BadSweep(f"line {number} has too {few} values: {len(row)}, where the names are {len(names)}")
                yield {name: (value,) for name, value in zip(names, row, strict=True)}
            elif row:
                names = [name.strip() for name in row]
                _check_names(names, number)
    except csv.Error as error:
        open_quote = "unexpected end of data" in str(error)
        raise BadSweep(f"line {start}: {'a quote opens here and is never closed' if open_quote else error}") from error


class _Pairs(list[tuple[str, Any]]):
    """A JSON object that may have a name several times."""


def _read_json(text: str) -> Iterator[Row]:
    import json

    names: list[str] = []
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            # Numbers as they are written: 1e-3 is not 0.001 to every program.
            pairs = json.loads(line, parse_float=str, parse_int=str, parse_constant=str, object_pairs_hook=_Pairs)
        except json.JSONDecodeError as error:
            raise BadSweep(f"line {number} is no JSON, from its character {error.colno}: {error.msg}") from error
        except (ValueError, RecursionError) as error:
            raise BadSweep(f"line {number} is no JSON: {error}") from error
        if not isinstance(pairs, _Pairs):
            raise BadSweep(f'line {number} is no JSON object, as in {{"mass": 91.2}}')
        _check_names([name for name, _ in pairs], number)
        row = dict(pairs)
        names = names or [*row]
        if row.keys() != set(names):
            raise BadSweep(f"line {number} has other names than the first: {', '.join(row)}")
        yield {name: (_render_value(name, row[name], number),) for name in names}


def _render_value(name: str, value: object, line: int) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, str):
        raise BadSweep(f"line {line}: a value is a text, a number, true or false, but not that of {name}")
    if re.search("[\0\ud800-\udfff]", value):  # which JSON can express by \u escapes
        raise BadSweep(f"line {line}: {name} has a character that no command line can hold")
    return value


def _check_names(names: Sequence[str], line: int) -> None:
    if len(names) > _MOST_NAMES:
        raise BadSweep(f"line {line} has {len(names)} names, and {_MOST_NAMES} are the most")
    strange = [name for name in names if not _NAME.fullmatch(name)]
    if strange or not names:
        found = (strange or [""])[0][:40]
        raise BadSweep(f"line {line}: {found!r} is no name of a column between commas: ASCII letters, digits, _ . -")
    if len(set(names)) < len(names):
        raise BadSweep(f"line {line} has a name twice: {', '.join(names)}")
