"""Since when: what people say for the beginning of a time."""

import re
from datetime import UTC, datetime

_SECONDS = {"m": 60, "h": 3600, "d": 86400}
_LAST = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC).timestamp()


def read_since(text: str, now: float) -> float:
    """Seconds since 1970 of ``36h``, ``7d`` or ``90m`` before now, or of a date or time of ISO 8601, by default in UTC.

    :raises ValueError: it is neither; the message says so.
    """
    before = re.fullmatch(r"(\d{1,6})([mhd])", text, re.ASCII)
    if before is not None:
        return max(0.0, now - int(before[1]) * _SECONDS[before[2]])
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise ValueError(f"{text!r} is no time like 2026-11-22, 2026-11-22T18:30, 36h or 7d") from error
    seconds = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    return min(max(0.0, seconds), _LAST)
