"""Removes grid jobs that have ended, with all documents and files; a parent together with its steps.

"samgrid usage" still counts what their local jobs used (`database/usage.py`). In one transaction, the folders are
renamed and the documents deleted, so that nobody can run the grid job again in between, and no step is left without its
parent. If that fails, the folders get their names back. Then the renamed folders are removed; if that is interrupted,
the next removal does it (`sweep`).
"""

import logging
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from batch_adapters.adapter import BatchError
from batch_adapters.registry import BadAdapter, UnknownBatchSystem
from jobmanager import UserError
from jobmanager.control.cancellation import cancel_by_index
from jobmanager.database.database import DamagedDocument, Database
from jobmanager.database.grid_job import GridJob
from jobmanager.database.usage import KEPT
from jobmanager.gram.answers import answer_file
from jobmanager.site.account import Account, find_batch_system
from sandbox.files import remove_folder

logger = logging.getLogger(__name__)

GRAM_ASKS = 86_400
"""Seconds for which the answer to GRAM's polls is kept after the end was reported: GRAM's host may be down."""


class NotRemovable(UserError):
    """The grid job cannot be removed now; the message says why, and what to do."""


def remove_grid_job(account: Account, job_id: str) -> int:
    """Remove one grid job, and its steps unless another grid job has them, too; the size of their files in bytes.

    If its document cannot be read, its local jobs are cancelled first.

    :raises NotRemovable: it has not ended, GRAM may still ask for it, or another grid job needs it.
    :raises UnknownJob: there is no such grid job.
    :raises OSError: files could not be removed; the next removal does it.
    """
    database, places = account.database, account.places
    for part in check_removable(database, job_id):
        _end_damaged(account, part)
    parts: tuple[str, ...] = ()
    try:
        with database.transaction():
            check_removable(database, job_id)
            parts = (*_find_own_steps(database, job_id), job_id)
            submitted = {
                part: database.grid_jobs.batch_of(part) for part in parts if database.local_jobs.last_token(part)
            }
            for part in parts:
                with suppress(FileNotFoundError):  # renamed by a removal that was killed
                    places.grid_job(part).rename(places.removed(part))
                database.usage.keep(part)
                database.grid_jobs.delete(part)
    except BaseException:  # such as a full disk, or Ctrl-C
        for part in parts:
            with suppress(OSError):  # not renamed yet; what went wrong first is what to tell
                places.removed(part).rename(places.grid_job(part))
        raise
    answer_file(account, job_id).unlink(missing_ok=True)
    for batch in filter(None, set(submitted.values())):
        _forget(account, batch, [part for part in submitted if submitted[part] == batch])
    return sum(remove_folder(places.removed(part)) for part in parts)


def _forget(account: Account, batch: str, parts: Iterable[str]) -> None:
    """Have a batch system delete what it keeps of removed grid jobs; if it does not, that only takes space."""
    try:
        find_batch_system(account, batch).forget(f"{part}-" for part in parts)
    except (BatchError, UnknownBatchSystem, BadAdapter, OSError) as error:
        logger.warning("%s still keeps data of removed grid jobs: %s", batch, error)


def measure_grid_job(account: Account, job_id: str) -> int:
    """The size in bytes of the files that would be removed with it."""
    parts = (job_id, *_find_own_steps(account.database, job_id))
    folders = [account.places.grid_job(part) for part in parts]
    size = 0
    # The list grows as folders are found, because a deep tree must not exhaust the stack.
    for folder in folders:
        with suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    folders.append(Path(entry.path))
                else:
                    size += entry.stat(follow_symlinks=False).st_size
    return size


def _find_own_steps(database: Database, job_id: str) -> list[str]:
    """The grid jobs that are steps of this one only: a repetition takes over steps that are done."""
    children = [step.grid_job for step in database.grid_jobs.steps_of(job_id)]
    return [child for child in children if child and database.grid_jobs.parents_of(child) == [job_id]]


def sweep(account: Account) -> int:
    """Complete removals that were interrupted, and drop old usage records; the size of removed files in bytes."""
    with account.database.transaction():
        account.database.accounting.forget(time.time() - KEPT)
    size = 0
    for grid_job, folder in account.places.all_removed().items():
        # The transaction was rolled back: the folder will be removed together with the documents.
        if account.database.grid_jobs.has(grid_job):
            continue
        try:
            size += remove_folder(folder)
        except OSError as error:
            logger.warning("%s cannot be removed completely: %s", folder, error)
    return size


def find_ended_before(database: Database, second: float) -> list[str]:
    """The grid jobs that ended before a second, the oldest first; without steps, which go with their parents."""
    ended = _read_some(database, database.grid_jobs.list_ended())
    old = [job.job_id for job in ended if job.ended_time is not None and job.ended_time < second]
    return [job_id for job_id in old if not database.grid_jobs.parents_of(job_id)]


def _read_some(database: Database, job_ids: Iterable[str]) -> Iterator[GridJob]:
    """These grid jobs, without those that cannot be read."""
    for job_id in job_ids:
        try:
            yield database.grid_jobs.get(job_id)
        except DamagedDocument as damage:
            logger.warning("%s", damage)


def _end_damaged(account: Account, job_id: str) -> None:
    """Cancel the local jobs of a grid job that cannot be read, because nobody would know of them afterwards."""
    try:
        cancel_by_index(account, job_id)
    except (BatchError, UnknownBatchSystem) as error:
        raise NotRemovable(f"{job_id}: its local jobs cannot be ended now: {error}") from error


def check_removable(database: Database, job_id: str) -> list[str]:
    """Check that a grid job may be removed; it and its steps, if they cannot be read and must be cancelled first.

    :raises NotRemovable: it must not be removed now; UnknownJob: there is no such grid job.
    """
    parents = database.grid_jobs.parents_of(job_id)
    if parents:
        raise NotRemovable(f"{job_id} is a step of {parents[0]}: remove that, its steps go with it")
    parts = [job_id, *_find_own_steps(database, job_id)]
    damaged = [part for part in parts if any(database.find_damages(part))]
    for part in parts:
        if part not in damaged:
            _check_ended(database.grid_jobs.get(part), time.time())
    # A repetition of a step reads files in the folder of the step's parent.
    needed = {job_id, *(step.grid_job for step in database.grid_jobs.steps_of(job_id))}
    for other in _read_some(database, [other.id for other in database.grid_jobs.list_open()]):
        if other.repeats in needed:
            repeated, by = other.repeats, other.job_id
            raise NotRemovable(f"{repeated} is repeated by {by}, which has not ended: remove it after that")
    return damaged


def _check_ended(job: GridJob, now: float) -> None:
    if not job.state.is_final:
        raise NotRemovable(f"{job.job_id} is {job.state.word}: cancel it, or wait until it has ended")
    if job.uniqid is not None and (job.reported is None or not job.reported.is_final):
        raise NotRemovable(f"{job.job_id}: GRAM has not been told of its end: samgrid status says why")
    if job.uniqid is not None and now - job.reported_time < GRAM_ASKS:
        raise NotRemovable(f"{job.job_id}: GRAM may ask for it until a day after its end")
