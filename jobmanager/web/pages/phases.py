"""How far the phases of a grid job are, and when it may end."""

from collections.abc import Iterable
from dataclasses import dataclass

from jobmanager.database.grid_job import GridJob
from jobmanager.site.account import Account
from jobmanager.views.progress import estimate_end, read_course, render_blocked, render_rate, render_silent
from jobmanager.web.reading import ReadOnlyDatabase
from sandbox.status import Phase


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
    course = read_course(database, job.identity, job.count, stall_time, now)
    bars = [Bar(p.name, p.done, p.expected_total(job.count), p.unit, render_rate(p)) for p in course.phases]
    end = None if job.state.is_final else estimate_end(course, now)
    return Outlook(bars, end, render_silent(course, stall_time), render_blocked(course))


def render_bars(told: Iterable[Phase]) -> list[Bar]:
    """The phases of one local job."""
    return [Bar(phase.name, phase.done, phase.total, phase.unit) for phase in told]
