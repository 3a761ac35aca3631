"""An account's SQLite file: transactions, tables defined by column maps, errors with file and cause, the quarantine."""

import errno
import os
import sqlite3
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Any, TypeVar

from jobmanager import UserError, render_error
from jobmanager.database.times import render_time

T = TypeVar("T")
Values = Sequence[object] | Mapping[str, object]
"""The values for each ``?`` of a statement, or by name for each ``:name``."""


UNREADABLE = (sqlite3.Error, UnicodeDecodeError)
"""What SQLite's module raises; the second where a message quotes a damaged file."""


class DatabaseError(UserError):
    """The job database cannot be read or written now; the message says which file and why."""


class DamagedDocument(DatabaseError):
    """A document in the job database cannot be read: only its own grid job cannot go on."""

    def __init__(self, grid_job: str, number: int, problem: object) -> None:
        """``number`` is the local job's; 0 means the grid job's own document."""
        whose = f"local job {number} of grid job {grid_job}" if number else f"grid job {grid_job}"
        super().__init__(
            f"the document of {whose} cannot be read ({problem}): nothing changes until it can;"
            f' "samgrid remove {grid_job}" ends its local jobs and removes it,'
            ' "samgrid repair" makes the document again'
        )
        self.grid_job = grid_job
        self.number = number


@dataclass(frozen=True)
class Table:
    """A table whose rows are derived from documents."""

    name: str
    key: Mapping[str, str]
    """The columns of its primary key, each with its SQL type."""
    columns: Mapping[str, str | tuple[str, Callable[[Any], object]]]
    """The other columns: SQL type, and how to get the value; by default it is the attribute with the column's name."""
    find: Callable[..., Iterable[tuple[tuple[object, ...], object]]]
    """Gives, for a document (and its grid job's id), the key of each row and the object with the row's values."""
    indexes: tuple[str, ...] = ()
    """What follows ``CREATE INDEX``."""
    options: str = ""
    settled: tuple[str, ...] = ()
    """Columns that rarely change; if they have not, their indexes are not written."""

    @cached_property
    def kinds(self) -> Mapping[str, str]:
        """The SQL type of every column."""
        return {**self.key, **{name: kind if isinstance(kind, str) else kind[0] for name, kind in self.columns.items()}}

    @cached_property
    def _readers(self) -> Mapping[str, Callable[[Any], object]]:
        return {n: attrgetter(n) if isinstance(column, str) else column[1] for n, column in self.columns.items()}

    def rows(self, *document: object, without: str = "") -> list[tuple[object, ...]]:
        """The rows of a document, perhaps without one column."""
        return [
            (*key, *[read(subject) for name, read in self._readers.items() if name != without])
            for key, subject in self.find(*document)
        ]

    @property
    def schema(self) -> str:
        columns = "".join(f"{name} {kind}, " for name, kind in self.kinds.items())
        table = (
            f"CREATE TABLE IF NOT EXISTS {self.name} ({columns}PRIMARY KEY ({', '.join(self.key)})) {self.options};\n"
        )
        return table + "".join(f"CREATE INDEX IF NOT EXISTS {index};\n" for index in self.indexes)

    @cached_property
    def insertion(self) -> str:
        """The statement that inserts a row, or replaces the one with the same key (and no other row)."""
        return self._render_insertion(self.columns)

    @cached_property
    def revision(self) -> str:
        """The same, for rows whose settled columns have not changed."""
        return self._render_insertion(name for name in self.columns if name not in self.settled)

    def _render_insertion(self, free: Iterable[str]) -> str:
        places = ", ".join("?" for _ in self.kinds)
        update = ", ".join(f"{name} = excluded.{name}" for name in free)
        conflict = f"ON CONFLICT ({', '.join(self.key)}) DO UPDATE SET {update}"
        return f"INSERT INTO {self.name} ({', '.join(self.kinds)}) VALUES ({places}) {conflict}"

    @cached_property
    def settled_of(self) -> Callable[[tuple[object, ...]], object]:
        """Gives key and settled columns of a row."""
        places = list(self.kinds)
        return itemgetter(*(places.index(name) for name in (*self.key, *self.settled)))


def _is_read_only(path: Path) -> bool:
    """True for a file on a read-only file system: after a fault some are, and do not say so of themselves.

    Any other file becomes its owner's alone.
    """
    try:
        path.chmod(0o600)
    except FileNotFoundError:
        return bool(os.statvfs(path.parent).f_flag & os.ST_RDONLY)
    except OSError as error:
        if error.errno != errno.EROFS:
            raise
        return True
    return False


def _open_unwritable(path: Path) -> sqlite3.Connection:
    """Open a file on a read-only file system, with the content of its write-ahead log, if there is one."""
    log = path.with_name(f"{path.name}-wal")
    mode = "mode=ro&readonly_shm=1" if log.exists() and log.stat().st_size else "mode=ro&immutable=1"
    return sqlite3.connect(f"{path.absolute().as_uri()}?{mode}", timeout=60, isolation_level=None, uri=True)


def _open_copy(path: Path) -> sqlite3.Connection:
    """Open a copy of a file that another host writes: hosts do not share SQLite's shared memory and locks."""
    import shutil
    import tempfile

    log = path.with_name(f"{path.name}-wal")
    with tempfile.TemporaryDirectory(prefix="samgrid-") as folder:
        copy, copied_log = Path(folder, path.name), Path(folder, log.name)
        while True:
            salt = _read_salt(log)
            shutil.copyfile(path, copy)
            copied_log.write_bytes(log.read_bytes() if salt else b"")
            # If the log was restarted during the copy, the copied file may be older than the log.
            if _read_salt(copied_log) == salt == _read_salt(log):
                break
        connection = sqlite3.connect(copy, isolation_level=None)
        connection.execute("PRAGMA journal_mode = MEMORY")
        return connection


def _read_salt(log: Path) -> bytes:
    """The log's header, which is different after each restart of the log; empty if there is no log."""
    try:
        with log.open("rb") as file:
            return file.read(32)
    except FileNotFoundError:
        return b""


def _find_number(path: Path) -> int | None:
    """A file's inode number; None if there is no such file."""
    try:
        return path.stat().st_ino
    except (FileNotFoundError, NotADirectoryError):
        return None


class Store:
    """An SQLite file. Writing methods belong inside ``with store.transaction():``.

    :raises DatabaseError: for anything that SQLite or the file system refuses (a full disk, a damaged file).
    """

    def __init__(self, path: Path | None, is_elsewhere: bool = False) -> None:
        """``path`` None: an empty store in memory. ``is_elsewhere``: another host writes the file, a copy is read."""
        self.path = path
        self._file: int | None = None
        self._beside: dict[str, int | None] = {}
        self._refusal = ""
        with self._translated():
            if path is not None and is_elsewhere:
                self._is_writable = True
                self._connection = _open_copy(path)
                return
            self._is_writable = path is None or not _is_read_only(path)
            if path is not None and not self._is_writable:
                self._connection = _open_unwritable(path)
                return
            self._connection = sqlite3.connect(path or ":memory:", timeout=60, isolation_level=None)
            if path is not None:
                path.chmod(0o600)
                self._file = _find_number(path)
            self._connection.execute("PRAGMA journal_mode = WAL")
            # An intent must survive a power cut once its submit command runs, so every commit reaches the disk.
            self._connection.execute("PRAGMA synchronous = FULL")

    @property
    def layout(self) -> int | None:
        """The number of the layout; None if there are no tables."""
        if not self.value(int, "SELECT count(*) FROM sqlite_schema"):
            return None
        return self.value(int, "PRAGMA user_version")

    def make(self, schema: str, layout: int) -> None:
        """Make the tables of an empty file, all in one transaction."""
        with self._translated():
            # The next commit writes it to the disk.
            self._connection.execute("PRAGMA synchronous = OFF")
            self._connection.executescript(f"BEGIN IMMEDIATE;\n{schema}\nPRAGMA user_version = {layout};\nCOMMIT;")
            self._connection.execute("PRAGMA synchronous = FULL")

    def make_missing_indexes(self, tables: Iterable[Table]) -> None:
        """Make missing indexes: some queries name their index, and fail without it."""
        there = self.values("SELECT name FROM sqlite_schema WHERE type = 'index'")
        missing = [index for table in tables for index in table.indexes if index.partition(" ")[0] not in there]
        if self._is_writable:
            with self._translated():
                for index in missing:
                    self._connection.execute(f"CREATE INDEX IF NOT EXISTS {index}")

    def forbid_writing(self, refusal: str) -> None:
        """Refuse all writing through this connection from now on, with this reason."""
        self._refusal = refusal
        with self._translated():
            self._connection.execute("PRAGMA query_only = ON")

    def copy_to(self, path: Path) -> None:
        """Copy what is committed into a new file, without blocking writers."""
        with self._translated(), closing(sqlite3.connect(path)) as copy:
            # In one step: a reader does not block writers in WAL mode, and commits would restart a copy in steps.
            self._connection.backup(copy)

    def find_lost_file(self) -> str:
        """The name of a file that somebody has removed or replaced, or an empty text.

        Only open connections still have what was committed to a removed log (``-wal``). Without the shared memory
        (``-shm``), they and those that are opened from now on would overwrite each other's commits; so they would
        where the file itself is another one. Where it has only gone, its folder was moved, and these with it.
        """
        if self.path is None or self._file is None or not self.path.exists():
            return ""
        if _find_number(self.path) != self._file:
            return self.path.name
        for end in ("-wal", "-shm"):
            name = f"{self.path.name}{end}"
            found = _find_number(self.path.with_name(name))
            self._beside[end] = self._beside.get(end) or found
            if found != self._beside[end]:
                return name
        return ""

    def write_back(self) -> None:
        """Write what the lost log held into the file itself.

        Who still has the lost log open cannot write any more; whoever opens the file from now on begins a new one.
        """
        busy, _, _ = next(self.query("PRAGMA wal_checkpoint(FULL)"))
        if busy:
            raise DatabaseError(f"job database {self.path}: somebody still reads what was there before")
        assert self.path is not None
        for suffix in ("wal", "shm"):
            # The shared memory tells where each page is in the lost log, and so would be wrong for the next one.
            self.path.with_name(f"{self.path.name}-{suffix}").unlink(missing_ok=True)

    def close(self) -> None:
        self._connection.close()

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except (*UNREADABLE, OSError) as error:
            why = render_error(error).removeprefix(f"{self.path}: ")
            raise DatabaseError(f"job database {self.path}: {why}") from error

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit all writes of the block, or none; writers wait for each other for up to a minute."""
        if self._refusal:
            raise DatabaseError(self._refusal)
        with self._translated():
            self._connection.execute("BEGIN IMMEDIATE")
        try:
            with self._translated():
                if lost := self.find_lost_file():
                    raise DatabaseError(f"job database {self.path}: somebody has removed or replaced {lost}")
            yield
            with self._translated():
                self._connection.execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                with self._translated():
                    self._connection.execute("ROLLBACK")
            raise

    @contextmanager
    def moment(self) -> Iterator[None]:
        """Everything that the block reads is from one snapshot."""
        with self._translated():
            self._connection.execute("BEGIN")
            try:
                yield
            finally:
                self._connection.execute("ROLLBACK")

    @contextmanager
    def part(self) -> Iterator[None]:
        """Keep all writes of the block or none (a savepoint inside a transaction)."""
        with self._translated():
            self._connection.execute("SAVEPOINT part")
        try:
            yield
        except BaseException:
            with self._translated():
                self._connection.execute("ROLLBACK TO part")
            raise
        finally:
            with self._translated():
                self._connection.execute("RELEASE part")

    def query(self, sql: str, values: Values = ()) -> Iterator[tuple[Any, ...]]:
        with self._translated():
            yield from self._connection.execute(sql, values)

    def write(self, sql: str, rows: Iterable[Values] = ((),)) -> None:
        """Run a writing statement with each of the rows of values."""
        with self._translated():
            self._connection.executemany(sql, rows)

    def value(self, kind: type[T], sql: str, values: Values = ()) -> T | None:
        """The first column of the first row of a query; None if there is no row."""
        found = next(self.query(sql, values), (None,))[0]
        assert found is None or isinstance(found, kind)
        return found

    def values(self, sql: str, values: Values = ()) -> list[Any]:
        """The first column of all rows of a query."""
        return [row[0] for row in self.query(sql, values)]

    def put(self, table: Table, documents: Iterable[tuple[object, ...]], stored: Container[object] = ()) -> None:
        """Write the rows that a table derives from documents; each item has the arguments of the table's `find`.

        :param stored: key and settled columns of the rows that are there already.
        """
        rows = (row for document in documents for row in table.rows(*document))
        for is_settled, some in groupby(rows, lambda row: table.settled_of(row) in stored):
            self.write(table.revision if is_settled else table.insertion, some)

    def check_room(self) -> None:
        """Write something larger than most transactions to the disk: a full one may still accept a few bytes."""
        with self._translated():
            self._connection.execute("CREATE TABLE IF NOT EXISTS room (filler BLOB)")
            self._connection.execute("INSERT INTO room VALUES (zeroblob(65536))")
            self._connection.execute("DELETE FROM room")


QUARANTINE = """
CREATE TABLE IF NOT EXISTS quarantine (
    grid_job TEXT PRIMARY KEY, problem TEXT NOT NULL, since INTEGER NOT NULL
) WITHOUT ROWID;
"""


@dataclass(frozen=True)
class Quarantined:
    """Why a grid job is in quarantine, and since when (seconds since 1970)."""

    grid_job: str
    problem: str
    since: int

    @property
    def sentence(self) -> str:
        """The reason with its time, for people."""
        return f"in quarantine since {render_time(self.since)}: {self.problem}"


class Quarantine:
    """Grid jobs with a document that cannot be read; nothing is done with them. Written inside transactions."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def put(self, damage: DamagedDocument, now: float) -> None:
        """Put a grid job in quarantine; the first problem stays."""
        values = (damage.grid_job, str(damage), int(now))
        self._store.write("INSERT INTO quarantine VALUES (?, ?, ?) ON CONFLICT DO NOTHING", [values])

    def lift(self, grid_job: str) -> None:
        """End the quarantine: its documents can be read again, or it is removed."""
        self._store.write("DELETE FROM quarantine WHERE grid_job = ?", [(grid_job,)])

    def list(self) -> dict[str, Quarantined]:
        """All grid jobs in quarantine, by id."""
        rows = self._store.query("SELECT grid_job, problem, since FROM quarantine ORDER BY since, grid_job")
        return {row[0]: Quarantined(*row) for row in rows}


def render_array(values: Iterable[object]) -> str:
    """Values as SQLite's json_each reads them."""
    import json  # not needed to list grid jobs

    return json.dumps(list(values))
