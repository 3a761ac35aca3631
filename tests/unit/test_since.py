"""Since when: what people say for the beginning of a time."""

from datetime import UTC, datetime

import pytest

from jobmanager.since import read_since

NOON = datetime(2026, 11, 22, 12, tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("90m", NOON - 5400),
        ("36h", NOON - 36 * 3600),
        ("7d", NOON - 7 * 86400),
        ("2026-11-22", NOON - 12 * 3600),
        ("2026-11-22T11:30", NOON - 1800),
        ("2026-11-22 11:30:01Z", NOON - 1799),
        ("2026-11-22T12:00+01:00", NOON - 3600),
        ("999999d", 0),
        ("0001-01-01", 0),
        ("9999-12-31T23:59:59-14:00", datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC).timestamp()),
    ],
)
def test_a_moment_is_a_time_or_so_long_ago(text: str, moment: float) -> None:
    assert read_since(text, NOON) == moment


@pytest.mark.parametrize("text", ["", "tomorrow", "h", "-1h", "1.5h", "1y", "9999999d", "٣h", "2026-13-01", "7d 3h"])
def test_anything_else_is_an_error_that_says_what_there_is(text: str) -> None:
    with pytest.raises(ValueError, match="36h or 7d"):
        read_since(text, NOON)
