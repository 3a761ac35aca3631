"""Keeps private copies of a grid job's credentials up to date with their files; programs use the copies."""

import logging
import os
import stat
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from jobmanager.database.grid_job import CredentialEntry, GridJob
from jobmanager.requests.credentials import KINDS, BadCredential, read_content, read_expiry
from jobmanager.site.account import Account
from sandbox.files import SandboxError, replace_file

logger = logging.getLogger(__name__)


def find_copies(account: Account, job_id: str) -> dict[str, Path]:
    """The existing copies, by the attributes of a request that name their files."""
    folder = account.places.credentials(job_id)
    return {name: folder / name for name in KINDS if (folder / name).is_file()}


def has_copies(account: Account, job_id: str) -> bool:
    """False also where a program has closed the grid job's folder."""
    return os.path.isdir(account.places.credentials(job_id))  # noqa: PTH112


def bring_credentials(account: Account, job_id: str) -> None:
    """Copy the credentials of a grid job before anything is submitted.

    A missing file does not matter if there is a copy, or if the request did not name it.

    :raises SandboxError, OSError, DatabaseError: not now, for example because a credential is missing.
    """
    job = account.database.grid_jobs.get(job_id)
    if not job.credentials:
        return
    _open_folder(account.places.credentials(job_id))
    _follow(account, job)
    copies = find_copies(account, job_id)
    for entry in account.database.grid_jobs.get(job_id).credentials:
        if entry.name not in copies and not entry.is_gram_default:
            raise SandboxError(f"{entry.name}: {entry.problem}")


def follow_credentials(account: Account) -> None:
    """Update the copies for all open grid jobs; problems are logged and recorded.

    :raises DatabaseError: not now.
    """
    quarantined = account.database.quarantine.list()
    for job in account.database.grid_jobs.list_open():
        if job.id in quarantined or not has_copies(account, job.id):
            continue
        try:
            _open_folder(account.places.credentials(job.id))
            _follow(account, account.database.grid_jobs.get(job.id))
        except OSError as error:
            logger.warning("%s its credentials cannot be copied: %s", job.id, error)


def _open_folder(folder: Path) -> None:
    """Make the folder, accessible only for the account; a program may have closed or replaced it."""
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode):
        raise NotADirectoryError(f"{folder} is no folder any more: remove it")
    if stat.S_IMODE(status.st_mode) != stat.S_IRWXU:
        folder.chmod(stat.S_IRWXU)


def _follow(account: Account, job: GridJob) -> None:
    folder, entries = account.places.credentials(job.job_id), job.credentials
    found = [_read_source(entry, folder / entry.name, time.time()) for entry in entries]
    known = [entry for entry, _ in found]
    if known != entries:
        _log_changes(job.job_id, entries, known)
        # Before the copies: after a kill in between, the copies still differ from their files, and are updated.
        account.database.grid_jobs.change(job.job_id, lambda job: job.put_credentials(known))
    for entry, content in found:
        if content is not None:
            replace_file(folder / entry.name, content)


def _read_source(entry: CredentialEntry, copy: Path, now: float) -> tuple[CredentialEntry, bytes | None]:
    """The credential's entry now, and the new content of its copy, if that must change."""
    source = Path(entry.source)
    try:
        content = read_content(source)
        if content == _read_copy(copy):
            return replace(entry, problem=None), None
        expires = read_expiry(KINDS[entry.name], source, content)
    except BadCredential as error:
        return replace(entry, problem=str(error)), None
    return entry.renew(expires, now), content


def _read_copy(copy: Path) -> bytes | None:
    try:
        return read_content(copy)
    except BadCredential:  # missing, or damaged by a program
        return None


def _log_changes(job_id: str, before: Sequence[CredentialEntry], known: Sequence[CredentialEntry]) -> None:
    for old, new in zip(before, known, strict=True):
        if new.problem and new.problem != old.problem:
            logger.warning("%s %s is not followed: %s", job_id, new.name, new.problem)
        elif new.expires != old.expires:
            logger.info("%s %s is copied", job_id, new.name)
