"""Suspends, resumes and prioritizes a grid job's local jobs, if the batch system can do that.

Local jobs that are submitted later are not affected. The database is reconciled with the queue before, so that each
local job gets the command for its state, and afterwards, so that the result is known.
"""

import logging
import time

from batch_adapters.adapter import BatchError, Refused
from batch_adapters.running.batch_system import BatchSystem
from batch_adapters.states import State
from jobmanager.control.cancellation import choose_ids
from jobmanager.database.database import LiveJob
from jobmanager.database.grid_jobs import find_current_steps
from jobmanager.database.local_job import LocalJob
from jobmanager.site.account import Account, find_batch_system
from jobmanager.states.changes import change_in_parts
from jobmanager.states.reconciliation import reconcile_batch_system

logger = logging.getLogger(__name__)


def find_signalled(account: Account, grid_job: str) -> list[str]:
    """The grid jobs to which a signal applies: this one or, if it has steps, the current ones."""
    steps = account.database.grid_jobs.steps_of(grid_job)
    return [step.grid_job for step in find_current_steps(steps) if step.grid_job] or [grid_job]


def suspend_grid_job(account: Account, grid_job: str) -> bool:
    """Suspend running local jobs and, if possible, hold waiting ones; True if some are suspended now.

    :raises Refused: no local job is in a suitable state, or the batch system cannot do it.
    :raises BatchError: (all functions here) no answer: some may have been changed; it can be repeated.
    """
    system = _reconcile(account, grid_job)
    waiting, running, stopped = _find_live(account, grid_job)
    if not waiting and not running and not stopped:
        raise Refused(f"{grid_job}: none of its local jobs waits or runs in {system.adapter.name}")
    # First, or they would be started in place of the suspended ones.
    if waiting and (system.adapter.hold is not None or not running + stopped):
        ids = choose_ids(account.database, system.adapter.name, lambda: waiting)
        system.change(system.adapter.hold, "hold", ids, grid_job)
    if running:
        _note_signal(account, grid_job, running)
        ids = choose_ids(account.database, system.adapter.name, lambda: running)
        system.change(system.adapter.suspend, "suspend", ids, grid_job)
    _reconcile_again(account, grid_job)
    return bool(running or stopped)


def resume_grid_job(account: Account, grid_job: str) -> None:
    """Resume suspended local jobs, and release held ones.

    :raises Refused: as `suspend_grid_job`.
    """
    system = _reconcile(account, grid_job)
    waiting, _, stopped = _find_live(account, grid_job)
    if stopped:
        _note_signal(account, grid_job, stopped)
        ids = choose_ids(account.database, system.adapter.name, lambda: stopped)
        system.change(system.adapter.resume, "resume", ids, grid_job)
    # Some batch systems show a held one as suspended.
    held = stopped + waiting
    if not held:
        raise Refused(f"{grid_job}: none of its local jobs is suspended or waits in {system.adapter.name}")
    if system.adapter.release is not None or not stopped:
        ids = choose_ids(account.database, system.adapter.name, lambda: held)
        system.change(system.adapter.release, "release", ids, grid_job)
    _reconcile_again(account, grid_job)


def prioritize_grid_job(account: Account, grid_job: str, priority: int) -> None:
    """Change the priority of its local jobs, in the batch system's own numbers, but with higher ones starting earlier.

    :raises Refused: as `suspend_grid_job`.
    """
    system = find_batch_system(account, account.database.grid_jobs.get(grid_job).batch)
    waiting, _, _ = _find_live(account, grid_job)
    if not waiting:
        raise Refused(f"{grid_job}: none of its local jobs waits in {system.adapter.name}")
    # Most batch systems have no priorities for single elements of an array.
    ids = dict.fromkeys(job.array or str(job.local_id) for job in waiting)
    system.change(system.adapter.priority, "change the priority of", ids, grid_job, priority=priority)


def _find_live(account: Account, grid_job: str) -> tuple[list[LiveJob], list[LiveJob], list[LiveJob]]:
    """Its local jobs that wait, that run, and that are suspended."""
    live: dict[State, list[LiveJob]] = {State.PENDING: [], State.ACTIVE: [], State.SUSPENDED: []}
    for job in account.database.local_jobs.live(grid_job):
        live.setdefault(job.state, []).append(job)
    return live[State.PENDING], live[State.ACTIVE], live[State.SUSPENDED]


def _reconcile(account: Account, grid_job: str) -> BatchSystem:
    batch = account.database.grid_jobs.get(grid_job).batch
    reconcile_batch_system(account, batch)
    return find_batch_system(account, batch)


def _reconcile_again(account: Account, grid_job: str) -> None:
    try:
        _reconcile(account, grid_job)
    except BatchError as error:
        logger.warning("%s: the result of the signal is not known yet: %s", grid_job, error)


def _note_signal(account: Account, grid_job: str, jobs: list[LiveJob]) -> None:
    """Record a signal before it is sent: its line in the log may be read before the command has ended."""

    def note(job: LocalJob) -> None:
        job.signalled = int(time.time())

    change_in_parts(account.database, grid_job, jobs, note)
