"""What GRAM is told about a grid job: as answers with a few keys, one a line, or as events."""

import os
from dataclasses import dataclass
from pathlib import Path

from batch_adapters.generator.collector_protocol import render_id
from batch_adapters.states import Event, GramError, State
from jobmanager.database.grid_job import GridJob
from jobmanager.requests.attributes import find_word
from jobmanager.site.account import Account
from jobmanager.site.settings import FailedAs
from sandbox.files import make_file, replace_file, sync_folder

# GRAM has no state for gathering outputs: its own STAGE_OUT is what it does itself after DONE.
_REPORTED = {State.UNSUBMITTED: State.PENDING, State.STAGE_IN: State.PENDING, State.STAGE_OUT: State.ACTIVE}
"""The states that are reported to GRAM differently."""

_HIGHEST_EXIT_CODE = 65_535
"""The job manager keeps 16 bits of it."""
_LONGEST = 4000
"""Characters of a message; the manager takes lines of less than 64000 bytes."""


def reported_state(state: State) -> State:
    """The state that is reported to GRAM: one of 1, 2, 4, 8 and 16."""
    return _REPORTED.get(state, state)


@dataclass(frozen=True)
class GramAnswer:
    """One answer; what is missing in it does not change."""

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
    # Last, because the manager ignores what follows an error.
    if answer.error is not None:
        lines.append(f"ERROR:{answer.error.value}")
    return "".join(f"{line}\n" for line in lines)


def answer_poll(account: Account, job: GridJob) -> GramAnswer:
    state = reported_state(job.state)
    if state is not State.FAILED:
        return GramAnswer(state)
    # A bare FAILED would end the client with exit code 0.
    error = GramError.USER_CANCELLED if job.was_cancelled else GramError.JOB_EXECUTION_FAILED
    tar = account.places.output(job.job_id)
    return GramAnswer(state, "", error, f"{job.reason or 'the grid job failed'}; what came back is in {tar}")


def render_message(text: str) -> str:
    """A text as one printable line of limited length."""
    line = " ".join(text.split())
    return "".join(letter if letter.isprintable() else "?" for letter in line)[:_LONGEST]


def gram_id(grid_job: str) -> str:
    """The id of a grid job for GRAM. It contains our uid, so that no other account can send events for it."""
    return render_id(os.getuid(), grid_job)


def read_gram_id(text: str) -> str:
    return text.rpartition(".")[2]


def answer_file(account: Account, grid_job: str) -> Path:
    return account.places.gram / grid_job


def publish_answer(account: Account, job: GridJob, *, is_first: bool = False) -> None:
    """Atomically replace the answer to the next poll; the final one also survives a power cut.

    :param is_first: an answer that is there already is newer, and stays.
    :raises OSError: it cannot be written; the previous answer stays, which is only late.
    """
    content = render_answer(answer_poll(account, job)).encode(errors="replace")
    file = answer_file(account, job.job_id)
    file.parent.mkdir(mode=0o700, exist_ok=True)
    # Durable at the end, because it is not published again.
    (make_file if is_first else replace_file)(file, content, is_lasting=job.state.is_final)
    if job.state.is_final:
        sync_folder(file.parent)


def make_events(account: Account, job: GridJob) -> list[Event]:
    """The state of a grid job as events, without their times; none for SUSPENDED, which GRAM's events do not have.

    Clients wait for ACTIVE, and GRAM ignores it if it has had it, so it comes before each end, unless somebody
    cancelled the grid job. Only DONE can have an exit code, and only after it GRAM brings the outputs back: so a
    failed grid job is DONE with an exit code other than 0, and `must_fail` says what GRAM reports finally. If a
    cancelled one has no outputs to be brought back (with an old validation file of GRAM), that question never comes:
    it is FAILED, without an error.
    """
    state, name = reported_state(job.state), gram_id(job.job_id)
    if state is State.FAILED and job.was_cancelled:
        is_asked = job.origin is not None and job.origin.is_staged_out
        return [Event(0, name, State.DONE, 1) if is_asked else Event(0, name, State.FAILED)]
    if state.is_final:
        return [Event(0, name, State.ACTIVE), Event(0, name, State.DONE, _choose_exit_code(account, job))]
    return [] if state is State.SUSPENDED else [Event(0, name, state)]


def must_fail(account: Account, job: GridJob) -> bool:
    """True if GRAM must finally report that a grid job failed though its event said DONE; asked after staging."""
    said = find_word(job.request(), "failed_as")
    wanted = FailedAs(said) if said else account.configuration.gram.failed_as
    return reported_state(job.state) is State.FAILED and (wanted is FailedAs.FAILED or job.was_cancelled)


def _choose_exit_code(account: Account, job: GridJob) -> int:
    """The exit code of a grid job that has ended: 0 if it is DONE; of a plain job, the first one that is not 0."""
    if job.origin is None or not job.origin.is_plain:
        return 0 if job.state is State.DONE else 1
    first = account.database.local_jobs.first_failed(job.job_id)
    if first is None:
        return 0
    code = first.exit_code or 0
    return code if 0 < code <= _HIGHEST_EXIT_CODE else 1
