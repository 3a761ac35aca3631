"""Events and ids meet here: registered local jobs get their events, grid jobs their aggregate state."""

import logging
import time
from collections.abc import Iterable, Mapping, Sequence

from adapters import LocalJob as PlannedJob
from batch_adapters.states import Event
from jobmanager.aggregation import aggregate
from jobmanager.database import Database
from jobmanager.grid_job import GridJob
from jobmanager.local_job import LocalJob
from jobmanager.transitions import apply_event

logger = logging.getLogger(__name__)


def create_local_jobs(database: Database, job: GridJob, planned: Iterable[PlannedJob]) -> None:
    """Write the documents of a grid job's local jobs, none of them submitted, unless they are there."""
    with database.transaction():
        if database.count_local_jobs(job.identity):
            return
        documents = [LocalJob.new(local_job.index, job.batch, local_job.slice) for local_job in planned]
        database.put_local_jobs(job.identity, documents)


def register_local_jobs(database: Database, grid_job: str, ids: Mapping[int, str]) -> None:
    """Note the batch system's ids of submitted local jobs, and apply the events that came before their ids.

    Runs in a transaction of its own: a monitor that gets an event meanwhile finds either the id or the kept event.
    """
    now = time.time()
    with database.transaction():
        changed = []
        for job in database.local_jobs_in_doubt(grid_job):
            local_id = ids.get(job.index)
            if local_id is None:
                continue
            job.register(local_id, now)
            for event in database.take_waiting_events(job.batch, local_id):
                apply_event(job, event)
            changed.append(job)
        database.put_local_jobs(grid_job, changed)
        refresh_grid_job(database, grid_job)


def apply_events(
    database: Database, batch: str, events: Sequence[Event], from_log: bool = True
) -> dict[str, list[LocalJob]]:
    """Apply a batch of events in one transaction; the changed local jobs by grid job.

    Events of ids that are not registered are kept until they are, or until they are too old. Events from the batch
    system's log take the generator's time along, from which it replays after a crash.
    """
    now = time.time()
    changed: dict[str, dict[int, LocalJob]] = {}
    unknown = []
    with database.transaction():
        for event in events:
            found = database.find_local_job(batch, event.local_id)
            if found is None:
                unknown.append(event)
                continue
            grid_job, stored = found
            job = changed.get(grid_job, {}).get(stored.index, stored)
            if apply_event(job, event):
                changed.setdefault(grid_job, {})[job.index] = job
                logger.info("%s %s %s", grid_job, event.local_id, event.state.word)
        for grid_job, jobs in changed.items():
            database.put_local_jobs(grid_job, jobs.values())
            refresh_grid_job(database, grid_job)
        database.put_waiting_events(batch, unknown, now)
        if from_log:
            database.put_generator_time(batch, _latest(events, now))
    return {grid_job: list(jobs.values()) for grid_job, jobs in changed.items()}


def _latest(events: Sequence[Event], now: float) -> int:
    # One stamp from the future (a clock gone wrong for a moment) must not hide what comes until then.
    return max((event.timestamp for event in events if event.timestamp <= now), default=0)


def refresh_grid_job(database: Database, identity: str) -> None:
    """Bring a grid job's aggregate state up to date, inside the caller's transaction."""
    job = database.grid_job(identity)
    state = aggregate(database.count_local_jobs(identity))
    if job.state.is_final or job.state is state:
        return
    job.state = state
    logger.info("%s %s", identity, state.word)
    database.put_grid_job(job)
