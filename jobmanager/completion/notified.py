"""Which notifications have been sent (docs/notification.md), in a file beside the job database."""

import json
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Self

from jobmanager.site.account import Account
from sandbox.files import read_regular, replace_file

_LATEST = 1e11
"""Later times, in seconds since the epoch, are not believed."""
_DAY = 86_400
"""Seconds after which nobody is notified of an end any more."""
_EARLIER_NAMES = {"begun": "since", "told": "sent", "tries": "attempts", "troubled": "stalled_since"}


@dataclass
class Notified:
    """What has been sent. Keys are ``ID/EVENT`` (grid job and event), times are seconds since the epoch."""

    since: float
    """Nobody is notified of earlier ends: they are older than the setting of the command."""
    sent: dict[str, float] = field(default_factory=dict)
    attempts: dict[str, int] = field(default_factory=dict)
    """How often a command was started whose result is unknown."""
    stalled_since: dict[str, float] = field(default_factory=dict)
    """By open grid job: since when it has made no progress."""

    @classmethod
    def read(cls, account: Account, now: float) -> Self:
        """What was last written; if there is nothing readable, nothing was sent since the monitor started.

        :raises OSError: the file exists, but cannot be opened.
        """
        with suppress(FileNotFoundError):
            if found := cls._read(read_regular(account.places.notified)):
                return found
        # The monitor writes that file when it starts, before any grid job can end.
        configured = account.places.monitor_configuration
        return cls(configured.stat().st_mtime if configured.exists() else now)

    @classmethod
    def _read(cls, data: bytes) -> Self | None:
        """The content of a file; None if it is damaged."""
        try:
            found = cls(**{_EARLIER_NAMES.get(name, name): value for name, value in json.loads(data).items()})
            numbers = (found.since, *found.sent.values(), *found.attempts.values(), *found.stalled_since.values())
        except (ValueError, TypeError, AttributeError, RecursionError):
            return None
        return found if all(type(number) in (int, float) and 0 <= number < _LATEST for number in numbers) else None

    def write(self, account: Account) -> None:
        """Keep it, durably."""
        replace_file(account.places.notified, json.dumps(asdict(self)).encode())

    def find_unsent(self, account: Account, now: float) -> list[tuple[str, str]]:
        """Grid jobs and outcomes that have not been sent, the oldest end first."""
        ended = account.database.grid_jobs.list_ended_since(max(self.since, now - _DAY))
        return [(job_id, outcome) for job_id, outcome in ended if f"{job_id}/{outcome}" not in self.sent]

    def forget(self, now: float) -> None:
        """Drop what is no longer needed."""
        stalled = {f"{job_id}/stalled" for job_id in self.stalled_since}
        self.sent = {key: when for key, when in self.sent.items() if key in stalled or now - when < 2 * _DAY}


def has_unsent(account: Account, now: float) -> bool:
    """True if somebody has to be notified of an end, or if that cannot be known: then samgrid-notify says why."""
    if not account.configuration.notification.command:
        return False
    try:
        return bool(Notified.read(account, now).find_unsent(account, now))
    except OSError:
        return True
