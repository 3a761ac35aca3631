"""Waits for the end of processes that need not be our children, and for whoever wakes us."""

import os
import select
from pathlib import Path

from batch_adapters.fork.processes import Process, is_alive


class Watch:
    """The processes we wait for, by the local ids of their jobs, and the FIFO by which we are woken."""

    def __init__(self, wake: Path) -> None:
        # Open for writing too: a FIFO whose last writer has left would be readable for ever.
        self._wake = os.open(wake, os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW)
        self._local_ids: dict[int, str] = {}
        self._poll = select.epoll()
        self._poll.register(self._wake, select.EPOLLIN)

    def add(self, local_id: str, process: Process) -> bool:
        """Wait for the end of this process from now on; False where it has ended."""
        try:
            pidfd = os.pidfd_open(process.pid)
        except ProcessLookupError:
            return False
        # The descriptor holds on to one process; only now can we ask which one it got.
        if not is_alive(process):
            os.close(pidfd)
            return False
        self._poll.register(pidfd, select.EPOLLIN)
        self._local_ids[pidfd] = local_id
        return True

    def wait(self, seconds: float) -> tuple[bool, list[str]]:
        """Wait at most so long; the result: whether somebody woke us, and the local ids whose processes have ended."""
        ready = {descriptor for descriptor, _ in self._poll.poll(max(0.0, seconds))}
        woken = self._wake in ready
        if woken:
            os.read(self._wake, 65536)
        return woken, [self._remove(pidfd) for pidfd in ready - {self._wake}]

    def _remove(self, pidfd: int) -> str:
        self._poll.unregister(pidfd)
        os.close(pidfd)
        return self._local_ids.pop(pidfd)

    def close(self) -> None:
        """Wait for nothing any more."""
        for pidfd in list(self._local_ids):
            self._remove(pidfd)
        self._poll.close()
        os.close(self._wake)
