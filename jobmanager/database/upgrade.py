"""A state folder of an earlier layout is brought up to ours: documents by small steps, columns derived anew."""

import logging
from collections.abc import Callable, Mapping

from lxml import etree

from jobmanager.database.documents import read_xml
from jobmanager.database.grid_job import GridJob
from jobmanager.database.grid_jobs import GridJobs
from jobmanager.database.local_job import LocalJob
from jobmanager.database.local_jobs import LocalJobs
from jobmanager.database.sqlite import Store
from jobmanager.database.times import render_time

logger = logging.getLogger(__name__)

_DERIVED = ("step", "phase", "attempt")
_SECONDS = ("intended", "queue-time", "event-time", "signalled", "run", "reported-time", "time", "begun", "changed")


def write_times_as_iso(document: etree._Element) -> None:
    """Layout 4 had some times as seconds since 1970, and said in the reason only whether somebody cancelled."""
    if document.get("cancelled") and str(document.get("reason")).startswith("cannot be run: "):
        document.set("cancelled-by", "us")
    for element in (document, *document.iter("attempt", "seen", "phase", "gram")):
        for old, new in (("told", "reported"), ("told-time", "reported-time")):
            if element.tag == "gram" and old in element.attrib:
                element.set(new, str(element.attrib.pop(old)))
        for name in _SECONDS:
            if (text := element.get(name)) is not None:
                element.set(name, render_time(int(text)))


STEPS: Mapping[int, Callable[[etree._Element], None]] = {4: write_times_as_iso}
"""By layout: what makes of one of its documents one of the next layout."""


def upgrade(store: Store, schema: str, layout: int) -> None:
    """Bring the tables up to a layout, in one transaction; what was heard of batch systems stays as it is."""
    with store.transaction():
        found = store.layout
        if found is None or found == layout:
            return  # somebody else was quicker
        logger.info("job database %s: layout %d becomes %d", store.path, found, layout)
        indexes = "SELECT name FROM sqlite_schema WHERE type = 'index' AND sql IS NOT NULL"
        for (index,) in list(store.query(indexes + " AND tbl_name IN ('grid_job', 'local_job', 'step')")):
            store.write(f"DROP INDEX {index}")
        for table in _DERIVED:
            store.write(f"DROP TABLE {table}")
        for table in ("grid_job", "local_job"):
            store.write(f"ALTER TABLE {table} RENAME TO old_{table}")
        for statement in filter(str.strip, schema.split(";\n")):
            store.write(statement)
        _copy(store, range(found, layout))
        for table in ("grid_job", "local_job"):
            store.write(f"DROP TABLE old_{table}")
        store.write(f"PRAGMA user_version = {layout}")


def _copy(store: Store, layouts: range) -> None:
    grid_jobs, local_jobs = GridJobs(store), LocalJobs(store)
    for (data,) in store.query("SELECT document FROM old_grid_job"):
        grid_jobs.put(GridJob(_renew(data, layouts)))
    for grid_job, data in store.query("SELECT grid_job, document FROM old_local_job"):
        local_jobs.put(str(grid_job), [LocalJob(_renew(data, layouts))])


def _renew(data: bytes, layouts: range) -> etree._Element:
    document = read_xml(data)
    for layout in layouts:
        STEPS[layout](document)
    return document
