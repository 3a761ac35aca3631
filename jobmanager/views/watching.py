"""``samgrid watch``: a grid job's progress until it ends, as bars on a terminal and as plain lines elsewhere."""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

from batch_adapters.states import State
from jobmanager import UserError
from jobmanager.database.database import Overview
from jobmanager.database.grid_jobs import StepLine, find_current_steps
from jobmanager.monitor.client import ask_monitor
from jobmanager.site.account import Account
from jobmanager.views.grid_jobs import render_counts, render_steps, render_title
from jobmanager.views.progress import Progress, estimate_end, read_progress, render_blocked, render_rate, render_silent
from jobmanager.views.text import is_terminal, printable, render_columns, render_duration, terminal_width

if TYPE_CHECKING:  # slow to load, and only terminals have bars
    from rich.console import RenderableType
    from rich.progress import TaskID

DONE, FAILED, CANNOT_GO_ON = 0, 1, 3

_FINAL = (State.DONE.word, State.FAILED.word)
_INTERVAL = 0.5
_ROOMY = 60
"""Columns of a terminal that is wide enough for times and rates beside the bars."""
_PATIENCE = 15.0
"""Seconds for which a problem must last before we give up. The monitor tries again at least once in this time
(`Backoff`), unless the batch system said "not now" (`POSTPONED`)."""


class CannotGoOn(UserError):
    """Something prevents a grid job's progress, and the message says what; nothing is lost."""


@dataclass(frozen=True)
class Snapshot:
    """What to show of a grid job at one moment."""

    row: Overview
    progress: Progress
    when: float
    """Seconds since the epoch."""
    step: str = ""
    """The current step of a structured grid job: counts and progress are those of the step."""
    beside: tuple["Snapshot", ...] = ()
    """Other steps that run in parallel."""

    @property
    def forecast(self) -> list[str]:
        """When it may end, and warnings of blocked and stalled local jobs."""
        end = None if self.row.state in _FINAL else estimate_end(self.progress, self.when)
        words = "" if end is None else f"may end in {render_duration(end - self.when)}"
        return [part for part in (words, *render_blocked(self.progress), render_silent(self.progress)) if part]


def watch_grid_job(account: Account, job_id: str) -> int:
    """Show a grid job until it ends; 0 done, 1 failed, 3 if something has kept it from going on for a while."""
    try:
        with Bars() if can_have_bars() else nullcontext(PlainLines()) as display:
            for snapshot in follow_grid_job(account, job_id):
                display.show(snapshot)
    except CannotGoOn as error:
        print(f"samgrid: {error}", file=sys.stderr)
        print(f'samgrid: nothing is lost; when that is repaired, "samgrid watch {job_id}" goes on', file=sys.stderr)
        return CANNOT_GO_ON
    job = account.database.grid_jobs.get(job_id)
    reason = f": {printable(job.reason)}" if job.reason else ""
    sentence = f"grid job {render_title(job_id, job.name)} {job.outcome or job.state.word}{reason}"
    print(render_columns([[sentence]]), flush=True)
    return DONE if job.state is State.DONE else FAILED


def follow_grid_job(account: Account, job_id: str) -> Iterator[Snapshot]:
    """How things are, again and again; the last one is final.

    :raises CannotGoOn: something has kept the grid job from going on for a while.
    """
    problem_since: float | None = None
    while True:
        began = time.monotonic()
        snapshot = _take_snapshot(account, job_id)
        yield snapshot
        if snapshot.row.state in _FINAL:
            return
        problem = _problem(account, job_id)
        problem_since = (problem_since or time.monotonic()) if problem else None
        if problem_since is not None and time.monotonic() - problem_since > _PATIENCE:
            raise CannotGoOn(f"grid job {job_id} cannot go on: {printable(problem)}")
        # Reading ten thousand local jobs takes time, and must not keep a processor busy.
        time.sleep(max(_INTERVAL, 4 * (time.monotonic() - began)))


def _take_snapshot(account: Account, job_id: str) -> Snapshot:
    (row,) = account.database.grid_jobs.overview(job_id)
    if not row.steps:
        return _take_part(account, row, job_id)
    first, *others = [_take_step(account, row, step) for step in find_current_steps(row.steps)]
    return replace(first, beside=tuple(others))


def _take_step(account: Account, row: Overview, step: StepLine) -> Snapshot:
    part = step.grid_job or row.id
    (of_part,) = account.database.grid_jobs.overview(part)
    words = render_steps(row.steps, [step])
    row = replace(row, counts=of_part.counts, blocked=of_part.blocked, steps=())
    return replace(_take_part(account, row, part), step=words)


def _take_part(account: Account, row: Overview, part: str) -> Snapshot:
    count, now = account.database.grid_jobs.get(part).count, time.time()
    progress = read_progress(account.database, part, count, account.configuration.monitor.stall_time, now)
    return Snapshot(row, progress, now)


def _problem(account: Account, job_id: str) -> str:
    """This grid job's problems, from the monitor itself, which cannot store them if the disk is full."""
    lines = ask_monitor(account).splitlines()
    parts = [step.grid_job for step in account.database.grid_jobs.steps_of(job_id)]
    of_ours = ("monitor:", *(f"{name}:" for name in (job_id, *parts) if name))
    return "; ".join(line.partition(": ")[2] for line in lines if line.startswith(of_ours))


def can_have_bars() -> bool:
    """True if standard output is a terminal that can move its cursor."""
    return is_terminal() and os.environ.get("TERM", "") not in ("", "dumb", "unknown")


class PlainLines:
    """Plain lines, one whenever something has changed."""

    def __init__(self) -> None:
        self._last: set[str] = set()

    def show(self, snapshot: Snapshot) -> None:
        """Print a line, or one for each parallel step, if it differs from the last."""
        self._last = {self._show(one) for one in (snapshot, *snapshot.beside)}

    def _show(self, snapshot: Snapshot) -> str:
        progress = snapshot.progress
        step = f"{snapshot.step}: " if snapshot.step else ""
        total = f" of {progress.local_jobs:,}" if progress.local_jobs else ""
        parts = [f"{snapshot.row.outcome or snapshot.row.state}: {step}{render_counts(snapshot.row)}{total}"]
        parts += [
            f"{phase.name} {phase.done:,}/{phase.expected_total(progress.local_jobs):,} {phase.unit}".rstrip()
            for phase in progress.phases
        ]
        silent = [f"{len(progress.silent):,} silent"] if progress.silent else []
        line = " | ".join([*parts, *render_blocked(progress), *silent])
        # The estimated end changes all the time, which alone is not news.
        if line not in self._last:
            print(" | ".join([*parts, *snapshot.forecast]), flush=True)
        return line


class Bars:
    """A bar for the local jobs that have ended and one per phase; the counts by state and the forecast above."""

    def __init__(self) -> None:
        from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn, TimeElapsedColumn
        from rich.text import Text

        class Shown(Progress):
            """The bars, under words that may need more than a line."""

            words = ""

            def get_renderables(self) -> "Iterator[RenderableType]":
                yield Text(self.words)
                yield self.make_tasks_table(self.tasks)

        columns: list[ProgressColumn] = [TextColumn("{task.description}", markup=False), BarColumn(bar_width=None)]
        columns.append(TextColumn("{task.completed:,.0f}/{task.total:,.0f}"))
        if (terminal_width() or 0) >= _ROOMY:
            columns += [TimeElapsedColumn(), TextColumn("{task.fields[pace]}", markup=False)]
        self._progress = Shown(*columns, expand=True)
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._progress.stop()

    def show(self, snapshot: Snapshot) -> None:
        """Bring the bars up to date."""
        shown = (snapshot, *snapshot.beside)
        self._progress.words = "; ".join(words for one in shown for words in (render_counts(one.row), *one.forecast))
        for one in shown:
            self._show(one)

    def _show(self, snapshot: Snapshot) -> None:
        progress = snapshot.progress
        # A step has its own bars, below those of earlier steps.
        step = snapshot.step.partition(": ")[2].partition(" ")[0]
        self._set(f"{step} local jobs".strip(), progress.ended, progress.local_jobs, "")
        for phase in progress.phases:
            pace = render_rate(phase) or phase.unit
            self._set(f"{step} {phase.name}".strip(), phase.done, phase.expected_total(progress.local_jobs), pace)

    def _set(self, name: str, done: int, total: int, pace: str) -> None:
        if name not in self._tasks:
            self._tasks[name] = self._progress.add_task(name, total=total, pace=pace)
        self._progress.update(self._tasks[name], completed=done, total=total, pace=pace)
