"""What people were told of ends and stalls (docs/notification.md): kept beside the job database, for whoever tells."""

import json
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Self

from jobmanager.site.account import Account
from sandbox.files import replace_file

_LATEST = 1e11
"""Seconds since the epoch that are believed."""
_DAY = 86_400
"""Seconds in which an end is told, or not at all."""


@dataclass
class Notified:
    """What was told, by grid job and event as ``ID/EVENT``; times in seconds since the epoch."""

    begun: float
    """What ended before is not told: who sets a command is not told of the past."""
    told: dict[str, float] = field(default_factory=dict)
    tries: dict[str, int] = field(default_factory=dict)
    """How often a command was begun of which it is not known how it ended."""
    troubled: dict[str, float] = field(default_factory=dict)
    """Since when each open grid job has not gone on."""

    @classmethod
    def read(cls, account: Account, now: float) -> Self:
        """As it was written last; where nobody did, or it cannot be read, nothing was told since the monitor started.

        :raises OSError: it is there, but cannot be opened.
        """
        with suppress(FileNotFoundError):
            if found := cls._read(account.places.notified.read_bytes()):
                return found
        # The monitor writes that file when it starts, before any grid job can end.
        configured = account.places.monitor_configuration
        return cls(configured.stat().st_mtime if configured.exists() else now)

    @classmethod
    def _read(cls, data: bytes) -> Self | None:
        """What a file says; None of one that is damaged."""
        try:
            found = cls(**json.loads(data))
            numbers = (found.begun, *found.told.values(), *found.tries.values(), *found.troubled.values())
        except (ValueError, TypeError, AttributeError, RecursionError):
            return None
        return found if all(type(number) in (int, float) and 0 <= number < _LATEST for number in numbers) else None

    def write(self, account: Account) -> None:
        """Keep it, whatever happens next."""
        replace_file(account.places.notified, json.dumps(asdict(self)).encode())

    def find_unsent(self, account: Account, now: float) -> list[tuple[str, str]]:
        """Grid jobs and outcomes that are to be told, the eldest end first."""
        ended = account.database.grid_jobs.list_ended_since(max(self.begun, now - _DAY))
        return [(job_id, outcome) for job_id, outcome in ended if f"{job_id}/{outcome}" not in self.told]

    def forget(self, now: float) -> None:
        """Forget what nobody asks for any more."""
        stalled = {f"{job_id}/stalled" for job_id in self.troubled}
        self.told = {key: when for key, when in self.told.items() if key in stalled or now - when < 2 * _DAY}


def has_unsent(account: Account, now: float) -> bool:
    """True where somebody waits to be told of an end, or it cannot be known: whoever tells will say why."""
    if not account.configuration.notification.command:
        return False
    try:
        return bool(Notified.read(account, now).find_unsent(account, now))
    except OSError:
        return True
