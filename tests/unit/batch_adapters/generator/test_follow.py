"""The follower, driven step by step: every record once, in order, whatever is done to the log's files."""

import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from batch_adapters.generator import follow
from batch_adapters.generator.follow import DatedFiles, Follower, RotatedFile, Source
from tests.descriptors import open_descriptors

ENDS = (b"\n",)


class Writer:
    """A scheduler that writes numbered lines to its log, and the site that rotates it."""

    def __init__(self, folder: Path) -> None:
        self.log = folder / "log"
        self.written: list[bytes] = []
        self.torn = b""
        self._fd = -1
        self.open()

    def open(self) -> None:
        self.close()
        self._fd = os.open(self.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1

    def write(self, count: int = 1) -> None:
        for _ in range(count):
            self.written.append(b"line %d\n" % len(self.written))
            os.write(self._fd, self.torn or self.written[-1])
            if self.torn:
                self.written.pop()
                self.torn = b""

    def write_half(self) -> None:
        if not self.torn:
            line = b"line %d\n" % len(self.written)
            self.written.append(line)
            os.write(self._fd, line[:4])
            self.torn = line[4:]

    def shift(self) -> None:
        for number in range(40, 0, -1):
            part = self.log.with_name(f"log.{number}")
            if part.exists():
                part.rename(part.with_name(f"log.{number + 1}"))

    def rename(self) -> None:
        self.shift()
        self.log.rename(self.log.with_name("log.1"))

    def copy_truncate(self) -> None:
        if not self.torn:
            self.shift()
            shutil.copy(self.log, self.log.with_name("log.1"))
            os.truncate(self.log, 0)


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[Writer]:
    writer = Writer(tmp_path)
    yield writer
    writer.close()


def read(follower: Follower) -> list[bytes]:
    return b"".join(follower.read_blocks()).splitlines(keepends=True)


def no_time(_: bytes) -> None:
    return None


def read_number(block: bytes) -> int | None:
    return int(block.split(b"\n")[0]) if block else None


def follow_new(source: Source, since: int | None = None) -> Follower:
    follower = Follower(source, ENDS)
    follower.start(since, no_time)
    return follower


def rename_and_reopen(writer: Writer) -> None:
    writer.rename()
    writer.open()


def rename_and_write_on(writer: Writer) -> None:
    writer.rename()
    writer.log.touch()
    writer.write(2)
    writer.open()


def rename_twice(writer: Writer) -> None:
    rename_and_reopen(writer)
    writer.write(2)
    rename_and_reopen(writer)


def rename_with_date(writer: Writer) -> None:
    writer.log.rename(writer.log.with_name("log-20261120"))
    writer.open()


def rename_to_old(writer: Writer) -> None:
    writer.log.rename(writer.log.with_name("log.old"))
    writer.open()


def copy_and_grow_longer(writer: Writer) -> None:
    writer.copy_truncate()
    writer.write(100)


def copy_twice(writer: Writer) -> None:
    writer.copy_truncate()
    writer.write(3)
    writer.copy_truncate()


def replace_by_smaller(writer: Writer) -> None:
    new = writer.log.with_name("new")
    new.touch()
    new.rename(writer.log)
    writer.open()


def replace_by_copy(writer: Writer) -> None:
    new = writer.log.with_name("new")
    shutil.copy(writer.log, new)
    new.rename(writer.log)
    writer.open()


def delete(writer: Writer) -> None:
    writer.log.unlink()
    writer.open()


def rename_half_written(writer: Writer) -> None:
    writer.write_half()
    writer.rename()
    writer.log.touch()
    writer.write()
    writer.open()


@pytest.mark.parametrize("look_between", [True, False], ids=["look-between", "look-after"])
@pytest.mark.parametrize(
    "rotate",
    [
        rename_and_reopen,
        rename_and_write_on,
        rename_twice,
        rename_with_date,
        rename_to_old,
        rename_half_written,
        Writer.copy_truncate,
        copy_and_grow_longer,
        copy_twice,
        replace_by_smaller,
        replace_by_copy,
        delete,
    ],
)
def test_no_rotation_loses_or_doubles_a_line(
    writer: Writer, rotate: Callable[[Writer], None], look_between: bool
) -> None:
    follower = follow_new(RotatedFile(writer.log))
    seen = []
    for _ in range(4):
        writer.write(5)
        seen += read(follower)
        writer.write(2)
        seen += read(follower) if look_between else []
        rotate(writer)
        seen += read(follower) if look_between else []
        writer.write(3)
    seen += read(follower)
    assert seen == writer.written


@settings(max_examples=100)
@given(st.lists(st.sampled_from("wwhLLRCDX"), max_size=30))
@example(list("wLRwCwRwCL"))
@example(list("wLwCwCwRwL"))
@example(list("RDDDDDDDD"))
def test_no_mixture_of_rotations_loses_or_doubles_a_line(steps: list[str]) -> None:
    with TemporaryDirectory() as folder:
        writer = Writer(Path(folder))
        follower = follow_new(RotatedFile(writer.log))
        seen: list[bytes] = []
        actions: dict[str, Callable[[], None]] = {
            "w": lambda: writer.write(3),
            "h": writer.write_half,
            "R": lambda: rename_and_write_on(writer),
            "C": writer.copy_truncate,
            "D": lambda: replace_by_copy(writer) if not writer.torn else None,
            "X": lambda: replace_by_smaller(writer) if not writer.torn else None,
            "L": lambda: seen.extend(read(follower)),
        }
        for step in steps:
            if step in "CDX":
                # Only what was read once can be told from what replaced it: see Follower._find_copies.
                writer.write()
                seen += read(follower)
            actions[step]()
        writer.write()
        assert seen + read(follower) == writer.written
        writer.close()


def test_a_log_cut_at_every_byte_gives_the_same_records(tmp_path: Path) -> None:
    text = b"one\ntwo two\n\nthree\n" + b"x" * 70 + b"\nlast\n"
    log = tmp_path / "log"
    for cut in range(len(text) + 1):
        log.write_bytes(text[:cut])
        follower = follow_new(RotatedFile(log), since=0)
        first = b"".join(follower.read_blocks())
        with log.open("ab") as file:
            file.write(text[cut:])
        assert first + b"".join(follower.read_blocks()) == text
        assert first == text[: text.rfind(b"\n", 0, cut) + 1]


@given(st.lists(st.binary(max_size=12), max_size=12), st.sampled_from([(b"\n",), (b"\n...\n",), (b"\n}\n", b"</c>\n")]))
def test_any_bytes_in_any_pieces_come_out_as_they_went_in(pieces: list[bytes], ends: tuple[bytes, ...]) -> None:
    with TemporaryDirectory() as folder:
        log = Path(folder, "log")
        log.touch()
        follower = Follower(RotatedFile(log), ends)
        follower.start(0, no_time)
        seen = b""
        for piece in [*pieces, ends[0]]:
            with log.open("ab") as file:
                file.write(piece.replace(b"\0", b" "))
            seen += b"".join(follower.read_blocks())
        assert seen == b"".join(pieces).replace(b"\0", b" ") + ends[0]


def test_without_a_start_time_only_what_is_appended_comes(writer: Writer) -> None:
    writer.write(3)
    rename_and_reopen(writer)
    writer.write(3)
    writer.write_half()
    follower = follow_new(RotatedFile(writer.log))
    assert read(follower) == []
    writer.write(2)
    assert read(follower) == writer.written[6:]


def test_a_deleted_log_does_not_bring_back_its_rotated_parts(writer: Writer) -> None:
    for _ in range(3):
        writer.write(3)
        rename_and_reopen(writer)
    follower = follow_new(RotatedFile(writer.log))
    writer.log.unlink()
    assert read(follower) == []
    writer.open()
    writer.write()
    assert read(follower) == writer.written[-1:]


def test_a_log_that_appears_late_is_read_from_its_start(tmp_path: Path) -> None:
    folder = tmp_path / "later"
    follower = follow_new(RotatedFile(folder / "log"))
    assert read(follower) == []
    folder.mkdir()
    assert read(follower) == []
    (folder / "log").write_bytes(b"1\n2\n")
    assert read(follower) == [b"1\n", b"2\n"]


def test_a_deleted_parts_inode_is_not_mistaken_for_something_read(writer: Writer) -> None:
    follower = follow_new(RotatedFile(writer.log))
    seen = []
    for _ in range(20):
        # File systems like to give the number of the file deleted last to the next new one.
        writer.write()
        seen += read(follower)
        writer.log.unlink()
        writer.open()
    assert seen == writer.written


def test_a_day_is_left_for_the_next_one_but_not_forgotten(tmp_path: Path) -> None:
    follower = follow_new(DatedFiles(tmp_path))
    yesterday, today = (tmp_path / name for name in ("20201120", "20201121"))
    yesterday.write_bytes(b"1\n")
    assert read(follower) == [b"1\n"]
    yesterday.write_bytes(b"1\n2\n")
    today.write_bytes(b"3\n")
    assert read(follower) == [b"2\n", b"3\n"]
    with yesterday.open("ab") as file:
        file.write(b"late\n")
    assert read(follower) == [b"late\n"]


def test_files_of_a_folder_that_are_no_days_or_lie_in_the_future_are_no_part_of_the_log(tmp_path: Path) -> None:
    tomorrow = time.strftime("%Y%m%d", time.localtime(time.time() + 86400))
    for name in ("20201120", "20201120.gz", "notes", "99990101", tomorrow, "20201119"):
        (tmp_path / name).touch()
    assert [path.name for path in DatedFiles(tmp_path).newest_first()] == [tomorrow, "20201120", "20201119"]


def test_rotated_parts_come_in_the_order_of_their_age(tmp_path: Path) -> None:
    for name in ("log", "log.10", "log.2", "log.1", "log.old", "log.1.gz", "logs", "log-20261119", "log-20261120"):
        (tmp_path / name).touch()
    names = [path.name for path in RotatedFile(tmp_path / "log").newest_first()]
    assert names == ["log", "log.old", "log.1", "log.2", "log.10", "log-20261120", "log-20261119"]


def test_a_record_that_is_too_long_is_skipped_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "BLOCK", 100)
    log = tmp_path / "log"
    log.write_bytes(b"before\n" + b"x" * 1000 + b"\nafter\n" + b"y" * 99 + b"\n")
    follower = follow_new(RotatedFile(log), since=0)
    assert read(follower) == [b"before\n", b"after\n", b"y" * 99 + b"\n"]
    assert follower.skipped == 1


def test_a_record_end_across_the_edge_of_a_block_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "BLOCK", 100)
    log = tmp_path / "log"
    for length in range(90, 110):
        log.write_bytes(b"x" * length + b"\n...\nafter\n...\n")
        follower = Follower(RotatedFile(log), (b"\n...\n",))
        follower.start(0, no_time)
        assert b"".join(follower.read_blocks()).endswith(b"after\n...\n")
        assert follower.skipped == (length + 5 > 100)


def test_zeros_that_a_truncation_left_hide_no_line(writer: Writer) -> None:
    follower = follow_new(RotatedFile(writer.log))
    writer.write(50)
    seen = read(follower)
    with writer.log.open("r+b") as file:
        file.truncate(0)
        file.truncate(10_000)
    assert read(follower) == []
    writer.write(2)
    assert seen + read(follower) == writer.written


def test_a_file_that_may_not_be_read_yet_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "log"
    follower = follow_new(RotatedFile(log))
    log.write_bytes(b"1\n")
    with monkeypatch.context() as patch:
        patch.setattr(follow, "LogFile", _refuse)
        assert read(follower) == []
        assert follower.unreadable == log
    assert read(follower) == [b"1\n"]
    assert follower.unreadable is None


def test_an_unreadable_log_is_an_error_at_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "log").touch()
    monkeypatch.setattr(follow, "LogFile", _refuse)
    with pytest.raises(PermissionError):
        follow_new(RotatedFile(tmp_path / "log"))


def _refuse(path: Path, ends: tuple[bytes, ...]) -> None:
    del ends
    raise PermissionError(13, "Permission denied", str(path))


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo], ids=["folder", "fifo"])
def test_what_is_no_regular_file_is_refused_at_once(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / "log")
    with pytest.raises(OSError, match="not a regular file"):
        follow_new(RotatedFile(tmp_path / "log"))


@pytest.mark.parametrize("since", [0, 9_000, 50_000, 99_999, 200_000])
def test_a_start_time_is_found_by_bisection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, since: int) -> None:
    monkeypatch.setattr(follow, "BLOCK", 1 << 12)
    monkeypatch.setattr(follow, "_PROBE", 1 << 8)
    log = tmp_path / "log"
    log.write_bytes(b"".join(b"%d\n" % number for number in range(100_000)))
    follower = Follower(RotatedFile(log), ENDS)
    follower.start(since, read_number)
    seen = [int(line) for line in read(follower)]
    assert seen == list(range(seen[0], 100_000))
    assert min(since, 100_000) - 3700 - 4096 < seen[0] <= max(0, since - 3700)


def test_a_start_time_begins_in_the_part_that_holds_it(tmp_path: Path) -> None:
    for day in range(1, 29):
        (tmp_path / f"202011{day:02}").write_bytes(b"%d\n" % (day * 86400))
    follower = Follower(DatedFiles(tmp_path), ENDS)
    follower.start(20 * 86400 + 4000, read_number)
    assert [int(line) for line in read(follower)] == [day * 86400 for day in range(20, 29)]


def test_a_log_without_order_is_read_from_its_oldest_part(writer: Writer) -> None:
    for _ in range(12):
        writer.write(2)
        rename_and_reopen(writer)
    assert read(follow_new(RotatedFile(writer.log), since=10**9)) == writer.written


def do_while_listing(monkeypatch: pytest.MonkeyPatch, name: str, action: Callable[[], None]) -> None:
    """Do it once, just before a file of that name is given to whoever lists the log's files."""
    plain = RotatedFile.newest_first
    pending = [action]

    def newest_first(source: RotatedFile) -> Iterator[Path]:
        for path in plain(source):
            if path.name == name and pending:
                pending.pop()()
            yield path

    monkeypatch.setattr(RotatedFile, "newest_first", newest_first)


def test_rotations_in_the_middle_of_looking_are_seen_whole(writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    follower = follow_new(RotatedFile(writer.log))
    writer.write(2)
    seen = read(follower)
    for _ in range(2):
        rename_and_reopen(writer)
        writer.write(2)
    do_while_listing(monkeypatch, "log.1", lambda: rename_twice(writer))
    assert seen + read(follower) == writer.written


def test_what_was_written_just_before_a_rotation_comes_before_what_follows(
    writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write_rotate_write() -> None:
        rename_and_write_on(writer)
        writer.write()

    follower = follow_new(RotatedFile(writer.log))
    writer.write()
    do_while_listing(monkeypatch, "log", write_rotate_write)
    assert read(follower) == writer.written


def test_only_a_few_files_stay_open(tmp_path: Path) -> None:
    for day in range(1, 29):
        (tmp_path / f"202011{day:02}").write_bytes(b"%d\n" % day)
    before = open_descriptors()
    follower = follow_new(DatedFiles(tmp_path), since=0)
    assert len(read(follower)) == 28
    assert len(open_descriptors() - before) <= 8
