"""The Globus fork starter's messages: 100 start a job, 101 started, 102 refused (GT 4.0 WS GRAM, "Fork Starter")."""

import enum
import re
from dataclasses import dataclass

MAX_COUNT = 10_000


class StartError(enum.IntEnum):
    """The GRAM error codes that a 102 message can carry (globus_gram_protocol_constants.h)."""

    PARAMETER_NOT_SUPPORTED = 1
    BAD_DIRECTORY = 4
    EXECUTABLE_NOT_FOUND = 5
    STDIN_NOT_FOUND = 11
    INVALID_COUNT = 14
    JOB_EXECUTION_FAILED = 17
    BAD_RSL = 48
    RSL_EXECUTABLE = 55
    EXECUTABLE_PERMISSIONS = 72
    OPENING_STDOUT = 73
    OPENING_STDERR = 74


class BadMessage(Exception):
    """A 100 message that cannot be obeyed: its tag if readable, the GRAM error, and the reason."""

    def __init__(self, tag: str, error: StartError, reason: str) -> None:
        super().__init__(reason)
        self.tag = tag
        self.error = error


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


@dataclass(frozen=True, slots=True)
class Started:
    """A 101 message: the processes that were started for a tag."""

    tag: str
    pids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class NotStarted:
    """A 102 message: nothing runs for this tag, and why."""

    tag: str
    error: int
    reason: str


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


def read_start_request(line: str) -> StartRequest:
    """The request that a 100 message carries; raises BadMessage."""
    fields = _split_line(line)
    tag = _read_tag(fields)
    if fields[0] != "100" or not tag:
        raise BadMessage(tag, StartError.BAD_RSL, "not a start request: it must begin with 100;TAG;")
    if "\0" in line:
        raise BadMessage(tag, StartError.BAD_RSL, "a NUL character, which no argument or file name can hold")
    # Globus' own fork.pm writes a trailing semicolon, which makes an empty field.
    return _read_request(tag, dict(_read_attribute(tag, field) for field in fields[2:] if field))


def render_answer(answer: Started | NotStarted) -> str:
    """The answer as a 101 or 102 message, newline included."""
    if isinstance(answer, Started):
        return f"101;{render_escaped(answer.tag)};{','.join(map(str, answer.pids))}\n"
    return f"102;{render_escaped(answer.tag)};{int(answer.error)};{render_escaped(answer.reason)}\n"


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


def _read_tag(fields: list[str]) -> str:
    try:
        return _read_text(fields[1])
    except (IndexError, ValueError):
        return ""


_ATTRIBUTES = frozenset(("directory", "environment", "count", "executable", "arguments", "stdin", "stdout", "stderr"))


def _read_attribute(tag: str, field: str) -> tuple[str, tuple[str, ...]]:
    name, equals, values = field.partition("=")
    if not equals:
        raise BadMessage(tag, StartError.BAD_RSL, f"{field!r} is not an attribute: it must be NAME=VALUE,…")
    if name not in _ATTRIBUTES:
        known = ", ".join(sorted(_ATTRIBUTES))
        raise BadMessage(tag, StartError.PARAMETER_NOT_SUPPORTED, f"unknown attribute {name!r}; there are {known}")
    try:
        # An "=" in a variable's name is escaped, so names are split off before escapes are read.
        read = str if name == "environment" else _read_text
        return name, tuple(map(read, values.split(",")))
    except ValueError as error:
        raise BadMessage(tag, StartError.BAD_RSL, f"{name}: {error}") from error


def _read_request(tag: str, values: dict[str, tuple[str, ...]]) -> StartRequest:
    executable = _read_single(tag, values, "executable", "")
    if not executable:
        raise BadMessage(tag, StartError.RSL_EXECUTABLE, "the attribute executable is missing")
    count = _read_count(tag, _read_single(tag, values, "count", "1"))
    for name, error in (("stdout", StartError.OPENING_STDOUT), ("stderr", StartError.OPENING_STDERR)):
        if len(values.get(name, ())) not in (0, count):
            raise BadMessage(tag, error, f"{name} must name one file for each of the {count} processes")
    return StartRequest(
        tag=tag,
        executable=executable,
        arguments=values.get("arguments", ()),
        directory=_read_single(tag, values, "directory", "/"),
        environment=tuple(_read_variable(tag, value) for value in values.get("environment", ())),
        count=count,
        stdin=_read_single(tag, values, "stdin", "/dev/null"),
        stdout=values.get("stdout", ()),
        stderr=values.get("stderr", ()),
    )


def _read_single(tag: str, values: dict[str, tuple[str, ...]], name: str, default: str) -> str:
    found = values.get(name, (default,))
    if len(found) != 1:
        raise BadMessage(tag, StartError.BAD_RSL, f"the attribute {name} takes one value, not {len(found)}")
    return found[0]


def _read_count(tag: str, text: str) -> int:
    if not re.fullmatch(r"\d{1,9}", text, re.ASCII) or not 1 <= int(text) <= MAX_COUNT:
        raise BadMessage(tag, StartError.INVALID_COUNT, f"count is {text!r}; it must be from 1 to {MAX_COUNT}")
    return int(text)


def _read_variable(tag: str, text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise BadMessage(tag, StartError.BAD_RSL, f"{text!r} in environment is not VARIABLE=VALUE")
    try:
        return _read_text(name), _read_text(value)
    except ValueError as error:
        raise BadMessage(tag, StartError.BAD_RSL, f"environment: {error}") from error
