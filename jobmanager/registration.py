"""Events and ids meet here: registered local jobs get their events, grid jobs their aggregate state."""

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from adapters import LocalJob as PlannedJob
from batch_adapters.naming import Naming
from batch_adapters.states import Event
from jobmanager.aggregation import aggregate
from jobmanager.database import Database
from jobmanager.grid_job import GridJob
from jobmanager.local_job import LocalJob
from jobmanager.transitions import apply_array_event, apply_event

logger = logging.getLogger(__name__)


def create_local_jobs(database: Database, job: GridJob, planned: Iterable[PlannedJob]) -> None:
    """Write the documents of a grid job's local jobs, none of them submitted, unless they are there."""
    with database.transaction():
        if database.count_local_jobs(job.identity):
            return
        documents = [LocalJob.new(local_job.index, job.batch, local_job.slice) for local_job in planned]
        database.put_local_jobs(job.identity, documents)


def register_local_jobs(database: Database, grid_job: str, ids: Mapping[int, str], naming: Naming) -> None:
    """Note the batch system's ids (by index) of submitted local jobs, and apply the events that came before their ids.

    Runs in a transaction of its own: a monitor that gets an event meanwhile finds either the id or the kept event.
    """
    now = time.time()
    of_arrays: dict[str, list[Event]] = {}
    with database.transaction():
        changed = []
        for job in database.local_jobs_in_doubt(grid_job):
            local_id = ids.get(job.index)
            if local_id is None:
                continue
            array = naming.array_of(local_id)
            if array not in (*of_arrays, "", local_id):
                of_arrays[array] = database.take_waiting_events(job.batch, array)
            job.register(local_id, array if array != local_id else "", now)
            for event in database.take_waiting_events(job.batch, local_id):
                apply_event(job, event)
            for event in of_arrays.get(array, ()):
                apply_array_event(job, event)
            changed.append(job)
        database.put_local_jobs(grid_job, changed)
        refresh_grid_job(database, grid_job)


def apply_events(database: Database, batch: str, events: Sequence[Event]) -> dict[str, list[LocalJob]]:
    """Apply a batch of a generator's events in one transaction; the changed local jobs by grid job.

    Events of ids that are not registered are kept until they are, or until they are too old. The generator's time,
    from which it replays after a crash, goes along.
    """
    now = time.time()
    changes = _Changes(database, batch)
    unknown = []
    with database.transaction():
        for event in events:
            if not changes.apply(event):
                unknown.append(event)
        changes.put()
        database.put_waiting_events(batch, unknown, now)
        database.put_generator_time(batch, _latest(events, now))
    return changes.by_grid_job()


class _Changes:
    """The local jobs that a batch of events touches, each read once."""

    def __init__(self, database: Database, batch: str) -> None:
        self._database = database
        self._batch = batch
        self._jobs: dict[tuple[str, int], LocalJob] = {}
        self._changed: set[tuple[str, int]] = set()

    def apply(self, event: Event) -> bool:
        """Apply one event; False where nobody has registered its id."""
        found = self._database.find_local_job(self._batch, event.local_id)
        if found is not None:
            self._apply(*found, event, apply_event)
            return True
        elements = self._database.local_jobs_of_array(self._batch, event.local_id)
        for grid_job, job in elements:
            self._apply(grid_job, job, event, apply_array_event)
        return bool(elements)

    def _apply(self, grid_job: str, stored: LocalJob, event: Event, apply: Callable[[LocalJob, Event], bool]) -> None:
        key = grid_job, stored.index
        job = self._jobs.setdefault(key, stored)
        before = job.state
        if apply(job, event):
            self._changed.add(key)
        if job.state is not before:
            logger.info("%s %s %s", grid_job, job.local_id, job.state.word)

    def by_grid_job(self) -> dict[str, list[LocalJob]]:
        """The changed local jobs."""
        changed: dict[str, list[LocalJob]] = {}
        for key in sorted(self._changed):
            changed.setdefault(key[0], []).append(self._jobs[key])
        return changed

    def put(self) -> None:
        """Write them, inside the caller's transaction."""
        for grid_job, jobs in self.by_grid_job().items():
            self._database.put_local_jobs(grid_job, jobs)
            refresh_grid_job(self._database, grid_job)


def _latest(events: Sequence[Event], now: float) -> int:
    # One stamp from the future (a clock gone wrong for a moment) must not hide what comes until then.
    return max((event.timestamp for event in events if event.timestamp <= now), default=0)


def refresh_grid_job(database: Database, identity: str) -> None:
    """Bring a grid job's aggregate state up to date, inside the caller's transaction."""
    job = database.grid_job(identity)
    state = aggregate(database.count_local_jobs(identity), has_begun=job.last_token is not None)
    if job.state.is_final or job.state is state:
        return
    job.state = state
    logger.info("%s %s", identity, state.word)
    database.put_grid_job(job)
