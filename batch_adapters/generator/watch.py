"""Waits until something happens: a log's folder changes, the timer runs out, or whoever started us is gone."""

import logging
import os
import select
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from inotify_simple import INotify

logger = logging.getLogger(__name__)

# inotify(7)
_MODIFY = 0x2
# IN_CREATE, IN_MOVED_TO, IN_MOVED_FROM, IN_DELETE, IN_DELETE_SELF, IN_MOVE_SELF
_NAMES_CHANGED = 0x100 | 0x80 | 0x40 | 0x200 | 0x400 | 0x800
_BROKEN = select.POLLERR | select.POLLHUP | select.POLLNVAL


class InputEnded(Exception):
    """Standard input reached its end: nobody wants our events any more."""


class Watch:
    """The generator's only place to wait. Standard input and output may each be None: not watched."""

    def __init__(
        self,
        folders: Iterable[Path],
        stdin: int | None,
        stdout: int | None,
        take_input: Callable[[bytes], None] = lambda data: None,
    ) -> None:
        """``take_input`` gets what comes on standard input, in pieces of any length."""
        self._take_input = take_input
        self._folders = tuple(folders)
        self._stdin = stdin
        self._stdout = stdout
        self._started = False
        self._inotify: INotify | None = None
        self._next_look = 0.0
        self._waiting = select.poll()
        self._writing = select.poll()
        if stdin is not None:
            self._waiting.register(stdin, select.POLLIN)
            self._writing.register(stdin, select.POLLIN)
        if stdout is not None:
            # No event asked for: only that the reader is gone, which is reported in any case.
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
                # It is not there yet, or we may not list it: the timer looks again.
                logger.debug("%s: no inotify: %s", folder, error)

    def wait(self, seconds: float) -> bool:
        """Wait for news or for the time; whether files may have come or gone, and not only grown.

        The first time it does not wait, because nobody has watched so far: what is there before can be read without,
        and inotify takes longer to load than the rest of the program.

        :raises InputEnded: standard input has reached its end.
        :raises BrokenPipeError: nobody reads standard output any more.
        """
        if not self._started:
            self._start()
            self._next_look = time.monotonic() + seconds
            self.check()
            return True
        ready = self._waiting.poll(max(0.0, seconds) * 1000)
        self._check(ready)
        names_changed = self._read_news()
        if not ready or names_changed or time.monotonic() >= self._next_look:
            self._next_look = time.monotonic() + seconds
            # Folders may be new, or others under the same name.
            self._watch_folders()
            return True
        return False

    def check(self) -> None:
        """Only see whether we are still wanted; raises as `wait` does."""
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
