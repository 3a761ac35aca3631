"""GRAM's calls: submit, poll, cancel and signal. A repeated request becomes only one grid job."""

import enum
import logging
import os
import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from batch_adapters.states import GramError, State
from gram_shims.request import (
    JobDescription,
    RefusedRequest,
    find_directory,
    find_error,
    find_type,
    is_plain,
    read_request,
    set_aside,
)
from jobmanager.control.cancel_requests import forget_withdrawal, hold_back, request_cancel
from jobmanager.database.documents import render_text
from jobmanager.database.grid_job import GramOrigin
from jobmanager.gram.answers import (
    NO_CHANGE,
    GramAnswer,
    answer_poll,
    gram_id,
    must_fail,
    publish_answer,
    read_gram_id,
    refuse,
    reported_state,
)
from jobmanager.monitor.client import end_other_monitor, wake_monitor
from jobmanager.requests.acceptance import accept_grid_job
from jobmanager.requests.attributes import BadRequest
from jobmanager.requests.job_types import HandlerError, find_job_type
from jobmanager.requests.time_limit import limited
from jobmanager.site.account import Account

logger = logging.getLogger(__name__)

ACKNOWLEDGES = "SAMGRID_ACKNOWLEDGES"
"""Set by a caller, such as samgrid.pm, that removes the mark of a request once it has our answer."""
_UNTAKEN = 60.0
"""Seconds after which an unacknowledged answer counts as lost; a restarted GRAM may ask again before."""
_PROXY = "X509_USER_PROXY"
_TIMEOUT = 5.0
_OF_PROXIES = re.compile(r"(/CN=(\d+|proxy|limited proxy))+$")
"""What each delegation appends to the subject (RFC 3820, and older Globus proxies)."""


def submit(account: Account, description: JobDescription) -> GramAnswer:
    """Accept a request: the grid job's id for GRAM, or why it is refused. A refused request leaves nothing behind.

    :raises HandlerError, DatabaseError, OSError: it cannot be accepted now.
    """
    uniqid = find_uniqid(description)
    # Before any check: the files of an accepted request may be gone by now.
    job_id = find_grid_job(account, description)
    if job_id is not None and (change := _find_change(account, job_id, description)):
        message = f"{change}, but grid job {job_id} has the same uniqid: give each request a uniqid of its own"
        return refuse(GramError.RSL_SCHEDULER_SPECIFIC, message)
    acknowledges = ACKNOWLEDGES in description.environment
    if acknowledges:
        # Before the grid job exists, as the monitor might start it; a handler's checks may take long.
        hold_back(account, uniqid, account.configuration.handlers.time_limit + _UNTAKEN)
    else:
        forget_withdrawal(account, uniqid)
    if job_id is None:
        try:
            job_id = _accept(account, description)
        except (RefusedRequest, BadRequest) as error:
            forget_withdrawal(account, uniqid)
            return _refuse(error)
    if acknowledges:
        hold_back(account, uniqid, _UNTAKEN)
    _publish_first_answer(account, job_id)
    try:
        # While a handler checked the request, a monitor with the old configuration may have been started.
        end_other_monitor(account)
        wake_monitor(account)
    except OSError as error:
        # No error: the request is accepted, and GRAM would submit it again.
        logger.warning("%s is accepted, but waits: no monitor can be started: %s", job_id, error)
    return GramAnswer(State.PENDING, gram_id(job_id))


def _refuse(error: RefusedRequest | BadRequest) -> GramAnswer:
    if isinstance(error, RefusedRequest):
        return refuse(error.error, str(error))
    return refuse(find_error(error.faults[0]), "; ".join(error.faults))


def _accept(account: Account, description: JobDescription) -> str:
    directory = find_directory(description)
    used, unused = _set_aside(account, description)
    request = read_request(used)
    configuration = account.configuration
    needs_subject = configuration.gram.audit_folder is not None or configuration.accounting.benchmark > 0
    end_other_monitor(account)
    origin = make_origin(description, directory, unused, needs_subject)
    proxy = "" if _names_proxy(description) else find_proxy(description)
    return accept_grid_job(account, request, directory, origin, proxy)


def _names_proxy(description: JobDescription) -> bool:
    """True if the client has put a proxy of its own behind the one that GRAM puts into the environment."""
    named = [pair[1] for pair in description.words("environment") if pair[:1] == (_PROXY,)]
    return bool(named) and named[-1] != description.environment.get(_PROXY)


def _find_change(account: Account, job_id: str, description: JobDescription) -> str:
    """What is not as in the request that a grid job was made of; empty: it is the same one, sent again.

    What may be a file's name does not count, nor the environment: a job manager that is started again has both anew.
    """
    try:
        request = read_request(_set_aside(account, description)[0])
    except (RefusedRequest, BadRequest):
        return ""  # A file of a request that was accepted may have gone since.
    before = dict(account.database.grid_jobs.get(job_id).request())
    for name, values in request:
        now, then = ([render_text(str(value)) for value in each] for each in (values, before.get(name, values)))
        may_be_renewed = name == "environment" or any("/" in word for word in (*now, *then))
        if now != then and not may_be_renewed:
            return f"{name}: {' '.join(now)} is not {' '.join(then)}"
    return ""


def _set_aside(account: Account, description: JobDescription) -> tuple[JobDescription, list[str]]:
    """The description without attributes that its job type does not take, and their names."""
    if is_plain(description):
        return description, []
    settings = account.configuration.handlers
    try:
        with limited(settings.time_limit):
            return set_aside(description, find_job_type(find_type(description), settings.modules))
    except HandlerError:
        return description, []  # acceptance will report the faulty job type


def _publish_first_answer(account: Account, job_id: str) -> None:
    """Publish an answer for GRAM's first poll, which follows at once; an answer by the monitor stays."""
    try:
        publish_answer(account, account.database.grid_jobs.get(job_id), is_first=True)
    except OSError as error:
        logger.warning("%s: its first answer cannot be published: %s", job_id, error)


def poll(account: Account, description: JobDescription) -> GramAnswer:
    """The grid job's state for GRAM; no change if there is no such grid job.

    :raises DatabaseError: the database cannot be read now.
    """
    job_id = find_grid_job(account, description)
    if job_id is None:
        logger.warning("poll: %s has no grid job %r", account.places.root, description.word("jobid"))
        return NO_CHANGE
    job = account.database.grid_jobs.get(job_id)
    if not job.state.is_final:
        _wake(account)
    return answer_poll(account, job)


def stage_out(account: Account, description: JobDescription) -> GramAnswer:
    """The answer after GRAM's stage-out: that the grid job failed, if it did, as its event had to say DONE.

    :raises DatabaseError: the database cannot be read now.
    """
    job_id = find_grid_job(account, description)
    if job_id is None:
        return NO_CHANGE
    job = account.database.grid_jobs.get(job_id)
    return replace(answer_poll(account, job), state=None) if must_fail(account, job) else NO_CHANGE


def _wake(account: Account) -> None:
    try:
        wake_monitor(account)
    except OSError as error:
        logger.warning("no monitor can be started: %s", error)


def cancel(account: Account, description: JobDescription) -> GramAnswer:
    """Request the end of a grid job: FAILED, as it will certainly be cancelled; or its final state, if it has ended.

    :raises DatabaseError: the request cannot be stored now.
    :raises OSError: no monitor can be started to carry it out.
    """
    job_id = find_grid_job(account, description)
    if job_id is None:
        return refuse(GramError.JOB_CANCEL_FAILED, f"there is no grid job {description.word('jobid')!r}")
    if not request_cancel(account.database, job_id, "cancelled through GRAM"):
        return GramAnswer(account.database.grid_jobs.get(job_id).state)
    wake_monitor(account)
    return GramAnswer(State.FAILED)


_PRIORITY = re.compile(r"[+-]?[0-9]{1,9}", re.ASCII)


class JobSignal(enum.Enum):
    """GRAM's signals for jobs."""

    CANCEL = "1"
    SUSPEND = "2"
    RESUME = "3"
    PRIORITY = "4"


def signal(account: Account, description: JobDescription) -> GramAnswer:
    """Carry out a signal; the answer has the grid job's new state.

    :raises DatabaseError, OSError: it cannot be carried out now.
    """
    from batch_adapters.adapter import BatchError, Refused  # imported late: slow to load, seldom needed

    number = description.word("signal")
    try:
        wish = JobSignal(number)
    except ValueError:
        return refuse(GramError.UNKNOWN_SIGNAL, f"{number!r} is no signal of GRAM's for jobs")
    if wish is JobSignal.CANCEL:
        return cancel(account, description)
    job_id = find_grid_job(account, description)
    if job_id is None:
        return refuse(GramError.SIGNALLING_JOB, f"there is no grid job {description.word('jobid')!r}")
    argument = description.word("signalarg")
    if wish is JobSignal.PRIORITY and not _PRIORITY.fullmatch(argument):
        return refuse(GramError.SIGNALLING_JOB, f"priority: {argument!r} is no whole number")
    try:
        return GramAnswer(_pass_on(account, job_id, wish, argument))
    except Refused as error:
        return refuse(GramError.SIGNALLING_JOB, f"{wish.name.lower()}: {error}")
    except BatchError as error:
        return refuse(GramError.SIGNALLING_JOB, f"{wish.name.lower()} may be tried again: {error}")


def _pass_on(account: Account, grid_job: str, wish: JobSignal, argument: str) -> State | None:
    """The new state for GRAM; None: no change.

    :raises BatchError: see `jobmanager.control.suspension`; Refused, if all active steps refuse.
    """
    from batch_adapters.adapter import Refused
    from jobmanager.control.suspension import find_signalled

    states: list[State | None] = []
    refusals = []
    for signalled in find_signalled(account, grid_job):
        try:
            states.append(_pass_on_to(account, signalled, wish, argument))
        except Refused as error:
            refusals.append(error)
    if not states:
        raise refusals[0]
    return next((state for state in states if state is not None), None)


def _pass_on_to(account: Account, signalled: str, wish: JobSignal, argument: str) -> State | None:
    from jobmanager.control.suspension import prioritize_grid_job, resume_grid_job, suspend_grid_job

    if wish is JobSignal.SUSPEND:
        return State.SUSPENDED if suspend_grid_job(account, signalled) else None
    if wish is JobSignal.RESUME:
        resume_grid_job(account, signalled)
        # It may even have ended: the next poll or event will tell.
        state = reported_state(account.database.grid_jobs.get(signalled).state)
        return None if state in (State.PENDING, State.SUSPENDED) else State.ACTIVE
    prioritize_grid_job(account, signalled, int(argument))
    return None


def find_uniqid(description: JobDescription) -> str:
    """GRAM's unique id of the job, as stored in the job database; empty: GRAM gave none."""
    return render_text(description.word("uniqid") or description.contact)


def make_origin(
    description: JobDescription, directory: Path, unused: Iterable[str] = (), needs_subject: bool = False
) -> GramOrigin:
    """What is stored of a GRAM request in its grid job.

    :param directory: its file names are relative to it; unused: attributes that its job type does not take;
        needs_subject: True if audit or usage records will name the subject.
    """
    return GramOrigin(
        # Without an id it cannot be a repetition of another request.
        uniqid=find_uniqid(description) or f"unnamed-{os.urandom(16).hex()}",
        contact=description.contact,
        stdout=str(directory / (description.word("stdout") or "/dev/null")),
        stderr=str(directory / (description.word("stderr") or "/dev/null")),
        is_plain=is_plain(description),
        subject=find_subject(description) if needs_subject else "",
        unused=tuple(unused),
        # As globus_gram_job_manager_rsl_need_stage_out has it.
        is_staged_out=bool(description.words("filestageout") or description.words("filestreamout")),
    )


def find_grid_job(account: Account, description: JobDescription) -> str | None:
    """The grid job that a call is about, by its id or GRAM's uniqid; None if there is none.

    GRAM does not know the id if it was killed during submit.
    """
    job_id = read_gram_id(render_text(description.word("jobid")))
    if job_id:
        return job_id if account.database.grid_jobs.has(job_id) else None
    uniqid = find_uniqid(description)
    return account.database.grid_jobs.find_uniqid(uniqid) if uniqid else None


def find_proxy(description: JobDescription) -> str:
    """The job's proxy file, which GRAM renews; empty: there is none."""
    proxy = description.environment.get(_PROXY, "")
    return proxy if proxy.startswith("/") and proxy.isprintable() else ""


def find_subject(description: JobDescription) -> str:
    """The proxy's subject in Globus' form, ``/O=Grid/CN=A. Physicist``; empty if it cannot be read."""
    proxy = find_proxy(description)
    if not proxy:
        return ""
    import subprocess  # imported late: slow to load, and few sites need it

    command = ["openssl", "x509", "-in", proxy, "-noout", "-subject", "-nameopt", "compat"]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_TIMEOUT, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        logger.warning("the subject of the proxy %s cannot be read: %s", proxy, error)
        return ""
    return read_subject(done.stdout.decode(errors="replace"))


def read_subject(line: str) -> str:
    """The subject in the output of ``openssl x509 -subject -nameopt compat``, without what proxies append."""
    return _OF_PROXIES.sub("", line.strip().removeprefix("subject=").strip())
