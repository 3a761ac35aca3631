"""An end to what an experiment's code does, however long it would go on by itself."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class TooLong(BaseException):
    """A handler has not come to an end; no code that catches every `Exception` catches this."""


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise `TooLong` inside the block when so many seconds are over; in a process's main thread only."""

    def give_up(number: int, frame: FrameType | None) -> None:
        raise TooLong(f"no end after {seconds:.0f} s")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
