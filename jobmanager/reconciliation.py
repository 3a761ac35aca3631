"""A slow look at a batch system beside its log: what ended without an event still ends here."""

import logging
import time

from batch_adapters.states import Event
from jobmanager.account import Account
from jobmanager.progress import reconcile_with_drivers
from jobmanager.registration import apply_events
from jobmanager.submission import find_batch_system

logger = logging.getLogger(__name__)


def reconcile_batch_system(account: Account, name: str) -> None:
    """Ask a batch system once for all its local jobs, and end those that have ended there.

    Only ends count: a state that comes and goes is the log's to tell, and a job that the answer does not show is not
    taken for ended.

    :raises Unreachable, Garbled: nothing is known, nothing has changed.
    """
    asked = int(time.time())
    statuses = find_batch_system(account, name).query()
    still_open = account.database.open_local_ids(name)
    events = [
        Event(asked, status.local_id, status.state, status.exit_code or 0)
        for status in statuses
        if status.local_id in still_open and status.state is not None and status.state.is_final
    ]
    if not events:
        return
    for grid_job, jobs in apply_events(account.database, name, events, from_log=False).items():
        logger.info("%s %d local jobs had ended without an event", grid_job, len(jobs))
        reconcile_with_drivers(account, grid_job, jobs)
