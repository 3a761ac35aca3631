"""Waits for the end of processes that need not be our children, for the starter's words, and for whoever wakes us."""

import os
import select
from pathlib import Path

from batch_adapters.fork.processes import Process, is_alive


class Watch:
    """The processes we wait for, by the local ids of their jobs, and the descriptors by which we are told of others."""

    def __init__(self, wake: Path) -> None:
        # Open for writing too: a FIFO whose last writer has left would be readable for ever.
        self.wake = os.open(wake, os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW)
        self._local_ids: dict[int, str] = {}
        self._poll = select.epoll()
        self.listen(self.wake)

    def listen(self, descriptor: int) -> None:
        """Wait for words from it, too; closing it is the end of that."""
        self._poll.register(descriptor, select.EPOLLIN)

    def __contains__(self, local_id: str) -> bool:
        return local_id in self._local_ids.values()

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

    def wait(self, seconds: float) -> tuple[set[int], list[str]]:
        """Wait at most so long; the descriptors with words for us, and the local ids whose processes have ended."""
        ready = {descriptor for descriptor, _ in self._poll.poll(max(0.0, seconds))}
        if self.wake in ready:
            os.read(self.wake, 65536)
        ended = ready & self._local_ids.keys()
        return ready - ended, [self._remove(pidfd) for pidfd in ended]

    def _remove(self, pidfd: int) -> str:
        self._poll.unregister(pidfd)
        os.close(pidfd)
        return self._local_ids.pop(pidfd)

    def close(self) -> None:
        """Wait for nothing any more."""
        for pidfd in list(self._local_ids):
            self._remove(pidfd)
        self._poll.close()
        os.close(self.wake)
