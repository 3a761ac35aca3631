"""The only way to change local jobs: all or none in a transaction, together with the grid job's state."""

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Protocol, TypeVar

from batch_adapters.states import State
from jobmanager.database.database import DamagedDocument, Database
from jobmanager.database.grid_jobs import states_of
from jobmanager.database.local_job import LocalJob
from jobmanager.database.local_jobs import AT_ONCE, LocalJobs
from jobmanager.states.aggregation import Due, aggregate, aggregate_steps
from jobmanager.states.ends import put_outcome
from jobmanager.states.failures import find_due

logger = logging.getLogger(__name__)

T = TypeVar("T")
CLOCKS_DIFFER = 10.0
"""Seconds by which the clock of a batch system's host may be ahead of ours."""

Selection = Callable[[LocalJobs], Iterable[LocalJob]]
"""Reads local jobs inside the transaction that changes them."""


def change_local_jobs(
    database: Database, grid_job: str, select: Selection, change: Callable[[LocalJob], object]
) -> list[LocalJob]:
    """Change the selected local jobs of a grid job in one transaction; those that have changed.

    ``change`` returns False if it has changed nothing.
    """
    with database.transaction():
        changed = [job for job in select(database.local_jobs) if change(job) is not False]
        put_local_jobs(database, grid_job, changed)
    return changed


class Run(Protocol):
    """A local job under the id that it had when it was read."""

    @property
    def index(self) -> int: ...

    @property
    def local_id(self) -> str | None: ...


def same_runs(grid_job: str, known: Iterable[Run]) -> Selection:
    """Local jobs that were read before, without those that have another id by now: news is about an earlier attempt.

    One that cannot be read is put in quarantine and left out, so that news about the others is applied.
    """
    ids = {job.index: job.local_id for job in known}

    def select(local_jobs: LocalJobs) -> list[LocalJob]:
        jobs = []
        for index in ids:
            try:
                jobs.append(local_jobs.get(grid_job, index))
            except DamagedDocument as damage:
                local_jobs.quarantine.put(damage, time.time())
        forget_future(jobs, time.time())
        return [job for job in jobs if job.local_id == ids[job.index]]

    return select


def change_in_parts(
    database: Database, grid_job: str, known: Iterable[Run], change: Callable[[LocalJob], object]
) -> int:
    """Change local jobs that were read before, in several transactions; how many have changed."""
    parts = in_parts(known)
    return sum(len(change_local_jobs(database, grid_job, same_runs(grid_job, part), change)) for part in parts)


def in_parts(items: Iterable[T], size: int = 0) -> Iterator[list[T]]:
    """The items in lists of limited size, because a large grid job's documents may not fit into memory together."""
    rest = iter(items)
    while part := list(islice(rest, size or AT_ONCE)):
        yield part


def forget_future(jobs: Iterable[LocalJob], now: float) -> None:
    """Forget times of the last news that are in the future: the clock was set back since.

    Otherwise all news would count as late until the clock has caught up. Replays are recognised by their evidence.
    """
    for job in jobs:
        for name, when in (("event-time", job.event_time), ("queue-time", job.queue_time)):
            if when > now + CLOCKS_DIFFER:
                job.element.attrib.pop(name)


def is_recent(when: float, now: float, seconds: float) -> bool:
    """True if less than so many seconds lie between these times; a later ``when``: the clock was set back since."""
    return abs(now - when) < seconds


def of_token(grid_job: str, token: str) -> Selection:
    """The local jobs that were submitted under a token and whose ids are unknown."""
    return lambda local_jobs: [job for job in local_jobs.in_doubt(grid_job) if job.token == token]


def put_local_jobs(database: Database, grid_job: str, jobs: Iterable[LocalJob]) -> None:
    """Write changed local jobs and update the grid job's state, inside the caller's transaction."""
    jobs = list(jobs)
    for local_job in jobs:
        put_outcome(local_job)
    database.local_jobs.put(grid_job, jobs)
    try:
        job = database.grid_jobs.get(grid_job)
    except DamagedDocument as damage:  # the local jobs' changes are valid nevertheless
        database.quarantine.put(damage, time.time())
        return
    state = aggregate(database.local_jobs.count(grid_job), has_begun=job.last_token is not None)
    if state is State.STAGE_OUT and find_due(database, grid_job) is not Due.NEVER:
        state = State.ACTIVE  # failed local jobs will be retried: nothing is gathered yet
    if job.state.is_final or job.state is state:
        return
    if job.state is State.STAGE_OUT:
        job.clear_problem()  # local jobs go on: nothing is to be gathered now
    job.state = state
    logger.info("%s %s", grid_job, state.word)
    database.grid_jobs.put(job)


def refresh_structured(database: Database, job_id: str) -> None:
    """Update the state of a structured grid job from those of its steps."""
    with database.transaction():
        parent = database.grid_jobs.get(job_id)
        state = aggregate_steps(states_of(database.grid_jobs.steps_of(job_id)), parent.needs)
        if parent.state.is_final or parent.state is state:
            return
        parent.state = state
        database.grid_jobs.put(parent)
    logger.info("%s %s", job_id, state.word)
