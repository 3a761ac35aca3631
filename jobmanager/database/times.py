"""Times as documents have them, ISO 8601 in UTC; in the program they are seconds since 1970."""

from datetime import UTC, datetime


def render_time(seconds: float) -> str:
    """Seconds since 1970 as ``2026-11-22T08:30:00Z``."""
    return datetime.fromtimestamp(int(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def read_time(text: str) -> int:
    """Seconds since 1970 of what `render_time` wrote."""
    return int(datetime.fromisoformat(text).timestamp())
