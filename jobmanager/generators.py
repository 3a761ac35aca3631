"""The monitor's generators: one per batch system in use, started again from the persistent time when one dies."""

import logging
import selectors
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from batch_adapters.states import Event, read_event
from jobmanager.account import Account, launch
from jobmanager.child import Backoff, Child
from jobmanager.submission import find_batch_system

logger = logging.getLogger(__name__)

_OVERLAP = 60
"""Seconds that a generator replays at its start: a log may be out of order, and what was applied changes nothing."""


@dataclass
class _Generator:
    """One batch system's generator; ``torn`` is the beginning of a line of which the rest has not come."""

    batch: str
    child: Child | None = None
    torn: bytes = b""
    backoff: Backoff = field(default_factory=Backoff)


class Generators:
    """Keeps the generators running and hands their events over, batch by batch."""

    def __init__(
        self, account: Account, selector: selectors.BaseSelector, apply: Callable[[str, list[Event]], None]
    ) -> None:
        self._account = account
        self._selector = selector
        self._apply = apply
        self._generators: dict[str, _Generator] = {}

    def start(self, batch: str) -> None:
        """Have a generator for that batch system, from now on."""
        generator = self._generators.setdefault(batch, _Generator(batch))
        if generator.child is not None or not generator.backoff.allows(time.monotonic()):
            return
        since = max(0, (self._account.database.generator_time(batch) or 0) - _OVERLAP)
        log = find_batch_system(self._account, batch).event_log
        command = launch("samgrid-scheduler-event-generator", "-s", batch, "-t", str(since), "-l", log)
        generator.torn = b""
        generator.child = Child(self._selector, command, lambda block: self._take(generator, block))
        generator.backoff.wait(time.monotonic())
        logger.info("generator %s starts from %d", batch, since)

    def supervise(self) -> None:
        """Notice the generators that ended; `start` starts them again, later each time."""
        for generator in self._generators.values():
            status = generator.child.exit_status() if generator.child else None
            if generator.child is not None and status is not None:
                logger.warning(
                    "generator %s ended with status %d: %s", generator.batch, status, generator.child.last_words
                )
                generator.child = None

    def stop(self) -> None:
        """End all generators; where one is started again, it replays what could not be applied."""
        for generator in self._generators.values():
            if generator.child is not None:
                generator.child.kill()
                generator.child = None

    def _take(self, generator: _Generator, block: bytes) -> None:
        *lines, generator.torn = (generator.torn + block).split(b"\n")
        events = []
        for line in lines:
            event = read_event(line.decode(errors="replace"))
            if event is None:
                logger.warning("generator %s printed %r", generator.batch, line[:200])
            else:
                events.append(event)
        if events:
            self._apply(generator.batch, events)
