"""What an event, or the driver's own record, changes in a local job's document: idempotent, in time's order."""

from lxml import etree

from batch_adapters.states import Event, State
from jobmanager.local_job import LocalJob
from sandbox.status import DRIVER_FAILED, DriverStatus

# Within one second the log's order is lost to a replay: then only steps forward count.
_ORDER = {State.UNSUBMITTED: 0, State.PENDING: 1, State.ACTIVE: 2, State.SUSPENDED: 3, State.DONE: 4, State.FAILED: 4}


def apply_event(job: LocalJob, event: Event) -> bool:
    """Apply one event to a submitted local job; True if it changed anything.

    A replayed or late event changes nothing. A final state is left only by a later PENDING event: the batch system
    queued the job again.
    """
    if not _is_news(job, event):
        return False
    if job.state.is_final:
        job.restart()
    job.state = event.state
    job.event_time = event.timestamp
    if event.state is State.ACTIVE:
        job.put_times(started=event.timestamp)
    if event.state.is_final:
        job.put_times(ended=event.timestamp)
        job.exit_code = event.exit_code
        if event.state is State.FAILED:
            job.reason = _reason_of_failure(event.exit_code)
        elif event.exit_code:
            job.reason = f"the program ended with exit code {event.exit_code}"
    return True


def _reason_of_failure(exit_code: int) -> str:
    if exit_code == 0:
        return "the batch system ended it: it was cancelled, or failed before it ran"
    return f"the batch system reports a failure (code {exit_code})"


def _is_news(job: LocalJob, event: Event) -> bool:
    if event.state is job.state:
        return False  # a poll says again what it has said before: the first time counts
    if job.state.is_final:
        return event.state is State.PENDING and event.timestamp > job.event_time
    if event.timestamp == job.event_time:
        return _ORDER[event.state] > _ORDER[job.state]
    return event.timestamp > job.event_time


def apply_driver_status(job: LocalJob, status: DriverStatus) -> bool:
    """Reconcile a local job with what its driver wrote down; True if it changed anything.

    The driver's ``end`` is written when the outputs are back, so it proves that the job ran to its end: it beats a
    batch system's FAILED (a batch system that lost its daemon does not know the exit code).
    """
    before = etree.tostring(job.element)
    if status.start is not None:
        job.put_driver("started" if status.end is None else "ended", status.host, status.cpu_seconds, status.signal)
        job.put_phases(status.phases)
    if status.problem and not job.state.is_final:
        job.reason = status.problem
    if job.state.is_final:
        _reconcile_end(job, status)
    return etree.tostring(job.element) != before


def _reconcile_end(job: LocalJob, status: DriverStatus) -> None:
    if status.end is not None and status.exit_code is not None:
        job.state = State.DONE
        job.exit_code = status.exit_code
        job.reason = _reason_of_exit(status)
    elif status.problem:
        job.reason = status.problem
    elif job.state is State.DONE and job.exit_code == DRIVER_FAILED:
        job.reason = "the driver could not even write its status file (is the disk full?)"
    elif job.state is State.DONE and job.exit_code == 0:
        job.reason = "exit code 0, but the driver left no record of the end: its outputs did not come back"


def _reason_of_exit(status: DriverStatus) -> str | None:
    if status.signal == "XCPU":
        return "the program took more CPU time than max_cpu_time allows"
    if status.signal:
        return f"the program was ended by signal {status.signal}"
    return f"the program ended with exit code {status.exit_code}" if status.exit_code else None
