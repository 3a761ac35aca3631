"""Checks the job database: is the file sound, is each document valid, does each column agree with its document?"""

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from jobmanager.database.details import ATTEMPTS, PHASES
from jobmanager.database.documents import load_schema, read_document
from jobmanager.database.grid_job import GridJob
from jobmanager.database.grid_jobs import GRID_JOBS, STEPS, GridJobs
from jobmanager.database.local_job import LocalJob
from jobmanager.database.local_jobs import COUNTED, LOCAL_JOBS, LocalJobs
from jobmanager.database.sqlite import UNREADABLE, DamagedDocument, DatabaseError, Store, Table

_KEPT = "SELECT * FROM local_job_count WHERE number"
# One statement sees one moment, whatever a monitor writes meanwhile.
_MISCOUNTED = f"""
SELECT DISTINCT grid_job FROM (
    SELECT * FROM ({_KEPT} EXCEPT {COUNTED}) UNION ALL SELECT * FROM (SELECT * FROM ({COUNTED}) EXCEPT {_KEPT})
) ORDER BY grid_job
"""
_MOST = 20
"""Faults of the file that are listed."""


def list_programs(path: Path, layout: int) -> list[str]:
    """The names of views, virtual tables and triggers in a file that somebody else may have made.

    We have none, and using the database would run them. The triggers of earlier layouts are dropped unused.

    :raises DatabaseError: the file is no database.
    """
    sql = (
        "SELECT name FROM sqlite_schema WHERE type = 'view' OR sql LIKE 'CREATE VIRTUAL%'"
        " OR type = 'trigger' AND (SELECT user_version FROM pragma_user_version) = ?"
    )
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)) as connection:
            return [name for (name,) in connection.execute(sql, [layout])]
    except UNREADABLE as error:
        raise DatabaseError(f"job database {path}: {error}") from error


class Checking:
    """Finds what is wrong with a job database, and derives columns again."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def list_file_faults(self) -> list[str]:
        """What SQLite itself finds wrong with the file."""
        return [line for line in self._store.values(f"PRAGMA quick_check({_MOST})") if line != "ok"]

    def list_document_faults(self) -> Iterator[str]:
        """A sentence for each document that cannot be read, is not valid, or disagrees with its columns."""
        for job_id, data in self._store.query("SELECT id, document FROM grid_job ORDER BY submitted, id"):
            yield from _check(self._store, job_id, 0, data)
        for job_id, number, data in self._store.query("SELECT grid_job, number, document FROM local_job ORDER BY 1, 2"):
            yield from _check(self._store, job_id, number, data)
        for job_id in self._store.values(_MISCOUNTED):
            yield f"the counts of the local jobs of grid job {job_id} are not what there are"

    def derive_anew(self) -> None:
        """Write again all rows that are derived from readable documents, inside the caller's transaction."""
        store, grid_jobs, local_jobs = self._store, GridJobs(self._store), LocalJobs(self._store)
        for job_id in store.values("SELECT id FROM grid_job"):
            with suppress(DamagedDocument):
                job = grid_jobs.get(job_id)
                store.write("DELETE FROM step WHERE grid_job = ?", [(job_id,)])
                grid_jobs.put(job)
            for number in store.values("SELECT number FROM local_job WHERE grid_job = ?", [job_id]):
                with suppress(DamagedDocument):
                    local_job = local_jobs.get(job_id, number)
                    store.write("DELETE FROM attempt WHERE grid_job = ? AND number = ?", [(job_id, number)])
                    local_jobs.put(job_id, [local_job])
        local_jobs.count_anew()

    def read_columns(self, job_id: str, number: int) -> Mapping[str, Any]:
        """The columns of a local job whose document cannot be read; with number 0, of the grid job itself."""
        table = LOCAL_JOBS if number else GRID_JOBS
        (row,) = _stored(self._store, table, job_id, number)
        return dict(zip(_columns(table), row, strict=True))


def _check(store: Store, job_id: str, number: int, data: bytes) -> Iterator[str]:
    whose = f"local job {number} of grid job {job_id}" if number else f"grid job {job_id}"
    kind = LocalJob if number else GridJob
    try:
        document = kind(read_document(kind.tag, data, job_id, number))
    except DamagedDocument as damage:
        yield str(damage)
        return
    schema = load_schema()
    if not schema.validate(document.element):
        yield f"the document of {whose} is not valid: {schema.error_log.last_error}"
        return
    derived = (job_id, document) if number else (document,)
    for table in (LOCAL_JOBS, PHASES, ATTEMPTS) if number else (GRID_JOBS, STEPS):
        if _stored(store, table, job_id, number) != table.rows(*derived, without="document"):
            yield f"the columns of {whose} in table {table.name} are not what its document says"


def _columns(table: Table) -> list[str]:
    return [name for name in table.kinds if name != "document"]


def _stored(store: Store, table: Table, job_id: str, number: int) -> list[tuple[Any, ...]]:
    condition, values = f"{next(iter(table.key))} = ?", [job_id]
    if number:
        condition, values = f"{condition} AND number = ?", [job_id, str(number)]
    sql = f"SELECT {', '.join(_columns(table))} FROM {table.name} WHERE {condition} ORDER BY {', '.join(table.key)}"
    return list(store.query(sql, values))
