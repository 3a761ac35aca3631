"""Translates GRAM's description of a job into a request of ours, with the checks that GRAM leaves to job managers.

A description that names no job type of ours (``samgrid_type``, or ``job_type``) is a plain GRAM job: it becomes a grid
job of type ``command`` that runs as under GRAM's own job managers: in the request's directory, and each process with
the same standard input.
"""

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from adapters import JobAdapter, Value, canonical_name
from batch_adapters.states import GramError

_CONTACT = "GLOBUS_GRAM_JOB_CONTACT"


class BadDescription(Exception):
    """The input is not a description of a job."""


@dataclass(frozen=True)
class JobDescription:
    """One job, as GRAM's job manager or an argument file describes it."""

    attributes: Mapping[str, tuple[Value, ...]]
    """By canonical names; words are kept byte for byte (as by `os.fsdecode`)."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """The caller's environment variables for the job: contact and proxy."""

    def words(self, name: str) -> tuple[Value, ...]:
        """All values of an attribute; none if it is missing."""
        return self.attributes.get(canonical_name(name), ())

    def word(self, name: str) -> str:
        """The single word of an attribute; empty for anything else."""
        values = self.words(name)
        return values[0] if len(values) == 1 and isinstance(values[0], str) else ""

    @property
    def contact(self) -> str:
        """The job's contact for GRAM's clients; empty: GRAM gave none."""
        if _CONTACT in self.environment:
            return self.environment[_CONTACT]
        pairs = dict(pair for pair in self.words("environment") if isinstance(pair, tuple) and len(pair) == 2)
        contact = pairs.get(_CONTACT, "")
        return contact if isinstance(contact, str) else ""


def read_description(text: str) -> JobDescription:
    """Read the JSON of the Perl module, in which every character stands for one byte.

    :raises BadDescription: it is something else.
    """
    try:
        found = json.loads(text)
        attributes = {
            canonical_name(_decode(name)): _read_values(values) for name, values in found["description"].items()
        }
        environment = {_decode(name): _decode(value) for name, value in found["environment"].items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BadDescription(f"no description of a job: {error}") from error
    return JobDescription(attributes, environment)


def _read_values(values: Sequence[object]) -> tuple[Value, ...]:
    if not isinstance(values, list):
        raise TypeError(f"{values!r} is no list")
    return tuple(_read_values(value) if isinstance(value, list) else _decode(value) for value in values)


def _decode(word: object) -> str:
    if not isinstance(word, str):
        raise TypeError(f"{word!r} is no word")
    return os.fsdecode(word.encode("latin-1"))


TYPE_NAME = "samgridtype"
GRAM_JOB_TYPES = "single multiple mpi condor"
"""Words of GRAM's own job_type. These, and parts of them that GRAM lets pass, keep GRAM's meaning."""
_MANAGERS = frozenset(
    (
        "cachetag", "condorarch", "condoros", "dryrun", "emailaddress", "emailonabort", "emailonexecution",
        "emailontermination", "expiration", "filecleanup", "filestagein", "filestageinshared", "filestageout",
        "filestreamout", "gasscache", "grammyjob", "hostcount", "hostnames", "hosttypes", "hostxcount", "jobdir",
        "jobid", "jobtype", "librarypath", "logfile", "loglevel", "logpattern", "minmemory", "paradyn",
        "proxytimeout", "remoteiourl", "reservationhandle", "restart", "restartcontacts", "rslsubstitution",
        "savejobdescription", "savestate", "scratchdir", "scratchdirbase", "signal", "signalarg", "starttime",
        "statefile", "stderr", "stderrposition", "stdout", "stdoutposition", "streamingdisabled",
        "streamingrequested", "twophase", "uniqid", "username", "xcount",
    )
)  # fmt: skip
"""Attributes for GRAM's job manager itself, not for the program."""
_OF_PROGRAM = ("executable", "arguments", "count", "stdin", "directory")
_LIMITS = ("maxtime", "maxwalltime", "maxcputime", "maxmemory")
"""Limits, of which 0 means none in GRAM."""
_OF_ATTRIBUTE = {
    "arguments": GramError.RSL_ARGUMENTS,
    "count": GramError.INVALID_COUNT,
    "directory": GramError.BAD_DIRECTORY,
    "environment": GramError.RSL_ENVIRONMENT,
    "executable": GramError.RSL_EXECUTABLE,
    "jobtype": GramError.INVALID_JOB_TYPE,
    "maxcputime": GramError.INVALID_MAX_CPU_TIME,
    "maxmemory": GramError.INVALID_MAX_MEMORY,
    "maxtime": GramError.INVALID_MAX_TIME,
    "maxwalltime": GramError.INVALID_MAX_WALL_TIME,
    "project": GramError.INVALID_PROJECT,
    "queue": GramError.INVALID_QUEUE,
    "stdin": GramError.STDIN_NOT_FOUND,
}
"""GRAM's error number for faults of an attribute."""
_NUMBER = re.compile(r"[0-9]{1,9}", re.ASCII)


class RefusedRequest(Exception):
    """The request is refused, with GRAM's error number."""

    def __init__(self, error: GramError, message: str) -> None:
        super().__init__(message)
        self.error = error


def is_plain(description: JobDescription) -> bool:
    """True if the request names no job type of ours, in neither attribute."""
    return TYPE_NAME not in description.attributes and not _old_type(description)


def _old_type(description: JobDescription) -> str:
    """The job type of ours in GRAM's job_type, as in old SAMGrid requests; empty: none."""
    word = description.word("jobtype")
    return "" if word in GRAM_JOB_TYPES or TYPE_NAME in description.attributes else word


def find_type(description: JobDescription) -> str:
    """The job type of ours that a request names; empty: none."""
    return description.word(TYPE_NAME) or _old_type(description)


def set_aside(description: JobDescription, handler: type[JobAdapter]) -> tuple[JobDescription, list[str]]:
    """The description without program attributes that its job type does not take, and the names of those that were set.

    Many clients write them into every request: Condor-G an executable and a directory, GRAM 1.5 all of them. As the job
    type does not declare them, ignoring them does not change its work.
    """
    taken = {canonical_name(attribute.name) for attribute in handler.attributes}
    # Every program has a standard input.
    taken |= {"stdin", "directory"} if handler.usesDirectory else {"stdin"}
    aside = [name for name in _OF_PROGRAM if name not in taken]
    kept = {name: values for name, values in description.attributes.items() if name not in aside}
    nothing = ((), ("",))
    unused = [name for name in aside if description.words(name) not in (*nothing, dict(_defaults()).get(name))]
    return replace(description, attributes=kept), unused


def read_request(description: JobDescription) -> list[tuple[str, tuple[Value, ...]]]:
    """The attributes of the request of ours.

    :raises RefusedRequest: with the error numbers, and in the order of checks, of GRAM's own job managers.
    """
    directory = find_directory(description)
    request: list[tuple[str, tuple[Value, ...]]] = [("environment", _read_environment(description))]
    count = _read_count(description)
    if old_type := _old_type(description):
        request.append(("job_type", (old_type,)))
    if is_plain(description):
        request += _read_program(description, directory, count)
    elif description.word("executable"):
        # The job type checks it, too, but without GRAM's error numbers.
        _find_executable(description, directory)
    request += _read_limits(description)
    read = {*_MANAGERS, *_LIMITS, "environment", *(_OF_PROGRAM if is_plain(description) else ())}
    given = [(name, values) for name, values in description.attributes.items() if name not in read]
    # GRAM adds its defaults to every request.
    request += [attribute for attribute in given if attribute not in _defaults()]
    return request


def find_directory(description: JobDescription) -> Path:
    """The folder that the request's file names are relative to; it may be relative to the home folder.

    :raises RefusedRequest: it does not exist or cannot be entered.
    """
    name = description.word("directory")
    if description.words("directory") and not name:
        raise RefusedRequest(GramError.RSL_DIRECTORY, "directory must be one word")
    directory = Path(os.environ.get("HOME", "/")) / name
    if "\0" in name or not os.access(directory, os.X_OK) or not directory.is_dir():
        raise RefusedRequest(GramError.BAD_DIRECTORY, f"directory: there is no folder {directory}, or it is closed")
    return directory


def _defaults() -> list[tuple[str, tuple[Value, ...]]]:
    home = os.environ.get("HOME", "/")
    return [("count", ("1",)), ("directory", (home,)), ("stdin", ("/dev/null",))]


def _read_environment(description: JobDescription) -> tuple[Value, ...]:
    for pair in description.words("environment"):
        if isinstance(pair, str) or len(pair) != 2 or not all(isinstance(word, str) for word in pair):
            raise RefusedRequest(GramError.RSL_ENVIRONMENT, f"environment: {pair!r} is no (NAME value)")
    return description.words("environment")


def _read_program(description: JobDescription, directory: Path, count: int) -> Iterator[tuple[str, tuple[Value, ...]]]:
    yield "samgrid_type", ("command",)
    yield "directory", (str(directory),)
    yield "executable", (_find_executable(description, directory),)
    stdin = _find_stdin(description, directory)
    # The default of every local job; not a regular file.
    if stdin != os.devnull:
        yield "stdin", (stdin,)
    yield "count", (str(count),)
    if any(not isinstance(word, str) for word in description.words("arguments")):
        raise RefusedRequest(GramError.RSL_ARGUMENTS, "arguments must be words, without parentheses")
    yield "arguments", description.words("arguments")
    # GRAM's own job managers ignore exit codes.
    yield "min_success", ("0",)


def _find_executable(description: JobDescription, directory: Path) -> str:
    name = description.word("executable")
    if not description.words("executable"):
        raise RefusedRequest(GramError.UNDEFINED_EXECUTABLE, "executable is missing: name a program, or a samgrid_type")
    if not name:
        raise RefusedRequest(GramError.RSL_EXECUTABLE, "executable must be one word, the name of a program")
    program = _seen_from(directory, name)
    if "\0" in program or not os.access(program, os.F_OK):
        raise RefusedRequest(GramError.EXECUTABLE_NOT_FOUND, f"executable: there is no {program}")
    if not Path(program).is_file() or not os.access(program, os.X_OK):
        raise RefusedRequest(GramError.EXECUTABLE_PERMISSIONS, f"executable: {program} is no file that may be executed")
    return program


def _find_stdin(description: JobDescription, directory: Path) -> str:
    name = description.word("stdin")
    if not name:
        raise RefusedRequest(GramError.RSL_STDIN, "stdin must be one word, the name of a file")
    stdin = _seen_from(directory, name)
    if "\0" in stdin or not os.access(stdin, os.R_OK):
        raise RefusedRequest(GramError.STDIN_NOT_FOUND, f"stdin: {stdin} cannot be read")
    return stdin


def _seen_from(directory: Path, name: str) -> str:
    """The absolute name, with slashes and dots as written, because a program sees its own name."""
    return name if name.startswith("/") else f"{directory}/{name}"


def _read_count(description: JobDescription) -> int:
    """The number of processes of a plain job."""
    count = description.word("count") if description.words("count") else "1"
    if not _NUMBER.fullmatch(count) or int(count) < 1:
        raise RefusedRequest(GramError.INVALID_COUNT, f"count: {count!r} is no number from 1 to 999999999")
    # Checked again, because GRAM lets any part of a permitted word pass.
    job_type = description.word("jobtype") if description.words("jobtype") else "multiple"
    if job_type == "multiple" or _old_type(description):
        return int(count)
    if job_type == "single":
        return 1
    message = f"job_type: {job_type!r} jobs are not for this job manager: single or multiple"
    raise RefusedRequest(GramError.JOB_TYPE_NOT_SUPPORTED, message)


def _read_limits(description: JobDescription) -> Iterator[tuple[str, tuple[Value, ...]]]:
    for name in _LIMITS:
        value = description.word(name) if description.words(name) else "0"
        if not _NUMBER.fullmatch(value):
            raise RefusedRequest(_OF_ATTRIBUTE[name], f"{name}: {value!r} is no number")
        # max_time means wall time, unless max_wall_time is given.
        if int(value) and not (name == "maxtime" and description.words("maxwalltime")):
            yield "maxwalltime" if name == "maxtime" else name, (value,)


def find_error(fault: str) -> GramError:
    """GRAM's error number of a fault whose message begins with an attribute's name; 134 for our own attributes."""
    first = fault.split(maxsplit=1)[0].rstrip(":") if fault.split() else ""
    return _OF_ATTRIBUTE.get(canonical_name(first), GramError.RSL_SCHEDULER_SPECIFIC)
