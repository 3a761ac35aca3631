"""GRAM cancels: the wish is kept for ever, and the monitor sees to it that no local job stays."""

from batch_adapters.states import State
from gram_shims.answers import Answer, refuse
from gram_shims.description import JobDescription
from gram_shims.errors import GramError
from gram_shims.origin import find_grid_job
from jobmanager.account import Account
from jobmanager.monitor_client import wake_monitor
from jobmanager.tombstone import put_tombstone


def cancel(account: Account, description: JobDescription) -> Answer:
    """FAILED once the grid job is certain to be cancelled; the state of one that has ended before.

    :raises DatabaseError: the wish cannot be kept now.
    :raises OSError: no monitor can be started, so that nobody would see to it.
    """
    identity = find_grid_job(account, description)
    if identity is None:
        return refuse(GramError.JOB_CANCEL_FAILED, f"there is no grid job {description.word('jobid')!r}")
    if not put_tombstone(account.database, identity, "cancelled through GRAM"):
        return Answer(account.database.grid_job(identity).state)
    wake_monitor(account)
    return Answer(State.FAILED)
