"""Upgrades a job database of an earlier layout: documents in small steps, columns derived again."""

import logging
import time
from collections.abc import Callable, Mapping

from lxml import etree

from batch_adapters.states import STATE_OF_WORD, Cause, State
from jobmanager.database.documents import read_document
from jobmanager.database.grid_job import GridJob
from jobmanager.database.grid_jobs import GRID_JOBS, GridJobs
from jobmanager.database.local_job import LocalJob, Outcome
from jobmanager.database.local_jobs import LOCAL_JOBS, LocalJobs
from jobmanager.database.sqlite import DamagedDocument, Quarantine, Store, Table
from jobmanager.database.times import render_time

logger = logging.getLogger(__name__)

_DERIVED = ("step", "phase", "attempt", "local_job_count")
_SECONDS = ("intended", "queue-time", "event-time", "signalled", "run", "reported-time", "time", "begun", "changed")


def renew_layout_4(document: etree._Element) -> None:
    """Layout 4 had some times in seconds, and said only in sentences how and why something ended."""
    if document.get("cancelled") and str(document.get("reason")).startswith("cannot be run: "):
        document.set("cancelled-by", "us")
    for element in (document, *document.iter("attempt", "seen", "phase", "gram")):
        for old, new in (("told", "reported"), ("told-time", "reported-time")):
            if element.tag == "gram" and old in element.attrib:
                element.set(new, str(element.attrib.pop(old)))
        for name in _SECONDS:
            if (text := element.get(name)) is not None:
                element.set(name, render_time(int(text)))
    if document.tag == LocalJob.tag:
        _put_states_seen(document)
        _put_local_outcome(document)
    elif document.get("state") in ("done", "failed"):
        GridJob(document).put_final_state(GridJob(document).state)


def _put_states_seen(document: etree._Element) -> None:
    for seen in document.iter("seen"):
        word = (seen.text or "").removeprefix("not over: ").partition(":")[0]
        if word in STATE_OF_WORD:
            seen.set("state", word)


def _put_local_outcome(document: etree._Element) -> None:
    job = LocalJob(document)
    if not job.state.is_final:
        return
    job.cause = _judge_cause_4(job)
    if job.cause is None:
        job.outcome = Outcome.SUCCEEDED
    else:
        job.outcome = Outcome.CANCELLED if job.cause.is_cancellation else Outcome.FAILED


def _judge_cause_4(job: LocalJob) -> Cause | None:
    if job.local_id is None:
        return Cause.CANCELLED_BY_US
    if job.driver == "ended" and job.exit_code == 0:
        return None
    if job.signal:
        return Cause.SIGNAL
    if job.exit_code:
        return Cause.EXIT_CODE
    return Cause.OUTPUTS_MISSING if job.state is State.DONE else Cause.NEVER_STARTED


def renew_layout_5(document: etree._Element) -> None:
    """Layout 5 had no names of grid jobs, and other words for what keeps a job waiting."""
    for element in document.findall("trouble"):
        element.tag = "problem"
    for element in (document, *document.findall("attempt")):
        if "remark" in element.attrib:
            element.set("wait-reason", str(element.attrib.pop("remark")))


def keep_documents(document: etree._Element) -> None:
    """Layouts 6 and 7 differ from the next ones in their columns and tables only."""
    del document


def renew_layout_8(document: etree._Element) -> None:
    """Layout 8 said only in a sentence which command lets a blocked local job go on."""
    for seen in document.iter("seen"):
        before, mark, helps = (seen.text or "").partition("blocked: ")
        if mark and not before:
            seen.set("helps", helps)


STEPS: Mapping[int, Callable[[etree._Element], None]] = {
    **{4: renew_layout_4, 5: renew_layout_5, 6: keep_documents, 7: keep_documents, 8: renew_layout_8}
}
"""By layout: what turns one of its documents into one of the next layout."""


def upgrade(store: Store, schema: str, layout: int) -> None:
    """Bring the tables up to a layout in one transaction; what is not derived from documents stays as it is."""
    with store.transaction():
        found = store.layout
        if found is None or found == layout:
            return  # another process was faster
        logger.info("job database %s: layout %d becomes %d", store.path, found, layout)
        indexes = "SELECT name FROM sqlite_schema WHERE type = 'index' AND sql IS NOT NULL"
        for index in store.values(indexes + " AND tbl_name IN ('grid_job', 'local_job', 'step')"):
            store.write(f"DROP INDEX {index}")
        # Triggers would stay on the renamed tables, and count what is copied twice.
        for trigger in store.values("SELECT name FROM sqlite_schema WHERE type = 'trigger'"):
            store.write(f"DROP TRIGGER {trigger}")
        for table in _DERIVED:
            store.write(f"DROP TABLE IF EXISTS {table}")
        for table in ("grid_job", "local_job"):
            store.write(f"ALTER TABLE {table} RENAME TO old_{table}")
        for statement in filter(str.strip, schema.split(";\n")):
            # As a query: executemany refuses "CREATE ... IF NOT EXISTS" of an existing table.
            list(store.query(statement))
        _copy(store, range(found, layout))
        for table in ("grid_job", "local_job"):
            store.write(f"DROP TABLE old_{table}")
        store.write(f"PRAGMA user_version = {layout}")


def _copy(store: Store, layouts: range) -> None:
    grid_jobs, local_jobs = GridJobs(store), LocalJobs(store)
    for job_id, data in store.query("SELECT id, document FROM old_grid_job"):
        try:
            grid_jobs.put(GridJob(_renew(read_document(GridJob.tag, data, job_id), layouts)))
        except DamagedDocument as damage:
            _keep(store, GRID_JOBS, "id = ?", job_id, damage)
    for grid_job, number, data in store.query("SELECT grid_job, number, document FROM old_local_job"):
        try:
            document = _renew(read_document(LocalJob.tag, data, grid_job, number), layouts)
            local_jobs.put(str(grid_job), [LocalJob(document)])
        except DamagedDocument as damage:
            _keep(store, LOCAL_JOBS, f"grid_job = ? AND number = {int(number)}", grid_job, damage)
    local_jobs.count_anew()


def _keep(store: Store, table: Table, condition: str, grid_job: str, damage: DamagedDocument) -> None:
    """Copy the row of a document that cannot be read, as far as the new table has its columns."""
    known = store.values(f"SELECT name FROM pragma_table_info('old_{table.name}')")
    missing = {name: "0" if "NOT NULL" in kind else "NULL" for name, kind in table.kinds.items()}
    columns = {name: name if name in known else nothing for name, nothing in missing.items()}
    sql = f"INSERT INTO {table.name} ({', '.join(columns)}) SELECT {', '.join(columns.values())} FROM old_{table.name}"
    store.write(f"{sql} WHERE {condition}", [(grid_job,)])
    Quarantine(store).put(damage, time.time())


def _renew(document: etree._Element, layouts: range) -> etree._Element:
    for layout in layouts:
        STEPS[layout](document)
    return document
