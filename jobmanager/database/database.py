"""The XML job database: documents in one SQLite file, with a few columns derived from them as indexes."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from jobmanager.database.details import ATTEMPTS, PHASES, Attempts, Phases
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
    UnknownJob,
    Unreported,
)
from jobmanager.database.local_jobs import COUNTS, LOCAL_JOBS, LiveJob, LocalJobs
from jobmanager.database.sqlite import QUARANTINE, DamagedDocument, DatabaseError, Quarantine, Quarantined, Store

if TYPE_CHECKING:
    from lxml import etree

    from jobmanager.database.checking import Checking
    from jobmanager.database.usage import Accounting, UsageRecords

__all__ = [
    "STANDINGS", "Choice", "DamagedDocument", "Database", "DatabaseError", "LiveJob", "OpenGridJob",
    "Overview", "Quarantined", "UnknownJob", "Unreported",
]  # fmt: skip

LAYOUT = 9
"""Number of the layout: of the tables, and of the documents' schema."""
FIRST_LAYOUT = 4
"""The oldest layout that can be upgraded."""
_TABLES = (GRID_JOBS, STEPS, LOCAL_JOBS, PHASES, ATTEMPTS)
# Here, and not in `usage`, which takes long to load: whoever makes a database waits for it.
_REMOVED = """
CREATE TABLE IF NOT EXISTS removed_use (
    grid_job TEXT NOT NULL, user TEXT NOT NULL, type TEXT NOT NULL, batch TEXT NOT NULL, outcome TEXT NOT NULL,
    reason TEXT, ended INTEGER NOT NULL, local_jobs INTEGER NOT NULL, cpu REAL NOT NULL, wall INTEGER NOT NULL,
    known_cpu REAL NOT NULL, known_wall INTEGER NOT NULL, cause TEXT
);
"""
"""What removed grid jobs used. There is one row for all local jobs of a grid job that ended on the same day (UTC) with
the same outcome, cause and reason; ``ended`` is the end of the last one."""
_RECORDS = """
CREATE TABLE IF NOT EXISTS recorded (
    grid_job TEXT PRIMARY KEY, owner TEXT NOT NULL, subject TEXT, batch TEXT NOT NULL, cores INTEGER,
    submit_host TEXT, vo TEXT, benchmark REAL, benchmark_type TEXT
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS usage_record (
    id INTEGER PRIMARY KEY AUTOINCREMENT, grid_job TEXT NOT NULL, number INTEGER NOT NULL, attempt INTEGER NOT NULL,
    local_id TEXT, host TEXT, started INTEGER NOT NULL, ended INTEGER NOT NULL, cpu_seconds REAL
);
CREATE TABLE IF NOT EXISTS record_file (
    format TEXT NOT NULL, last INTEGER NOT NULL, first INTEGER NOT NULL, is_written INTEGER NOT NULL,
    PRIMARY KEY (format, last)
) WITHOUT ROWID;
"""
"""Usage records. ``recorded`` has a row for each grid job that has ended, ``usage_record`` one for each attempt that
ran, which stays when the grid job is removed, and ``record_file`` the range of records in each file."""


class Database:
    """The job database of one account: every method reads or writes committed documents only.

    Writing methods belong inside ``with database.transaction():``.

    :raises DatabaseError: for anything that SQLite or the file system refuses (a full disk, a damaged file).
    """

    def __init__(self, path: Path | None, refusal: str = "", lost: str = "") -> None:
        """``path`` None: an empty database in memory.

        :param refusal: why nothing may be written (another host works here); then a copy of the file is read.
        :param lost: what to say of a file without tables where there must be some.
        """
        self.path, self.refusal = path, refusal
        self._store = store = Store(path, is_elsewhere=bool(refusal))
        self.transaction, self.moment, self.part = store.transaction, store.moment, store.part
        self.check_room, self.copy_to, self.close = store.check_room, store.copy_to, store.close
        self.find_lost_file, self.write_back = store.find_lost_file, store.write_back
        self._make_or_upgrade(lost)
        if refusal:
            store.forbid_writing(refusal)
        self.grid_jobs = GridJobs(self._store)
        self.local_jobs = LocalJobs(self._store)
        self.phases = Phases(self._store)
        self.attempts = Attempts(self._store)
        self.events = Events(self._store)
        self.quarantine = Quarantine(self._store)

    def _make_or_upgrade(self, lost: str) -> None:
        found = self._store.layout
        if found is None and lost:
            raise DatabaseError(lost)
        if found is None:
            self._store.make(_render_schema() + EVENTS, LAYOUT)
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

            upgrade(self._store, _render_schema(), LAYOUT)
        else:
            self._store.make_missing_indexes(_TABLES)

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

    def select(
        self, job_id: str | None, grid_job: str, local_job: str | None, values: Sequence[str]
    ) -> Iterator[tuple[str, int, bytes]]:
        """Grid job, number and document of the rows that SQL conditions select, in the order of `to_xml`.

        Grid jobs in quarantine are left out.

        :param local_job: condition for local jobs; None: the documents of grid jobs themselves, with number 0.
        """
        columns = "id, 0, grid_job.document" if local_job is None else "id, number, local_job.document"
        sql, order = _render_chosen(columns, job_id, grid_job, local_job), "" if local_job is None else ", number"
        return self._store.query(f"{sql} ORDER BY grid_job.submitted, id{order}", [*values, job_id or ""])

    def count_selected(self, job_id: str | None, grid_job: str, local_job: str | None, values: Sequence[str]) -> int:
        """The number of rows that `select` would give."""
        sql = _render_chosen("count(*)", job_id, grid_job, local_job)
        return self._store.value(int, sql, [*values, job_id or ""]) or 0

    def find_damages(self, job_id: str | None = None) -> "Iterator[DamagedDocument]":
        """Every document that cannot be read, of all grid jobs or of one."""
        from jobmanager.database.documents import read_document

        for _, grid_job, number, document in self._documents(job_id):
            try:
                read_document("local-job" if number else "grid-job", document, grid_job, number)
            except DamagedDocument as damage:
                yield damage

    @cached_property
    def checking(self) -> "Checking":
        """The database's self-check; loaded when it is needed."""
        from jobmanager.database.checking import Checking

        return Checking(self._store)

    @cached_property
    def usage(self) -> "UsageRecords":
        """What local jobs used; loaded when it is needed."""
        from jobmanager.database.usage import UsageRecords

        return UsageRecords(self._store)

    @cached_property
    def accounting(self) -> "Accounting":
        """The usage records; loaded when they are needed."""
        from jobmanager.database.usage import Accounting

        return Accounting(self._store)

    def read_text(self, job_id: str) -> bytes:
        """A grid job's own document as it is stored, even if it cannot be read as XML."""
        ((document,),) = self._store.query("SELECT CAST(document AS BLOB) FROM grid_job WHERE id = ?", [job_id])
        return bytes(document)

    def _documents(self, job_id: str | None) -> Iterator[tuple[str, str, int, bytes]]:
        """Of each document: its grid job's time of submission and id, its number (0: the grid job's own), its text."""
        condition = "" if job_id is None else " WHERE grid_job.id = ?"
        # One statement reads one snapshot. A grid job comes before its local jobs, whose numbers start at 1.
        sql = (
            f"SELECT submitted, id, 0, CAST(document AS BLOB) FROM grid_job{condition} UNION ALL"
            " SELECT grid_job.submitted, grid_job.id, number, CAST(local_job.document AS BLOB)"
            f" FROM grid_job JOIN local_job ON local_job.grid_job = grid_job.id{condition} ORDER BY 1, 2, 3"
        )
        return self._store.query(sql, () if job_id is None else (job_id, job_id))


def _render_schema() -> str:
    """All tables but those of events, which upgrades keep as they are."""
    return "".join(table.schema for table in _TABLES) + COUNTS + QUARANTINE + _REMOVED + _RECORDS


def _render_chosen(columns: str, job_id: str | None, grid_job: str, local_job: str | None) -> str:
    # CROSS JOIN makes SQLite go grid job by grid job, instead of sorting all documents.
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
