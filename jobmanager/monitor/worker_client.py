"""The monitor's side of the workers' server: starts it, asks it for workers, hears how they end."""

import itertools
import logging
import selectors
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from jobmanager.monitor.child import Child
from jobmanager.monitor.workers import TRY_LATER
from jobmanager.site.account import Account
from jobmanager.states.aggregation import Task

logger = logging.getLogger(__name__)

_BLOCK = 1 << 16


@dataclass
class ForkedWorker:
    """A worker of the server's; ``kill`` ends it at once, with what it has started."""

    kill: Callable[[], None]
    last_words: str = ""
    """The end of what it wrote to stderr."""
    status: int | None = None

    def exit_status(self) -> int | None:
        """None while it runs."""
        return self.status


class WorkerClient:
    """One server, started when a worker is first needed, and again when it has died: its workers die with it.

    Its selector's callback hears it; the other methods are never called from within a callback.
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
        """A new worker; where the server dies at once, one that has ended with what the server had to say.

        :raises OSError: the server cannot be started.
        """
        number = next(self._numbers)
        message = f"start {number} {task} {subject}".encode()
        is_sent = self._send(message)
        if not is_sent:  # it had died since it was last heard of
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
        """Notice that the server ended: how its workers ended is known from then on."""
        if self._has_ended:
            self._lose_server()

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
            self._selector.register(ours, selectors.EVENT_READ, self._hear)
        return self._connection

    def _hear(self) -> None:
        assert self._connection is not None
        try:
            message = self._connection.recv(_BLOCK)
        except ConnectionResetError:
            message = b""
        if not message:
            # What else of it the loop has found readable is not to be closed yet.
            self._has_ended = True
            return
        number, status, words = message.split(b" ", 2)
        # One that was killed is not waited for any more.
        worker = self._workers.pop(int(number), None)
        if worker is not None:
            worker.status, worker.last_words = int(status), words.decode(errors="replace").strip()

    def _kill(self, number: int) -> None:
        if self._workers.pop(number, None) is None or self._connection is None:
            return
        with suppress(BrokenPipeError, ConnectionResetError):  # it has died with its server
            self._connection.send(f"kill {number}".encode())

    def _lose_server(self) -> None:
        """Close what there is of a server, and tell of its workers that they died with it."""
        assert self._server is not None
        assert self._connection is not None
        self._selector.unregister(self._connection)
        self._connection.close()
        status = self._server.end()
        reason = f"the workers' server ended with status {status}: {self._server.last_words}".rstrip(": ")
        self._server = self._connection = None
        self._has_ended = False
        for worker in self._workers.values():
            worker.status, worker.last_words = TRY_LATER, reason
        if self._workers:
            logger.warning("%s", reason)
        self._workers.clear()
