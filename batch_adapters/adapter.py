"""What a batch adapter is: argv templates, answers, states and a parser, all of it data; no I/O."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from batch_adapters.states import State


class BatchError(Exception):
    """A batch system did not do what it was asked; the subclass says what the caller should do."""


class Unreachable(BatchError):
    """Nobody answered: nothing is known and nothing changes; ask again later."""


class Refused(BatchError):
    """The batch system answered no: asking again is of no use."""


class Garbled(BatchError):
    """The answer cannot be understood, so what was asked may or may not have happened; the text is in the message."""


@dataclass(frozen=True)
class Outcome:
    """How one kind of answer is known: by exit code (None: any) and by a pattern in what was printed."""

    exit_code: int | None
    pattern: str
    error: type[BatchError] | None
    """The error to raise; None where the answer is a good one."""

    def fits(self, exit_code: int, output: str) -> bool:
        """True where the answer is of this kind."""
        return self.exit_code in (None, exit_code) and re.search(self.pattern, output) is not None


OK = Outcome(0, "", None)


@dataclass(frozen=True)
class Command:
    """One batch command: Jinja2 templates, one per argument, and how its answers are told apart.

    An argument that is one bare list variable, such as ``{{ ids* }}``, becomes as many arguments as the list has
    items; one that renders empty is left out. The timeout is in seconds.
    """

    argv: tuple[str, ...]
    timeout: float = 60
    outcomes: tuple[Outcome, ...] = (OK,)


@dataclass(frozen=True)
class LocalStatus:
    """What a batch system says of one local job; ``state`` None: a native state we do not know."""

    local_id: str
    native_state: str
    state: State | None
    exit_code: int | None = None
    reason: str = ""


@dataclass(frozen=True)
class Submission:
    """One array of local jobs to submit under one token; limits are 0, and words empty, where the request says none."""

    token: str
    first: int
    last: int
    driver: str
    log_folder: str
    queue: str = ""
    project: str = ""
    max_cpu_minutes: int = 0
    max_wall_minutes: int = 0
    max_memory_mb: int = 0


@dataclass(frozen=True)
class BatchAdapter:
    """A batch system, as data and a few pure functions."""

    name: str
    submit: Command
    """Variables: those of `Submission` and of the site."""
    read_submitted: Callable[[str, Submission], Mapping[int, str]]
    """Local id of each index from what submit printed; raises Garbled."""
    query: Command
    """All our local jobs in one answer."""
    find: Command
    """The local jobs of one ``token``, wherever they are now: queue, history or log."""
    read_jobs: Callable[[str], Iterable[tuple[str, str, int | None]]]
    """Local id, native state and exit code of each job that query or find printed; raises Garbled."""
    cancel: Command
    """Variable: ``ids``, a list."""
    states: Mapping[str, State]
    """Every native state that the manual names."""
    local_id_words: str
    """Shell words that give a running job its own local id."""
    index_words: str
    """Shell words that give a running job its index in the array."""
    event_log: str
    """Template of the path of the log that the generator follows."""
    max_array: int = 1000
    index_of: Callable[[str], int] = field(default=lambda local_id: int(re.split(r"[._]", local_id)[-1]))
    """The index in the array that a local id carries."""
