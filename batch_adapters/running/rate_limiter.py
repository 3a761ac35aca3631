"""Limits how often one account runs batch commands: some per minute, with pauses during an outage.

All processes of the account share a small locked file beside the job database. If it is lost or damaged, counting
starts anew.
"""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from batch_adapters.adapter import Postponed
from batch_adapters.running.backoff import pause_after
from sandbox.files import locked, read_regular

MINUTE = 60.0
PATIENCE = 20.0
"""Longest wait of a command for its turn, in seconds."""
TRIES = 3
"""Commands without an answer in a row before the pauses begin."""
FIRST_PAUSE = 5.0
_LATEST = 1e11
"""Latest time in seconds since 1970 that is believed."""


class RateLimited(Postponed):
    """The command was not run, to spare the batch system."""


@dataclass(frozen=True)
class Outage:
    """A batch system that does not answer."""

    since: float
    """When the first command got no answer, in seconds since 1970."""
    words: str
    """The error of the last command."""
    next_try: float
    """When the next command may be run, in seconds since 1970."""


@dataclass
class _State:
    asked: list[float] = field(default_factory=list)
    tries: int = 0
    since: float = 0.0
    words: str = ""
    next_try: float = 0.0
    last_try: float = 0.0


class RateLimiter:
    """Limits how often one account runs commands of one batch system."""

    def __init__(self, file: Path, per_minute: int, longest_pause: float = 300.0) -> None:
        """``per_minute``: commands, 0: no limit; ``longest_pause`` in seconds."""
        self._file = file
        self._per_minute = per_minute
        self._longest_pause = longest_pause
        self._news = 0.0

    def hurry(self, news: float) -> None:
        """Skip the pause if no command was run since the second ``news``, in which something happened."""
        self._news = max(self._news, news)

    def acquire(self) -> None:
        """Wait until a command may be run, and count it.

        :raises RateLimited: it may not be run: there is an outage, or too many commands were run in the last minute.
        """
        if not self._per_minute:
            return
        deadline = time.time() + PATIENCE
        while wait := self._take_turn():
            if time.time() + wait > deadline:
                raise RateLimited(f"held back: {self._per_minute} commands a minute (commands_per_minute) are used up")
            time.sleep(wait)

    def _take_turn(self) -> float:
        """Seconds until the next turn; 0: it was taken."""
        with self._changing() as state:
            # Read after locking: turns that others took meanwhile would seem to be in the future.
            now = time.time()
            if state.tries >= TRIES:
                # If the clock was set back, the pause must not last until it has caught up.
                is_pause = now < state.next_try <= now + self._longest_pause
                if is_pause and not state.last_try < self._news:
                    raise RateLimited(_describe(state))
                # One process tries; the others wait for its result.
                state.next_try, state.last_try = now + self._pause(state.tries), now
            state.asked = [asked for asked in state.asked if 0 <= now - asked < MINUTE]
            if len(state.asked) < self._per_minute:
                state.asked.append(now)
                return 0.0
            return state.asked[0] + MINUTE - now

    def note_answer(self) -> None:
        """Note that the batch system has answered, with whatever result."""
        if self._per_minute and self.outage() is not None:
            with self._changing() as state:
                state.tries = 0

    def note_outage(self, words: str) -> None:
        """Note that a command got no answer."""
        if not self._per_minute:
            return
        with self._changing() as state:
            now = time.time()
            state.since = state.since if state.tries else now
            state.tries += 1
            state.words = words
            state.next_try, state.last_try = now + self._pause(state.tries), now

    def outage(self) -> Outage | None:
        """The outage, if there is one."""
        state = self._read_state()
        return Outage(state.since, state.words, state.next_try) if state.tries else None

    def count_commands(self, now: float) -> int:
        """The number of commands in the last minute; 0 if there is no limit, as they are not counted."""
        return sum(0 <= now - asked < MINUTE for asked in self._read_state().asked)

    def _read_state(self) -> _State:
        try:
            return _read(read_regular(self._file))
        except OSError:
            return _State()

    def _pause(self, tries: int) -> float:
        """Seconds to wait after a number of commands without an answer."""
        return pause_after(tries - TRIES + 1, FIRST_PAUSE, self._longest_pause)

    @contextmanager
    def _changing(self) -> Iterator[_State]:
        with locked(self._file, wait=True):
            state = _read(read_regular(self._file))
            yield state
            self._file.write_text(json.dumps(asdict(state)))


def _describe(state: _State) -> str:
    since, until = (time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(when)) for when in (state.since, state.next_try))
    return f"no answer since {since}, asked again at {until}: {state.words}"


def _read(data: bytes) -> _State:
    """The state in a file; an empty one if the file is damaged."""
    try:
        state = _State(**json.loads(data))
        numbers = (*state.asked, state.tries, state.since, state.next_try, state.last_try)
        is_sound = all(type(number) in (int, float) and 0 <= number < _LATEST for number in numbers)
    except (ValueError, TypeError, RecursionError):
        return _State()
    return state if is_sound and isinstance(state.words, str) and isinstance(state.asked, list) else _State()
