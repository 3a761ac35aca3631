"""An end to what an experiment's code does, however long it would go on, or how often it would end its process."""

import faulthandler
import os
import re
import signal
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import FrameType

from jobmanager.requests.job_types import HandlerError, TooLong
from jobmanager.site.account import Account
from sandbox.files import open_own, read_regular

MOST_HANGS = 3
"""How often a grid job's handler is asked that does not come to an end."""
MOST_DEATHS = 20
"""How often one is asked with which its process ends: others may have ended that, for want of memory or to restart."""
_GRACE = 5.0
"""Seconds for code that was told to give up."""
_SHOWN_CALLS = 3
_STDERR = 2
_CALL = re.compile(r'  File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.*)')
"""A line of a stack as faulthandler writes it, the innermost call first."""


class HandlerHung(HandlerError):
    """A handler has not come to an end; the message says where it was."""


@contextmanager
def limited(seconds: float, record: int = _STDERR) -> Iterator[None]:
    """End the block when so many seconds are over, of 0 never; where there is an end, in a process's main thread only.

    Code that does not hear of it (a library in C, a loop that catches everything) ends with the process, some seconds
    later: its stack goes to the descriptor ``record``.

    :raises HandlerHung: the block was ended.
    """

    if not seconds:
        yield
        return

    def give_up(number: int, frame: FrameType | None) -> None:
        raise TooLong(f"no end after {seconds:g} s: {_find_place(frame)}")

    try:
        before = signal.signal(signal.SIGALRM, give_up)
        faulthandler.dump_traceback_later(seconds + _GRACE, exit=True, file=record)
        signal.setitimer(signal.ITIMER_REAL, seconds)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            faulthandler.cancel_dump_traceback_later()
            signal.signal(signal.SIGALRM, before)
    except TooLong as error:
        raise HandlerHung(str(error)) from error


def _find_place(frame: FrameType | None) -> str:
    """The innermost calls; a handler may hang in a library's code."""
    # The innermost comes first; no source is read, which may be on a slow disk.
    calls = islice(traceback.walk_stack(frame), _SHOWN_CALLS)
    return _render_calls((call.f_code.co_filename, str(line), call.f_code.co_name) for call, line in calls)


def _render_calls(calls: "Iterator[tuple[str, str, str]]") -> str:
    return ", called by ".join(f"{function} ({file}, line {line})" for file, line, function in calls)


@dataclass(frozen=True)
class Asking:
    """The questions of one kind to one grid job's handler, and how often it hung, or its process died, over them.

    Kept in files of the grid job's folder, because whoever asks may end with the handler. One process asks at a time.
    """

    asked: Path
    """There while the handler is asked; with its stack in it where the process had to be ended."""
    hung: Path
    """A line for each time that it did not come to an end."""
    died: Path
    """A byte for each time that its process ended by itself, or was ended by others."""
    seconds: float

    @contextmanager
    def limited(self) -> Iterator[None]:
        """Ask in the block.

        :raises HandlerHung: the block was ended, which is written down.
        """
        self.asked.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._note_end()
        record = open_own(self.asked, os.O_TRUNC)
        try:
            with limited(self.seconds, record):
                yield
        except HandlerHung as error:
            self._note(str(error))
            raise
        finally:
            os.close(record)
            self.asked.unlink(missing_ok=True)
        self.hung.unlink(missing_ok=True)
        self.died.unlink(missing_ok=True)

    def find_hangs(self) -> list[str]:
        """Where it was each time, up to the last time that it came to an end."""
        self._note_end()
        return _read(self.hung).splitlines()

    def count_deaths(self) -> int:
        """How often the process that asked has ended, since it last came to an end."""
        self._note_end()
        return len(_read(self.died))

    def _note_end(self) -> None:
        """Note what the process of whoever asked before has left behind, if it ended meanwhile."""
        if not self.asked.exists():
            return
        if stack := _read(self.asked):
            self._note_stack(stack)
        else:
            _append(self.died, ".")
        self.asked.unlink()

    def _note_stack(self, stack: str) -> None:
        found = [match for line in stack.splitlines() if (match := _CALL.match(line))]
        calls = ((match["file"], match["line"], match["function"]) for match in found[:_SHOWN_CALLS])
        self._note(f"no end after {self.seconds:g} s, and its process had to be ended: {_render_calls(calls)}")

    def _note(self, sentence: str) -> None:
        _append(self.hung, f"{' '.join(sentence.split())}\n")


def _read(file: Path) -> str:
    """What a file says, if it is there."""
    try:
        return read_regular(file).decode(errors="replace")
    except FileNotFoundError:
        return ""


def _append(file: Path, text: str) -> None:
    with open(open_own(file, os.O_APPEND), "a", encoding="utf-8", errors="replace") as stream:
        stream.write(text)


def asking(account: Account, grid_job: str, what: str) -> Asking:
    """The questions of a kind to a grid job's handler; ``what`` is one of `places.QUESTIONS`."""
    places = account.places
    seconds = account.configuration.handlers.time_limit
    asked, hung = places.handler_asked(grid_job, what), places.handler_hung(grid_job, what)
    return Asking(asked, hung, places.handler_died(grid_job, what), seconds)
