"""The job database's table of grid jobs: their documents, and a few columns derived from them as indexes."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from batch_adapters.states import STATE_OF_WORD, State
from jobmanager.step_table import StepLine, StepTable

if TYPE_CHECKING:  # lists and counts are read without XML: "samgrid status" never loads lxml
    from jobmanager.grid_job import GridJob

SCHEMA = """
CREATE TABLE IF NOT EXISTS grid_job (
    id TEXT PRIMARY KEY, type TEXT NOT NULL, state TEXT NOT NULL, owner TEXT NOT NULL,
    submitted TEXT NOT NULL, batch TEXT NOT NULL, cancelled INTEGER NOT NULL, uniqid TEXT UNIQUE,
    told TEXT NOT NULL, told_time INTEGER NOT NULL, document BLOB NOT NULL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS grid_job_by_state ON grid_job (state);
CREATE INDEX IF NOT EXISTS grid_job_by_told ON grid_job (told, told_time) WHERE uniqid IS NOT NULL;
"""

_PUT_GRID_JOB = """
INSERT INTO grid_job VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET
    state = excluded.state, cancelled = excluded.cancelled, uniqid = excluded.uniqid, told = excluded.told,
    told_time = excluded.told_time, document = excluded.document
"""


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
    steps: tuple[StepLine, ...] = ()
    """The steps of a structured grid job."""
    parent: str | None = None
    """The structured grid job that this one is a step of."""


@dataclass(frozen=True)
class Choice:
    """Which grid jobs are meant: those that fit everything that is given."""

    type: str | None = None
    state: State | None = None
    owner: str | None = None
    since: float | None = None
    """Submitted at this second since 1970, or later."""

    def condition(self) -> tuple[str, list[str]]:
        """SQL for the table of grid jobs, and its values."""
        state = None if self.state is None else self.state.word
        since = None if self.since is None else _render_time(self.since)
        wanted = (("type =", self.type), ("state =", state), ("owner =", self.owner), ("submitted >=", since))
        given = [(name, value) for name, value in wanted if value is not None]
        return "TRUE" + "".join(f" AND {name} ?" for name, _ in given), [value for _, value in given]


@dataclass(frozen=True)
class OpenGridJob:
    """A grid job that has not ended."""

    id: str
    batch: str
    cancelled: bool
    state: State


@dataclass(frozen=True)
class Untold:
    """A grid job of GRAM's whose end GRAM has not been told."""

    id: str
    state: State
    told: State | None
    """What GRAM was told last."""
    submitted: str


class GridJobTable(StepTable):
    """Grid jobs by id, by uniqid, and by what is to be done with them."""

    def put_grid_job(self, job: "GridJob") -> None:
        """Write a grid job's document, new or changed."""
        indexes = (job.identity, job.job_type, job.state.word, job.owner, job.submitted, job.batch, job.cancelled)
        row = (*indexes, job.uniqid, job.told.word if job.told else "", job.told_time, job.to_bytes())
        # No REPLACE: that would drop another grid job of the same uniqid, where this must fail.
        self._write(_PUT_GRID_JOB, [row])
        self.put_steps(job)

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

    def overview(self, identity: str | None = None, choice: Choice = Choice()) -> list[Overview]:
        """A line per grid job, the newest last; or of one only, or of those that are chosen."""
        condition, values = choice.condition()
        if identity is not None:
            condition, values = f"{condition} AND id = ?", [*values, identity]
        counts: dict[str, dict[str, int]] = {}
        unsuccessful: dict[str, int] = {}
        sql = (
            "SELECT grid_job, state, count(*), sum(unsuccessful) FROM local_job"
            f" WHERE grid_job IN (SELECT id FROM grid_job WHERE {condition}) GROUP BY grid_job, state"
        )
        for job, state, number, failures in self._query(sql, values):
            counts.setdefault(job, {})[state] = number
            unsuccessful[job] = unsuccessful.get(job, 0) + failures
        steps, parents = self.steps(identity), self.parents()
        sql = f"SELECT id, type, state, owner, submitted FROM grid_job WHERE {condition} ORDER BY submitted, id"
        rows = self._query(sql, values)
        return [
            Overview(
                *(job, job_type, state, owner, submitted, counts.get(job, {}), unsuccessful.get(job, 0)),
                steps=tuple(steps.get(job, ())),
                parent=parents.get(job),
            )
            for job, job_type, state, owner, submitted in rows
        ]

    def open_grid_jobs(self) -> list[OpenGridJob]:
        """Every grid job that has not ended, the eldest first."""
        sql = (
            "SELECT id, batch, cancelled, state FROM grid_job"
            " WHERE state NOT IN ('done', 'failed') ORDER BY submitted, id"
        )
        return [
            OpenGridJob(str(job), str(batch), bool(cancelled), STATE_OF_WORD[str(state)])
            for job, batch, cancelled, state in self._query(sql)
        ]

    def ended_grid_jobs(self) -> list[str]:
        """The ids of the grid jobs that have ended, the eldest first."""
        sql = "SELECT id FROM grid_job WHERE state IN ('done', 'failed') ORDER BY submitted, id"
        return [str(row[0]) for row in self._query(sql)]

    def delete_grid_job(self, identity: str) -> None:
        """Forget a grid job, its local jobs and everything derived from their documents."""
        for table in ("phase", "attempt", "step", "local_job"):
            self._write(f"DELETE FROM {table} WHERE grid_job = ?", [(identity,)])
        self._write("DELETE FROM grid_job WHERE id = ?", [(identity,)])

    def batch_systems(self) -> list[str]:
        """The batch systems of all grid jobs, those that have ended included."""
        return [str(row[0]) for row in self._query("SELECT DISTINCT batch FROM grid_job ORDER BY batch")]


def _render_time(seconds: float) -> str:
    """As `documents.render_time` writes it, which comes with lxml."""
    return datetime.fromtimestamp(max(0.0, seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
