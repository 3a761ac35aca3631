"""The job database's table of steps: which grid jobs a structured one is made of, derived from its document."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from batch_adapters.states import STATE_OF_WORD, State
from jobmanager.store import Store

if TYPE_CHECKING:
    from jobmanager.grid_job import GridJob

SCHEMA = """
CREATE TABLE IF NOT EXISTS step (
    grid_job TEXT NOT NULL, number INTEGER NOT NULL, name TEXT NOT NULL, child TEXT,
    PRIMARY KEY (grid_job, number)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS step_by_child ON step (child);
"""


@dataclass(frozen=True)
class StepLine:
    """One line about one step; ``grid_job`` and ``state`` (its word) are None for one that has not begun."""

    name: str
    grid_job: str | None
    state: str | None


def states_of(steps: Iterable[StepLine]) -> list[State | None]:
    """The states of steps, None for one that has not begun."""
    return [STATE_OF_WORD[step.state] if step.state else None for step in steps]


class StepTable(Store):
    """Steps by structured grid job."""

    def put_steps(self, job: "GridJob") -> None:
        """Write the steps that a grid job's document names."""
        rows = ((job.identity, number, step.name, step.grid_job) for number, step in enumerate(job.steps, 1))
        self._write("INSERT OR REPLACE INTO step VALUES (?, ?, ?, ?)", rows)

    def steps(self, identity: str | None = None) -> dict[str, list[StepLine]]:
        """The steps in their order of each structured grid job, or of one only, by its id."""
        condition = "" if identity is None else " WHERE step.grid_job = ?"
        sql = (
            "SELECT step.grid_job, name, child, state FROM step LEFT JOIN grid_job ON id = child"
            f"{condition} ORDER BY step.grid_job, number"
        )
        return self._read_steps(sql, () if identity is None else (identity,))

    def open_steps(self) -> dict[str, list[StepLine]]:
        """The steps in their order of each structured grid job that has not ended, by its id."""
        sql = (
            "SELECT step.grid_job, name, child, part.state FROM step"
            " JOIN grid_job AS whole ON whole.id = step.grid_job LEFT JOIN grid_job AS part ON part.id = child"
            " WHERE whole.state NOT IN ('done', 'failed') ORDER BY step.grid_job, number"
        )
        return self._read_steps(sql, ())

    def parents(self) -> dict[str, str]:
        """By the id of each grid job that is a step: the structured grid job that it was made for."""
        sql = (
            "SELECT child, whole.id FROM step JOIN grid_job AS whole ON whole.id = step.grid_job"
            " WHERE child IS NOT NULL ORDER BY whole.submitted DESC"
        )
        # A repetition may have taken it over: the eldest comes last, and counts.
        return {str(child): str(whole) for child, whole in self._query(sql)}

    def whole_of(self, identity: str) -> str | None:
        """A structured grid job of which this one is a step; None where there is none."""
        for (whole,) in self._query("SELECT grid_job FROM step WHERE child = ? LIMIT 1", [identity]):
            return str(whole)
        return None

    def _read_steps(self, sql: str, values: tuple[str, ...]) -> dict[str, list[StepLine]]:
        found: dict[str, list[StepLine]] = {}
        for whole, name, child, state in self._query(sql, values):
            found.setdefault(str(whole), []).append(StepLine(name, child, state))
        return found
