"""What a batch adapter is: commands, answers, names and states of one batch system, all of it data; no I/O."""

import enum
import functools
import re
import string
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from batch_adapters.diagnosis import Diagnosis
from batch_adapters.states import CAUSE_OF_WORD, Cause, State


class BatchError(Exception):
    """A batch system did not do what it was asked; the subclass says what the caller should do."""


class Unreachable(BatchError):
    """Nobody answered: nothing is known and nothing changes; ask again later."""


class Postponed(Unreachable):
    """Nothing was done, for certain, but it may be later."""


class Refused(BatchError):
    """The batch system answered no: asking again is of no use."""


class Garbled(BatchError):
    """The answer cannot be understood, so what was asked may or may not have happened; the text is in the message."""


class Answer(enum.Enum):
    """What an exit code and a text mean."""

    OK = "ok"
    ABSENT = "absent"
    """It answered: there is nothing of that name."""
    TRANSIENT = "transient"
    """Nobody could answer now; what was asked for may yet have been done."""
    LATER = "later"
    """What was asked for was not done, for certain; later it may be."""
    PERMANENT = "permanent"
    """It answered no, and will again."""
    UNKNOWN = "unknown"
    """Not to be understood; what no outcome fits is unknown too."""


@dataclass(frozen=True)
class Meaning:
    """How one kind of answer is known: by exit code (None: any) and by a pattern found in stdout or stderr."""

    exit_code: int | None
    pattern: str
    answer: Answer

    def fits(self, exit_code: int, output: str) -> bool:
        """True where the answer is of this kind."""
        return self.exit_code in (None, exit_code) and re.search(self.pattern, output) is not None


OK = Meaning(0, "", Answer.OK)


@dataclass(frozen=True)
class Command:
    """One batch command: Jinja2 templates, one per argument, and how its answers are told apart.

    An argument that is one bare list variable, such as ``{{ ids* }}``, becomes as many arguments as the list has
    items; one that renders empty is left out. Of the outcomes the first that fits counts.
    """

    argv: tuple[str, ...]
    outcomes: tuple[Meaning, ...] = (OK,)
    stdin: str = ""
    """Template of what the command reads."""
    timeout: float = 60
    """Seconds; then it is killed, and nobody has answered."""
    attempts: int = 3
    """How often it is asked where the answer is transient; a submission is only ever asked once at a time."""
    listing: "Listing | None" = None
    """What is asked first, where a batch system tells of one account's jobs by their ids only: its answer is the
    variable ``ids``, some at a time. No ids: there is nothing to be asked, and the answer is empty."""


@dataclass(frozen=True)
class Listing:
    """A command that prints ids, one a line; attempts and timeout are those of the command that it is asked for."""

    argv: tuple[str, ...]
    outcomes: tuple[Meaning, ...] = (OK,)
    pattern: str = r"\S+"
    """Of a whole line; any other makes the answer worthless."""
    at_once: int = 100
    """Ids on one command line, at most: fewer where the answers are long."""
    has_elements: bool = False
    """True where it lists the elements of arrays; asked about is the array then."""


@dataclass(frozen=True)
class Job:
    """What one answer says of one local job, in the batch system's own words."""

    local_id: str
    native_state: str
    exit_code: int | None = None
    """None where the answer does not say, or a signal ended it."""
    reason: str = ""
    """Why it waits, is held or failed."""
    token: str = ""
    """Its name, where the answer has it."""
    owner: str = ""
    """Whose it is, where the answer has other users' jobs, too."""
    cause: Cause | None = None
    """Why it ended, where the answer says more of that than its native state does."""
    by: str = ""
    """Who ended it, where the answer says: a user's name or number."""


Reader = Callable[[str], Iterable[Job]]
"""From what a command printed to the jobs it speaks of; raises Garbled.

Whatever else it raises means the same: `BatchSystem`, which calls it, makes Garbled of that.
"""

MOST_ELEMENTS = 100_000
"""Of one array: ten times what any batch system takes."""


def read_range(first: str, last: str | None = None, step: str | None = None) -> range:
    """The numbers of an array's elements in FIRST-LAST:STEP.

    :raises Garbled: there are none, or more than any array has.
    """
    start, end = int(first), int(last or first)
    if not start <= end < start + MOST_ELEMENTS or int(step or 1) < 1:
        raise Garbled(f"no numbers of elements: {first[:20]}-{(last or first)[:20]}:{(step or '1')[:20]}")
    return range(start, end + 1, int(step or 1))


@dataclass(frozen=True)
class Lines:
    """A `Reader` for answers of one line per job, as data: its groups: id, state, perhaps exit, reason, token, owner.

    Further groups say why a job ended: cause, one of our own words, and by. Every line must fit, unless it fits
    ``others``: lines that are known to be no local jobs of ours.
    """

    pattern: str
    others: str = "(?!)"

    def __call__(self, printed: str) -> Iterator[Job]:
        """The job of each line.

        :raises Garbled: quoting the first line that does not fit; a torn last line is one.
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
    """What a batch system says of one local job; ``state`` None: a native state that the adapter does not know."""

    local_id: str
    native_state: str
    state: State | None
    exit_code: int | None = None
    reason: str = ""
    token: str = ""
    cause: Cause | None = None
    """Why it ended without success, where the batch system says; None also for an end of the program's own."""
    by: str = ""
    """Who ended it, where the batch system says."""
    is_leaving: bool = False
    """It is on its way out: shown alive, but never to run again."""
    helps: str = ""
    """The command that lets it go on; empty where nothing but its turn keeps it."""

    @property
    def says_why(self) -> bool:
        """False where it says no more of an end than that there was no start: somebody may have deleted the job."""
        return self.cause is not Cause.NEVER_STARTED

    @property
    def is_alive(self) -> bool:
        """True where it waits, runs or is suspended, and is not on its way out."""
        return self.state is not None and not self.state.is_final and not self.is_leaving

    def is_of(self, token: str) -> bool:
        """False where the answer names another token: batch systems use ids again."""
        return self.token in ("", token)


@dataclass(frozen=True)
class Submission:
    """One array of ``count`` local jobs under one token; numbers are 0, and words empty, where the request says none.

    The driver finds in a table which local job is at its position in the array, which always starts from 1.
    """

    token: str
    count: int
    driver: str
    results: str
    """Folder for what the batch system itself says on stdout and stderr, and where outputs come back to."""
    sandbox: str = ""
    """Folder of the driver, sandbox.tar and the table: what has to travel where files are carried."""
    table_lines: int = 1
    """Of the table: position N needs its file TOKEN.((N - 1) / ``table_lines``), whole numbers."""
    carried: bool = False
    """The batch system carries the sandbox to the job and its outputs back; there is no shared file system."""
    credentials: tuple[str, ...] = ()
    """Files that have to travel, too, where files are carried."""
    queue: str = ""
    project: str = ""
    max_cpu_minutes: int = 0
    max_wall_minutes: int = 0
    max_memory_mb: int = 0
    cores: int = 1
    gpus: int = 0
    max_disk_mb: int = 0
    excluded_host: str = ""
    """First part of the name of a host that they are to be kept from, if there is a way."""
    options: tuple[str, ...] = ()
    """Further options of the submit command: the site's, then those of the request that the site permits."""


@dataclass(frozen=True)
class Naming:
    """Formats over the named groups of what submit prints, and ``{n}``, the number of an array's element.

    With ``(?P<id>\\d+)`` as ``submitted``, Slurm's elements are ``{id}_{n}``. Where the answer names the last element,
    group ``last``, it must be the number of the last one that was asked for.
    """

    submitted: str
    """Pattern for all that submit prints but white space at its end."""
    single: str
    """Id of a local job that was submitted alone."""
    element: str = ""
    """Id of an element of an array; empty where there are no arrays."""
    array: str = ""
    """Id of an array as a whole; empty where it has none."""
    first: int = 1
    """Number of an array's first element."""
    span: str = ""
    """Id of an array's elements ``{n}`` to ``{last}``, by which to cancel them; empty where there is none."""

    def read_submitted(self, printed: str, count: int) -> dict[int, str] | None:
        """From position (1 to ``count``) to local id; None where the answer is not what it should be."""
        match = re.fullmatch(self.submitted, printed.rstrip())
        # Without its line break, an id may be cut short: the id of another job.
        if match is None or not printed.endswith("\n"):
            return None
        groups = match.groupdict()
        last = groups.pop("last", None)
        if last is not None and last != str(self.first + count - 1):
            return None
        if count == 1:
            return {1: self.single.format(**groups, n=self.first)}
        return {number + 1: self.element.format(**groups, n=self.first + number) for number in range(count)}

    def position_of(self, local_id: str) -> int:
        """The place of a local job in its array, from 1."""
        match = self._match(local_id)
        return int(match["n"]) - self.first + 1 if match else 1

    def array_of(self, local_id: str) -> str:
        """The id of the array that a local job is an element of; its own id where it is none."""
        match = self._match(local_id)
        return self.array.format_map(_without_number(match)) if match else local_id

    def fold(self, ids: Iterable[str]) -> list[str]:
        """The same local jobs by fewer ids: consecutive elements of an array by that of their span."""
        if not self.span:
            return list(ids)
        folded = []
        arrays: dict[str, dict[int, re.Match[str]]] = {}
        for local_id in ids:
            match = self._match(local_id)
            if match is None:
                folded.append(local_id)
            else:
                arrays.setdefault(self.array_of(local_id), {})[int(match["n"])] = match
        return folded + [local_id for elements in arrays.values() for local_id in self._fold_elements(elements)]

    def _fold_elements(self, elements: Mapping[int, re.Match[str]]) -> Iterator[str]:
        for n in sorted(elements):
            if n - 1 in elements:
                continue
            last = n
            while last + 1 in elements:
                last += 1
            template = self.element if last == n else self.span
            yield template.format(**_without_number(elements[n]), n=n, last=last)

    def _match(self, local_id: str) -> re.Match[str] | None:
        return _reverse(self.element).fullmatch(local_id) if self.element else None


def _without_number(match: re.Match[str]) -> Mapping[str, str]:
    return {name: value for name, value in match.groupdict().items() if name != "n"}


@functools.cache
def _reverse(template: str) -> re.Pattern[str]:
    """The pattern of all that a format can give."""
    pattern = ""
    for text, name, _, _ in string.Formatter().parse(template):
        pattern += re.escape(text)
        if name is not None:
            pattern += r"(?P<n>\d+)" if name == "n" else f"(?P<{name}>.*?)"
    return re.compile(pattern)


@dataclass(frozen=True)
class BatchAdapter:
    """A batch system. Every command's variables are the site's, and what is said here."""

    name: str

    submit: Command
    """Variables: the fields of `Submission`."""
    naming: Naming
    """What submit prints, and the ids of an array's local jobs."""
    queue: Command
    """All local jobs of this account that wait or run, in one answer; ended ones may be in it."""
    find: Command
    """Those of one ``token``."""
    status: Command
    """The one of one ``id``."""
    read_jobs: Reader
    """Reads what queue, find and status print."""
    cancel: Command
    """Variable: ``ids``, a list of ids of local jobs, or of whole arrays."""
    states: Mapping[str, State]
    """Every native state that the manual names."""

    local_id_words: str
    """Shell words for double quotes that give a running job its own local id."""
    index_words: str
    """Shell words that give a running job its position in its array, from 1."""
    started_words: str = ""
    """Shell words that give a running job the second of its start; where there are none, a driver asks ``date``."""
    job_folder_words: str = ""
    """Shell words that give a running job the folder that the batch system has made for it and will remove."""
    host_words: str = ""
    """Shell words that give a running job the batch system's name of its host, where that has another of its own."""

    history: Command | None = None
    """The ended jobs of one ``token``: the second witness of an end; None where there is no such thing."""
    read_history: Reader = Lines("(?!)")
    causes: Mapping[str, Cause] = field(default_factory=dict)
    """Of native states that say why a job ended: Slurm's TIMEOUT is a time limit."""
    log_causes: Mapping[int, Cause] = field(default_factory=dict)
    """Of the exit codes below zero with which its log calls jobs FAILED, why they ended; where that log calls a job
    FAILED with any other code, somebody deleted it. Empty: its exit codes do not say such things."""
    leaving: frozenset[str] = frozenset()
    """Native states of jobs on their way out."""
    blocks: Mapping[str, str] = field(default_factory=dict)
    """What keeps a job where it is until somebody does something: from patterns, each of a whole native state and,
    behind a space, the reason, to the command that helps, with ``{id}``, or ``{array}`` where it is best done to the
    whole array. The first that fits counts."""
    why: Command | None = None
    """Says what blocks the local jobs of one ``array``, where the queue's answer gives no reason."""
    read_why: Callable[[str], Mapping[str, str]] = lambda printed: {}
    """Reads what that prints: from local id to reason."""
    event_module: str = ""
    """The event generator's module that reads its log; empty: there is no log to read, the queue is polled."""
    event_log: str = ""
    """Template of the path of that log; empty: where the module finds it."""

    suspend: Command | None = None
    """Stops running local jobs; variable ``ids`` as for cancel. Here and below None: their owner cannot."""
    resume: Command | None = None
    """Lets suspended ones go on."""
    hold: Command | None = None
    """Keeps waiting ones from being started."""
    release: Command | None = None
    """Lets held ones be started."""
    priority: Command | None = None
    """Changes their rank among those that wait; variables: ``ids``, of whole arrays where there are such, and
    ``priority``, a whole number that is higher for those that are to start earlier."""

    forget: Command | None = None
    """Lets go of what it keeps of ended local jobs whose tokens begin with one of ``prefixes``: nobody asks for them
    any more. None where that is the batch system's own affair."""

    analyze: Command | None = None
    """Says why a local job ``id`` waits, at more length than the queue's ``reason``; None where that says all."""
    read_analysis: str = r"(?m)^(.+)$"
    """Pattern whose group 1 is one reason."""

    array_limit: Command | None = None
    """Prints how many local jobs an array may have here."""
    read_array_limit: str = r"(\d+)"
    """Pattern whose group 1 is that number; where the group takes no part, there is no limit."""
    max_array: int = 1000
    """Local jobs in one array, where the batch system does not say."""
    slots: Command | None = None
    """Prints how many slots (cores) there are and how many are free; None where no bounded answer says so."""
    read_slots: str = r"(?P<total>\d+) (?P<free>\d+)"
    """Pattern that fits once for each group of them, a queue or a host, with the groups ``total`` and ``free``."""
    version: Command | None = None
    """Prints the version; by preference something that only a live daemon answers."""
    read_version: str = r"\A\s*(.+)"
    """Pattern whose group 1 is the version."""

    settle_time: float = 60
    """Seconds after which a submission whose fate is unknown, and that is nowhere, was never made."""
    outputs_lag: float = 60
    """Seconds by which outputs may come back later than the news of a local job's end (network file systems)."""
    cancel_at_once: int = 500
    """Ids on one command line of cancel."""
    commands_per_minute: int = 120
    """Most batch commands of this account in any minute; 0 = no limit, for a part of this machine."""
    longest_pause: float = 300
    """Seconds between two questions while nobody answers, at most: the pauses begin with 5 s and double."""
    ignored_variables: tuple[str, ...] = ()
    """Beginnings of the names of environment variables that would change what the commands do or print."""
    request_options: tuple[str, ...] = ()
    """Patterns of the submit options that requests may use (``batch_options``)."""
    options: tuple[str, ...] = ()
    """Submit options of the site, for every local job."""
    parallel_environment: str = ""
    """A variable of submit: where the batch system has such, the one that gives a job several cores of one host."""
    carries_files: bool = False
    """True where it can carry files to and from jobs without a shared file system."""
    diagnose: Diagnosis = lambda ask, environment: ()
    """What ``samgrid doctor`` looks at."""

    def takes(self, name: str) -> bool:
        """True where the submit command hands on this field of a submission: the embedded one has no queues."""
        used = re.compile(rf"\{{[{{%][^}}]*\b{name}\b")
        return any(used.search(text) for text in (*self.submit.argv, self.submit.stdin))
