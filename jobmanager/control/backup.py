"""Writes a backup: one tar of an account's state, made while everything runs; `restoring` makes a state folder of it.

The job database is copied first, then each grid job's folder is read: if files are newer than the documents, they will
simply be read again. If a grid job ends while its folder is read, its outputs move into its tar. Then the folder is
read once more, and its documents are copied again. The embedded batch system's spool, locks, sockets and logs of
processes are left out, because they belong to running processes and to this machine.
"""

import json
import os
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from jobmanager import UserError
from jobmanager.database.database import DamagedDocument, Database
from jobmanager.database.times import render_time
from jobmanager.site.account import Account
from jobmanager.site.places import CREDENTIALS
from sandbox.files import (
    MAX_DEPTH,
    SandboxError,
    atomic_write,
    check_replaceable,
    kept_open,
    open_regular,
    stays_inside,
)
from sandbox.gather import MOST_HOLES, count_holes, render_too_sparse
from sandbox.pack import FOLDER_FLAGS, Tar, is_executable, write_tar

NOTE = "backup.json"
"""The member that names the folder of grid jobs in the backup, and its time."""
AGAIN = "again"
"""The folder with grid jobs' folders that replace those of the same name in ``jobs``."""
_OF_PROCESSES = (".lock", ".asked", ".tmp", "work-area")
"""Endings of names in a grid job's folder that only running processes need."""


class BackupError(UserError):
    """A backup cannot be made or restored; the message says why, and nothing incomplete is left."""


def write_backup(account: Account, file: Path) -> list[str]:
    """Write the account's state into one tar, completely or not at all; what is left out, a sentence each.

    :raises BackupError: there is nothing to back up, or the disk is full.
    :raises DatabaseError: the job database cannot be read, or not be copied.
    :raises OSError: the target is no regular file, or a folder of another account is in the way.
    """
    if not account.places.database.exists():
        raise BackupError(f"there is no job database {account.places.database}: nothing to make a backup of")
    check_replaceable(file)
    try:
        with atomic_write(file) as write, _folder_beside(file) as folder:
            path = folder / account.places.database.name
            account.database.copy_to(path)
            with write_tar(_naming(file, write)) as tar:
                backup = _Backup(account, Database(path), tar)
                backup.add_state()
                backup.add(path, path.name)
            return backup.left_out
    except SandboxError as error:
        raise BackupError(str(error)) from error


@contextmanager
def _folder_beside(file: Path) -> Iterator[Path]:
    folder = file.with_name(f"{file.name}.database")
    # Left by a backup that was killed: only one process at a time writes the file.
    shutil.rmtree(folder, ignore_errors=True)
    # An existing folder may belong to somebody else, who could read what we write.
    folder.mkdir(mode=0o700)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def _naming(file: Path, write: Callable[[bytes], None]) -> Callable[[bytes], None]:
    """Writes, and names the file in errors, so that they are not blamed on the file that is being read."""

    def write_or_tell(data: bytes) -> None:
        try:
            write(data)
        except OSError as error:
            raise SandboxError(f"{file} could not be written: {error.strerror}") from error

    return write_or_tell


class _Backup:
    """Builds the tar. Every name is opened relative to its folder's descriptor, and no link is followed."""

    def __init__(self, account: Account, copy: Database, tar: Tar) -> None:
        self._places, self._live, self._copy, self._tar = account.places, account.database, copy, tar
        self.left_out: list[str] = []

    def add_state(self) -> None:
        """Add everything but the job database."""
        note = {"jobs": str(self._places.jobs), "taken": render_time(time.time())}
        self._tar.add_bytes(NOTE, json.dumps(note).encode())
        for path in (self._places.notified, self._places.gram, self._places.withdrawn):
            self.add(path, path.name)
        # A parent comes before its steps, so that it never has ended while a step has not.
        open_ids, ended_ids = [job.id for job in self._copy.grid_jobs.list_open()], self._copy.grid_jobs.list_ended()
        for job_id in [*open_ids, *ended_ids]:
            self.add(self._places.grid_job(job_id), f"jobs/{job_id}")
            if self._has_changed(job_id, job_id in open_ids):
                self.add(self._places.grid_job(job_id), f"{AGAIN}/{job_id}")
        # Closing merges its write-ahead log into the file.
        self._copy.close()

    def _has_changed(self, job_id: str, was_open: bool) -> bool:
        """True if a grid job has ended since its documents were copied; then they are copied again."""
        with self._live.moment(), self._copy.transaction():
            if not self._live.grid_jobs.has(job_id):
                self._copy.usage.keep(job_id)
                self._copy.grid_jobs.delete(job_id)
            elif was_open:
                with suppress(DamagedDocument):  # it does not change until it is repaired
                    job = self._live.grid_jobs.get(job_id)
                    if job.state.is_final:
                        self._copy.grid_jobs.put(job)
                        self._copy.local_jobs.put(job_id, self._live.local_jobs.all_of(job_id))
                        return True
        return False

    def add(self, path: Path, member: str) -> None:
        """Add a file or a folder, if it exists."""
        with suppress(FileNotFoundError), kept_open(os.open(path.parent, FOLDER_FLAGS)) as folder:
            self._add_entry(folder, path.name, member)

    def _add_entry(self, folder: int, name: str, member: str) -> None:
        try:
            mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
            if member.count("/") >= MAX_DEPTH:
                self._leave_out(member, f"more than {MAX_DEPTH} folders deep")
            elif stat.S_ISREG(mode):
                self._add_file(folder, name, member)
            elif stat.S_ISDIR(mode):
                self._add_folder(folder, name, member)
            elif stat.S_ISLNK(mode):
                self._add_link(folder, name, member)
            else:
                self._leave_out(member, "no file, folder or link")
        except FileNotFoundError:  # removed meanwhile
            return
        except OSError as error:
            self._leave_out(member, str(error.strerror))

    def _add_file(self, folder: int, name: str, member: str) -> None:
        with open_regular(Path(name), folder) as file:
            status, descriptor = os.fstat(file.fileno()), file.fileno()
            if count_holes(descriptor, status) > MOST_HOLES:
                self._leave_out(member, render_too_sparse(status.st_size, "a tar"))
                return
            _, fault = self._tar.add_file(member, descriptor, status.st_size, is_executable(status))
            if fault:
                self._leave_out(member, fault)

    def _add_folder(self, folder: int, name: str, member: str) -> None:
        with kept_open(os.open(name, FOLDER_FLAGS, dir_fd=folder)) as descriptor:
            self._tar.add_folder(member)
            # The empty folder shows that the grid job has credentials.
            is_secret = member.count("/") == 2 and name == CREDENTIALS
            for inner in [] if is_secret else sorted(os.listdir(descriptor)):  # noqa: PTH208 a descriptor
                if member.count("/") != 1 or not inner.endswith(_OF_PROCESSES):
                    self._add_entry(descriptor, inner, f"{member}/{inner}")

    def _add_link(self, folder: int, name: str, member: str) -> None:
        target = os.readlink(name, dir_fd=folder)
        if stays_inside(target, member.count("/")):
            self._tar.add_link(member, target)
        else:
            self._leave_out(member, f"a link to {target}, which leads out of the state folder")

    def _leave_out(self, member: str, reason: str) -> None:
        self.left_out.append(f"{member}: {reason}")
