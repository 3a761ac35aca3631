"""GRAM polls, and the answer that the monitor publishes could not be had: the job database knows."""

import logging

from gram_shims.answers import NO_CHANGE, Answer, read_answer
from gram_shims.description import JobDescription
from gram_shims.origin import find_grid_job
from jobmanager.account import Account
from jobmanager.gram_answers import render_poll_answer
from jobmanager.monitor_client import wake_monitor

logger = logging.getLogger(__name__)


def poll(account: Account, description: JobDescription) -> Answer:
    """The grid job's state, in GRAM's words; no change where nobody knows it.

    :raises DatabaseError: it cannot be known now.
    """
    identity = find_grid_job(account, description)
    if identity is None:
        logger.warning("poll: %s has no grid job %r", account.places.root, description.word("jobid"))
        return NO_CHANGE
    job = account.database.grid_job(identity)
    if not job.state.is_final:
        _wake(account)
    text = render_poll_answer(job.state, job.cancelled, job.reason or "", account.places.output(identity))
    return read_answer(text)


def _wake(account: Account) -> None:
    try:
        wake_monitor(account)
    except OSError as error:
        logger.warning("no monitor can be started: %s", error)
