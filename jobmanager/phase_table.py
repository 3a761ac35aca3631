"""The job database's index of phases: what all local jobs of a grid job have told, without reading their documents."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from jobmanager.store import Store

if TYPE_CHECKING:
    from jobmanager.local_job import LocalJob

SCHEMA = """
CREATE TABLE IF NOT EXISTS phase (
    grid_job TEXT NOT NULL, number INTEGER NOT NULL, position INTEGER NOT NULL, name TEXT NOT NULL,
    done INTEGER NOT NULL, total INTEGER NOT NULL, unit TEXT NOT NULL, begun INTEGER NOT NULL, changed INTEGER NOT NULL,
    PRIMARY KEY (grid_job, number, position)
) WITHOUT ROWID;
"""

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


class PhaseTable(Store):
    """Phases by grid job, written together with the local jobs' documents."""

    def _put_phases(self, identity: str, jobs: "Iterable[LocalJob]") -> None:
        """Replace what is known of these local jobs' phases."""
        jobs = list(jobs)
        self._write("DELETE FROM phase WHERE grid_job = ? AND number = ?", [(identity, job.index) for job in jobs])
        rows = (
            (identity, job.index, position, told.name, told.done, told.total, told.unit, told.begun, told.changed)
            for job in jobs
            for position, told in enumerate(job.told_phases())
        )
        self._write("INSERT INTO phase VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", rows)

    def phase_sums(self, identity: str) -> list[PhaseSum]:
        """Every phase of a grid job, in the order in which its local jobs tell them."""
        return [
            PhaseSum(str(name), str(unit), int(done), int(total), int(local_jobs), int(begun), int(changed))
            for name, unit, done, total, local_jobs, begun, changed in self._query(_SUMS, [identity])
        ]

    def open_parts(self, identity: str) -> float:
        """How many phases the local jobs that have not ended have done, parts of phases counting as parts."""
        ((parts,),) = self._query(_OPEN_PARTS, [identity])
        return float(parts)

    def silent_local_jobs(self, identity: str, since: float) -> list[int]:
        """The running local jobs that have told phases, but nothing new of any since a time."""
        return [int(number) for (number,) in self._query(_SILENT, [identity, int(since)])]
