"""The page with all grid jobs."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from batch_adapters.states import STATE_OF_WORD
from jobmanager.database.database import STANDINGS, Choice, Overview, Quarantined
from jobmanager.database.grid_jobs import ORDERS
from jobmanager.database.times import read_time
from jobmanager.views.grid_jobs import render_counts
from jobmanager.web.charts import KIND_OF_NAME, JobKind, draw_shares, kind_of_end, kind_of_state
from jobmanager.web.reading import DAY, ReadOnlyDatabase, Totals
from jobmanager.web.rendering import Paging, Sorting, read_paging, read_sorting

_ROWS = 50
_DAY = "%Y-%m-%d"


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
class Total:
    """Some of all local jobs."""

    words: str
    number: int
    kind: JobKind | None = None


@dataclass(frozen=True)
class OverviewPage:
    totals: list[Total]
    entries: list[Entry]
    count: int
    chosen: Choice
    days: list[tuple[str, str, str]]
    """Name, words and value of each date."""
    choices: list[Menu]
    sorting: Sorting
    links: Paging
    events: str = "/events"
    here: str = "jobs"


def read_overview_page(database: ReadOnlyDatabase, parameters: Mapping[str, str], now: float) -> OverviewPage:
    """The grid jobs that the parameters ask for, in the order that they ask for."""
    job_type, state, owner, text = (parameters.get(name) or None for name in ("type", "state", "owner", "text"))
    first, last = (_read_day(parameters.get(name, "")) for name in ("since", "until"))
    until = None if last is None else last + DAY
    chosen = Choice(type=job_type, state=state, owner=owner, text=text, since=first, until=until)
    totals = database.read_totals(chosen, now)
    choices = [
        Menu("state", "State", list(STANDINGS), chosen.state or ""),
        Menu("type", "Type", totals.types, chosen.type or ""),
        Menu("owner", "Owner", totals.owners, chosen.owner or ""),
    ]
    days = [("since", "From", _render_day(first)), ("until", "To", _render_day(last))]
    sorting = read_sorting(parameters, ORDERS, "-submitted")
    links = read_paging("Pages of grid jobs", parameters, totals.chosen, _ROWS)
    rows = database.grid_jobs.page(chosen, links.first, _ROWS, sorting.column, sorting.is_descending)
    quarantined = database.quarantine.list()
    entries = [_describe(row, quarantined.get(row.id)) for row in rows]
    return OverviewPage(_list_totals(totals), entries, totals.chosen, chosen, days, choices, sorting, links)


def _list_totals(totals: Totals) -> list[Total]:
    day = totals.day
    return [
        Total("running", totals.open.get("active", 0), KIND_OF_NAME["active"]),
        Total("waiting", sum(totals.open.values()) - totals.open.get("active", 0), KIND_OF_NAME["pending"]),
        Total("succeeded in 24 h", day.get("succeeded", 0), KIND_OF_NAME["done"]),
        Total("failed in 24 h", day.get("failed", 0), KIND_OF_NAME["failed"]),
        Total("ended in the last hour", totals.hour),
    ]


def _read_day(text: str) -> float | None:
    """When a day began, as seconds since the epoch; None where that is no date."""
    try:
        return datetime.strptime(text, _DAY).replace(tzinfo=UTC).timestamp()
    except ValueError:
        return None


def _render_day(start: float | None) -> str:
    return "" if start is None else datetime.fromtimestamp(start, UTC).strftime(_DAY)


def _describe(row: Overview, quarantined: Quarantined | None) -> Entry:
    kind = kind_of_end(row.outcome) if row.outcome else kind_of_state(STATE_OF_WORD[row.state])
    why = quarantined.sentence if quarantined else ""
    return Entry(row, kind, draw_shares(row.counts), render_counts(row), read_time(row.submitted), why)
