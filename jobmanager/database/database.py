"""The XML job database: documents in one SQLite file, with a few columns derived from them as indexes."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jobmanager.database.events import SCHEMA as EVENTS
from jobmanager.database.events import Events
from jobmanager.database.grid_jobs import (
    GRID_JOBS,
    STANDINGS,
    STEPS,
    Choice,
    GridJobs,
    OpenGridJob,
    Overview,
    StepLine,
    UnknownJob,
    Unreported,
)
from jobmanager.database.local_jobs import ATTEMPTS, COUNTS, LOCAL_JOBS, PHASES, LocalJobKey, LocalJobLine, LocalJobs
from jobmanager.database.sqlite import QUARANTINE, DamagedDocument, DatabaseError, Quarantine, Quarantined, Store

if TYPE_CHECKING:
    from lxml import etree

__all__ = [
    "STANDINGS",
    "Choice",
    "DamagedDocument",
    "Database",
    "DatabaseError",
    "LocalJobKey",
    "LocalJobLine",
    "OpenGridJob",
    "Overview",
    "Quarantined",
    "StepLine",
    "UnknownJob",
    "Unreported",
]

LAYOUT = 6
"""Number of the tables' layout and of the documents' schema."""
FIRST_LAYOUT = 4
"""The eldest that can be brought up to ours."""
_TABLES = (GRID_JOBS, STEPS, LOCAL_JOBS, PHASES, ATTEMPTS)
_DERIVED = "".join(table.schema for table in _TABLES) + COUNTS + QUARANTINE


class Database:
    """The job database of one account: every method reads or writes committed documents only.

    Writing methods belong inside ``with database.transaction():``.

    :raises DatabaseError: for anything that SQLite or the file system refuses (a full disk, a damaged file).
    """

    def __init__(self, path: Path | None) -> None:
        """``path`` None: an empty database in memory, in which everything can be asked and nothing is found."""
        self._store = Store(path)
        self._bring_up()
        self.grid_jobs = GridJobs(self._store)
        self.local_jobs = LocalJobs(self._store)
        self.events = Events(self._store)
        self.quarantine = Quarantine(self._store)

    @property
    def path(self) -> Path | None:
        return self._store.path

    def _bring_up(self) -> None:
        found = self._store.layout
        if found is None:
            self._store.make(_DERIVED + EVENTS, LAYOUT)
        elif found > LAYOUT:
            raise DatabaseError(
                f"job database {self.path} has layout {found}, this version knows {LAYOUT} at most: "
                "use the newer version that made it"
            )
        elif found < FIRST_LAYOUT:
            raise DatabaseError(
                f"job database {self.path} has layout {found}, which never was released: finish its grid jobs "
                "with the version that made it, then move the state folder away"
            )
        elif found < LAYOUT:
            from jobmanager.database.upgrade import upgrade

            upgrade(self._store, _DERIVED, LAYOUT)
        else:
            self._store.make_missing_indexes(_TABLES)

    def transaction(self) -> AbstractContextManager[None]:
        """All of the block's writes, or none; writers wait for each other up to a minute."""
        return self._store.transaction()

    def part(self) -> AbstractContextManager[None]:
        """All of the block's writes inside a transaction, or none, whatever becomes of the others."""
        return self._store.part()

    def check_room(self) -> None:
        """Raise DatabaseError where the disk is full."""
        self._store.check_room()

    def close(self) -> None:
        """Give the file back."""
        self._store.close()

    def to_xml(
        self, job_id: str | None = None, leave_out: Callable[[DamagedDocument], object] | None = None
    ) -> "etree._Element":
        """One tree over all grid jobs with their local jobs inside, or over one, under the root ``jobs``.

        :param leave_out: takes the damage of each grid job that is left out because it cannot be read.
        :raises DamagedDocument: one cannot be read, and there is no ``leave_out``.
        """
        from lxml import etree

        from jobmanager.database.documents import read_xml

        documents = list(self._documents(job_id))
        try:
            return read_xml(_join(documents))
        except etree.XMLSyntaxError:
            damages = {damage.grid_job: damage for damage in self.find_damages(job_id)}
            if leave_out is None:
                raise next(iter(damages.values())) from None
            for damage in damages.values():
                leave_out(damage)
            return read_xml(_join(row for row in documents if row[1] not in damages))

    def moment(self) -> AbstractContextManager[None]:
        """All that the block reads is of one moment."""
        return self._store.moment()

    def select(
        self, job_id: str | None, grid_job: str, local_job: str | None, values: Sequence[str]
    ) -> Iterator[tuple[str, int, bytes]]:
        """Grid job, number and document of what SQL conditions choose by columns, in the order of `to_xml`.

        None of a grid job in quarantine.

        :param local_job: None: the documents of the grid jobs themselves, which have the number 0.
        """
        columns = "id, 0, grid_job.document" if local_job is None else "id, number, local_job.document"
        sql, order = _render_chosen(columns, job_id, grid_job, local_job), "" if local_job is None else ", number"
        return self._store.query(f"{sql} ORDER BY grid_job.submitted, id{order}", [*values, job_id or ""])

    def count_selected(self, job_id: str | None, grid_job: str, local_job: str | None, values: Sequence[str]) -> int:
        """How many that are."""
        sql = _render_chosen("count(*)", job_id, grid_job, local_job)
        ((count,),) = self._store.query(sql, [*values, job_id or ""])
        return int(count)

    def find_damages(self, job_id: str | None = None) -> "Iterator[DamagedDocument]":
        """Every document that cannot be read, of all grid jobs or of one."""
        from jobmanager.database.documents import read_document

        for _, grid_job, number, document in self._documents(job_id):
            try:
                read_document("local-job" if number else "grid-job", document, grid_job, number)
            except DamagedDocument as damage:
                yield damage

    def find_file_faults(self) -> list[str]:
        """What is wrong with the file itself; nothing where it is sound."""
        from jobmanager.database.checking import find_file_faults

        return find_file_faults(self._store)

    def find_document_faults(self) -> Iterator[str]:
        """A sentence for each document that cannot be read or is not valid, or whose columns say otherwise."""
        from jobmanager.database.checking import find_document_faults

        return find_document_faults(self._store)

    def derive_anew(self) -> None:
        """Write every row anew that is derived from a document which can be read."""
        from jobmanager.database.checking import derive_anew

        derive_anew(self._store)

    def read_text(self, job_id: str) -> bytes:
        """A grid job's own document as it is stored, also where it cannot be read."""
        ((document,),) = self._store.query("SELECT CAST(document AS BLOB) FROM grid_job WHERE id = ?", [job_id])
        return bytes(document)

    def read_columns(self, job_id: str, number: int) -> Mapping[str, Any]:
        """What the index knows of a local job whose document cannot be read; number 0: of the grid job itself."""
        from jobmanager.database.checking import read_columns

        return read_columns(self._store, job_id, number)

    def _documents(self, job_id: str | None) -> Iterator[tuple[str, str, int, bytes]]:
        """When its grid job was submitted, its id, number (0: the grid job's own) and each document."""
        condition = "" if job_id is None else " WHERE grid_job.id = ?"
        # One statement sees one moment. A grid job comes before its local jobs, whose numbers start from 1.
        sql = (
            f"SELECT submitted, id, 0, CAST(document AS BLOB) FROM grid_job{condition} UNION ALL"
            " SELECT grid_job.submitted, grid_job.id, number, CAST(local_job.document AS BLOB)"
            f" FROM grid_job JOIN local_job ON local_job.grid_job = grid_job.id{condition} ORDER BY 1, 2, 3"
        )
        return self._store.query(sql, () if job_id is None else (job_id, job_id))


def _render_chosen(columns: str, job_id: str | None, grid_job: str, local_job: str | None) -> str:
    # CROSS JOIN: by grid job, in whose order documents come; SQLite might sort all of them.
    table = "grid_job" if local_job is None else f"grid_job CROSS JOIN local_job ON grid_job = id AND {local_job}"
    whose = "? = ''" if job_id is None else "id = ?"
    return f"SELECT {columns} FROM {table} WHERE {grid_job} AND id NOT IN (SELECT grid_job FROM quarantine) AND {whose}"


def _join(documents: Iterable[tuple[str, str, int, bytes]]) -> bytes:
    """One document of all, each grid job's local jobs inside it."""
    parts, end = [b"<jobs>"], b""
    for _, _, number, document in documents:
        if number == 0:
            parts += [end, document.removesuffix(b"</grid-job>")]
            end = b"</grid-job>"
        else:
            parts.append(document)
    return b"".join([*parts, end, b"</jobs>"])
