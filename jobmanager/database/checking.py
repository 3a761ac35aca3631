"""Is the job database what it should be: its file sound, each document valid, each column what its document says?"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from jobmanager.database.documents import Document, load_schema, read_document
from jobmanager.database.grid_job import GridJob
from jobmanager.database.grid_jobs import GRID_JOBS, STEPS, GridJobs
from jobmanager.database.local_job import LocalJob
from jobmanager.database.local_jobs import ATTEMPTS, COUNTED, LOCAL_JOBS, PHASES, LocalJobs
from jobmanager.database.sqlite import DamagedDocument, Store, Table

_KEPT = "SELECT * FROM local_job_count WHERE number"
# One statement sees one moment, whatever a monitor writes meanwhile.
_MISCOUNTED = f"""
SELECT DISTINCT grid_job FROM (
    SELECT * FROM ({_KEPT} EXCEPT {COUNTED}) UNION ALL SELECT * FROM (SELECT * FROM ({COUNTED}) EXCEPT {_KEPT})
) ORDER BY grid_job
"""
_MOST = 20
"""Faults of the file that are told."""


def find_file_faults(store: Store) -> list[str]:
    """What SQLite itself finds wrong with the file; nothing where it is sound."""
    return [str(line) for (line,) in store.query(f"PRAGMA quick_check({_MOST})") if line != "ok"]


def find_document_faults(store: Store) -> Iterator[str]:
    """A sentence for each document that cannot be read or is not valid, or whose columns say otherwise."""
    for job_id, data in store.query("SELECT id, document FROM grid_job ORDER BY submitted, id"):
        yield from _check(store, str(job_id), 0, data)
    for job_id, number, data in store.query("SELECT grid_job, number, document FROM local_job ORDER BY 1, 2"):
        yield from _check(store, str(job_id), int(number), data)
    for (job_id,) in store.query(_MISCOUNTED):
        yield f"the counts of the local jobs of grid job {job_id} are not what there are"


def _check(store: Store, job_id: str, number: int, data: bytes) -> Iterator[str]:
    whose = f"local job {number} of grid job {job_id}" if number else f"grid job {job_id}"
    try:
        document = (LocalJob if number else GridJob)(
            read_document(LocalJob.tag if number else GridJob.tag, data, job_id, number)
        )
    except DamagedDocument as damage:
        yield str(damage)
        return
    schema = load_schema()
    if not schema.validate(document.element):
        yield f"the document of {whose} is not valid: {schema.error_log.last_error}"
        return
    for table, rows in _derive(job_id, document):
        if _stored(store, table, job_id, number) != rows:
            yield f"the columns of {whose} in table {table.name} are not what its document says"


def _derive(job_id: str, document: Document) -> Iterator[tuple[Table, list[tuple[Any, ...]]]]:
    """The rows that each table should have of a document."""
    if isinstance(document, GridJob):
        yield GRID_JOBS, _rows(GRID_JOBS, [(document,)])
        yield STEPS, _rows(STEPS, [(document, number, step) for number, step in enumerate(document.steps, 1)])
    elif isinstance(document, LocalJob):
        yield LOCAL_JOBS, _rows(LOCAL_JOBS, [(job_id, document)])
        phases = [(job_id, document, *told) for told in enumerate(document.told_phases())]
        yield PHASES, _rows(PHASES, phases)
        past = [(job_id, document, *attempt) for attempt in enumerate(document.past(), 1)]
        yield ATTEMPTS, _rows(ATTEMPTS, past)


def _columns(table: Table) -> list[str]:
    return [name for name in table.columns if name != "document"]


def _rows(table: Table, sources: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    values = [table.columns[name][1] for name in _columns(table)]
    return [tuple(value(*source) for value in values) for source in sources]


def _stored(store: Store, table: Table, job_id: str, number: int) -> list[tuple[Any, ...]]:
    key = "id" if table is GRID_JOBS else "grid_job"
    condition, values = f"{key} = ?", [job_id]
    if number:
        condition, values = f"{condition} AND number = ?", [job_id, str(number)]
    sql = f"SELECT {', '.join(_columns(table))} FROM {table.name} WHERE {condition} ORDER BY {', '.join(table.key)}"
    return [tuple(row) for row in store.query(sql, values)]


def derive_anew(store: Store) -> None:
    """Write every row anew that is derived from a document which can be read, inside the caller's transaction."""
    grid_jobs, local_jobs = GridJobs(store), LocalJobs(store)
    for (job_id,) in list(store.query("SELECT id FROM grid_job")):
        with suppress(DamagedDocument):
            job = grid_jobs.get(job_id)
            store.write("DELETE FROM step WHERE grid_job = ?", [(job_id,)])
            grid_jobs.put(job)
        for (number,) in list(store.query("SELECT number FROM local_job WHERE grid_job = ?", [job_id])):
            with suppress(DamagedDocument):
                local_job = local_jobs.get(job_id, number)
                store.write("DELETE FROM attempt WHERE grid_job = ? AND number = ?", [(job_id, number)])
                local_jobs.put(job_id, [local_job])
    local_jobs.count_anew()


def read_columns(store: Store, job_id: str, number: int) -> Mapping[str, Any]:
    """What the index knows of a local job; number 0: of the grid job itself."""
    table = LOCAL_JOBS if number else GRID_JOBS
    (row,) = _stored(store, table, job_id, number)
    return dict(zip(_columns(table), row, strict=True))
