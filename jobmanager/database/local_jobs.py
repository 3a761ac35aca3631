"""The job database's local jobs: their documents, and a few columns derived from them as indexes."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from batch_adapters.states import STATE_OF_WORD, State
from jobmanager.database.details import ATTEMPTS, PHASES, column_of
from jobmanager.database.sqlite import Quarantine, Store, Table, render_array

if TYPE_CHECKING:  # lists and counts are read without XML: "samgrid status" never loads lxml
    from jobmanager.database.local_job import LocalJob


LOCAL_JOBS = Table(
    "local_job",
    {"grid_job": "TEXT NOT NULL", "number": "INTEGER NOT NULL"},
    {
        "state": column_of("state", "TEXT NOT NULL"),
        "batch": column_of("batch", "TEXT NOT NULL"),
        "local_id": column_of("id"),
        "token": column_of("token"),
        "array": column_of("array"),
        "wait_reason": column_of("wait-reason"),
        "helps": column_of("helps"),
        "outcome": column_of("outcome"),
        "cause": column_of("cause"),
        "submitted": ("INTEGER", attrgetter("submitted_time")),
        "started": ("INTEGER", attrgetter("started_time")),
        "ended": ("INTEGER", attrgetter("ended_time")),
        "cpu_seconds": "REAL",
        "host": column_of("host"),
        "reason": column_of("reason"),
        "document": ("BLOB NOT NULL", lambda job: job.to_bytes()),
    },
    lambda grid_job, job: [((grid_job, job.index), job)],
    (
        "local_job_by_state ON local_job (grid_job, state, outcome)",
        "local_job_by_id ON local_job (batch, local_id)",
        "local_job_by_array ON local_job (batch, array)",
        "local_job_by_token ON local_job (token)",
        # For frequent queries about open local jobs, however many have ended.
        "local_job_open ON local_job (batch) WHERE local_id IS NOT NULL AND state NOT IN ('done', 'failed')",
        "local_job_running ON local_job (grid_job, number, local_id) WHERE state IN ('active', 'suspended')",
        "local_job_by_end ON local_job (ended, grid_job, outcome) WHERE outcome IS NOT NULL",
        "local_job_unsubmitted ON local_job (token, grid_job, number) WHERE state = 'unsubmitted'",
        "local_job_blocked ON local_job (grid_job) WHERE helps IS NOT NULL",
    ),
    settled=("batch", "local_id", "token", "array"),
)
LOCAL_JOB_ATTRIBUTES = {
    **{name: f"local_job.{name}" for name in ("state", "batch", "token", "array", "helps", "outcome", "cause", "host")},
    "id": "local_job.local_id",
    "wait-reason": "local_job.wait_reason",
    "reason": "local_job.reason",
}
"""The column of each attribute that a column has as it is."""
COUNTS = """
CREATE TABLE IF NOT EXISTS local_job_count (
    grid_job TEXT NOT NULL, state TEXT NOT NULL, outcome TEXT NOT NULL, number INTEGER NOT NULL,
    PRIMARY KEY (grid_job, state, outcome)
) WITHOUT ROWID;
"""
"""How many local jobs of a grid job are in each state and outcome. Updated with each write, so that an event does not
cost more if there are more local jobs. Rows with 0 may remain."""
# CROSS JOIN makes SQLite start from these numbers, instead of searching the whole grid job.
_NUMBERED = "json_each(?) CROSS JOIN local_job ON grid_job = ? AND local_job.number = value"
_ADD = f"""
INSERT INTO local_job_count SELECT grid_job, state, coalesce(outcome, ''), ? * count(*)
FROM {_NUMBERED} GROUP BY state, outcome ON CONFLICT DO UPDATE SET number = number + excluded.number
"""
_SETTLED = f"SELECT {', '.join((*LOCAL_JOBS.key, *LOCAL_JOBS.settled))} FROM {_NUMBERED}"
"""SQL: key and settled columns of a grid job's local jobs with these numbers."""
_FORGET_PHASES = "DELETE FROM phase WHERE grid_job = ? AND number IN (SELECT value FROM json_each(?))"
COUNTED = "SELECT grid_job, state, coalesce(outcome, ''), count(*) FROM local_job GROUP BY 1, 2, 3"
"""SQL for the correct counts."""

STANDING = "CASE outcome WHEN '' THEN state WHEN 'succeeded' THEN 'done' ELSE outcome END"
"""SQL: the word for people: a local job's state or, once it has ended, its outcome (``done`` if it succeeded)."""

_OPEN = "(SELECT id, batch, submitted AS came FROM grid_job WHERE state NOT IN ('done', 'failed'))"
_CAME = "CAST(strftime('%s', came) AS INTEGER)"
_ELDEST = f"""
SELECT min(since) FROM (
    SELECT max({_CAME}, coalesce((
        SELECT max(ended) FROM attempt WHERE attempt.grid_job = id AND attempt.number = local_job.number
    ), 0)) AS since FROM {_OPEN} CROSS JOIN local_job ON grid_job = id AND state = 'unsubmitted'
    UNION ALL SELECT {_CAME} FROM {_OPEN}
    WHERE id NOT IN (SELECT grid_job FROM step) AND NOT EXISTS (SELECT 1 FROM local_job WHERE grid_job = id)
)
"""
"""SQL; grid jobs that have no local jobs yet count, too, but not those with steps."""

_LINE = (
    "number, state, outcome, cause, local_id, submitted, started, ended, cpu_seconds,"
    " coalesce(reason, wait_reason), host"
)
"""SQL: the fields of a `LocalJobLine`."""
_LIVE = "number, grid_job, local_id, array, token, state, coalesce(wait_reason, ''), coalesce(helps, '')"
"""SQL: the fields of a `LiveJob`."""
_IS_LIVE = "local_id IS NOT NULL AND state NOT IN ('done', 'failed')"
BLOCKED = (
    "SELECT number, coalesce(wait_reason, '') AS why, helps FROM local_job WHERE grid_job = {0} AND helps IS NOT NULL"
    " UNION ALL SELECT number, reason, '' FROM local_job WHERE grid_job = {0} AND state IN ('active', 'suspended')"
    " AND reason LIKE '% waits for room: %' AND helps IS NULL"
)
"""SQL: the blocked local jobs of the grid job {0}. A driver waits for room; its other problems are the end of it."""
AT_ONCE = 500
"""Documents that are in memory at once, because a grid job may have any number."""


@dataclass(frozen=True, slots=True)
class LiveJob:
    """A local job that the batch system has, from its columns."""

    index: int
    grid_job: str
    local_id: str
    array: str | None
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
    """Why, as the batch system or the driver says."""
    helps: str
    """The command that lets the first one, or all of them, go on; empty if there is none, as for a full disk."""


@dataclass(frozen=True, slots=True)
class FailedJob:
    """A local job that ended without success, from its columns, or the first of several with the same end."""

    index: int
    attempt: int
    """Which attempt that was, from 1."""
    cause: str | None
    ended: int | None
    """Seconds since the epoch; the earliest end of several."""
    count: int = 1
    """How many have the same attempt number and cause."""


@dataclass(frozen=True, slots=True)
class LocalJobLine:
    """One line about one local job; times are seconds since the epoch, None if not known."""

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
    host: str | None = None

    @property
    def succeeded(self) -> bool:
        return self.outcome == "succeeded"


# Only few local jobs are in doubt: without this, SQLite would search the whole grid job.
_IN_DOUBT = "INDEXED BY local_job_unsubmitted WHERE state = 'unsubmitted' AND token IS NOT NULL AND grid_job = ?"


class LocalJobs:
    """Local jobs by grid job, by the batch system's ids, and by token."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.quarantine = Quarantine(store)

    def put(self, job_id: str, jobs: "Iterable[LocalJob]") -> None:
        """Write documents of local jobs, new or changed; of several with the same index, the last one."""
        documents = [(job_id, job) for job in {job.index: job for job in jobs}.values()]
        numbers = render_array(job.index for _, job in documents)
        self._store.write(_ADD, [(-1, numbers, job_id)])
        self._store.put(LOCAL_JOBS, documents, set(self._store.query(_SETTLED, [numbers, job_id])))
        self._store.write(_ADD, [(1, numbers, job_id)])
        self._store.write(_FORGET_PHASES, [(job_id, numbers)])
        # Until it is seen to run, a local job mostly has no elements.
        with_elements = [document for document in documents if len(document[1].element)]
        for table in (PHASES, ATTEMPTS):
            self._store.put(table, with_elements)

    def count_anew(self) -> None:
        """Compute the counts again."""
        self._store.write("DELETE FROM local_job_count")
        self._store.write(f"INSERT INTO local_job_count {COUNTED}")

    def all_of(self, job_id: str) -> "list[LocalJob]":
        """The local jobs of a grid job in order of their index."""
        return list(self.each(job_id))

    def each(self, job_id: str) -> "Iterator[LocalJob]":
        """The same one after another, for grid jobs whose documents do not fit into memory."""
        last = 0
        while jobs := self._local_jobs(" AND number > ? ORDER BY number LIMIT ?", job_id, last, AT_ONCE):
            yield from jobs
            last = jobs[-1].index

    def of_token(self, job_id: str, token: str) -> "list[LocalJob]":
        """The local jobs of one submission of a grid job, in order of their index."""
        # The plus makes SQLite use the token's index, instead of searching the whole grid job.
        return [job for _, job in self._read("WHERE token = ? AND +grid_job = ? ORDER BY number", token, job_id)]

    def get(self, job_id: str, index: int) -> "LocalJob":
        return self._local_jobs(" AND number = ?", job_id, index)[0]

    def first_failed(self, job_id: str) -> "LocalJob | None":
        """The first local job of a grid job that ended without success."""
        failed = self._local_jobs(" AND outcome <> 'succeeded' ORDER BY number LIMIT 1", job_id)
        return failed[0] if failed else None

    def failed(self, job_id: str, each: bool = False) -> list[FailedJob]:
        """The local jobs of a grid job that ended without success, ``each`` or grouped by attempt and cause."""
        past = "SELECT count(*) FROM attempt WHERE grid_job = local_job.grid_job AND number = local_job.number"
        sql = (
            f"SELECT min(number), 1 + ({past}) AS tried, cause, min(ended), count(*) FROM local_job WHERE grid_job = ?"
            " AND state IN ('done', 'failed') AND outcome IN ('failed', 'cancelled')"
            f" GROUP BY {'number' if each else 'tried, cause'} ORDER BY 1"
        )
        return [FailedJob(*row) for row in self._store.query(sql, [job_id])]

    def unsubmitted(self, job_id: str) -> "list[LocalJob]":
        """Some of a grid job's local jobs that are not submitted; empty if all are."""
        return self._local_jobs(" AND state = 'unsubmitted' LIMIT ?", job_id, AT_ONCE)

    def to_submit(self, job_id: str, limit: int) -> "list[LocalJob]":
        """The first local jobs of a grid job that have no token."""
        return self._local_jobs(" AND state = 'unsubmitted' AND token IS NULL ORDER BY number LIMIT ?", job_id, limit)

    def in_doubt(self, job_id: str) -> "list[LocalJob]":
        """The local jobs of a grid job that have a token, but no id."""
        return [job for _, job in self._read(f"{_IN_DOUBT} ORDER BY number", job_id)]

    def is_in_doubt(self, job_id: str) -> bool:
        """True if a grid job has such local jobs."""
        return any(self._store.query(f"SELECT 1 FROM local_job {_IN_DOUBT} LIMIT 1", [job_id]))

    def _local_jobs(self, condition: str, *values: object) -> "list[LocalJob]":
        return [job for _, job in self._read(f"WHERE grid_job = ?{condition}", *values)]

    def _read(self, clauses: str, *values: object) -> "list[tuple[str, LocalJob]]":
        """Grid job and local job of each row that SQL clauses select.

        :raises DamagedDocument: one of them cannot be read.
        """
        rows = self._store.query(f"SELECT grid_job, number, document FROM local_job {clauses}", values)
        return [(job, _read_local_job(document, job, number)) for job, number, document in rows]

    def lines(self, job_id: str) -> Iterator[LocalJobLine]:
        """A line for each local job of a grid job, in order of their index; few are in memory at once."""
        for number, state, *rest in self._each_row(_LINE, job_id):
            yield LocalJobLine(number, STATE_OF_WORD[state], *rest)

    def ends(self, job_id: str) -> Iterator[tuple[LocalJobLine, tuple[str, ...]]]:
        """The same, each with its lost outputs."""
        losing = "CASE WHEN instr(document, '<lost') THEN document END"
        for number, state, *rest, document in self._each_row(f"{_LINE}, {losing}", job_id):
            lost = _read_local_job(document, job_id, number).lost() if document else ()
            yield LocalJobLine(number, STATE_OF_WORD[state], *rest), lost

    def with_one_id(self, job_id: str) -> dict[str, set[int]]:
        """The indexes of local jobs that have the same id as another one of the grid job, by that id."""
        sql = (
            "SELECT local_id, group_concat(number) FROM local_job WHERE grid_job = ? AND local_id IS NOT NULL"
            " GROUP BY local_id HAVING count(*) > 1"
        )
        return {local_id: set(map(int, numbers.split(","))) for local_id, numbers in self._store.query(sql, [job_id])}

    def waiting(self, job_id: str, before: float) -> list[int]:
        """The indexes of a grid job's local jobs that were submitted before then, and wait or are blocked."""
        sql = (
            "SELECT number FROM local_job WHERE grid_job = ? AND state IN ('pending', 'suspended')"
            " AND (state = 'pending' OR helps IS NOT NULL) AND submitted <= ? ORDER BY number"
        )
        return self._store.values(sql, [job_id, int(before)])

    def live(self, job_id: str) -> Iterator[LiveJob]:
        """The local jobs of a grid job that are submitted and have not ended."""
        return map(_read_live, self._each_row(_LIVE, job_id, _IS_LIVE))

    def _each_row(self, columns: str, job_id: str, condition: str = "TRUE") -> Iterator[tuple[Any, ...]]:
        """Columns (first the number) of a grid job's local jobs, read in several transactions."""
        where = f"grid_job = ? AND number > ? AND {condition}"
        sql = f"SELECT {columns} FROM local_job WHERE {where} ORDER BY number LIMIT ?"
        last = 0
        while rows := list(self._store.query(sql, (job_id, last, AT_ONCE))):
            yield from rows
            last = rows[-1][0]

    def count_ends(self, job_id: str) -> Counter[str]:
        """How many local jobs of a grid job have each outcome; the empty text is for those without one."""
        sql = "SELECT outcome, sum(number) FROM local_job_count WHERE grid_job = ? GROUP BY outcome"
        return Counter(dict(self._store.query(sql, [job_id])))

    def first_start(self, job_id: str) -> int | None:
        """When the first of a grid job's local jobs started, seconds since the epoch; None if none has."""
        return self._store.value(int, "SELECT min(started) FROM local_job WHERE grid_job = ?", [job_id])

    def first_start_ever(self, job_id: str) -> int | None:
        """When the first of a grid job's local jobs started, in any attempt; None if none has."""
        starts = [f"SELECT started FROM {table} WHERE grid_job = ?" for table in ("local_job", "attempt")]
        return self._store.value(int, f"SELECT min(started) FROM ({' UNION ALL '.join(starts)})", [job_id, job_id])

    def once_blocked(self, job_id: str, limit: int) -> "list[LocalJob]":
        """The first local jobs of a grid job that are, or have been, held or blocked."""
        return self._local_jobs(" AND instr(document, ' helps=\"') ORDER BY number LIMIT ?", job_id, limit)

    def last_end(self, job_id: str) -> int:
        """When the last of a grid job's local jobs ended, seconds since the epoch; 0 if none has."""
        return self._store.value(int, "SELECT max(ended) FROM local_job WHERE grid_job = ?", [job_id]) or 0

    def first_submission(self, job_id: str) -> int | None:
        """When the first local job of a grid job was submitted, seconds since the epoch; None if none was."""
        return self._store.value(int, "SELECT min(submitted) FROM local_job WHERE grid_job = ?", [job_id])

    def count(self, job_id: str) -> dict[State, int]:
        """How many local jobs of a grid job are in each state."""
        sql = "SELECT state, sum(number) FROM local_job_count WHERE grid_job = ? AND number GROUP BY state"
        return {STATE_OF_WORD[state]: number for state, number in self._store.query(sql, [job_id])}

    def count_open(self) -> list[tuple[str, str, int]]:
        """Batch system, standing (see `STANDING`) and number of local jobs, over all open grid jobs."""
        sql = (
            f"SELECT batch, {STANDING} AS standing, sum(number) FROM {_OPEN}"
            " CROSS JOIN local_job_count ON grid_job = id WHERE number GROUP BY batch, standing"
        )
        return [(batch, standing, count) for batch, standing, count in self._store.query(sql)]

    def eldest_unsubmitted(self) -> int | None:
        """Since when the oldest local job waits to be submitted, seconds since the epoch; None if none does.

        It waits since its request was accepted, or since the end of its previous attempt.
        """
        return self._store.value(int, _ELDEST)

    def find(self, batch: str, local_id: str) -> "tuple[str, LocalJob] | None":
        """Grid job and local job with an id: the last submitted one, as batch systems may reuse ids after crashes."""
        # Only this one is read: an old document that cannot be read does not matter.
        found = self._read("WHERE batch = ? AND local_id = ? ORDER BY submitted DESC LIMIT 1", batch, local_id)
        return found[0] if found else None

    def find_all(self, batch: str, local_ids: Iterable[str]) -> dict[str, tuple[str, int, bytes]]:
        """Grid job, number and document of the local job with each of these ids, by id; see `find`."""
        sql = (
            "SELECT local_id, grid_job, number, document FROM local_job"
            " WHERE batch = ? AND local_id IN (SELECT value FROM json_each(?)) ORDER BY submitted"
        )
        rows = self._store.query(sql, [batch, render_array(local_ids)])
        return {local_id: (job, number, data) for local_id, job, number, data in rows}

    def named(self, local_id: str) -> "list[tuple[str, LocalJob]]":
        """All local jobs with that id, with their grid jobs, on any batch system, the last submitted first."""
        # Batch system by batch system, because the index begins with that column.
        batches = self._store.values("SELECT DISTINCT batch FROM grid_job ORDER BY batch")
        found = [pair for batch in batches for pair in self._read("WHERE batch = ? AND local_id = ?", batch, local_id)]
        return sorted(found, key=lambda pair: pair[1].submitted_time or 0, reverse=True)

    def last_token(self, job_id: str) -> str | None:
        """The highest token of a grid job (a longer one is higher); None if it has none."""
        sql = "SELECT token FROM local_job WHERE grid_job = ? AND token IS NOT NULL"
        return self._store.value(str, sql + " ORDER BY length(token) DESC, token DESC LIMIT 1", [job_id])

    def of_array(self, batch: str, array: str) -> "list[tuple[str, LocalJob]]":
        """Grid job and local job of each element of the array with that id."""
        return self._read("WHERE batch = ? AND array = ? ORDER BY number", batch, array)

    def size_of_array(self, batch: str, array: str) -> int:
        sql = "SELECT count(*) FROM local_job WHERE batch = ? AND array = ?"
        return self._store.value(int, sql, [batch, array]) or 0

    def list_open(self, batch: str) -> list[LiveJob]:
        """The local jobs on one batch system that are submitted and have not ended."""
        # Without the index, SQLite would search all local jobs that the batch system ever had.
        sql = f"SELECT {_LIVE} FROM local_job INDEXED BY local_job_open WHERE batch = ? AND {_IS_LIVE}"
        return list(map(_read_live, self._store.query(sql, [batch])))

    def unexplained(self, batch: str, local_ids: Iterable[str]) -> list[LiveJob]:
        """The local jobs with these ids that have ended, as far as the batch system has not said why."""
        sql = (
            f"SELECT {_LIVE} FROM local_job WHERE batch = ? AND local_id IN (SELECT value FROM json_each(?))"
            " AND outcome IS NOT NULL AND coalesce(cause, 'signal') IN ('signal', 'exit-code', 'never-started')"
        )
        return list(map(_read_live, self._store.query(sql, [batch, render_array(local_ids)])))

    def blocked(self, job_id: str) -> list[Blocked]:
        """The blocked local jobs of a grid job, grouped by reason, the most frequent first."""
        # Each may have its own command, if the batch system has no arrays: the first one is shown.
        found = BLOCKED.format("?")
        sql = f"SELECT count(*), min(number), why, helps FROM ({found}) GROUP BY why ORDER BY 1 DESC, 2"
        return [Blocked(*row) for row in self._store.query(sql, [job_id, job_id])]

    def running_ids(self, grid_job: str, after: int, most: int) -> dict[int, str]:
        """The ids, by index, of a grid job's local jobs that run or are suspended.

        At most ``most`` of them, in order of their index, with indexes higher than ``after``.
        """
        sql = (
            "SELECT number, local_id FROM local_job INDEXED BY local_job_running"
            " WHERE grid_job = ? AND number > ? AND state IN ('active', 'suspended') ORDER BY number LIMIT ?"
        )
        return dict(self._store.query(sql, [grid_job, after, most]))

    def is_registered(self, batch: str, token: str, array: str) -> bool:
        """True if an array with that id, or a single local job, is registered under that token."""
        # The plus makes SQLite use the id's index, not the token's.
        sql = "SELECT 1 FROM local_job WHERE batch = ? AND {} = ? AND +token = ? LIMIT 1"
        return any(any(self._store.query(sql.format(name), [batch, array, token])) for name in ("array", "local_id"))

    def tokens_in_doubt(self) -> set[str]:
        """The tokens of local jobs that have no id yet."""
        sql = "SELECT DISTINCT token FROM local_job WHERE state = 'unsubmitted' AND token IS NOT NULL"
        return set(self._store.values(sql))


def _read_local_job(document: bytes, grid_job: str, number: int) -> "LocalJob":
    from jobmanager.database.documents import read_document
    from jobmanager.database.local_job import LocalJob

    return LocalJob(read_document(LocalJob.tag, document, grid_job, number))


def _read_live(row: Sequence[Any]) -> LiveJob:
    return LiveJob(*(*row[:5], STATE_OF_WORD[row[5]], *row[6:]))
