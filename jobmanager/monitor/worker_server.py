"""The workers' server: a resident process that has everything loaded, and forks a worker for each task.

The monitor sends it ``start NUMBER TASK SUBJECT`` and ``kill NUMBER`` through a socket, its standard input. The answer
is ``NUMBER STATUS STDERR`` when a worker has ended. Only workers load handlers (an experiment's code) and open the job
database. A worker dies with its server. When the monitor dies, workers that begin something get a SIGTERM, because they
may hang in a handler and the next monitor could not end them; one that is just submitting waits for the answer first
(`submission.submit.uninterrupted`). The other workers finish their tasks, and the server then ends.
"""

import gc
import os
import selectors
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import NoReturn

from batch_adapters.running.commands import die_with_parent
from jobmanager import render_error
from jobmanager.database.documents import load_schema
from jobmanager.monitor.child import let_go_on
from jobmanager.monitor.workers import BEGINNING, TRY_LATER
from jobmanager.states.aggregation import Task
from sandbox.driver import load_template
from sandbox.files import empty_descriptors

_LOOK = 5.0
"""Seconds between two looks for workers that were stopped."""
_BLOCK = 1 << 16
_LONGEST_STDERR = 2000


@dataclass(eq=False)
class _Worker:
    """A worker that has not been waited for, so that its pid cannot be reused."""

    number: int
    task: Task
    pid: int
    end: int
    """A pidfd: readable once the worker has ended."""
    errors: int
    """Our end of its standard error."""
    words: bytes = b""

    def read_errors(self) -> bool:
        """Read one block; False where there is none now."""
        try:
            block = os.read(self.errors, _BLOCK)
        except BlockingIOError:
            return False
        self.words = (self.words + block)[-_LONGEST_STDERR:]
        return bool(block)

    def close(self) -> None:
        os.close(self.end)
        os.close(self.errors)


class WorkerServer:
    """Forks workers, and reports to the monitor how each has ended."""

    def __init__(self, connection: socket.socket, work: Callable[[Task, str], int]) -> None:
        """``work`` does a task in the forked worker; its result is the exit status."""
        self._connection = connection
        self._work = work
        self._workers: dict[int, _Worker] = {}
        self._is_wanted = True
        self._selector = selectors.DefaultSelector()
        self._selector.register(connection, selectors.EVENT_READ, self._on_message)

    def serve(self) -> None:
        """Serve until the monitor is gone and the last worker has ended."""
        while self._is_wanted or self._workers:
            for key, _ in self._selector.select(_LOOK if self._workers else None):
                key.data()
            for worker in self._workers.values():
                # No time limit of a handler passes in a worker that is stopped.
                let_go_on(worker.end)

    def _on_message(self) -> None:
        try:
            message = self._connection.recv(_BLOCK).decode()
        except ConnectionResetError:
            message = ""
        if not message:
            self._is_wanted = False
            self._selector.unregister(self._connection)
            for worker in self._workers.values():
                if worker.task in BEGINNING:
                    os.kill(worker.pid, signal.SIGTERM)
            self._start(0, Task.WAKE, "")
            return
        word, number, *what = message.split(" ", 3)
        if word == "kill":
            self._kill(int(number))
        else:
            self._start(int(number), Task(what[0]), what[1])

    def _start(self, number: int, task: Task, subject: str) -> None:
        server, pid = os.getpid(), 0
        pipe: tuple[int, ...] = ()
        try:
            errors, errors_of_worker = pipe = os.pipe()
            pid = os.fork()
            if pid == 0:
                self._become_worker(server, errors, errors_of_worker, task, subject)
            end = os.pidfd_open(pid)
        except OSError as error:
            for descriptor in pipe:
                os.close(descriptor)
            if pid:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            self._report(number, TRY_LATER, render_error(error).encode(errors="replace"))
            return
        os.close(errors_of_worker)
        os.set_blocking(errors, False)
        worker = self._workers[number] = _Worker(number, task, pid, end, errors)
        self._selector.register(worker.end, selectors.EVENT_READ, lambda: self._reap(worker))
        self._selector.register(worker.errors, selectors.EVENT_READ, lambda: self._read_errors(worker))

    def _read_errors(self, worker: _Worker) -> None:
        # The loop may have found both descriptors readable, and has reaped it since.
        if worker.number in self._workers and not worker.read_errors():
            self._selector.unregister(worker.errors)

    def _reap(self, worker: _Worker) -> None:
        if worker.number not in self._workers:
            return
        if not self._is_wanted and worker.task in BEGINNING:
            self._kill_group(worker)
        status = self._bury(worker)
        self._report(worker.number, status, worker.words)

    def _bury(self, worker: _Worker) -> int:
        """Wait for a worker that has ended or is ending, and close everything; its exit status."""
        status = os.waitstatus_to_exitcode(os.waitpid(worker.pid, 0)[1])
        # One read: a block holds all that a pipe does, and the worker's children may write for ever.
        worker.read_errors()
        for descriptor in (worker.end, worker.errors):
            if descriptor in self._selector.get_map():
                self._selector.unregister(descriptor)
        worker.close()
        del self._workers[worker.number]
        return status

    def _kill(self, number: int) -> None:
        """Kill a worker and its children at once: its successor needs its lock."""
        worker = self._workers.get(number)
        if worker is None:
            return
        self._kill_group(worker)
        os.kill(worker.pid, signal.SIGKILL)
        self._bury(worker)

    @staticmethod
    def _kill_group(worker: _Worker) -> None:
        """Kill what a handler has started."""
        with suppress(ProcessLookupError):  # it has no group yet, so no children either
            os.killpg(worker.pid, signal.SIGKILL)

    def _report(self, number: int, status: int, words: bytes) -> None:
        with suppress(BrokenPipeError, ConnectionResetError):  # the monitor is gone
            self._connection.send(b"%d %d %s" % (number, status, words))

    def _become_worker(self, server: int, errors_read: int, errors: int, task: Task, subject: str) -> NoReturn:
        """Do a task in this process, which was just forked, and exit."""
        status = 1
        try:
            os.setsid()
            die_with_parent()
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            if os.getppid() != server:
                os._exit(status)  # the server died before die_with_parent took effect
            os.dup2(errors, sys.stderr.fileno())
            self._forget(errors_read, errors)
            status = self._work(task, subject)
        except BaseException:  # noqa: BLE001 also what a handler raises to end the process
            traceback.print_exc()
        finally:
            with suppress(OSError):  # above, it would be taken for a failed fork
                sys.stderr.flush()
            os._exit(status)

    def _forget(self, *descriptors: int) -> None:
        """Close the server's descriptors."""
        self._selector.close()
        self._connection.close()
        for worker in self._workers.values():
            worker.close()
        for descriptor in descriptors:
            os.close(descriptor)


def serve(work: Callable[[Task, str], int]) -> None:
    """Serve the process at the other end of standard input; programs that workers start get an empty one."""
    connection = socket.socket(fileno=os.dup(0))
    empty_descriptors(0, 1)
    # Loaded here once, instead of in each worker.
    import sh  # noqa: F401
    import tenacity  # noqa: F401

    load_schema()
    load_template()
    # So that garbage collection in workers does not copy the memory of what is loaded.
    gc.collect()
    gc.freeze()
    WorkerServer(connection, work).serve()
