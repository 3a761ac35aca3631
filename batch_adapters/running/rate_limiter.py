"""Keeps one account from hammering a head node: so many commands a minute, and pauses while nobody answers.

All processes of the account share what is known, in a small file beside the job database, under its lock. The file may
be lost or torn at any time: then nothing is known of the last minute.
"""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from batch_adapters.adapter import Postponed
from batch_adapters.running.backoff import pause_after
from sandbox.files import locked

MINUTE = 60.0
PATIENCE = 20.0
"""Seconds that a command waits for its turn at most."""
TRIES = 3
"""Commands without an answer, one after another, before the pauses begin."""
FIRST_PAUSE = 5.0
_LATEST = 1e11
"""Seconds since 1970, of a time that can be shown."""


class RateLimited(Postponed):
    """The command was not run, to spare the batch system; nothing has happened."""


@dataclass(frozen=True)
class Outage:
    """A batch system that does not answer."""

    since: float
    """Seconds since 1970 of the first question without an answer."""
    words: str
    """What came instead of an answer."""
    next_try: float
    """When it may be asked again."""


@dataclass
class _State:
    asked: list[float] = field(default_factory=list)
    tries: int = 0
    since: float = 0.0
    words: str = ""
    next_try: float = 0.0
    last_try: float = 0.0


class RateLimiter:
    """Limits how often one account asks one batch system."""

    def __init__(self, file: Path, per_minute: int, longest_pause: float = 300.0) -> None:
        """``per_minute`` 0: no limit at all, for a batch system that is a part of this machine; in seconds."""
        self._file = file
        self._per_minute = per_minute
        self._longest_pause = longest_pause
        self._news = 0.0

    def hurry(self, news: float) -> None:
        """Do not wait for the end of a pause where nobody has asked since that second: there is news since."""
        self._news = news

    def acquire(self) -> None:
        """Wait until a command may be run, and count it.

        :raises RateLimited: it may not: the batch system is silent, or the account has had its share for long enough.
        """
        if not self._per_minute:
            return
        deadline = time.time() + PATIENCE
        while wait := self._take_turn():
            if time.time() + wait > deadline:
                raise RateLimited(f"held back: {self._per_minute} commands a minute (commands_per_minute) are used up")
            time.sleep(wait)

    def _take_turn(self) -> float:
        """Seconds until the next turn; 0 where it was taken."""
        with self._changing() as state:
            # Not before the lock is ours: turns that others took meanwhile would seem to be of the future.
            now = time.time()
            if state.tries >= TRIES:
                # A clock that was set back must not block us until it has caught up.
                is_pause = now < state.next_try <= now + self._longest_pause
                if is_pause and not state.last_try < self._news:
                    raise RateLimited(_describe(state))
                # One asks; all others wait for what becomes of it.
                state.next_try, state.last_try = now + self._pause(state.tries), now
            state.asked = [asked for asked in state.asked if 0 <= now - asked < MINUTE]
            if len(state.asked) < self._per_minute:
                state.asked.append(now)
                return 0.0
            return state.asked[0] + MINUTE - now

    def note_answer(self) -> None:
        """The batch system has answered, whatever it said."""
        if self._per_minute and self.outage() is not None:
            with self._changing() as state:
                state.tries = 0

    def note_outage(self, words: str) -> None:
        """A command was not answered."""
        if not self._per_minute:
            return
        with self._changing() as state:
            now = time.time()
            state.since = state.since if state.tries else now
            state.tries += 1
            state.words = words
            state.next_try, state.last_try = now + self._pause(state.tries), now

    def outage(self) -> Outage | None:
        """Since when the batch system does not answer, if it does not."""
        state = self._look()
        return Outage(state.since, state.words, state.next_try) if state.tries else None

    def count_commands(self, now: float) -> int:
        """How many commands were run in the last minute; of one without a limit nobody counts them."""
        return sum(0 <= now - asked < MINUTE for asked in self._look().asked)

    def _look(self) -> _State:
        try:
            return _read(self._file.read_bytes())
        except FileNotFoundError:
            return _State()

    def _pause(self, tries: int) -> float:
        """Seconds between questions to a batch system that has left so many unanswered."""
        return pause_after(tries - TRIES + 1, FIRST_PAUSE, self._longest_pause)

    @contextmanager
    def _changing(self) -> Iterator[_State]:
        with locked(self._file, wait=True):
            state = _read(self._file.read_bytes())
            yield state
            self._file.write_text(json.dumps(asdict(state)))


def _describe(state: _State) -> str:
    since, until = (time.strftime("%H:%M:%S", time.localtime(when)) for when in (state.since, state.next_try))
    return f"no answer since {since}, asked again at {until}: {state.words}"


def _read(data: bytes) -> _State:
    """What a file says; of one that is damaged, nothing."""
    try:
        state = _State(**json.loads(data))
        numbers = (*state.asked, state.tries, state.since, state.next_try, state.last_try)
        is_sound = all(type(number) in (int, float) and 0 <= number < _LATEST for number in numbers)
    except (ValueError, TypeError, RecursionError):
        return _State()
    return state if is_sound and isinstance(state.words, str) and isinstance(state.asked, list) else _State()
