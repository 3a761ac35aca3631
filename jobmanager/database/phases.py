"""What local jobs have told of their phases, in a table derived from their documents, and sums of it."""

from dataclasses import dataclass

from jobmanager.database.sqlite import Store, Table

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

# total() and not sum(): a sum of numbers that local jobs made up may pass 2^63.
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
    """One phase of a grid job, over the local jobs that have told it; times in seconds since the epoch."""

    name: str
    unit: str
    done: int
    total: int
    local_jobs: int
    """How many have told it."""
    begun: int
    """When the first of them began it."""
    changed: int
    """When the last of them told anything new of it."""

    def expected_total(self, local_jobs: int) -> int:
        """The total of that many local jobs: who has not told it counts as large as the average of those who have."""
        return round(self.total * local_jobs / self.local_jobs)


class Phases:
    """The phases of grid jobs' local jobs; `LocalJobs.put` writes them."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def sums(self, job_id: str) -> list[PhaseSum]:
        """Every phase of a grid job, in the order in which its local jobs tell them."""
        rows = self._store.query(_SUMS, [job_id])
        return [PhaseSum(name, unit, int(done), int(total), *rest) for name, unit, done, total, *rest in rows]

    def open_parts(self, job_id: str) -> float:
        """How many phases the local jobs that have not ended have done, parts of phases counting as parts."""
        return self._store.value(float, _OPEN_PARTS, [job_id]) or 0.0

    def silent(self, job_id: str, since: float) -> list[int]:
        """The running local jobs that have told phases, but nothing new of any since a time."""
        return self._store.values(_SILENT, [job_id, int(since)])
