"""The job database's local jobs: their documents, and a few columns derived from them as indexes."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from batch_adapters.states import STATE_OF_WORD, State
from jobmanager.database.sqlite import Quarantine, Store, Table
from jobmanager.database.times import read_time

if TYPE_CHECKING:  # lists and counts are read without XML: "samgrid status" never loads lxml
    from jobmanager.database.local_job import LocalJob


def _text(name: str) -> Callable[..., object]:
    """What a column of an attribute's text is derived by; `LocalJob` says what they mean."""
    return lambda grid_job, job: job.element.get(name)


def _time(name: str) -> Callable[..., object]:
    def find(grid_job: str, job: "LocalJob") -> int | None:
        text = job.element.get(name)
        return None if text is None else read_time(text)

    return find


LOCAL_JOBS = Table(
    "local_job",
    ("grid_job", "number"),
    {
        "grid_job": ("TEXT NOT NULL", lambda grid_job, job: grid_job),
        "number": ("INTEGER NOT NULL", lambda grid_job, job: job.index),
        "state": ("TEXT NOT NULL", _text("state")),
        "batch": ("TEXT NOT NULL", _text("batch")),
        "local_id": ("TEXT", _text("id")),
        "token": ("TEXT", _text("token")),
        "array": ("TEXT", _text("array")),
        "wait_reason": ("TEXT", _text("wait-reason")),
        "helps": ("TEXT", _text("helps")),
        "outcome": ("TEXT", _text("outcome")),
        "cause": ("TEXT", _text("cause")),
        "submitted": ("INTEGER", _time("submitted")),
        "started": ("INTEGER", _time("started")),
        "ended": ("INTEGER", _time("ended")),
        "cpu_seconds": ("REAL", lambda grid_job, job: job.cpu_seconds),
        "reason": ("TEXT", _text("reason")),
        "document": ("BLOB NOT NULL", lambda grid_job, job: job.to_bytes()),
    },
    (
        "local_job_by_state ON local_job (grid_job, state, outcome)",
        "local_job_by_id ON local_job (batch, local_id)",
        "local_job_by_array ON local_job (batch, array)",
        "local_job_by_token ON local_job (token)",
        # What is asked again and again is asked of those that are open, however many have ended.
        "local_job_open ON local_job (batch) WHERE local_id IS NOT NULL AND state NOT IN ('done', 'failed')",
        "local_job_running ON local_job (grid_job, number, local_id) WHERE state IN ('active', 'suspended')",
        "local_job_by_end ON local_job (ended, grid_job) WHERE outcome IS NOT NULL",
        "local_job_unsubmitted ON local_job (token, grid_job, number) WHERE state = 'unsubmitted'",
        "local_job_blocked ON local_job (grid_job) WHERE helps IS NOT NULL",
    ),
    settled=("batch", "local_id", "token", "array"),
)
LOCAL_JOB_ATTRIBUTES = {
    **{name: f"local_job.{name}" for name in ("state", "batch", "token", "array", "helps", "outcome", "cause")},
    "id": "local_job.local_id",
    "wait-reason": "local_job.wait_reason",
    "reason": "local_job.reason",
}
"""The column of each attribute that a column has as it is."""
PHASES = Table(
    "phase",
    ("grid_job", "number", "position"),
    {
        "grid_job": ("TEXT NOT NULL", lambda grid_job, job, position, phase: grid_job),
        "number": ("INTEGER NOT NULL", lambda grid_job, job, position, phase: job.index),
        "position": ("INTEGER NOT NULL", lambda grid_job, job, position, phase: position),
        "name": ("TEXT NOT NULL", lambda grid_job, job, position, phase: phase.name),
        "done": ("INTEGER NOT NULL", lambda grid_job, job, position, phase: phase.done),
        "total": ("INTEGER NOT NULL", lambda grid_job, job, position, phase: phase.total),
        "unit": ("TEXT NOT NULL", lambda grid_job, job, position, phase: phase.unit),
        "begun": ("INTEGER NOT NULL", lambda grid_job, job, position, phase: phase.begun),
        "changed": ("INTEGER NOT NULL", lambda grid_job, job, position, phase: phase.changed),
    },
    options="WITHOUT ROWID",
)
ATTEMPTS = Table(
    "attempt",
    ("grid_job", "number", "attempt"),
    {
        "grid_job": ("TEXT NOT NULL", lambda grid_job, job, number, past: grid_job),
        "number": ("INTEGER NOT NULL", lambda grid_job, job, number, past: job.index),
        "attempt": ("INTEGER NOT NULL", lambda grid_job, job, number, past: number),
        "local_id": ("TEXT", lambda grid_job, job, number, past: past.local_id),
        "started": ("INTEGER", lambda grid_job, job, number, past: past.started_time),
        "ended": ("INTEGER", lambda grid_job, job, number, past: past.ended_time),
        "cpu_seconds": ("REAL", lambda grid_job, job, number, past: past.cpu_seconds),
        "cause": ("TEXT", lambda grid_job, job, number, past: past.cause and past.cause.value),
        "reason": ("TEXT", lambda grid_job, job, number, past: past.reason),
    },
    ("attempt_by_end ON attempt (ended)",),
    options="WITHOUT ROWID",
)
"""Earlier attempts, all of which failed."""

COUNTS = """
CREATE TABLE IF NOT EXISTS local_job_count (
    grid_job TEXT NOT NULL, state TEXT NOT NULL, outcome TEXT NOT NULL, number INTEGER NOT NULL,
    PRIMARY KEY (grid_job, state, outcome)
) WITHOUT ROWID;
"""
"""How many local jobs of a grid job are in each state and outcome: kept with the rows that are written, as no event may
cost what all the others do. Rows of 0 may stay."""
# CROSS JOIN: from these numbers on; SQLite would search all of the grid job.
_ADD = """
INSERT INTO local_job_count SELECT grid_job, state, coalesce(outcome, ''), ? * count(*)
FROM json_each(?) CROSS JOIN local_job ON grid_job = ? AND local_job.number = value GROUP BY state, outcome
ON CONFLICT DO UPDATE SET number = number + excluded.number
"""
COUNTED = "SELECT grid_job, state, coalesce(outcome, ''), count(*) FROM local_job GROUP BY 1, 2, 3"
"""SQL: what the counts must be."""

STANDING = "CASE outcome WHEN '' THEN state WHEN 'succeeded' THEN 'done' ELSE outcome END"
"""SQL of counts: how local jobs stand for people: by state, once they have ended by outcome (``done``: success)."""

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

_LINE = "number, state, outcome, cause, local_id, submitted, started, ended, cpu_seconds, coalesce(reason, wait_reason)"
"""SQL: the fields of a `LocalJobLine`."""
AT_ONCE = 500
"""Documents that are in memory together, where a grid job may have any number of them."""

GROUPINGS = ("user", "type", "batch")
"""What usage can be summed by."""

_COLUMNS = {"user": "grid.owner", "type": "grid.type", "batch": "grid.batch"}
_USED = "local.grid_job, {}, local.cause, local.started, local.ended, local.cpu_seconds, local.reason"
_OF_JOB, _OF_ATTEMPT = _USED.format("local.outcome"), _USED.format("'failed' AS outcome")
_IN_TIME = "local.ended >= ?1 AND local.ended < ?2"
# One that was never submitted has no end of its own: it counts when its request came.
_SUBMITTED = "CAST(strftime('%s', grid.submitted) AS INTEGER)"
_WITHOUT_END = f"local.grid_job = grid.id WHERE local.ended IS NULL AND {_SUBMITTED} >= ?1 AND {_SUBMITTED} < ?2"
_ENDED_BETWEEN = f"""
FROM (
    SELECT {_OF_JOB} FROM local_job AS local WHERE {_IN_TIME} AND local.outcome IS NOT NULL
    UNION ALL SELECT {_OF_ATTEMPT} FROM attempt AS local WHERE {_IN_TIME}
    UNION ALL SELECT {_OF_JOB} FROM grid_job AS grid
        CROSS JOIN local_job AS local ON {_WITHOUT_END} AND local.outcome IS NOT NULL
    UNION ALL SELECT {_OF_ATTEMPT} FROM grid_job AS grid CROSS JOIN attempt AS local ON {_WITHOUT_END}
) AS local JOIN grid_job AS grid ON grid.id = local.grid_job
"""
_WALL = "max(local.ended - local.started, 0)"


@dataclass(frozen=True)
class LocalJobKey:
    """What the indexes know of one local job."""

    grid_job: str
    index: int
    local_id: str
    token: str
    state: State
    wait_reason: str
    helps: str


@dataclass(frozen=True)
class Blocked:
    """Local jobs of a grid job that do not go on until somebody does something."""

    count: int
    first: int
    """The number of the first."""
    wait_reason: str
    """What the batch system says of why."""
    helps: str
    """The command that lets the first go on, or all of them."""


@dataclass(frozen=True)
class AttemptEnds:
    """Local jobs whose attempt of that number ended for the same cause."""

    attempt: int
    cause: str
    count: int
    last: int | None
    """When the last of them ended, seconds since the epoch."""


@dataclass(frozen=True, slots=True)
class LiveJob:
    """A local job that the batch system has, as the indexes know it."""

    index: int
    local_id: str
    array: str | None
    state: State


@dataclass(frozen=True, slots=True)
class LocalJobLine:
    """One line about one local job; times in seconds since the epoch, None where nothing is known."""

    index: int
    state: State
    outcome: str | None
    """succeeded, failed or cancelled; None until it has ended."""
    cause: str | None
    local_id: str | None
    submitted: int | None
    started: int | None
    ended: int | None
    cpu_seconds: float | None
    reason: str | None
    """Why it did not succeed or, before its end, why it waits."""

    @property
    def succeeded(self) -> bool:
        """True where it ended well."""
        return self.outcome == "succeeded"


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


# Few local jobs of any grid job are: SQLite would search all of this one.
_IN_DOUBT = (
    "FROM local_job INDEXED BY local_job_unsubmitted WHERE state = 'unsubmitted' AND token IS NOT NULL AND grid_job = ?"
)


class LocalJobs:
    """Local jobs by grid job, by the batch system's ids, and by token; their phases, and what they used."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.quarantine = Quarantine(store)

    def put(self, job_id: str, jobs: "Iterable[LocalJob]") -> None:
        """Write local jobs' documents, new or changed."""
        jobs = list(jobs)
        numbers = json.dumps([job.index for job in jobs])
        self._store.write(_ADD, [(-1, numbers, job_id)])
        self._store.put(LOCAL_JOBS, ((job_id, job) for job in jobs))
        self._store.write(_ADD, [(1, numbers, job_id)])
        self._store.write("DELETE FROM phase WHERE grid_job = ? AND number = ?", [(job_id, job.index) for job in jobs])
        told = ((job_id, job, position, phase) for job in jobs for position, phase in enumerate(job.told_phases()))
        self._store.put(PHASES, told)
        past = ((job_id, job, number, attempt) for job in jobs for number, attempt in enumerate(job.past(), 1))
        self._store.put(ATTEMPTS, past)

    def count_anew(self) -> None:
        """Count what there is, whatever the counts were."""
        self._store.write("DELETE FROM local_job_count")
        self._store.write(f"INSERT INTO local_job_count {COUNTED}")

    def all_of(self, job_id: str) -> "list[LocalJob]":
        """The local jobs of a grid job in order of their index."""
        return list(self.each(job_id))

    def each(self, job_id: str) -> "Iterator[LocalJob]":
        """The same one after another: the documents of a large grid job need not be in memory together."""
        last = 0
        while jobs := self._local_jobs(" AND number > ? ORDER BY number LIMIT ?", job_id, last, AT_ONCE):
            yield from jobs
            last = jobs[-1].index

    def of_token(self, job_id: str, token: str) -> "list[LocalJob]":
        """The local jobs of a grid job that one submission is of, in order of their index."""
        # The plus keeps SQLite from searching all of the grid job.
        sql = "SELECT grid_job, number, document FROM local_job WHERE token = ? AND +grid_job = ? ORDER BY number"
        return [job for _, job in self._read(sql, token, job_id)]

    def get(self, job_id: str, index: int) -> "LocalJob":
        """One local job of a grid job."""
        return self._local_jobs(" AND number = ?", job_id, index)[0]

    def first_failed(self, job_id: str) -> "LocalJob | None":
        """The first local job of a grid job that ended without success."""
        failed = self._local_jobs(" AND outcome <> 'succeeded' ORDER BY number LIMIT 1", job_id)
        return failed[0] if failed else None

    def unsubmitted(self, job_id: str) -> "list[LocalJob]":
        """Some of a grid job's local jobs that are not submitted; none where all are."""
        return self._local_jobs(" AND state = 'unsubmitted' LIMIT ?", job_id, AT_ONCE)

    def to_submit(self, job_id: str, limit: int) -> "list[LocalJob]":
        """The first local jobs of a grid job that no submission was ever intended for."""
        return self._local_jobs(" AND state = 'unsubmitted' AND token IS NULL ORDER BY number LIMIT ?", job_id, limit)

    def in_doubt(self, job_id: str) -> "list[LocalJob]":
        """The local jobs of a grid job whose submission was intended, but whose id is not known."""
        sql = f"SELECT grid_job, number, document {_IN_DOUBT} ORDER BY number"
        return [job for _, job in self._read(sql, job_id)]

    def is_in_doubt(self, job_id: str) -> bool:
        """True while a submission of a grid job is intended whose ids are not known; from the index only."""
        return any(self._store.query(f"SELECT 1 {_IN_DOUBT} LIMIT 1", [job_id]))

    def _local_jobs(self, condition: str, *values: object) -> "list[LocalJob]":
        sql = "SELECT grid_job, number, document FROM local_job WHERE grid_job = ?" + condition
        return [job for _, job in self._read(sql, *values)]

    def _read(self, sql: str, *values: object) -> "list[tuple[str, LocalJob]]":
        """Grid job and local job of each row of id, number and document.

        :raises DamagedDocument: one of them cannot be read.
        """
        from jobmanager.database.documents import read_document
        from jobmanager.database.local_job import LocalJob

        rows = self._store.query(sql, values)
        return [(str(job), LocalJob(read_document(LocalJob.tag, data, job, number))) for job, number, data in rows]

    def lines(self, job_id: str) -> Iterator[LocalJobLine]:
        """A line per local job of a grid job, in order of their index, of which few are in memory together."""
        for number, state, *rest in self._each_row(_LINE, job_id):
            yield LocalJobLine(number, STATE_OF_WORD[state], *rest)

    def ends(self, job_id: str) -> Iterator[tuple[LocalJobLine, tuple[str, ...]]]:
        """The same, each with what of its outputs did not come back."""
        from jobmanager.database.documents import read_document
        from jobmanager.database.local_job import LocalJob

        losing = "CASE WHEN instr(document, '<lost') THEN document END"
        for number, state, *rest, document in self._each_row(f"{_LINE}, {losing}", job_id):
            found = document and LocalJob(read_document(LocalJob.tag, document, job_id, number))
            yield LocalJobLine(number, STATE_OF_WORD[state], *rest), found.lost() if found else ()

    def live(self, job_id: str) -> Iterator[LiveJob]:
        """The local jobs of a grid job that are submitted and have not ended, from the index only."""
        is_live = "local_id IS NOT NULL AND state NOT IN ('done', 'failed')"
        for number, local_id, array, state in self._each_row("number, local_id, array, state", job_id, is_live):
            yield LiveJob(number, local_id, array, STATE_OF_WORD[state])

    def _each_row(self, columns: str, job_id: str, condition: str = "TRUE") -> Iterator[tuple[Any, ...]]:
        """Columns of a grid job's local jobs, of which the first is the number, with no transaction in between."""
        where = f"grid_job = ? AND number > ? AND {condition}"
        sql = f"SELECT {columns} FROM local_job WHERE {where} ORDER BY number LIMIT ?"
        last = 0
        while rows := list(self._store.query(sql, (job_id, last, AT_ONCE))):
            yield from rows
            last = rows[-1][0]

    def count_ends(self, job_id: str) -> Counter[str]:
        """How many local jobs of a grid job there are of each outcome; those without one under the empty word."""
        sql = "SELECT outcome, sum(number) FROM local_job_count WHERE grid_job = ? GROUP BY outcome"
        return Counter(dict(self._store.query(sql, [job_id])))

    def first_start(self, job_id: str) -> int | None:
        """When the first of a grid job's local jobs started, seconds since the epoch; None: none has."""
        ((started,),) = self._store.query("SELECT min(started) FROM local_job WHERE grid_job = ?", [job_id])
        return None if started is None else int(started)

    def first_start_ever(self, job_id: str) -> int | None:
        """When the first of a grid job's local jobs started, in whatever attempt; None: none has."""
        starts = [
            started
            for table in ("local_job", "attempt")
            for (started,) in self._store.query(f"SELECT min(started) FROM {table} WHERE grid_job = ?", [job_id])
            if started is not None
        ]
        return min(map(int, starts), default=None)

    def once_blocked(self, job_id: str, limit: int) -> "list[LocalJob]":
        """The first local jobs of a grid job that were held or blocked at some time, or are."""
        return self._local_jobs(" AND instr(document, '>blocked: ') ORDER BY number LIMIT ?", job_id, limit)

    def attempt_ends(self, job_id: str) -> list[AttemptEnds]:
        """How the earlier attempts of a grid job's local jobs ended, the most frequent causes first."""
        sql = (
            "SELECT attempt, coalesce(cause, 'no cause known'), count(*), max(ended) FROM attempt WHERE grid_job = ?"
            " GROUP BY attempt, cause ORDER BY attempt, 3 DESC"
        )
        return [AttemptEnds(*row) for row in self._store.query(sql, [job_id])]

    def last_end(self, job_id: str) -> int | None:
        """When the last of a grid job's local jobs ended, seconds since the epoch; None: none has."""
        ((ended,),) = self._store.query("SELECT max(ended) FROM local_job WHERE grid_job = ?", [job_id])
        return None if ended is None else int(ended)

    def first_submission(self, job_id: str) -> int | None:
        """When the first local job of a grid job was submitted, seconds since the epoch; None where none was."""
        for (when,) in self._store.query("SELECT min(submitted) FROM local_job WHERE grid_job = ?", [job_id]):
            return None if when is None else int(when)
        return None

    def count(self, job_id: str) -> dict[State, int]:
        """How many local jobs of a grid job are in each state."""
        sql = "SELECT state, sum(number) FROM local_job_count WHERE grid_job = ? AND number GROUP BY state"
        return {STATE_OF_WORD[str(state)]: int(number) for state, number in self._store.query(sql, [job_id])}

    def find(self, batch: str, local_id: str) -> "tuple[str, LocalJob] | None":
        """Grid job and local job that an id names: the last submitted, as batch systems use ids again after crashes."""
        # Only the one that is meant is read: an old one that cannot be read is in nobody's way.
        sql = "SELECT grid_job, number, document FROM local_job WHERE batch = ? AND local_id = ?"
        found = self._read(sql + " ORDER BY submitted DESC LIMIT 1", batch, local_id)
        return found[0] if found else None

    def find_all(self, batch: str, local_ids: Iterable[str]) -> dict[str, tuple[str, int, bytes]]:
        """Grid job, number and document of each local job that one of these ids names, by that; as `find` does."""
        sql = (
            "SELECT local_id, grid_job, number, document FROM local_job"
            " WHERE batch = ? AND local_id IN (SELECT value FROM json_each(?)) ORDER BY submitted"
        )
        rows = self._store.query(sql, [batch, json.dumps(list(local_ids))])
        return {str(local_id): (str(job), int(number), data) for local_id, job, number, data in rows}

    def named(self, local_id: str) -> "list[tuple[str, LocalJob]]":
        """Grid job and local job of every batch system that an id names or has named, the last submitted first."""
        # By batch system: the index begins with it.
        sql = "SELECT grid_job, number, document FROM local_job WHERE batch = ? AND local_id = ?"
        batches = [batch for (batch,) in self._store.query("SELECT DISTINCT batch FROM grid_job ORDER BY batch")]
        found = [pair for batch in batches for pair in self._read(sql, batch, local_id)]
        return sorted(found, key=lambda pair: pair[1].submitted or "", reverse=True)

    def last_token(self, job_id: str) -> str | None:
        """The highest token of a grid job, longer ones being higher; None where no submission was ever intended."""
        sql = "SELECT token FROM local_job WHERE grid_job = ? AND token IS NOT NULL"
        for (token,) in self._store.query(sql + " ORDER BY length(token) DESC, token DESC LIMIT 1", [job_id]):
            return str(token)
        return None

    def of_array(self, batch: str, array: str) -> "list[tuple[str, LocalJob]]":
        """Grid job and local job of each element of an array, by the array's id."""
        sql = "SELECT grid_job, number, document FROM local_job WHERE batch = ? AND array = ? ORDER BY number"
        return self._read(sql, batch, array)

    def size_of_array(self, batch: str, array: str) -> int:
        """How many elements of an array are known."""
        ((count,),) = self._store.query("SELECT count(*) FROM local_job WHERE batch = ? AND array = ?", [batch, array])
        return int(count)

    def list_open(self, batch: str) -> list[LocalJobKey]:
        """The local jobs on one batch system that are submitted and have not ended."""
        sql = (
            "SELECT grid_job, number, local_id, token, state, coalesce(wait_reason, ''), coalesce(helps, '')"
            " FROM local_job"
            # SQLite would search all that the batch system ever had.
            " INDEXED BY local_job_open WHERE batch = ? AND local_id IS NOT NULL AND state NOT IN ('done', 'failed')"
        )
        return [
            LocalJobKey(str(job), int(number), str(local_id), str(token), STATE_OF_WORD[str(state)], *map(str, said))
            for job, number, local_id, token, state, *said in self._store.query(sql, [batch])
        ]

    def blocked(self, job_id: str) -> list[Blocked]:
        """The local jobs of a grid job that do not go on by themselves, by what keeps them, the most first."""
        # Of a batch system that names no array each has a command of its own: the first stands for all.
        sql = (
            "SELECT count(*), min(number), coalesce(wait_reason, ''), helps FROM local_job"
            " WHERE grid_job = ? AND helps IS NOT NULL GROUP BY wait_reason ORDER BY 1 DESC, 2"
        )
        return [
            Blocked(int(count), int(first), *map(str, said)) for count, first, *said in self._store.query(sql, [job_id])
        ]

    def running_ids(self, grid_job: str, after: int, most: int) -> dict[int, str]:
        """By index: the batch system's id of each local job of a grid job that runs or is suspended.

        Of those the first ones, in order of their index, whose indexes are higher than ``after``.
        """
        sql = (
            "SELECT number, local_id FROM local_job INDEXED BY local_job_running"
            " WHERE grid_job = ? AND number > ? AND state IN ('active', 'suspended') ORDER BY number LIMIT ?"
        )
        return {int(number): str(local_id) for number, local_id in self._store.query(sql, [grid_job, after, most])}

    def batch_systems(self, grid_job: str) -> list[str]:
        """The batch systems that a grid job's local jobs are on, from the index only: there is one at most."""
        sql = "SELECT DISTINCT batch FROM local_job WHERE grid_job = ?"
        return [str(batch) for (batch,) in self._store.query(sql, [grid_job])]

    def is_registered(self, batch: str, token: str, array: str) -> bool:
        """True where an array of that id, or a local job in none, is registered under a token."""
        # The plus keeps SQLite from searching all that is under the token.
        sql = "SELECT 1 FROM local_job WHERE batch = ? AND {} = ? AND +token = ? LIMIT 1"
        return any(any(self._store.query(sql.format(name), [batch, array, token])) for name in ("array", "local_id"))

    def earlier_ids(self, grid_job: str) -> set[str]:
        """The ids that local jobs of a grid job had in earlier attempts, from the index only."""
        sql = "SELECT local_id FROM attempt WHERE grid_job = ? AND local_id IS NOT NULL"
        return {str(local_id) for (local_id,) in self._store.query(sql, [grid_job])}

    def tokens_in_doubt(self) -> set[str]:
        """The tokens of which some local jobs have no id yet."""
        sql = "SELECT DISTINCT token FROM local_job WHERE state = 'unsubmitted' AND token IS NOT NULL"
        return {str(row[0]) for row in self._store.query(sql)}

    # phases

    def phase_sums(self, job_id: str) -> list[PhaseSum]:
        """Every phase of a grid job, in the order in which its local jobs tell them."""
        return [
            PhaseSum(str(name), str(unit), int(done), int(total), int(local_jobs), int(begun), int(changed))
            for name, unit, done, total, local_jobs, begun, changed in self._store.query(_SUMS, [job_id])
        ]

    def open_parts(self, job_id: str) -> float:
        """How many phases the local jobs that have not ended have done, parts of phases counting as parts."""
        ((parts,),) = self._store.query(_OPEN_PARTS, [job_id])
        return float(parts)

    def silent(self, job_id: str, since: float) -> list[int]:
        """The running local jobs that have told phases, but nothing new of any since a time."""
        return [int(number) for (number,) in self._store.query(_SILENT, [job_id, int(since)])]

    # usage

    def usage(self, by: Sequence[str], since: float, until: float) -> list[Usage]:
        """The usage from one second to another, by some of `GROUPINGS`, a group each."""
        groups = [_COLUMNS[name] for name in by]
        known = f"local.cpu_seconds IS NOT NULL AND {_WALL} > 0"
        sums = [
            *(
                "count(DISTINCT local.grid_job)",
                "count(*)",
                "sum(local.outcome = 'succeeded')",
                "sum(local.outcome = 'cancelled')",
            ),
            *("total(local.cpu_seconds)", f"total({_WALL})"),
            f"total(CASE WHEN {known} THEN local.cpu_seconds END) / sum(CASE WHEN {known} THEN {_WALL} END)",
        ]
        sql = f"SELECT {', '.join([*sums, *groups])} {_ENDED_BETWEEN}" + _render_clauses(groups)
        return [
            Usage(tuple(map(str, group)), jobs, local_jobs, succeeded, cancelled, cpu, int(wall), efficiency)
            for jobs, local_jobs, succeeded, cancelled, cpu, wall, efficiency, *group in self._store.query(
                sql, (since, until)
            )
            if local_jobs
        ]

    def failure_reasons(self, by: Sequence[str], since: float, until: float) -> list[tuple[tuple[str, ...], str, int]]:
        """Group, reason and how many local jobs did not succeed for it, in the same span and groups."""
        groups = [_COLUMNS[name] for name in by]
        sql = (
            f"SELECT coalesce(local.reason, 'no reason known'), count(*){''.join(f', {column}' for column in groups)}"
            f" {_ENDED_BETWEEN} WHERE local.outcome <> 'succeeded'" + _render_clauses([*groups, "local.reason"])
        )
        return [
            (tuple(map(str, group)), str(reason), int(count))
            for reason, count, *group in self._store.query(sql, (since, until))
        ]


def _render_clauses(columns: Sequence[str]) -> str:
    return f" GROUP BY {', '.join(columns)} ORDER BY {', '.join(columns)}" if columns else ""
