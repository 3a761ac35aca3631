"""The submissions that have not ended: which of their jobs wait, which have ended."""

import logging
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from batch_adapters.fork.records import read_local_id, write_events
from batch_adapters.fork.spool import (
    Spool,
    SpoolError,
    has_ended,
    read_claimed,
    read_stored_submission,
    read_tokens,
    write_marker,
)
from batch_adapters.fork.submission import Submission, render_local_id
from batch_adapters.states import Event, State

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Array:
    """One submission: the indices still to be started, those found claimed and still to be watched, those ended."""

    submission: Submission
    waiting: deque[int]
    claimed: deque[int]
    ended: set[int] = field(default_factory=set)

    def read_next(self) -> int | None:
        """The next index to start; it stays the next one until it is taken from `waiting`."""
        while self.waiting and self.waiting[0] in self.ended:
            self.waiting.popleft()
        return self.waiting[0] if self.waiting else None


class Arrays:
    """All submissions of a spool that have not ended, in the order in which they were made."""

    def __init__(self, spool: Spool) -> None:
        self._spool = spool
        self._arrays: dict[str, Array] = {}
        self._unreadable: set[str] = set()

    def __bool__(self) -> bool:
        return bool(self._arrays)

    def __iter__(self) -> Iterator[Array]:
        return iter(self._arrays.values())

    @property
    def unreadable(self) -> frozenset[str]:
        """The tokens that are left alone, since their submissions cannot be read."""
        return frozenset(self._unreadable)

    def read_new(self) -> list[Array]:
        """The submissions that have come since we looked last."""
        new = read_tokens(self._spool) - self._arrays.keys() - self._unreadable
        found = [self._read_array(token) for token in new if not has_ended(self._spool, token)]
        return sorted((array for array in found if array), key=lambda array: array.submission.submitted)

    def _read_array(self, token: str) -> Array | None:
        try:
            submission = read_stored_submission(self._spool, token)
        except SpoolError as error:
            log.warning("%s is left alone: %s", token, error)
            submission = None
        if submission is None:
            self._unreadable.add(token)
            return None
        claimed = read_claimed(self._spool, token)
        waiting = deque(index for index in submission.indices if index not in claimed)
        return Array(submission, waiting, deque(sorted(claimed.intersection(submission.indices))))

    def take_in(self, array: Array) -> None:
        """Serve a submission from now on; its PENDING events are written unless they have been."""
        token = array.submission.token
        announced = self._spool.jobs / token / "announced"
        if not announced.exists():
            now = int(time.time())
            events = (Event(now, render_local_id(token, index), State.PENDING) for index in array.waiting)
            write_events(self._spool.events, events)
            write_marker(announced)
        self._arrays[token] = array

    def read_next(self) -> tuple[Array, int] | None:
        """The next job to start, or None where none waits."""
        for array in self._arrays.values():
            index = array.read_next()
            if index is not None:
                return array, index
        return None

    def find(self, local_id: str) -> Array | None:
        """The submission of a job that has not ended, or None."""
        place = read_local_id(local_id)
        array = None if place is None else self._arrays.get(place[0])
        if place is None or array is None or place[1] not in array.submission.indices or place[1] in array.ended:
            return None
        return array

    def write_end(self, token: str, index: int) -> None:
        """Note that a job's end is recorded; the last one ends its submission."""
        array = self._arrays[token]
        array.ended.add(index)
        (self._spool.cancel / render_local_id(token, index)).unlink(missing_ok=True)
        if len(array.ended) == len(array.submission.indices):
            write_marker(self._spool.jobs / token / "ended")
            del self._arrays[token]
