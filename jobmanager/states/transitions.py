"""State transitions of a local job: what each piece of evidence changes in its document. All are idempotent.

Events of a log are applied in the log's order, each once. An answer of the batch system's queue or history is valid for
the second of the query. The driver's record overrides both. `ends` judges the end from all evidence.
"""

from typing import TYPE_CHECKING

from lxml import etree

from batch_adapters.states import Cause, Event, State
from jobmanager.database.local_job import Evidence, LocalJob
from sandbox.status import DriverStatus

if TYPE_CHECKING:  # the monitor, which applies events, needs no adapter
    from batch_adapters.adapter import LocalStatus

_SIGNAL_TIME = range(-2, 6)
"""Seconds around a signal of ours in which FAILED in a log may mean that signal (Slurm's log does not say)."""
_STEPS = {State.UNSUBMITTED: 0, State.PENDING: 1, State.ACTIVE: 2, State.SUSPENDED: 3, State.DONE: 4, State.FAILED: 4}


def apply_event(job: LocalJob, event: Event) -> bool:
    """Apply one event of the batch system's log to a submitted local job; True if its document changed.

    A replayed event changes nothing, nor does a late one. Only a PENDING event leaves a final state: the batch system
    has queued the job again.
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

    If a log reports the end of a whole array, it means the elements that have not started; the others have their own
    events. Other events of an array say nothing about its elements.
    """
    if event.state is not State.FAILED or job.state is not State.PENDING:
        return False
    return apply_event(job, event)


def _judge_event(job: LocalJob, event: Event) -> str:
    """Why an event of the log changes nothing; empty if it does."""
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
    """Apply the batch system's answer about a local job (source: queue or history); True if anything changed.

    It is ignored if the log has reported something after the query. It does not change final states, but may say why a
    local job ended.
    """
    if job.state.is_final:
        return note_batch_end(job, status)
    if status.state is None or asked < job.event_time:
        return False
    state = find_state(status, job.state)
    if _is_held_at_its_end(job, status):
        state = State.FAILED
    if state is job.state:
        return _put_wait_reason(job, status, asked, source)
    code = "" if status.exit_code is None else f" {status.exit_code}"
    words = f"{status.native_state}{code} {status.reason}".strip()
    job.put_evidence(Evidence(source, words, asked, state.word, state))
    _enter(job, state, asked)
    if state.is_final and (status.says_why or source == "history"):
        note_batch_end(job, status)
    if not state.is_final:
        _put_wait_reason(job, status, asked, source)
    job.queue_time = asked
    return True


def _is_held_at_its_end(job: LocalJob, status: "LocalStatus") -> bool:
    """True if a local job is held for its memory whose driver saw an end, and would end the same way again.

    A child of the program may have been killed. The log may have told since that the job was queued again.
    """
    saw_end = job.driver == "ended" or job.earlier_run == f"{job.run} {job.pid}"
    return status.cause is Cause.MEMORY_LIMIT and saw_end


def note_batch_end(job: LocalJob, status: "LocalStatus") -> bool:
    """Record what the batch system says about the end of a local job; False if it says nothing new.

    HTCondor holds what it has ended for its memory.
    """
    if status.state is None or not (status.state.is_final or status.cause is Cause.MEMORY_LIMIT):
        return False
    words = " ".join(filter(None, (status.native_state, status.reason)))
    if job.batch_words == words and status.by in ("", job.ended_by):
        return False
    job.put_batch_end(words, status.state, status.cause, status.by)
    if job.driver != "ended" and status.exit_code is not None:
        job.exit_code = status.exit_code
    return True


def find_state(status: "LocalStatus", before: State) -> State:
    """The state that an answer means; a job that is leaving, or in an unknown native state, keeps its state."""
    if status.state is None or (status.is_leaving and not status.state.is_final):
        return before
    return status.state


def find_wait_reason(status: "LocalStatus") -> str:
    """Why a local job waits or is held; empty if it does neither."""
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
    """Undo the end of a local job that the batch system shows alive; False if there is nothing to undo."""
    if status.state is None or status.state.is_final:
        raise ValueError(f"{status.native_state} is not alive")
    if not job.state.is_final or _is_held_at_its_end(job, status):
        return False
    verdict = f"not over: {status.state.word}"
    job.put_evidence(Evidence("queue", status.native_state, asked, verdict, status.state))
    job.reset_run()
    _enter(job, status.state, asked)
    job.queue_time = asked
    return True


def mark_lost(job: LocalJob, now: int, reason: str) -> None:
    """End a local job that is unknown everywhere; the batch system may have lost it before its start."""
    has_started = job.state is State.ACTIVE or job.started_time is not None or job.driver is not None
    job.put_evidence(Evidence("us", "nowhere to be found", now, f"failed: {reason}", State.FAILED))
    job.state = State.FAILED
    job.wait_reason = job.helps = None
    job.ended_time = now
    job.queue_time = now
    if has_started:
        job.put_batch_end("it is gone, and its driver left no record of an end", State.FAILED, Cause.NODE_LOST)
    else:
        job.put_batch_end("it is gone, and its driver never began", State.FAILED, Cause.NEVER_STARTED)


def _enter(job: LocalJob, state: State, when: int, exit_code: int = 0) -> None:
    goes_on = job.state is State.SUSPENDED and job.started_time is not None
    job.state = state
    job.wait_reason = job.helps = None
    if state is State.ACTIVE and not goes_on:
        job.started_time = when
    if state.is_final:
        job.ended_time = when
        job.exit_code = exit_code


def apply_driver_status(job: LocalJob, status: DriverStatus, now: float) -> bool:
    """Apply what the driver of a local job has recorded so far; True if it changed anything.

    The driver writes ``end`` when the outputs are back, so it proves that the job ran to its end. It overrides FAILED
    from the batch system, which may not know the exit code because it lost a daemon.
    """
    # The end of a run before the last queueing counts only where the batch system has told of the same end since.
    is_earlier_run = status.again is None and job.earlier_run == f"{status.start} {status.pid}"
    if is_earlier_run and (job.state, job.exit_code) != (State.DONE, status.exit_code):
        return False  # queued again, and the driver of the new run has not started
    if job.driver == "ended" and status.end is None and status.start in (None, job.run):
        return False  # the file has been removed or replaced since its end was read
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
    job.driver, job.host, job.cpu_seconds = how_far, status.host, status.cpu_seconds
    job.signal, job.caught, job.warned = status.signal, status.interruption, status.warning
    _put_start(job, status.start)
    job.enter_run(status.start, status.pid)
    # Phases of one that ended long ago did not change now.
    job.put_phases(status.phases, min(now, status.end or now))


def _put_start(job: LocalJob, start: int) -> None:
    """Record when the driver of this run started, if that is unknown, or the known time (a query's) is later."""
    known = job.started_time
    if known is None or job.run not in (None, start) or job.intended <= start < known:
        job.started_time = start


def _reconcile_end(job: LocalJob, status: DriverStatus) -> None:
    assert status.end is not None
    if (job.state, job.exit_code) != (State.DONE, status.exit_code):
        words = f"end, exit code {status.exit_code}"
        verdict = "done: the driver's record beats the batch system's" if job.state.is_final else "done"
        job.put_evidence(Evidence("driver", words, status.end, verdict, State.DONE))
    if not job.state.is_final:
        job.ended_time = status.end
        # Log events of this run that are still to come may have the second of its end.
        job.queue_time = status.end + 1
    else:
        if max(job.started_time or 0, job.intended) <= status.end < (job.ended_time or 0):
            job.ended_time = status.end
        # A query made before may be answered later, and log events of this run are still to come.
        if job.queue_time >= job.event_time:
            job.queue_time = max(job.queue_time, status.end + 1)
    job.state = State.DONE
    job.wait_reason = job.helps = None
    job.exit_code = status.exit_code
