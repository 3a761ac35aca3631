"""The page of one grid job."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from adapters import Value
from batch_adapters.states import STATE_OF_WORD
from jobmanager.database.database import LocalJobLine, StepLine
from jobmanager.database.grid_job import GridJob
from jobmanager.database.times import read_time
from jobmanager.site.account import Account
from jobmanager.views.progress import estimate_end, read_course, render_blocked, render_rate, render_silent
from jobmanager.web.charts import (
    KIND_OF_NAME,
    Cells,
    History,
    JobKind,
    Timeline,
    count_kinds,
    draw_history,
    draw_timeline,
    find_span,
    kind_of,
    kind_of_end,
    kind_of_state,
    render_cells,
)
from jobmanager.web.reading import ReadOnlyDatabase, find_size, open_file
from jobmanager.web.rendering import Paging, read_paging
from sandbox.status import PhaseStatus

_ROWS = 50


@dataclass(frozen=True)
class Bar:
    """One phase."""

    name: str
    done: int
    total: int
    unit: str
    rate: str = ""

    @property
    def is_whole(self) -> bool:
        return 0 < self.total <= self.done


@dataclass(frozen=True)
class Outlook:
    """How far a grid job is."""

    bars: list[Bar]
    end: float | None
    """When it may end, in seconds since the epoch."""
    warning: str
    """Which local jobs tell nothing new."""
    blocked: list[str]
    """Which do not go on by themselves, why, and what helps."""


def read_outlook(account: Account, database: ReadOnlyDatabase, job: GridJob, now: float) -> Outlook:
    """The phases over all local jobs, and what they let expect."""
    stall_time = account.configuration.monitor.stall_time
    course = read_course(database, job.job_id, job.count, stall_time, now)
    bars = [Bar(p.name, p.done, p.expected_total(job.count), p.unit, render_rate(p)) for p in course.phases]
    end = None if job.state.is_final else estimate_end(course, now)
    return Outlook(bars, end, render_silent(course, stall_time), render_blocked(course))


def render_bars(told: Iterable[PhaseStatus]) -> list[Bar]:
    """The phases of one local job."""
    return [Bar(phase.name, phase.done, phase.total, phase.unit) for phase in told]


@dataclass(frozen=True)
class Row:
    """A local job in the table; times in seconds."""

    line: LocalJobLine
    kind: JobKind
    waited: float | None
    ran: float | None


@dataclass(frozen=True)
class JobTable:
    """The local jobs that are listed."""

    chosen: JobKind | None
    """Only those of this kind."""
    rows: list[Row]
    count: int
    links: Paging


@dataclass(frozen=True)
class GridJobPage:
    """What the page shows."""

    job: GridJob
    kind: JobKind
    state_words: str
    submitted: float
    ended: float | None
    request: list[tuple[str, str]]
    steps: list[tuple[StepLine, JobKind]]
    """Of a structured grid job, which has no local jobs of its own."""
    outlook: Outlook
    legend: list[tuple[JobKind, int]]
    cells: Cells
    count: int
    history: History | None
    timeline: Timeline | None
    table: JobTable
    output_size: int | None
    """Bytes of the output tar."""
    quarantined: str
    """Why it is left alone; empty where it is not."""
    events: str
    here: str = "jobs"


def read_grid_job_page(
    account: Account, database: ReadOnlyDatabase, job_id: str, parameters: Mapping[str, str], now: float
) -> GridJobPage:
    """Everything about one grid job.

    :raises UnknownJob: there is none of that id.
    """
    job = database.grid_jobs.get(job_id)
    (row,) = database.grid_jobs.overview(job_id)
    lines = list(database.local_jobs.lines(job_id))
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
        output_size=_find_output_size(account, job_id),
        quarantined=why.sentence if (why := database.quarantine.list().get(job_id)) else "",
        events=f"/jobs/{job_id}/events",
    )


def _render_value(value: Value) -> str:
    return value if isinstance(value, str) else f"({' '.join(map(_render_value, value))})"


def _read_table(lines: Iterable[LocalJobLine], parameters: Mapping[str, str], now: float) -> JobTable:
    chosen = KIND_OF_NAME.get(parameters.get("state", ""))
    listed = [line for line in lines if chosen in (None, kind_of(line))]
    links = read_paging("Pages of local jobs", parameters, len(listed), _ROWS, "#table")
    shown = listed[links.first : links.first + _ROWS]
    return JobTable(chosen, [_describe(line, now) for line in shown], len(listed), links)


def _describe(line: LocalJobLine, now: float) -> Row:
    until = line.ended if line.state.is_final else now
    return Row(line, kind_of(line), _between(line.submitted, line.started or until), _between(line.started, until))


def _between(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else end - start


def _find_output_size(account: Account, job_id: str) -> int | None:
    stream = open_file(account.places.output(job_id))
    if stream is None:
        return None
    with stream:
        return find_size(stream)
