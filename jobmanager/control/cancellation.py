"""Ending a grid job: a tombstone first, then cancelling until each local job is gone for certain."""

import logging
from collections.abc import Iterable

from batch_adapters.running.batch_system import BatchSystem
from batch_adapters.states import State
from jobmanager.database.database import Database
from jobmanager.database.local_job import LocalJob
from jobmanager.site.account import Account
from jobmanager.site.batch_systems import find_batch_system
from jobmanager.states.changes import change_local_jobs
from jobmanager.submission.adoption import adopt
from jobmanager.submission.submit import open_intents

logger = logging.getLogger(__name__)


def cancel_local_jobs(account: Account, grid_job: str) -> None:
    """Cancel what is submitted and fail what is not; that the cancelled ones ended, the batch system must say.

    A submission in doubt is looked up first: what the batch system has is adopted, and then cancelled like the rest.

    :raises BatchError: nobody answered for some of them; to be called again.
    """
    database = account.database
    system = find_batch_system(account, database.grid_jobs.get(grid_job).batch)
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
    live = database.local_jobs.all_of(grid_job, State.PENDING, State.ACTIVE, State.SUSPENDED)
    system.cancel(choose_ids(database, live))
    return len(live)


def choose_ids(database: Database, live: Iterable[LocalJob]) -> list[str]:
    """The ids by which to name local jobs: one for a whole array where all its elements are among them."""
    by_array: dict[str, list[LocalJob]] = {}
    ids = []
    for job in live:
        if job.array is None:
            ids.append(str(job.local_id))
        else:
            by_array.setdefault(job.array, []).append(job)
    for array, jobs in by_array.items():
        whole = len(jobs) == len(database.local_jobs.of_array(jobs[0].batch, array))
        ids += [array] if whole else [str(job.local_id) for job in jobs]
    return ids


def _fail_unsubmitted(database: Database, grid_job: str) -> int:
    def fail(job: LocalJob) -> None:
        job.state = State.FAILED
        job.reason = "never submitted: the grid job was cancelled before"

    return len(change_local_jobs(database, grid_job, lambda jobs: jobs.all_of(grid_job, State.UNSUBMITTED), fail))
