"""How far a grid job has come: what pages, bars and estimates show of it, from the database's indexes."""

from collections.abc import Sequence
from dataclasses import dataclass

from jobmanager.database import Database
from jobmanager.phase_table import PhaseSum


@dataclass(frozen=True)
class Course:
    """A grid job at one moment; times in seconds since the epoch."""

    local_jobs: int
    ended: int
    started: int | None
    """When the first local job started."""
    phases: Sequence[PhaseSum] = ()
    open_parts: float = 0
    """How many phases the local jobs that have not ended have done, parts of phases counting as parts."""
    silent: Sequence[int] = ()
    """Numbers of the running local jobs that have told nothing new for the stall time."""


def read_course(database: Database, identity: str, local_jobs: int, stall_time: float, now: float) -> Course:
    """How far a grid job of so many local jobs has come; stall time in seconds."""
    states = database.count_local_jobs(identity)
    return Course(
        local_jobs=local_jobs,
        ended=sum(number for state, number in states.items() if state.is_final),
        started=database.first_start(identity),
        phases=tuple(database.phase_sums(identity)),
        open_parts=database.open_parts(identity),
        silent=tuple(database.silent_local_jobs(identity, now - stall_time)),
    )
