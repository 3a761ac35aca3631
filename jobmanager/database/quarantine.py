"""The grid jobs of which a document cannot be read: they are left alone, so that all others go on."""

from dataclasses import dataclass

from jobmanager.database.sqlite import DamagedDocument, Store
from jobmanager.database.times import render_time

SCHEMA = """
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
        return {str(job): Quarantined(str(job), str(problem), int(since)) for job, problem, since in rows}
