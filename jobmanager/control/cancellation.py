"""Ends a grid job after a cancel request: cancels until each local job has certainly ended."""

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from batch_adapters.running.batch_system import BatchSystem
from batch_adapters.states import Cause, State
from jobmanager.database.database import DamagedDocument, Database, LiveJob
from jobmanager.database.grid_job import GridJob
from jobmanager.database.local_job import LocalJob
from jobmanager.site.account import Account, find_batch_system
from jobmanager.states.changes import change_in_parts, change_local_jobs, in_parts
from jobmanager.states.ends import find_outcome
from jobmanager.submission.adoption import adopt
from jobmanager.submission.submit import open_intents

logger = logging.getLogger(__name__)

_LIVE = (State.PENDING, State.ACTIVE, State.SUSPENDED)
_IDS = 10_000
"""Ids for one cancel; the batch system's adapter combines those of an array's elements."""


def cancel_local_jobs(account: Account, grid_job: str) -> None:
    """Cancel submitted local jobs, and fail the others. That the cancelled ones have ended, the batch system must say.

    Submissions in doubt are looked up first: what the batch system has is adopted, and then cancelled like the rest.

    :raises BatchError: the batch system did not answer for some of them; call this again.
    :raises DamagedDocument: a document cannot be read; all submitted local jobs are cancelled nevertheless.
    """
    try:
        _cancel_local_jobs(account, grid_job)
    except DamagedDocument:
        cancel_by_index(account, grid_job)
        raise


def cancel_by_index(account: Account, grid_job: str) -> None:
    """Cancel submitted local jobs by their columns, without reading documents.

    :raises BatchError: the batch system does not answer.
    """
    database = account.database
    for live in in_parts(database.local_jobs.live(grid_job), _IDS):
        system = find_batch_system(account, str(database.grid_jobs.batch_of(grid_job)))
        system.cancel((job.local_id for job in live), grid_job)


def _cancel_local_jobs(account: Account, grid_job: str) -> None:
    database = account.database
    job = database.grid_jobs.get(grid_job)
    system = find_batch_system(account, job.batch)
    system.limiter.hurry(job.cancelled_time or 0)
    # Known local jobs need not wait for those in doubt.
    cancelled = _cancel_known(database, system, grid_job)
    intents = open_intents(database, grid_job)
    for intent in intents:
        adopt(account, system, grid_job, intent.token)
    never_submitted = _fail_unsubmitted(database, grid_job)
    if intents:
        cancelled = _cancel_known(database, system, grid_job)
    logger.info("%s cancel: %d never submitted, %d asked to end", grid_job, never_submitted, cancelled)


def _cancel_known(database: Database, system: BatchSystem, grid_job: str) -> int:
    count = sum(number for state, number in database.local_jobs.count(grid_job).items() if state in _LIVE)
    if count:
        # Recorded before the command, because the ends may be reported before it has answered.
        _note_asked(database, grid_job, _find_cancel_cause(database.grid_jobs.get(grid_job)))
        ids = choose_ids(database, system.adapter.name, lambda: database.local_jobs.live(grid_job))
        left = {one for some in in_parts(ids, _IDS) for one in system.cancel(some, grid_job)}
        if left:
            count -= sum(job.local_id in left or job.array in left for job in database.local_jobs.live(grid_job))
    return count


def _find_cancel_cause(job: GridJob) -> Cause | None:
    return Cause.FAIL_FAST if job.cancelled_by == Cause.FAIL_FAST.value else None


def _note_asked(database: Database, grid_job: str, cause: Cause | None) -> None:
    now = int(time.time())

    def note(job: LocalJob) -> bool:
        if job.state.is_final or job.cancel_asked is not None:
            return False
        job.cancel_asked, job.cancel_cause = now, cause
        return True

    change_in_parts(database, grid_job, database.local_jobs.live(grid_job), note)


def choose_ids(database: Database, batch: str, live: Callable[[], Iterable[LiveJob]]) -> Iterator[str]:
    """The ids for a command about local jobs: the array's id if all of its elements are among them."""
    arrays = Counter(job.array for job in live() if job.array)
    is_whole = {array: number == database.local_jobs.size_of_array(batch, array) for array, number in arrays.items()}
    named: set[str] = set()
    for job in live():
        # The batch system may have queued an element of another array again meanwhile.
        if job.array is None or not is_whole.get(job.array):
            yield job.local_id
        elif job.array not in named:
            named.add(job.array)
            yield job.array


def _fail_unsubmitted(database: Database, grid_job: str) -> int:
    grid_job_itself = database.grid_jobs.get(grid_job)
    is_wanted = grid_job_itself.was_cancelled
    cause = _find_cancel_cause(grid_job_itself) or (Cause.CANCELLED_BY_US if is_wanted else Cause.REFUSED)
    reason = "the grid job was cancelled before" if is_wanted else grid_job_itself.reason

    def fail(job: LocalJob) -> None:
        job.state, job.cause, job.outcome = State.FAILED, cause, find_outcome(cause)
        job.reason = f"never submitted: {reason}"

    count = 0
    while failed := change_local_jobs(database, grid_job, lambda jobs: jobs.unsubmitted(grid_job), fail):
        count += len(failed)
    return count
