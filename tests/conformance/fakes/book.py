"""The memory of a fake batch system: every job that it ever took, and all that it was asked, in files of one folder.

Each change is a new version of the book, so that an answer can be given as it was some changes ago. Every fake command
is a process of its own: dataclasses and pathlib, which take as long to import as all else, are done without.
"""

import fcntl
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

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
    offset: int
    """Argument of the driver."""
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
    def number_in_grid_job(self) -> int:
        """Which of the grid job's local jobs it is, from 1."""
        return self.offset + self.position

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
    """The book in a state folder; any number of processes may use it at once."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def open(self, now: float) -> None:
        """Make an empty book in an empty folder."""
        self._write("book.0", json.dumps({"next": FIRST_NUMBER, "jobs": []}))
        self._write("version", "0")
        self._write("plan", "{}")
        self._write("calls", "")
        self._write("down", "")
        self.set_clock(now)

    def now(self) -> float:
        """What time it is for the batch system: only `set_clock` makes it later."""
        return float(self._read("clock"))

    def set_clock(self, now: float) -> None:
        """Make it as late as that."""
        self._write("clock", f"{now}")

    # --- the jobs

    def jobs(self, changes_ago: int = 0) -> list[Job]:
        """Every job that the batch system ever took, as it was some changes ago."""
        version = max(0, int(self._read("version")) - changes_ago)
        return [Job(*values) for values in json.loads(self._read(f"book.{version}"))["jobs"]]

    def visible(self, changes_ago: int = 0) -> list[Job]:
        """Those that any command can see now."""
        now = self.now()
        return [job.seen(now) for job in self.jobs(changes_ago) if job.state != LOST and job.appears <= now]

    def change(self, change: Callable[[Job], Job]) -> None:
        """Put what the function makes of each job in its place."""
        with self._changing() as content:
            content["jobs"] = [change(Job(*values)) for values in content["jobs"]]

    def add(self, jobs: Callable[[int], list[Job]]) -> list[Job]:
        """Take what the function makes of the next free number."""
        with self._changing() as content:
            added = jobs(content["next"])
            content["next"] += 1
            content["jobs"] += added
        return added

    def reuse_numbers(self) -> None:
        """Count from the first number again, as after a crash that lost the counter."""
        with self._changing() as content:
            content["next"] = FIRST_NUMBER

    # --- the commands

    def note_call(self, kind: str, argv: list[str]) -> str:
        """Write down that a command was run; how it is to misbehave, by the plan."""
        with self._lock():
            with open(f"{self._folder}/calls", "a") as calls:
                calls.write(json.dumps([kind, *argv]) + "\n")
            plan = json.loads(self._read("plan"))
            way: str = plan[kind].pop(0) if plan.get(kind) else "good"
            self._write("plan", json.dumps(plan))
        return way

    def plan(self, kind: str, ways: tuple[str, ...]) -> None:
        """Let the next commands of that kind misbehave, each in one of these ways."""
        self._write("plan", json.dumps({**json.loads(self._read("plan")), kind: ways}))

    def calls(self) -> list[list[str]]:
        """Kind and argv of every command so far."""
        return [json.loads(line) for line in self._read("calls").splitlines()]

    @property
    def is_down(self) -> bool:
        """True while nobody answers."""
        return self._read("down") != ""

    def put_down(self, is_down: bool) -> None:
        """Let nobody answer, or again everybody."""
        self._write("down", "down" if is_down else "")

    # --- the files

    def _read(self, name: str) -> str:
        with open(f"{self._folder}/{name}") as file:
            return file.read()

    def _write(self, name: str, text: str) -> None:
        with open(f"{self._folder}/{name}", "w") as file:
            file.write(text)

    @contextmanager
    def _lock(self) -> Iterator[None]:
        with open(f"{self._folder}/lock", "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    @contextmanager
    def _changing(self) -> Iterator[dict[str, Any]]:
        with self._lock():
            version = int(self._read("version"))
            content = json.loads(self._read(f"book.{version}"))
            yield content
            self._write(f"book.{version + 1}", json.dumps(content))
            self._write("version", str(version + 1))
