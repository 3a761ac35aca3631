"""Announces changes to open pages, as server-sent events."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress

Mark = tuple[object, ...]
"""A value that changes whenever a page would."""

MOST_LISTENERS = 64
HEARTBEAT = 15.0
"""Seconds between two heartbeats, by which both sides notice a lost connection."""
_LOOK = 0.5
"""Seconds between two checks of the database."""


class Changes:
    """Watches the database for all open pages together."""

    def __init__(self, read_version: Callable[[], object]) -> None:
        """``read_version`` gives another value after every commit by any process; it must be fast."""
        self._read_version = read_version
        self._version: object = ()
        self._listeners = 0
        self._changed = asyncio.Event()
        self._has_ended = False

    async def watch(self) -> None:
        """Watch until cancelled."""
        while True:
            if self._listeners:
                with suppress(OSError):  # the page itself will show the error
                    self._note(self._read_version())
            await asyncio.sleep(_LOOK)

    def _note(self, version: object) -> None:
        if version != self._version:
            self._version = version
            self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def end(self) -> None:
        """End all streams, because the server is ending."""
        self._has_ended = True
        self._wake()

    @property
    def has_room(self) -> bool:
        """True if another page can be served."""
        return self._listeners < MOST_LISTENERS

    async def stream(self, read_mark: Callable[[], Mark], interval: float | None = None) -> AsyncIterator[bytes]:
        """The text of an event stream: an event at the beginning, and one whenever the mark changes.

        :param interval: seconds after which the mark is read again without a commit; by default, those of a heartbeat.
        """
        if not self.has_room:  # many pages were opened at once, before they were counted
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

    async def _wait_for_another(self, version: object, interval: float) -> None:
        """Wait for a commit, the server's end, or the next heartbeat."""
        if self._version == version and not self._has_ended:
            with suppress(TimeoutError):
                async with asyncio.timeout(interval):
                    await self._changed.wait()
