"""Private copies of a grid job's credentials, which follow their files: where its programs find them."""

import logging
import stat
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from jobmanager.database.grid_job import CredentialEntry, GridJob
from jobmanager.requests.credentials import KINDS, BadCredential, read_content, read_credential
from jobmanager.site.account import Account
from sandbox.files import SandboxError, replace_file

logger = logging.getLogger(__name__)


def find_copies(account: Account, job_id: str) -> dict[str, Path]:
    """The copies that there are, by the attributes of a request that name their files."""
    folder = account.places.credentials(job_id)
    return {name: folder / name for name in KINDS if (folder / name).is_file()}


def has_copies(account: Account, job_id: str) -> bool:
    """True for a grid job whose credentials are followed."""
    return account.places.credentials(job_id).is_dir()


def bring_credentials(account: Account, job_id: str) -> None:
    """Copy the credentials of a grid job before anything is submitted.

    A file that has gone since costs nothing where there is a copy, nor where nobody asked for it.

    :raises SandboxError, OSError, DatabaseError: not now: there is no credential that could be handed on, say.
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
    """Copy again what has changed of the credentials of all open grid jobs; one that cannot be is told, and waits.

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
    """Make the folder, for the account alone; a program may have closed it, or put something else in its place."""
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
        # Before the copies: whoever is killed in between finds that these are others than their files, and goes on.
        account.database.grid_jobs.change(job.job_id, lambda job: job.put_credentials(known))
    for entry, content in found:
        if content is not None:
            replace_file(folder / entry.name, content)


def _read_source(entry: CredentialEntry, copy: Path, now: float) -> tuple[CredentialEntry, bytes | None]:
    """What is known of a credential now, and what its copy is to hold, if that is something else than it does."""
    source = Path(entry.source)
    try:
        content = read_content(source)
        if content == _read_copy(copy):
            return replace(entry, problem=None), None
        credential = read_credential(KINDS[entry.name], source, content)
    except BadCredential as error:
        return replace(entry, problem=str(error)), None
    return entry.renew(credential.expires, now), credential.content


def _read_copy(copy: Path) -> bytes | None:
    try:
        return read_content(copy)
    except BadCredential:  # there is none yet, or a program has spoiled it
        return None


def _log_changes(job_id: str, before: Sequence[CredentialEntry], known: Sequence[CredentialEntry]) -> None:
    for old, new in zip(before, known, strict=True):
        if new.problem and new.problem != old.problem:
            logger.warning("%s %s is not followed: %s", job_id, new.name, new.problem)
        elif new.expires != old.expires:
            logger.info("%s %s is copied", job_id, new.name)
