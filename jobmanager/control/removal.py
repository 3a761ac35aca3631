"""Removing grid jobs that have ended: their documents, and everything in their folders.

The folder is renamed and the documents are deleted in one transaction, so nobody can run the grid job again in between;
then the renamed folder goes. What a kill leaves behind goes with the next removal (`sweep`).
"""

import logging
import os
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from batch_adapters.adapter import BatchError
from batch_adapters.registry import UnknownBatchSystem
from jobmanager.control.cancellation import cancel_by_index
from jobmanager.database.database import DamagedDocument, Database
from jobmanager.database.grid_job import GridJob
from jobmanager.database.times import read_time
from jobmanager.gram.answers import answer_file
from jobmanager.site.account import Account

logger = logging.getLogger(__name__)

GRAM_ASKS = 86_400
"""Seconds for which the answer to GRAM's polls is kept after the end was told: its host may be down for a while."""


class NotRemovable(Exception):
    """The grid job must stay for now; the sentence says why and the way out."""


def remove_grid_job(account: Account, job_id: str) -> int:
    """Remove one grid job; the bytes of its files.

    One that cannot be read any more is ended first.

    :raises NotRemovable: it has not ended, GRAM may still ask for it, or another grid job needs it.
    :raises UnknownJob: there is no such grid job (any more).
    :raises OSError: files could not be removed; they go with the next removal.
    """
    database, places = account.database, account.places
    damage = next(database.find_damages(job_id), None)
    if damage is not None:
        _end_damaged(account, damage)
    with database.transaction():
        if damage is None:
            _check_removable(database, database.grid_jobs.get(job_id), time.time())
        with suppress(FileNotFoundError):  # a removal that was killed has come as far as this
            places.grid_job(job_id).rename(places.removed(job_id))
        database.grid_jobs.delete(job_id)
    answer_file(account, job_id).unlink(missing_ok=True)
    return remove_folder(places.removed(job_id))


def sweep(account: Account) -> int:
    """Remove what is left of removals that were killed; its bytes."""
    size = 0
    for folder in account.places.all_removed():
        try:
            size += remove_folder(folder)
        except OSError as error:
            logger.warning("%s is left of a removal: %s", folder, error)
    return size


def find_ended_before(database: Database, second: float) -> list[str]:
    """The grid jobs that ended before a second, the eldest first."""
    ended = _read_some(database, database.grid_jobs.list_ended())
    return [job.identity for job in ended if job.ended is not None and read_time(job.ended) < second]


def _read_some(database: Database, identities: Iterable[str]) -> Iterator[GridJob]:
    """Those that can be read: what another grid job's document said before it was damaged, nobody knows."""
    for identity in identities:
        try:
            yield database.grid_jobs.get(identity)
        except DamagedDocument as damage:
            logger.warning("%s", damage)


def _end_damaged(account: Account, damage: DamagedDocument) -> None:
    """See that nothing of a grid job runs on that nobody would know of any more."""
    whole = account.database.grid_jobs.parent_of(damage.grid_job)
    if whole is not None:
        raise NotRemovable(f"{damage.grid_job} is a step of {whole}: remove that first")
    try:
        cancel_by_index(account, damage.grid_job)
    except (BatchError, UnknownBatchSystem) as error:
        raise NotRemovable(f"{damage.grid_job}: its local jobs cannot be ended now: {error}") from error


def _check_removable(database: Database, job: GridJob, now: float) -> None:
    if not job.state.is_final:
        raise NotRemovable(f"{job.identity} is {job.state.word}: cancel it, or wait until it has ended")
    if job.uniqid is not None and (job.reported is None or not job.reported.is_final):
        raise NotRemovable(f"{job.identity}: GRAM has not been told of its end: samgrid status says what keeps it")
    if job.uniqid is not None and now - job.reported_time < GRAM_ASKS:
        raise NotRemovable(f"{job.identity}: GRAM may ask for it until a day after its end")
    whole = database.grid_jobs.parent_of(job.identity)
    if whole is not None:
        raise NotRemovable(f"{job.identity} is a step of {whole}: remove that first")
    # A repetition of a step reads what lies in the folder of the step's whole.
    needed = {job.identity, *(step.grid_job for step in job.steps)}
    for other in _read_some(database, [other.id for other in database.grid_jobs.list_open()]):
        if other.repeats in needed:
            repeated, by = other.repeats, other.identity
            raise NotRemovable(f"{repeated} is repeated by {by}, which has not ended: remove it after that")


def remove_folder(folder: Path) -> int:
    """Remove a folder, also where programs have left closed folders in it; the bytes of its files."""
    size = 0
    folders = [folder] if folder.is_dir() and not folder.is_symlink() else []
    # The list grows as folders are found: a deep tree must not end us.
    for path in folders:
        path.chmod(stat.S_IRWXU)
        with os.scandir(path) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    folders.append(Path(entry.path))
                    continue
                size += entry.stat(follow_symlinks=False).st_size
                Path(entry.path).unlink()
    for path in reversed(folders):
        path.rmdir()
    return size
