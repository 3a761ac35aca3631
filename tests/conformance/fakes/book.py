"""The memory of a fake batch system: every job that it ever took, and all that it was asked.

It remembers what was before the last change, too, so that an answer can be given that is out of date. The test and the
thread that answers commands change it one after another.
"""

import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple

PENDING = "pending"
HELD = "held"
RUNNING = "running"
SUSPENDED = "suspended"
ENDED = "ended"
CANCELLED = "cancelled"
BROKEN = "broken"
"""Ended by the batch system itself: a node died, a prologue failed."""
LOST = "lost"
"""Its id was printed, but there never was such a job."""

LEAVING = "leaving"
"""How one that was cancelled while it ran is shown for a moment; no state of the book."""

FIRST_NUMBER = 101
"""Of several digits, so that a part of a number is another number."""

LIVE = frozenset({PENDING, HELD, RUNNING, SUSPENDED})


class Job(NamedTuple):
    """One local job in the batch system."""

    number: int
    """Of the submission; an array's elements share it."""
    element: int | None
    """Number in its array; None where it was submitted alone."""
    position: int
    """Its place in what was submitted, from 1."""
    token: str
    """Its name."""
    driver: str
    number_in_grid_job: int
    """Which of the grid job's local jobs it is, from 1: what the submission's table says of its position."""
    brings: tuple[str, ...] = ()
    """The files that the batch system carries to it; none where it sees ours."""
    state: str = PENDING
    exit_code: int | None = None
    runs: int = 0
    """How often it was started."""
    appears: float = 0.0
    """When it begins to be there: a submission may come late."""
    gone: float = 0.0
    """When it has ended: one that is cancelled while it runs takes its time."""
    forgotten: bool = False
    """The queue does not show it any more."""
    unrecorded: bool = False
    """The history does not know it."""

    @property
    def is_live(self) -> bool:
        """True while it waits, is held or runs, and nobody has cancelled it."""
        return self.state in LIVE

    @property
    def in_queue(self) -> bool:
        """True where a queue that shows no ended jobs has it."""
        return (self.is_live or self.state == LEAVING) and not self.forgotten

    def seen(self, now: float) -> "Job":
        """As commands show it at that time."""
        return self._replace(state=LEAVING) if self.state == CANCELLED and now < self.gone else self


class Book:
    """Whatever it returns is as it was then; later changes do not touch it."""

    def __init__(self, now: float) -> None:
        self._jobs: list[Job] = []
        self._before: list[Job] = []
        self._next = FIRST_NUMBER
        self._now = now
        self._plan: dict[str, list[str]] = {}
        self._calls: list[list[str]] = []
        self._changing = threading.Lock()
        self.is_down = False
        """True while nobody answers."""

    def now(self) -> float:
        """What time it is for the batch system: only `set_clock` makes it later."""
        return self._now

    def set_clock(self, now: float) -> None:
        """Make it as late as that."""
        self._now = now

    # --- the jobs

    def jobs(self) -> list[Job]:
        """Every job that the batch system ever took."""
        return self._jobs

    def visible(self, is_stale: bool = False) -> list[Job]:
        """Those that any command can see now; where it is stale, as they were before the last change."""
        now = self.now()
        jobs = self._before if is_stale else self._jobs
        return [job.seen(now) for job in jobs if job.state != LOST and job.appears <= now]

    def change(self, change: Callable[[Job], Job]) -> None:
        """Put what the function makes of each job in its place."""
        with self._changing:
            self._before, self._jobs = self._jobs, [change(job) for job in self._jobs]

    def add(self, jobs: Callable[[int], list[Job]]) -> list[Job]:
        """Take what the function makes of the next free number."""
        with self._changing:
            added = jobs(self._next)
            self._next += 1
            self._before, self._jobs = self._jobs, [*self._jobs, *added]
        return added

    def reuse_numbers(self) -> None:
        """Count from the first number again, as after a crash that lost the counter."""
        self._next = FIRST_NUMBER

    # --- the commands

    def note_call(self, kind: str, argv: Sequence[str]) -> str:
        """Write down that a command was run; how it is to misbehave, by the plan."""
        self._calls.append([kind, *argv])
        ways = self._plan.get(kind)
        return ways.pop(0) if ways else "good"

    def plan(self, kind: str, ways: Sequence[str]) -> None:
        """Let the next commands of that kind misbehave, each in one of these ways."""
        self._plan[kind] = list(ways)

    def calls(self) -> list[list[str]]:
        """Kind and argv of every command so far."""
        return list(self._calls)
