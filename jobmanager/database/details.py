"""What one local job may have several of: phases and earlier attempts. Their tables are derived from its document."""

from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING

from jobmanager.database.sqlite import Store, Table

if TYPE_CHECKING:  # lists and counts are read without XML
    from jobmanager.database.local_job import LocalJob


def column_of(attribute: str, kind: str = "TEXT") -> tuple[str, Callable[["LocalJob"], object]]:
    """A column with the text of an XML attribute; reading it through `Field` would be slower."""
    return kind, lambda job: job.element.get(attribute)


PHASES = Table(
    "phase",
    {"grid_job": "TEXT NOT NULL", "number": "INTEGER NOT NULL", "position": "INTEGER NOT NULL"},
    {
        "name": "TEXT NOT NULL",
        **dict.fromkeys(("done", "total"), "INTEGER NOT NULL"),
        "unit": "TEXT NOT NULL",
        **dict.fromkeys(("begun", "changed"), "INTEGER NOT NULL"),
    },
    lambda grid_job, job: [((grid_job, job.index, at), phase) for at, phase in enumerate(job.phases())],
    options="WITHOUT ROWID",
)

# total() instead of sum(): programs may report numbers whose sum exceeds 2^63.
_SUMS = """
SELECT name, max(unit), total(CASE WHEN total THEN min(done, total) ELSE done END), total(total), count(*), min(begun),
    max(changed)
FROM phase WHERE grid_job = ? GROUP BY name ORDER BY min(position), name
"""
_OPEN_PARTS = """
SELECT total(CASE WHEN done >= phase.total THEN 1 ELSE 1.0 * done / phase.total END)
FROM local_job JOIN phase USING (grid_job, number) WHERE grid_job = ? AND state NOT IN ('done', 'failed')
"""
_SILENT = """
SELECT number FROM local_job JOIN phase USING (grid_job, number) WHERE grid_job = ? AND state = 'active'
GROUP BY number HAVING max(changed) <= ? ORDER BY number
"""


@dataclass(frozen=True)
class PhaseSum:
    """One phase of a grid job, summed over the local jobs that report it; times are seconds since the epoch."""

    name: str
    unit: str
    done: int
    total: int
    local_jobs: int
    """How many report it."""
    begun: int
    """When the first one began it."""
    changed: int
    """When the last one reported something new."""

    def expected_total(self, local_jobs: int) -> int:
        """The total for so many local jobs; those that do not report it yet count as the average of the others."""
        return round(self.total * local_jobs / self.local_jobs)


class Phases:
    """The phases of grid jobs' local jobs; `LocalJobs.put` writes them."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def sums(self, job_id: str) -> list[PhaseSum]:
        """Every phase of a grid job, in the order in which local jobs report them."""
        rows = self._store.query(_SUMS, [job_id])
        return [PhaseSum(name, unit, int(done), int(total), *rest) for name, unit, done, total, *rest in rows]

    def open_parts(self, job_id: str) -> float:
        """How many phases the open local jobs have done, with fractions of phases."""
        return self._store.value(float, _OPEN_PARTS, [job_id]) or 0.0

    def silent(self, job_id: str, since: float) -> list[int]:
        """The running local jobs that report phases, but have reported nothing new since a time."""
        return self._store.values(_SILENT, [job_id, int(since)])


ATTEMPTS = Table(
    "attempt",
    {"grid_job": "TEXT NOT NULL", "number": "INTEGER NOT NULL", "attempt": "INTEGER NOT NULL"},
    {
        "local_id": column_of("id"),
        "started": ("INTEGER", attrgetter("started_time")),
        "ended": ("INTEGER", attrgetter("ended_time")),
        "cpu_seconds": "REAL",
        **{name: column_of(name) for name in ("cause", "reason", "host")},
    },
    lambda grid_job, job: [
        ((grid_job, job.index, number), past) for number, past in enumerate(job.earlier_attempts(), 1)
    ],
    ("attempt_by_end ON attempt (ended)",),
    "WITHOUT ROWID",
)
"""Earlier attempts, all of which failed."""


@dataclass(frozen=True)
class AttemptEnds:
    """Local jobs whose attempt with this number ended for the same cause."""

    attempt: int
    cause: str
    count: int
    last: int | None
    """When the last of them ended, seconds since the epoch."""


@dataclass(frozen=True, slots=True)
class EarlierAttempt:
    """An attempt that failed and was retried; times are seconds since the epoch, None if not known."""

    index: int
    """Of its local job."""
    started: int | None
    ended: int | None
    cause: str | None
    host: str | None


class Attempts:
    """Earlier attempts; `LocalJobs.put` writes them."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def ends(self, job_id: str) -> list[AttemptEnds]:
        """How the earlier attempts of a grid job's local jobs ended, the most frequent causes first."""
        sql = (
            "SELECT attempt, coalesce(cause, 'no cause known'), count(*), max(ended) FROM attempt WHERE grid_job = ?"
            " GROUP BY attempt, cause ORDER BY attempt, 3 DESC"
        )
        return [AttemptEnds(*row) for row in self._store.query(sql, [job_id])]

    def all_of(self, job_id: str) -> list[EarlierAttempt]:
        """The earlier attempts of a grid job's local jobs, by local job, then by time."""
        columns = "number, started, ended, cause, host"
        sql = f"SELECT {columns} FROM attempt WHERE grid_job = ? ORDER BY number, attempt.attempt"
        return [EarlierAttempt(*row) for row in self._store.query(sql, [job_id])]

    def ids(self, grid_job: str) -> set[str]:
        """The ids that a grid job's local jobs had in earlier attempts."""
        sql = "SELECT local_id FROM attempt WHERE grid_job = ? AND local_id IS NOT NULL"
        return set(self._store.values(sql, [grid_job]))
