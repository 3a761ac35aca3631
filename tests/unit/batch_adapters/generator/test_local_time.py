"""Local time stamps of logs."""

import os
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batch_adapters.generator import local_time
from batch_adapters.generator.emit import LineFilter
from batch_adapters.generator.local_time import LocalStamps, find_zone
from batch_adapters.generator.module import FeedSettings
from batch_adapters.slurm.events import SLURM

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


SECOND = 1795219187
"""2026-11-20T23:59:47Z."""


@pytest.fixture
def being_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """What takes this process to a zone; it comes back."""
    with monkeypatch.context() as patch:

        def go(zone: str) -> None:
            patch.setenv("TZ", zone)
            time.tzset()

        yield go
    time.tzset()


def render_slurm(zone: str, second: int) -> bytes:
    local = datetime.fromtimestamp(second, ZoneInfo(zone))
    return f"[{local:%Y-%m-%dT%H:%M:%S}.123] sched: Allocate JobId={second} NodeList=n1\n".encode()


@pytest.mark.parametrize("theirs", ["America/Chicago", "Asia/Tokyo", "Asia/Kolkata", "UTC", "America/St_Johns"])
@pytest.mark.parametrize("ours", ["Asia/Tokyo", "America/Chicago", "UTC", "Pacific/Kiritimati"])
def test_a_log_of_another_zone_has_its_events_in_the_right_second(
    tmp_path: Path, being_in: Callable[[str], None], ours: str, theirs: str
) -> None:
    log = tmp_path / "slurmctld.log"
    log.write_bytes(b"".join(render_slurm(theirs, SECOND + 100 * number) for number in range(5)) + b"slurmctld: more\n")
    os.utime(log, (0, SECOND + 401))
    being_in(ours)
    feed = SLURM.open_feed(FeedSettings(log, SECOND + 200, {}))
    lines = LineFilter(SECOND + 200).read_good(b"".join(feed.read_events(True)))
    expected = [f"001;{second};{second};2;0" for second in (SECOND + 200, SECOND + 300, SECOND + 400)]
    assert lines.decode().splitlines() == expected
    assert len(feed.render_warnings()) == int(ours != theirs)


def test_a_log_that_is_empty_at_first_has_its_zone_found_with_its_first_line(
    tmp_path: Path, being_in: Callable[[str], None]
) -> None:
    log = tmp_path / "slurmctld.log"
    log.touch()
    being_in("UTC")
    feed = SLURM.open_feed(FeedSettings(log, None, {}))
    assert list(feed.read_events(True)) == []
    log.write_bytes(render_slurm("Asia/Tokyo", SECOND))
    os.utime(log, (0, SECOND))
    assert b"".join(feed.read_events(True)) == b"001;%d;%d;2;0\n" % (SECOND, SECOND)


@pytest.mark.parametrize(
    ("stamp", "written"),
    [
        pytest.param(b"2026-11-20T23:59:47.1", SECOND + 3, id="our own zone"),
        pytest.param(b"2026-11-20T18:59:47.1+00:00", SECOND, id="an offset of its own"),
        pytest.param(b"2026-11-20T21:59:47.1", SECOND + 450, id="touched since"),
        pytest.param(b"2026-11-17T23:59:47.1", SECOND, id="days ago"),
        pytest.param(b"no stamp at all", SECOND, id="no stamp"),
    ],
)
def test_where_the_zone_is_ours_or_cannot_be_told_it_stays(
    being_in: Callable[[str], None], stamp: bytes, written: float
) -> None:
    being_in("UTC")
    tail = b"torn] line\n[%b] slurmctld: something\n" % stamp
    assert find_zone(lambda: SLURM.new_parser().read_time, tail, written) is None
    assert time.localtime(0).tm_hour == 0
