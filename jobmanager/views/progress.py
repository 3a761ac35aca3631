"""The progress of a grid job, for pages, bars and estimates; from columns only."""

from collections.abc import Sequence
from dataclasses import dataclass

from jobmanager import render_number
from jobmanager.database.database import Database
from jobmanager.database.details import PhaseSum
from jobmanager.database.local_jobs import Blocked
from jobmanager.views.text import render_duration, render_line


@dataclass(frozen=True)
class Progress:
    """A grid job at one moment; times in seconds since the epoch."""

    local_jobs: int
    ended: int
    started: int | None
    """When the first local job started."""
    phases: Sequence[PhaseSum] = ()
    open_parts: float = 0
    """How many phases the open local jobs have done, with fractions of phases."""
    silent: Sequence[int] = ()
    """Numbers of the running local jobs that have reported nothing new for the stall time."""
    stall_time: float = 0
    blocked: Sequence[Blocked] = ()
    """Those that do not go on until somebody acts, by reason."""


def read_progress(database: Database, job_id: str, local_jobs: int, stall_time: float, now: float) -> Progress:
    """The progress of a grid job with so many local jobs; stall time in seconds."""
    states = database.local_jobs.count(job_id)
    return Progress(
        local_jobs=local_jobs,
        ended=sum(number for state, number in states.items() if state.is_final),
        started=database.local_jobs.first_start(job_id),
        phases=tuple(database.phases.sums(job_id)),
        open_parts=database.phases.open_parts(job_id),
        silent=tuple(database.phases.silent(job_id, now - stall_time)),
        stall_time=stall_time,
        blocked=tuple(database.local_jobs.blocked(job_id)),
    )


_LEAST_FRACTION = 0.005
_LEAST_TIME = 5.0
"""Seconds. With less than these there is no estimate."""


def rate(phase: PhaseSum) -> float | None:
    """Units per second of a phase, over all local jobs; None if too little is known."""
    seconds = phase.changed - phase.begun
    return phase.done / seconds if seconds > 0 and phase.done > 0 else None


def fraction_done(progress: Progress) -> float:
    """From 0 to 1: ended local jobs count as 1, others by their phases, all of which have the same weight."""
    if progress.local_jobs < 1:
        return 0.0
    of_open = progress.open_parts / len(progress.phases) if progress.phases else 0.0
    return max(0.0, min(1.0, (progress.ended + of_open) / progress.local_jobs))


def estimate_end(progress: Progress, now: float) -> float | None:
    """When the last local job may end at the present pace; None if blocked, unknown, or all are done."""
    if progress.started is None or progress.blocked:
        return None
    fraction = fraction_done(progress)
    elapsed = now - progress.started
    if not _LEAST_FRACTION <= fraction < 1 or elapsed < _LEAST_TIME:
        return None
    return progress.started + elapsed / fraction


def render_rate(phase: PhaseSum) -> str:
    """``3.2 events/s``, or per minute or hour if that is less than one; empty if too little is known."""
    known = rate(phase)
    if known is None:
        return ""
    seconds, name = (1, "s") if known >= 1 else (60, "min") if known * 60 >= 1 else (3600, "h")
    shown = f"{float(f'{known * seconds:.3g}'):,.15g}"  # "g" alone would say 1.23e+03
    return f"{shown} {phase.unit}".rstrip() + f"/{name}"


_SHOWN_BLOCKS = 5


def render_blocked(progress: Progress) -> list[str]:
    """Why local jobs are blocked, and the command that helps, a line each."""
    lines = [_render_block(block) for block in progress.blocked[:_SHOWN_BLOCKS]]
    others = sum(block.count for block in progress.blocked[_SHOWN_BLOCKS:])
    return lines + ([f"and {others:,} for other reasons"] if others else [])


def _render_block(block: Blocked) -> str:
    who = f"number {block.first}" if block.count == 1 else f"{block.count:,} local jobs, first number {block.first}"
    parts = (who, render_line(block.wait_reason) or "no reason given", render_line(block.helps))
    return ": ".join(filter(None, parts))


def render_silent(progress: Progress) -> str:
    """The stall warning; empty if no local job is silent."""
    if not progress.silent:
        return ""
    count = render_number(len(progress.silent), "local job")
    have = "has" if len(progress.silent) == 1 else "have"
    return (
        f"{count} {have} told nothing new for {render_duration(progress.stall_time)}, first number {progress.silent[0]}"
    )
