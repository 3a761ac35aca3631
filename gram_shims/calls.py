"""GRAM submits: the request becomes one grid job, however often it comes; the rest happens in the background."""

import logging
import os
from contextlib import suppress

from batch_adapters.states import State
from gram_shims.answers import NO_CHANGE, Answer, GramError, find_error, read_answer, refuse
from gram_shims.description import JobDescription
from gram_shims.origin import find_grid_job, find_uniqid, make_origin
from gram_shims.request import RefusedRequest, find_directory, read_request
from jobmanager.control.cancel_requests import forget_withdrawal, request_cancel
from jobmanager.gram.answers import answer_file, gram_id, render_poll_answer
from jobmanager.monitor.client import end_other_monitor, wake_monitor
from jobmanager.requests.acceptance import accept_grid_job
from jobmanager.requests.attributes import BadRequest
from jobmanager.site.account import Account

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
    job = account.database.grid_jobs.get(identity)
    text = render_poll_answer(account, job)
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


def poll(account: Account, description: JobDescription) -> Answer:
    """The grid job's state, in GRAM's words; no change where nobody knows it.

    :raises DatabaseError: it cannot be known now.
    """
    identity = find_grid_job(account, description)
    if identity is None:
        logger.warning("poll: %s has no grid job %r", account.places.root, description.word("jobid"))
        return NO_CHANGE
    job = account.database.grid_jobs.get(identity)
    if not job.state.is_final:
        _wake(account)
    text = render_poll_answer(account, job)
    return read_answer(text)


def _wake(account: Account) -> None:
    try:
        wake_monitor(account)
    except OSError as error:
        logger.warning("no monitor can be started: %s", error)


def cancel(account: Account, description: JobDescription) -> Answer:
    """FAILED once the grid job is certain to be cancelled; the state of one that has ended before.

    :raises DatabaseError: the wish cannot be kept now.
    :raises OSError: no monitor can be started, so that nobody would see to it.
    """
    identity = find_grid_job(account, description)
    if identity is None:
        return refuse(GramError.JOB_CANCEL_FAILED, f"there is no grid job {description.word('jobid')!r}")
    if not request_cancel(account.database, identity, "cancelled through GRAM"):
        return Answer(account.database.grid_jobs.get(identity).state)
    wake_monitor(account)
    return Answer(State.FAILED)
