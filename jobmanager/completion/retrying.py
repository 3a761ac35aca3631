"""Local jobs that failed are submitted again, as often as the request's ``retries`` says."""

import logging
from collections.abc import Iterable, Iterator

from jobmanager.database.database import Database
from jobmanager.database.local_job import LocalJob
from jobmanager.states.aggregation import Task, next_task
from jobmanager.states.changes import in_parts, put_local_jobs
from jobmanager.submission.submit import find_last_token

logger = logging.getLogger(__name__)


def retry_failed(database: Database, identity: str) -> int:
    """Make those of a grid job's failed local jobs new that may be tried again, all or none; how many they are.

    The grid job keeps the last token, because they lose theirs: what comes late under it finds nobody.
    """
    if not database.grid_jobs.get(identity).retries:
        return 0
    count = 0
    with database.transaction():
        job = database.grid_jobs.get(identity)
        # The batch system may have queued one of them again meanwhile.
        if job.cancelled or next_task(database.local_jobs.count(identity), job.cancelled) is not Task.COLLECT:
            return 0
        job.last_token = find_last_token(database, job)
        for chosen in in_parts(choose_retries(database.local_jobs.each(identity), job.retries)):
            if not count:
                database.grid_jobs.put(job)
            count += len(chosen)
            for local_job in chosen:
                local_job.begin_again()
            put_local_jobs(database, identity, chosen)
    if count:
        logger.info("%s %d local jobs failed and are submitted again", identity, count)
    return count


def choose_retries(local_jobs: Iterable[LocalJob], retries: int) -> Iterator[LocalJob]:
    """Those that ended without success and have been tried at most ``retries`` times."""
    return (job for job in local_jobs if job.state.is_final and not job.succeeded and job.attempt <= retries)
