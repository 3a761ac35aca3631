"""Read-only access of the pages to the job database and to files of grid jobs; no link is followed."""

import os
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from jobmanager.database.database import Choice, Database
from jobmanager.database.grid_jobs import COUNT_BLOCKED
from jobmanager.site.account import Account
from jobmanager.web.live import Mark
from sandbox.files import open_unlinked

HOUR, DAY = 3600, 86400
"""Seconds."""
_SETTLE_TIME = 2.0
"""Seconds from the last byte in the log until its commit can be seen."""
_TOTALS = """
SELECT 'type', type, 0 FROM (SELECT DISTINCT type FROM grid_job ORDER BY 1 LIMIT 200)
UNION ALL SELECT 'owner', owner, 0 FROM (SELECT DISTINCT owner FROM grid_job ORDER BY 1 LIMIT 200)
UNION ALL SELECT 'open', state, sum(number) FROM local_job_count WHERE outcome = '' GROUP BY state
UNION ALL SELECT 'day', outcome, count(*) FROM local_job WHERE outcome IS NOT NULL AND ended > ? GROUP BY outcome
UNION ALL SELECT 'hour', '', count(*) FROM local_job WHERE outcome IS NOT NULL AND ended > ?
"""


@dataclass(frozen=True)
class Totals:
    """What there is, over all grid jobs."""

    chosen: int
    """Grid jobs that match a choice."""
    types: list[str]
    owners: list[str]
    open: Mapping[str, int]
    """Local jobs that have not ended, by the word of their state."""
    day: Mapping[str, int]
    """Local jobs that have ended within 24 hours, by outcome."""
    hour: int
    """Local jobs that have ended within an hour."""


class ReadOnlyDatabase(Database):
    """The job database of an account, to be read by one thread."""

    def __init__(self, account: Account) -> None:
        path = account.places.database
        # Where there is no database, nothing was ever submitted: and reading shall not make one.
        super().__init__(path if path.exists() else None, account.refusal)
        self._store.forbid_writing(self.refusal)

    def read_totals(self, chosen: Choice, now: float) -> Totals:
        """Totals of grid jobs and local jobs, from one statement and so from one snapshot."""
        condition, values = chosen.condition()
        sql = f"{_TOTALS} UNION ALL SELECT 'chosen', '', count(*) FROM grid_job WHERE {condition}"
        found: dict[str, dict[str, int]] = defaultdict(dict)
        for kind, name, number in self._store.query(sql, [int(now) - DAY, int(now) - HOUR, *values]):
            # Nothing with control characters, or longer than a line, is a real name.
            if name.isprintable() and len(name) <= 200:
                found[kind][name] = number
        return Totals(
            *(found["chosen"][""], list(found["type"]), list(found["owner"])),
            *(found["open"], found["day"], sum(found["hour"].values())),
        )

    def mark_of_all(self) -> Mark:
        """A value that changes whenever the list of grid jobs would."""
        local_jobs = self._store.query("SELECT * FROM local_job_count WHERE number")
        blocked = self._store.query(f"SELECT id, {COUNT_BLOCKED} FROM grid_job WHERE state NOT IN ('done', 'failed')")
        return (*self._store.query("SELECT id, state FROM grid_job"), *local_jobs, *blocked)

    def mark_of_local_job(self, job_id: str, index: int) -> Mark:
        """A value that changes whenever a local job's page would, apart from what it prints."""
        return (
            *self._store.query("SELECT document FROM grid_job WHERE id = ?", [job_id]),
            *self._store.query("SELECT document FROM local_job WHERE grid_job = ? AND number = ?", [job_id, index]),
        )

    def mark_of_grid_job(self, job_id: str) -> Mark:
        """A value that changes whenever a grid job's page would."""
        documents = self._store.query("SELECT document FROM grid_job WHERE id = ?", [job_id])
        phases = self._store.query(
            "SELECT total(done), total(total), max(changed) FROM phase WHERE grid_job = ?", [job_id]
        )
        return (*documents, *self.grid_jobs.overview(job_id), *phases)


def open_read_only(account: Account) -> "closing[ReadOnlyDatabase]":
    """The database for the time of one answer."""
    return closing(ReadOnlyDatabase(account))


def read_version(account: Account) -> tuple[object, ...]:
    """A value that changes after every commit; empty without a database, or where another host writes it."""
    file = account.places.database
    if account.refusal or not file.exists():
        return ()
    # A connection that stays open would go on with files that somebody has removed or replaced. Nor may one of them be
    # opened and closed: that ends all locks which this process has on it (sqlite.org/howtocorrupt.html, 2.2).
    log = file.with_name(f"{file.name}-wal")
    files = [file.stat(), *([log.stat()] if log.exists() else [])]
    # What is in the log is committed a little later: whoever looked between must look again.
    is_settled = time.time() - max(status.st_mtime for status in files) > _SETTLE_TIME
    return (*((status.st_ino, status.st_size, status.st_mtime_ns) for status in files), is_settled)


TAIL = 256 * 1024
"""Bytes of the end of a text that are shown."""
_CHUNK = 256 * 1024


def open_file(path: Path | None) -> BinaryIO | None:
    """Open a regular file in a folder of ours; None if it is missing, or a link."""
    try:
        return open_unlinked(path) if path else None
    except OSError:
        return None


def find_size(path: Path | None) -> int | None:
    """The bytes of such a file; None if it is missing, or a link."""
    stream = open_file(path)
    if stream is None:
        return None
    with stream:
        return measure(stream)


def measure(stream: BinaryIO) -> int:
    return os.fstat(stream.fileno()).st_size


def read_chunks(stream: BinaryIO, size: int) -> Iterator[bytes]:
    """So many bytes of a file, which is closed at the end."""
    with stream:
        while size > 0 and (chunk := stream.read(min(size, _CHUNK))):
            size -= len(chunk)
            yield chunk
