"""The generator as a process: waiting, going to the background, pid file, signals."""

import contextlib
import fcntl
import gc
import logging
import os
import select
import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from sandbox.files import empty_descriptors, kept_open, take_lock


def spare_time_on_memory() -> None:
    """Adapt memory to one block of a log after another, or a long log takes 4 % more time (20 % for LSF's)."""
    # glibc keeps the memory of one block for the next (mallopt(3): M_MMAP_THRESHOLD): the size of a large piece that is
    # freed becomes the threshold; its pages are never touched.
    bytes(16 << 20)
    # Cycles, of which there are none, are looked for only when there are far more objects than the events of a block.
    gc.set_threshold(100_000)


def hold_folder(path: Path) -> None:
    """Lock a folder, so that `is_held` is True for it until this process ends."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    with contextlib.suppress(OSError):  # a file system without locks
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)


def is_held(path: Path) -> bool | None:
    """Whether a generator of this host writes into the folder now; None if that cannot be found out."""
    with kept_open(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as fd:
        try:
            return not take_lock(fd)
        except OSError:
            return None


def run_in_background(pid_file: Path | None, keep_output: bool) -> None:
    """Continue in a child with its own session; the calling process ends when the pid file is written.

    :raises OSError: the pid file cannot be written; no child is left.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child:
        os.close(reader)
        with kept_open(writer):
            if pid_file is not None:
                write_pid_file(pid_file, child)
            os.write(writer, b"g")
        os._exit(0)
    os.close(writer)
    # End of file without a byte: the pid file could not be written.
    if not os.read(reader, 1):
        os._exit(1)
    os.close(reader)
    os.setsid()
    os.chdir("/")
    empty_descriptors(*((0, 2) if keep_output else (0, 1, 2)))


def write_pid_file(path: Path, pid: int) -> None:
    """Replace the file's content by the process id and a newline.

    :raises OSError: it cannot be written, or is a symbolic link.
    """
    with kept_open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)) as fd:
        os.write(fd, b"%d\n" % pid)


def remove_pid_file(path: Path) -> None:
    """Remove the file if it still has our process id."""
    with contextlib.suppress(FileNotFoundError):
        if path.read_text(errors="replace").strip() == str(os.getpid()):
            path.unlink()


def leave_on_signals() -> None:
    """Have SIGTERM and SIGINT end the program by SystemExit, so that its pid file is removed."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _leave)


def _leave(number: int, frame: FrameType | None) -> None:
    del frame
    raise SystemExit(128 + number)


if TYPE_CHECKING:
    from inotify_simple import INotify

logger = logging.getLogger(__name__)

# inotify(7)
_MODIFY = 0x2
# IN_CREATE, IN_MOVED_TO, IN_MOVED_FROM, IN_DELETE, IN_DELETE_SELF, IN_MOVE_SELF
_NAMES_CHANGED = 0x100 | 0x80 | 0x40 | 0x200 | 0x400 | 0x800
_BROKEN = select.POLLERR | select.POLLHUP | select.POLLNVAL
_PAUSE, _LONG_PAUSE = 0.02, 0.1
"""Seconds from one look to the next: what many jobs tell in quick succession is read, and applied, together."""
_STREAM = 10
"""After so many looks in a row that had not to wait for news, the pauses are long ones until one has to."""


class InputEnded(Exception):
    """Standard input has ended: events are no longer wanted."""


class Watch:
    """Waits for changes of logs, input and output. Standard input and output may be None: not watched."""

    def __init__(
        self,
        folders: Iterable[Path],
        stdin: int | None,
        stdout: int | None,
        take_input: Callable[[bytes], None] = lambda data: None,
    ) -> None:
        """``take_input`` is called with data from standard input, in pieces of any length."""
        self._take_input = take_input
        self._folders = tuple(folders)
        self._stdin = stdin
        self._stdout = stdout
        self._started = False
        self._inotify: INotify | None = None
        self._next_look = 0.0
        self._last_look = 0.0
        self._busy_looks = 0
        self._waiting = select.poll()
        self._writing = select.poll()
        if stdin is not None:
            self._waiting.register(stdin, select.POLLIN)
            self._writing.register(stdin, select.POLLIN)
        if stdout is not None:
            # No events: only that the reader has gone, which poll always reports.
            self._waiting.register(stdout, 0)
            self._writing.register(stdout, select.POLLOUT)

    def _start(self) -> None:
        self._started = True
        self._inotify = _open_inotify()
        if self._inotify is not None:
            self._waiting.register(self._inotify.fileno(), select.POLLIN)
        self._watch_folders()

    def _watch_folders(self) -> None:
        if self._inotify is None:
            return
        for folder in self._folders:
            try:
                self._inotify.add_watch(folder, _MODIFY | _NAMES_CHANGED)
            except OSError as error:
                # It does not exist yet, or may not be listed: the timer tries again.
                logger.debug("%s: no inotify: %s", folder, error)

    def wait(self, seconds: float) -> bool:
        """Wait for a change, or for the time to pass; True if files may have appeared or gone, and not only grown.

        The first call does not wait, but starts to watch: so the log is first read without inotify, which takes longer
        to load than the rest of the program.

        :raises InputEnded: standard input has ended.
        :raises BrokenPipeError: nobody reads standard output any more.
        """
        if not self._started:
            self._start()
            self._next_look = time.monotonic() + seconds
            self.check()
            return True
        ready = self._waiting.poll(max(0.0, seconds) * 1000)
        pause = _PAUSE if self._busy_looks < _STREAM else _LONG_PAUSE
        rest = max(0.0, self._last_look + pause - time.monotonic())
        self._busy_looks = self._busy_looks + 1 if rest else 0
        time.sleep(rest)
        self._last_look = time.monotonic()
        self._check(ready)
        names_changed = self._read_news()
        if not ready or names_changed or time.monotonic() >= self._next_look:
            self._next_look = time.monotonic() + seconds
            # Folders may have been made, or replaced.
            self._watch_folders()
            return True
        return False

    def check(self) -> None:
        """Check input and output without waiting; raises as `wait` does."""
        self._check(self._writing.poll(0))

    def wait_for_room(self) -> None:
        """Wait until standard output takes PIPE_BUF bytes at once; raises as `wait` does."""
        only_room = [(self._stdout, select.POLLOUT)]
        while (ready := self._writing.poll()) != only_room:
            self._check(ready)

    def _check(self, ready: list[tuple[int, int]]) -> None:
        for fd, events in ready:
            if fd == self._stdin:
                data = b"" if events & select.POLLNVAL else os.read(fd, 65_536)
                if not data:
                    raise InputEnded
                self._take_input(data)
            if fd == self._stdout and events & _BROKEN:
                raise BrokenPipeError

    def _read_news(self) -> bool:
        if self._inotify is None:
            return False
        return any(news.mask & ~_MODIFY for news in self._inotify.read(timeout=0))


def _open_inotify() -> "INotify | None":
    from inotify_simple import INotify

    try:
        return INotify()
    except OSError as error:
        logger.warning("inotify is not to be had (%s): only the timer looks for news", error)
        return None
