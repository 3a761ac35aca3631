"""The XML job database: documents in one SQLite file, with a few columns derived from them as indexes."""

from pathlib import Path
from typing import TYPE_CHECKING

from jobmanager import event_table, grid_job_table, local_job_table, phase_table, step_table, usage_table
from jobmanager.event_table import EventTable
from jobmanager.grid_job_table import Choice, OpenGridJob, Overview, UnknownJob, Untold
from jobmanager.local_job_table import LocalJobKey, LocalJobLine, LocalJobTable
from jobmanager.step_table import StepLine
from jobmanager.store import DatabaseError

if TYPE_CHECKING:
    from lxml import etree

__all__ = [
    "Choice",
    "Database",
    "DatabaseError",
    "LocalJobKey",
    "LocalJobLine",
    "OpenGridJob",
    "Overview",
    "StepLine",
    "UnknownJob",
    "Untold",
]

_TABLES = (step_table, grid_job_table, local_job_table, phase_table, event_table, usage_table)
_SCHEMA = "".join(table.SCHEMA for table in _TABLES)


class Database(LocalJobTable, EventTable):
    """The job database of one account. Every method reads or writes committed documents only.

    Writing methods belong inside ``with database.transaction():``.

    :raises DatabaseError: for anything that SQLite or the file system refuses (a full disk, a damaged file).
    """

    def __init__(self, path: Path | None) -> None:
        """``path`` None: an empty database in memory, in which everything can be asked and nothing is found."""
        super().__init__(path, _SCHEMA)

    def to_xml(self, identity: str | None = None) -> "etree._Element":
        """One tree over all grid jobs with their local jobs inside, or over one, under the root ``jobs``."""
        from jobmanager.documents import read_xml

        condition = "" if identity is None else " WHERE grid_job.id = ?"
        # One statement sees one moment. A grid job comes before its local jobs, whose numbers start from 1.
        sql = (
            f"SELECT submitted, id, 0, document FROM grid_job{condition} UNION ALL"
            " SELECT grid_job.submitted, grid_job.id, number, local_job.document"
            f" FROM grid_job JOIN local_job ON local_job.grid_job = grid_job.id{condition} ORDER BY 1, 2, 3"
        )
        parts, end = [b"<jobs>"], b""
        for _, _, number, document in self._query(sql, () if identity is None else (identity, identity)):
            if number == 0:
                parts += [end, document.removesuffix(b"</grid-job>")]
                end = b"</grid-job>"
            else:
                parts.append(document)
        return read_xml(b"".join([*parts, end, b"</jobs>"]))
