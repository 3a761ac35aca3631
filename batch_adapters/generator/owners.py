"""Which account a job id belongs to: whoever used it first; and how much one account may say."""

import sqlite3
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

KEPT_DAYS = 30
"""An id that was not used for so long is anybody's again."""
MOST_IDS = 1_000_000
"""Ids of one account: about 40 MB on the disk."""
LINES_PER_SECOND = 20.0
MOST_LINES = 1000
"""Lines that an account may say at once."""


@dataclass(frozen=True)
class Claim:
    """An account uses an id."""

    local_id: str
    uid: int


class Owners:
    """The owners of ids, in a file, so that nobody takes an id over when the program starts again.

    :raises OSError: (from every method) the file cannot be used now.
    """

    def __init__(self, path: Path) -> None:
        """``path``: the file, which is made where there is none; one program at a time has it."""
        self._path = path
        self._tidied = 0
        self._number_of_ids: Counter[int] = Counter()
        with self._translated():
            self._connection = sqlite3.connect(path, timeout=1, isolation_level=None)
            path.chmod(0o600)
            # The first lock is kept until the program ends.
            self._connection.execute("PRAGMA locking_mode = EXCLUSIVE")
            self._connection.execute("PRAGMA synchronous = FULL")
            self._connection.execute("BEGIN EXCLUSIVE")
            self._connection.execute(
                "CREATE TABLE IF NOT EXISTS owner"
                " (id TEXT PRIMARY KEY, uid INTEGER NOT NULL, used INTEGER NOT NULL) WITHOUT ROWID"
            )
            self._connection.execute("COMMIT")

    def close(self) -> None:
        """Let another program have the file."""
        self._connection.close()

    def claim(self, claims: Collection[Claim], day: int) -> set[Claim]:
        """Those claims that are right: the id is the account's, or became it now, for ever as far as others can see.

        ``day``: today, in days since 1970.
        """
        with self._translated():
            if day > self._tidied:
                self._tidy(day)
            found = [(claim, self._find(claim.local_id)) for claim in claims]
            new = [claim for claim, owner in found if owner is None and self._number_of_ids[claim.uid] < MOST_IDS]
            used = [claim for claim, owner in found if owner and owner[0] == claim.uid and owner[1] != day]
            if new or used:
                self._write(new, used, day)
            return {claim for claim in claims if self._is_owner(claim)}

    def _tidy(self, day: int) -> None:
        self._connection.execute("DELETE FROM owner WHERE used < ?", [day - KEPT_DAYS])
        self._number_of_ids = Counter(dict(self._connection.execute("SELECT uid, count(*) FROM owner GROUP BY uid")))
        self._tidied = day

    def _write(self, new: Collection[Claim], used: Collection[Claim], day: int) -> None:
        self._connection.execute("BEGIN")
        try:
            rows = [(claim.local_id, claim.uid, day) for claim in new]
            # Where two claim it in the same moment, the first one has it.
            self._connection.executemany("INSERT OR IGNORE INTO owner VALUES (?, ?, ?)", rows)
            rows_used = [(day, claim.local_id) for claim in used]
            self._connection.executemany("UPDATE owner SET used = ? WHERE id = ?", rows_used)
            self._connection.execute("COMMIT")
        except sqlite3.Error:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise
        self._number_of_ids.update(claim.uid for claim in new)

    def _find(self, local_id: str) -> tuple[int, int] | None:
        for uid, used in self._connection.execute("SELECT uid, used FROM owner WHERE id = ?", [local_id]):
            return int(uid), int(used)
        return None

    def _is_owner(self, claim: Claim) -> bool:
        owner = self._find(claim.local_id)
        return owner is not None and owner[0] == claim.uid

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise OSError(f"{self._path}: {error}") from error


class Allowances:
    """How many lines each account may still say: `MOST_LINES` at once, `LINES_PER_SECOND` in the long run."""

    def __init__(self) -> None:
        self._left: dict[int, tuple[float, float]] = {}

    def take(self, uid: int, wanted: int, now: float) -> int:
        """How many of the wanted lines are allowed now; ``now``: seconds of a clock that nobody sets."""
        left, then = self._left.get(uid, (float(MOST_LINES), now))
        left = min(MOST_LINES, left + (now - then) * LINES_PER_SECOND)
        allowed = min(wanted, int(left))
        self._left[uid] = left - allowed, now
        return allowed
