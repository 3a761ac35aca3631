"""A child process of the monitor: its output as it comes, its end as an event of the loop."""

import os
import selectors
import signal
import subprocess
from collections.abc import Callable, Sequence

_BLOCK = 1 << 16
_LONGEST_STDERR = 2000


class Child:
    """A running child; its stdout goes to ``on_output`` in blocks, and the end of its stderr is kept.

    An empty block means that its stdout has ended. It runs in ``/``, in its own session. Its stdin is a pipe that
    closes when we die, so that it notices.
    """

    def __init__(
        self,
        selector: selectors.BaseSelector,
        argv: Sequence[str],
        on_output: Callable[[bytes], None],
        stdin: int = subprocess.PIPE,
    ) -> None:
        """``stdin``: a descriptor to be used as standard input instead of that pipe."""
        self._selector = selector
        self._errors = b""
        self._process = subprocess.Popen(
            argv, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd="/", start_new_session=True
        )
        stdout, stderr = self._process.stdout, self._process.stderr
        assert stdout is not None
        assert stderr is not None
        self._pipes = (stdout, stderr)
        self._pidfd = os.pidfd_open(self._process.pid)
        self._watch(stdout.fileno(), on_output)
        self._watch(stderr.fileno(), self._keep_errors)
        selector.register(self._pidfd, selectors.EVENT_READ, lambda: None)

    @property
    def last_output(self) -> str:
        """The end of what it wrote to stderr."""
        return self._errors.decode(errors="replace").strip()

    def exit_status(self) -> int | None:
        """None while it runs; then, once, its exit status, after all of its output has been handed over."""
        status = self._process.poll()
        if status is not None:
            self._drain()
            self._close()
        return status

    def let_go_on(self) -> bool:
        """Let it go on if a signal has stopped it; true if one had."""
        return let_go_on(self._pidfd)

    def kill(self) -> None:
        """Kill it and its children now; unread output is lost."""
        self._kill()
        self._close()

    def end(self) -> int:
        """Kill it and its children, unless it has ended; its exit status, as from `exit_status`."""
        self._kill()
        self._drain()
        self._close()
        return self._process.returncode

    def _kill(self) -> None:
        if self._process.poll() is None:
            try:
                os.killpg(self._process.pid, signal.SIGKILL)
            except PermissionError:
                # It runs as another user, through sudo: it ends when its input ends.
                if self._process.stdin is not None:
                    self._process.stdin.close()
                    return
                raise
        self._process.wait()

    def _drain(self) -> None:
        for pipe in self._pipes:
            key = self._selector.get_map().get(pipe.fileno())
            while key is not None and key.data():
                pass

    def _close(self) -> None:
        for pipe in self._pipes:
            # Still registered if a grandchild holds the other end.
            if pipe.fileno() in self._selector.get_map():
                self._selector.unregister(pipe)
            pipe.close()
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._selector.unregister(self._pidfd)
        os.close(self._pidfd)

    def _watch(self, descriptor: int, take: Callable[[bytes], None]) -> None:
        os.set_blocking(descriptor, False)

        def read() -> bool:
            """Read one block; False at the end, or if there is nothing to read now."""
            try:
                block = os.read(descriptor, _BLOCK)
            except BlockingIOError:
                return False
            if not block:
                self._selector.unregister(descriptor)
            take(block)
            return bool(block)

        self._selector.register(descriptor, selectors.EVENT_READ, read)

    def _keep_errors(self, block: bytes) -> None:
        self._errors = (self._errors + block)[-_LONGEST_STDERR:]


def let_go_on(child: int) -> bool:
    """Let a child (its pidfd) go on if a signal has stopped it since the last call; true if one had."""
    try:
        if os.waitid(os.P_PIDFD, child, os.WSTOPPED | os.WNOHANG) is None:
            return False
        signal.pidfd_send_signal(child, signal.SIGCONT)
    except (ChildProcessError, PermissionError):  # it has ended; it runs as another user, through sudo
        return False
    return True
