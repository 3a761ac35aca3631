"""How a job type declares the attributes of its requests, and how a declared attribute is read."""

import enum
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Value = str | tuple["Value", ...]
"""One RSL value: a word, or a parenthesised sequence of values."""


@dataclass(frozen=True)
class RequestFile:
    """A file that a request names: ``name`` as written, ``path`` seen from the request's own folder."""

    name: str
    path: Path

    @property
    def travels(self) -> bool:
        """True for a name beside the request, False for an absolute one."""
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


class Kind(enum.Enum):
    """What an attribute's value is: its name, the Python type that the handler gets, and how it is read."""

    TEXT = "one word", str, _read_text
    INTEGER = "an integer", int, _read_integer
    NUMBER = "a number", int | float, _read_number
    FLAG = "yes or no", bool, _read_flag
    WORDS = "a list of words", tuple, _read_words
    PAIRS = "a list of (NAME value) pairs", tuple, _read_pairs
    SEQUENCES = "a list of sequences (...)", tuple, _read_sequences
    FILE = "a file", RequestFile, _read_file
    FILES = "a list of files", tuple, _read_files

    type: Any
    """What ``isinstance`` takes."""
    read: Callable[[Sequence[Value]], Any]
    """Names of files are still words; raises ValueError, and OverflowError for numbers."""

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
    """One attribute of a request or of a site: the single source for checks, help and the RSL validation file."""

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
        """The typed value of what the request says; raises ValueError with a sentence for the user.

        Names of files that are not absolute are seen from ``folder``, where the request lies.
        """
        try:
            value = self.kind.read(values)
        except (ValueError, OverflowError):
            raise ValueError(f"{self.name} must be {self.describe()}, not {_shown(values)}") from None
        if isinstance(value, float | int) and not isinstance(value, bool):
            self._check_range(value)
        if self.choices and value not in self.choices:
            raise ValueError(f"{self.name} must be one of {', '.join(self.choices)}, not {_shown(values)}")
        if self.kind is Kind.FILE:
            return RequestFile(value, folder / value)
        if self.kind is Kind.FILES:
            return tuple(RequestFile(name, folder / name) for name in value)
        return value

    def describe(self) -> str:
        """The kind, unit and range in words: ``integer (events), 1 to 1000000``."""
        unit = f" ({self.unit})" if self.unit else ""
        return f"{self.kind.value}{unit}{self._range()}"

    def _check_range(self, value: float) -> None:
        below = self.minimum is not None and value < self.minimum
        above = self.maximum is not None and value > self.maximum
        if below or above:
            raise ValueError(f"{self.name} must be {self.describe()}, not {_number(value)}")

    def _range(self) -> str:
        if self.minimum is not None and self.maximum is not None:
            return f", {_number(self.minimum)} to {_number(self.maximum)}"
        if self.minimum is not None:
            return f", at least {_number(self.minimum)}"
        if self.maximum is not None:
            return f", at most {_number(self.maximum)}"
        return ""


def _shown(values: Sequence[Value]) -> str:
    text = " ".join(value if isinstance(value, str) else f"({_shown(value)})" for value in values)
    return repr(text if len(text) <= 60 else text[:57] + "...")


def _number(value: float) -> str:
    # All digits of a seed or a number of events: "at most 9e+08, not 9e+08" would tell nobody anything.
    return str(value) if isinstance(value, int) else f"{value:.15g}"
