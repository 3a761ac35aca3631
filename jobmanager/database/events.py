"""Tables that are not derived from documents: events of unknown ids, generators' times, missing local jobs."""

from collections.abc import Iterable, Mapping

from batch_adapters.states import Event, State
from jobmanager.database.sqlite import Store, render_array

SCHEMA = """
CREATE TABLE IF NOT EXISTS waiting_event (
    number INTEGER PRIMARY KEY, batch TEXT NOT NULL, local_id TEXT NOT NULL, timestamp INTEGER NOT NULL,
    state INTEGER NOT NULL, exit_code INTEGER NOT NULL, received REAL NOT NULL
);
CREATE INDEX IF NOT EXISTS waiting_event_by_id ON waiting_event (batch, local_id);
CREATE INDEX IF NOT EXISTS waiting_event_by_age ON waiting_event (received);
CREATE TABLE IF NOT EXISTS generator (batch TEXT PRIMARY KEY, timestamp INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS missing (
    batch TEXT NOT NULL, local_id TEXT NOT NULL, answers INTEGER NOT NULL, since INTEGER NOT NULL,
    PRIMARY KEY (batch, local_id)
) WITHOUT ROWID;
"""


class Events:
    """What generators and batch systems reported about local jobs, if it is not in their documents."""

    def __init__(self, store: Store) -> None:
        self._store = store

    # local jobs that were missing in the batch system's answers

    def missing(self, batch: str) -> dict[str, tuple[int, int]]:
        """By local id: in how many consecutive answers it was missing, and since when (seconds since 1970)."""
        sql = "SELECT local_id, answers, since FROM missing WHERE batch = ?"
        return {local_id: (answers, since) for local_id, answers, since in self._store.query(sql, [batch])}

    def put_missing(self, batch: str, missing: Mapping[str, tuple[int, int]]) -> None:
        """Replace the content of `missing`."""
        self._store.write("DELETE FROM missing WHERE batch = ?", [(batch,)])
        rows = ((batch, local_id, answers, since) for local_id, (answers, since) in missing.items())
        self._store.write("INSERT INTO missing VALUES (?, ?, ?, ?)", rows)

    # events of unregistered ids

    def keep(self, batch: str, events: Iterable[Event], now: float) -> None:
        """Keep events of unregistered ids."""
        rows = ((batch, e.local_id, e.timestamp, e.state.value, e.exit_code, now) for e in events)
        columns = "batch, local_id, timestamp, state, exit_code, received"
        self._store.write(f"INSERT INTO waiting_event ({columns}) VALUES (?, ?, ?, ?, ?, ?)", rows)

    def take(self, batch: str, local_ids: Iterable[str]) -> dict[str | None, list[Event]]:
        """Remove the kept events of these ids; by id, in the order in which they came."""
        values = (batch, render_array(local_ids))
        condition = "batch = ? AND local_id IN (SELECT value FROM json_each(?))"
        sql = f"SELECT local_id, timestamp, state, exit_code FROM waiting_event WHERE {condition} ORDER BY number"
        events: dict[str | None, list[Event]] = {}
        for local_id, timestamp, state, exit_code in self._store.query(sql, values):
            events.setdefault(local_id, []).append(Event(timestamp, local_id, State(state), exit_code))
        self._store.write(f"DELETE FROM waiting_event WHERE {condition}", [values])
        return events

    def drop(self, before: float) -> None:
        """Forget the kept events that were received before a time."""
        self._store.write("DELETE FROM waiting_event WHERE received < ?", [(before,)])

    def generator_time(self, batch: str) -> int | None:
        """The time from which a batch system's generator must replay; None if none ever ran."""
        return self._store.value(int, "SELECT timestamp FROM generator WHERE batch = ?", [batch])

    def generator_times(self) -> dict[str, int]:
        """That time for every batch system that ever had a grid job."""
        return dict(self._store.query("SELECT batch, timestamp FROM generator ORDER BY batch"))

    def put_generator_time(self, batch: str, timestamp: int) -> None:
        """Store that time, unless a later one is stored."""
        self._store.write(
            "INSERT INTO generator VALUES (?, ?) ON CONFLICT (batch) DO UPDATE SET"
            " timestamp = max(timestamp, excluded.timestamp)",
            [(batch, timestamp)],
        )
