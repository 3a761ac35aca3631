"""The worker process: does one task of one grid job, or of the account; or is the server that forks workers."""

import argparse
import fcntl
import logging
import os
import stat
import sys
import time
from contextlib import ExitStack, suppress
from pathlib import Path

from batch_adapters.adapter import BatchError, Postponed, Refused
from batch_adapters.registry import UnknownBatchSystem
from batch_adapters.running.rate_limiter import RateLimited
from jobmanager import UserError, render_error
from jobmanager.completion.collection import collect_grid_job
from jobmanager.completion.notified import has_unsent
from jobmanager.control.cancel_requests import request_cancel
from jobmanager.control.cancellation import cancel_local_jobs
from jobmanager.database.database import DamagedDocument, DatabaseError
from jobmanager.gram.answers import reported_state
from jobmanager.monitor.client import wake_monitor
from jobmanager.monitor.logs import log_to
from jobmanager.monitor.worker_server import serve
from jobmanager.monitor.workers import BUSY, HUNG, POSTPONED, TRY_LATER
from jobmanager.requests.attributes import BadRequest
from jobmanager.requests.job_types import HandlerError, HandlerUnreachable
from jobmanager.requests.time_limit import MOST_DEATHS, MOST_HANGS, MOST_UNREACHED, HandlerHung, asking
from jobmanager.run_grid_job import run_grid_job
from jobmanager.site.account import Account, open_account
from jobmanager.site.places import FIRST_QUESTIONS, StatePlaces
from jobmanager.states.aggregation import Task
from jobmanager.states.program_reports import read_reports
from jobmanager.states.reconciliation import reconcile_batch_system
from jobmanager.submission.credential_copies import follow_credentials
from jobmanager.submission.packing import remove_half_made
from jobmanager.workflow import advance_grid_job, cancel_steps, collect_steps
from sandbox.files import SandboxError, SandboxRefused, empty_descriptors, locked, open_folder, open_own

logger = logging.getLogger(__name__)


def main(argv: list[str]) -> int:
    """Do one task (see `do_task`), or serve the monitor (``serve``)."""
    parser = argparse.ArgumentParser(prog="samgrid-worker", description=__doc__)
    parser.add_argument("--state-dir", required=True)
    parser.add_argument("task", choices=["serve", *Task])
    parser.add_argument("subject", nargs="?", help="id of the grid job, or name of the batch system to reconcile with")
    options = parser.parse_args(argv)
    if options.subject is None and options.task != "serve":
        parser.error("of which grid job, or batch system?")
    try:
        account = open_account(options.state_dir)
    except UserError as error:
        print(error, file=sys.stderr)
        return 1
    if options.task == "serve":
        serve(lambda task, subject: do_task(account, task, subject))
        return 0
    empty_descriptors(0)  # a program started by a handler must not wait for a person
    return do_task(account, Task(options.task), options.subject)


def do_task(account: Account, task: Task, subject: str) -> int:
    """Do one task; 0 when it is done, another exit status when the monitor must start it again."""
    try:
        if task is Task.RECONCILE:
            reconcile_batch_system(account, subject)
        elif task is Task.WAKE:
            _wake_successor(account)
        elif task is Task.NOTIFY:
            # A program, because it renders grid jobs, which a room above us does.
            command = account.program("samgrid-notify")
            os.execv(command[0], command)
        elif task is Task.CREDENTIALS:
            _log_to(None)
            follow_credentials(account)
        elif task is Task.REPORTS:
            os.close(open_folder(account.places.grid_job(subject)))
            _log_to(account.places.log(subject), subject)
            read_reports(account, subject)
        else:
            return _do_task_of_grid_job(account, task, subject)
    except (HandlerHung, HandlerUnreachable) as error:
        is_hung = isinstance(error, HandlerHung)
        print(("the handler hangs: " if is_hung else "") + " ".join(str(error).split()), file=sys.stderr)
        return HUNG if is_hung else POSTPONED
    except DamagedDocument as damage:
        with account.database.transaction():
            account.database.quarantine.put(damage, time.time())
        print(damage, file=sys.stderr)
        return TRY_LATER
    except (OSError, SandboxError, DatabaseError, BatchError, UnknownBatchSystem) as error:
        print(" ".join(render_error(error).split()), file=sys.stderr)
        # Our own rate limit has its own pause.
        return POSTPONED if isinstance(error, Postponed) and not isinstance(error, RateLimited) else TRY_LATER
    return 0


_PAUSE = 3.0
"""Seconds for whoever ended the monitor because of another configuration to start one with it."""


def _wake_successor(account: Account) -> None:
    """Start a monitor in place of one that was killed, if somebody waits for news without asking.

    That is GRAM if it reads events, and people who get notifications.
    """
    gram, grid_jobs = account.configuration.gram, account.database.grid_jobs
    reads_events = gram.event_collector or gram.event_folder
    if not reads_events and not account.configuration.notification.command:
        return
    time.sleep(_PAUSE)
    unreported = grid_jobs.list_unreported() if reads_events else []
    has_news = any(reported_state(job.state) is not job.reported for job in unreported)
    if grid_jobs.list_open() or has_news or has_unsent(account, time.time()):
        wake_monitor(account)


def _do_task_of_grid_job(account: Account, task: Task, grid_job: str) -> int:
    if not account.database.grid_jobs.has(grid_job):
        return 0  # it was removed since the monitor looked
    _open_folders(account.places, grid_job)
    _log_to(account.places.log(grid_job), grid_job)
    # A worker may outlive the monitor that started it.
    with locked(account.places.worker_lock(grid_job)) as lock, ExitStack() as stack:
        if lock is None:
            return BUSY
        # A handler may have forked a process that outlives us: it has inherited the descriptor, and the lock with it.
        stack.callback(fcntl.flock, lock, fcntl.LOCK_UN)
        if account.database.grid_jobs.get(grid_job).state.is_final:
            return 0  # ended by a worker that has outlived its monitor
        is_structured = bool(account.database.grid_jobs.steps_of(grid_job))
        if task is Task.COLLECT:
            _read_last_reports(account, grid_job)
            remove_half_made(account, grid_job)
            # The grid job's log goes into the tar, so nothing may be added to it any more.
            _log_to(None, grid_job)
            collect = collect_steps if is_structured else collect_grid_job
            collect(account, grid_job)
        elif task is Task.CANCEL:
            cancel = cancel_steps if is_structured else cancel_local_jobs
            cancel(account, grid_job)
        else:
            _begin(account, task, grid_job)
    return 0


def _begin(account: Account, task: Task, grid_job: str) -> None:
    """Submit a grid job, or begin its steps; it is cancelled if that can never be done."""
    _log_unused(account, grid_job)
    begin = advance_grid_job if task is Task.ADVANCE else run_grid_job
    try:
        # A worker that hung, or died, may have been killed before it could give up.
        if why := _find_hopeless(account, grid_job):
            raise HandlerError(why)
        begin(account, grid_job)
    except HandlerHung as error:
        logger.warning("%s %s", grid_job, error, exc_info=error.__cause__)
        if not (why := _find_hopeless(account, grid_job)):
            raise
        _give_up(account, grid_job, why)
    except HandlerUnreachable as error:
        times = sum(asking(account, grid_job, what).count_unreached() for what in FIRST_QUESTIONS)
        if times < MOST_UNREACHED:
            # The same traceback is logged once.
            logger.warning("%s %s", grid_job, error, exc_info=error.__cause__ if times == 1 else None)
            raise
        _give_up(account, grid_job, f"asked {times} times, {error}")
    except (BadRequest, HandlerError, Refused, SandboxRefused) as error:
        _give_up(account, grid_job, str(error))


def _give_up(account: Account, grid_job: str, why: str) -> None:
    request_cancel(account.database, grid_job, f"cannot be run: {'; '.join(why.splitlines())}", "us")


def _open_folders(places: StatePlaces, grid_job: str) -> None:
    """Make a grid job's folders, and make those accessible that a program has closed.

    :raises OSError: something else is in the place of the folder of them all.
    """
    with suppress(FileExistsError):
        _open_closed(places.grid_job(grid_job))
    os.close(open_folder(places.grid_job(grid_job)))
    for folder in (places.sandbox(grid_job), places.results(grid_job), places.reports(grid_job)):
        # Whatever a program has put in their place must not prevent the grid job's end.
        with suppress(FileExistsError, FileNotFoundError, NotADirectoryError):
            _open_closed(folder)


def _open_closed(folder: Path) -> None:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if stat.S_IMODE(folder.lstat().st_mode) & stat.S_IRWXU != stat.S_IRWXU:
        folder.chmod(stat.S_IRWXU)


def _log_unused(account: Account, grid_job: str) -> None:
    """Log which attributes of GRAM's clients this grid job does not use, as the first line of its log."""
    job = account.database.grid_jobs.get(grid_job)
    if job.origin is None or not job.origin.unused or account.places.log(grid_job).stat().st_size:
        return
    names = ", ".join(job.origin.unused)
    logger.info("%s not used, because the job type %s does not take it: %s", grid_job, job.job_type, names)


def _find_hopeless(account: Account, grid_job: str) -> str:
    """Why its handler is not asked any more: it has hung, or killed its workers, too often; empty if it has not."""
    questions = [asking(account, grid_job, what) for what in FIRST_QUESTIONS]
    hangs = [hang for question in questions for hang in question.find_hangs()]
    deaths = sum(question.count_deaths() for question in questions)
    handler = f"handler {account.database.grid_jobs.get(grid_job).job_type}"
    if len(hangs) >= MOST_HANGS:
        return f"{handler} was asked {len(hangs)} times and did not come to an end: {hangs[-1]}"
    if not deaths:
        return ""
    sentence = f"{handler} was asked {deaths} times, and each time the process that asked it ended"
    if deaths >= MOST_DEATHS:
        return sentence
    logger.warning("%s %s: it will be given up after %d times", grid_job, sentence, MOST_DEATHS)
    return ""


def _read_last_reports(account: Account, grid_job: str) -> None:
    """Read the last reports; a folder that a program has closed must not prevent the grid job's end."""
    try:
        read_reports(account, grid_job)
    except OSError as error:
        logger.warning("%s reports cannot be read: %s", grid_job, error)


def _log_to(path: Path | None, grid_job: str = "") -> None:
    handler: logging.Handler
    if path is None:
        handler = logging.StreamHandler()
    else:
        try:
            handler = logging.StreamHandler(open(open_own(path, os.O_APPEND), "a", encoding="utf-8"))  # noqa: SIM115
        except OSError as error:
            handler = logging.StreamHandler()
            print(f"{path} takes no log: {error.strerror}", file=sys.stderr)
    log_to(handler, grid_job)
    logging.getLogger("sh").setLevel(logging.WARNING)
