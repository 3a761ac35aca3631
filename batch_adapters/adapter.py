"""`BatchAdapter` describes one batch system as data: commands, answers and states. Nothing here does I/O."""

import enum
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from batch_adapters.naming import Naming
from batch_adapters.running.diagnosis import Diagnosis
from batch_adapters.states import CAUSE_OF_WORD, Cause, State


class BatchError(Exception):
    """A batch command failed; the subclass says what the caller should do."""


class Unreachable(BatchError):
    """There was no answer: nothing is known and nothing changes; ask again later."""


class Postponed(Unreachable):
    """Certainly nothing was done; the same request may succeed later."""


class TooMany(Postponed):
    """The same, because there are too many local jobs in the queue: fewer at once may succeed now."""


class Refused(BatchError):
    """The batch system refused: asking again is useless."""


class Garbled(BatchError):
    """The answer cannot be understood, so the request may or may not have succeeded; the message has the answer."""


class Answer(enum.Enum):
    """The meaning of a command's exit code and output."""

    OK = "ok"
    ABSENT = "absent"
    """It answered that there is no such job."""
    TRANSIENT = "transient"
    """It could not answer now; the request may have succeeded all the same."""
    LATER = "later"
    """The request certainly failed, but may succeed later."""
    TOO_MANY = "too-many"
    """The same, because there are too many in the queue: a smaller array may succeed now."""
    PERMANENT = "permanent"
    """It refused, and will refuse again."""
    UNKNOWN = "unknown"
    """The answer cannot be understood; also an answer that no `Meaning` fits."""


@dataclass(frozen=True)
class Meaning:
    """How to recognise one kind of answer: by exit code (None: any), and by a pattern found in stdout or stderr."""

    exit_code: int | None
    pattern: str
    answer: Answer

    def fits(self, exit_code: int, output: str) -> bool:
        """True if the answer is of this kind."""
        return self.exit_code in (None, exit_code) and re.search(self.pattern, output) is not None


OK = Meaning(0, "", Answer.OK)


@dataclass(frozen=True)
class Command:
    """One batch command: a Jinja2 template for each argument, and the meanings of its answers.

    An argument that is only a list variable, such as ``{{ ids* }}``, becomes one argument per item; an argument that
    renders empty is left out. The first outcome that fits decides.
    """

    argv: tuple[str, ...]
    outcomes: tuple[Meaning, ...] = (OK,)
    stdin: str = ""
    """Template of the standard input."""
    timeout: float = 60
    """Seconds; then the command is killed, and there is no answer."""
    attempts: int = 3
    """How often it is tried while the answer is transient; submissions are never repeated this way."""
    listing: "Listing | None" = None
    """Another command to run first, for a batch system that lists an account's jobs only by their ids: some of these at
    a time become the variable ``ids``. If it lists no ids, this command is not run and its answer is empty."""
    waiting: tuple[str, ...] = ()
    """``argv`` of another question, with the same outcomes: what waits outside the queue. It is asked first; of a job
    that comes into the queue meanwhile, this command's answer counts."""


def option(name: str, value: str, condition: str) -> tuple[str, str]:
    """Templates of an option and its value, two arguments that are left out unless a template's condition holds."""
    return f"{{% if {condition} %}}{name}{{% endif %}}", f"{{% if {condition} %}}{value}{{% endif %}}"


@dataclass(frozen=True)
class Listing:
    """A command that prints one id per line; attempts and timeout are those of the `Command` that has it."""

    argv: tuple[str, ...]
    outcomes: tuple[Meaning, ...] = (OK,)
    pattern: str = r"\S+"
    """Pattern for every line; if one does not match, the answer is garbled."""
    has_elements: bool = False
    """True: it lists elements of arrays, and the ids of their arrays become ``ids``."""


@dataclass(frozen=True)
class Job:
    """One local job in an answer, in the batch system's own words."""

    local_id: str
    native_state: str
    exit_code: int | None = None
    """None: not in the answer, or a signal ended the job."""
    reason: str = ""
    """Why it waits, is held or failed."""
    token: str = ""
    """What it was submitted as or, if the answer does not tell, its name."""
    owner: str = ""
    """Its owner, if the answer has other users' jobs, too."""
    cause: Cause | None = None
    """Why it ended, if the answer says more about that than its native state."""
    by: str = ""
    """Who ended it, if the answer says so: a user's name or number."""


Reader = Callable[[str], Iterable[Job]]
"""Reads the jobs in a command's output; raises Garbled. `BatchSystem`, which calls it, treats any other error alike."""

MOST_ELEMENTS = 100_000
"""Most elements of one array: ten times what any batch system permits."""


def read_range(text: str) -> range:
    """The numbers of array elements in ``FIRST[-LAST[:STEP]]``.

    :raises Garbled: it is something else, or has more numbers than any array.
    """
    match = re.fullmatch(r"(\d{1,18})(?:-(\d{1,18})(?::(\d{1,18}))?)?", text, re.ASCII)
    if match is not None:
        first, last, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
        if first <= last < first + MOST_ELEMENTS and step:
            return range(first, last + 1, step)
    raise Garbled(f"no numbers of array elements: {text[:60]!r}")


@dataclass(frozen=True)
class Lines:
    """A `Reader` for answers with one job per line. Groups: id, state, and if known exit, reason, token, owner.

    Groups cause (one of the values of `Cause`) and by say why a job ended. Every line must match, except those that
    match ``others``: lines that are not local jobs of ours.
    """

    pattern: str
    others: str = "(?!)"

    def __call__(self, printed: str) -> Iterator[Job]:
        """The job of each line.

        :raises Garbled: quoting the first line that does not match, which may be a torn last line.
        """
        for line in printed.splitlines(keepends=True):
            match = re.fullmatch(f"(?:{self.pattern})\n", line)
            if match is not None:
                yield _read_groups(match.groupdict())
            elif re.fullmatch(f"(?:{self.others})\n", line) is None:
                raise Garbled(f"a line that was not expected: {line[:200]!r}")


def _read_groups(groups: Mapping[str, str | None]) -> Job:
    code = groups.get("exit")
    if code is not None and not re.fullmatch(r"-?\d+", code, re.ASCII):
        raise Garbled(f"an exit code that is no number: {code[:200]!r}")
    cause = groups.get("cause")
    if cause and cause not in CAUSE_OF_WORD:
        raise Garbled(f"a cause that there is not: {cause[:200]!r}")
    return Job(
        local_id=str(groups["id"]),
        native_state=str(groups["state"]),
        exit_code=None if code is None else int(code),
        reason=groups.get("reason") or "",
        token=groups.get("token") or "",
        owner=groups.get("owner") or "",
        cause=CAUSE_OF_WORD[cause] if cause else None,
        by=groups.get("by") or "",
    )


@dataclass(frozen=True)
class LocalStatus:
    """What a batch system says about one local job; ``state`` None: the adapter does not know the native state."""

    local_id: str
    native_state: str
    state: State | None
    exit_code: int | None = None
    reason: str = ""
    token: str = ""
    cause: Cause | None = None
    """Why it ended without success, if the batch system says so; None if the program ended by itself."""
    by: str = ""
    """Who ended it, if the batch system says so."""
    is_leaving: bool = False
    """It is being removed: still listed, but will not run again."""
    helps: str = ""
    """The command that unblocks it; empty: it is not blocked."""

    @property
    def says_why(self) -> bool:
        """False if all it says of an end is that the job never started: somebody may have deleted it."""
        return self.cause is not Cause.NEVER_STARTED

    @property
    def is_alive(self) -> bool:
        """True if it waits, runs or is suspended, and is not being removed."""
        return self.state is not None and not self.state.is_final and not self.is_leaving

    def is_of(self, token: str) -> bool:
        """False if the answer names another token: batch systems reuse ids."""
        return self.token in ("", token)


@dataclass(frozen=True)
class Submission:
    """One array of ``count`` local jobs with one token; numbers are 0, and texts empty, if the request does not say.

    The driver finds in a table which local job has its position in the array; positions start from 1.
    """

    token: str
    count: int
    driver: str
    results: str
    """The folder for outputs, and for what the batch system itself prints for a job."""
    sandbox: str = ""
    """The folder of driver, sandbox.tar and table, which are carried to the job if there is no shared file system."""
    table_lines: int = 1
    """Lines in each file of the table: position N is in the file TOKEN.((N - 1) // ``table_lines``)."""
    carried: bool = False
    """The batch system carries the sandbox to the job and its outputs back; there is no shared file system."""
    credentials: tuple[str, ...] = ()
    """Credential files that are carried, too."""
    queue: str = ""
    project: str = ""
    max_cpu_minutes: int = 0
    max_wall_minutes: int = 0
    max_memory_mb: int = 0
    cores: int = 1
    gpus: int = 0
    max_disk_mb: int = 0
    excluded_host: str = ""
    """The first part of the name of a host to avoid, if the batch system can."""
    options: tuple[str, ...] = ()
    """Further options of the submit command: the site's, then the request's."""


@dataclass(frozen=True)
class BatchAdapter:
    """A batch system. Commands can use the site's variables, and those that are named with each command."""

    name: str

    submit: Command
    """Variables: the fields of `Submission`."""
    naming: Naming
    """What submit prints, and the ids of local jobs and arrays."""
    queue: Command
    """Prints all local jobs of this account that wait or run; ended ones may be among them."""
    find: Command
    """The same for one ``token``."""
    status: Command
    """Prints one local job; variable ``id``."""
    read_jobs: Reader
    """Reads the output of queue, find and status."""
    cancel: Command
    """Variables: ``ids``, a list of ids of local jobs, or of whole arrays; ``prefixes``, one of which their tokens
    begin with."""
    states: Mapping[str, State]
    """Every native state in the batch system's manual."""

    local_id_words: str
    """Shell text, for use in double quotes, that expands to a running job's local id."""
    index_words: str
    """The same for its position in its array, from 1."""
    started_words: str = ""
    """The same for the second of its start (since 1970); empty: the driver runs ``date``."""
    job_folder_words: str = ""
    """The same for a folder that the batch system makes for the job and removes; empty: there is none."""
    host_words: str = ""
    """The same for the batch system's name of the host, if that may differ from the host's own name."""

    fetch_words: str = ""
    """Where it carries files: shell commands that, in a job that was started again, copy file ``$1`` of the results
    folder, if it is there, to ``$2``; empty: it cannot."""

    history: Command | None = None
    """Prints the ended jobs of one ``token``, as a second witness of their ends; None: there is no history."""
    read_history: Reader = Lines("(?!)")
    causes: Mapping[str, Cause] = field(default_factory=dict)
    """For native states that say why a job ended: Slurm's TIMEOUT is a time limit."""
    log_causes: Mapping[int, Cause] = field(default_factory=dict)
    """For negative exit codes of FAILED jobs in its log, why they ended; FAILED with another exit code means that
    somebody deleted the job. Empty: its exit codes say nothing about causes."""
    printed_causes: Mapping[str, Cause] = field(default_factory=dict)
    """For patterns of what it prints itself at the end of a job's output, why the job ended; group 1 has the words."""
    leaving: frozenset[str] = frozenset()
    """Native states of jobs that are being removed."""
    blocks: Mapping[str, str] = field(default_factory=dict)
    """For jobs that wait until somebody acts: from a pattern, for native state, space and reason, to the command that
    helps, with ``{id}``, or with ``{array}`` if it is best applied to the whole array. The first match decides."""
    why: Command | None = None
    """Prints what blocks local jobs of one ``array``, if anything does; asked where the queue does not say why."""
    read_why: Callable[[str], Mapping[str, str]] = lambda printed: {}
    """Reads that output: local id, or the array's id for all that wait, to reason."""
    tokens: Command | None = None
    """Prints the tokens that arrays ``ids`` were submitted with; None: the queue shows them, if anything does."""
    read_tokens: Callable[[str], Mapping[str, str]] = lambda printed: {}
    """Reads that output: id of the array to token."""
    event_module: str = ""
    """The event generator's module that reads its log; empty: the queue is polled."""
    event_log: str = ""
    """Template of the path of that log; empty: the module finds it."""

    suspend: Command | None = None
    """Suspends running local jobs; variables as for cancel. Here and below None: the owner cannot."""
    resume: Command | None = None
    """Resumes suspended ones."""
    hold: Command | None = None
    """Holds waiting ones."""
    release: Command | None = None
    """Releases held ones."""
    priority: Command | None = None
    """Changes the priority of waiting ones; variables also: ``priority``, a whole number that is higher for jobs that
    shall start earlier. ``ids`` are of whole arrays, if there are arrays."""

    forget: Command | None = None
    """Deletes records of ended local jobs whose tokens begin with one of ``prefixes``; None: it does so by itself."""

    analyze: Command | None = None
    """Explains in more detail than ``reason`` why the local job ``id``, of ``array``, waits; None: there is no such
    command."""
    read_analysis: str = r"(?m)^(.+)$"
    """Pattern whose group 1 is one reason."""

    array_limit: Command | None = None
    """Prints the most local jobs that an array may have."""
    read_array_limit: str = r"(\d+)"
    """Pattern whose group 1 is that number; no limit if the pattern matches without the group."""
    max_array: int = 1000
    """Most local jobs in one array, whatever the batch system says."""
    slots: Command | None = None
    """Prints the number of slots (cores), and of free ones; None: no answer of bounded size has them."""
    read_slots: str = r"(?P<total>\d+) (?P<free>\d+)"
    """Pattern with groups ``total`` and ``free`` that matches once per queue or host; the numbers are added up."""
    version: Command | None = None
    """Prints the version; best a command that only a running daemon answers."""
    read_version: str = r"\A\s*(.+)"
    """Pattern whose group 1 is the version."""

    settle_time: float = 60
    """Seconds after which a submission that cannot be found was certainly never made."""
    outputs_lag: float = 60
    """Seconds by which outputs may appear later than the news of a local job's end (network file systems)."""
    cancel_at_once: int = 500
    """Most ids on one command line of cancel."""
    commands_per_minute: int = 120
    """Most batch commands of this account in any minute; 0: no limit."""
    longest_pause: float = 300
    """Longest pause, in seconds, between two queries during an outage; pauses begin with 5 s and double."""
    ignored_variables: tuple[str, ...] = ()
    """Prefixes of environment variables that would change what the commands do or print; they are not passed on."""
    request_options: tuple[str, ...] = ()
    """Patterns of the submit options that requests may use (attribute ``batch_options``)."""
    options: tuple[str, ...] = ()
    """Submit options of the site, for every local job."""
    parallel_environment: str = ""
    """A variable of submit: the parallel environment for several cores of one host, if the batch system has such."""
    carries_files: bool = False
    """True: it can carry files to and from jobs without a shared file system."""
    diagnose: Diagnosis = lambda ask, environment: ()
    """The checks of ``samgrid doctor`` for this batch system."""

    def takes(self, name: str) -> bool:
        """True if the submit command uses this field of a submission: the embedded batch system has no queues."""
        used = re.compile(rf"\{{[{{%][^}}]*\b{name}\b")
        return any(used.search(text) for text in (*self.submit.argv, self.submit.stdin))
