"""The job database's table of local jobs: their documents, and a few columns derived from them as indexes."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from batch_adapters.states import STATE_OF_WORD, State
from jobmanager.grid_job_table import GridJobTable
from jobmanager.phase_table import PhaseTable
from jobmanager.usage_table import UsageTable

if TYPE_CHECKING:  # lists and counts are read without XML: "samgrid status" never loads lxml
    from jobmanager.local_job import LocalJob

SCHEMA = """
CREATE TABLE IF NOT EXISTS local_job (
    grid_job TEXT NOT NULL, number INTEGER NOT NULL, state TEXT NOT NULL, batch TEXT NOT NULL,
    local_id TEXT, token TEXT, array TEXT, remark TEXT, unsuccessful INTEGER NOT NULL,
    submitted INTEGER, started INTEGER, ended INTEGER, cpu_seconds REAL, reason TEXT, document BLOB NOT NULL,
    PRIMARY KEY (grid_job, number)
);
CREATE INDEX IF NOT EXISTS local_job_by_state ON local_job (grid_job, state, unsuccessful);
CREATE INDEX IF NOT EXISTS local_job_by_id ON local_job (batch, local_id);
CREATE INDEX IF NOT EXISTS local_job_by_array ON local_job (batch, array);
CREATE INDEX IF NOT EXISTS local_job_by_token ON local_job (token);
"""


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
class LocalJobLine:
    """One line about one local job; times in seconds since the epoch, None where nothing is known."""

    index: int
    state: State
    unsuccessful: bool
    local_id: str | None
    submitted: int | None
    started: int | None
    ended: int | None
    cpu_seconds: float | None
    reason: str | None


class LocalJobTable(GridJobTable, PhaseTable, UsageTable):
    """Local jobs by grid job, by the batch system's ids, and by token."""

    def put_local_jobs(self, identity: str, jobs: "Iterable[LocalJob]") -> None:
        """Write local jobs' documents, new or changed."""
        jobs = list(jobs)
        self._put_phases(identity, jobs)
        self._put_attempts(identity, jobs)
        rows = (
            (
                *(identity, job.index, job.state.word, job.batch, job.local_id, job.token, job.array, job.remark),
                *(job.unsuccessful, job.submitted_time, job.started_time, job.ended_time, job.cpu_seconds, job.reason),
                job.to_bytes(),
            )
            for job in jobs
        )
        self._write(f"INSERT OR REPLACE INTO local_job VALUES ({', '.join('?' * 15)})", rows)

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

    def local_job_lines(self, identity: str) -> list[LocalJobLine]:
        """A line per local job of a grid job, in order of their index."""
        sql = (
            "SELECT number, state, unsuccessful, local_id, submitted, started, ended, cpu_seconds, reason"
            " FROM local_job WHERE grid_job = ? ORDER BY number"
        )
        return [
            LocalJobLine(int(number), STATE_OF_WORD[str(state)], bool(unsuccessful), *rest)
            for number, state, unsuccessful, *rest in self._query(sql, [identity])
        ]

    def first_start(self, identity: str) -> int | None:
        """When the first of a grid job's local jobs started, seconds since the epoch; None: none has."""
        ((started,),) = self._query("SELECT min(started) FROM local_job WHERE grid_job = ?", [identity])
        return None if started is None else int(started)

    def first_submission(self, identity: str) -> int | None:
        """When the first local job of a grid job was submitted, seconds since the epoch; None where none was."""
        for (when,) in self._query("SELECT min(submitted) FROM local_job WHERE grid_job = ?", [identity]):
            return None if when is None else int(when)
        return None

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

    def earlier_local_ids(self, grid_job: str) -> set[str]:
        """The ids that local jobs of a grid job had in earlier attempts."""
        # Asked for what lives under a token of ours only, and few have been tried again: no index.
        jobs = self._local_jobs(" AND instr(document, '<attempt ')", grid_job)
        return {attempt.local_id for job in jobs for attempt in job.earlier_attempts()}

    def tokens_in_doubt(self) -> set[str]:
        """The tokens of which some local jobs have no id yet."""
        sql = "SELECT DISTINCT token FROM local_job WHERE state = 'unsubmitted' AND token IS NOT NULL"
        return {str(row[0]) for row in self._query(sql)}
