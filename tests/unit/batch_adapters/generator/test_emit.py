"""The folder of event files, one a day, that GRAM's own reader and the module ``events`` follow."""

import os
import time
from pathlib import Path

import pytest

from batch_adapters.generator.emit import EventFolder
from batch_adapters.generator.module import DAY_FILES, FeedSettings, LogNotKnown

DAY = 86_400


def name_of(day: int) -> str:
    return time.strftime("%Y%m%d", time.gmtime(day * DAY))


TODAY = 20_780


@pytest.fixture(autouse=True)
def _no_midnight(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the same day for as long as a test lasts."""
    monkeypatch.setattr(time, "time", lambda: TODAY * DAY + 1.0)


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def test_today_has_a_file_before_the_first_event(tmp_path: Path) -> None:
    EventFolder(tmp_path)
    assert files_of(tmp_path) == {name_of(TODAY): b""}


def test_everybody_can_read_a_day_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        EventFolder(tmp_path)
    finally:
        os.umask(before)
    assert (tmp_path / name_of(TODAY)).stat().st_mode & 0o777 == 0o644


def test_each_event_goes_to_the_file_of_its_own_utc_day(tmp_path: Path) -> None:
    folder = EventFolder(tmp_path)
    late, early = b"001;1795219199;a;2;0\n", b"001;1795219200;a;8;0\n"
    folder.write(late + early + late)
    found = files_of(tmp_path)
    assert (found["20261120"], found["20261121"]) == (late + late, early)


def test_a_day_without_events_gets_its_file_when_it_begins_and_not_before(tmp_path: Path) -> None:
    folder = EventFolder(tmp_path)
    folder.write_empty_days((TODAY + 1) * DAY - 1)
    assert name_of(TODAY + 1) not in files_of(tmp_path)
    folder.write_empty_days((TODAY + 3) * DAY)
    assert {name_of(TODAY + days) for days in range(4)} <= set(files_of(tmp_path))


def test_days_that_were_missed_get_their_files_at_the_start(tmp_path: Path) -> None:
    (tmp_path / name_of(TODAY - 5)).write_bytes(b"001;5;a;2;0\n")
    EventFolder(tmp_path)
    assert sorted(files_of(tmp_path)) == [name_of(TODAY - days) for days in range(5, -1, -1)]


def test_each_line_is_one_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[bytes] = []
    plain = os.write

    def write(fd: int, data: bytes) -> int:
        written.append(bytes(data))
        return plain(fd, data)

    monkeypatch.setattr(os, "write", write)
    EventFolder(tmp_path).write(b"001;1795219187;a;2;0\n001;1795219188;a;8;0\n")
    assert written == [b"001;1795219187;a;2;0\n", b"001;1795219188;a;8;0\n"]


def test_part_of_a_line_that_was_written_is_an_error_and_gone_the_next_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = b"001;1795219187;a;2;0\n"
    plain = os.write
    folder = EventFolder(tmp_path)
    folder.write(line)
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda fd, data: plain(fd, data[:9]))
        with pytest.raises(OSError, match="disk full"):
            folder.write(line)
    EventFolder(tmp_path).write(line)
    assert files_of(tmp_path)["20261120"] == line + line


def test_the_torn_end_of_the_newest_day_is_cut_when_the_next_begins(tmp_path: Path) -> None:
    yesterday = tmp_path / name_of(TODAY - 1)
    yesterday.write_bytes(b"001;5;a;2;0\n001;6;b")
    EventFolder(tmp_path)
    assert yesterday.read_bytes() == b"001;5;a;2;0\n"


def test_a_symbolic_link_in_a_days_place_is_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_bytes(b"mine")
    (tmp_path / name_of(TODAY)).symlink_to(target)
    with pytest.raises(OSError, match=name_of(TODAY)):
        EventFolder(tmp_path)
    assert target.read_bytes() == b"mine"


def test_the_module_events_reads_what_a_folder_of_another_generator_gets(tmp_path: Path) -> None:
    feed = DAY_FILES.open_feed(FeedSettings(tmp_path, 1795219187, {}))
    folder = EventFolder(tmp_path)
    lines = b"001;1795219187;a;2;0\n001;1795219200;a;8;0\n"
    folder.write(lines)
    assert b"".join(feed.read_events(True)) == lines
    folder.write(b"001;1795219201;b;1;0\n")
    assert b"".join(feed.read_events(True)) == b"001;1795219201;b;1;0\n"


def test_the_module_events_wants_to_be_told_its_folder() -> None:
    with pytest.raises(LogNotKnown, match="--log"):
        DAY_FILES.open_feed(FeedSettings(None, None, {}))
