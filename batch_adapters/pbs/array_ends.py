"""Asks a PBS server that keeps a history for the ends of arrays, which its log does not have."""

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

_PATIENCE = 5.0
"""Seconds in which a server without a history logs the end of an array; the first query waits for that."""
_LONGEST_PAUSE = 3600.0
"""Longest pause, in seconds, between two queries for one array; pauses double."""
_TIME_LIMIT = 60.0
_AT_ONCE = 100
_MOST_KNOWN = 1000
_ANSWERED = (0, 153)
"""Exit codes of qstat for an answer; the second: some of the ids are unknown."""


@dataclass
class _Array:
    running: set[bytes] = field(default_factory=set)
    """Its running subjobs, by the log."""
    pause: float = _PATIENCE
    due: float = 0.0
    """When to ask for it, if none runs."""


class ArrayEnds:
    """Tracks which subjobs run, of the latest 1000 arrays; `ask` queries the arrays without running subjobs."""

    def __init__(self) -> None:
        self._arrays: dict[bytes, _Array] = {}
        self._question: _Question | None = None

    def note_start(self, array: bytes, subjob: bytes) -> None:
        found = self._arrays.setdefault(array, _Array())
        found.running.add(subjob)
        found.pause = _PATIENCE
        if len(self._arrays) > _MOST_KNOWN:
            del self._arrays[next(iter(self._arrays))]

    def note_end(self, array: bytes, subjob: bytes) -> None:
        """A subjob has stopped running, for whatever reason."""
        if found := self._arrays.get(array):
            found.running.discard(subjob)
            found.due = time.monotonic() + found.pause

    def forget(self, array: bytes) -> None:
        """The end of an array is known: do not ask for it."""
        self._arrays.pop(array, None)

    def ask(self) -> Sequence[bytes]:
        """The arrays that have ended, by an answer that has come; else start the next query, if it is time.

        Never waits for an answer.
        """
        now = time.monotonic()
        if self._question is None:
            idle = (array for array, found in self._arrays.items() if not found.running and found.due <= now)
            if due := list(islice(idle, _AT_ONCE)):
                self._question = _Question(due)
            return ()
        if not self._question.is_over():
            return ()
        states, asked = self._question.read_states(), self._question.arrays
        self._question = None
        ended = []
        for array in asked:
            found = self._arrays.get(array)
            if found is None or found.running:
                continue  # its end is known, or more of its subjobs have started
            if states is None or (array in states and states[array] != "F"):
                found.pause = min(2 * found.pause, _LONGEST_PAUSE)
                found.due = now + found.pause
                continue
            self.forget(array)
            if array in states:
                ended.append(array)
        return ended


class _Question:
    """One qstat that runs in the background."""

    def __init__(self, arrays: Sequence[bytes]) -> None:
        self.arrays = arrays
        self._began = time.monotonic()
        self._printed = tempfile.TemporaryFile()  # noqa: SIM115 read when qstat has ended
        # Without -E, qstat shows only the first of several ids.
        command = ["qstat", "-x", "-E", "-f", "-F", "json", *map(os.fsdecode, arrays)]
        try:
            self._qstat: subprocess.Popen[bytes] | None = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=self._printed, stderr=subprocess.DEVNULL
            )
        except OSError:  # there is no qstat
            self._qstat = None

    def is_over(self) -> bool:
        if self._qstat is not None and time.monotonic() - self._began > _TIME_LIMIT:
            self._qstat.kill()
        return self._qstat is None or self._qstat.poll() is not None

    def read_states(self) -> Mapping[bytes, str] | None:
        """The state letter of each array that the server knows; None if it did not answer."""
        with self._printed as printed:
            if self._qstat is None or self._qstat.returncode not in _ANSWERED:
                return None
            printed.seek(0)
            try:
                # strict=False: control characters in users' variables are not escaped.
                jobs = json.loads(printed.read().decode(errors="replace") or "{}", strict=False).get("Jobs", {})
                return {os.fsencode(array): str(job.get("job_state")) for array, job in jobs.items()}
            except (ValueError, AttributeError, RecursionError):
                return None
