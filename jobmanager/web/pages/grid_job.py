"""The page of one grid job."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from adapters import Value
from batch_adapters.states import STATE_OF_WORD
from jobmanager.database.database import LocalJobLine, StepLine
from jobmanager.database.grid_job import GridJob
from jobmanager.database.times import read_time
from jobmanager.site.account import Account
from jobmanager.web.charts import History, Timeline, draw_history, draw_timeline, find_span
from jobmanager.web.files import find_size, open_file
from jobmanager.web.kinds import (
    KIND_OF_NAME,
    Cells,
    Kind,
    count_kinds,
    kind_of,
    kind_of_end,
    kind_of_state,
    render_cells,
)
from jobmanager.web.pages.paging import Paging, read_paging
from jobmanager.web.pages.phases import Outlook, read_outlook
from jobmanager.web.reading import ReadOnlyDatabase

_ROWS = 50


@dataclass(frozen=True)
class Row:
    """A local job in the table; times in seconds."""

    line: LocalJobLine
    kind: Kind
    waited: float | None
    ran: float | None


@dataclass(frozen=True)
class Table:
    """The local jobs that are listed."""

    chosen: Kind | None
    """Only those of this kind."""
    rows: list[Row]
    count: int
    links: Paging


@dataclass(frozen=True)
class GridJobPage:
    """What the page shows."""

    job: GridJob
    kind: Kind
    state_words: str
    submitted: float
    ended: float | None
    request: list[tuple[str, str]]
    steps: list[tuple[StepLine, Kind]]
    """Of a structured grid job, which has no local jobs of its own."""
    outlook: Outlook
    legend: list[tuple[Kind, int]]
    cells: Cells
    count: int
    history: History | None
    timeline: Timeline | None
    table: Table
    output_size: int | None
    """Bytes of the output tar."""
    quarantined: str
    """Why it is left alone; empty where it is not."""
    events: str
    here: str = "jobs"


def read_grid_job_page(
    account: Account, database: ReadOnlyDatabase, identity: str, parameters: Mapping[str, str], now: float
) -> GridJobPage:
    """Everything about one grid job.

    :raises UnknownJob: there is none of that id.
    """
    job = database.grid_jobs.get(identity)
    (row,) = database.grid_jobs.overview(identity)
    lines = database.local_jobs.lines(identity)
    span = find_span(lines, now)
    ended = job.element.get("ended")
    return GridJobPage(
        job=job,
        kind=kind_of_end(job.outcome) if job.outcome else kind_of_state(job.state),
        state_words=job.outcome or job.state.word + (", being cancelled" if job.cancelled else ""),
        submitted=read_time(job.submitted),
        ended=read_time(ended) if ended else None,
        request=[(name, " ".join(map(_render_value, values))) for name, values in job.request()],
        steps=[(step, kind_of_state(STATE_OF_WORD[step.state or "unsubmitted"])) for step in row.steps],
        outlook=read_outlook(account, database, job, now),
        legend=count_kinds(lines),
        cells=render_cells(lines),
        count=len(lines),
        history=draw_history(lines, span) if span else None,
        timeline=draw_timeline(lines, span, now) if span else None,
        table=_read_table(lines, parameters, now),
        output_size=_find_output_size(account, identity),
        quarantined=why.sentence if (why := database.quarantine.list().get(identity)) else "",
        events=f"/jobs/{identity}/events",
    )


def _render_value(value: Value) -> str:
    return value if isinstance(value, str) else f"({' '.join(map(_render_value, value))})"


def _read_table(lines: Iterable[LocalJobLine], parameters: Mapping[str, str], now: float) -> Table:
    chosen = KIND_OF_NAME.get(parameters.get("state", ""))
    listed = [line for line in lines if chosen in (None, kind_of(line))]
    links = read_paging("Pages of local jobs", parameters, len(listed), _ROWS, "#table")
    shown = listed[links.first : links.first + _ROWS]
    return Table(chosen, [_describe(line, now) for line in shown], len(listed), links)


def _describe(line: LocalJobLine, now: float) -> Row:
    until = line.ended if line.state.is_final else now
    return Row(line, kind_of(line), _between(line.submitted, line.started or until), _between(line.started, until))


def _between(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else end - start


def _find_output_size(account: Account, identity: str) -> int | None:
    stream = open_file(account.places.output(identity))
    if stream is None:
        return None
    with stream:
        return find_size(stream)
