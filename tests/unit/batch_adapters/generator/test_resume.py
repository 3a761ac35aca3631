"""A generator that was down goes on where its day files end."""

import time
from collections import Counter
from pathlib import Path

import pytest

from batch_adapters.generator.emit import EventFolder, FolderEnd, read_end
from tests.unit.batch_adapters.generator.generator_process import close_input, read_errors, starting
from tests.waiting import SECONDS, wait_until

DAY = 86_400
# A second of today, so that it is not older than what a folder is searched for.
NOW = int(time.time()) // DAY * DAY
YESTERDAY = NOW - DAY


def name_of(second: int) -> str:
    return time.strftime("%Y%m%d", time.gmtime(second))


def line(second: int, job: str = "a", state: int = 2) -> bytes:
    return b"001;%d;%b;%d;0\n" % (second, job.encode(), state)


LATEST = line(YESTERDAY + 7, "b")


@pytest.mark.parametrize(
    ("files", "end"),
    [
        pytest.param({}, None, id="no files"),
        pytest.param({NOW: b"", YESTERDAY: b""}, None, id="no events"),
        pytest.param({NOW - 1000 * DAY: line(5)}, None, id="nobody's log reaches back so far"),
        pytest.param(
            {YESTERDAY: line(YESTERDAY) + LATEST}, FolderEnd(YESTERDAY + 7, Counter({LATEST: 1})), id="the last line"
        ),
        pytest.param(
            {NOW: b"", YESTERDAY: LATEST, YESTERDAY - DAY: line(YESTERDAY - DAY)},
            FolderEnd(YESTERDAY + 7, Counter({LATEST: 1})),
            id="the newest file that is not empty",
        ),
        pytest.param(
            {YESTERDAY: LATEST + line(YESTERDAY + 7) + LATEST},
            FolderEnd(YESTERDAY + 7, Counter({LATEST: 2, line(YESTERDAY + 7): 1})),
            id="equal lines are counted",
        ),
        pytest.param(
            {YESTERDAY: line(YESTERDAY + 9) + LATEST},
            FolderEnd(YESTERDAY + 7, Counter({LATEST: 1, line(YESTERDAY + 9): 1})),
            id="a log out of order: later lines are there already",
        ),
        pytest.param(
            {YESTERDAY: LATEST + line(YESTERDAY + 8)[:-1]},
            FolderEnd(YESTERDAY + 7, Counter({LATEST: 1})),
            id="a torn end",
        ),
        pytest.param(
            {NOW: b"garbage\n", YESTERDAY: LATEST + b"garbage\n"},
            FolderEnd(YESTERDAY + 7, Counter({LATEST: 1})),
            id="garbage",
        ),
        pytest.param(
            {NOW: line(NOW + 50), NOW + DAY: line(NOW + DAY)},
            FolderEnd(NOW + 10, Counter({line(NOW + 50): 1})),
            id="a clock that was ahead silences nothing until then",
        ),
    ],
)
def test_a_folder_ends_with_the_second_of_its_last_event(
    tmp_path: Path, files: dict[int, bytes], end: FolderEnd | None
) -> None:
    for second, text in files.items():
        (tmp_path / name_of(second)).write_bytes(text)
    assert read_end(tmp_path, NOW + 10) == end


def test_a_symbolic_link_in_a_days_place_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_bytes(LATEST)
    (tmp_path / name_of(YESTERDAY)).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match=name_of(YESTERDAY)):
        read_end(tmp_path, NOW)


def test_lines_are_left_out_as_often_as_the_folder_has_them(tmp_path: Path) -> None:
    folder = EventFolder(tmp_path, FolderEnd(YESTERDAY + 7, Counter({LATEST: 2})))
    folder.write(LATEST + line(YESTERDAY + 7) + LATEST)
    folder.write(LATEST + line(YESTERDAY + 8))
    assert (tmp_path / name_of(YESTERDAY)).read_bytes() == line(YESTERDAY + 7) + LATEST + line(YESTERDAY + 8)


def test_today_gets_its_file_only_when_the_days_before_are_told(tmp_path: Path) -> None:
    (tmp_path / name_of(YESTERDAY)).write_bytes(LATEST)
    folder = EventFolder(tmp_path, read_end(tmp_path, NOW))
    folder.write(line(YESTERDAY + 8))
    assert not (tmp_path / name_of(NOW)).exists()
    folder.write_empty_days(NOW)
    assert (tmp_path / name_of(NOW)).exists()


def run_until_input_ends(log: Path, folder: Path, expected: bytes, *options: str) -> None:
    """Run the generator until yesterday's file is as expected."""
    day = folder / name_of(YESTERDAY)

    def is_told() -> bool:
        # It may be past midnight since NOW.
        return day.exists() and day.read_bytes() == expected and (folder / name_of(int(time.time()))).exists()

    with starting() as start:
        process = start("-s", "fork", "-l", log, "-d", folder, *options)
        wait_until(is_told)
        assert close_input(process) == 0
    assert day.read_bytes() == expected


def test_what_was_logged_while_the_generator_was_down_is_told_once(tmp_path: Path) -> None:
    log, folder = tmp_path / "log", tmp_path / "days"
    folder.mkdir()
    before = line(YESTERDAY, "a", 1) + line(YESTERDAY + 5, "a") + line(YESTERDAY + 5, "a")
    log.write_bytes(before)
    run_until_input_ends(log, folder, before, "-t", "1")
    meanwhile = line(YESTERDAY + 5, "a") + line(YESTERDAY + 5, "b") + line(YESTERDAY + 6, "b", 8)
    with log.open("ab") as writer:
        writer.write(meanwhile)
    run_until_input_ends(log, folder, before + meanwhile)
    # Nothing new.
    run_until_input_ends(log, folder, before + meanwhile)


def test_a_start_time_counts_more_than_what_the_folder_has(tmp_path: Path) -> None:
    log, folder = tmp_path / "log", tmp_path / "days"
    folder.mkdir()
    log.write_bytes(LATEST + LATEST)
    (folder / name_of(YESTERDAY)).write_bytes(LATEST)
    run_until_input_ends(log, folder, LATEST * 3, "-t", str(YESTERDAY))


def test_a_folder_that_cannot_be_read_is_one_line_and_an_exit_status(tmp_path: Path) -> None:
    (tmp_path / name_of(NOW)).mkdir()
    with starting() as start:
        process = start("-s", "fork", "-l", "/x", "-d", tmp_path)
        assert process.wait(SECONDS) == 5
        errors = read_errors(process)
    assert errors.count("\n") == 1
    assert name_of(NOW) in errors
