"""GRAM submits: the request becomes one grid job, however often it comes; the rest happens in the background."""

import logging
import os
from contextlib import suppress

from batch_adapters.states import State
from gram_shims.answers import Answer, refuse
from gram_shims.description import JobDescription
from gram_shims.errors import find_error
from gram_shims.origin import find_grid_job, find_uniqid, make_origin
from gram_shims.request import RefusedRequest, find_directory, read_request
from jobmanager.acceptance import accept_grid_job
from jobmanager.account import Account
from jobmanager.gram_answers import answer_file, gram_id, render_poll_answer
from jobmanager.monitor_client import end_other_monitor, wake_monitor
from jobmanager.request import BadRequest
from jobmanager.withdrawals import forget_withdrawal

logger = logging.getLogger(__name__)


def submit(account: Account, description: JobDescription) -> Answer:
    """The grid job's id for GRAM, or why the request is refused; nothing exists of a refused one.

    :raises HandlerError, DatabaseError, OSError: it cannot be accepted now, or here.
    """
    forget_withdrawal(account, find_uniqid(description))
    # Before any check: the files of a request that was accepted may have gone since.
    identity = find_grid_job(account, description)
    if identity is None:
        try:
            identity = _accept(account, description)
        except RefusedRequest as error:
            return refuse(error.error, str(error))
        except BadRequest as error:
            return refuse(find_error(error.faults[0]), "; ".join(error.faults))
    _publish_first_answer(account, identity)
    try:
        wake_monitor(account)
    except OSError as error:
        # Whoever sees an error submits again: this one is accepted, and must not look refused.
        logger.warning("%s is accepted, but waits: no monitor can be started: %s", identity, error)
    return Answer(State.PENDING, gram_id(identity))


def _accept(account: Account, description: JobDescription) -> str:
    request = read_request(description)
    directory = find_directory(description)
    is_audited = account.configuration.gram.audit_folder is not None
    end_other_monitor(account)
    return accept_grid_job(account, request, directory, make_origin(description, directory, is_audited))


def _publish_first_answer(account: Account, identity: str) -> None:
    """Spare GRAM's first poll, which comes at once, an interpreter; what the monitor has published stays."""
    job = account.database.grid_job(identity)
    text = render_poll_answer(job.state, job.cancelled, job.reason or "", account.places.output(identity))
    file = answer_file(account, identity)
    aside = file.with_name(f".{identity}.first.{os.getpid()}")
    try:
        file.parent.mkdir(mode=0o700, exist_ok=True)
        aside.write_text(text)
        with suppress(FileExistsError):
            file.hardlink_to(aside)
        aside.unlink()
    except OSError as error:
        logger.warning("%s: its first answer cannot be published: %s", identity, error)
