"""The page with all grid jobs."""

from collections.abc import Mapping
from dataclasses import dataclass

from batch_adapters.states import STATE_OF_WORD
from jobmanager.database.database import STANDINGS, Choice, Overview, Quarantined
from jobmanager.database.times import read_time
from jobmanager.views.grid_jobs import render_counts
from jobmanager.web.charts import KIND_OF_NAME, JobKind, kind_of_end, kind_of_state
from jobmanager.web.reading import ReadOnlyDatabase
from jobmanager.web.rendering import Paging, read_paging

_ROWS = 50
_SHARES = ("done", "failed", "cancelled", "active", "suspended", "pending", "unsubmitted")
"""The parts of a bar from the left: what has ended comes first."""


@dataclass(frozen=True)
class Entry:
    """A grid job in the list."""

    row: Overview
    kind: JobKind
    shares: list[tuple[JobKind, str]]
    """How large a part of its local jobs is of each kind, as SVG paths along a bar of 1000 × 10."""
    words: str
    submitted: float
    quarantined: str = ""
    """Why it is left alone."""


@dataclass(frozen=True)
class Menu:
    """Something to choose grid jobs by."""

    name: str
    words: str
    values: list[str]
    chosen: str


@dataclass(frozen=True)
class OverviewPage:
    """What the page shows."""

    entries: list[Entry]
    count: int
    choices: list[Menu]
    links: Paging
    events: str = "/events"
    here: str = "jobs"

    @property
    def is_filtered(self) -> bool:
        return any(choice.chosen for choice in self.choices)


def read_overview_page(database: ReadOnlyDatabase, parameters: Mapping[str, str]) -> OverviewPage:
    """The grid jobs that the parameters ask for, the newest first."""
    job_type, state, owner = (parameters.get(name) or None for name in ("type", "state", "owner"))
    chosen = Choice(type=job_type, state=state, owner=owner)
    types, owners = database.types_and_owners()
    choices = [
        Menu("state", "State", list(STANDINGS), chosen.state or ""),
        Menu("type", "Type", types, chosen.type or ""),
        Menu("owner", "Owner", owners, chosen.owner or ""),
    ]
    count = database.count_grid_jobs(chosen)
    links = read_paging("Pages of grid jobs", parameters, count, _ROWS)
    rows = database.grid_jobs.page(chosen, links.first, _ROWS)
    quarantined = database.quarantine.list()
    return OverviewPage([_describe(row, quarantined.get(row.id)) for row in rows], count, choices, links)


def _describe(row: Overview, quarantined: Quarantined | None) -> Entry:
    kind = kind_of_end(row.outcome) if row.outcome else kind_of_state(STATE_OF_WORD[row.state])
    why = quarantined.sentence if quarantined else ""
    return Entry(row, kind, _draw_shares(row), render_counts(row), read_time(row.submitted), why)


def _draw_shares(row: Overview) -> list[tuple[JobKind, str]]:
    total = sum(row.counts.values())
    shares, left = [], 0.0
    for name in _SHARES:
        if number := row.counts.get(name, 0):
            width = 1000 * number / total
            shares.append((KIND_OF_NAME[name], f"M{left:.1f} 0h{width:.1f}v10h-{width:.1f}z"))
            left += width
    return shares
