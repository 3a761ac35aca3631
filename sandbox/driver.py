"""The driver, which is the script that runs one local job, and the table that holds the local jobs' command lines.

The table of a grid job has a line for each local job, in the order of their indexes: a sha256 of the rest of the line,
the index, and shell words. The table of a submission has the lines of that submission only. In it each line is written
twice, without the sha256: if both copies are the same, the line is whole, and a shell can compare them without starting
a process. This table is cut into files TOKEN.0, TOKEN.1 and so on, and a driver reads only one of them.
"""

import functools
import hashlib
import os
import re
import shlex
import sys
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template

from sandbox.files import SandboxRefused, replace_file, sync_folder

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_OWN = "GRID_JOB LOCAL_ID LOCAL_JOBS CORES INDEX SCRATCH OUTPUT STATUS SITE_FILES FIRST_EVENT EVENTS SEED"
OWN_VARIABLES = frozenset(f"SAMGRID_{name}" for name in _OWN.split())
"""What the driver tells each program in its environment."""


@dataclass(frozen=True)
class DriverPlan:
    """What all local jobs of one grid job have in common. Paths are absolute, and the same on all hosts."""

    grid_job: str
    sandbox: Path
    """The folder of ``sandbox.tar`` and the tables. ``$0`` does not tell it, because batch systems copy the script."""
    results: Path
    scratch_base: Path
    sandbox_sha256: str
    """The sha256 of ``sandbox.tar``."""
    local_jobs: int
    local_id_words: str
    """The batch system's id of the job as shell words for double quotes: ``$SAMGRID_FORK_ID``."""
    index_words: str
    """The job's place in its array, as such words: ``$SAMGRID_FORK_INDEX``."""
    started_words: str = ""
    """When the batch system started the job, in seconds since 1970, as such words; empty if it does not tell."""
    job_folder_words: str = ""
    """A folder that the batch system makes for the job, and removes, as such words; it replaces ``scratch_base``."""
    host_words: str = ""
    """The batch system's name of the host, as such words; if empty, the host's own name is used."""
    environment: tuple[tuple[str, str], ...] = ()
    directory: str = ""
    """Where the program runs, if not in the scratch folder; a relative path is relative to the scratch folder."""
    stdin: str = ""
    """A name in the work area, or an absolute path; empty means ``/dev/null``."""
    max_cpu_minutes: int = 0
    max_memory_mb: int = 0
    cores: int = 1
    umask: str = "077"
    """The program's umask, in octal digits. What the driver itself writes can be read by its account only."""
    is_bare: bool = False
    """The sandbox holds only ``samgrid-report``, and that also lies beside it, so there is nothing to unpack."""
    copies_lines: bool = False
    """The handler reads phases from what the program prints, so the lines are copied to ``results/reports``."""
    has_site_files: bool = False
    """The sandbox contains files of the site, which programs only read."""
    carried: bool = False
    """The batch system carries the sandbox to the host, and carries back what is in the folder ``results`` beside it,
    and then what is in ``last``: the status file.

    If so, ``sandbox``, ``results`` and ``scratch_base`` are not used.
    """
    fetch_words: str = ""
    """Shell commands that then copy file ``$1`` of the results folder to ``$2``, if an earlier run left it there."""
    carried_credentials: tuple[tuple[str, str], ...] = ()
    """Variables of the program that name files, and the names of these files beside the carried sandbox."""

    @property
    def stdin_words(self) -> str:
        """The program's standard input as a shell word."""
        if not self.stdin or self.stdin.startswith("/"):
            return shlex.quote(self.stdin or "/dev/null")
        return '"$scratch"/' + shlex.quote(self.stdin)


def render_driver(plan: DriverPlan) -> str:
    """The driver as a POSIX shell script, to be written as UTF-8 with ``surrogateescape``.

    :raises SandboxRefused: for an environment name that no shell takes, and for NUL characters.
    """
    for name, _ in plan.environment:
        if not _NAME.fullmatch(name):
            raise SandboxRefused(f"the environment name {name!r} is none: it takes letters, digits and underscores")
    return load_template().render(plan=plan, lines_per_file=LINES_PER_FILE)


@functools.cache
def load_template() -> Template:
    """The driver's template; to compile its parts takes longer than everything else in packing a small sandbox."""
    loader = FileSystemLoader(Path(__file__).with_name("script"))
    environment = Environment(
        loader=loader, undefined=StrictUndefined, trim_blocks=True, keep_trailing_newline=True, auto_reload=False
    )
    environment.filters["sh"] = quote_word
    for part in environment.list_templates():
        environment.get_template(part)
    return environment.get_template("driver.sh.j2")


LINES_PER_FILE = 10
"""Lines in each file of a submission's table. They are few because some shells read one byte at a time.

Drivers of earlier versions read files of 20 or more lines, and each line begins with its sha256.
"""
_TABLE_FILE = re.compile(rb"^ *table=\$token\.\$\(\(\(position - 1\) / (\d+)\)\)$", re.MULTILINE)


@dataclass(frozen=True)
class LocalJobEntry:
    """One local job's line of the table: its slice, if its job type has slices, and its command."""

    command: tuple[str, ...]
    first_event: int | None = None
    events: int | None = None
    seed: int | None = None
    environment: tuple[tuple[str, str], ...] = ()
    """Variables that other local jobs have with other values."""


def render_table(entries: Iterable[LocalJobEntry]) -> bytes:
    """The table of a grid job's local jobs, in the order of their indexes.

    :raises SandboxRefused: for an empty command and for NUL characters.
    """
    lines = (f"{index} {_render_entry(entry)}\n" for index, entry in enumerate(entries, 1))
    return b"".join(_sign(line.encode("utf-8", "surrogateescape")) for line in lines)


def _render_entry(entry: LocalJobEntry) -> str:
    if not entry.command or not entry.command[0]:
        raise SandboxRefused("a local job has no command: its job type must name a program")
    numbers = (("first_event", entry.first_event), ("events", entry.events), ("seed", entry.seed))
    words = " ".join(f"{name}={value}" for name, value in numbers if value is not None)
    # A function, because the driver must set them for the program only, and not for its own commands.
    variables = " ".join(f"{name}={_quote(value)}" for name, value in entry.environment)
    parts = [f"vary() {{ export {variables}; }}" if variables else "", words]
    return "; ".join([*filter(None, parts), f"set -- {' '.join(map(_quote, entry.command))}"])


def _quote(word: str) -> str:
    """A word for the shell in one line: a break lies within single quotes always; the driver knows it as $NL."""
    return quote_word(word).replace("\n", "'\"$NL\"'")


def quote_word(value: object) -> str:
    """A word for the shell; raises SandboxRefused: it holds a NUL character."""
    text = str(value)
    if "\0" in text:
        raise SandboxRefused(f"{text!r} holds a NUL character, which no command line can carry")
    return shlex.quote(text)


def read_lines_per_file(driver: Path) -> int:
    """How many lines a grid job's driver looks for in a file of a table: one of an earlier version, in as many as then.

    :raises OSError: it cannot be read.
    """
    found = _TABLE_FILE.search(driver.read_bytes()) if driver.exists() else None
    return int(found[1]) if found else LINES_PER_FILE


@dataclass(frozen=True)
class GrownLimits:
    """What the programs of a submission may take, where that is more than the first attempt's; 0: no limit."""

    cpu_minutes: int
    memory_mb: int


def write_submission_table(
    table: Path,
    token: str,
    indexes: Sequence[int],
    lines_per_file: int = LINES_PER_FILE,
    limits: GrownLimits | None = None,
) -> None:
    """Write the table of a submission beside the grid job's; ``indexes`` are those of its local jobs, in their order.

    Written again, it is the same: a driver may be reading it.

    :param limits: in place of the driver's own; None: these hold.
    :raises OSError: it cannot be written, or the grid job's table cannot be read.
    """
    wanted = set(indexes)
    with open(table, "rb") as stream:
        # Where a submission is one local job, all together would read the table again and again.
        size = stream.seek(0, os.SEEK_END)
        _seek_line(stream, bisect_left(range(size), indexes[0], key=lambda place: _read_index(stream, place)))
        numbered = zip(range(indexes[0], indexes[-1] + 1), stream, strict=False)
        lines = [_put_limits(line, limits) if limits else line for index, line in numbered if index in wanted]
    if lines_per_file == LINES_PER_FILE:
        lines = [_copy(line) for line in lines]
    for start in range(0, len(lines), lines_per_file):
        name = f"{token}.{start // lines_per_file}"
        replace_file(table.with_name(name), b"".join(lines[start : start + lines_per_file]))
    sync_folder(table.parent)


def _put_limits(line: bytes, limits: GrownLimits) -> bytes:
    _, index, words = line.split(b" ", 2)
    return _sign(b"%b cpu_minutes=%d memory_mb=%d; %b" % (index, limits.cpu_minutes, limits.memory_mb, words))


def _copy(line: bytes) -> bytes:
    """The line twice, without its sum; where that is wrong nothing: the driver says that the sandbox is damaged."""
    _, _, words = line.partition(b" ")
    return words * 2 if _sign(words) == line else b"\n\n"


def _sign(line: bytes) -> bytes:
    return hashlib.sha256(line).hexdigest().encode() + b" " + line


def _seek_line(stream: BinaryIO, place: int) -> None:
    """Go to the first line that begins there or later."""
    stream.seek(max(0, place - 1))
    if place:
        stream.readline()


def _read_index(stream: BinaryIO, place: int) -> int:
    _seek_line(stream, place)
    line = stream.readline()
    return int(line.split(b" ", 2)[1]) if line else sys.maxsize
