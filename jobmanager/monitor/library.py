"""The job state monitor as a library: reports state changes of registered local jobs to a listener.

It needs no account and no database, only a generator: ours, Globus' own, or any program that prints 001 lines.
"""

import logging
import os
import re
import selectors
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Generic, Protocol, Self, TypeVar

from batch_adapters.states import Event, State
from jobmanager.monitor.generators import Generator, Replays
from sandbox.files import replace_file

logger = logging.getLogger(__name__)

_LOOK = 1.0
"""Seconds between two checks of the generator when nothing happens."""
_UPKEEP = 10.0
"""Seconds between two updates of the state file, each of which goes through all kept events."""

Key = TypeVar("Key")
ListenerKey = TypeVar("ListenerKey", contravariant=True)


class AlreadyRegistered(ValueError):
    """A local id has a key; unregister it before it gets another one."""


class NotRegistered(LookupError):
    """A local id has no key, or not any more."""


class JobStateMonitorListener(Protocol[ListenerKey]):
    """Receives state changes; all calls come from the monitor's own thread, one after another."""

    def job_state_changed(self, key: ListenerKey, timestamp: int, state: State, exit_code: int) -> None:
        """A job changed its state at a second since 1970; the exit code is valid for DONE and FAILED only."""


class Registry(Generic[Key]):
    """The keys of local ids, and events to be delivered now or when their id gets a key; thread-safe."""

    def __init__(self, cache_time: float) -> None:
        """``cache_time``: seconds for which events of ids without a key are kept."""
        self._lock = threading.Lock()
        self._cache_time = cache_time
        self._keys: dict[str, Key] = {}
        self._next: deque[Event] = deque()
        self._kept: dict[str, list[tuple[float, Event]]] = {}

    def register(self, local_id: str, key: Key, now: float) -> None:
        """Give an id a key; the events kept for it are delivered next.

        :raises AlreadyRegistered: it has one.
        """
        with self._lock:
            if local_id in self._keys:
                raise AlreadyRegistered(f"{local_id} is registered already: unregister it first")
            self._keys[local_id] = key
            kept = [event for received, event in self._kept.pop(local_id, ()) if received > now - self._cache_time]
            self._next.extendleft(reversed(kept))

    def unregister(self, local_id: str) -> None:
        """Take an id's key away; raises NotRegistered: it has none."""
        with self._lock:
            if local_id not in self._keys:
                raise NotRegistered(f"{local_id} is not registered")
            del self._keys[local_id]

    def put(self, events: Iterable[Event]) -> None:
        """Queue events for delivery."""
        with self._lock:
            self._next.extend(events)

    def take(self, now: float) -> tuple[Key, Event] | None:
        """The next event whose id has a key; earlier ones, whose ids have none, are kept."""
        with self._lock:
            while self._next:
                event = self._next.popleft()
                if event.local_id in self._keys:
                    return self._keys[event.local_id], event
                self._kept.setdefault(event.local_id, []).append((now, event))
        return None

    def forget_old(self, now: float) -> int | None:
        """Forget events that were kept long enough; the oldest time of those that are still to be delivered, if any."""
        with self._lock:
            fresh = {
                local_id: [(received, event) for received, event in kept if received > now - self._cache_time]
                for local_id, kept in self._kept.items()
            }
            self._kept = {local_id: kept for local_id, kept in fresh.items() if kept}
            stamps = [event.timestamp for kept in self._kept.values() for _, event in kept]
            return min([*stamps, *(event.timestamp for event in self._next)], default=None)


def read_start_time(path: Path | None) -> int | None:
    """The second, since 1970, from which the generator must start; None if there is no such file.

    :raises OSError: the file cannot be read.
    :raises ValueError: it holds no time.
    """
    if path is None or not path.exists():
        return None
    text = path.read_text("ascii", errors="replace")
    if not re.fullmatch(r"\d{1,12}\n?", text, re.ASCII):
        raise ValueError(f"{path} holds no time in seconds since 1970: remove it to start from now")
    return int(text)


class _Wakeup:
    """Wakes the selecting thread from another thread."""

    def __init__(self, selector: selectors.BaseSelector) -> None:
        self._lock = threading.Lock()
        self._fd: int | None = (fd := os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC))
        selector.register(fd, selectors.EVENT_READ, lambda: os.eventfd_read(fd))

    def set(self) -> bool:
        """False if it is closed."""
        with self._lock:
            if self._fd is not None:
                os.eventfd_write(self._fd, 1)
            return self._fd is not None

    def close(self) -> None:
        """Stop waking."""
        with self._lock:
            if self._fd is not None:
                os.close(self._fd)
            self._fd = None


class JobStateMonitor(Generic[Key]):
    """Supervises one generator and delivers the events of registered local ids to a listener, in their order.

    Events of other ids are kept for a while, and delivered when their id is registered. One object delivers each event
    once, however often its generator is restarted. The state file holds the second from which the next object must
    replay; that one delivers the last minute again for ids that are registered again.
    """

    def __init__(
        self,
        generator_command: Sequence[str] | Callable[[int], Sequence[str]],
        listener: JobStateMonitorListener[Key],
        *,
        state_file: Path | None = None,
        cache_time: float = 3600.0,
    ) -> None:
        """Start the generator, from the second in the state file or, where there is none, from now.

        The command gets ``-t SECOND`` as its last arguments, or is a function of that second; it runs in ``/``.
        ``cache_time`` is in seconds.

        :raises OSError: the generator cannot be started, or the state file be neither read nor written.
        :raises ValueError: the state file holds no time.
        """
        self._command = generator_command
        self._listener = listener
        self._registry = Registry[Key](cache_time)
        self._state_file = state_file and state_file.absolute()
        self._written: int | None = None
        now, since = int(time.time()), read_start_time(self._state_file)
        self._replays = Replays(now if since is None else min(since, now))
        self._write_start_time(self._replays.start_time)
        self._selector = selectors.DefaultSelector()
        self._generator = Generator("of the job state monitor", self._selector, self._find_command, self._take)
        self._is_closing = False
        self._next_upkeep = 0.0
        self._wakeup = _Wakeup(self._selector)
        self._thread = threading.Thread(target=self._run, name="job state monitor", daemon=True)
        self._start()

    def register(self, local_id: str, key: Key) -> None:
        """Report a local job to the listener under a key, its kept events first; returns at once.

        :raises AlreadyRegistered: the id has a key.
        :raises RuntimeError: the monitor is closed.
        """
        self._registry.register(local_id, key, time.monotonic())
        if not self._wakeup.set():
            raise RuntimeError(f"nothing will be heard of {local_id}: the job state monitor is closed")

    def unregister(self, local_id: str) -> None:
        """Stop reporting a local job; a call that is under way may still end.

        :raises NotRegistered: the id has no key.
        """
        self._registry.unregister(local_id)

    def close(self) -> None:
        """End the thread (after a call that is under way) and the generator; the listener may call this, too."""
        self._is_closing = True
        self._wakeup.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self) -> None:
        try:
            self._generator.start()
        except BaseException:
            self._release()
            raise
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._is_closing:
                for key, _ in self._selector.select(_LOOK):
                    key.data()
                self._deliver()
                self._generator.supervise()
                self._generator.keep_running()
                if time.monotonic() >= self._next_upkeep:
                    self._keep_up()
        except Exception:
            logger.exception("the job state monitor ends, nothing will be heard of any job")
        finally:
            self._generator.stop()
            self._keep_up()
            self._release()

    def _release(self) -> None:
        self._wakeup.close()
        self._selector.close()

    def _find_command(self) -> Sequence[str]:
        since = self._replays.restart()
        return self._command(since) if callable(self._command) else [*self._command, "-t", str(since)]

    def _take(self, events: list[Event]) -> None:
        self._registry.put(self._replays.read_news(events, int(time.time())))
        # Here, so that the listener's time does not count as the generator's silence.
        self._deliver()

    def _deliver(self) -> None:
        # No lock is held during a call, so that the listener may register and unregister ids.
        while not self._is_closing and (due := self._registry.take(time.monotonic())):
            key, event = due
            try:
                self._listener.job_state_changed(key, event.timestamp, event.state, event.exit_code)
            except Exception:
                logger.exception("%s: the listener failed on %s", event.local_id, event.state.word)

    def _keep_up(self) -> None:
        self._next_upkeep = time.monotonic() + _UPKEEP
        oldest = self._registry.forget_old(time.monotonic())
        start_time = self._replays.start_time
        try:
            self._write_start_time(start_time if oldest is None else min(start_time, oldest))
        except OSError as error:
            # Only the next replay is longer.
            logger.warning("the time to start from stays as it was written: %s", error)

    def _write_start_time(self, start_time: int) -> None:
        if self._state_file is not None and start_time != self._written:
            replace_file(self._state_file, f"{start_time}\n".encode())
            self._written = start_time
