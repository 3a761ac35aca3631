"""Registers the batch system's ids of local jobs, and applies events to them."""

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from adapters import PlannedJob
from batch_adapters.states import Event, State
from jobmanager.database.database import DamagedDocument, Database, DatabaseError
from jobmanager.database.documents import read_document
from jobmanager.database.grid_job import GridJob
from jobmanager.database.local_job import LocalJob
from jobmanager.states.changes import forget_future, in_parts, put_local_jobs
from jobmanager.states.transitions import apply_array_event, apply_driver_status, apply_event
from sandbox.status import DriverStatus

if TYPE_CHECKING:
    from batch_adapters.naming import Naming

logger = logging.getLogger(__name__)


def note_staging(database: Database, grid_job: str) -> None:
    """Set the state STAGE_IN while the work area is filled; `create_local_jobs` ends it."""
    with database.transaction():
        job = database.grid_jobs.get(grid_job)
        if job.state is State.UNSUBMITTED:
            job.state = State.STAGE_IN
            database.grid_jobs.put(job)


def create_local_jobs(database: Database, job: GridJob, planned: Iterable[PlannedJob]) -> None:
    """Write the documents of a grid job's local jobs, not submitted yet, unless they exist."""
    with database.transaction():
        if database.local_jobs.count(job.job_id):
            return
        documents = (LocalJob.new(local_job.index, job.batch, local_job.slice) for local_job in planned)
        for part in in_parts(documents):
            database.local_jobs.put(job.job_id, part)
        staged = database.grid_jobs.get(job.job_id)
        if staged.state is State.STAGE_IN:
            staged.state = State.UNSUBMITTED
            database.grid_jobs.put(staged)


def register_local_jobs(database: Database, grid_job: str, ids: Mapping[int, str], naming: "Naming") -> None:
    """Record the batch system's ids (by index) of submitted local jobs, and apply events that came before the ids.

    All in one transaction: a monitor that receives an event meanwhile finds the id, or this finds the kept event.
    """
    now = time.time()
    with database.transaction():
        changed = [job for job in database.local_jobs.in_doubt(grid_job) if job.index in ids]
        names: set[str] = set()
        for job in changed:
            local_id = ids[job.index]
            array = naming.array_of(local_id)
            job.register(local_id, array if array != local_id else "", now)
            names |= {local_id, array}
        kept = database.events.take(changed[0].batch, names) if changed else {}
        for job in changed:
            for event in kept.get(job.local_id, ()):
                apply_event(job, event)
            for event in kept.get(job.array, ()):
                apply_array_event(job, event)
        put_local_jobs(database, grid_job, changed)


def apply_events(
    database: Database, batch: str, events: Sequence[Event], statuses: Mapping[str, DriverStatus] | None = None
) -> dict[str, list[LocalJob]]:
    """Apply a batch of a generator's events in one transaction; the changed local jobs by grid job.

    Events of unregistered ids are kept until the ids are registered, or the events are too old. The time from which the
    generator replays after a crash is committed, too.

    :param statuses: what drivers recorded, by local id: applied to those that end now.
    """
    now = time.time()
    unknown = []
    with database.transaction():
        changes = _Changes(database, batch, events, now)
        for event in events:
            if not changes.apply(event):
                unknown.append(event)
        changes.put(statuses or {})
        database.events.keep(batch, unknown, now)
        # One time from the future (a wrong clock) must not hide the events until then.
        latest = max((event.timestamp for event in events if event.timestamp <= now), default=0)
        database.events.put_generator_time(batch, latest)
    return changes.by_grid_job()


class _Changes:
    """The local jobs that a batch of events concerns, each read once."""

    def __init__(self, database: Database, batch: str, events: Iterable[Event], now: float) -> None:
        self._database = database
        self._batch = batch
        self._now = now
        self._stored = database.local_jobs.find_all(batch, {event.local_id for event in events})
        self._jobs: dict[tuple[str, int], LocalJob] = {}
        self._changed: set[tuple[str, int]] = set()
        self._entered: dict[tuple[str, State], list[str]] = {}
        """Logged together, because a line for each would cost half as much time as everything else."""

    def apply(self, event: Event) -> bool:
        """Apply one event; False if its id is not registered.

        A fault with one grid job is logged and must not prevent the others' events; queue and drivers will show the
        state again.
        """
        try:
            return self._find_and_apply(event)
        except DamagedDocument as damage:
            self._database.quarantine.put(damage, self._now)
        except DatabaseError:
            raise
        except Exception:
            logger.exception("%s: event %s cannot be applied", self._batch, event)
        return True

    def _find_and_apply(self, event: Event) -> bool:
        stored = self._stored.get(event.local_id)
        if stored is not None:
            grid_job, number, document = stored
            if (grid_job, number) not in self._jobs:
                self._keep(grid_job, LocalJob(read_document(LocalJob.tag, document, grid_job, number)))
            self._apply((grid_job, number), event, apply_event)
            return True
        elements = self._database.local_jobs.of_array(self._batch, event.local_id)
        for grid_job, job in elements:
            if (grid_job, job.index) not in self._jobs:
                self._keep(grid_job, job)
            self._apply((grid_job, job.index), event, apply_array_event)
        return bool(elements)

    def _keep(self, grid_job: str, job: LocalJob) -> None:
        forget_future([job], self._now)
        self._jobs[grid_job, job.index] = job

    def _apply(self, key: tuple[str, int], event: Event, apply: Callable[[LocalJob, Event], bool]) -> None:
        job = self._jobs[key]
        before = job.state
        try:
            has_changed = apply(job, event)
        except Exception:
            # Half a change must not be written.
            self._forget(key)
            raise
        after = job.state
        if before.is_final and not after.is_final and key[0] not in self._open:
            # Its outputs are gathered: what runs once more nobody wants, and `reconciliation` cancels it.
            logger.info("%s is over, but %s was queued again: nothing changes", key[0], job.local_id)
            self._forget(key)
            return
        if has_changed:
            self._changed.add(key)
        if after is not before:
            self._entered.setdefault((key[0], after), []).append(str(job.local_id))

    def _forget(self, key: tuple[str, int]) -> None:
        self._changed.discard(key)
        del self._jobs[key]

    @cached_property
    def _open(self) -> set[str]:
        """The open grid jobs: read once, because a lost node may have thousands of local jobs queued again."""
        return {job.id for job in self._database.grid_jobs.list_open()}

    def by_grid_job(self) -> dict[str, list[LocalJob]]:
        changed: dict[str, list[LocalJob]] = {}
        for key in sorted(self._changed):
            changed.setdefault(key[0], []).append(self._jobs[key])
        return changed

    def put(self, statuses: Mapping[str, DriverStatus]) -> None:
        """Write them, with what the drivers of those that have ended recorded, inside the caller's transaction."""
        for (grid_job, state), ids in self._entered.items():
            logger.info("%s %s: %s", grid_job, state.word, " ".join(ids))
        for grid_job, jobs in self.by_grid_job().items():
            try:
                for job in jobs:
                    if job.state.is_final and (status := statuses.get(str(job.local_id))):
                        apply_driver_status(job, status, self._now)
                with self._database.part():
                    put_local_jobs(self._database, grid_job, jobs)
            except DatabaseError:
                raise
            except Exception:  # such as an invalid document: the others' events must not be lost
                logger.exception("%s: its events cannot be recorded", grid_job)
                self._changed = {key for key in self._changed if key[0] != grid_job}
