"""Tells open pages that something has changed, as server-sent events."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress

from jobmanager.database.database import DatabaseError

Mark = tuple[object, ...]
"""What changes whenever a page would."""

MOST_LISTENERS = 64
HEARTBEAT = 15.0
"""Seconds between two signs of life: so a lost connection is noticed, by both sides."""
_LOOK = 0.5
"""Seconds between two looks at the database."""


class Changes:
    """Looks at the database for all open pages at once, while there are any."""

    def __init__(self, read_version: Callable[[], int]) -> None:
        """``read_version`` gives another number after every commit of anybody; it must be quick."""
        self._read_version = read_version
        self._version = 0
        self._listeners = 0
        self._changed = asyncio.Event()
        self._has_ended = False

    async def watch(self) -> None:
        """Look again and again, until cancelled."""
        while True:
            if self._listeners:
                with suppress(DatabaseError):  # there is nothing to tell of: the page itself will say so
                    self._note(self._read_version())
            await asyncio.sleep(_LOOK)

    def _note(self, version: int) -> None:
        if version != self._version:
            self._version = version
            self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def end(self) -> None:
        """End all streams: the server is going to end."""
        self._has_ended = True
        self._wake()

    @property
    def has_room(self) -> bool:
        """True while another page can be told."""
        return self._listeners < MOST_LISTENERS

    async def stream(self, read_mark: Callable[[], Mark], interval: float | None = None) -> AsyncIterator[bytes]:
        """The text of an event stream: an event at once, and one whenever the mark is another.

        :param interval: seconds until the mark is read again where nothing was committed; else those of a heartbeat.
        """
        if not self.has_room:  # a burst of pages, all of which were still to be counted
            yield b"retry: 30000\n\n"
            return
        self._listeners += 1
        try:
            yield b"retry: 2000\n\n"
            told: Mark | None = None
            while not self._has_ended:
                seen = self._version
                mark = await asyncio.to_thread(read_mark)
                yield b"event: change\ndata:\n\n" if mark != told else b": still here\n\n"
                told = mark
                await self._wait_for_another(seen, interval or HEARTBEAT)
        finally:
            self._listeners -= 1

    async def _wait_for_another(self, version: int, interval: float) -> None:
        """Until something is committed, the server ends, or the next sign of life is due."""
        if self._version == version and not self._has_ended:
            with suppress(TimeoutError):
                async with asyncio.timeout(interval):
                    await self._changed.wait()
