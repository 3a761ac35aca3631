"""The monitor's workers: which tasks run, what their problems are, and the client of the server that forks them."""

import itertools
import logging
import selectors
import socket
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

from batch_adapters.running.backoff import Backoff
from jobmanager.database.database import DatabaseError, UnknownJob
from jobmanager.monitor.child import Child
from jobmanager.site.account import Account
from jobmanager.site.places import FIRST_QUESTIONS, QUESTIONS
from jobmanager.states.aggregation import Task

logger = logging.getLogger(__name__)

TRY_LATER = 75
"""Exit status of a worker whose task could not be done now (EX_TEMPFAIL of sysexits.h); its stderr says why."""
BUSY = 76
"""Exit status of a worker that found another one at work, left by a monitor that has died."""
HUNG = 77
"""Exit status of a worker whose handler hung; its stderr says where."""
POSTPONED = 78
"""Exit status of a worker to which the batch system said "not now" (closed queue, quota); its stderr says why."""
LOST = 79
"""Stands for the exit status of a worker whose server has died."""

BEGINNING = (Task.SUBMIT, Task.ADVANCE)
"""Tasks that are ended when the grid job is cancelled: they call handlers, which may hang."""

_OF_ACCOUNT = (Task.RECONCILE, Task.NOTIFY, Task.CREDENTIALS)
"""Tasks whose subject is no grid job."""

_SHORTEST_PAUSE = 1.0
"""Seconds before a handler is called again that has hung, or killed its worker."""
HANDLER_PATIENCE = 5.0
"""Seconds for which a worker that waits for a handler counts as running."""
MOST_ASIDE = 16
"""Workers that may wait for handlers in addition to those that run."""


class Postponement(Backoff):
    """The back-off after a batch system said "not now"."""

    SHORTEST = 4.0
    LONGEST = 60.0


class Worker(Protocol):
    """A process that does one task."""

    @property
    def last_output(self) -> str:
        """The end of what it wrote to stderr."""

    def exit_status(self) -> int | None:
        """None while it runs; then its exit status, once."""

    def kill(self) -> None:
        """End it now, with what it has started."""


@dataclass
class _Subject:
    """A grid job or a batch system, and its task over all attempts."""

    name: str
    task: Task
    worker: Worker | None = None
    problem: str = ""
    said: list[str] = field(default_factory=list)
    """The stderr of the previous worker."""
    backoff: Backoff = field(default_factory=Backoff)
    begun: float = 0.0
    """When its worker was started."""
    hangs: int = 0
    """How often its handler hung, or its worker died during a call of it or with the server."""
    not_before: float = 0.0
    """When that handler may be called again."""
    postponement: Postponement = field(default_factory=Postponement)


class Workers:
    """Starts workers, a limited number at a time, and repeats tasks with a growing pause while they are needed."""

    def __init__(self, account: Account, start: Callable[[Task, str], Worker]) -> None:
        """``start`` starts a worker for a task of a subject."""
        self._account = account
        self._start = start
        self._subjects: dict[str, _Subject] = {}

    @property
    def are_busy(self) -> bool:
        return any(subject.worker for subject in self._subjects.values())

    def start(self, task: Task, name: str, cancelled: bool = False) -> None:
        """Start a worker for this task, unless the subject has one, it is too early, or enough workers run.

        :param cancelled: whether the subject is a grid job that was cancelled.
        """
        subject = self._subjects.get(name)
        if subject is not None and subject.worker is not None and cancelled and self._may_be_ended(subject):
            logger.info("%s %s is ended: the grid job is cancelled", name, subject.task)
            subject.worker.kill()
            subject.worker = None
        if subject is None or (subject.task is not task and subject.worker is None):
            subject = self._subjects[name] = _Subject(name, task)
        now = time.monotonic()
        is_early = now < subject.not_before or not (subject.backoff.allows(now) and subject.postponement.allows(now))
        if subject.worker or is_early or self._are_enough(task):
            return
        logger.info("%s %s starts", name, task)
        subject.worker = self._start(task, name)
        subject.begun = now
        # Whatever the result, the same task is not repeated at once.
        subject.backoff.wait(time.monotonic())

    def _may_be_ended(self, subject: _Subject) -> bool:
        """True for a worker that can be killed without leaving a submission in doubt.

        A cancelled grid job gets no new intent. So a worker without an open intent submits nothing more, and one with
        an open intent ends with its submit commands, which have time limits. No submit command runs while the worker
        calls a handler, whatever earlier workers have left in doubt.
        """
        if subject.task not in BEGINNING:
            return False
        is_in_doubt = self._account.database.local_jobs.is_in_doubt(subject.name)
        return not is_in_doubt or self._account.places.is_handler_asked(subject.name, FIRST_QUESTIONS)

    def _are_enough(self, task: Task) -> bool:
        """True if no further worker may be started; reconciliation never waits, and one place is reserved for cancels.

        A worker that waits for its handler for long does not count, so that other grid jobs need not wait for it.
        """
        if task is Task.RECONCILE:
            return False
        running = [other for other in self._subjects.values() if other.worker and other.task is not Task.RECONCILE]
        aside = min(sum(map(self._is_aside, running)), MOST_ASIDE)
        most = self._account.configuration.monitor.workers + (task is Task.CANCEL)
        return len(running) - aside >= most

    def _is_aside(self, subject: _Subject) -> bool:
        waits = time.monotonic() - subject.begun >= HANDLER_PATIENCE
        return waits and self._account.places.is_handler_asked(subject.name)

    def _note_hang(self, subject: _Subject, place: int, lasted: float) -> None:
        """Let a handler that hung for ``lasted`` seconds wait before it is called again, longer each time.

        The second of those that died at once waits twice as long: one of them may have killed the server of all.
        """
        subject.hangs += 1
        subject.not_before = time.monotonic() + place * subject.hangs * max(_SHORTEST_PAUSE, lasted)

    def _has_died(self, subject: _Subject, status: int) -> bool:
        """True if a worker died, or had to be killed, during a call of its handler."""
        if status == BUSY or subject.task in _OF_ACCOUNT:
            return False  # another worker calls the handler, or none
        # A worker and a reader of reports may run at once.
        is_reader = subject.task is Task.REPORTS
        return self._account.places.is_handler_asked(subject.name, {"lines"} if is_reader else {*QUESTIONS} - {"lines"})

    def reap(self) -> None:
        """Process the workers that have ended; a problem that cannot be stored is kept in memory."""
        hung = 0
        for subject in self._subjects.values():
            status = subject.worker.exit_status() if subject.worker else None
            if subject.worker is None or status is None:
                continue
            has_died = self._has_died(subject, status)
            lines = subject.worker.last_output.splitlines()
            if not lines or (has_died and status != LOST):
                lines.append(f"the worker ended with status {status}")
            if has_died:
                lines[-1] += ", while it asked the handler"
            subject.worker = None
            subject.problem = lines[-1] if has_died or status not in (0, BUSY) else ""
            log = logger.warning if subject.problem else logger.info
            # The same traceback is logged once.
            is_known = subject.said == lines
            subject.said = lines
            words = (lines[-1] if is_known else " | ".join(lines)) if subject.problem else ""
            log("%s %s ended with status %d %s", subject.name, subject.task, status, words)
            if status:
                # It may have taken longer than the pause, and would fill the disk again at once.
                subject.backoff.begin_anew(time.monotonic())
            if subject.task not in _OF_ACCOUNT:
                has_hung = status == HUNG or has_died
                # A call may seem to have returned: it takes a moment until the death of the server is ours, too.
                if has_hung or status == LOST:
                    hung += 1
                    self._note_hang(subject, hung, time.monotonic() - subject.begun if has_hung else 0)
                if status == POSTPONED:
                    subject.postponement.wait(time.monotonic())
                else:
                    subject.postponement = Postponement()
            if subject.task in (*_OF_ACCOUNT, Task.REPORTS):
                # The monitor keeps their interval; the back-off is only for failures.
                subject.backoff = subject.backoff if status else Backoff()
            else:
                self._write_problem(subject)

    def forget_all_but(self, names: Collection[str]) -> None:
        """Forget what is known of grid jobs that have ended."""
        self._subjects = {name: known for name, known in self._subjects.items() if known.worker or name in names}

    def problems(self) -> str:
        """A line per subject that cannot go on now."""
        return "".join(
            f"{subject.name}: {subject.task}: {subject.problem}\n"
            for subject in self._subjects.values()
            if subject.problem
        )

    def _write_problem(self, subject: _Subject) -> None:
        database = self._account.database
        try:
            with database.transaction():
                job = database.grid_jobs.get(subject.name)
                if job.state.is_final:
                    return  # killed after all was done
                had_problem = job.clear_problem() if not subject.problem else True
                if subject.problem:
                    job.put_problem(f"{subject.task}: {subject.problem}", time.time())
                if had_problem:
                    database.grid_jobs.put(job)
        except UnknownJob:
            logger.info("%s has been removed", subject.name)
        except DatabaseError as error:
            logger.warning("%s problem not written down: %s", subject.name, error)


_BLOCK = 1 << 16


@dataclass
class ForkedWorker:
    """A worker that the server has forked; ``kill`` ends it at once, with its children."""

    kill: Callable[[], None]
    last_output: str = ""
    """The end of what it wrote to stderr."""
    status: int | None = None

    def exit_status(self) -> int | None:
        """None while it runs."""
        return self.status


class WorkerClient:
    """The monitor's side of the workers' server: starts the server when it is needed, and again when it has died.

    The workers die with their server. Only the selector's callback may call `_on_message`; all other methods are called
    outside of callbacks.
    """

    def __init__(self, account: Account, selector: selectors.BaseSelector) -> None:
        self._account = account
        self._selector = selector
        self._server: Child | None = None
        self._connection: socket.socket | None = None
        self._numbers = itertools.count(1)
        self._workers: dict[int, ForkedWorker] = {}
        self._has_ended = False

    def start(self, task: Task, subject: str) -> ForkedWorker:
        """A new worker; if the server dies at once, one that has ended with the server's stderr.

        :raises OSError: the server cannot be started.
        """
        number = next(self._numbers)
        message = f"start {number} {task} {subject}".encode()
        is_sent = self._send(message)
        if not is_sent:  # the server has died since the last message
            self._lose_server()
            is_sent = self._send(message)
        worker = self._workers[number] = ForkedWorker(lambda: self._kill(number))
        if not is_sent:
            self._lose_server()
        return worker

    def _send(self, message: bytes) -> bool:
        try:
            self._connect().send(message)
        except (BrokenPipeError, ConnectionResetError):
            return False
        return True

    def supervise(self) -> None:
        """Notice that the server has ended, and its workers with it; let it go on if somebody has stopped it."""
        if self._has_ended:
            self._lose_server()
        elif self._server is not None and self._server.let_go_on():
            # A handler may have done this, and no other grid job would go on.
            logger.warning("the workers' server was stopped by a signal, and is let go on")

    def stop(self) -> None:
        """End the server, and whatever works for it."""
        if self._server is not None:
            self._lose_server()

    def _connect(self) -> socket.socket:
        if self._connection is None:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                command = self._account.program("samgrid-worker", "serve")
                self._server = Child(self._selector, command, lambda block: None, theirs.fileno())
            self._connection = ours
            self._selector.register(ours, selectors.EVENT_READ, self._on_message)
        return self._connection

    def _on_message(self) -> None:
        assert self._connection is not None
        try:
            message = self._connection.recv(_BLOCK)
        except ConnectionResetError:
            message = b""
        if not message:
            # The loop may still call back for its other descriptors, so they are closed later.
            self._has_ended = True
            return
        number, status, words = message.split(b" ", 2)
        # A killed worker is unknown by now.
        worker = self._workers.pop(int(number), None)
        if worker is not None:
            worker.status, worker.last_output = int(status), words.decode(errors="replace").strip()

    def _kill(self, number: int) -> None:
        if self._workers.pop(number, None) is None or self._connection is None:
            return
        with suppress(BrokenPipeError, ConnectionResetError):  # it has died with its server
            self._connection.send(f"kill {number}".encode())

    def _lose_server(self) -> None:
        """Close everything of a server that has died, and end its workers."""
        assert self._server is not None
        assert self._connection is not None
        self._selector.unregister(self._connection)
        self._connection.close()
        status = self._server.end()
        reason = f"the workers' server ended with status {status}: {self._server.last_output}".rstrip(": ")
        self._server = self._connection = None
        self._has_ended = False
        for worker in self._workers.values():
            worker.status, worker.last_output = LOST, reason
        if self._workers:
            logger.warning("%s", reason)
        self._workers.clear()
