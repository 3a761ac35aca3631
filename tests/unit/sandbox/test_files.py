"""Files where others can write as well."""

import os
import stat
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from sandbox.files import (
    SandboxError,
    atomic_write,
    check_replaceable,
    locked,
    open_own,
    open_regular,
    open_unlinked,
    read_regular,
    replace_file,
)
from tests.unit.traps import TRAPS
from tests.waiting import SECONDS


def test_a_file_is_replaced_whole_with_its_mode_whatever_the_umask(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("the one before")
    umask = os.umask(0o077)
    try:
        replace_file(file, b"new", 0o644)
    finally:
        os.umask(umask)
    assert (file.read_bytes(), stat.S_IMODE(file.stat().st_mode)) == (b"new", 0o644)
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("word", ["", "new"])
def test_a_trap_beside_the_file_is_not_written_into(tmp_path: Path, word: str) -> None:
    (tmp_path / "theirs").write_text("theirs")
    (tmp_path / f".file.{word or os.getpid()}").symlink_to("theirs")
    replace_file(tmp_path / "file", b"new", word=word)
    assert (tmp_path / "theirs").read_text() == "theirs"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "theirs"]


def test_where_it_cannot_be_replaced_the_one_before_stays_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file"
    file.write_text("the one before")

    def fail(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space left"):
        replace_file(file, b"new")
    assert file.read_text() == "the one before"
    assert list(tmp_path.iterdir()) == [file]


def test_threads_may_replace_one_file_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    both = Barrier(2)
    monkeypatch.setattr(os, "fsync", lambda _: both.wait(SECONDS))
    with ThreadPoolExecutor() as threads:
        written = [threads.submit(replace_file, tmp_path / "file", content) for content in (b"a", b"b")]
    assert [each.result() for each in written] == [None, None]
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_what_cannot_be_written_is_called_by_its_own_name(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    for parent, why in (("none", "No such file or directory"), ("file", "Not a directory")):
        file = tmp_path / parent / "x"
        with pytest.raises(OSError, match=why) as told:
            replace_file(file, b"")
        assert (told.value.filename, told.value.filename2) == (str(file), None)
        with pytest.raises(SandboxError) as refused, atomic_write(file):
            pass
        assert str(refused.value) == f"{file} could not be written: {why}"
    with pytest.raises(SandboxError) as refused, atomic_write(tmp_path / "folder"):
        pass
    assert str(refused.value) == f"{tmp_path / 'folder'} could not be written: Is a directory"


def test_what_a_program_puts_in_place_of_a_file_of_ours_is_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("theirs")
    for name in ("pipe", "link"):
        with atomic_write(tmp_path / name) as write:
            write(b"ours")
        assert (tmp_path / name).read_bytes() == b"ours"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "pipe"]


def test_only_a_regular_file_is_opened_and_nothing_is_waited_for(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("text")
    (tmp_path / "link").symlink_to("file")
    os.mkfifo(tmp_path / "fifo")
    with open_regular(tmp_path / "file") as stream:
        assert stream.read() == b"text"
    for name in ("link", "fifo", "nothing"):
        with pytest.raises(OSError, match=name):
            open_regular(tmp_path / name)
    with pytest.raises(OSError, match="no regular file"):
        open_regular(tmp_path)


def test_a_lock_is_one_holders_until_its_block_ends(tmp_path: Path) -> None:
    with locked(tmp_path / "lock") as mine:
        assert mine is not None
        with locked(tmp_path / "lock") as theirs:
            assert theirs is None
    with locked(tmp_path / "lock") as again:
        assert again is not None
    assert stat.S_IMODE((tmp_path / "lock").stat().st_mode) == 0o600


def test_no_file_of_ours_is_opened_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("theirs")
    with pytest.raises(OSError, match="link"):
        open_own(tmp_path / "link")
    with pytest.raises(OSError, match="link"), locked(tmp_path / "link"):
        pass
    os.close(open_own(tmp_path / "ours"))
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["link", "ours"]


def test_nothing_is_read_in_a_folder_that_is_a_link(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file").write_text("text")
    (tmp_path / "link").symlink_to("folder")
    with open_unlinked(tmp_path / "folder" / "file") as stream:
        assert stream.read() == b"text"
    with pytest.raises(OSError, match="link"):
        open_unlinked(tmp_path / "link" / "file")
    with pytest.raises(FileNotFoundError) as told:
        open_unlinked(tmp_path / "folder" / "nothing")
    assert told.value.filename == str(tmp_path / "folder" / "nothing")


@pytest.mark.parametrize("make", TRAPS)
def test_what_is_no_file_is_neither_opened_nor_waited_for(tmp_path: Path, make: Callable[[Path], object]) -> None:
    make(tmp_path / "file")
    why = r"symbolic links are not followed|no regular file|Is a directory"
    for read_or_write in (open_own, read_regular):
        with pytest.raises(OSError, match=why):
            read_or_write(tmp_path / "file")
    with pytest.raises(OSError, match=why), locked(tmp_path / "file"):
        pass


def test_a_file_of_another_account_is_not_written_into(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("log", "backup.tar.tmp"):
        (tmp_path / name).write_text("theirs")
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(OSError, match="no regular file of user"):
        open_own(tmp_path / "log")
    words = r"no regular file of user \d+: .*backup\.tar\.tmp"
    with pytest.raises(SandboxError, match=words), atomic_write(tmp_path / "backup.tar") as write:
        write(b"a secret")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == dict.fromkeys(
        ("log", "backup.tar.tmp"), "theirs"
    )
    # What we make is ours, whoever the file system says it belongs to.
    os.close(open_own(tmp_path / "new"))


@pytest.mark.parametrize("make", [Path.touch, *TRAPS])
def test_what_others_put_in_the_place_of_a_file_while_it_is_written_is_no_success(
    tmp_path: Path, make: Callable[[Path], object]
) -> None:
    def swap(temporary: Path) -> None:
        temporary.rename(tmp_path / "stolen")
        make(temporary)

    target = tmp_path / "backup.tar"
    with pytest.raises(SandboxError, match="somebody has put something else in its place"), atomic_write(target):
        swap(tmp_path / "backup.tar.tmp")


def test_a_file_that_has_another_name_is_not_cut(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("precious")
    os.link(tmp_path / "precious", tmp_path / "backup.tar.tmp")
    with pytest.raises(SandboxError), atomic_write(tmp_path / "backup.tar") as write:
        write(b"new")
    assert (tmp_path / "precious").read_text() == "precious"


@pytest.mark.parametrize("make", TRAPS)
def test_only_a_file_may_be_replaced(tmp_path: Path, make: Callable[[Path], object]) -> None:
    check_replaceable(tmp_path / "nothing")
    (tmp_path / "file").touch()
    check_replaceable(tmp_path / "file")
    make(tmp_path / "trap")
    with pytest.raises(OSError, match="is there, and is no regular file"):
        check_replaceable(tmp_path / "trap")
