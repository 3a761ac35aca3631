"""The job state monitor: one process per account that starts what has to run and keeps the database true.

It supervises a generator for each batch system in use, starts a worker for each grid job to be submitted, cancelled or
collected, applies events, and ends when nothing is left to do. It can be killed at any instruction: all state is in the
database.
"""

import argparse
import logging
import logging.handlers
import os
import selectors
import shutil
import socket
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from batch_adapters.launch import Installation, command_line
from batch_adapters.running.backoff import Backoff
from batch_adapters.states import Event
from jobmanager import render_error
from jobmanager.control.cancel_requests import cancel_withdrawn
from jobmanager.database.database import DamagedDocument, DatabaseError, OpenGridJob, Quarantined
from jobmanager.database.grid_jobs import StepLine, states_of
from jobmanager.database.times import render_time
from jobmanager.gram.reports import GramReports
from jobmanager.monitor.client import OF_ALL, OF_EVENTS, is_listening, listening, render_fingerprint
from jobmanager.monitor.generators import Generators
from jobmanager.monitor.logs import append_line, log_to
from jobmanager.monitor.workers import WorkerClient, Workers
from jobmanager.site.account import Account, open_account
from jobmanager.site.host import STAMP_INTERVAL, OtherHost, check_host, put_stamp, release_stamp
from jobmanager.states.aggregation import Task, aggregate_steps, next_task, next_task_of_steps
from jobmanager.states.changes import refresh_structured
from jobmanager.states.driver_status import ProgressReader, read_ended, reconcile_with_drivers
from jobmanager.states.failures import find_due
from jobmanager.states.program_reports import has_reports
from jobmanager.states.registration import apply_events
from jobmanager.submission.credential_copies import has_copies
from sandbox.files import locked, replace_file

logger = logging.getLogger(__name__)

_LOOK = 1.0
"""Seconds between two looks at the database when nobody wakes us."""
_GONE_TIME = 3600.0
"""Seconds without the state folder after which the monitor ends."""
_ALL = "monitor"
"""Stands for all grid jobs in answers to callers."""
_LEAST_ROOM = 65536
"""Bytes on the disk, without which no transaction can be committed."""
_LOCK_PATIENCE = 5.0
"""Seconds to wait for a predecessor that is just ending."""


class StartAnew(Exception):
    """Another process must take the monitor's place; the message says why."""


class _FolderGone(OSError):
    """The state folder is not there: there is nothing to do until it is."""


class _Fault:
    """The exceptions that one grid job's work has raised."""

    def __init__(self) -> None:
        self.backoff = Backoff()
        self._sentence = ""
        self._count = 0

    def put(self, grid_job: str, error: Exception) -> None:
        """Count an exception; the same traceback is logged once."""
        sentence = f"{type(error).__name__}: {error}"
        if sentence != self._sentence:
            logger.error("%s cannot go on: %s", grid_job, sentence, exc_info=error)
        self._sentence = sentence
        self._count += 1

    @property
    def sentence(self) -> str:
        return f"a fault of the job manager's own, {self._count} times: {self._sentence} (monitor.log has more)"


class Monitor:
    """One account's monitor; `run` returns when it has been idle for long enough."""

    def __init__(self, account: Account, listener: socket.socket) -> None:
        self._account = account
        self._settings = account.configuration.monitor
        self._selector = selectors.DefaultSelector()
        self._listener = listener
        self._selector.register(listener, selectors.EVENT_READ, self._answer)
        self._generators = Generators(account, self._selector, self._apply)
        self._server = WorkerClient(account, self._selector)
        self._workers = Workers(account, self._server.start)
        # Separate, because programs may report while a worker still submits.
        self._readers = Workers(account, self._server.start)
        self._notifiers = Workers(account, self._server.start)
        self._followers = Workers(account, self._server.start)
        self._open: set[str] | None = None
        self._has_unsent = False
        self._progress = ProgressReader(account)
        self._reports = GramReports(account)
        self._problem = ""
        self._backoff = Backoff()
        self._faults: dict[tuple[str, str], _Fault] = {}
        self._quarantined: dict[str, Quarantined] = {}
        self._due: dict[str, float] = {}
        self._idle_since: float | None = None
        self._installation = Installation()

    def run(self, stay: bool) -> None:
        """Work until there has been nothing to do for the idle time, or for ever.

        :raises OtherHost: another host has taken over. StartAnew: another process must take over.
        """
        try:
            self._turn(stay)
        finally:
            self._generators.stop()
            self._server.stop()

    def _turn(self, stay: bool) -> None:
        ready: list[tuple[selectors.SelectorKey, int]] = []
        while stay or not self._has_been_idle():
            try:
                # Another host may have taken over while this one hung.
                check_host(self._account.places)
                self._check_files()
                if self._is_due("stamp", STAMP_INTERVAL):
                    put_stamp(self._account.places)
                for key, _ in ready:
                    key.data()
                # Even during a back-off: a worker that has ended keeps the selector ready until it is reaped.
                self._server.supervise()
                for workers in (self._workers, self._readers, self._notifiers, self._followers):
                    workers.reap()
                if self._backoff.allows(time.monotonic()):
                    if self._problem:
                        # That nothing has to be written now does not mean that the problem is over.
                        self._account.database.check_room()
                    self._work()
            except (OtherHost, StartAnew):
                raise
            except (DatabaseError, OSError) as error:
                self._rest(error)
            except Exception as error:  # ending here would end the work on all grid jobs
                logger.exception("a fault of the job manager's own")
                self._rest(error)
            ready = self._selector.select(min(_LOOK, self._reports.due_in()))

    def _has_been_idle(self) -> bool:
        """True if there has been nothing to do for long enough."""
        enough = self._settings.idle_time
        if not os.path.exists(self._account.places.root):  # noqa: PTH110
            # It may have been removed, or be on a file system that comes back.
            enough = max(enough, _GONE_TIME)
        return self._idle_since is not None and time.monotonic() - self._idle_since >= enough

    def _check_files(self) -> None:
        if not self._account.places.root.exists():
            raise _FolderGone(f"the state folder {self._account.places.root} has gone")
        if self._installation.is_replaced():
            raise StartAnew("another version is installed")
        if lost := self._account.database.find_lost_file():
            if lost.endswith("-wal"):
                self._account.database.write_back()
                lost = f"{lost}, and what it held is written back"
            raise StartAnew(f"somebody has removed or replaced {lost}")

    def _work(self) -> None:
        open_jobs = self._account.database.grid_jobs.list_open()
        # After the list, because a grid job is held back before it is accepted.
        held_back = cancel_withdrawn(self._account)
        # First, because somebody may be waiting for an end.
        with self._alone("reports to GRAM", _ALL) as may_work:
            if may_work:
                self._reports.report()
        self._generators.supervise()
        self._workers.forget_all_but({name for job in open_jobs for name in (job.id, job.batch)})
        ids = {job.id for job in open_jobs}
        self._notify(ids)
        if open_jobs or self._workers.are_busy or self._reports.are_pending or self._is_notifying:
            self._idle_since = None
        elif self._idle_since is None:
            self._idle_since = time.monotonic()
        self._faults = {key: fault for key, fault in self._faults.items() if key[1] in ids or key[1] == _ALL}
        structured = self._account.database.grid_jobs.open_steps()
        quarantined = self._report_quarantined()
        for job in open_jobs:
            self._generators.start(job.batch)
            with self._alone("task", job.id) as may_work:
                # A grid job that cannot be read can still be cancelled by its index columns.
                if may_work and job.id not in held_back and (job.id not in quarantined or job.cancelled):
                    self._start_task(job, structured.get(job.id))
        if self._is_due("progress", self._settings.progress_interval):
            self._read_progress([job.id for job in open_jobs if job.id not in quarantined])
        if self._is_due("credentials", self._settings.credential_interval) and any(
            has_copies(self._account, job.id) for job in open_jobs
        ):
            self._followers.start(Task.CREDENTIALS, "all")
        if self._is_due("reconcile", self._settings.reconcile_interval):
            for batch in {job.batch for job in open_jobs}:
                self._workers.start(Task.RECONCILE, batch)
            with self._account.database.transaction():
                self._account.database.events.drop(time.time() - self._settings.event_cache_time)
            self._lift_quarantines(quarantined)
        self._problem = ""
        self._backoff = Backoff()

    @contextmanager
    def _alone(self, part: str, grid_job: str) -> Iterator[bool]:
        """Contain what one grid job's part of the work raises; false while the part must not be done, after a failure.

        Errors that concern all grid jobs pass: the database cannot be written, a process cannot be started.
        """
        fault = self._faults.get((part, grid_job))
        now = time.monotonic()
        may_work = fault is None or fault.backoff.allows(now)
        try:
            yield may_work
        except DamagedDocument as damage:
            with self._account.database.transaction():
                self._account.database.quarantine.put(damage, time.time())
        except (DatabaseError, OSError):
            raise
        except Exception as error:  # noqa: BLE001 the others go on, and it is logged with its traceback
            fault = fault or self._faults.setdefault((part, grid_job), _Fault())
            fault.put(grid_job, error)
            fault.backoff.wait(now)
        else:
            if may_work:
                self._faults.pop((part, grid_job), None)

    def _report_quarantined(self) -> Mapping[str, Quarantined]:
        """The grid jobs in quarantine; new ones are logged in the monitor's log and in their own."""
        quarantined = self._account.database.quarantine.list()
        for name in quarantined.keys() - self._quarantined.keys():
            logger.error("%s %s", name, quarantined[name].sentence)
            log = self._account.places.log(name)
            try:
                append_line(log, f"{render_time(time.time())} ERROR {quarantined[name].sentence}")
            except OSError as error:
                logger.warning("%s %s: %s", name, log, error)
        self._quarantined = quarantined
        return quarantined

    def _lift_quarantines(self, quarantined: Iterable[str]) -> None:
        database = self._account.database
        for name in quarantined:
            if not any(database.find_damages(name)):
                with database.transaction():
                    database.quarantine.lift(name)
                logger.info("%s is no longer in quarantine: its documents can be read", name)

    def _start_task(self, job: OpenGridJob, steps: Sequence[StepLine] | None) -> None:
        database = self._account.database
        if steps is None:
            task = next_task(database.local_jobs.count(job.id), job.cancelled, find_due(database, job.id))
        else:
            states = states_of(steps)
            needs = database.grid_jobs.get(job.id).needs
            if aggregate_steps(states, needs) is not job.state:
                refresh_structured(database, job.id)
            task = next_task_of_steps(states, needs, job.cancelled)
        if task is not None:
            self._workers.start(task, job.id, job.cancelled)

    def _rest(self, error: Exception) -> None:
        """Pause because nothing can be written or started; the generators are stopped, and will replay their events."""
        self._problem = render_error(error)
        logger.warning("%s: trying again later", self._problem)
        self._generators.stop()
        self._backoff.wait(time.monotonic())
        self._idle_since = (self._idle_since or time.monotonic()) if isinstance(error, _FolderGone) else None
        # What could not be taken from a ready file would wake us again at once.
        time.sleep(_LOOK)

    def _apply(self, batch: str, events: list[Event]) -> None:
        statuses = read_ended(self._account, batch, events)
        for grid_job, jobs in apply_events(self._account.database, batch, events, statuses).items():
            # The others are those of an array that has ended, and those whose drivers' records could not be read.
            if others := [job for job in jobs if job.state.is_final and job.local_id not in statuses]:
                with self._alone("events", grid_job):
                    reconcile_with_drivers(self._account, grid_job, others)

    def _read_progress(self, grid_jobs: list[str]) -> None:
        for grid_job in self._progress.turns(grid_jobs):
            try:
                with self._alone("progress", grid_job) as may_work:
                    if may_work:
                        self._progress.read_grid_job(grid_job)
            except OSError as error:  # programs may have closed their grid job's folder; the others go on
                logger.warning("%s no progress can be read: %s", grid_job, error)
        for grid_job in grid_jobs:
            if has_reports(self._account.places.reports(grid_job)):
                self._readers.start(Task.REPORTS, grid_job)
        self._progress.forget_all_but(grid_jobs)
        self._readers.forget_all_but(grid_jobs)

    def _notify(self, ids: set[str]) -> None:
        """Start a notifier when a grid job has ended, and from time to time to look for stalled ones."""
        settings = self._account.configuration.notification
        if not settings.command:
            return
        # Also at the start: some may have ended while no monitor ran.
        self._has_unsent = self._has_unsent or self._open is None or not self._open <= ids
        self._open = ids
        if (
            self._has_unsent
            or self._notifiers.problems()
            or (ids and self._is_due("notification", min(60.0, settings.patience / 4)))
        ):
            was_busy = self._notifiers.are_busy  # a running one may have looked before that end
            self._notifiers.start(Task.NOTIFY, "all")
            self._has_unsent = self._has_unsent and (was_busy or not self._notifiers.are_busy)

    @property
    def _is_notifying(self) -> bool:
        return self._has_unsent or self._notifiers.are_busy or bool(self._notifiers.problems())

    def _is_due(self, duty: str, interval: float) -> bool:
        now = time.monotonic()
        if now < self._due.get(duty, 0):
            return False
        self._due[duty] = now + interval
        return True

    def _list_problems(self) -> list[str]:
        return [self._problem, _describe_full_disk(self._account), self._generators.problem(), self._reports.problem]

    def _answer(self) -> None:
        """Send our problems to whoever connects; the connection itself has woken us."""
        try:
            connection, _ = self._listener.accept()
        except BlockingIOError:
            return
        with connection:
            text = self._workers.problems()
            text += "".join(f"{name}: {fault.sentence}\n" for (_, name), fault in self._faults.items())
            text += "".join(f"{name}: {why.sentence}\n" for name, why in self._quarantined.items())
            text += "".join(f"{OF_ALL}{problem}\n" for problem in self._list_problems() if problem)
            text += "".join(f"{OF_EVENTS}{death}\n" for death in self._generators.deaths())
            connection.settimeout(1)
            try:
                connection.sendall(text.encode(errors="replace")[:60_000])
            except OSError as error:
                logger.debug("a caller did not wait for the answer: %s", error)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="samgrid monitor", description=__doc__)
    parser.add_argument("--state-dir", help="state folder of the account")
    parser.add_argument("--stay", action="store_true", help="do not end when there is nothing to do")
    options = parser.parse_args(argv)
    os.umask(0o077)
    account = open_account(options.state_dir)
    _log_to(account)
    with _only_monitor(account) as is_ours:
        if not is_ours:
            print(f"another monitor works for {account.places.root} already", file=sys.stderr)
            return 0
        replace_file(account.places.monitor_configuration, render_fingerprint(account.configuration).encode())
        logger.info("monitor %d starts", os.getpid())
        while True:
            try:
                with listening(account) as listener:
                    Monitor(account, listener).run(options.stay)
            except OtherHost as error:
                print(f"monitor {os.getpid()} ends: {error}", file=sys.stderr)
                return 1
            except StartAnew as why:
                logger.warning("monitor %d starts anew: %s", os.getpid(), why)
                os.execv(sys.executable, command_line("samgrid-monitor", *argv))
            # Whoever finds no listener from now on starts a monitor, which waits for our lock.
            if not account.places.root.exists() or not account.database.grid_jobs.list_open():
                release_stamp(account.places)
                logger.info("monitor %d ends: nothing to do", os.getpid())
                return 0


def _describe_full_disk(account: Account) -> str:
    """A problem before anything fails: a batch system that waits for disk space sends no events."""
    root = account.places.root
    return f"no space left on the disk of {root}" if shutil.disk_usage(root).free < _LEAST_ROOM else ""


@contextmanager
def _only_monitor(account: Account) -> Iterator[bool]:
    """Hold the account's lock, if it is free within a few seconds."""
    deadline = time.monotonic() + _LOCK_PATIENCE
    while True:
        with locked(account.places.monitor_lock) as lock:
            # A listening monitor serves whoever started us; one that does not listen may be ending.
            if lock is not None or is_listening(account) or time.monotonic() > deadline:
                yield lock is not None
                return
        time.sleep(0.05)


def _log_to(account: Account) -> None:
    handler = logging.handlers.RotatingFileHandler(account.places.monitor_log, maxBytes=5_000_000, backupCount=3)
    log_to(handler)
    # A full disk must not end the monitor for the sake of a log line.
    logging.raiseExceptions = False
