"""Supervises event generators: starts each from a given time, and again when it dies, hangs or prints garbage."""

import json
import logging
import selectors
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from batch_adapters.launch import command_line
from batch_adapters.registry import UnknownBatchSystem
from batch_adapters.running.backoff import Backoff
from batch_adapters.states import Event, read_event
from jobmanager import render_error
from jobmanager.monitor.child import Child
from jobmanager.site.account import Account, find_batch_system, limiter_file
from jobmanager.site.settings import EventSource
from sandbox.files import replace_file

logger = logging.getLogger(__name__)

OVERLAP = 60
"""Seconds that a generator replays at its start, because logs may be out of order; replayed events change nothing."""
_LONGEST_SILENCE = 3600.0
"""Seconds without output after which a generator is restarted (far longer than reading any log takes)."""
_DYING_TIME = 5.0
"""Seconds that a process may live after the end of its output."""
_MOST_GARBAGE = 100
"""Malformed lines in a row after which a generator is restarted."""
_LONGEST_LINE = 4096
"""Bytes; an event has at most 160."""


class EventLines:
    """Reads the events that one generator process prints, in blocks; lines may be torn or malformed."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._torn = b""
        self._in_a_row = 0
        self.malformed = 0
        self.is_garbage = False
        """True once too many lines were malformed; nothing more is read then."""

    def read_events(self, block: bytes) -> list[Event]:
        """The events of all complete lines; malformed lines are counted, and the first one is logged."""
        if self.is_garbage:
            return []
        *lines, self._torn = (self._torn + block).split(b"\n")
        events = []
        for line in lines:
            event = read_event(line.decode(errors="replace"))
            if event is not None:
                self._in_a_row = 0
                events.append(event)
            elif self._is_too_much(line):
                return events
        if len(self._torn) > _LONGEST_LINE:
            self._is_too_much(self._torn)
            self.is_garbage = True
        return events

    def _is_too_much(self, line: bytes) -> bool:
        if not self.malformed:
            logger.warning("generator %s printed %r, which is no event", self._name, line[:200])
        self.malformed += 1
        self._in_a_row += 1
        self.is_garbage = self._in_a_row >= _MOST_GARBAGE
        return self.is_garbage


class Replays:
    """Filters out events that a restarted generator repeats.

    It repeats all events from a second on, in the same order. So the n-th occurrence of an event is new if it occurred
    less than n times before the restart: equal events of one second (suspended, resumed, suspended) all get through.
    """

    def __init__(self, since: int) -> None:
        """``since``: the second, since 1970, from which the first run of the generator starts."""
        self._first = since
        self._newest = since
        self._has_run = False
        self._asked_from = 0
        self._forgotten = since
        self._known: Counter[Event] = Counter()
        self._run: Counter[Event] = Counter()

    @property
    def start_time(self) -> int:
        """The second from which a generator must start to miss nothing."""
        return max(self._first, self._newest - OVERLAP)

    def restart(self) -> int:
        """Note that a generator starts; the second from which."""
        # Events from before the start of a later run are known, and forgotten here.
        self._asked_from = self.start_time if self._has_run else 0
        self._has_run = True
        self._run.clear()
        return self.start_time

    def read_news(self, events: Iterable[Event], now: int) -> list[Event]:
        """The new ones of these events; ``now`` is in seconds since 1970."""
        news = []
        for event in events:
            self._run[event] += 1
            if event.timestamp < self._asked_from or self._run[event] <= self._known[event]:
                continue
            self._known[event] += 1
            # An event from the future must not make the next run start there.
            self._newest = max(self._newest, min(event.timestamp, now))
            news.append(event)
        self._forget_old()
        return news

    def _forget_old(self) -> None:
        # A replay is complete before new events come, so both counts can be reduced together.
        if self.start_time >= self._forgotten + OVERLAP:
            self._forgotten = self.start_time
            self._known = Counter({event: n for event, n in self._known.items() if event.timestamp >= self._forgotten})
            self._run = Counter({event: n for event, n in self._run.items() if event.timestamp >= self._forgotten})


class Generator:
    """One generator, kept running; its events are handed over in batches.

    Its output is read in the selector's callbacks. `supervise` and `keep_running` are called about every second,
    outside of callbacks. A back-off keeps it from being started more often than every 10 s for long.

    A generator that hangs looks like one whose log has no news. So one that has been silent for too long is restarted:
    nothing is lost after a hang, and otherwise only some seconds are replayed.
    """

    def __init__(
        self,
        name: str,
        selector: selectors.BaseSelector,
        find_command: Callable[[], Sequence[str]],
        apply: Callable[[list[Event]], None],
    ) -> None:
        """``find_command`` is called before each start."""
        self._name = name
        self._selector = selector
        self._find_command = find_command
        self._apply = apply
        self._backoff = Backoff()
        self._child: Child | None = None
        self._lines = EventLines(name)
        self._output_ended = False
        self._heard = 0.0
        self.problem = ""
        """Why it cannot be started; empty if it can."""
        self.death = ""
        """How it ended, until it is started again; meanwhile, states come from the queue."""

    def start(self) -> None:
        """Start it now; raises OSError: its program cannot be started."""
        command = self._find_command()
        self._backoff.wait(time.monotonic())
        logger.debug("generator %s: %s", self._name, command)
        self._lines = EventLines(self._name)
        self._output_ended = False
        self._heard = time.monotonic()
        self._child = Child(self._selector, command, self._take)
        self.problem = self.death = ""

    def keep_running(self) -> None:
        """Start it if it does not run and its back-off is over."""
        if self._child is not None or not self._backoff.allows(time.monotonic()):
            return
        try:
            self.start()
        except (OSError, UnknownBatchSystem) as error:
            why = render_error(error)
            logger.warning("generator %s cannot be started, trying again later: %s", self._name, why)
            self.problem = f"no events of {self._name}: {why}"

    def supervise(self) -> None:
        """Notice that it has ended; end it if it is useless."""
        if self._child is None:
            return
        status = self._child.exit_status()
        if status is not None:
            words = self._child.last_output
            self._child = None
            self.death = ": ".join([f"generator {self._name} ended with status {status}", *words.splitlines()[-1:]])
            logger.warning(
                "generator %s ended with status %d after %d malformed lines: %s",
                *(self._name, status, self._lines.malformed, words),
            )
        elif self._lines.is_garbage:
            self._end(logging.WARNING, f"prints garbage ({self._lines.malformed} malformed lines)")
        elif self._output_ended and self._silent_for() > _DYING_TIME:
            self._end(logging.WARNING, "has closed its output")
        elif self._silent_for() > _LONGEST_SILENCE:
            self._end(logging.INFO, f"has said nothing for {self._silent_for():.0f} s: perhaps it hangs")
        elif self._child.let_go_on():
            logger.warning("generator %s was stopped by a signal, and is let go on", self._name)

    def stop(self) -> None:
        """End it; after the next start it replays what was not applied."""
        if self._child is not None:
            self._child.kill()
            self._child = None

    def _silent_for(self) -> float:
        return time.monotonic() - self._heard

    def _end(self, level: int, reason: str) -> None:
        words = self._child.last_output if self._child else ""
        logger.log(level, "generator %s is restarted: it %s %s", self._name, reason, words)
        if level >= logging.WARNING:
            self.death = f"generator {self._name} {reason}"
        self.stop()

    def _take(self, block: bytes) -> None:
        events = self._lines.read_events(block)
        if events:
            self._apply(events)
        # Set last, because applying events is not the generator's silence.
        self._heard = time.monotonic()
        self._output_ended = not block


class Generators:
    """The monitor's generators, one for each batch system in use, each started from the committed time."""

    def __init__(
        self, account: Account, selector: selectors.BaseSelector, apply: Callable[[str, list[Event]], None]
    ) -> None:
        self._account = account
        self._selector = selector
        self._apply = apply
        self._generators: dict[str, Generator] = {}

    def start(self, batch: str) -> None:
        """Keep a generator for that batch system running from now on."""
        if batch not in self._generators:
            self._generators[batch] = Generator(
                batch, self._selector, lambda: self._find_command(batch), lambda events: self._apply(batch, events)
            )
        self._generators[batch].keep_running()

    def supervise(self) -> None:
        """Notice generators that have ended, and end useless ones; `start` starts them again after a back-off."""
        for generator in self._generators.values():
            generator.supervise()

    def problem(self) -> str:
        """Why generators cannot be started; empty if all can."""
        return "; ".join(generator.problem for generator in self._generators.values() if generator.problem)

    def deaths(self) -> list[str]:
        """How those ended that will be started again."""
        return [generator.death for generator in self._generators.values() if generator.death]

    def stop(self) -> None:
        """End all generators; after the next start they replay what was not applied."""
        for generator in self._generators.values():
            generator.stop()

    def _find_command(self, batch: str) -> list[str]:
        committed = self._account.database.events.generator_time(batch) or 0
        # If the clock was set back, new events have earlier times than the last one. (-t 0 means now.)
        since = max(1, min(committed, int(time.time())) - OVERLAP)
        module, path = self._find_source(batch)
        logger.info("generator %s reads %s from %d", batch, path, since)
        log = ("-l", str(path)) if path else ()
        program = command_line("samgrid-scheduler-event-generator", "-s", module, "-t", str(since), *log)
        return [*self._account.configuration.find_events(batch).prefix, *program]

    def _find_source(self, batch: str) -> tuple[str, Path | str]:
        """The generator's module for a batch system, and what it reads."""
        settings = self._account.configuration.find_events(batch)
        system = find_batch_system(self._account, batch)
        if settings.source is EventSource.DAY_FILES:
            if settings.path is None or not settings.path.is_dir():
                raise FileNotFoundError(f"configuration [events] path: {settings.path} is no folder of day files")
            return "events", settings.path
        if settings.source is EventSource.POLL or not system.adapter.event_module:
            return "poll", self._write_question(batch)
        # With a prefix we may not be allowed to look.
        if settings.path is not None and not settings.prefix and not settings.path.exists():
            raise FileNotFoundError(f"configuration [events] path: there is no {settings.path}")
        return system.adapter.event_module, settings.path or system.event_log

    def _write_question(self, batch: str) -> Path:
        """Write what the poll module has to ask into a file, because everybody can read a command line."""
        path = self._account.places.root / f"poll-{batch}.json"
        question = {
            "batch_system": batch,
            "tables": self._account.configuration.batch,
            "limiter": str(limiter_file(self._account, batch)),
            "variables": self._account.batch_variables(),
            "interval": self._account.configuration.monitor.reconcile_interval,
        }
        replace_file(path, json.dumps(question).encode(), is_lasting=False)
        return path
