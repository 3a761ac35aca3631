"""What local jobs used: of those that there are by their columns, of removed ones by what is kept of them."""

from collections.abc import Sequence
from dataclasses import dataclass

from jobmanager.database.sqlite import Store

REMOVED = """
CREATE TABLE IF NOT EXISTS removed_use (
    grid_job TEXT NOT NULL, user TEXT NOT NULL, type TEXT NOT NULL, batch TEXT NOT NULL, outcome TEXT NOT NULL,
    reason TEXT, ended INTEGER NOT NULL, local_jobs INTEGER NOT NULL, cpu REAL NOT NULL, wall INTEGER NOT NULL,
    known_cpu REAL NOT NULL, known_wall INTEGER NOT NULL, cause TEXT
);
"""
"""What removed grid jobs used, which no document tells any more: a row for all local jobs of one that ended on the same
day (UTC) with the same outcome for the same cause and reason; ``ended`` is when the last of these did."""

GROUPINGS = ("user", "type", "batch")
"""What usage can be summed by."""

# One that was never submitted has no end of its own: it counts when its request came.
_SUBMITTED = "CAST(strftime('%s', grid.submitted) AS INTEGER)"
_WALL = "max(local.ended - local.started, 0)"
_BOTH = f"local.cpu_seconds IS NOT NULL AND {_WALL} > 0"
_ROW = f"""
    grid.id AS grid_job, grid.owner AS user, grid.type AS type, grid.batch AS batch, {{}} AS outcome,
    local.reason AS reason, coalesce(local.ended, {_SUBMITTED}) AS ended, 1 AS local_jobs,
    coalesce(local.cpu_seconds, 0) AS cpu, coalesce({_WALL}, 0) AS wall,
    CASE WHEN {_BOTH} THEN local.cpu_seconds ELSE 0 END AS known_cpu,
    CASE WHEN {_BOTH} THEN {_WALL} ELSE 0 END AS known_wall, local.cause AS cause
"""
_JOB, _ATTEMPT = _ROW.format("local.outcome"), _ROW.format("'failed'")
_HAS_ENDED = "local.outcome IS NOT NULL"
_BY_END = "CROSS JOIN grid_job AS grid ON grid.id = local.grid_job WHERE local.ended >= :since AND local.ended < :until"
_NO_END = "ON local.grid_job = grid.id WHERE local.ended IS NULL"
_WITHOUT = f"{_NO_END} AND {_SUBMITTED} >= :since AND {_SUBMITTED} < :until"
_ENDED_BETWEEN = f"""
FROM (
    SELECT {_JOB} FROM local_job AS local {_BY_END} AND {_HAS_ENDED}
    UNION ALL SELECT {_ATTEMPT} FROM attempt AS local {_BY_END}
    UNION ALL SELECT {_JOB} FROM grid_job AS grid CROSS JOIN local_job AS local {_WITHOUT} AND {_HAS_ENDED}
    UNION ALL SELECT {_ATTEMPT} FROM grid_job AS grid CROSS JOIN attempt AS local {_WITHOUT}
    UNION ALL SELECT * FROM removed_use WHERE ended >= :since AND ended < :until
)
"""
_SUMS = """
count(DISTINCT grid_job), CAST(total(local_jobs) AS INTEGER),
CAST(total(iif(outcome = 'succeeded', local_jobs, 0)) AS INTEGER),
CAST(total(iif(outcome = 'cancelled', local_jobs, 0)) AS INTEGER),
total(cpu), CAST(total(wall) AS INTEGER), total(known_cpu) / nullif(total(known_wall), 0)
"""
"""The fields of a `Usage` but its group."""
_OF_GRID_JOB = "JOIN grid_job AS grid ON grid.id = local.grid_job WHERE local.grid_job = :grid_job"
_KEEP = f"""
INSERT INTO removed_use
SELECT grid_job, user, type, batch, outcome, reason, max(ended), count(*), total(cpu), CAST(total(wall) AS INTEGER),
    total(known_cpu), CAST(total(known_wall) AS INTEGER), cause
FROM (
    SELECT {_JOB} FROM local_job AS local {_OF_GRID_JOB} AND {_HAS_ENDED}
    UNION ALL SELECT {_ATTEMPT} FROM attempt AS local {_OF_GRID_JOB}
) GROUP BY ended / 86400, outcome, cause, reason
"""
# CROSS JOIN: grid job by grid job, each by the index of its local jobs' states. Who succeeded need not be looked at.
_SETTLED = "(SELECT id, batch FROM grid_job WHERE state IN ('done', 'failed')) AS settled CROSS JOIN"
_ENDS = f"""
SELECT batch, outcome, coalesce(cause, ''), CAST(total(local_jobs) AS INTEGER) FROM (
    SELECT batch, outcome, NULL AS cause, number AS local_jobs
    FROM {_SETTLED} local_job_count ON grid_job = id WHERE outcome = 'succeeded'
    UNION ALL SELECT settled.batch, outcome, cause, 1
    FROM {_SETTLED} local_job ON grid_job = id WHERE state IN ('done', 'failed') AND outcome IN ('failed', 'cancelled')
    UNION ALL SELECT batch, 'failed', attempt.cause, 1 FROM attempt JOIN grid_job ON id = attempt.grid_job
    UNION ALL SELECT batch, outcome, cause, local_jobs FROM removed_use
) GROUP BY 1, 2, 3
"""


@dataclass(frozen=True)
class Usage:
    """What the local jobs of one group used that ended in a span of time."""

    group: tuple[str, ...]
    grid_jobs: int
    local_jobs: int
    """Each attempt at a slice counts."""
    succeeded: int
    cancelled: int
    cpu_seconds: float
    """Of those whose drivers wrote it down."""
    wall_seconds: int
    """Of those whose start and end are known."""
    efficiency: float | None
    """CPU by wall time of those of which both are known; None where there are none."""

    @property
    def failed(self) -> int:
        return self.local_jobs - self.succeeded - self.cancelled


class UsageRecords:
    """What local jobs used, each attempt by the time of its end."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def sums(self, by: Sequence[str], since: float, until: float) -> list[Usage]:
        """The usage from one second to another, by some of `GROUPINGS`, a group each."""
        sql = f"SELECT {', '.join([_SUMS, *by])} {_ENDED_BETWEEN}{_render_clauses(by)}"
        rows = self._store.query(sql, {"since": since, "until": until})
        return [Usage(tuple(row[7:]), *row[:7]) for row in rows if row[1]]

    def failure_reasons(self, by: Sequence[str], since: float, until: float) -> list[tuple[tuple[str, ...], str, int]]:
        """Group, reason and how many local jobs did not succeed for it, in the same span and groups."""
        what = ["coalesce(reason, 'no reason known')", "CAST(total(local_jobs) AS INTEGER)", *by]
        clauses = f"WHERE outcome <> 'succeeded'{_render_clauses([*by, 'reason'])}"
        sql = f"SELECT {', '.join(what)} {_ENDED_BETWEEN} {clauses}"
        rows = self._store.query(sql, {"since": since, "until": until})
        return [(tuple(group), reason, count) for reason, count, *group in rows]

    def ends(self) -> list[tuple[str, str, str, int]]:
        """Batch system, outcome, cause (or nothing) and how many local jobs, each attempt, ever ended so.

        Of those about which nothing more can be heard, so that no number ever goes down: earlier attempts, all of grid
        jobs that have ended, and removed ones.
        """
        return [(batch, outcome, cause, count) for batch, outcome, cause, count in self._store.query(_ENDS)]

    def keep(self, job_id: str) -> None:
        """Keep what the local jobs of a grid job used, inside the transaction that removes it."""
        self._store.write(_KEEP, [{"grid_job": job_id}])


def _render_clauses(columns: Sequence[str]) -> str:
    return f" GROUP BY {', '.join(columns)} ORDER BY {', '.join(columns)}" if columns else ""
