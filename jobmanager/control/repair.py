"""A job database with faults is mended as far as it can be, from what else is known; the faulty one is kept."""

import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from adapters.job_adapter import cut_slice
from batch_adapters.states import STATE_OF_WORD, State
from jobmanager.control.rebuilding import NotRebuilt, rebuild_grid_job
from jobmanager.database.database import DamagedDocument, Database, DatabaseError
from jobmanager.database.grid_job import GridJob
from jobmanager.database.local_job import Evidence, LocalJob
from jobmanager.site.account import Account
from jobmanager.states.changes import put_local_jobs
from jobmanager.states.driver_status import read_driver_status, status_file
from jobmanager.states.transitions import apply_driver_status


@dataclass(frozen=True)
class Repair:
    """What became of it."""

    saved: Path
    """The job database as it was."""
    mended: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    """What nobody can mend, a sentence each."""


def repair(account: Account, now: float) -> Repair:
    """Derive all columns anew, and make documents that cannot be read from what else is known.

    :raises DatabaseError: the file itself is damaged; nothing has changed. OSError: it cannot be saved first.
    """
    database = account.database
    if not account.places.database.exists():
        raise DatabaseError(f"there is no job database {account.places.database}")
    if faults := database.find_file_faults():
        raise DatabaseError(f"job database {database.path} is damaged: {faults[0]}: samgrid doctor says what to do")
    result = Repair(_save(account, now))
    before = list(database.find_document_faults())
    with database.transaction():
        database.derive_anew()
        for damage in list(database.find_damages()):
            # A grid job's own document comes first.
            if damage.number:
                _mend(account, damage, now)
            else:
                _rebuild(database, damage.grid_job, now, result)
    left = list(database.find_document_faults())
    with database.transaction():
        for grid_job in database.quarantine.list():
            if not any(database.find_damages(grid_job)):
                database.quarantine.lift(grid_job)
    result.mended.extend(fault for fault in before if fault not in left)
    result.left.extend(left)
    return result


def _save(account: Account, now: float) -> Path:
    """Copy the file, with what was not written into it yet; nobody can write meanwhile."""
    path = account.places.database
    saved = path.with_name(f"{path.name}.before-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime(now))}")
    with account.database.transaction():
        for end in ("", "-wal"):
            if path.with_name(path.name + end).exists():
                copy = saved.with_name(saved.name + end)
                shutil.copyfile(path.with_name(path.name + end), copy)
                copy.chmod(0o600)
    return saved


def _mend(account: Account, damage: DamagedDocument, now: float) -> None:
    database = account.database
    try:
        grid_job = database.grid_jobs.get(damage.grid_job)
    except DamagedDocument:
        return
    job = make_from_index(grid_job, database.read_columns(damage.grid_job, damage.number), now)
    if job.local_id is not None:
        status = read_driver_status(status_file(account, damage.grid_job, job.local_id))
        apply_driver_status(job, status, now)
    put_local_jobs(database, damage.grid_job, [job])


def _rebuild(database: Database, identity: str, now: float, result: Repair) -> None:
    try:
        lost = rebuild_grid_job(database, identity, now)
    except NotRebuilt as problem:
        result.left.append(str(problem))
    else:
        result.mended.extend(filter(None, [lost]))


def make_from_index(grid_job: GridJob, columns: Mapping[str, Any], now: float) -> LocalJob:
    """A local job as the index knows it; evidence, phases and earlier attempts are lost."""
    index, of_size = int(columns["number"]), grid_job.size_and_seed
    part = None if of_size is None else cut_slice(index, grid_job.slice_count, *of_size)
    job = LocalJob.new(index, str(columns["batch"]), part)
    job.state = STATE_OF_WORD[str(columns["state"])]
    job.local_id, job.token, job.array = columns["local_id"], columns["token"], columns["array"]
    job.remark, job.reason, job.cpu_seconds = columns["remark"], columns["reason"], columns["cpu_seconds"]
    job.helps, job.submitted_time = columns["helps"], columns["submitted"]
    job.put_times(started=columns["started"], ended=columns["ended"])
    if job.token is not None and job.state is State.UNSUBMITTED:
        job.intend(job.token, now)
    job.put_evidence(Evidence("us", "its document could not be read", int(now), "made anew from the index"))
    return job
