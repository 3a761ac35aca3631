"""Local time stamps of logs."""

import time
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batch_adapters.generator import local_time
from batch_adapters.generator.local_time import LocalStamps

PBS = "mm/dd/YYYY HH:MM:SS"
ISO = "YYYY-mm-ddTHH:MM:SS"
CHICAGO = ZoneInfo("America/Chicago")


@given(st.datetimes(datetime(1980, 1, 1), datetime(2099, 1, 1)))
def test_a_stamp_of_a_time_that_clocks_show_once_is_the_right_second(moment: datetime) -> None:
    moment = moment.replace(microsecond=0, tzinfo=UTC)
    local = moment.astimezone(CHICAGO)
    if local.replace(fold=1).timestamp() == local.replace(fold=0).timestamp():
        stamps = LocalStamps(PBS, CHICAGO)
        assert stamps[local.strftime("%m/%d/%Y %H:%M:%S").encode()] == b"%d" % moment.timestamp()


@pytest.mark.parametrize(
    ("stamp", "expected"),
    [
        pytest.param(b"2026-11-20T23:16:27", 1795238187, id="winter"),
        pytest.param(b"2026-07-01T12:00:00", 1782925200, id="summer"),
        pytest.param(b"2026-03-08T01:59:59", 1772956799, id="before-the-gap"),
        pytest.param(b"2026-03-08T03:00:00", 1772956800, id="behind-the-gap"),
        pytest.param(b"2026-03-08T02:30:00", 1772958600, id="in-the-gap"),
        pytest.param(b"2026-11-20T23:16:27Z", 1795216587, id="utc"),
        pytest.param(b"2026-11-20T23:16:27+00:00", 1795216587, id="offset-0"),
        pytest.param(b"2026-11-20T23:16:27+0530", 1795196787, id="offset-east"),
        pytest.param(b"2026-11-20T23:16:27-06:00", 1795238187, id="offset-west"),
    ],
)
def test_a_stamp_means_one_second(stamp: bytes, expected: int) -> None:
    assert LocalStamps(ISO, CHICAGO)[stamp] == b"%d" % expected


def test_a_log_that_goes_on_through_the_repeated_hour_gets_each_second_right() -> None:
    stamps = LocalStamps(ISO, CHICAGO)
    start = int(datetime(2026, 11, 1, 5, 30, tzinfo=UTC).timestamp())
    for second in range(start, start + 9000, 97):
        local = datetime.fromtimestamp(second, CHICAGO).strftime("%Y-%m-%dT%H:%M:%S").encode()
        assert stamps[local] == b"%d" % second


def test_a_lonely_time_of_the_repeated_hour_gets_its_first_reading() -> None:
    assert LocalStamps(ISO, CHICAGO)[b"2026-11-01T01:30:00"] == b"1793514600"


def test_slight_disorder_in_the_repeated_hour_is_no_second_reading() -> None:
    stamps = LocalStamps(ISO, CHICAGO)
    assert int(stamps[b"2026-11-01T01:30:10"]) - int(stamps[b"2026-11-01T01:30:05"]) == 5


def test_a_time_that_clocks_skip_has_one_reading_whatever_came_before() -> None:
    stamps = LocalStamps(ISO, CHICAGO)
    assert stamps[b"2026-03-09T12:00:00"] == b"1773075600"
    assert stamps[b"2026-03-08T02:30:00"] == b"1772958600"


@pytest.mark.parametrize(
    "stamp", [b"", b"2026-13-01T00:00:00", b"2026-02-30T00:00:00", b"2026-11-20T23:16:27x", b"0000-01-01T00:00:00"]
)
def test_an_impossible_stamp_is_empty(stamp: bytes) -> None:
    assert LocalStamps(ISO)[stamp] == b""


@pytest.mark.parametrize(
    ("now", "stamp", "expected"),
    [
        ("2026-11-21", b"11/20 23:58:22", "2026-11-20 23:58:22"),
        ("2027-01-01", b"12/31 23:59:59", "2026-12-31 23:59:59"),
        ("2026-12-31", b"01/01 00:00:01", "2027-01-01 00:00:01"),
        ("2026-06-01", b"02/29 12:00:00", "2024-02-29 12:00:00"),
    ],
)
def test_a_stamp_without_a_year_is_of_the_last_twelve_months(now: str, stamp: bytes, expected: str) -> None:
    seconds = datetime.fromisoformat(now).replace(tzinfo=CHICAGO, hour=20).timestamp()
    stamps = LocalStamps("mm/dd HH:MM:SS", CHICAGO, now=lambda: seconds)
    assert datetime.fromtimestamp(int(stamps[stamp]), CHICAGO).strftime("%Y-%m-%d %H:%M:%S") == expected


def test_without_a_zone_the_stamps_are_of_the_process_zone(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "America/Chicago")
        time.tzset()
        assert LocalStamps(ISO)[b"2026-11-20T23:16:27"] == b"1795238187"
    time.tzset()


def test_the_memory_for_stamps_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_time, "_MOST_STAMPS", 10)
    stamps = LocalStamps(ISO, CHICAGO)
    for minute in range(60):
        assert stamps[b"2026-11-20T23:%02d:00" % minute] == b"%d" % (1795237200 + 60 * minute)
        assert len(stamps) <= 10


def test_a_stamp_without_a_year_means_another_second_a_year_later() -> None:
    clock = datetime(2026, 11, 21, tzinfo=CHICAGO).timestamp()
    stamps = LocalStamps("mm/dd HH:MM:SS", CHICAGO, now=lambda: clock)
    first = int(stamps[b"11/20 23:58:22"])
    clock += 366 * 86_400
    assert int(stamps[b"11/20 23:58:22"]) - first == 365 * 86_400
    assert int(stamps[b"11/20 23:58:23"]) - first == 365 * 86_400 + 1
