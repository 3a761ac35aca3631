"""Usage, summed by SQLite over the columns of local jobs: no document is read."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from jobmanager.store import Store

if TYPE_CHECKING:
    from jobmanager.local_job import LocalJob

SCHEMA = """
CREATE TABLE IF NOT EXISTS attempt (
    grid_job TEXT NOT NULL, number INTEGER NOT NULL, attempt INTEGER NOT NULL,
    started INTEGER, ended INTEGER, cpu_seconds REAL, reason TEXT,
    PRIMARY KEY (grid_job, number, attempt)
) WITHOUT ROWID;
"""
"""Earlier attempts, all of which failed, derived from the local jobs' documents."""

GROUPINGS = ("user", "type", "batch")
"""What usage can be summed by."""

_COLUMNS = {"user": "grid.owner", "type": "grid.type", "batch": "grid.batch"}
# A local job that was never submitted has no end of its own: it counts when its request came.
_ENDED_BETWEEN = """
FROM (
    SELECT grid_job, state = 'done' AND NOT unsuccessful AS succeeded, started, ended, cpu_seconds, reason
    FROM local_job WHERE state IN ('done', 'failed')
    UNION ALL SELECT grid_job, 0, started, ended, cpu_seconds, reason FROM attempt
) AS local JOIN grid_job AS grid ON grid.id = local.grid_job
WHERE coalesce(local.ended, CAST(strftime('%s', grid.submitted) AS INTEGER)) >= ?
  AND coalesce(local.ended, CAST(strftime('%s', grid.submitted) AS INTEGER)) < ?
"""
_WALL = "max(local.ended - local.started, 0)"


@dataclass(frozen=True)
class Usage:
    """What the local jobs of one group used that ended in a span of time."""

    group: tuple[str, ...]
    grid_jobs: int
    local_jobs: int
    """Each attempt at a slice counts."""
    succeeded: int
    cpu_seconds: float
    """Of those whose drivers wrote it down."""
    wall_seconds: int
    """Of those whose start and end are known."""
    efficiency: float | None
    """CPU by wall time of those of which both are known; None where there are none."""

    @property
    def failed(self) -> int:
        return self.local_jobs - self.succeeded


class UsageTable(Store):
    """Sums over local jobs that have ended, and over the attempts before them."""

    def _put_attempts(self, identity: str, jobs: "Iterable[LocalJob]") -> None:
        """Write the earlier attempts of local jobs: what they used counts, too."""
        rows = (
            (identity, job.index, number, past.started_time, past.ended_time, past.cpu_seconds, past.reason)
            for job in jobs
            for number, past in enumerate(job.past(), 1)
        )
        self._write("INSERT OR REPLACE INTO attempt VALUES (?, ?, ?, ?, ?, ?, ?)", rows)

    def usage(self, by: Sequence[str], since: float, until: float) -> list[Usage]:
        """The usage from one second to another, by some of `GROUPINGS`, a group each."""
        groups = [_COLUMNS[name] for name in by]
        known = f"local.cpu_seconds IS NOT NULL AND {_WALL} > 0"
        sums = [
            *("count(DISTINCT local.grid_job)", "count(*)", "sum(local.succeeded)"),
            *("total(local.cpu_seconds)", f"total({_WALL})"),
            f"total(CASE WHEN {known} THEN local.cpu_seconds END) / sum(CASE WHEN {known} THEN {_WALL} END)",
        ]
        sql = f"SELECT {', '.join([*sums, *groups])} {_ENDED_BETWEEN}" + _render_clauses(groups)
        return [
            Usage(tuple(map(str, group)), jobs, local_jobs, succeeded, cpu, int(wall), efficiency)
            for jobs, local_jobs, succeeded, cpu, wall, efficiency, *group in self._query(sql, (since, until))
            if local_jobs
        ]

    def failure_reasons(self, by: Sequence[str], since: float, until: float) -> list[tuple[tuple[str, ...], str, int]]:
        """Group, reason and how many local jobs did not succeed for it, in the same span and groups."""
        groups = [_COLUMNS[name] for name in by]
        sql = (
            f"SELECT coalesce(local.reason, 'no reason known'), count(*){''.join(f', {column}' for column in groups)}"
            f" {_ENDED_BETWEEN} AND NOT local.succeeded" + _render_clauses([*groups, "local.reason"])
        )
        return [
            (tuple(map(str, group)), str(reason), int(count))
            for reason, count, *group in self._query(sql, (since, until))
        ]


def _render_clauses(columns: Sequence[str]) -> str:
    return f" GROUP BY {', '.join(columns)} ORDER BY {', '.join(columns)}" if columns else ""
