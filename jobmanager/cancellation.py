"""Ending a grid job: a tombstone first, then cancelling until each local job is gone for certain."""

import logging
import time

from batch_adapters.states import State
from jobmanager.account import Account
from jobmanager.database import Database
from jobmanager.registration import refresh_grid_job
from jobmanager.submission import adopt, find_batch_system, open_intents

logger = logging.getLogger(__name__)


def put_tombstone(database: Database, grid_job: str, reason: str) -> bool:
    """Want a grid job ended, from now on and for ever; False if it has ended already."""
    with database.transaction():
        job = database.grid_job(grid_job)
        if job.state.is_final:
            return False
        job.cancel(time.time(), reason)
        database.put_grid_job(job)
    logger.info("%s cancelled: %s", grid_job, reason)
    return True


def cancel_local_jobs(account: Account, grid_job: str) -> None:
    """Cancel what is submitted and fail what is not; that the cancelled ones ended, the batch system's events say.

    A submission in doubt is looked up first: what the batch system has is adopted, and then cancelled like the rest.

    :raises BatchError: nobody answered for some of them; to be called again.
    """
    database = account.database
    system = find_batch_system(account, database.grid_job(grid_job).batch)
    for token in open_intents(database, grid_job):
        adopt(database, system, grid_job, token)
    with database.transaction():
        never_submitted = database.local_jobs(grid_job, State.UNSUBMITTED)
        for job in never_submitted:
            job.state = State.FAILED
            job.reason = "never submitted: the grid job was cancelled before"
        database.put_local_jobs(grid_job, never_submitted)
        refresh_grid_job(database, grid_job)
    live = database.local_jobs(grid_job, State.PENDING, State.ACTIVE, State.SUSPENDED)
    system.cancel(str(job.local_id) for job in live)
    logger.info("%s cancel: %d never submitted, %d asked to end", grid_job, len(never_submitted), len(live))
