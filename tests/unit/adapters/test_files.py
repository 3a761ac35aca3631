"""What a request brings comes into the work area: whole, regular files, and no more than the site takes."""

import os
from pathlib import Path

import pytest

from adapters import Limits, TooLarge, UnusableFile, copy_files, open_input


def test_files_come_with_their_modes_into_folders_that_are_made(room: Path) -> None:
    for name, mode in (("a", 0o755), ("b", 0o400)):
        (room / name).write_text(name)
        (room / name).chmod(mode)
    copy_files([(room / "a", room / "area/deep/a"), (room / "b", room / "area/b")], Limits(max_input_size=2))
    assert ((room / "area/deep/a").read_text(), (room / "area/b").read_text()) == ("a", "b")
    assert [(room / "area" / name).stat().st_mode & 0o777 for name in ("deep/a", "b")] == [0o755, 0o400]


def test_nothing_is_copied_where_all_together_are_too_large(room: Path) -> None:
    for name in ("a", "b"):
        (room / name).write_text("xx")
    with pytest.raises(TooLarge, match=r"are too large: this site takes 3 bytes \(\[sandbox\] max_input_size\)"):
        copy_files([(room / "a", room / "area/a"), (room / "b", room / "area/b")], Limits(max_input_size=3))
    assert not (room / "area").exists()


def test_bytes_are_counted_of_a_file_that_says_it_has_none(room: Path) -> None:
    assert Path("/proc/self/mountinfo").stat().st_size == 0
    with pytest.raises(TooLarge):
        copy_files([(Path("/proc/self/mountinfo"), room / "copy")], Limits(max_input_size=1))
    assert (room / "copy").stat().st_size == 0


def test_what_is_no_regular_file_is_not_waited_for(room: Path) -> None:
    os.mkfifo(room / "pipe")
    for path in (room / "pipe", Path("/dev/null")):
        with pytest.raises(UnusableFile, match="is not a regular file"):
            copy_files([(path, room / "copy")], Limits())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may read the kernel's messages")
def test_a_file_whose_end_never_comes_is_refused(room: Path) -> None:
    try:
        os.close(os.open("/proc/kmsg", os.O_RDONLY | os.O_NONBLOCK))
    except OSError as error:
        pytest.skip(f"/proc/kmsg: {error.strerror}")
    with pytest.raises(UnusableFile, match="'/proc/kmsg' cannot be copied: it is a stream"):
        copy_files([(Path("/proc/kmsg"), room / "copy")], Limits())


def test_a_link_in_the_request_is_followed_and_one_in_the_work_area_is_not(room: Path) -> None:
    (room / "file").write_text("x")
    (room / "link").symlink_to("file")
    with open_input(room / "link") as stream:
        assert stream.read() == b"x"
    (room / "area").mkdir()
    (room / "area" / "copy").symlink_to(room / "precious")
    with pytest.raises(OSError, match="Too many levels"):
        copy_files([(room / "link", room / "area" / "copy")], Limits())
    assert not (room / "precious").exists()
