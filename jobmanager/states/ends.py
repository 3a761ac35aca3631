"""Judges how a local job ended and why, from all evidence, each time that its document is written.

The driver knows whether the program ended by itself. The batch system knows whether a person or a limit ended it. The
job manager knows what it asked for itself. `RULES` are tried in their order, and the first that fits gives the cause.
"""

import signal
from collections.abc import Callable

from batch_adapters.states import Cause, State
from jobmanager.database.local_job import LocalJob, Outcome
from sandbox.status import DRIVER_FAILED

_LIMITS = (Cause.TIME_LIMIT, Cause.CPU_LIMIT, Cause.MEMORY_LIMIT)


def ended_well(job: LocalJob) -> bool:
    """True if the driver wrote down exit code 0, with all outputs, before anybody told it to end.

    A host or a daemon that is lost later changes nothing. If the batch system says that the memory limit was exceeded,
    it may have killed a child of the program, and the program may not have noticed. If the driver was told to end, the
    batch system must say that the program ended by itself, and that the batch system did not end it. If the program was
    only warned, nobody may have deleted the job.
    """
    if job.driver != "ended" or job.exit_code != 0 or job.lost() or job.batch_cause is Cause.MEMORY_LIMIT:
        return False
    if job.caught is not None:
        return job.batch_state is State.DONE and job.batch_cause is None and job.cancel_asked is None
    return job.warned is None or (job.batch_cause is not Cause.CANCELLED_OUTSIDE and job.cancel_asked is None)


def may_run_again(job: LocalJob) -> bool:
    """True if its driver would run the program again, were it started again: see `end_as_before` in processes.sh.j2."""
    return job.caught is not None or job.signal in ("TERM", "INT", "HUP", "XCPU", "KILL")


def was_asked_to_end(job: LocalJob) -> bool:
    """True if it was told to end, but not by us: the batch system may hold the job, or queue it again.

    The signal may have ended the program first, and the driver before it reached that. A program that dies of KILL or
    XCPU has mostly met a limit of memory or CPU time on its host, and need not wait until it has left the queue.
    """
    return (job.caught is not None or job.signal in ("TERM", "INT", "HUP")) and job.cancel_asked is None


def _was_ended(job: LocalJob) -> bool:
    """True if the program did not end by itself, as far as the driver knows."""
    return job.driver != "ended" or job.caught is not None or _find_signal(job) is not None


def _find_signal(job: LocalJob) -> int | None:
    """The signal that an exit code means: 128 and its number from a shell, or 256 and its number from PBS."""
    code = job.exit_code or 0
    # There are 64 signals: a program that ends with 255 ended by itself.
    return code % 128 if code > 128 and 0 < code % 128 <= 64 else None


def _may_have_obeyed(job: LocalJob) -> bool:
    """True if the program was ended or warned: it may have ended because of that, with any exit code."""
    return _was_ended(job) or job.warned is not None


RULES: tuple[tuple[Callable[[LocalJob], bool], Cause | None], ...] = (
    (lambda job: job.batch_cause in _LIMITS and _was_ended(job), None),
    # A program that runs out of memory may end with any exit code.
    (lambda job: job.batch_cause is Cause.MEMORY_LIMIT, None),
    # Before CANCELLED_OUTSIDE: to the batch system a cancel of ours looks like any of the owner's.
    (lambda job: job.cancel_asked is not None and _may_have_obeyed(job), Cause.CANCELLED_BY_US),
    (lambda job: job.batch_cause is Cause.CANCELLED_OUTSIDE and _may_have_obeyed(job), None),
    # Slurm tells the jobs of a host that it takes for down to end; the host may not be.
    (lambda job: job.batch_cause is Cause.NODE_LOST and was_asked_to_end(job), None),
    (lambda job: job.driver == "ended" and job.signal == "XCPU", Cause.CPU_LIMIT),
    (lambda job: job.driver == "ended" and _was_ended(job), Cause.SIGNAL),
    (lambda job: job.driver == "ended" and job.exit_code == 0, Cause.OUTPUTS_MISSING),
    (lambda job: job.driver == "ended", Cause.EXIT_CODE),
    # For all further rules, the driver wrote down no end.
    (lambda job: job.problem is not None, Cause.DRIVER_FAILED),
    (lambda job: job.batch_cause is not None, None),
    (lambda job: job.state is State.DONE and job.exit_code == DRIVER_FAILED, Cause.DRIVER_FAILED),
    (lambda job: job.driver == "missing" and job.exit_code == 0, Cause.OUTPUTS_MISSING),
    (lambda job: _find_signal(job) is not None, Cause.SIGNAL),
    (lambda job: bool(job.exit_code), Cause.EXIT_CODE),
    (lambda job: job.driver is None, Cause.NEVER_STARTED),
    (lambda job: True, Cause.SIGNAL),
)
"""The causes of local jobs that did not end well; None means the cause that the batch system gave (`batch_cause`)."""


def find_cause(job: LocalJob) -> Cause | None:
    """Why a local job that was submitted has failed or was cancelled; None if it succeeded."""
    if ended_well(job):
        return None
    cause = next(cause or job.batch_cause for fits, cause in RULES if fits(job))
    return job.cancel_cause or cause if cause is Cause.CANCELLED_BY_US else cause


def put_outcome(job: LocalJob) -> None:
    """Set outcome, cause and reason of a local job that has ended; clear outcome and cause of one that has not."""
    if job.local_id is None:
        return  # It was never submitted: cancellation has set its cause and reason.
    if not job.state.is_final or _may_be_on_its_way(job):
        job.outcome, job.cause, job.reason = None, None, job.problem
        return
    job.cause = find_cause(job)
    job.outcome = find_outcome(job.cause)
    job.reason = None if job.cause is None else render_reason(job, job.cause)


def _may_be_on_its_way(job: LocalJob) -> bool:
    """True if its status file may not be here yet: the log tells of exit code 0, but the driver does not."""
    return job.state is State.DONE and job.exit_code == 0 and job.driver in (None, "started")


def find_outcome(cause: Cause | None) -> Outcome:
    """The outcome that goes with a cause; None: there was no fault."""
    if cause is None:
        return Outcome.SUCCEEDED
    return Outcome.CANCELLED if cause.is_cancellation else Outcome.FAILED


def needs_batch_cause(job: LocalJob) -> bool:
    """True if only the batch system can say why a local job ended, and it has not been asked yet."""
    if job.local_id is None or not job.state.is_final or job.batch_words is not None or job.cancel_asked is not None:
        return False
    # HTCondor holds a job whose memory has run out, also if its program did not notice that a child was killed.
    return _may_have_obeyed(job) or _failed_in_log(job) or job.last_event == State.SUSPENDED.word


def _failed_in_log(job: LocalJob) -> bool:
    return any(seen.is_failure_in_log for seen in job.evidence())


def may_have_been_deleted(job: LocalJob) -> bool:
    """True if a person or a limit may have ended a local job, and the history does not say so, or not who it was.

    Grid Engine warns a program before it deletes the job (-notify). If the program ends at once, the history says that
    it ended by itself.
    """
    if job.local_id is None or not job.state.is_final or job.cancel_asked is not None:
        return False
    if not _may_have_obeyed(job) and not _failed_in_log(job):
        return False
    if job.batch_cause is Cause.CANCELLED_OUTSIDE:
        return job.ended_by is None
    return job.batch_cause in (None, Cause.SIGNAL, Cause.NEVER_STARTED, Cause.REFUSED)


_SENTENCES = {
    Cause.TIME_LIMIT: "it ran longer than it may",
    Cause.CPU_LIMIT: "it took more CPU time than it may",
    Cause.MEMORY_LIMIT: "it took more memory than it may",
    Cause.PENDING_LIMIT: "it waited, or was held, longer than max_pending_time allows",
    Cause.CANCELLED_BY_US: "its grid job was cancelled",
    Cause.FAIL_FAST: "others failed, so that its grid job cannot succeed any more (fail_fast)",
    Cause.NODE_LOST: "its host or the batch system there was lost",
    Cause.NEVER_STARTED: "it ended before it was started: it was cancelled or lost, or could not be started",
    Cause.REFUSED: "the batch system refused it",
    Cause.OUTPUTS_MISSING: "exit code 0, but the driver left no record of the end: its outputs did not come back",
}


def render_reason(job: LocalJob, cause: Cause) -> str:
    """Why it ended, as a sentence, with the words of the batch system if the cause is from there."""
    words = f" ({job.batch}: {job.batch_words})" if job.batch_words and cause is job.batch_cause else ""
    if cause is Cause.CANCELLED_OUTSIDE:
        return f"it was cancelled in the batch system{f' by {job.ended_by}' if job.ended_by else ''}{words}"
    if cause is Cause.EXIT_CODE:
        return f"the program ended with exit code {job.exit_code}"
    if cause is Cause.SIGNAL:
        return _render_signal(job)
    if cause is Cause.DRIVER_FAILED:
        return job.problem or "the driver could not even write its status file (is the disk full?)"
    if cause is Cause.OUTPUTS_MISSING and (lost := job.lost()):
        more = f" (and {len(lost) - 1} more)" if len(lost) > 1 else ""
        return f"exit code 0, but not all of its outputs came back: {lost[0]}{more}"
    return _SENTENCES[cause] + words


def _render_signal(job: LocalJob) -> str:
    if job.driver == "ended" and job.caught is not None:
        return f"signal {job.caught} told it to end while its program ran, and nobody says who sent it"
    if job.signal:
        return f"the program was ended by signal {job.signal}"
    if number := _find_signal(job):
        return f"it was ended by signal {_name_of(number)}"
    return "it was ended before its driver could write down its end, and nobody says why"


def _name_of(number: int) -> str:
    try:
        return signal.Signals(number).name.removeprefix("SIG")
    except ValueError:
        return str(number)
