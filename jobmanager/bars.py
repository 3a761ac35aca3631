"""Progress bars of a grid job on a terminal."""

from typing import Self

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from jobmanager.estimates import render_rate
from jobmanager.listing import render_counts
from jobmanager.watching import Snapshot


class Bars:
    """A bar for the local jobs that have ended and one per phase; the counts by state above."""

    def __init__(self) -> None:
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
