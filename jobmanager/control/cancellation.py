"""Ending a grid job: a cancel request first, then cancelling until each local job is gone for certain."""

import logging
import time
from collections.abc import Iterable
from dataclasses import dataclass

from batch_adapters.running.batch_system import BatchSystem
from batch_adapters.states import Cause, State
from jobmanager.database.database import DamagedDocument, Database
from jobmanager.database.local_job import LocalJob
from jobmanager.site.account import Account, find_batch_system
from jobmanager.states.changes import change_in_parts, change_local_jobs
from jobmanager.states.ends import find_outcome
from jobmanager.submission.adoption import adopt
from jobmanager.submission.submit import open_intents

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Live:
    """What has to be known of a grid job's local jobs all at once."""

    index: int
    local_id: str | None
    array: str | None


def cancel_local_jobs(account: Account, grid_job: str) -> None:
    """Cancel what is submitted and fail what is not; that the cancelled ones ended, the batch system must say.

    A submission in doubt is looked up first: what the batch system has is adopted, and then cancelled like the rest.

    :raises BatchError: nobody answered for some of them; to be called again.
    :raises DamagedDocument: one cannot be read; those with an id are cancelled all the same.
    """
    try:
        _cancel_local_jobs(account, grid_job)
    except DamagedDocument:
        cancel_by_index(account, grid_job)
        raise


def cancel_by_index(account: Account, grid_job: str) -> int:
    """Cancel what the index of the database knows to be submitted, without reading a document; how many.

    :raises BatchError: nobody answered.
    """
    local_jobs = account.database.local_jobs
    live = local_jobs.live_ids(grid_job)
    for name in local_jobs.batch_systems(grid_job) if live else ():
        find_batch_system(account, name).cancel(live)
    return len(live)


def _cancel_local_jobs(account: Account, grid_job: str) -> None:
    database = account.database
    job = database.grid_jobs.get(grid_job)
    system = find_batch_system(account, job.batch)
    system.traffic.hurry(job.cancelled_time or 0)
    # What is known is not to wait for what is in doubt.
    cancelled = _cancel_known(database, system, grid_job)
    intents = open_intents(database, grid_job)
    for intent in intents:
        adopt(account, system, grid_job, intent.token)
    never_submitted = _fail_unsubmitted(database, grid_job)
    if intents:
        cancelled = _cancel_known(database, system, grid_job)
    logger.info("%s cancel: %d never submitted, %d asked to end", grid_job, never_submitted, cancelled)


def _cancel_known(database: Database, system: BatchSystem, grid_job: str) -> int:
    known = database.local_jobs.each(grid_job, State.PENDING, State.ACTIVE, State.SUSPENDED)
    live = [_Live(job.index, job.local_id, job.array) for job in known]
    if live:
        # Before the batch system hears of it: how they end may be told before its answer is here.
        _note_asked(database, grid_job, live)
        system.cancel(choose_ids(database, system.adapter.name, live))
    return len(live)


def _note_asked(database: Database, grid_job: str, live: Iterable[_Live]) -> None:
    now = int(time.time())

    def note(job: LocalJob) -> bool:
        if job.state.is_final or job.cancel_asked is not None:
            return False
        job.cancel_asked = now
        return True

    change_in_parts(database, grid_job, live, note)


def choose_ids(database: Database, batch: str, live: Iterable[LocalJob | _Live]) -> list[str]:
    """The ids by which to name local jobs: one for a whole array where all its elements are among them."""
    by_array: dict[str, list[str]] = {}
    ids = []
    for job in live:
        if job.array is None:
            ids.append(str(job.local_id))
        else:
            by_array.setdefault(job.array, []).append(str(job.local_id))
    for array, elements in by_array.items():
        ids += [array] if len(elements) == database.local_jobs.size_of_array(batch, array) else elements
    return ids


def _fail_unsubmitted(database: Database, grid_job: str) -> int:
    grid_job_itself = database.grid_jobs.get(grid_job)
    is_wanted = grid_job_itself.was_cancelled

    def fail(job: LocalJob) -> None:
        job.state = State.FAILED
        job.cause = Cause.CANCELLED_BY_US if is_wanted else Cause.REFUSED
        job.outcome = find_outcome(job.cause)
        job.reason = f"never submitted: {'the grid job was cancelled before' if is_wanted else grid_job_itself.reason}"

    count = 0
    while failed := change_local_jobs(database, grid_job, lambda jobs: jobs.unsubmitted(grid_job), fail):
        count += len(failed)
    return count
