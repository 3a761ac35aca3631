"""Waits for what other processes do."""

import os
import selectors
import time
from collections.abc import Callable
from pathlib import Path

SECONDS = 600.0
"""Longer than anything takes that will happen at all: there is no other limit in the tests."""
_OFTEN = 0.01
_SELDOM = 5.0


def wait_until(is_so: Callable[[], bool], what: str = "it did not happen") -> None:
    """Return as soon as something is so; the test fails where it is not so in time.

    To ask takes a tenth of the time at most, so that what is waited for is not kept from happening.
    """
    deadline = time.monotonic() + SECONDS
    while True:
        asked = time.monotonic()
        if is_so():
            return
        now = time.monotonic()
        assert now < deadline, f"not within {SECONDS:.0f} s: {what}"
        time.sleep(min(max(_OFTEN, 9 * (now - asked)), _SELDOM))


def turn_until(
    selector: selectors.BaseSelector, is_so: Callable[[], bool], each_turn: Callable[[], object] = lambda: None
) -> None:
    """Be the monitor's loop, and do something at each of its turns, until something is so."""
    deadline = time.monotonic() + SECONDS
    while not is_so():
        assert time.monotonic() < deadline, f"it did not happen within {SECONDS} seconds"
        for key, _ in selector.select(_OFTEN):
            key.data()
        each_turn()


def is_gone(pid: int) -> bool:
    """True where there is no such process, or a zombie only."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


class Gate:
    """Programs that open its path to read from it wait until the gate is open."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._writer: int | None = None
        os.mkfifo(path)

    def open(self) -> None:
        """Let go who waits, and whoever comes."""
        if self._writer is None:
            self._writer = os.open(self.path, os.O_RDWR)

    def close(self) -> None:
        """Keep nobody waiting any more, and hold nothing open."""
        self.open()
        # Whoever comes from now on finds a file that needs no writer.
        free = self.path.with_name(f"{self.path.name}-open")
        free.touch()
        free.replace(self.path)
        if self._writer is not None:
            os.close(self._writer)
            self._writer = None
