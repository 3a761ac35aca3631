"""From GRAM's description of a job to a request of ours; what every job manager type must check itself is checked here.

A description without ``samgrid_type``, and without a ``job_type`` of ours, is a plain GRAM job: it becomes a grid job
of type ``command`` that runs as it would under GRAM's own job managers, in the directory of the request, each process
with the same standard input.
"""

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from adapters import JobAdapter, Value, canonical_name
from jobmanager.gram.answers import GramError

_CONTACT = "GLOBUS_GRAM_JOB_CONTACT"


class BadDescription(Exception):
    """What came is no description of a job."""


@dataclass(frozen=True)
class JobDescription:
    """One job, as the GRAM job manager or its argument file describes it."""

    attributes: Mapping[str, tuple[Value, ...]]
    """By their canonical names; words are what came, byte for byte (bytes that are no UTF-8 as in `os.fsdecode`)."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """What the caller's own environment says of the job: its contact and its proxy."""

    def words(self, name: str) -> tuple[Value, ...]:
        """All values of an attribute; none where it is not there."""
        return self.attributes.get(canonical_name(name), ())

    def word(self, name: str) -> str:
        """The one word of an attribute; empty where there is none, or anything else."""
        values = self.words(name)
        return values[0] if len(values) == 1 and isinstance(values[0], str) else ""

    @property
    def contact(self) -> str:
        """The contact by which GRAM's clients know the job; empty where nobody said it."""
        if _CONTACT in self.environment:
            return self.environment[_CONTACT]
        pairs = dict(pair for pair in self.words("environment") if isinstance(pair, tuple) and len(pair) == 2)
        contact = pairs.get(_CONTACT, "")
        return contact if isinstance(contact, str) else ""


def read_description(text: str) -> JobDescription:
    """The description that the Perl module writes as JSON: every character stands for one byte.

    :raises BadDescription: it is anything else.
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
"""Where GRAM's own job_type has one of these words, or a part that GRAM lets pass for one, it keeps GRAM's meaning."""
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
"""Attributes that are the GRAM job manager's, or that say nothing about the program."""
_OF_PROGRAM = ("executable", "arguments", "count", "stdin", "directory")
_LIMITS = ("maxtime", "maxwalltime", "maxcputime", "maxmemory")
"""For GRAM a limit of 0 is none."""
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
"""The error of an attribute, by its name."""
_NUMBER = re.compile(r"[0-9]{1,9}", re.ASCII)


class RefusedRequest(Exception):
    """The description is refused, with GRAM's number for the reason."""

    def __init__(self, error: GramError, message: str) -> None:
        super().__init__(message)
        self.error = error


def is_plain(description: JobDescription) -> bool:
    """True where the request does not know of us: it names no job type of ours, by neither of its names."""
    return TYPE_NAME not in description.attributes and not _old_type(description)


def _old_type(description: JobDescription) -> str:
    """The job type of ours that an old request of SAMGrid names in GRAM's job_type; empty: it names none there."""
    word = description.word("jobtype")
    return "" if word in GRAM_JOB_TYPES or TYPE_NAME in description.attributes else word


def find_type(description: JobDescription) -> str:
    """The job type of ours that a request names; empty: it is a plain one, or names none that can be."""
    return description.word(TYPE_NAME) or _old_type(description)


def set_aside(description: JobDescription, handler: type[JobAdapter]) -> tuple[JobDescription, list[str]]:
    """The description without the attributes of a program that a job type of ours does not take; what these said.

    Many clients write them in every request: Condor-G an executable and a directory, GRAM 1.5 all of them. They are
    none of the type's own, so that nothing is passed over which would change its work.
    """
    taken = {canonical_name(attribute.name) for attribute in handler.attributes}
    # Standard input is every program's.
    taken |= {"stdin", "directory"} if handler.usesDirectory else {"stdin"}
    aside = [name for name in _OF_PROGRAM if name not in taken]
    kept = {name: values for name, values in description.attributes.items() if name not in aside}
    nothing = ((), ("",))
    unused = [name for name in aside if description.words(name) not in (*nothing, dict(_defaults()).get(name))]
    return replace(description, attributes=kept), unused


def read_request(description: JobDescription) -> list[tuple[str, tuple[Value, ...]]]:
    """The attributes of a request of ours.

    :raises RefusedRequest: as GRAM's own job managers refuse it, with their numbers, in the order of their checks.
    """
    directory = find_directory(description)
    request: list[tuple[str, tuple[Value, ...]]] = [("environment", _read_environment(description))]
    count = _read_count(description)
    if old_type := _old_type(description):
        request.append(("job_type", (old_type,)))
    if is_plain(description):
        request += _read_program(description, directory, count)
    elif description.word("executable"):
        # The job type will look at it, too, but knows no numbers of GRAM's.
        _find_executable(description, directory)
    request += _read_limits(description)
    read = {*_MANAGERS, *_LIMITS, "environment", *(_OF_PROGRAM if is_plain(description) else ())}
    given = [(name, values) for name, values in description.attributes.items() if name not in read]
    # GRAM gives each request its defaults, whether it said so or not.
    request += [attribute for attribute in given if attribute not in _defaults()]
    return request


def find_directory(description: JobDescription) -> Path:
    """The folder that the request's file names start from; one that is not absolute is seen from home.

    :raises RefusedRequest: there is none, or it is closed.
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
    # What every local job has anyway, and no regular file.
    if stdin != os.devnull:
        yield "stdin", (stdin,)
    yield "count", (str(count),)
    if any(not isinstance(word, str) for word in description.words("arguments")):
        raise RefusedRequest(GramError.RSL_ARGUMENTS, "arguments must be words, without parentheses")
    yield "arguments", description.words("arguments")
    # GRAM's own job managers do not look at exit codes.
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
    """The absolute name, with every slash and dot as written: a program sees its own."""
    return name if name.startswith("/") else f"{directory}/{name}"


def _read_count(description: JobDescription) -> int:
    """How many processes a plain job is."""
    count = description.word("count") if description.words("count") else "1"
    if not _NUMBER.fullmatch(count) or int(count) < 1:
        raise RefusedRequest(GramError.INVALID_COUNT, f"count: {count!r} is no number from 1 to 999999999")
    # Checked here again, since GRAM lets any part of a permitted word pass.
    job_type = description.word("jobtype") if description.words("jobtype") else "multiple"
    if job_type == "multiple" or _old_type(description):
        return int(count)
    if job_type == "single":
        return 1
    known = job_type in ("mpi", "condor")
    error = GramError.JOB_TYPE_NOT_SUPPORTED if known else GramError.INVALID_JOB_TYPE
    raise RefusedRequest(error, f"job_type: {job_type!r} jobs are not for this job manager: single or multiple")


def _read_limits(description: JobDescription) -> Iterator[tuple[str, tuple[Value, ...]]]:
    for name in _LIMITS:
        value = description.word(name) if description.words(name) else "0"
        if not _NUMBER.fullmatch(value):
            raise RefusedRequest(_OF_ATTRIBUTE[name], f"{name}: {value!r} is no number")
        # max_time is wall time, where that is not given itself.
        if int(value) and not (name == "maxtime" and description.words("maxwalltime")):
            yield "maxwalltime" if name == "maxtime" else name, (value,)


def find_error(fault: str) -> GramError:
    """The number of a fault, whose sentence begins with the attribute's name; 134 for attributes of our own."""
    first = fault.split(maxsplit=1)[0].rstrip(":") if fault.split() else ""
    return _OF_ATTRIBUTE.get(canonical_name(first), GramError.RSL_SCHEDULER_SPECIFIC)
