"""Local jobs that wait for their turn, or are held, longer than their request allows: they are cancelled for that."""

import logging
import time
from collections.abc import Iterable

from batch_adapters.running.batch_system import BatchSystem
from batch_adapters.states import Cause, State
from jobmanager.database.database import DamagedDocument
from jobmanager.database.local_job import Evidence, LocalJob
from jobmanager.database.local_jobs import LocalJobs
from jobmanager.site.account import Account
from jobmanager.states.changes import change_local_jobs

logger = logging.getLogger(__name__)


def find_waiting_since(job: LocalJob) -> int | None:
    """Since when a local job waits or is held, in seconds since 1970; None: it does neither, or by our own doing."""
    is_held = job.state is State.SUSPENDED and job.helps is not None and job.signalled is None
    if job.state is not State.PENDING and not is_held:
        return None
    entered = [seen.when for seen in job.evidence() if seen.state is job.state]
    return max([job.submitted_time or 0, *entered[-1:]])


def cancel_overdue(account: Account, system: BatchSystem, grid_jobs: Iterable[str]) -> None:
    """Cancel the overdue local jobs of these grid jobs; again each time, until the batch system says that they ended.

    :raises BatchError: nobody answered, or nobody understands the answer.
    """
    for grid_job in sorted(grid_jobs):
        try:
            minutes = account.database.grid_jobs.get(grid_job).max_pending_minutes
        except DamagedDocument:
            continue  # whoever needs it puts it into quarantine
        if minutes is not None and (ids := _note_overdue(account, grid_job, minutes)):
            logger.info("%s waited longer than max_pending_time, cancelled: %s", grid_job, " ".join(ids[:20]))
            system.cancel(ids)


def _note_overdue(account: Account, grid_job: str, minutes: int) -> list[str]:
    """The ids of its overdue local jobs, whose documents say from now on why they end."""
    now = int(time.time())
    latest = now - 60 * minutes

    def select(local_jobs: LocalJobs) -> Iterable[LocalJob]:
        known = (local_jobs.get(grid_job, index) for index in local_jobs.waiting(grid_job, latest))
        return [job for job in known if (since := find_waiting_since(job)) is not None and since <= latest]

    def note(job: LocalJob) -> None:
        if job.cancel_asked is None:
            job.cancel_asked, job.cancel_cause = now, Cause.PENDING_LIMIT
            job.put_evidence(Evidence("us", f"waited or held for {minutes} min", now, "cancelled: max_pending_time"))

    return [str(job.local_id) for job in change_local_jobs(account.database, grid_job, select, note)]
