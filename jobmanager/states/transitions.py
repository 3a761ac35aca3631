"""What is seen of a local job, and what it changes in its document: idempotent, each piece of evidence kept.

A log's events count in the log's order, each once. What the batch system's queue or history says counts for the second
in which it was asked. The driver's own record beats both. What all of it amounts to in the end, `ends` says.
"""

from typing import TYPE_CHECKING

from lxml import etree

from batch_adapters.states import Cause, Event, State
from jobmanager.database.local_job import Evidence, LocalJob
from sandbox.status import DriverStatus

if TYPE_CHECKING:  # the monitor, which applies events, needs no adapter
    from batch_adapters.adapter import LocalStatus

_SIGNAL_TIME = range(-2, 6)
"""Seconds after a signal of ours within which a log's FAILED may mean that signal (Slurm's log does not say which)."""
_STEPS = {State.UNSUBMITTED: 0, State.PENDING: 1, State.ACTIVE: 2, State.SUSPENDED: 3, State.DONE: 4, State.FAILED: 4}


def apply_event(job: LocalJob, event: Event) -> bool:
    """Apply one event of the batch system's log to a submitted local job; True if its document changed.

    An event that was seen before, a replay, changes nothing; nor does a late one. A final state is left only by a
    PENDING event: the batch system queued the job again.
    """
    said = f"{event.state.word} {event.exit_code}" if event.state.is_final else event.state.word
    verdict = _judge_event(job, event)
    changes = None if verdict else event.state
    if not job.put_evidence(Evidence("log", said, event.timestamp, verdict or event.state.word, changes)):
        return False
    if verdict:
        return True
    if job.state.is_final:
        job.reset_run()
    _enter(job, event.state, event.timestamp, event.exit_code)
    job.event_time = event.timestamp
    return True


def apply_array_event(job: LocalJob, event: Event) -> bool:
    """Apply an event of a whole array to one of its elements; True if the element's document changed.

    Logs that tell of the end of an array as a whole mean the elements that have not started: the others have events of
    their own. All else that is told of an array says nothing about an element.
    """
    if event.state is not State.FAILED or job.state is not State.PENDING:
        return False
    return apply_event(job, event)


def _judge_event(job: LocalJob, event: Event) -> str:
    """Why an event of the log changes nothing; empty where it does."""
    state = job.state
    if event.state is state:
        return f"nothing new: {state.word} already"
    if event.timestamp < job.event_time:
        return "late: the log had told of a later second"
    is_failure = event.state is State.FAILED
    if is_failure and job.signalled is not None and event.timestamp - job.signalled in _SIGNAL_TIME:
        return "in doubt: a signal of ours may look the same in the log"
    if state.is_final:
        is_requeue = event.state is State.PENDING and event.timestamp >= job.queue_time
        return "" if is_requeue else f"nothing: {state.word} is the end, unless queued again"
    backwards = _STEPS[event.state] < _STEPS[state]
    if backwards and event.timestamp < job.queue_time:
        return "late: the queue has told of a later second"
    return ""


def apply_status(job: LocalJob, status: "LocalStatus", asked: int, source: str) -> bool:
    """Apply what the batch system answered about a local job (source: queue or history); True if anything changed.

    It counts only for what the log has not told after the question was asked. Final states stay as they are, but the
    batch system may say why a local job ended.
    """
    if job.state.is_final:
        return note_batch_end(job, status)
    if status.state is None or asked < job.event_time:
        return False
    state = find_state(status, job.state)
    if state is job.state:
        return _put_wait_reason(job, status, asked, source)
    code = "" if status.exit_code is None else f" {status.exit_code}"
    words = f"{status.native_state}{code} {status.reason}".strip()
    job.put_evidence(Evidence(source, words, asked, state.word, state))
    _enter(job, state, asked)
    if state.is_final and (status.says_why or source == "history"):
        note_batch_end(job, status)
    _put_wait_reason(job, status, asked, source)
    job.queue_time = asked
    return True


def note_batch_end(job: LocalJob, status: "LocalStatus") -> bool:
    """Keep what the batch system says of the end of a local job; False where it says none, or nothing new."""
    if status.state is None or not status.state.is_final:
        return False
    words = " ".join(filter(None, (status.native_state, status.reason)))
    if job.batch_words == words:
        return False
    job.put_batch_end(words, status.state, status.cause, status.by)
    if job.driver != "ended" and status.exit_code is not None:
        job.exit_code = status.exit_code
    return True


def find_state(status: "LocalStatus", before: State) -> State:
    """The state that an answer stands for; a job on its way out, or in an unknown native state, stays what it was."""
    if status.state is None or (status.is_leaving and not status.state.is_final):
        return before
    return status.state


def find_wait_reason(status: "LocalStatus") -> str:
    """Why a local job waits or is held; of one that runs or has ended its reason is none of that."""
    if status.helps:
        words = (status.native_state if status.is_leaving or not status.reason else "", status.reason)
        return ": ".join(filter(None, words))
    return status.reason if status.state in (State.PENDING, State.SUSPENDED) else ""


def _put_wait_reason(job: LocalJob, status: "LocalStatus", asked: int, source: str) -> bool:
    wait_reason, helps = find_wait_reason(status) or None, status.helps or None
    if (job.wait_reason, job.helps) == (wait_reason, helps):
        return False
    job.wait_reason, job.helps = wait_reason, helps
    if wait_reason and helps:
        job.put_evidence(Evidence(source, wait_reason, asked, f"blocked: {helps}", helps=helps))
    return True


def reopen(job: LocalJob, status: "LocalStatus", asked: int) -> bool:
    """Take back the end of a local job that the batch system shows alive after all; False where it has none now."""
    if status.state is None or status.state.is_final:
        raise ValueError(f"{status.native_state} is not alive")
    if not job.state.is_final:
        return False
    verdict = f"not over: {status.state.word}"
    job.put_evidence(Evidence("queue", status.native_state, asked, verdict, status.state))
    job.reset_run()
    _enter(job, status.state, asked)
    job.queue_time = asked
    return True


def mark_lost(job: LocalJob, now: int, reason: str) -> None:
    """End a local job of which nobody knows anything any more."""
    job.put_evidence(Evidence("us", "nowhere to be found", now, f"failed: {reason}", State.FAILED))
    job.state = State.FAILED
    job.wait_reason = job.helps = None
    job.put_times(ended=now)
    job.queue_time = now
    job.put_batch_end("it is gone, and its driver left no record of an end", State.FAILED, Cause.NODE_LOST)


def _enter(job: LocalJob, state: State, when: int, exit_code: int = 0) -> None:
    goes_on = job.state is State.SUSPENDED and job.started_time is not None
    job.state = state
    job.wait_reason = job.helps = None
    if state is State.ACTIVE and not goes_on:
        job.put_times(started=when)
    if state.is_final:
        job.put_times(ended=when)
        job.exit_code = exit_code


def apply_driver_status(job: LocalJob, status: DriverStatus, now: float) -> bool:
    """Reconcile a local job with what its driver has written down until now; True if it changed anything.

    The driver's ``end`` is written when the outputs are back, so it proves that the job ran to its end: it beats a
    batch system's FAILED (a batch system that lost its daemon does not know the exit code).
    """
    if status.again is None and job.earlier_run == f"{status.start} {status.pid}":
        return False  # The batch system queued it again, and the driver of that run has not begun.
    if job.driver == "ended" and status.end is None and status.start in (None, job.run):
        return False  # Its file has gone since, or something has taken its place: what was read of the end holds.
    before = etree.tostring(job.element)
    if status.start is not None:
        _note_driver(job, status, now)
    job.problem = status.problem
    job.put_lost(status.lost)
    if job.driver == "ended":
        _reconcile_end(job, status)
    return etree.tostring(job.element) != before


def _note_driver(job: LocalJob, status: DriverStatus, now: float) -> None:
    assert status.start is not None
    has_ended = status.end is not None and status.exit_code is not None
    how_far = "ended" if has_ended else "started"
    job.put_driver(how_far, status.host, status.cpu_seconds, status.signal, status.interruption)
    _put_start(job, status.start)
    job.enter_run(status.start, status.pid)
    # Of one that has ended long ago nothing is news.
    job.put_phases(status.phases, min(now, status.end or now))


def _put_start(job: LocalJob, start: int) -> None:
    """Keep when the driver of this run started, where nobody knows it, or the queue was asked later than that."""
    known = job.started_time
    if known is None or job.run not in (None, start) or job.intended <= start < known:
        job.put_times(started=start)


def _reconcile_end(job: LocalJob, status: DriverStatus) -> None:
    assert status.end is not None
    if (job.state, job.exit_code) != (State.DONE, status.exit_code):
        words = f"end, exit code {status.exit_code}"
        verdict = "done: the driver's record beats the batch system's" if job.state.is_final else "done"
        job.put_evidence(Evidence("driver", words, status.end, verdict, State.DONE))
    if not job.state.is_final:
        job.put_times(ended=status.end)
        # What the log has yet to tell of this run may be of the second of its end.
        job.queue_time = status.end + 1
    else:
        if max(job.started_time or 0, job.intended) <= status.end < (job.ended_time or 0):
            job.put_times(ended=status.end)
        # A queue that was asked before may have answered after that, and the log has yet to tell of all of this run.
        if job.queue_time >= job.event_time:
            job.queue_time = max(job.queue_time, status.end + 1)
    job.state = State.DONE
    job.wait_reason = job.helps = None
    job.exit_code = status.exit_code
