"""What GRAM is told of a grid job: in answers of a few keys with one line each, or as events."""

import enum
import os
from dataclasses import dataclass
from pathlib import Path

from adapters import canonical_name
from batch_adapters.generator.collector_protocol import render_id
from batch_adapters.states import Event, State
from jobmanager.database.grid_job import GridJob
from jobmanager.site.account import Account
from jobmanager.site.settings import FailedAs
from sandbox.files import replace_file, sync_folder


class GramError(enum.IntEnum):
    """The errors that a job manager type answers with: GLOBUS_GRAM_PROTOCOL_ERROR_…"""

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


# That outputs are gathered is no state of GRAM's: its own STAGE_OUT is what it does itself after DONE.
_REPORTED = {State.UNSUBMITTED: State.PENDING, State.STAGE_IN: State.PENDING, State.STAGE_OUT: State.ACTIVE}
"""The state that GRAM is told, where it is another than ours."""

_HIGHEST_EXIT_CODE = 65_535
"""The job manager keeps 16 bits of it."""
_LONGEST = 4000
"""Characters of a message; the manager takes lines of less than 64000 bytes."""


def reported_state(state: State) -> State:
    """The state that GRAM is told: one of 1, 2, 4, 8 and 16."""
    return _REPORTED.get(state, state)


@dataclass(frozen=True)
class GramAnswer:
    """One answer; what it does not say, does not change."""

    state: State | None = None
    job_id: str = ""
    error: GramError | None = None
    message: str = ""
    """What a person reads after "Details:"."""


NO_CHANGE = GramAnswer()


def refuse(error: GramError, message: str) -> GramAnswer:
    return GramAnswer(error=error, message=message)


def render_answer(answer: GramAnswer) -> str:
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


def answer_poll(account: Account, job: GridJob) -> GramAnswer:
    """What a poll of a grid job is told."""
    told = reported_state(job.state)
    if told is not State.FAILED:
        return GramAnswer(told)
    # A bare FAILED would end the client with exit code 0.
    error = GramError.USER_CANCELLED if job.was_cancelled else GramError.JOB_EXECUTION_FAILED
    tar = account.places.output(job.job_id)
    return GramAnswer(told, "", error, f"{job.reason or 'the grid job failed'}; what came back is in {tar}")


def render_message(text: str) -> str:
    """A text of any kind as one printable line of bounded length."""
    line = " ".join(text.split())
    return "".join(letter if letter.isprintable() else "?" for letter in line)[:_LONGEST]


def gram_id(grid_job: str) -> str:
    """The id of a grid job that GRAM is told: with our uid in it, so that no other account can tell events of it."""
    return render_id(os.getuid(), grid_job)


def read_gram_id(text: str) -> str:
    return text.rpartition(".")[2]


def answer_file(account: Account, grid_job: str) -> Path:
    return account.places.gram / grid_job


def publish_answer(account: Account, job: GridJob) -> None:
    """Put the answer to the next poll in the place of the last, whole; the last of all also outlives a power cut.

    :raises OSError: it cannot be written; the last answer stays, which is not wrong, only late.
    """
    text = render_answer(answer_poll(account, job))
    file = answer_file(account, job.job_id)
    file.parent.mkdir(mode=0o700, exist_ok=True)
    # One that has ended is not published again.
    replace_file(file, text.encode(errors="replace"), is_lasting=job.state.is_final)
    if job.state.is_final:
        sync_folder(file.parent)


def find_events(account: Account, job: GridJob) -> list[Event]:
    """What the state of a grid job is in events, whose time is still to come; nothing for SUSPENDED, which has none.

    Clients wait for ACTIVE, and GRAM passes over it where it has had it: so it comes before each end, except of a grid
    job that someone cancelled. Only DONE can carry an exit code, and only then GRAM brings the outputs back: so a grid
    job that failed is DONE with an exit code that is not 0; `must_fail` says what comes of it. Of one that was
    cancelled, and has nothing to be brought back (GRAM's validation file is an older one), nobody
    would be asked that: it is FAILED, without an error.
    """
    told, name = reported_state(job.state), gram_id(job.job_id)
    if told is State.FAILED and job.was_cancelled:
        is_asked = job.origin is not None and job.origin.is_staged_out
        return [Event(0, name, State.DONE, 1) if is_asked else Event(0, name, State.FAILED)]
    if told.is_final:
        return [Event(0, name, State.ACTIVE), Event(0, name, State.DONE, _find_exit_code(account, job))]
    return [] if told is State.SUSPENDED else [Event(0, name, told)]


def must_fail(account: Account, job: GridJob) -> bool:
    """True where clients of GRAM shall hear that a grid job failed though its event said DONE: asked after staging."""
    said = [values for name, values in job.request() if canonical_name(name) == canonical_name("failed_as")]
    wanted = FailedAs(said[-1][0]) if said else account.configuration.gram.failed_as
    return reported_state(job.state) is State.FAILED and (wanted is FailedAs.FAILED or job.was_cancelled)


def _find_exit_code(account: Account, job: GridJob) -> int:
    """The exit code of a grid job that has ended: whether its rule was met; of a plain job the first that is not 0."""
    if job.origin is None or not job.origin.is_plain:
        return 0 if job.state is State.DONE else 1
    first = account.database.local_jobs.first_failed(job.job_id)
    if first is None:
        return 0
    code = first.exit_code or 0
    return code if 0 < code <= _HIGHEST_EXIT_CODE else 1
