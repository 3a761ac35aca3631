"""Makes a state folder of a backup, completely or not at all, without submitting anything a second time.

A backup does not know what was submitted after it was made, and tokens would be used twice. So grid jobs that had not
ended are left out, or followed: those that were completely submitted are followed to their ends, without retries, and
the others are cancelled, which first looks for their submissions in doubt. People can then resubmit what is missing.
"""

import enum
import json
import os
import shutil
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from batch_adapters.states import State
from jobmanager import render_error, render_number
from jobmanager.control.backup import AGAIN, NOTE, BackupError
from jobmanager.database.checking import list_programs
from jobmanager.database.database import LAYOUT, Database
from jobmanager.database.grid_job import GridJob
from jobmanager.site.account import Account
from jobmanager.site.places import StatePlaces
from sandbox.files import SandboxError, TarLimits, kept_open, read_regular, remove_folder, sync_folder, take_lock
from sandbox.unpack import sync_tree, unpack

_ANYTHING = TarLimits(sys.maxsize, sys.maxsize)
"""No limits but the disk: a backup is the account's own."""
_LONGEST_NOTE = 65_536


class OpenJobs(enum.Enum):
    """What to do with grid jobs that had not ended when the backup was made."""

    REFUSED = "refused"
    LEFT_OUT = "left out"
    FOLLOWED = "followed"


def restore(account: Account, file: Path, open_jobs: OpenJobs) -> list[str]:
    """Make the account's state folder of a backup; the ids of the grid jobs that had not ended.

    :raises BackupError: there is a state folder, or the backup cannot be used in this way; nothing has changed.
    :raises DatabaseError: the job database in it cannot be used.
    """
    places = account.places
    folders = [folder for folder in (places.root, places.spool) if folder is not None]
    for folder in folders:
        if folder.exists() and any(folder.iterdir()):
            raise BackupError(f"{folder} is not empty: move it away, or name another state folder with --state-dir")
    if open_jobs is OpenJobs.FOLLOWED and (working := _find_process(places.root)):
        raise BackupError(
            f"process {working} works for {places.root} still: a living account would cancel and collect the same local"
            f" jobs. End it first (kill {working}), if that account is given up"
        )
    try:
        with _alone(places.root) as work:
            unpack(Path(os.path.realpath(file)), work, _ANYTHING)
            made = StatePlaces(work)
            _check_members(made, file)
            opened = _settle(made, _read_note(made, file) == str(places.jobs), open_jobs)
            sync_tree(work)
            if places.spool is not None:
                _move(made.jobs, places.spool)
            work.rename(places.root)
            sync_folder(places.root.parent)
            return opened
    except (SandboxError, OSError) as error:
        raise BackupError(f"{places.root} could not be made of {file}: {render_error(error)}") from error


def _find_process(root: Path) -> int | None:
    """A process of this account on this host that was started for this state folder, before it was moved away."""
    wanted = b"--state-dir\0" + os.fsencode(root) + b"\0"
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            if (
                folder.stat().st_uid == os.geteuid()
                and int(folder.name) != os.getpid()
                and wanted in (folder / "cmdline").read_bytes()
            ):
                return int(folder.name)
    return None


@contextmanager
def _alone(root: Path) -> Iterator[Path]:
    """The name of a temporary folder beside the state folder, which no other process uses; it is removed at the end."""
    root.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with kept_open(os.open(root.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as parent:
        if not take_lock(parent):
            raise BackupError(f"another process works in {root.parent}: try again when it has ended")
        work = _name_beside(root)
        _clear(work)
        try:
            yield work
        finally:
            _clear(work)


def _name_beside(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.restored")


def _clear(work: Path) -> None:
    """Remove what a restoration that was killed has left."""
    for left in work.parent.glob(f"{work.name}*"):
        remove_folder(left)


def _check_members(made: StatePlaces, file: Path) -> None:
    """Refuse unknown members: SQLite, for example, would delete any file that a journal of the database names."""
    kept = (made.database, made.notified, made.gram, made.withdrawn, made.jobs)
    known = {NOTE, AGAIN, *(path.name for path in kept)}
    for path in made.root.iterdir():
        if path.name not in known or path.is_symlink():
            raise BackupError(f"{file} is no backup of samgrid's: {path.name!r} is in it")


def _read_note(made: StatePlaces, file: Path) -> str:
    """The folder of grid jobs' folders of which the backup was made."""
    note = made.root / NOTE
    try:
        jobs = json.loads(read_regular(note, _LONGEST_NOTE))["jobs"]
        if not made.database.is_file():
            raise KeyError(made.database.name)
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise BackupError(f"{file} is no backup of samgrid's: {render_error(error)}") from error
    note.unlink()
    return str(jobs)


def _settle(made: StatePlaces, is_same_place: bool, open_jobs: OpenJobs) -> list[str]:
    """Check the job database, and deal with the grid jobs that had not ended; their ids."""
    if programs := list_programs(made.database, LAYOUT):
        raise BackupError(f"the job database in it is not ours: it holds {programs[0]!r}, which would be run")
    # This also upgrades a database of an earlier version.
    database = Database(made.database)
    try:
        if faults := database.checking.list_file_faults():
            raise BackupError(f"the job database in it is damaged: {faults[0]}")
        opened = [job.id for job in database.grid_jobs.list_open()]
        _check_ids(made, [*opened, *database.grid_jobs.list_ended()])
        _check_open(opened, is_same_place, open_jobs)
        for job_id in opened:
            if open_jobs is OpenJobs.FOLLOWED:
                database.grid_jobs.change(job_id, lambda job: _follow(database, job))
                continue
            with database.transaction():
                database.grid_jobs.delete(job_id)
            (made.gram / job_id).unlink(missing_ok=True)
        _choose_folders(made, database)
    finally:
        database.close()
    return opened


def _check_ids(made: StatePlaces, job_ids: Iterable[str]) -> None:
    """Refuse invalid ids: they become names of files that are written and removed."""
    try:
        for job_id in job_ids:
            made.grid_job(job_id)
    except ValueError as error:
        raise BackupError(f"the job database in it is not ours: {error}") from error


def _check_open(opened: list[str], is_same_place: bool, open_jobs: OpenJobs) -> None:
    some = f"{render_number(len(opened), 'grid job')} had not ended when the backup was made ({', '.join(opened[:5])}…)"
    if opened and open_jobs is OpenJobs.REFUSED:
        raise BackupError(
            f"{some}: --leave-out restores the others only; --follow goes on with them, where the account that the"
            " backup was made of is gone for good"
        )
    if opened and open_jobs is OpenJobs.FOLLOWED and not is_same_place:
        raise BackupError(
            f"{some}, and their local jobs write into the folder that it was made of: restore it in the same place,"
            " or with --leave-out"
        )


def _follow(database: Database, job: GridJob) -> None:
    job.retries = 0
    steps = database.grid_jobs.steps_of(job.job_id)
    counts = database.local_jobs.count(job.job_id)
    is_begun = all(step.grid_job for step in steps) if steps else counts and State.UNSUBMITTED not in counts
    if not is_begun:
        job.cancel(time.time(), "restored from a backup: what was not submitted then may have been since", by="us")


def _choose_folders(made: StatePlaces, database: Database) -> None:
    """Keep the folders of existing grid jobs, in the version that was read last."""
    made.jobs.mkdir(mode=0o700, exist_ok=True)
    again = made.root / AGAIN
    with suppress(FileNotFoundError):
        for folder in again.iterdir():
            remove_folder(made.jobs / folder.name)
            folder.rename(made.jobs / folder.name)
        again.rmdir()
    for folder in list(made.jobs.iterdir()):
        if not database.grid_jobs.has(folder.name):
            remove_folder(folder)


def _move(jobs: Path, spool: Path) -> None:
    """Move the grid jobs' folders to their file system, completely or not at all."""
    spool.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    work = _name_beside(spool)
    _clear(work)
    shutil.move(jobs, work)
    sync_tree(work)
    work.rename(spool)
    sync_folder(spool.parent)
