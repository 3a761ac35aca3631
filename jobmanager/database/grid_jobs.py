"""The job database's grid jobs: their documents, and a few columns derived from them as indexes."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import TYPE_CHECKING

from batch_adapters.states import STATE_OF_WORD, State
from jobmanager import UserError
from jobmanager.database.local_jobs import BLOCKED, STANDING
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
"""The column with the same value as each of these attributes."""
STEPS = Table(
    "step",
    {"grid_job": "TEXT NOT NULL", "number": "INTEGER NOT NULL"},
    {"name": "TEXT NOT NULL", "child": ("TEXT", attrgetter("grid_job"))},
    lambda job: [((job.job_id, number), step) for number, step in enumerate(job.steps, 1)],
    ("step_by_child ON step (child)",),
    "WITHOUT ROWID",
)


# A repetition may have taken over a step: the oldest structured grid job counts.
_PARENT = """(
    SELECT parent.id FROM step JOIN grid_job AS parent ON parent.id = step.grid_job
    WHERE child = grid_job.id ORDER BY parent.submitted LIMIT 1
)"""
COUNT_BLOCKED = f"(SELECT count(*) FROM ({BLOCKED.format('grid_job.id')}))"
"""SQL: how many local jobs of a grid job are blocked."""
_HAS_STEPS = "EXISTS (SELECT 1 FROM step WHERE step.grid_job = grid_job.id)"

STANDINGS = (*STATE_OF_WORD, "cancelled")
"""The words for people: the state of a grid job or local job or, once it has ended, its outcome."""


@dataclass(frozen=True)
class StepLine:
    """One line about one step; all but the name is None until it begins, the outcome until it ends."""

    name: str
    grid_job: str | None
    state: str | None
    """Its word."""
    outcome: str | None = None


def states_of(steps: Iterable[StepLine]) -> dict[str, State | None]:
    """The states of steps by name; None for one that has not begun."""
    return {step.name: STATE_OF_WORD[step.state] if step.state else None for step in steps}


def find_current_steps(steps: Sequence[StepLine]) -> list[StepLine]:
    """The current steps of a structured grid job: those that run, else those that failed, else the last or first."""
    begun = [step for step in steps if step.grid_job]
    running = [step for step in begun if step.state and not STATE_OF_WORD[step.state].is_final]
    failed = [step for step in begun if step.state == State.FAILED.word]
    return running or failed or begun[-1:] or list(steps[:1])


class UnknownJob(UserError, LookupError):
    """There is no such grid job or local job, or more than one."""


@dataclass(frozen=True)
class Overview:
    """One line about one grid job.

    ``counts`` has the numbers of local jobs by state; those that have ended count by outcome, as ``done`` (succeeded),
    ``failed`` or ``cancelled``.
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
    """How many local jobs do not go on until somebody acts; they are in ``counts``, too."""
    name: str | None = None
    """What people call it."""
    batch: str = ""
    ended: str | None = None
    reason: str | None = None
    """Why it failed."""


_NAMES = "id || char(10) || coalesce(name, '') || char(10) || type || char(10) || owner"
"""SQL: what people may search for, on separate lines, because no name has a line break."""


@dataclass(frozen=True)
class Choice:
    """Selects grid jobs that match everything that is given."""

    type: str | None = None
    state: str | None = None
    """One of `STANDINGS`."""
    owner: str | None = None
    since: float | None = None
    """Submitted at this second since 1970, or later."""
    name: str | None = None
    """A pattern for names, with * and ? as in the shell."""
    ids: tuple[str, ...] = ()
    """Only these; empty: all."""
    until: float | None = None
    """Submitted before this second since 1970."""
    text: str | None = None
    """Contained in id, name, type or owner, ignoring case."""

    @property
    def is_empty(self) -> bool:
        """True if nothing is given, so that all match."""
        return self == Choice()

    def condition(self) -> tuple[str, list[str]]:
        """An SQL condition for the table of grid jobs, and its values."""
        since, until = (None if time is None else render_time(max(0.0, time)) for time in (self.since, self.until))
        wanted = (
            ("type = ?", self.type),
            ("coalesce(outcome, state) = ?", self.state),
            ("owner = ?", self.owner),
            ("submitted >= ?", since),
            ("submitted < ?", until),
            ("name GLOB ?", None if self.name is None else self.name.replace("[", "[[]")),
            (f"instr(lower({_NAMES}), lower(?))", self.text),
        )
        given = [(test, value) for test, value in wanted if value is not None]
        condition = "".join(["TRUE", *(f" AND {test}" for test, _ in given)])
        if self.ids:
            condition += f" AND id IN ({', '.join('?' * len(self.ids))})"
        # An argument may not be UTF-8, but SQLite needs it.
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
    """A grid job from GRAM whose end has not been reported to GRAM."""

    id: str
    state: State
    reported: State | None
    """What was reported last."""
    submitted: str


class GridJobs:
    """The grid jobs: by id, by uniqid, by state."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def put(self, job: "GridJob") -> None:
        for table in (GRID_JOBS, STEPS):
            self._store.put(table, [(job,)])

    def get(self, job_id: str) -> "GridJob":
        """The grid job with that id; raises UnknownJob: there is none; DamagedDocument: it cannot be read."""
        from jobmanager.database.documents import read_document
        from jobmanager.database.grid_job import GridJob

        for (document,) in self._store.query("SELECT document FROM grid_job WHERE id = ?", [job_id]):
            return GridJob(read_document(GridJob.tag, document, job_id))
        raise UnknownJob(f"there is no grid job {job_id}")

    def change(self, job_id: str, change: "Callable[[GridJob], object]") -> "GridJob":
        """Change one grid job in its own transaction; the changed job."""
        with self._store.transaction():
            job = self.get(job_id)
            change(job)
            self.put(job)
        return job

    def find(self, word: str, if_many: str = "") -> str:
        """The id of the grid job with that id, or that name, or whose id begins with the word.

        :param if_many: what else helps if several have that name.
        :raises UnknownJob: there is none, or more than one.
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
            more = f"use an id{if_many}" if how == 1 else "give more of the id"
            raise UnknownJob(f'"{word}" fits more than one grid job ({some}): {more}')
        return found[0]

    def choose(self, words: Iterable[str], choice: Choice) -> list[str]:
        """The grid jobs that words name (see `find`), in their order, or all; of these, those that match the choice.

        If no words are given, steps are left out if their parent is chosen.

        :raises UnknownJob: there is none.
        """
        named = list(dict.fromkeys(self.find(word, '; "--name" means all of that name') for word in words))
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
        """These grid jobs without those that are steps of others among them."""
        all_of_them = set(job_ids)
        return [one for one in job_ids if not all_of_them & set(self.parents_of(one))]

    def find_uniqid(self, uniqid: str) -> str | None:
        """The grid job with GRAM's uniqid; None if there is none."""
        return self._store.value(str, "SELECT id FROM grid_job WHERE uniqid = ?", [uniqid])

    def list_unreported(self) -> list[Unreported]:
        """The grid jobs from GRAM whose end has not been reported to GRAM."""
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
        """The batch system of a grid job; None if there is no such grid job."""
        return next(iter(self._store.values("SELECT batch FROM grid_job WHERE id = ?", [job_id])), None)

    def overview(self, job_id: str | None = None, choice: Choice = Choice()) -> list[Overview]:
        """A line for each grid job that is chosen, the newest last; with ``job_id``, for this one only."""
        condition, values = choice.condition()
        if job_id is not None:
            condition, values = f"{condition} AND id = ?", [*values, job_id]
        return self._overview(f"SELECT id FROM grid_job WHERE {condition}", values)

    def page(
        self, choice: Choice, first: int, most: int, order: str = "submitted", is_descending: bool = True
    ) -> list[Overview]:
        """A page of the chosen grid jobs: ``most`` of them from number ``first`` (from 0), by one of `ORDERS`."""
        condition, values = choice.condition()
        order = f"{ORDERS[order]} {'DESC' if is_descending else 'ASC'} NULLS LAST, submitted DESC, id DESC"
        chosen = f"SELECT id FROM grid_job WHERE {condition} ORDER BY {order} LIMIT ? OFFSET ?"
        return self._overview(chosen, [*values, most, first], order)

    def _overview(self, chosen: str, values: Sequence[object], order: str = "submitted, id") -> list[Overview]:
        """A line for each grid job whose id an SQL query gives."""
        sql = (
            f"SELECT id, type, state, outcome, owner, submitted, {_HAS_STEPS}, {_PARENT}, {COUNT_BLOCKED},"
            " name, batch, ended, reason"
            f" FROM grid_job WHERE id IN ({chosen}) ORDER BY {order}"
        )
        # Read before the counts, so that a grid job that has ended never shows running local jobs.
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
        """Every grid job that has not ended, the oldest first."""
        sql = (
            "SELECT id, batch, cancelled, state FROM grid_job"
            " WHERE state NOT IN ('done', 'failed') ORDER BY submitted, id"
        )
        return [
            OpenGridJob(job, batch, bool(cancelled), STATE_OF_WORD[state])
            for job, batch, cancelled, state in self._store.query(sql)
        ]

    def list_ended(self) -> list[str]:
        """The ids of the grid jobs that have ended, the oldest first."""
        return self._store.values("SELECT id FROM grid_job WHERE state IN ('done', 'failed') ORDER BY submitted, id")

    def list_ended_since(self, when: float) -> list[tuple[str, str]]:
        """Id and outcome of those that have ended since that second and are no steps, the oldest end first."""
        sql = (
            "SELECT id, outcome FROM grid_job WHERE ended >= ?"
            " AND NOT EXISTS (SELECT 1 FROM step WHERE child = grid_job.id) ORDER BY ended, id"
        )
        return [(str(job), str(outcome)) for job, outcome in self._store.query(sql, [render_time(when)])]

    def delete(self, job_id: str) -> None:
        """Delete a grid job, its local jobs and everything derived from their documents."""
        for table in ("phase", "attempt", "step", "local_job", "local_job_count"):
            self._store.write(f"DELETE FROM {table} WHERE grid_job = ?", [(job_id,)])
        self._store.write("DELETE FROM grid_job WHERE id = ?", [(job_id,)])
        Quarantine(self._store).lift(job_id)

    def batch_systems(self) -> list[str]:
        """The batch systems of all grid jobs, including those that have ended."""
        return self._store.values("SELECT DISTINCT batch FROM grid_job ORDER BY batch")

    def steps_of(self, job_id: str) -> list[StepLine]:
        """The steps of a grid job, in order; empty if it has its own local jobs."""
        return self._find_steps("step.grid_job = ?", [job_id]).get(job_id, [])

    def open_steps(self) -> dict[str, list[StepLine]]:
        """The steps, in order, of each structured grid job that has not ended, by its id."""
        return self._find_steps("step.grid_job IN (SELECT id FROM grid_job WHERE state NOT IN ('done', 'failed'))")

    def parents_of(self, job_id: str) -> list[str]:
        """The structured grid jobs that have this one as a step: a repetition takes over steps that are done."""
        return self._store.values("SELECT grid_job FROM step WHERE child = ? ORDER BY grid_job", [job_id])

    def repetitions_of(self, job_id: str) -> list[str]:
        """The grid jobs that repeat this one, or a part of it, the oldest first."""
        # There is no column for it, because this is rarely needed.
        sql = "SELECT id FROM grid_job WHERE instr(document, CAST(? AS BLOB)) ORDER BY submitted, id"
        found = self._store.values(sql, [f' repeats="{job_id}"'])
        return [one for one in found if self.get(one).repeats == job_id]

    def partial(self, job_type: str) -> list[str]:
        """The grid jobs of a job type that have only some of their slices, or of whose document a part is lost."""
        condition = "type = ? AND (instr(document, ?) OR substr(document, -11) != ?)"
        sql = f"SELECT id FROM grid_job WHERE {condition} ORDER BY submitted, id"
        return self._store.values(sql, [job_type, b' only="', b"</grid-job>"])

    def _find_steps(self, condition: str, values: Sequence[object] = ()) -> dict[str, list[StepLine]]:
        sql = (
            "SELECT step.grid_job, step.name, child, state, outcome FROM step LEFT JOIN grid_job ON id = child"
            f" WHERE {condition} ORDER BY step.grid_job, number"
        )
        found: dict[str, list[StepLine]] = {}
        for parent, *line in self._store.query(sql, values):
            found.setdefault(parent, []).append(StepLine(*line))
        return found
