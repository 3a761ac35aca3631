"""Cancel requests: record that somebody, or a failure, wants a grid job ended; workers do the rest."""

import logging
import os
import re
import stat
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from jobmanager.database.database import DamagedDocument, Database
from jobmanager.site.account import Account
from sandbox.files import kept_open, open_own

logger = logging.getLogger(__name__)


def request_cancel(database: Database, grid_job: str, reason: str, by: str | None = None) -> bool:
    """Request the end of a grid job, which cannot be withdrawn; False if it has ended already.

    :param by: ``us`` if no person wants it, but it cannot be run.
    """
    with database.transaction():
        job = database.grid_jobs.get(grid_job)
        if job.state.is_final:
            return False
        job.cancel(time.time(), reason, by)
        database.grid_jobs.put(job)
    logger.info("%s cancelled: %s", grid_job, reason)
    return True


_KEPT = 86_400.0
"""Seconds for which the mark of a request that never became a grid job is kept."""
_MARK = re.compile(r"[A-Za-z0-9][A-Za-z0-9.]{0,199}", re.ASCII)
"""A uniqid of GRAM, as samgrid.pm writes it."""


def hold_back(account: Account, uniqid: str, seconds: float) -> None:
    """Make the grid job of a request wait until GRAM has our answer; after so many seconds it is cancelled.

    :raises OSError: that cannot be recorded, so nothing may be accepted.
    """
    if not _MARK.fullmatch(uniqid):
        return
    mark, due = account.places.withdrawn / uniqid, time.time() + seconds
    mark.parent.mkdir(mode=0o700, exist_ok=True)
    with kept_open(open_own(mark)) as descriptor:
        os.utime(descriptor, (due, due))


def cancel_withdrawn(account: Account) -> set[str]:
    """Cancel the grid jobs of requests whose answer GRAM did not get in time, because it reports them as failed.

    Returns the grid jobs for which nothing may be started now: these, and those whose answer GRAM may still get.

    :raises DatabaseError, OSError: not now; the rest is for the next time.
    """
    found = set()
    for mark, due in _list_marks(account.places.withdrawn):
        grid_job = account.database.grid_jobs.find_uniqid(mark.name)
        if grid_job is not None:
            found.add(grid_job)
        age = time.time() - due
        # A new mark has the current time for a moment, before its own is set.
        if age < 1:
            continue
        try:
            if grid_job is not None:
                request_cancel(account.database, grid_job, "GRAM was told that it failed, because no answer to it came")
        except DamagedDocument as damage:  # the mark stays until it can be read
            logger.debug("%s", damage)
            continue
        if grid_job is not None or age > _KEPT:
            mark.unlink(missing_ok=True)
    return found


def _list_marks(folder: Path) -> Iterator[tuple[Path, float]]:
    """The marks, each with its due time; the Perl module may remove them at any time."""
    with suppress(FileNotFoundError):
        for entry in list(folder.iterdir()):
            with suppress(FileNotFoundError):
                if _MARK.fullmatch(entry.name) and stat.S_ISREG((found := entry.lstat()).st_mode):
                    yield entry, found.st_mtime


def forget_withdrawal(account: Account, uniqid: str) -> None:
    """Remove a request's mark: GRAM submits it again, so it is wanted after all; or it has been refused.

    :raises OSError: the mark cannot be removed, so the request would be cancelled.
    """
    if _MARK.fullmatch(uniqid):
        (account.places.withdrawn / uniqid).unlink(missing_ok=True)
