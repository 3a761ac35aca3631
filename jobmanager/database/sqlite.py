"""An account's SQLite file: transactions, tables as column maps, errors that say which file and why, the quarantine."""

import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeVar

from jobmanager import UserError
from jobmanager.database.times import render_time

T = TypeVar("T")
Values = Sequence[object] | Mapping[str, object]
"""What a statement has for each ``?``, or by their names for each ``:name``."""


class DatabaseError(UserError):
    """The job database cannot be read or written now; the message says which file and why."""


_REPAIR = ', "samgrid repair" makes the document anew'


class DamagedDocument(DatabaseError):
    """A document in the job database cannot be read: its own grid job cannot go on, all others can."""

    def __init__(self, grid_job: str, number: int, problem: object) -> None:
        """``number``: of the local job; 0: it is the grid job's own document."""
        whose = f"local job {number} of grid job {grid_job}" if number else f"grid job {grid_job}"
        super().__init__(
            f"the document of {whose} cannot be read ({problem}): nothing changes until it can;"
            f' "samgrid remove {grid_job}" ends its local jobs and removes it{_REPAIR}'
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
    """The others: SQL type, and how its value is found in what a row is about; by default it is the attribute's."""
    find: Callable[..., Iterable[tuple[tuple[object, ...], object]]]
    """Of a document, with what is said of it, the key of each of its rows and what the row is about."""
    indexes: tuple[str, ...] = ()
    """What follows ``CREATE INDEX``."""
    options: str = ""
    settled: tuple[str, ...] = ()
    """Columns that hardly ever change: where they have not, their indexes are not written."""

    @cached_property
    def kinds(self) -> Mapping[str, str]:
        """The SQL type of every column."""
        return {**self.key, **{name: kind if isinstance(kind, str) else kind[0] for name, kind in self.columns.items()}}

    @cached_property
    def _readers(self) -> Mapping[str, Callable[[Any], object]]:
        return {n: attrgetter(n) if isinstance(column, str) else column[1] for n, column in self.columns.items()}

    def rows(self, *document: object, without: str = "") -> list[tuple[object, ...]]:
        """The rows of a document, but for a column."""
        readers = [read for name, read in self._readers.items() if name != without]
        return [(*key, *[read(subject) for read in readers]) for key, subject in self.find(*document)]

    @property
    def schema(self) -> str:
        columns = "".join(f"{name} {kind}, " for name, kind in self.kinds.items())
        table = (
            f"CREATE TABLE IF NOT EXISTS {self.name} ({columns}PRIMARY KEY ({', '.join(self.key)})) {self.options};\n"
        )
        return table + "".join(f"CREATE INDEX IF NOT EXISTS {index};\n" for index in self.indexes)

    @cached_property
    def revision(self) -> str:
        """The statement that writes a row in place of the one with its key, if what is settled is the same there."""
        places = {name: f"{name} = :{name}" for name in self.kinds}
        free = [places[name] for name in self.columns if name not in self.settled]
        # The plus: the row is found by its key.
        same = [*(places[name] for name in self.key), *(f"+{places[name].replace('=', 'IS')}" for name in self.settled)]
        return f"UPDATE {self.name} SET {', '.join(free)} WHERE {' AND '.join(same)}"

    @cached_property
    def insertion(self) -> str:
        """The statement that writes a row, in place of the one with its key; never of one that is like it elsewhere."""
        names, places = ", ".join(self.kinds), ", ".join(f":{name}" for name in self.kinds)
        others = ", ".join(f"{name} = excluded.{name}" for name in self.columns)
        update = f"ON CONFLICT ({', '.join(self.key)}) DO UPDATE SET {others}"
        return f"INSERT INTO {self.name} ({names}) VALUES ({places}) {update}"


def _open_unwritable(path: Path) -> sqlite3.Connection:
    """A file on a file system that can only be read: with what was not written into it yet, if there is such."""
    log = path.with_name(f"{path.name}-wal")
    mode = "mode=ro" if log.exists() and log.stat().st_size else "mode=ro&immutable=1"
    return sqlite3.connect(f"{path.absolute().as_uri()}?{mode}", timeout=60, isolation_level=None, uri=True)


def _open_copy(path: Path) -> sqlite3.Connection:
    """A copy of a file that another host writes, with which we share neither SQLite's memory nor its locks."""
    import shutil
    import tempfile

    log = path.with_name(f"{path.name}-wal")
    with tempfile.TemporaryDirectory(prefix="samgrid-") as folder:
        copy, copied_log = Path(folder, path.name), Path(folder, log.name)
        while True:
            salt = _read_salt(log)
            shutil.copyfile(path, copy)
            copied_log.write_bytes(log.read_bytes() if salt else b"")
            # What was copied of the file while its log was begun anew may be older than the log.
            if _read_salt(copied_log) == salt == _read_salt(log):
                break
        connection = sqlite3.connect(copy, isolation_level=None)
        connection.execute("PRAGMA journal_mode = MEMORY")
        return connection


def _read_salt(log: Path) -> bytes:
    """What is another in each log that is begun; empty where there is none."""
    try:
        with log.open("rb") as file:
            return file.read(32)
    except FileNotFoundError:
        return b""


class Store:
    """An SQLite file. Writing methods belong inside ``with store.transaction():``.

    :raises DatabaseError: for anything that SQLite or the file system refuses (a full disk, a damaged file).
    """

    def __init__(self, path: Path | None, is_elsewhere: bool = False) -> None:
        """``path`` None: an empty store in memory; ``is_elsewhere``: another host writes it, and we read a copy."""
        self.path = path
        self._refusal = ""
        with self._translated():
            if path is not None and is_elsewhere:
                self._is_writable = True
                self._connection = _open_copy(path)
                return
            self._is_writable = path is None or not os.statvfs(path.parent).f_flag & os.ST_RDONLY
            if path is not None and not self._is_writable:
                self._connection = _open_unwritable(path)
                return
            self._connection = sqlite3.connect(path or ":memory:", timeout=60, isolation_level=None)
            if path is not None:
                path.chmod(0o600)
            self._connection.execute("PRAGMA journal_mode = WAL")
            # An intent must outlive a power cut once its submit command runs: every commit reaches the disk.
            self._connection.execute("PRAGMA synchronous = FULL")

    @property
    def layout(self) -> int | None:
        """The number of the tables' layout; None where there are no tables."""
        if not self.value(int, "SELECT count(*) FROM sqlite_schema"):
            return None
        return self.value(int, "PRAGMA user_version")

    def make(self, schema: str, layout: int) -> None:
        """Make the tables of an empty file, in one transaction: who is killed leaves all or nothing."""
        with self._translated():
            # The first commit takes it along to the disk.
            self._connection.execute("PRAGMA synchronous = OFF")
            self._connection.executescript(f"BEGIN IMMEDIATE;\n{schema}\nPRAGMA user_version = {layout};\nCOMMIT;")
            self._connection.execute("PRAGMA synchronous = FULL")

    def make_missing_indexes(self, tables: Iterable[Table]) -> None:
        """Make the indexes of tables that are not there: some questions name theirs, and cannot be asked without."""
        there = self.values("SELECT name FROM sqlite_schema WHERE type = 'index'")
        missing = [index for table in tables for index in table.indexes if index.partition(" ")[0] not in there]
        if self._is_writable:
            with self._translated():
                for index in missing:
                    self._connection.execute(f"CREATE INDEX IF NOT EXISTS {index}")

    def forbid_writing(self, refusal: str = "") -> None:
        """From now on nothing can be written through this connection; who tries is told why."""
        self._refusal = refusal
        with self._translated():
            self._connection.execute("PRAGMA query_only = ON")

    def copy_to(self, path: Path) -> None:
        """Write what is committed now into a file that is not there yet; nobody who writes meanwhile is held up."""
        with self._translated(), closing(sqlite3.connect(path)) as copy:
            # In one step: under WAL a reader keeps no writer waiting, and each commit would begin further steps anew.
            self._connection.backup(copy)

    def close(self) -> None:
        self._connection.close()

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            raise DatabaseError(f"job database {self.path}: {error}") from error

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All of the block's writes, or none; writers wait for each other up to a minute."""
        if self._refusal:
            raise DatabaseError(self._refusal)
        with self._translated():
            self._connection.execute("BEGIN IMMEDIATE")
        try:
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
        """All that the block reads is of one moment."""
        with self._translated():
            self._connection.execute("BEGIN")
            try:
                yield
            finally:
                self._connection.execute("ROLLBACK")

    @contextmanager
    def part(self) -> Iterator[None]:
        """All of the block's writes inside a transaction, or none, whatever becomes of the others."""
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
        """What is in the first column of the first row that a statement finds, if anything is."""
        found = next(self.query(sql, values), (None,))[0]
        assert found is None or isinstance(found, kind)
        return found

    def values(self, sql: str, values: Values = ()) -> list[Any]:
        """The first column of the rows that a statement finds."""
        return [row[0] for row in self.query(sql, values)]

    def put(self, table: Table, documents: Iterable[tuple[object, ...]]) -> None:
        """Write the rows that a table derives from documents, each with what its `find` takes beside it."""
        with self._translated():
            for document in documents:
                for values in table.rows(*document):
                    row = dict(zip(table.kinds, values, strict=True))
                    if not table.settled or not self._connection.execute(table.revision, row).rowcount:
                        self._connection.execute(table.insertion, row)

    def check_room(self) -> None:
        """Write and delete something larger than most transactions: a full disk may still take a few bytes."""
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
    """Why a grid job is left alone, and since when (seconds since 1970)."""

    grid_job: str
    problem: str
    since: int

    @property
    def sentence(self) -> str:
        """The whole of it, for people."""
        return f"in quarantine since {render_time(self.since)}: {self.problem}"


class Quarantine:
    """Who found a document that cannot be read notes its grid job here, inside a transaction."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def put(self, damage: DamagedDocument, now: float) -> None:
        """Leave a grid job alone from now on; what was found first stays."""
        values = (damage.grid_job, str(damage), int(now))
        self._store.write("INSERT INTO quarantine VALUES (?, ?, ?) ON CONFLICT DO NOTHING", [values])

    def lift(self, grid_job: str) -> None:
        """Its documents can be read again, or it is removed."""
        self._store.write("DELETE FROM quarantine WHERE grid_job = ?", [(grid_job,)])

    def list(self) -> dict[str, Quarantined]:
        """Those that are in it, by id."""
        rows = self._store.query("SELECT grid_job, problem, since FROM quarantine ORDER BY since, grid_job")
        return {row[0]: Quarantined(*row) for row in rows}


def render_array(values: Iterable[object]) -> str:
    """Values as SQLite's json_each reads them."""
    import json  # a list of grid jobs needs none

    return json.dumps(list(values))
