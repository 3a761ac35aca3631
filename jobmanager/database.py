"""The XML job database: documents in one SQLite file, with a few columns derived from them as indexes."""

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from batch_adapters.states import STATE_OF_WORD, Event, State

if TYPE_CHECKING:  # lists and counts are read without XML: "samgrid status" never loads lxml
    from lxml import etree

    from jobmanager.grid_job import GridJob
    from jobmanager.local_job import LocalJob

_LAYOUT = """
CREATE TABLE IF NOT EXISTS grid_job (
    id TEXT PRIMARY KEY, type TEXT NOT NULL, state TEXT NOT NULL, owner TEXT NOT NULL,
    submitted TEXT NOT NULL, batch TEXT NOT NULL, cancelled INTEGER NOT NULL, uniqid TEXT UNIQUE,
    told TEXT NOT NULL, told_time INTEGER NOT NULL, document BLOB NOT NULL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS grid_job_by_state ON grid_job (state);
CREATE INDEX IF NOT EXISTS grid_job_by_told ON grid_job (told, told_time) WHERE uniqid IS NOT NULL;
CREATE TABLE IF NOT EXISTS local_job (
    grid_job TEXT NOT NULL, number INTEGER NOT NULL, state TEXT NOT NULL, batch TEXT NOT NULL,
    local_id TEXT, token TEXT, array TEXT, remark TEXT, unsuccessful INTEGER NOT NULL, document BLOB NOT NULL,
    PRIMARY KEY (grid_job, number)
);
CREATE INDEX IF NOT EXISTS local_job_by_state ON local_job (grid_job, state, unsuccessful);
CREATE INDEX IF NOT EXISTS local_job_by_id ON local_job (batch, local_id);
CREATE INDEX IF NOT EXISTS local_job_by_array ON local_job (batch, array);
CREATE INDEX IF NOT EXISTS local_job_by_token ON local_job (token);
CREATE TABLE IF NOT EXISTS waiting_event (
    number INTEGER PRIMARY KEY, batch TEXT NOT NULL, local_id TEXT NOT NULL, timestamp INTEGER NOT NULL,
    state INTEGER NOT NULL, exit_code INTEGER NOT NULL, received REAL NOT NULL
);
CREATE INDEX IF NOT EXISTS waiting_event_by_id ON waiting_event (batch, local_id);
CREATE TABLE IF NOT EXISTS missing (
    batch TEXT NOT NULL, local_id TEXT NOT NULL, answers INTEGER NOT NULL, since INTEGER NOT NULL,
    PRIMARY KEY (batch, local_id)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS waiting_event_by_age ON waiting_event (received);
CREATE TABLE IF NOT EXISTS generator (batch TEXT PRIMARY KEY, timestamp INTEGER NOT NULL);
"""


_PUT_GRID_JOB = """
INSERT INTO grid_job VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET
    state = excluded.state, cancelled = excluded.cancelled, uniqid = excluded.uniqid, told = excluded.told,
    told_time = excluded.told_time, document = excluded.document
"""


class DatabaseError(Exception):
    """The job database cannot be read or written now; the message says which file and why."""


class UnknownJob(LookupError):
    """No grid job, or more than one, answers to an id."""


@dataclass(frozen=True)
class Overview:
    """One line about one grid job; ``counts`` has the number of local jobs in each state that occurs."""

    id: str
    type: str
    state: str
    owner: str
    submitted: str
    counts: dict[str, int]
    unsuccessful: int
    """How many of those in the state done ended with another exit code than 0, or without their outputs."""


@dataclass(frozen=True)
class LocalJobKey:
    """What the indexes know of one local job."""

    grid_job: str
    index: int
    local_id: str
    token: str
    state: State
    remark: str


@dataclass(frozen=True)
class Untold:
    """A grid job of GRAM's whose end GRAM has not been told."""

    id: str
    state: State
    told: State | None
    """What GRAM was told last."""
    submitted: str


class Database:
    """The job database of one account. Every method reads or writes committed documents only.

    Writing methods belong inside ``with database.transaction():``.

    :raises DatabaseError: for anything that SQLite or the file system refuses (a full disk, a damaged file).
    """

    def __init__(self, path: Path | None) -> None:
        """``path`` None: an empty database in memory, in which everything can be asked and nothing is found."""
        self.path = path
        with self._translated():
            self._connection = sqlite3.connect(path or ":memory:", timeout=60, isolation_level=None)
            if path is not None:
                path.chmod(0o600)
            self._connection.execute("PRAGMA journal_mode = WAL")
            # An intent must outlive a power cut once its submit command runs: every commit reaches the disk.
            self._connection.execute("PRAGMA synchronous = FULL")
            self._connection.executescript(_LAYOUT)

    def close(self) -> None:
        """Give the file back."""
        self._connection.close()

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            raise DatabaseError(f"job database {self.path}: {error}") from error

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All of the block's writes, or none; writers wait for each other up to a minute."""
        with self._translated():
            self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            with self._translated():
                self._connection.execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                with self._translated():
                    self._connection.execute("ROLLBACK")
            raise

    def _query(self, sql: str, values: Iterable[object] = ()) -> Iterator[tuple[Any, ...]]:
        with self._translated():
            yield from self._connection.execute(sql, tuple(values))

    def _write(self, sql: str, rows: Iterable[tuple[object, ...]]) -> None:
        with self._translated():
            self._connection.executemany(sql, rows)

    def check_room(self) -> None:
        """Write and delete something larger than most transactions: a full disk may still take a few bytes."""
        with self._translated():
            self._connection.execute("CREATE TABLE IF NOT EXISTS room (filler BLOB)")
            self._connection.execute("INSERT INTO room VALUES (zeroblob(65536))")
            self._connection.execute("DELETE FROM room")

    # grid jobs

    def put_grid_job(self, job: "GridJob") -> None:
        """Write a grid job's document, new or changed."""
        indexes = (job.identity, job.job_type, job.state.word, job.owner, job.submitted, job.batch, job.cancelled)
        row = (*indexes, job.uniqid, job.told.word if job.told else "", job.told_time, job.to_bytes())
        # No REPLACE: that would drop another grid job of the same uniqid, where this must fail.
        self._write(_PUT_GRID_JOB, [row])

    def grid_job(self, identity: str) -> "GridJob":
        """The grid job of that id.

        :raises UnknownJob: if there is none.
        """
        from jobmanager.documents import read_xml
        from jobmanager.grid_job import GridJob

        for (document,) in self._query("SELECT document FROM grid_job WHERE id = ?", [identity]):
            return GridJob(read_xml(document))
        raise UnknownJob(f"there is no grid job {identity}")

    def change_grid_job(self, identity: str, change: "Callable[[GridJob], object]") -> "GridJob":
        """Read, change and write one grid job in a transaction of its own; the changed job."""
        with self.transaction():
            job = self.grid_job(identity)
            change(job)
            self.put_grid_job(job)
        return job

    def find_grid_job(self, prefix: str) -> str:
        """The id that starts so.

        :raises UnknownJob: if none or several do.
        """
        sql = "SELECT id FROM grid_job WHERE id >= ? AND id < ? ORDER BY id LIMIT 4"
        found = [str(row[0]) for row in self._query(sql, [prefix, prefix + "\x7f"])] if prefix.isascii() else []
        if not prefix or not found:
            raise UnknownJob(f'no grid job has an id that starts with "{prefix}": "samgrid status" lists them')
        if len(found) > 1:
            raise UnknownJob(f'"{prefix}" fits more than one grid job ({", ".join(found)} …): give more of the id')
        return found[0]

    def find_uniqid(self, uniqid: str) -> str | None:
        """The grid job that GRAM knows by that name of its own; None where there is none."""
        for (identity,) in self._query("SELECT id FROM grid_job WHERE uniqid = ?", [uniqid]):
            return str(identity)
        return None

    def untold_grid_jobs(self) -> list[Untold]:
        """The grid jobs that came through GRAM, and whose end GRAM has not been told."""
        sql = (
            "SELECT id, state, told, submitted FROM grid_job"
            " WHERE uniqid IS NOT NULL AND told IN ('', 'pending', 'active', 'suspended') ORDER BY submitted, id"
        )
        return [
            Untold(str(job), STATE_OF_WORD[str(state)], STATE_OF_WORD.get(str(told)), str(submitted))
            for job, state, told, submitted in self._query(sql)
        ]

    def grid_jobs_told_since(self, when: int) -> list[str]:
        """The grid jobs whose end GRAM has been told since a second."""
        sql = (
            "SELECT id FROM grid_job WHERE uniqid IS NOT NULL AND told IN ('done', 'failed') AND told_time >= ?"
            " ORDER BY told_time, id"
        )
        return [str(row[0]) for row in self._query(sql, [when])]

    def is_taken(self, identity: str) -> bool:
        """True if a grid job of that id exists."""
        return any(self._query("SELECT 1 FROM grid_job WHERE id = ?", [identity]))

    def overview(self, identity: str | None = None) -> list[Overview]:
        """A line per grid job, the newest last; or of one only."""
        condition = "" if identity is None else " WHERE {} = ?"
        values = () if identity is None else (identity,)
        counts: dict[str, dict[str, int]] = {}
        unsuccessful: dict[str, int] = {}
        sql = "SELECT grid_job, state, count(*), sum(unsuccessful) FROM local_job" + condition.format("grid_job")
        for job, state, number, failures in self._query(sql + " GROUP BY grid_job, state", values):
            counts.setdefault(job, {})[state] = number
            unsuccessful[job] = unsuccessful.get(job, 0) + failures
        sql = "SELECT id, type, state, owner, submitted FROM grid_job" + condition.format("id")
        rows = self._query(sql + " ORDER BY submitted, id", values)
        return [
            Overview(job, job_type, state, owner, submitted, counts.get(job, {}), unsuccessful.get(job, 0))
            for job, job_type, state, owner, submitted in rows
        ]

    def open_grid_jobs(self) -> list[tuple[str, str, bool]]:
        """Id, batch system and tombstone of every grid job that has not ended."""
        sql = "SELECT id, batch, cancelled FROM grid_job WHERE state NOT IN ('done', 'failed') ORDER BY submitted, id"
        return [(str(job), str(batch), bool(cancelled)) for job, batch, cancelled in self._query(sql)]

    def batch_systems(self) -> list[str]:
        """The batch systems of all grid jobs, those that have ended included."""
        return [str(row[0]) for row in self._query("SELECT DISTINCT batch FROM grid_job ORDER BY batch")]

    # local jobs

    def put_local_jobs(self, identity: str, jobs: "Iterable[LocalJob]") -> None:
        """Write local jobs' documents, new or changed."""
        rows = (
            (
                *(identity, job.index, job.state.word, job.batch, job.local_id),
                *(job.token, job.array, job.remark, job.unsuccessful, job.to_bytes()),
            )
            for job in jobs
        )
        self._write("INSERT OR REPLACE INTO local_job VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", rows)

    def local_jobs(self, identity: str, *states: State) -> "list[LocalJob]":
        """The local jobs of a grid job in order of their index; only those in the given states, if any are given."""
        chosen = f" AND state IN ({','.join('?' * len(states))})" if states else ""
        return self._local_jobs(chosen + " ORDER BY number", identity, *(state.word for state in states))

    def local_job(self, identity: str, index: int) -> "LocalJob":
        """One local job of a grid job."""
        return self._local_jobs(" AND number = ?", identity, index)[0]

    def first_failed_local_job(self, identity: str) -> "LocalJob | None":
        """The first local job of a grid job that failed, or whose "done" does not mean success."""
        failed = self._local_jobs(" AND (state = 'failed' OR unsuccessful) ORDER BY number LIMIT 1", identity)
        return failed[0] if failed else None

    def local_jobs_to_submit(self, identity: str, limit: int) -> "list[LocalJob]":
        """The first local jobs of a grid job that no submission was ever intended for."""
        return self._local_jobs(" AND state = 'unsubmitted' AND token IS NULL ORDER BY number LIMIT ?", identity, limit)

    def local_jobs_in_doubt(self, identity: str) -> "list[LocalJob]":
        """The local jobs of a grid job whose submission was intended, but whose id is not known."""
        return self._local_jobs(" AND state = 'unsubmitted' AND token IS NOT NULL ORDER BY number", identity)

    def _local_jobs(self, condition: str, *values: object) -> "list[LocalJob]":
        from jobmanager.documents import read_xml
        from jobmanager.local_job import LocalJob

        rows = self._query("SELECT document FROM local_job WHERE grid_job = ?" + condition, values)
        return [LocalJob(read_xml(document)) for (document,) in rows]

    def count_local_jobs(self, identity: str) -> dict[State, int]:
        """How many local jobs of a grid job are in each state."""
        sql = "SELECT state, count(*) FROM local_job WHERE grid_job = ? GROUP BY state"
        return {STATE_OF_WORD[str(state)]: int(number) for state, number in self._query(sql, [identity])}

    def find_local_job(self, batch: str, local_id: str) -> "tuple[str, LocalJob] | None":
        """Grid job and local job that an id names: the last submitted, as batch systems use ids again after crashes."""
        from jobmanager.documents import read_xml
        from jobmanager.local_job import LocalJob

        sql = "SELECT grid_job, document FROM local_job WHERE batch = ? AND local_id = ?"
        found = [(job, LocalJob(read_xml(document))) for job, document in self._query(sql, [batch, local_id])]
        return max(found, key=lambda pair: pair[1].submitted or "", default=None)

    def local_jobs_named(self, local_id: str) -> "list[tuple[str, LocalJob]]":
        """Grid job and local job of every batch system that an id names or has named, the last submitted first."""
        from jobmanager.documents import read_xml
        from jobmanager.local_job import LocalJob

        # By batch system: the index begins with it.
        sql = "SELECT grid_job, document FROM local_job WHERE batch = ? AND local_id = ?"
        rows = [row for batch in self.batch_systems() for row in self._query(sql, [batch, local_id])]
        found = [(str(job), LocalJob(read_xml(document))) for job, document in rows]
        return sorted(found, key=lambda pair: pair[1].submitted or "", reverse=True)

    def last_token(self, identity: str) -> str | None:
        """The highest token of a grid job, longer ones being higher; None where no submission was ever intended."""
        sql = "SELECT token FROM local_job WHERE grid_job = ? AND token IS NOT NULL"
        for (token,) in self._query(sql + " ORDER BY length(token) DESC, token DESC LIMIT 1", [identity]):
            return str(token)
        return None

    def local_jobs_of_array(self, batch: str, array: str) -> "list[tuple[str, LocalJob]]":
        """Grid job and local job of each element of an array, by the array's id."""
        from jobmanager.documents import read_xml
        from jobmanager.local_job import LocalJob

        sql = "SELECT grid_job, document FROM local_job WHERE batch = ? AND array = ? ORDER BY number"
        return [(str(job), LocalJob(read_xml(document))) for job, document in self._query(sql, [batch, array])]

    def open_local_jobs(self, batch: str) -> list[LocalJobKey]:
        """The local jobs on one batch system that are submitted and have not ended."""
        sql = (
            "SELECT grid_job, number, local_id, token, state, coalesce(remark, '') FROM local_job"
            " WHERE batch = ? AND local_id IS NOT NULL"
            " AND state NOT IN ('done', 'failed')"
        )
        return [
            LocalJobKey(str(job), int(number), str(local_id), str(token), STATE_OF_WORD[str(state)], str(remark))
            for job, number, local_id, token, state, remark in self._query(sql, [batch])
        ]

    def running_local_ids(self, grid_job: str) -> dict[int, str]:
        """By index: the batch system's id of each local job of a grid job that runs or is suspended."""
        sql = "SELECT number, local_id FROM local_job WHERE grid_job = ? AND state IN ('active', 'suspended')"
        return {int(number): str(local_id) for number, local_id in self._query(sql, [grid_job])}

    def arrays_of_token(self, token: str) -> set[str]:
        """The ids of arrays, or of local jobs in none, that are registered under a token."""
        sql = "SELECT DISTINCT coalesce(array, local_id) FROM local_job WHERE token = ? AND local_id IS NOT NULL"
        return {str(row[0]) for row in self._query(sql, [token])}

    def tokens_in_doubt(self) -> set[str]:
        """The tokens of which some local jobs have no id yet."""
        sql = "SELECT DISTINCT token FROM local_job WHERE state = 'unsubmitted' AND token IS NOT NULL"
        return {str(row[0]) for row in self._query(sql)}

    # what the batch system's answers did not show

    def missing(self, batch: str) -> dict[str, tuple[int, int]]:
        """By local id: in how many answers in a row it was missing, and since when (seconds since 1970)."""
        sql = "SELECT local_id, answers, since FROM missing WHERE batch = ?"
        return {str(row[0]): (int(row[1]), int(row[2])) for row in self._query(sql, [batch])}

    def put_missing(self, batch: str, missing: Mapping[str, tuple[int, int]]) -> None:
        """Replace what `missing` gives."""
        self._write("DELETE FROM missing WHERE batch = ?", [(batch,)])
        rows = ((batch, local_id, answers, since) for local_id, (answers, since) in missing.items())
        self._write("INSERT INTO missing VALUES (?, ?, ?, ?)", rows)

    # events

    def put_waiting_events(self, batch: str, events: Iterable[Event], now: float) -> None:
        """Keep events of ids that nobody has registered (the seed design's soft-state cache)."""
        rows = ((batch, e.local_id, e.timestamp, e.state.value, e.exit_code, now) for e in events)
        columns = "batch, local_id, timestamp, state, exit_code, received"
        self._write(f"INSERT INTO waiting_event ({columns}) VALUES (?, ?, ?, ?, ?, ?)", rows)

    def take_waiting_events(self, batch: str, local_id: str) -> list[Event]:
        """The kept events of an id in the order in which they came, which are then forgotten."""
        values = (batch, local_id)
        sql = "SELECT timestamp, state, exit_code FROM waiting_event WHERE batch = ? AND local_id = ? ORDER BY number"
        events = [Event(int(t), local_id, State(s), int(c)) for t, s, c in self._query(sql, values)]
        if events:
            self._write("DELETE FROM waiting_event WHERE batch = ? AND local_id = ?", [values])
        return events

    def drop_waiting_events(self, before: float) -> None:
        """Forget the kept events that were received before a time."""
        self._write("DELETE FROM waiting_event WHERE received < ?", [(before,)])

    def generator_time(self, batch: str) -> int | None:
        """The stamp from which a batch system's generator must replay; None if none ever ran."""
        for (timestamp,) in self._query("SELECT timestamp FROM generator WHERE batch = ?", [batch]):
            return int(timestamp)
        return None

    def put_generator_time(self, batch: str, timestamp: int) -> None:
        """Keep that stamp; it never goes back."""
        self._write(
            "INSERT INTO generator VALUES (?, ?) ON CONFLICT (batch) DO UPDATE SET"
            " timestamp = max(timestamp, excluded.timestamp)",
            [(batch, timestamp)],
        )

    # reading as XML

    def to_xml(self, identity: str | None = None) -> "etree._Element":
        """One tree over all grid jobs with their local jobs inside, or over one, under the root ``jobs``."""
        from jobmanager.documents import read_xml

        condition = "" if identity is None else " WHERE {} = ?"
        values = () if identity is None else (identity,)
        inside: dict[str, list[bytes]] = {}
        sql = "SELECT grid_job, document FROM local_job" + condition.format("grid_job")
        for job, document in self._query(sql + " ORDER BY grid_job, number", values):
            inside.setdefault(job, []).append(document)
        parts = [b"<jobs>"]
        sql = "SELECT id, document FROM grid_job" + condition.format("id") + " ORDER BY submitted, id"
        for job, document in self._query(sql, values):
            head = document.removesuffix(b"</grid-job>")
            parts += [head, *inside.get(job, []), b"</grid-job>"]
        return read_xml(b"".join([*parts, b"</jobs>"]))
