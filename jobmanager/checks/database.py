"""Is what the job manager has written down as it should be? The part of ``samgrid doctor`` about the job database."""

from collections.abc import Iterator

from batch_adapters.diagnosis import Finding, Level
from jobmanager.database.database import DatabaseError
from jobmanager.site.account import Account

_MOST = 20
"""Faults that are told one by one."""


def look_at_database(account: Account) -> Iterator[Finding]:
    """The file, the documents, the columns and the folders of an account's grid jobs."""
    path = account.places.database
    if not path.exists():
        yield Finding(Level.GOOD, f"job database {path} comes with the first grid job")
        return
    recover = f"end the monitor, keep a copy of {path}, then: sqlite3 {path} .recover | sqlite3 new.db"
    try:
        faults = account.database.find_file_faults()
        if not faults:
            yield from _look_at_documents(account)
            yield from _look_at_folders(account)
    except DatabaseError as error:
        faults = [str(error)]
    if faults:
        yield Finding(Level.FAULT, f"job database {path} is damaged: {faults[0]}", recover)


def _look_at_documents(account: Account) -> Iterator[Finding]:
    faults = list(account.database.find_document_faults())
    for fault in faults[:_MOST]:
        yield Finding(Level.FAULT, fault, "samgrid repair mends what can be mended; all other grid jobs go on")
    if len(faults) > _MOST:
        yield Finding(Level.FAULT, f"the same or the like of {len(faults) - _MOST} other documents")
    if not faults:
        count = len(account.database.grid_jobs.overview())
        yield Finding(Level.GOOD, f"job database {account.places.database}: {count} grid jobs, every document is sound")


def _look_at_folders(account: Account) -> Iterator[Finding]:
    for row in account.database.grid_jobs.overview():
        folder = account.places.grid_job(row.id)
        if row.counts and not folder.is_dir():
            remedy = f"bring it back from where it was moved; or samgrid cancel {row.id}, samgrid remove {row.id}"
            yield Finding(Level.FAULT, f"grid job {row.id} ({row.state}) has no folder {folder}", remedy)
