"""What we answer GRAM: a few keys with one line each, for the Perl module and for the scripts of GRAM 1.5."""

import enum
from dataclasses import dataclass

from adapters import canonical_name
from batch_adapters.states import State
from jobmanager.gram.answers import render_message


class GramError(enum.IntEnum):
    """The errors that a job manager type answers with."""

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
    RSL_ARGUMENTS = 50
    RSL_DIRECTORY = 52
    RSL_ENVIRONMENT = 54
    RSL_EXECUTABLE = 55
    RSL_STDIN = 64
    EXECUTABLE_PERMISSIONS = 72
    UNDEFINED_EXECUTABLE = 81
    INVALID_MAX_MEMORY = 87
    INVALID_MAX_WALL_TIME = 102
    INVALID_MAX_CPU_TIME = 104
    SIGNALLING_JOB = 107
    UNKNOWN_SIGNAL = 108
    RSL_SCHEDULER_SPECIFIC = 134


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


def find_error(fault: str) -> GramError:
    """The number of a fault, whose sentence begins with the attribute's name; 134 for attributes of our own."""
    first = fault.split(maxsplit=1)[0].rstrip(":") if fault.split() else ""
    return _OF_ATTRIBUTE.get(canonical_name(first), GramError.RSL_SCHEDULER_SPECIFIC)


@dataclass(frozen=True)
class Answer:
    """One answer; what it does not say, does not change."""

    state: State | None = None
    job_id: str = ""
    error: GramError | None = None
    message: str = ""
    """What a person reads after "Details:"."""


NO_CHANGE = Answer()


def refuse(error: GramError, message: str) -> Answer:
    """The request, or the call, is refused."""
    return Answer(error=error, message=message)


def render_answer(answer: Answer) -> str:
    """The answer as lines ``KEY:value``, the keys being those that a GRAM 5 script may return."""
    lines = []
    if answer.job_id:
        lines.append(f"JOB_ID:{answer.job_id}")
    if answer.state is not None:
        lines.append(f"JOB_STATE:{answer.state.value}")
    if answer.message:
        lines.append(f"GT3_FAILURE_MESSAGE:{render_message(answer.message)}")
    # Last: the manager takes no more of an answer once it has read an error.
    if answer.error is not None:
        lines.append(f"ERROR:{answer.error.value}")
    return "".join(f"{line}\n" for line in lines)


def read_answer(text: str) -> Answer:
    """The answer that was rendered as such lines."""
    values = dict(line.split(":", 1) for line in text.splitlines())
    state = State(int(values["JOB_STATE"])) if "JOB_STATE" in values else None
    error = GramError(int(values["ERROR"])) if "ERROR" in values else None
    return Answer(state, values.get("JOB_ID", ""), error, values.get("GT3_FAILURE_MESSAGE", ""))


def render_old_answer(answer: Answer, before: State) -> str:
    """The answer as a script of GRAM 1.5 gives it: only its last line counts.

    :param before: the state that was told last, as GRAM 1.5 has no words for "no change".
    """
    lines = [f"GRAM_SCRIPT_JOB_ID:{answer.job_id}"] if answer.job_id else []
    if answer.error is not None:
        lines.append(f"GRAM_SCRIPT_ERROR:{answer.error.value}")
    else:
        lines.append(f"GRAM_SCRIPT_SUCCESS:{(answer.state or before).value}")
    return "".join(f"{line}\n" for line in lines)
