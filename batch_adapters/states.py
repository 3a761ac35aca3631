"""GRAM's job states and errors, the event lines that carry states, and the causes of local jobs' ends."""

import enum
import re
from dataclasses import dataclass
from functools import cached_property


class State(enum.IntEnum):
    """A job's state as GRAM numbers it (globus_gram_protocol_constants.h)."""

    PENDING = 1
    ACTIVE = 2
    FAILED = 4
    DONE = 8
    SUSPENDED = 16
    UNSUBMITTED = 32
    STAGE_IN = 64
    STAGE_OUT = 128

    @cached_property
    def word(self) -> str:
        """The state in XML and for people: ``stage-in``, ``done``."""
        return self.name.lower().replace("_", "-")

    @cached_property
    def is_final(self) -> bool:
        """True for DONE and FAILED."""
        return self in (State.DONE, State.FAILED)


STATE_OF_WORD = {state.word: state for state in State}


class GramError(enum.IntEnum):
    """GRAM's error numbers that we use (globus_gram_protocol_constants.h)."""

    PARAMETER_NOT_SUPPORTED = 1
    BAD_DIRECTORY = 4
    EXECUTABLE_NOT_FOUND = 5
    USER_CANCELLED = 8
    STDIN_NOT_FOUND = 11
    INVALID_MAX_TIME = 13
    INVALID_COUNT = 14
    JOB_EXECUTION_FAILED = 17
    INVALID_JOB_TYPE = 19
    BAD_SCRIPT_ARG_FILE = 21
    JOB_TYPE_NOT_SUPPORTED = 26
    JOB_CANCEL_FAILED = 31
    INVALID_QUEUE = 37
    INVALID_PROJECT = 38
    BAD_RSL = 48
    RSL_ARGUMENTS = 50
    RSL_DIRECTORY = 52
    RSL_ENVIRONMENT = 54
    RSL_EXECUTABLE = 55
    RSL_STDIN = 64
    EXECUTABLE_PERMISSIONS = 72
    OPENING_STDOUT = 73
    OPENING_STDERR = 74
    UNDEFINED_EXECUTABLE = 81
    INVALID_MAX_MEMORY = 87
    INVALID_MAX_WALL_TIME = 102
    INVALID_MAX_CPU_TIME = 104
    SIGNALLING_JOB = 107
    UNKNOWN_SIGNAL = 108
    RSL_SCHEDULER_SPECIFIC = 134


class Cause(enum.Enum):
    """Why a local job ended without success; documents have the value."""

    EXIT_CODE = "exit-code"
    """The program ended with an exit code that is not 0."""
    SIGNAL = "signal"
    """A signal ended the program, and it is not known who sent it."""
    TIME_LIMIT = "time-limit"
    """It exceeded its limit of wall time."""
    CPU_LIMIT = "cpu-limit"
    """It exceeded its limit of CPU time."""
    MEMORY_LIMIT = "memory-limit"
    """It exceeded its limit of memory, or the memory of its host."""
    PENDING_LIMIT = "pending-limit"
    """It waited, or was held, longer than permitted, and was cancelled therefore."""
    CANCELLED_BY_US = "cancelled-by-us"
    """Its grid job was cancelled."""
    FAIL_FAST = "fail-fast"
    """So many others of its grid job failed that the grid job could not succeed, and was to be stopped then."""
    CANCELLED_OUTSIDE = "cancelled-outside"
    """Somebody ended it in the batch system, not through the job manager."""
    NODE_LOST = "node-lost"
    """Its host, or the batch system's daemon there, was lost."""
    NEVER_STARTED = "never-started"
    """The batch system could not start it."""
    REFUSED = "refused"
    """The batch system refused it."""
    DRIVER_FAILED = "driver-failed"
    """The driver could not run the program or bring its outputs back."""
    OUTPUTS_MISSING = "outputs-missing"
    """There is no proof that its outputs came back."""

    @property
    def is_cancellation(self) -> bool:
        """True if somebody wanted the end."""
        return self in (Cause.CANCELLED_BY_US, Cause.FAIL_FAST, Cause.CANCELLED_OUTSIDE)

    @property
    def is_retriable(self) -> bool:
        """False if another attempt is useless or not wanted, whatever a request says."""
        return self not in (Cause.CANCELLED_BY_US, Cause.FAIL_FAST, Cause.REFUSED)


CAUSE_OF_WORD = {cause.value: cause for cause in Cause}


@dataclass(frozen=True, slots=True)
class Event:
    """One state change of one local job; the exit code is meaningful in DONE and FAILED only."""

    timestamp: int
    local_id: str
    state: State
    exit_code: int = 0


_EVENT = re.compile(r"001;(\d{1,12});([^;\n]{1,128});(1|2|4|8|16);(-?\d{1,9})\n?", re.ASCII)


def render_event(event: Event) -> str:
    """The event as a line of the Globus scheduler event protocol, newline included."""
    return f"001;{event.timestamp};{event.local_id};{event.state.value};{event.exit_code}\n"


def read_event(line: str) -> Event | None:
    """The event in a line, or None if the line is not a well-formed 001 message."""
    match = _EVENT.fullmatch(line)
    if match is None:
        return None
    timestamp, local_id, state, exit_code = match.groups()
    return Event(int(timestamp), local_id, State(int(state)), int(exit_code))
