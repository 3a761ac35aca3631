"""The job database's grid jobs: their documents, and a few columns derived from them as indexes."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import TYPE_CHECKING

from batch_adapters.states import STATE_OF_WORD, State
from jobmanager import UserError
from jobmanager.database.local_jobs import STANDING
from jobmanager.database.sqlite import Quarantine, Store, Table
from jobmanager.database.times import render_time

if TYPE_CHECKING:  # lists and counts are read without XML: "samgrid status" never loads lxml
    from jobmanager.database.grid_job import GridJob

GRID_JOBS = Table(
    "grid_job",
    {"id": "TEXT NOT NULL"},
    {
        "type": ("TEXT NOT NULL", attrgetter("job_type")),
        "state": ("TEXT NOT NULL", attrgetter("state.word")),
        "outcome": "TEXT",
        "owner": "TEXT NOT NULL",
        "submitted": "TEXT NOT NULL",
        "batch": "TEXT NOT NULL",
        "name": "TEXT",
        "ended": "TEXT",
        "reason": "TEXT",
        "cancelled": "INTEGER NOT NULL",
        "uniqid": "TEXT UNIQUE",
        "reported": ("TEXT NOT NULL", lambda job: job.reported.word if job.reported else ""),
        "reported_time": "INTEGER NOT NULL",
        "subject": "TEXT",
        "cores": "INTEGER NOT NULL",
        "document": ("BLOB NOT NULL", lambda job: job.to_bytes()),
    },
    lambda job: [((job.job_id,), job)],
    (
        "grid_job_by_state ON grid_job (state)",
        "grid_job_by_time ON grid_job (submitted, id)",
        "grid_job_by_end ON grid_job (ended) WHERE ended IS NOT NULL",
        "grid_job_by_name ON grid_job (name) WHERE name IS NOT NULL",
        "grid_job_open ON grid_job (submitted, id) WHERE state NOT IN ('done', 'failed')",
        "grid_job_by_reported ON grid_job (reported, reported_time) WHERE uniqid IS NOT NULL",
    ),
    "WITHOUT ROWID",
)
GRID_JOB_ATTRIBUTES = {
    name: f"grid_job.{name}" for name in ("id", "type", "state", "outcome", "owner", "submitted", "batch")
}
"""The column of each attribute that a column has as it is."""
STEPS = Table(
    "step",
    {"grid_job": "TEXT NOT NULL", "number": "INTEGER NOT NULL"},
    {"name": "TEXT NOT NULL", "child": ("TEXT", attrgetter("grid_job"))},
    lambda job: [((job.job_id, number), step) for number, step in enumerate(job.steps, 1)],
    ("step_by_child ON step (child)",),
    "WITHOUT ROWID",
)


# A repetition may have taken a step over: the eldest structured grid job counts.
_PARENT = """(
    SELECT parent.id FROM step JOIN grid_job AS parent ON parent.id = step.grid_job
    WHERE child = grid_job.id ORDER BY parent.submitted LIMIT 1
)"""
_BLOCKED = "(SELECT count(*) FROM local_job WHERE grid_job = grid_job.id AND helps IS NOT NULL)"
_HAS_STEPS = "EXISTS (SELECT 1 FROM step WHERE step.grid_job = grid_job.id)"

STANDINGS = (*STATE_OF_WORD, "cancelled")
"""How a grid job or a local job may stand for people: its state, and once it has ended its outcome."""


@dataclass(frozen=True)
class StepLine:
    """One line about one step; all but its name is None for one that has not begun, outcome until it has ended."""

    name: str
    grid_job: str | None
    state: str | None
    """Its word."""
    outcome: str | None = None


def states_of(steps: Iterable[StepLine]) -> dict[str, State | None]:
    """The states of steps by their names, None for one that has not begun."""
    return {step.name: STATE_OF_WORD[step.state] if step.state else None for step in steps}


def find_current_steps(steps: Sequence[StepLine]) -> list[StepLine]:
    """The steps that a structured grid job has come to: those that run, else the one that began last, else the first.

    Where it has failed, those that did.
    """
    begun = [step for step in steps if step.grid_job]
    running = [step for step in begun if step.state and not STATE_OF_WORD[step.state].is_final]
    failed = [step for step in begun if step.state == State.FAILED.word]
    return running or failed or begun[-1:] or list(steps[:1])


class UnknownJob(UserError, LookupError):
    """No grid job, or more than one, answers to an id."""


@dataclass(frozen=True)
class Overview:
    """One line about one grid job.

    ``counts`` has the number of local jobs in each state that occurs; those that have ended count by their outcome, as
    ``done`` (they succeeded), ``failed`` or ``cancelled``.
    """

    id: str
    type: str
    state: str
    outcome: str | None
    """done, failed or cancelled; None until it has ended."""
    owner: str
    submitted: str
    counts: dict[str, int]
    steps: tuple[StepLine, ...] = ()
    """The steps of a structured grid job."""
    parent: str | None = None
    """The structured grid job that this one is a step of."""
    blocked: int = 0
    """How many local jobs do not go on until somebody does something; they count in ``counts``, too."""
    name: str | None = None
    """What people call it."""
    batch: str = ""
    ended: str | None = None
    reason: str | None = None
    """Why it failed."""


_NAMES = "id || char(10) || coalesce(name, '') || char(10) || type || char(10) || owner"
"""SQL: what people know a grid job by, on lines of their own, as no name has several."""


@dataclass(frozen=True)
class Choice:
    """Which grid jobs are meant: those that fit everything that is given."""

    type: str | None = None
    state: str | None = None
    """One of `STANDINGS`."""
    owner: str | None = None
    since: float | None = None
    """Submitted at this second since 1970, or later."""
    name: str | None = None
    """Pattern of their names, with * and ? as in the shell."""
    ids: tuple[str, ...] = ()
    """Of these only; empty: of all."""
    until: float | None = None
    """Submitted before this second since 1970."""
    text: str | None = None
    """In their id, name, type or owner, in whatever case."""

    @property
    def is_empty(self) -> bool:
        """True where nothing is given, so that all fit."""
        return self == Choice()

    def condition(self) -> tuple[str, list[str]]:
        """SQL for the table of grid jobs, and its values."""
        since, until = (None if time is None else render_time(max(0.0, time)) for time in (self.since, self.until))
        wanted = (
            ("type = ?", self.type),
            ("coalesce(outcome, state) = ?", self.state),
            ("owner = ?", self.owner),
            ("submitted >= ?", since),
            ("submitted < ?", until),
            ("name GLOB ?", self.name),
            (f"instr(lower({_NAMES}), lower(?))", self.text),
        )
        given = [(test, value) for test, value in wanted if value is not None]
        condition = "".join(["TRUE", *(f" AND {test}" for test, _ in given)])
        if self.ids:
            condition += f" AND id IN ({', '.join('?' * len(self.ids))})"
        # An argument may be no UTF-8, and SQLite knows no other text.
        values = [value.encode(errors="backslashreplace").decode() for _, value in given]
        return condition, [*values, *self.ids]


ORDERS = {
    "id": "id",
    "name": "name COLLATE NOCASE",
    "type": "type",
    "owner": "owner",
    "state": "coalesce(outcome, state)",
    "jobs": "(SELECT total(number) FROM local_job_count WHERE grid_job = id)",
    "submitted": "submitted",
}
"""SQL: what grid jobs can be sorted by."""


@dataclass(frozen=True)
class OpenGridJob:
    """A grid job that has not ended."""

    id: str
    batch: str
    cancelled: bool
    state: State


@dataclass(frozen=True)
class Unreported:
    """A grid job of GRAM's whose end has not been reported to GRAM."""

    id: str
    state: State
    reported: State | None
    """What was reported last."""
    submitted: str


class GridJobs:
    """Grid jobs by id, by uniqid, and by what is to be done with them."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def put(self, job: "GridJob") -> None:
        for table in (GRID_JOBS, STEPS):
            self._store.put(table, [(job,)])

    def get(self, job_id: str) -> "GridJob":
        """The grid job of that id.

        :raises UnknownJob: if there is none; DamagedDocument: it cannot be read.
        """
        from jobmanager.database.documents import read_document
        from jobmanager.database.grid_job import GridJob

        for (document,) in self._store.query("SELECT document FROM grid_job WHERE id = ?", [job_id]):
            return GridJob(read_document(GridJob.tag, document, job_id))
        raise UnknownJob(f"there is no grid job {job_id}")

    def change(self, job_id: str, change: "Callable[[GridJob], object]") -> "GridJob":
        """Read, change and write one grid job in a transaction of its own; the changed job."""
        with self._store.transaction():
            job = self.get(job_id)
            change(job)
            self.put(job)
        return job

    def find(self, word: str) -> str:
        """The grid job with that id, else with that name, else the one whose id begins with it.

        :raises UnknownJob: if there is none, or several.
        """
        sql = (
            "SELECT id, 0 FROM grid_job WHERE id = ? UNION SELECT id, 1 FROM grid_job WHERE name = ?"
            " UNION SELECT id, 2 FROM grid_job WHERE id >= ? AND id < ? ORDER BY 2, 1 LIMIT 4"
        )
        values = [word, word, word, word + "\x7f"]
        rows = list(self._store.query(sql, values)) if word.isprintable() else []
        if not word or not rows:
            lists = "samgrid explain and samgrid log take local jobs" if "/" in word else '"samgrid status" lists them'
            raise UnknownJob(f'no grid job has the name "{word}", or an id that begins with it: {lists}')
        how = rows[0][1]
        found = [str(job_id) for job_id, fits in rows if fits == how]
        if len(found) > 1:
            some = ", ".join(found[:3]) + (" …" if len(found) > 3 else "")
            more = 'use an id; "--name" means all of that name' if how == 1 else "give more of the id"
            raise UnknownJob(f'"{word}" fits more than one grid job ({some}): {more}')
        return found[0]

    def choose(self, words: Iterable[str], choice: Choice) -> list[str]:
        """The grid jobs that words mean (see `find`), in their order, or all; of these those that are chosen.

        Of all, steps are left out whose whole is chosen.

        :raises UnknownJob: there is none.
        """
        named = list(dict.fromkeys(map(self.find, words)))
        condition, values = replace(choice, ids=tuple(named)).condition()
        sql = f"SELECT id FROM grid_job WHERE {condition} ORDER BY submitted, id"
        found = self._store.values(sql, values)
        found = sorted(found, key=named.index) if named else self.without_steps(found)
        if not found:
            listed = ", ".join(named)
            fault = f"the other options choose none of these: {listed}" if named else "no grid job fits these options"
            raise UnknownJob(f'{fault}: "samgrid status" lists them')
        return found

    def without_steps(self, job_ids: Sequence[str]) -> list[str]:
        """Grid jobs without the steps of others among them."""
        all_of_them = set(job_ids)
        return [one for one in job_ids if not all_of_them & set(self.parents_of(one))]

    def find_uniqid(self, uniqid: str) -> str | None:
        """The grid job that GRAM knows by that name of its own; None where there is none."""
        return self._store.value(str, "SELECT id FROM grid_job WHERE uniqid = ?", [uniqid])

    def list_unreported(self) -> list[Unreported]:
        """The grid jobs that came through GRAM, and whose end has not been reported to GRAM."""
        sql = (
            "SELECT id, state, reported, submitted FROM grid_job"
            " WHERE uniqid IS NOT NULL AND reported IN ('', 'pending', 'active', 'suspended') ORDER BY submitted, id"
        )
        return [
            Unreported(job, STATE_OF_WORD[state], STATE_OF_WORD.get(reported), submitted)
            for job, state, reported, submitted in self._store.query(sql)
        ]

    def list_reported_since(self, when: int) -> list[str]:
        """The grid jobs whose end was reported to GRAM since a second."""
        sql = (
            "SELECT id FROM grid_job WHERE uniqid IS NOT NULL AND reported IN ('done', 'failed') AND reported_time >= ?"
            " ORDER BY reported_time, id"
        )
        return self._store.values(sql, [when])

    def has(self, job_id: str) -> bool:
        return any(self._store.query("SELECT 1 FROM grid_job WHERE id = ?", [job_id]))

    def batch_of(self, job_id: str) -> str | None:
        """The batch system of a grid job; None where there is no such grid job."""
        return next(iter(self._store.values("SELECT batch FROM grid_job WHERE id = ?", [job_id])), None)

    def overview(self, job_id: str | None = None, choice: Choice = Choice()) -> list[Overview]:
        """A line per grid job, the newest last; or of one only, or of those that are chosen."""
        condition, values = choice.condition()
        if job_id is not None:
            condition, values = f"{condition} AND id = ?", [*values, job_id]
        return self._overview(f"SELECT id FROM grid_job WHERE {condition}", values)

    def page(
        self, choice: Choice, first: int, most: int, order: str = "submitted", is_descending: bool = True
    ) -> list[Overview]:
        """So many of those that are chosen from one on, counted from 0; by one of `ORDERS`, then the newest first."""
        condition, values = choice.condition()
        order = f"{ORDERS[order]} {'DESC' if is_descending else 'ASC'} NULLS LAST, submitted DESC, id DESC"
        chosen = f"SELECT id FROM grid_job WHERE {condition} ORDER BY {order} LIMIT ? OFFSET ?"
        return self._overview(chosen, [*values, most, first], order)

    def _overview(self, chosen: str, values: Sequence[object], order: str = "submitted, id") -> list[Overview]:
        """A line per grid job whose id a statement finds."""
        sql = (
            f"SELECT id, type, state, outcome, owner, submitted, {_HAS_STEPS}, {_PARENT}, {_BLOCKED},"
            " name, batch, ended, reason"
            f" FROM grid_job WHERE id IN ({chosen}) ORDER BY {order}"
        )
        # Before the counts: whatever ends in between, a grid job that has ended has no local job under way.
        rows = list(self._store.query(sql, values))
        counts: dict[str, dict[str, int]] = {}
        sql = (
            f"SELECT grid_job, {STANDING} AS standing, sum(number) FROM local_job_count"
            f" WHERE number AND grid_job IN ({chosen}) GROUP BY grid_job, standing"
        )
        for job, standing, number in self._store.query(sql, values):
            counts.setdefault(job, {})[standing] = number
        has_steps = any(row[6] for row in rows)
        steps = self._find_steps(f"step.grid_job IN ({chosen})", values) if has_steps else {}
        return [Overview(*(*row[:6], counts.get(row[0], {}), tuple(steps.get(row[0], ())), *row[7:])) for row in rows]

    def list_open(self) -> list[OpenGridJob]:
        """Every grid job that has not ended, the eldest first."""
        sql = (
            "SELECT id, batch, cancelled, state FROM grid_job"
            " WHERE state NOT IN ('done', 'failed') ORDER BY submitted, id"
        )
        return [
            OpenGridJob(job, batch, bool(cancelled), STATE_OF_WORD[state])
            for job, batch, cancelled, state in self._store.query(sql)
        ]

    def list_ended(self) -> list[str]:
        """The ids of the grid jobs that have ended, the eldest first."""
        return self._store.values("SELECT id FROM grid_job WHERE state IN ('done', 'failed') ORDER BY submitted, id")

    def list_ended_since(self, when: float) -> list[tuple[str, str]]:
        """Id and outcome of those that have ended since that second, but are no steps, the eldest end first."""
        sql = (
            "SELECT id, outcome FROM grid_job WHERE ended >= ?"
            " AND NOT EXISTS (SELECT 1 FROM step WHERE child = grid_job.id) ORDER BY ended, id"
        )
        return [(str(job), str(outcome)) for job, outcome in self._store.query(sql, [render_time(when)])]

    def delete(self, job_id: str) -> None:
        """Forget a grid job, its local jobs and everything derived from their documents."""
        for table in ("phase", "attempt", "step", "local_job", "local_job_count"):
            self._store.write(f"DELETE FROM {table} WHERE grid_job = ?", [(job_id,)])
        self._store.write("DELETE FROM grid_job WHERE id = ?", [(job_id,)])
        Quarantine(self._store).lift(job_id)

    def batch_systems(self) -> list[str]:
        """The batch systems of all grid jobs, those that have ended included."""
        return self._store.values("SELECT DISTINCT batch FROM grid_job ORDER BY batch")

    def steps(self, job_id: str | None = None) -> dict[str, list[StepLine]]:
        """The steps in their order of each structured grid job, or of one only, by its id."""
        return self._find_steps("TRUE") if job_id is None else self._find_steps("step.grid_job = ?", [job_id])

    def open_steps(self) -> dict[str, list[StepLine]]:
        """The steps in their order of each structured grid job that has not ended, by its id."""
        return self._find_steps("step.grid_job IN (SELECT id FROM grid_job WHERE state NOT IN ('done', 'failed'))")

    def parents_of(self, job_id: str) -> list[str]:
        """The structured grid jobs of which this one is a step: a repetition takes over those that were done."""
        return self._store.values("SELECT grid_job FROM step WHERE child = ? ORDER BY grid_job", [job_id])

    def repetitions_of(self, job_id: str) -> list[str]:
        """The grid jobs that repeat this one, or a part of it, the eldest first."""
        # No column: it is asked once, when something is submitted again.
        sql = "SELECT id FROM grid_job WHERE instr(document, CAST(? AS BLOB)) ORDER BY submitted, id"
        found = self._store.values(sql, [f' repeats="{job_id}"'])
        return [one for one in found if self.get(one).repeats == job_id]

    def _find_steps(self, condition: str, values: Sequence[object] = ()) -> dict[str, list[StepLine]]:
        sql = (
            "SELECT step.grid_job, step.name, child, state, outcome FROM step LEFT JOIN grid_job ON id = child"
            f" WHERE {condition} ORDER BY step.grid_job, number"
        )
        found: dict[str, list[StepLine]] = {}
        for parent, *line in self._store.query(sql, values):
            found.setdefault(parent, []).append(StepLine(*line))
        return found
