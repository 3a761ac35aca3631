"""The request to cancel a grid job: that someone, or a failure, wants it ended; the workers see to the rest."""

import logging
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from jobmanager.database.database import DamagedDocument, Database
from jobmanager.site.account import Account

logger = logging.getLogger(__name__)


def request_cancel(database: Database, grid_job: str, reason: str, by: str | None = None) -> bool:
    """Want a grid job ended, from now on and for ever; False if it has ended already.

    :param by: ``us`` where nobody wants that, but it cannot be run.
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
"""Seconds for which a request that never became a grid job is remembered."""
_MARK = re.compile(r"[A-Za-z0-9][A-Za-z0-9.]{0,199}", re.ASCII)
"""A uniqid of GRAM's as samgrid.pm writes it down."""


def cancel_withdrawn(account: Account) -> None:
    """Cancel the grid jobs of requests of which GRAM's Perl module said that they failed.

    :raises DatabaseError, OSError: not now; the rest is for the next time.
    """
    for mark in _list_marks(account.places.withdrawn):
        grid_job = account.database.grid_jobs.find_uniqid(mark.name)
        try:
            if grid_job is not None:
                request_cancel(account.database, grid_job, "GRAM was told that it failed, because no answer to it came")
        except DamagedDocument as damage:  # the mark waits until it can be read
            logger.debug("%s", damage)
            continue
        if grid_job is not None or time.time() - mark.stat().st_mtime > _KEPT:
            mark.unlink(missing_ok=True)


def _list_marks(folder: Path) -> Iterator[Path]:
    with suppress(FileNotFoundError):
        yield from (entry for entry in folder.iterdir() if _MARK.fullmatch(entry.name) and entry.is_file())


def forget_withdrawal(account: Account, uniqid: str) -> None:
    """GRAM submits the request once more, so it wants it after all.

    :raises OSError: it cannot be forgotten: the request would be cancelled.
    """
    if _MARK.fullmatch(uniqid):
        (account.places.withdrawn / uniqid).unlink(missing_ok=True)
