"""Typed values: declares, describes and reads attributes of requests and keys of the configuration.

Every folder of the project may import this module.
"""

import enum
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Value = str | tuple["Value", ...]
"""One RSL value: a word, or a parenthesised sequence of values."""


@dataclass(frozen=True)
class RequestFile:
    """A file that a request names: ``name`` as written, ``path`` relative to the request's folder."""

    name: str
    path: Path

    @property
    def travels(self) -> bool:
        """True for a relative name: the file is copied into the sandbox."""
        return not self.name.startswith("/")


_FLAGS = {"yes": True, "true": True, "1": True, "no": False, "false": False, "0": False}


def _read_text(values: Sequence[Value]) -> str:
    (value,) = values
    if not isinstance(value, str):
        raise ValueError("a sequence")
    return value


def _read_file(values: Sequence[Value]) -> str:
    text = _read_text(values)
    if not text or "\0" in text:
        raise ValueError("no file name")
    return text


def _read_integer(values: Sequence[Value]) -> int:
    text = _read_text(values)
    if len(text) > 20 or not text.isascii():
        raise ValueError("no integer")
    return int(text.replace("_", "x"))


def _read_number(values: Sequence[Value]) -> float:
    text = _read_text(values)
    if "_" in text or not text.isascii():
        raise ValueError("no number")
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("not finite")
    return number


def _read_flag(values: Sequence[Value]) -> bool:
    word = _read_text(values).lower()
    if word not in _FLAGS:
        raise ValueError("neither yes nor no")
    return _FLAGS[word]


def _read_words(values: Sequence[Value]) -> tuple[str, ...]:
    return tuple(_read_text([value]) for value in values)


def _read_files(values: Sequence[Value]) -> tuple[str, ...]:
    return tuple(_read_file([value]) for value in values)


def _read_pairs(values: Sequence[Value]) -> tuple[tuple[str, str], ...]:
    pairs = []
    for value in values:
        if isinstance(value, str):
            raise ValueError("a word where a pair belongs")
        name, text = _read_words(value)
        pairs.append((name, text))
    return tuple(pairs)


def _read_sequences(values: Sequence[Value]) -> tuple[tuple[Value, ...], ...]:
    if any(isinstance(value, str) for value in values):
        raise ValueError("a word where a sequence belongs")
    return tuple(value for value in values if not isinstance(value, str))


def _read_name(values: Sequence[Value]) -> str:
    text = _read_text(values)
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", text):
        raise ValueError("no name")
    return text


def _read_path(values: Sequence[Value]) -> Path | None:
    # The processes of one account run in different folders: a relative path would name a different file in each.
    text = _read_text(values)
    if text and not (text.startswith("/") and text.isprintable()):
        raise ValueError("no absolute path")
    return Path(text) if text else None


def _read_paths(values: Sequence[Value]) -> tuple[Path, ...]:
    paths = [_read_path([value]) for value in values]
    if None in paths:
        raise ValueError("an empty path")
    return tuple(path for path in paths if path)


def _read_command(values: Sequence[Value]) -> tuple[str, ...]:
    words = _read_words(values)
    if not all(map(str.isprintable, words)):
        raise ValueError("not printable")
    if words and "/" in words[0] and not words[0].startswith("/"):
        raise ValueError("its program would be looked for in another folder by each who runs it")
    return words


def _read_modules(values: Sequence[Value]) -> tuple[str, ...]:
    words = _read_words(values)
    for word in words:
        if word.endswith(".py"):
            _read_path([word])
        elif not all(map(str.isidentifier, word.split("."))):
            raise ValueError("no module")
    return words


class Kind(enum.Enum):
    """The kinds of values: description, Python type and reader. Those from NAME on occur in the configuration only."""

    TEXT = "a text, quoted if it has spaces", str, _read_text
    INTEGER = "an integer", int, _read_integer
    NUMBER = "a number", int | float, _read_number
    FLAG = "yes or no", bool, _read_flag
    WORDS = "a list of words", tuple, _read_words
    PAIRS = "a list of (NAME value) pairs", tuple, _read_pairs
    SEQUENCES = "a list of sequences (...)", tuple, _read_sequences
    FILE = "a file", RequestFile, _read_file
    FILES = "a list of files", tuple, _read_files
    NAME = "a word of letters, digits, dots, dashes and underscores, at most 64", str, _read_name
    PATH = "an absolute path, or nothing", Path, _read_path
    PATHS = "a list of absolute paths", tuple, _read_paths
    COMMAND = "a list of the words of a command, its program absolute or on PATH", tuple, _read_command
    MODULES = "a list of dotted module names and absolute paths of .py files", tuple, _read_modules

    type: Any
    """What ``isinstance`` takes."""
    read: Callable[[Sequence[Value]], Any]
    """Raises ValueError, and OverflowError for numbers; gives names of files as words."""

    def __new__(cls, name: str, type_: Any, read: Callable[[Sequence[Value]], Any]) -> "Kind":
        """A kind whose value is its name."""
        kind = object.__new__(cls)
        kind._value_, kind.type, kind.read = name, type_, read
        return kind


def canonical_name(name: str) -> str:
    """The attribute's name as Globus compares it: lower case, underscores ignored."""
    return name.lower().replace("_", "")


@dataclass(frozen=True)
class Attribute:
    """One attribute of a request, or one key of the configuration; checks and help come from it."""

    name: str
    doc: str
    kind: Kind = Kind.TEXT
    unit: str = ""
    default: Any = None
    required: bool = False
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()

    def read(self, values: Sequence[Value], folder: Path = Path("/")) -> Any:
        """The typed value; raises ValueError that says what it must be instead.

        Relative names of files are relative to ``folder``, the request's own.
        """
        try:
            value = self.kind.read(values)
        except (ValueError, OverflowError):
            raise self.fault(show(_render(values))) from None
        if type(value) in (int, float) and not self._is_in_range(value):
            raise self.fault(_number(value))
        if self.choices and not {*(value if isinstance(value, tuple) else (value,))} <= {*self.choices}:
            raise self.fault(show(_render(values)))
        if self.kind is Kind.FILE:
            return RequestFile(value, folder / value)
        if self.kind is Kind.FILES:
            return tuple(RequestFile(name, folder / name) for name in value)
        return value

    def read_plain(self, value: object) -> Any:
        """The typed value of a value in a TOML file, where "1" is not a number; raises ValueError as `read` does."""
        known = _PLAIN.get(self.kind, (str,))
        words = value if isinstance(value, list) else [value]
        try:
            if isinstance(value, list) is not (self.kind.type is tuple) or any(
                type(word) not in known for word in words
            ):
                raise ValueError("of another type")
            return self.read([str(word) for word in words])
        except ValueError:
            raise self.fault(show(value)) from None

    def fault(self, shown: str) -> ValueError:
        """The error that says what the value must be, and what it is (``shown``)."""
        return ValueError(f"must be {self.describe()}, not {shown}")

    def describe(self) -> str:
        """What a value must be, for people: ``an integer from 1 to 100 (events)``."""
        if self.choices:
            return f"{'any' if self.kind is Kind.WORDS else 'one'} of {', '.join(self.choices)}"
        unit = f" ({self.unit})" if self.unit else ""
        return f"{self.kind.value}{self._range()}{unit}"

    def _is_in_range(self, value: float) -> bool:
        return (self.minimum is None or value >= self.minimum) and (self.maximum is None or value <= self.maximum)

    def _range(self) -> str:
        if self.minimum is not None and self.maximum is not None:
            return f" from {_number(self.minimum)} to {_number(self.maximum)}"
        if self.minimum is not None:
            return f", at least {_number(self.minimum)}"
        return "" if self.maximum is None else f", at most {_number(self.maximum)}"


_PLAIN = {Kind.INTEGER: (int,), Kind.NUMBER: (int, float), Kind.FLAG: (bool, str)}
"""The types that TOML has for a kind of value, if not str."""


def read_table(
    table: Mapping[str, object], readers: Mapping[str, Callable[[Any], Any]]
) -> tuple[dict[str, Any], list[str]]:
    """The values of a table of the configuration, each read by its key's reader; and one sentence for each fault."""
    values, faults = {}, []
    for key, value in table.items():
        if key not in readers:
            faults.append(f"has no key {show(key)}; the keys are {', '.join(readers) or 'none'}")
            continue
        try:
            values[key] = readers[key](value)
        except ValueError as error:
            faults.append(f"{key} {error}")
    return values, faults


def show(value: object) -> str:
    """A bad value as messages quote it: one line, shortened."""
    text = value if isinstance(value, str) else repr(value)
    short = text if len(text) <= 60 else text[:57] + "..."
    return repr(short) if isinstance(value, str) else short


def _render(values: Sequence[Value]) -> str:
    return " ".join(value if isinstance(value, str) else f"({_render(value)})" for value in values)


def _number(value: float) -> str:
    # All digits: "at most 9e+08, not 9e+08" would help nobody.
    return str(value) if isinstance(value, int) else f"{value:.15g}"
