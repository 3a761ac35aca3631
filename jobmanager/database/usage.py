"""What local jobs used: existing ones by their columns, removed ones by rows that were kept."""

from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass

from jobmanager.database.sqlite import Store

KEPT = 400 * 86_400
"""Seconds for which the records of removed grid jobs are kept: nobody accounts for what ended over a year ago."""

GROUPINGS = ("user", "type", "batch")
"""The columns by which usage can be grouped."""

# A local job that was never submitted has no end: it counts at the time of its request.
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
# CROSS JOIN: grid job by grid job, by the index of local jobs' states, so that successful ones are not read.
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
    """What the local jobs of one group used that ended in a period."""

    group: tuple[str, ...]
    grid_jobs: int
    local_jobs: int
    """Each attempt counts."""
    succeeded: int
    cancelled: int
    cpu_seconds: float
    """Of those whose drivers recorded it."""
    wall_seconds: int
    """Of those whose start and end are known."""
    efficiency: float | None
    """CPU time divided by wall time, of those with both; None if there are none."""

    @property
    def failed(self) -> int:
        return self.local_jobs - self.succeeded - self.cancelled


class UsageRecords:
    """Sums of what local jobs used; each attempt counts at its end."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def sums(self, by: Sequence[str], since: float, until: float) -> list[Usage]:
        """The usage between two times, grouped by some of `GROUPINGS`."""
        sql = f"SELECT {', '.join([_SUMS, *by])} {_ENDED_BETWEEN}{_render_clauses(by)}"
        rows = self._store.query(sql, {"since": since, "until": until})
        return [Usage(tuple(row[7:]), *row[:7]) for row in rows if row[1]]

    def failure_reasons(self, by: Sequence[str], since: float, until: float) -> list[tuple[tuple[str, ...], str, int]]:
        """Group, reason, and how many local jobs did not succeed for it, in the same period and groups."""
        what = ["coalesce(reason, 'no reason known')", "CAST(total(local_jobs) AS INTEGER)", *by]
        clauses = f"WHERE outcome <> 'succeeded'{_render_clauses([*by, 'reason'])}"
        sql = f"SELECT {', '.join(what)} {_ENDED_BETWEEN} {clauses}"
        rows = self._store.query(sql, {"since": since, "until": until})
        return [(tuple(group), reason, count) for reason, count, *group in rows]

    def ends(self) -> list[tuple[str, str, str, int]]:
        """Batch system, outcome, cause (or nothing), and how many attempts ever ended so.

        Only ends that can no longer change, so that no number goes down: earlier attempts, those of grid jobs that have
        ended, and removed ones.
        """
        return [(batch, outcome, cause, count) for batch, outcome, cause, count in self._store.query(_ENDS)]

    def keep(self, job_id: str) -> None:
        """Keep what a grid job's local jobs used, inside the transaction that removes it."""
        self._store.write(_KEEP, [{"grid_job": job_id}])
        Accounting(self._store).record(job_id)


_RECORD = """
INSERT INTO usage_record (grid_job, number, attempt, local_id, host, started, ended, cpu_seconds)
SELECT * FROM (
    SELECT grid_job, number, 1 + (
        SELECT count(*) FROM attempt WHERE attempt.grid_job = :grid_job AND attempt.number = local_job.number
    ) AS attempt, local_id, host, started, ended, cpu_seconds FROM local_job WHERE grid_job = :grid_job
    UNION ALL SELECT grid_job, number, attempt, local_id, host, started, ended, cpu_seconds
    FROM attempt WHERE grid_job = :grid_job
) WHERE started IS NOT NULL AND ended IS NOT NULL ORDER BY number, attempt
"""
_IN_COMMON = "subject, vo, submit_host, nullif(benchmark, 0), benchmark_type, nullif(cores, 0)"
_FROM = "FROM usage_record CROSS JOIN recorded USING (grid_job)"
_START = "min(started, ended)"
"""SQL; a clock may have been set back during the run."""
_MONTH = "strftime('%Y-%m', ended, 'unixepoch')"
_SUMMARIES = f"""
SELECT {_IN_COMMON}, {_MONTH}, count(*), min(ended), max(ended), sum(ended - {_START}),
    CAST(round(total(cpu_seconds)) AS INTEGER)
{_FROM} WHERE {_MONTH} IN (SELECT DISTINCT {_MONTH} FROM usage_record WHERE id BETWEEN ? AND ?)
    AND CAST(strftime('%s', ended, 'unixepoch', 'start of month') AS INTEGER) >= ?
GROUP BY subject, vo, submit_host, benchmark, benchmark_type, cores, {_MONTH} ORDER BY {_MONTH}, subject, cores
"""


@dataclass(frozen=True)
class Terms:
    """The values that all records made under one configuration share."""

    submit_host: str
    """Host and account that accepted the grid job: different for any two accounts."""
    vo: str | None
    benchmark: float
    """Of one core; 0 if not known."""
    benchmark_type: str


@dataclass(frozen=True)
class InCommon:
    """What records and summaries share; None: not known."""

    subject: str | None
    """Whose certificate the request came with."""
    vo: str | None
    submit_host: str
    benchmark: float | None
    benchmark_type: str
    cores: int | None


@dataclass(frozen=True)
class UsageRecord(InCommon):
    """One attempt at a local job that ran; times in seconds since 1970."""

    grid_job: str
    number: int
    """Of the local job, from 1."""
    attempt: int
    """From 1."""
    owner: str
    batch: str
    local_id: str | None
    host: str | None
    started: int
    ended: int
    cpu_seconds: float | None

    @property
    def record_id(self) -> str:
        """Unique, and the same whenever it is written."""
        return f"{self.grid_job}-{self.number}-{self.attempt}"


@dataclass(frozen=True)
class UsageSummary(InCommon):
    """All records of a month (UTC, by end) that share these values."""

    month: str
    """``2026-11``."""
    count: int
    first_end: int
    last_end: int
    wall_seconds: int
    cpu_seconds: int
    """Of those with known CPU time."""


class Accounting:
    """The usage records, numbered in the order in which they are made, and the files with them."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def unrecorded(self, after: str, most: int) -> list[str]:
        """Grid jobs that have ended but have no records, by id: the first ones after a given id."""
        sql = (
            "SELECT id FROM grid_job WHERE id > ? AND state IN ('done', 'failed')"
            " AND id NOT IN (SELECT grid_job FROM recorded) ORDER BY id LIMIT ?"
        )
        return self._store.values(sql, [after, most])

    def record(self, job_id: str) -> None:
        """Make the records of a grid job that has ended, unless they exist, or it is removed."""
        if any(self._store.query("SELECT 1 FROM recorded WHERE grid_job = ?", [job_id])):
            return
        common = "INSERT INTO recorded (grid_job, owner, subject, batch, cores)"
        self._store.write(f"{common} SELECT id, owner, subject, batch, cores FROM grid_job WHERE id = ?", [(job_id,)])
        self._store.write(_RECORD, [{"grid_job": job_id}])

    def put_terms(self, terms: Terms) -> None:
        """Set these values in records that have none yet: records that were sent must not change."""
        sql = "UPDATE recorded SET submit_host = ?, vo = ?, benchmark = ?, benchmark_type = ? WHERE submit_host IS NULL"
        self._store.write(sql, [astuple(terms)])

    def next_file(self, form: str, most: int) -> tuple[int, int] | None:
        """The first and last record of the next file to be written; None if there is nothing to be written.

        A file that was begun comes first; otherwise a new one begins, with at most ``most`` records.
        """
        sql = "SELECT first, last FROM record_file WHERE format = ? AND NOT is_written ORDER BY last LIMIT 1"
        for first, last in self._store.query(sql, [form]):
            return first, last
        sql = "SELECT max(last) FROM record_file WHERE format = ?"
        first = (self._store.value(int, sql, [form]) or 0) + 1
        sql = "SELECT max(id) FROM (SELECT id FROM usage_record WHERE id >= ? ORDER BY id LIMIT ?)"
        last = self._store.value(int, sql, [first, most])
        if last is None:
            return None
        self._store.write("INSERT INTO record_file VALUES (?, ?, ?, FALSE)", [(form, last, first)])
        return first, last

    def note_written(self, form: str, last: int) -> None:
        self._store.write("UPDATE record_file SET is_written = TRUE WHERE format = ? AND last = ?", [(form, last)])

    def write_again(self, form: str, since: float) -> None:
        """Have every file written again that has a record of an end at that second or later."""
        ended = "SELECT 1 FROM usage_record WHERE id BETWEEN first AND last AND ended >= ?"
        sql = f"UPDATE record_file SET is_written = FALSE WHERE format = ? AND EXISTS ({ended})"
        self._store.write(sql, [(form, since)])

    def records(self, first: int, last: int) -> Iterator[UsageRecord]:
        """The records in a range of numbers that still exist."""
        own = f"grid_job, number, attempt, owner, batch, local_id, host, {_START}, ended, cpu_seconds"
        sql = f"SELECT {_IN_COMMON}, {own} {_FROM} WHERE id BETWEEN ? AND ? ORDER BY id"
        return (UsageRecord(*row) for row in self._store.query(sql, [first, last]))

    def summaries(self, first: int, last: int, since: float) -> Iterator[UsageSummary]:
        """The complete summaries of all months with ends of these records; no months that began before ``since``."""
        return (UsageSummary(*row) for row in self._store.query(_SUMMARIES, [first, last, since]))

    def forget(self, before: float) -> None:
        """Delete records of removed grid jobs that ended before a second."""
        removed = "NOT IN (SELECT id FROM grid_job)"
        self._store.write(f"DELETE FROM usage_record WHERE ended < ? AND grid_job {removed}", [(before,)])
        kept = "NOT IN (SELECT grid_job FROM usage_record)"
        self._store.write(f"DELETE FROM recorded WHERE grid_job {removed} AND grid_job {kept}")


def _render_clauses(columns: Sequence[str]) -> str:
    return f" GROUP BY {', '.join(columns)} ORDER BY {', '.join(columns)}" if columns else ""
