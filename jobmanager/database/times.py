"""Times as in documents, ISO 8601 in UTC; in the program they are seconds since 1970."""

from datetime import UTC, datetime
from functools import lru_cache

_KEPT = 1024
"""The same few seconds are converted again and again."""


@lru_cache(_KEPT)
def render_time(seconds: float) -> str:
    """Seconds since 1970 as ``2026-11-22T08:30:00Z``."""
    return datetime.fromtimestamp(int(seconds), UTC).isoformat().replace("+00:00", "Z")


@lru_cache(_KEPT)
def read_time(text: str) -> int:
    """Seconds since 1970 of what `render_time` wrote."""
    return int(datetime.fromisoformat(text).timestamp())
