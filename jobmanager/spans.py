"""Reads the spans of time that people give on the command line."""

import re
from datetime import UTC, datetime

_AGO = re.compile(r"([0-9]{1,6})([mhdw])", re.ASCII)
_SECONDS = {"m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_LATEST = datetime(9999, 1, 1, tzinfo=UTC)


def read_since(text: str, now: float) -> float:
    """The second since 1970 that is meant: a day, a time, or so long before ``now``; UTC where no zone is given.

    :raises ValueError: with a sentence for the user.
    """
    ago = _AGO.fullmatch(text)
    if ago:
        return now - int(ago[1]) * _SECONDS[ago[2]]
    try:
        moment = datetime.fromisoformat(text)
        zoned = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        if zoned >= _LATEST:
            raise ValueError("too late")
        return zoned.timestamp()
    except (ValueError, OverflowError):
        raise ValueError(f"{text!r} is no time: say 2026-11-22, 2026-11-22T08:30, 36h or 7d") from None
