"""The Globus fork starter's messages: 100 start a job, 101 started, 102 refused (GT 4.0 WS GRAM, "Fork Starter")."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from batch_adapters.states import GramError

MAX_COUNT = 10_000


class StartRefused(Exception):
    """A job cannot be started: GRAM error and reason; ``for_good`` is False if it may be tried again."""

    def __init__(self, error: GramError, reason: str, *, for_good: bool = True) -> None:
        super().__init__(reason)
        self.error = error
        self.for_good = for_good


@dataclass(frozen=True, slots=True)
class StartRequest:
    """A 100 message; stdout and stderr name one file for each of the `count` processes, or are empty (/dev/null)."""

    tag: str
    executable: str
    arguments: tuple[str, ...] = ()
    directory: str = "/"
    environment: tuple[tuple[str, str], ...] = ()
    count: int = 1
    stdin: str = "/dev/null"
    stdout: tuple[str, ...] = ()
    stderr: tuple[str, ...] = ()


_ESCAPES = {"\\": "\\\\", ";": "\\;", ",": "\\,", "\n": "\\n", "=": "\\="}
_ESCAPE_TABLE = str.maketrans(_ESCAPES)
_SPECIAL = re.compile(r"[\\;,\n=]")
_ESCAPE = re.compile(r"\\[\\;,n=]")
# Placeholders of escapes while a line is split at its separators; messages have no NUL themselves.
_CODES = {escape: f"\0{number}" for number, escape in enumerate(_ESCAPES.values())}
_CHARACTERS = {f"\0{number}": character for number, character in enumerate(_ESCAPES)}


def read_wire(line: bytes) -> str:
    """The text of a line; bytes that are not UTF-8 survive as surrogates, whatever the locale."""
    return line.decode("utf-8", "surrogateescape")


def render_wire(text: str) -> bytes:
    """The bytes of a text that `read_wire` made: for the line, for file names and for execve."""
    return text.encode("utf-8", "surrogateescape")


def render_escaped(text: str) -> str:
    """The text with the protocol's special characters escaped."""
    return text.translate(_ESCAPE_TABLE) if _SPECIAL.search(text) else text


def read_tag(line: str) -> str:
    """The tag of a message; empty if it cannot be read."""
    try:
        return _read_text(_split_line(line)[1])
    except (IndexError, ValueError):
        return ""


def read_start_request(line: str) -> StartRequest:
    """The request that a 100 message carries; raises StartRefused."""
    fields, tag = _split_line(line), read_tag(line)
    if fields[0] != "100" or not tag:
        raise StartRefused(GramError.BAD_RSL, "not a start request: it must begin with 100;TAG;")
    if "\0" in line:
        raise StartRefused(GramError.BAD_RSL, "a NUL character, which no argument or file name can hold")
    # Globus' own fork.pm writes a trailing semicolon, which makes an empty field.
    return _read_request(tag, dict(_read_attribute(field) for field in fields[2:] if field))


def render_started(tag: str, pids: Iterable[int]) -> str:
    """The 101 message: the processes that were started for a tag."""
    return f"101;{render_escaped(tag)};{','.join(map(str, pids))}\n"


def render_refusal(tag: str, refusal: StartRefused) -> str:
    """The 102 message: nothing runs for this tag, and why."""
    return f"102;{render_escaped(tag)};{refusal.error.value};{render_escaped(str(refusal))}\n"


def _split_line(line: str) -> list[str]:
    line = line.removesuffix("\n").replace("\0", "")
    return (_ESCAPE.sub(lambda escape: _CODES[escape[0]], line) if "\\" in line else line).split(";")


def _read_text(field: str) -> str:
    if "\\" in field:
        wrong = field[field.index("\\") :][:2]
        raise ValueError(f"{wrong!r} is no escape; there are {' '.join(_CODES)}")
    if "\0" in field:
        for code, character in _CHARACTERS.items():
            field = field.replace(code, character)
    return field


_ATTRIBUTES = frozenset(("directory", "environment", "count", "executable", "arguments", "stdin", "stdout", "stderr"))


def _read_attribute(field: str) -> tuple[str, tuple[str, ...]]:
    name, equals, values = field.partition("=")
    if not equals:
        raise StartRefused(GramError.BAD_RSL, f"{field!r} is not an attribute: it must be NAME=VALUE,…")
    if name not in _ATTRIBUTES:
        known = ", ".join(sorted(_ATTRIBUTES))
        raise StartRefused(GramError.PARAMETER_NOT_SUPPORTED, f"unknown attribute {name!r}; there are {known}")
    try:
        # An "=" in a variable's name is escaped, so names are split off before escapes are read.
        read = str if name == "environment" else _read_text
        return name, tuple(map(read, values.split(",")))
    except ValueError as error:
        raise StartRefused(GramError.BAD_RSL, f"{name}: {error}") from error


def _read_request(tag: str, values: dict[str, tuple[str, ...]]) -> StartRequest:
    executable = _read_single(values, "executable", "")
    if not executable:
        raise StartRefused(GramError.RSL_EXECUTABLE, "the attribute executable is missing")
    count = _read_count(_read_single(values, "count", "1"))
    for name, error in (("stdout", GramError.OPENING_STDOUT), ("stderr", GramError.OPENING_STDERR)):
        if len(values.get(name, ())) not in (0, count):
            raise StartRefused(error, f"{name} must name one file for each of the {count} processes")
    return StartRequest(
        tag=tag,
        executable=executable,
        arguments=values.get("arguments", ()),
        directory=_read_single(values, "directory", "/"),
        environment=tuple(map(_read_variable, values.get("environment", ()))),
        count=count,
        stdin=_read_single(values, "stdin", "/dev/null"),
        stdout=values.get("stdout", ()),
        stderr=values.get("stderr", ()),
    )


def _read_single(values: dict[str, tuple[str, ...]], name: str, default: str) -> str:
    found = values.get(name, (default,))
    if len(found) != 1:
        raise StartRefused(GramError.BAD_RSL, f"the attribute {name} takes one value, not {len(found)}")
    return found[0]


def _read_count(text: str) -> int:
    if not re.fullmatch(r"\d{1,9}", text, re.ASCII) or not 1 <= int(text) <= MAX_COUNT:
        raise StartRefused(GramError.INVALID_COUNT, f"count is {text!r}; it must be from 1 to {MAX_COUNT}")
    return int(text)


def _read_variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise StartRefused(GramError.BAD_RSL, f"{text!r} in environment is not VARIABLE=VALUE")
    try:
        return _read_text(name), _read_text(value)
    except ValueError as error:
        raise StartRefused(GramError.BAD_RSL, f"environment: {error}") from error
