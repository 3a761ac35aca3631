"""The Globus fork starter's messages: 100 start a job, 101 started, 102 refused (GT 4.0 WS GRAM, "Fork Starter")."""

import enum
import re
from collections.abc import Iterable
from dataclasses import dataclass

MAX_COUNT = 10_000


class GramError(enum.IntEnum):
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


class BadRequest(Exception):
    """A 100 message that cannot be obeyed: its tag as far as it was readable, the GRAM error, and why."""

    def __init__(self, tag: str, error: GramError, reason: str) -> None:
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
class Refused:
    """A 102 message: nothing runs for this tag, and why."""

    tag: str
    error: int
    reason: str


# An escape, a character that structures the message, or text between them.
_ATOM = re.compile(r"\\.|[;,=]|[^\\;,=]+", re.DOTALL)
_ESCAPES = {"\\": "\\\\", ";": "\\;", ",": "\\,", "\n": "\\n", "=": "\\="}
_ESCAPE_TABLE = str.maketrans(_ESCAPES)
_ESCAPED = {escape: character for character, escape in _ESCAPES.items()}


def read_wire(line: bytes) -> str:
    """The text of a line; bytes that are not UTF-8 survive as surrogates, whatever the locale."""
    return line.decode("utf-8", "surrogateescape")


def render_wire(text: str) -> bytes:
    """The bytes of a text that `read_wire` made: for the line, for file names and for execve."""
    return text.encode("utf-8", "surrogateescape")


def render_escaped(text: str) -> str:
    """The text with every character protected that means something in the protocol."""
    return text.translate(_ESCAPE_TABLE)


def render_start_request(request: StartRequest) -> str:
    """The request as a 100 message, newline included."""
    environment = ",".join(f"{render_escaped(name)}={render_escaped(value)}" for name, value in request.environment)
    attributes = {
        "directory": render_escaped(request.directory),
        "environment": environment,
        "count": str(request.count),
        "executable": render_escaped(request.executable),
        "arguments": _render_values(request.arguments),
        "stdin": render_escaped(request.stdin),
        "stdout": _render_values(request.stdout),
        "stderr": _render_values(request.stderr),
    }
    # Absent and empty differ: "arguments=" is one empty argument.
    absent = {
        "environment": not request.environment,
        "arguments": not request.arguments,
        "stdout": not request.stdout,
        "stderr": not request.stderr,
    }
    fields = [f"{name}={values}" for name, values in attributes.items() if not absent.get(name)]
    return ";".join(["100", render_escaped(request.tag), *fields]) + "\n"


def read_start_request(line: str) -> StartRequest:
    """The request that a 100 message carries; raises BadRequest."""
    fields = _split(_read_atoms(line.removesuffix("\n")), ";")
    tag = _read_tag(fields)
    if fields[0] != ["100"] or not tag:
        raise BadRequest(tag, GramError.BAD_RSL, "not a start request: it must begin with 100;TAG;")
    if "\0" in line:
        raise BadRequest(tag, GramError.BAD_RSL, "a NUL character, which no argument or file name can hold")
    # A trailing semicolon leaves an empty field; Globus' own fork.pm writes one.
    attributes = dict(_read_attribute(tag, field) for field in fields[2:] if field)
    return _read_request(tag, attributes)


def render_answer(answer: Started | Refused) -> str:
    """The answer as a 101 or 102 message, newline included."""
    if isinstance(answer, Started):
        return f"101;{render_escaped(answer.tag)};{','.join(map(str, answer.pids))}\n"
    return f"102;{render_escaped(answer.tag)};{int(answer.error)};{render_escaped(answer.reason)}\n"


def read_answer(line: str) -> Started | Refused:
    """The answer that a 101 or 102 message carries; raises ValueError with the line where it is neither."""
    fields = [_read_text(field) for field in _split(_read_atoms(line.removesuffix("\n")), ";")]
    match fields:
        case ["101", tag, pids]:
            return Started(tag, tuple(int(pid) for pid in pids.split(",")))
        case ["102", tag, error, reason]:
            return Refused(tag, int(error), reason)
    raise ValueError(f"the fork starter answered with neither 101 nor 102: {line!r}")


def _read_tag(fields: list[list[str]]) -> str:
    try:
        return _read_text(fields[1])
    except (IndexError, ValueError):
        return ""


def _read_request(tag: str, attributes: dict[str, list[list[str]]]) -> StartRequest:
    values = {name: tuple(_read_text(value) for value in found) for name, found in attributes.items()}
    executable = _read_single(tag, values, "executable", "")
    if not executable:
        raise BadRequest(tag, GramError.RSL_EXECUTABLE, "the attribute executable is missing")
    count = _read_count(tag, _read_single(tag, values, "count", "1"))
    for name, error in (("stdout", GramError.OPENING_STDOUT), ("stderr", GramError.OPENING_STDERR)):
        if len(values.get(name, ())) not in (0, count):
            raise BadRequest(tag, error, f"{name} must name one file for each of the {count} processes")
    return StartRequest(
        tag=tag,
        executable=executable,
        arguments=values.get("arguments", ()),
        directory=_read_single(tag, values, "directory", "/"),
        environment=tuple(_read_variable(tag, value) for value in attributes.get("environment", ())),
        count=count,
        stdin=_read_single(tag, values, "stdin", "/dev/null"),
        stdout=values.get("stdout", ()),
        stderr=values.get("stderr", ()),
    )


_ATTRIBUTES = frozenset(("directory", "environment", "count", "executable", "arguments", "stdin", "stdout", "stderr"))


def _read_attribute(tag: str, field: list[str]) -> tuple[str, list[list[str]]]:
    name = field[0]
    if len(field) < 2 or field[1] != "=":
        raise BadRequest(tag, GramError.BAD_RSL, f"{''.join(field)!r} is not an attribute: it must be NAME=VALUE,…")
    if name not in _ATTRIBUTES:
        known = ", ".join(sorted(_ATTRIBUTES))
        raise BadRequest(tag, GramError.PARAMETER_NOT_SUPPORTED, f"unknown attribute {name!r}; there are {known}")
    try:
        values = _split(field[2:], ",")
        [_read_text(value) for value in values]
    except ValueError as error:
        raise BadRequest(tag, GramError.BAD_RSL, f"{name}: {error}") from error
    return name, values


def _read_single(tag: str, values: dict[str, tuple[str, ...]], name: str, default: str) -> str:
    found = values.get(name, (default,))
    if len(found) != 1:
        raise BadRequest(tag, GramError.BAD_RSL, f"the attribute {name} takes one value, not {len(found)}")
    return found[0]


def _read_count(tag: str, text: str) -> int:
    if not re.fullmatch(r"\d{1,9}", text, re.ASCII) or not 1 <= int(text) <= MAX_COUNT:
        raise BadRequest(tag, GramError.INVALID_COUNT, f"count is {text!r}; it must be from 1 to {MAX_COUNT}")
    return int(text)


def _read_variable(tag: str, value: list[str]) -> tuple[str, str]:
    name, *rest = _split(value, "=")
    if not rest or not name:
        raise BadRequest(tag, GramError.BAD_RSL, f"{''.join(value)!r} in environment is not VARIABLE=VALUE")
    return _read_text(name), "=".join(_read_text(part) for part in rest)


def _read_atoms(text: str) -> list[str]:
    atoms = _ATOM.findall(text)
    # A lone backslash at the end matches nothing: keep it, so that reading its field complains.
    return [*atoms, "\\"] if sum(map(len, atoms)) < len(text) else atoms


def _split(atoms: Iterable[str], separator: str) -> list[list[str]]:
    pieces: list[list[str]] = [[]]
    for atom in atoms:
        if atom == separator:
            pieces.append([])
        else:
            pieces[-1].append(atom)
    return pieces


def _read_text(atoms: Iterable[str]) -> str:
    return "".join(_read_escape(atom) if atom.startswith("\\") else atom for atom in atoms)


def _read_escape(atom: str) -> str:
    if atom not in _ESCAPED:
        raise ValueError(f"{atom!r} is no escape; there are {' '.join(_ESCAPED)}")
    return _ESCAPED[atom]


def _render_values(values: Iterable[str]) -> str:
    return ",".join(render_escaped(value) for value in values)
