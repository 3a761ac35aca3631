"""The page of one grid job."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter

from adapters import Value
from batch_adapters.states import STATE_OF_WORD
from jobmanager.database.database import Choice
from jobmanager.database.details import EarlierAttempt
from jobmanager.database.grid_job import GridJob
from jobmanager.database.grid_jobs import StepLine
from jobmanager.database.local_jobs import LocalJobLine
from jobmanager.database.times import read_time
from jobmanager.site.account import Account
from jobmanager.views.grid_jobs import render_counts, render_credentials
from jobmanager.views.progress import estimate_end, read_progress, render_blocked, render_rate, render_silent
from jobmanager.web.charts import (
    KIND_OF_NAME,
    Cells,
    History,
    JobKind,
    Timeline,
    count_kinds,
    draw_history,
    draw_shares,
    draw_timeline,
    find_span,
    kind_of,
    kind_of_end,
    kind_of_state,
    render_cells,
)
from jobmanager.web.reading import ReadOnlyDatabase, find_size
from jobmanager.web.rendering import Paging, Sorting, read_paging, read_sorting
from sandbox.status import PhaseStatus

_ROWS = 50
_MOST_GROUPS = 10


@dataclass(frozen=True)
class Bar:
    name: str
    done: int
    total: int
    unit: str
    rate: str = ""

    @property
    def is_whole(self) -> bool:
        return 0 < self.total <= self.done


@dataclass(frozen=True)
class Forecast:
    """How far a grid job is."""

    bars: list[Bar]
    end: float | None
    """When it may end, in seconds since the epoch."""
    warning: str
    """Which local jobs tell nothing new."""
    blocked: list[str]
    """Which do not go on by themselves, why, and what helps."""


def read_forecast(account: Account, database: ReadOnlyDatabase, job: GridJob, now: float) -> Forecast:
    """The phases over all local jobs, and what they let expect."""
    progress = read_progress(database, job.job_id, job.count, account.configuration.monitor.stall_time, now)
    bars = [Bar(p.name, p.done, p.expected_total(job.count), p.unit, render_rate(p)) for p in progress.phases]
    end = None if job.state.is_final else estimate_end(progress, now)
    return Forecast(bars, end, render_silent(progress), render_blocked(progress))


def render_bars(told: Iterable[PhaseStatus]) -> list[Bar]:
    """The phases of one local job."""
    return [Bar(phase.name, phase.done, phase.total, phase.unit) for phase in told]


@dataclass(frozen=True)
class StepView:
    """A step of a structured grid job, and how far it is."""

    line: StepLine
    kind: JobKind
    shares: Sequence[tuple[JobKind, str]] = ()
    words: str = ""
    bars: Sequence[Bar] = ()
    took: float | None = None
    """Seconds since it was submitted, until its end or now; None before it begins."""


@dataclass(frozen=True)
class Row:
    """A local job in the table; times in seconds."""

    line: LocalJobLine
    kind: JobKind
    waited: float | None
    ran: float | None
    attempt: int


_COLUMNS: Mapping[str, Callable[[Row], object]] = {
    **{name: attrgetter(f"line.{name}") for name in ("local_id", "host", "submitted", "reason")},
    **{"number": attrgetter("line.index"), "state": attrgetter("kind.name")},
    **{name: attrgetter(name) for name in ("attempt", "waited", "ran")},
}
"""What the table can be sorted by."""


@dataclass(frozen=True)
class JobTable:
    """The local jobs that are listed."""

    chosen: JobKind | None
    """Only those of this kind."""
    words: str
    """Which are listed; empty where all are."""
    rows: list[Row]
    count: int
    sorting: Sorting
    links: Paging


@dataclass(frozen=True)
class Failures:
    """Attempts that failed for the same cause, or on the same host."""

    name: str | None
    """None: it is not known."""
    local_jobs: int
    """Those that failed for good."""
    earlier: int
    """Earlier attempts."""
    ended: int
    """All attempts that ended alike, or there, whatever their outcome."""


@dataclass(frozen=True)
class GridJobPage:
    job: GridJob
    kind: JobKind
    state_words: str
    submitted: float
    ended: float | None
    request: list[tuple[str, str]]
    steps: list[StepView]
    """Of a structured grid job, which has no local jobs of its own."""
    credentials: list[tuple[str, str]]
    """Of a grid job that has not ended: name, and how long it is valid."""
    forecast: Forecast
    legend: list[tuple[JobKind, int]]
    cells: Cells
    count: int
    history: History | None
    timeline: Timeline | None
    causes: list[Failures]
    hosts: list[Failures]
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
    """Everything about one grid job; raises UnknownJob: there is none of that id."""
    job = database.grid_jobs.get(job_id)
    (row,) = database.grid_jobs.overview(job_id)
    lines = list(database.local_jobs.lines(job_id))
    attempts = database.attempts.all_of(job_id)
    earlier = defaultdict[int, list[EarlierAttempt]](list)
    for past in attempts:
        earlier[past.index].append(past)
    span = find_span(lines, now, earlier)
    ended = job.element.get("ended")
    return GridJobPage(
        job=job,
        kind=kind_of_end(job.outcome) if job.outcome else kind_of_state(job.state),
        state_words=job.outcome or job.state.word + (", being cancelled" if job.cancelled else ""),
        submitted=read_time(job.submitted),
        ended=read_time(ended) if ended else None,
        request=[(name, " ".join(map(_render_value, values))) for name, values in job.request()],
        steps=_read_steps(account, database, row.steps, now),
        credentials=render_credentials(job, now),
        forecast=read_forecast(account, database, job, now),
        legend=count_kinds(lines),
        cells=render_cells(lines),
        count=len(lines),
        history=draw_history(lines, span, earlier) if span else None,
        timeline=draw_timeline(lines, span, now, earlier) if span else None,
        causes=_group_failures(lines, attempts, attrgetter("cause")),
        hosts=_group_failures(lines, attempts, attrgetter("host")),
        table=_read_table(lines, attempts, parameters, now),
        output_size=find_size(account.places.output(job_id)),
        quarantined=why.sentence if (why := database.quarantine.list().get(job_id)) else "",
        events=f"/jobs/{job_id}/events",
    )


def _read_steps(account: Account, database: ReadOnlyDatabase, steps: Sequence[StepLine], now: float) -> list[StepView]:
    ids = tuple(step.grid_job for step in steps if step.grid_job)
    begun = {row.id: row for row in database.grid_jobs.overview(choice=Choice(ids=ids))} if ids else {}
    views = []
    for step in steps:
        kind, row = _find_kind(step), begun.get(step.grid_job or "")
        if row is None:
            views.append(StepView(step, kind))
        else:
            forecast = read_forecast(account, database, database.grid_jobs.get(row.id), now)
            until = read_time(row.ended) if row.ended else now
            took = until - read_time(row.submitted)
            views.append(StepView(step, kind, draw_shares(row.counts), render_counts(row), forecast.bars, took))
    return views


def _find_kind(step: StepLine) -> JobKind:
    return kind_of_end(step.outcome) if step.outcome else kind_of_state(STATE_OF_WORD[step.state or "unsubmitted"])


def _render_value(value: Value) -> str:
    return value if isinstance(value, str) else f"({' '.join(map(_render_value, value))})"


_Attempt = LocalJobLine | EarlierAttempt


def _group_failures(
    lines: Iterable[LocalJobLine], attempts: Sequence[EarlierAttempt], group_of: Callable[[_Attempt], str | None]
) -> list[Failures]:
    """The attempts that failed, by cause or by host, the most frequent first."""
    failed = Counter(group_of(line) for line in lines if line.outcome == "failed")
    earlier = Counter(map(group_of, attempts))
    ended = earlier + Counter(group_of(line) for line in lines if line.state.is_final)
    most = (failed + earlier).most_common(_MOST_GROUPS)
    return [Failures(name, failed[name], earlier[name], ended[name]) for name, _ in most]


def _read_table(
    lines: Sequence[LocalJobLine], attempts: Iterable[EarlierAttempt], parameters: Mapping[str, str], now: float
) -> JobTable:
    chosen = KIND_OF_NAME.get(parameters.get("state", ""))
    cause, host = parameters.get("cause"), parameters.get("host")
    failed: list[_Attempt] = [*attempts, *(line for line in lines if line.outcome == "failed")]
    fits = {one.index for one in failed if cause in (None, one.cause) and host in (None, one.host)}
    tried = Counter(past.index for past in attempts)
    rows = [
        _describe(line, tried[line.index], now)
        for line in lines
        if chosen in (None, kind_of(line)) and ((cause is None and host is None) or line.index in fits)
    ]
    sorting = read_sorting(parameters, _COLUMNS, "number", "#table")
    links = read_paging("Pages of local jobs", parameters, len(rows), _ROWS, "#table")
    shown = _sort(rows, sorting)[links.first : links.first + _ROWS]
    return JobTable(chosen, _render_choice(chosen, cause, host), shown, len(rows), sorting, links)


def _render_choice(chosen: JobKind | None, cause: str | None, host: str | None) -> str:
    words = f"are {chosen.name}" if chosen else ""
    where = (f" with {cause.replace('-', ' ')}" if cause else "") + (f" on {host}" if host else "")
    return " and ".join(filter(None, (words, where and f"failed in any attempt{where}")))


def _sort(rows: Iterable[Row], sorting: Sorting) -> list[Row]:
    """In that order; those of which it is not known come last."""
    key = _COLUMNS[sorting.column]
    known = sorted((row for row in rows if key(row) is not None), key=key, reverse=sorting.is_descending)  # type: ignore[arg-type]
    return [*known, *(row for row in rows if key(row) is None)]


def _describe(line: LocalJobLine, earlier: int, now: float) -> Row:
    until = line.ended if line.state.is_final else now
    waited, ran = _between(line.submitted, line.started or until), _between(line.started, until)
    return Row(line, kind_of(line), waited, ran, earlier + 1)


def _between(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else end - start
