"""One SQLite file of an account: transactions, and errors that say which file and why."""

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

LAYOUT = 4
"""Number of the tables' layout; a file of another one is not touched."""


class DatabaseError(Exception):
    """The job database cannot be read or written now; the message says which file and why."""


class Store:
    """An SQLite file with the tables of ``schema``. Every method reads or writes committed rows only.

    Writing methods belong inside ``with store.transaction():``.

    :raises DatabaseError: for anything that SQLite or the file system refuses (a full disk, a damaged file).
    """

    def __init__(self, path: Path | None, schema: str) -> None:
        """``path`` None: an empty store in memory, in which everything can be asked and nothing is found."""
        self.path = path
        with self._translated():
            self._connection = sqlite3.connect(path or ":memory:", timeout=60, isolation_level=None)
            if path is not None:
                path.chmod(0o600)
            self._connection.execute("PRAGMA journal_mode = WAL")
            if self._is_empty():
                # In one transaction: who is killed leaves all or nothing. The first commit takes it along to the disk.
                self._connection.execute("PRAGMA synchronous = OFF")
                self._connection.executescript(f"BEGIN IMMEDIATE;\n{schema}\nPRAGMA user_version = {LAYOUT};\nCOMMIT;")
            # An intent must outlive a power cut once its submit command runs: every commit reaches the disk.
            self._connection.execute("PRAGMA synchronous = FULL")

    def _is_empty(self) -> bool:
        """True where there are no tables yet."""
        (found,) = self._connection.execute("PRAGMA user_version").fetchone()
        (tables,) = self._connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        if tables and found not in (0, LAYOUT):
            raise DatabaseError(
                f"job database {self.path} has layout {found}, this version works with {LAYOUT}: finish its grid jobs "
                "with the version that made it, then move the state folder away"
            )
        return bool(found != LAYOUT)

    def close(self) -> None:
        """Give the file back."""
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

    def _query(self, sql: str, values: Iterable[object] = ()) -> Iterator[tuple[Any, ...]]:
        with self._translated():
            yield from self._connection.execute(sql, tuple(values))

    def _write(self, sql: str, rows: Iterable[tuple[object, ...]]) -> None:
        with self._translated():
            self._connection.executemany(sql, rows)

    def check_room(self) -> None:
        """Write and delete something larger than most transactions: a full disk may still take a few bytes."""
        with self._translated():
            self._connection.execute("CREATE TABLE IF NOT EXISTS room (filler BLOB)")
            self._connection.execute("INSERT INTO room VALUES (zeroblob(65536))")
            self._connection.execute("DELETE FROM room")
