"""What the pages read from the job database: nothing is ever written."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from jobmanager.database.database import Database, Overview
from jobmanager.site.account import Account
from jobmanager.web.changes import Mark


@dataclass(frozen=True)
class Filter:
    """Which grid jobs to list; an empty word stands for all."""

    state: str = ""
    type: str = ""
    owner: str = ""


class ReadOnlyDatabase(Database):
    """The job database of an account, to be read by one thread."""

    def __init__(self, account: Account) -> None:
        path = account.places.database
        # Where there is no database, nothing was ever submitted: and reading shall not make one.
        super().__init__(path if path.exists() else None)
        self._store.forbid_writing()

    def version(self) -> int:
        """Another number after every commit of another connection."""
        ((number,),) = self._store.query("PRAGMA data_version")
        return int(number)

    def page_of_grid_jobs(self, chosen: Filter, first: int, most: int) -> list[Overview]:
        """A page of grid jobs, the newest first; ``first`` counts from 0."""
        condition, values = _render_condition(chosen)
        sql = f"SELECT id FROM grid_job{condition} ORDER BY submitted DESC, id DESC LIMIT ? OFFSET ?"
        found = [str(row[0]) for row in self._store.query(sql, [*values, most, first])]
        return [row for identity in found for row in self.grid_jobs.overview(identity)]

    def count_grid_jobs(self, chosen: Filter) -> int:
        """How many grid jobs there are to list."""
        condition, values = _render_condition(chosen)
        ((number,),) = self._store.query(f"SELECT count(*) FROM grid_job{condition}", values)
        return int(number)

    def types_and_owners(self) -> tuple[list[str], list[str]]:
        """What grid jobs can be chosen by."""
        return self._choices("type"), self._choices("owner")

    def _choices(self, column: str) -> list[str]:
        sql = f"SELECT DISTINCT {column} FROM grid_job ORDER BY 1 LIMIT 200"
        names = [str(name) for (name,) in self._store.query(sql)]
        # What is longer than a line, or has control characters, is nobody's name.
        return [name for name in names if name.isprintable() and len(name) <= 200]

    def mark_of_all(self) -> Mark:
        """What changes whenever the list of grid jobs would."""
        local_jobs = self._store.query("SELECT * FROM local_job_count WHERE number")
        blocked = self._store.query("SELECT grid_job, count(*) FROM local_job WHERE helps IS NOT NULL GROUP BY 1")
        return (*self._store.query("SELECT id, state FROM grid_job"), *local_jobs, *blocked)

    def mark_of_grid_job(self, identity: str) -> Mark:
        """What changes whenever a page about a grid job would."""
        documents = self._store.query("SELECT document FROM grid_job WHERE id = ?", [identity])
        phases = self._store.query(
            "SELECT total(done), total(total), max(changed) FROM phase WHERE grid_job = ?", [identity]
        )
        return (*documents, *self.grid_jobs.overview(identity), *phases)


def _render_condition(chosen: Filter) -> tuple[str, list[str]]:
    pairs = [("coalesce(outcome, state)", chosen.state), ("type", chosen.type), ("owner", chosen.owner)]
    given = [(column, value) for column, value in pairs if value]
    condition = " AND ".join(f"{column} = ?" for column, _ in given)
    return (f" WHERE {condition}" if given else ""), [value for _, value in given]


@contextmanager
def open_read_only(account: Account) -> Iterator[ReadOnlyDatabase]:
    """The database for the time of one answer."""
    database = ReadOnlyDatabase(account)
    try:
        yield database
    finally:
        database.close()


class VersionReader:
    """Tells whether anything was committed; the database may come into being meanwhile."""

    def __init__(self, account: Account) -> None:
        self._account = account
        self._database: ReadOnlyDatabase | None = None

    def __call__(self) -> int:
        """Another number after every commit of anybody; 0 while there is no database."""
        if self._database is None and self._account.places.database.exists():
            self._database = ReadOnlyDatabase(self._account)
        return self._database.version() if self._database else 0
