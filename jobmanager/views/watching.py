"""``samgrid watch``: a grid job's progress until it ends, as bars on a terminal and as plain lines elsewhere."""

import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol, Self

from batch_adapters.states import State
from jobmanager.database.database import Database, Overview
from jobmanager.monitor.client import ask_monitor
from jobmanager.site.account import Account
from jobmanager.views.grid_jobs import find_running_step, render_counts, render_step, render_title
from jobmanager.views.progress import Course, estimate_end, read_course, render_blocked, render_rate, render_silent
from jobmanager.views.text import printable, render_duration

if TYPE_CHECKING:  # slow to load, and only terminals have bars
    from rich.progress import TaskID

DONE, FAILED, CANNOT_GO_ON = 0, 1, 3

_FINAL = (State.DONE.word, State.FAILED.word)
_INTERVAL = 0.5
_PATIENCE = 15.0
"""Seconds that a problem lasts before we stop waiting: the monitor tries again in them at least once (`Backoff`), but
for a batch system that said "not now" (`POSTPONED`)."""


@dataclass(frozen=True)
class Snapshot:
    """What there is to show of a grid job at one moment."""

    row: Overview
    course: Course
    when: float
    """Seconds since the epoch."""
    stall_time: float
    step: str = ""
    """The step that a structured grid job has come to: counts and course are the step's."""

    @property
    def outlook(self) -> list[str]:
        """When it may end, and a warning of local jobs that have stalled, as far as there is anything to say."""
        end = None if self.row.state in _FINAL else estimate_end(self.course, self.when)
        words = "" if end is None else f"may end in {render_duration(end - self.when)}"
        return [
            part for part in (words, *render_blocked(self.course), render_silent(self.course, self.stall_time)) if part
        ]


class Display(Protocol):
    """Something that shows snapshots."""

    def show(self, snapshot: Snapshot) -> None:
        """Show how things are now."""


def watch_grid_job(account: Account, job_id: str) -> int:
    """Show a grid job until it ends; 0 done, 1 failed, 3 if something has kept it from going on for a while."""
    problem_since: float | None = None
    with _display() as display:
        for snapshot in _snapshots(account, job_id):
            display.show(snapshot)
            problem = "" if snapshot.row.state in _FINAL else _problem(account, job_id)
            problem_since = (problem_since or time.monotonic()) if problem else None
            if problem_since is not None and time.monotonic() - problem_since > _PATIENCE:
                break
    if problem:
        print(f"samgrid: grid job {job_id} cannot go on: {printable(problem)}", file=sys.stderr)
        print(f'samgrid: nothing is lost; when that is repaired, "samgrid watch {job_id}" goes on', file=sys.stderr)
        return CANNOT_GO_ON
    job = account.database.grid_jobs.get(job_id)
    reason = f": {printable(job.reason)}" if job.reason else ""
    print(f"grid job {render_title(job_id, job.name)} {job.outcome or job.state.word}{reason}", flush=True)
    return DONE if job.state is State.DONE else FAILED


def _snapshots(account: Account, job_id: str) -> Iterator[Snapshot]:
    """How things are, again and again; the last one is final."""
    stall_time = account.configuration.monitor.stall_time
    while True:
        began = time.monotonic()
        snapshot = _take_snapshot(account.database, job_id, stall_time)
        yield snapshot
        if snapshot.row.state in _FINAL:
            return
        # A look at ten thousand local jobs costs something: it shall not keep a processor busy.
        time.sleep(max(_INTERVAL, 4 * (time.monotonic() - began)))


def _take_snapshot(database: Database, job_id: str, stall_time: float) -> Snapshot:
    (row,) = database.grid_jobs.overview(job_id)
    part = find_running_step(row.steps) or job_id
    step = ""
    if row.steps:
        (of_part,) = database.grid_jobs.overview(part)
        step = render_step(row.steps)
        row = replace(row, counts=of_part.counts, blocked=of_part.blocked, steps=())
    now = time.time()
    course = read_course(database, part, database.grid_jobs.get(part).count, stall_time, now)
    return Snapshot(row, course, now, stall_time, step)


def _problem(account: Account, job_id: str) -> str:
    """What keeps this grid job from going on, from the monitor itself: it knows more than a full disk can hold."""
    lines = ask_monitor(account).splitlines()
    parts = [step.grid_job for step in account.database.grid_jobs.steps(job_id).get(job_id, ())]
    of_ours = ("monitor:", *(f"{name}:" for name in (job_id, *parts) if name))
    return "; ".join(line.partition(": ")[2] for line in lines if line.startswith(of_ours))


def _display() -> AbstractContextManager[Display]:
    if sys.stdout.isatty():
        return Bars()
    return nullcontext(PlainLines())


class PlainLines:
    """Plain lines, one whenever something has changed."""

    def __init__(self) -> None:
        self._last = ""

    def show(self, snapshot: Snapshot) -> None:
        """Print a line if it differs from the last."""
        course = snapshot.course
        step = f"{snapshot.step}: " if snapshot.step else ""
        total = f" of {course.local_jobs}" if course.local_jobs else ""
        parts = [f"{snapshot.row.outcome or snapshot.row.state}: {step}{render_counts(snapshot.row)}{total}"]
        parts += [
            f"{phase.name} {phase.done}/{phase.expected_total(course.local_jobs)} {phase.unit}".rstrip()
            for phase in course.phases
        ]
        line = " | ".join([*parts, f"{len(course.silent)} silent"] if course.silent else parts)
        # When it may end changes all the time: that alone is no news.
        if line != self._last:
            print(" | ".join([*parts, *snapshot.outlook]), flush=True)
            self._last = line


class Bars:
    """A bar for the local jobs that have ended and one per phase; the counts by state above."""

    def __init__(self) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        self._progress = Progress(
            TextColumn("{task.description:<14}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[unit]}"),
        )
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._progress.stop()

    def show(self, snapshot: Snapshot) -> None:
        """Bring the bars up to date."""
        course = snapshot.course
        # A step has bars of its own, below those of the steps before.
        step = snapshot.step.partition(": ")[2].partition(" ")[0]
        counts = "; ".join([render_counts(snapshot.row), *snapshot.outlook])
        self._set(f"{step} local jobs".strip(), course.ended, course.local_jobs, counts)
        for phase in course.phases:
            pace = render_rate(phase) or phase.unit
            self._set(phase.name, phase.done, phase.expected_total(course.local_jobs), pace)

    def _set(self, name: str, done: int, total: int, unit: str) -> None:
        if name not in self._tasks:
            self._tasks[name] = self._progress.add_task(name, total=total, unit=unit)
        self._progress.update(self._tasks[name], completed=done, total=total, unit=unit)
