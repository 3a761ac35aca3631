"""Tars as they are written: byte by byte as tarfile writes them."""

import hashlib
import io
import os
import tarfile
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox import pack
from sandbox.pack import BLOCK, Tar, write_tar

NAMES = st.binary(min_size=1, max_size=150).map(lambda name: os.fsdecode(name.translate(None, b"\0/") or b"n"))


def make(fill: Callable[[Tar], object]) -> bytes:
    """The bytes of a tar."""
    written: list[bytes] = []
    with write_tar(written.append) as tar:
        fill(tar)
    return b"".join(written)


def make_by_tarfile(*entries: tuple[tarfile.TarInfo, bytes]) -> bytes:
    written = io.BytesIO()
    with tarfile.open(
        fileobj=written, mode="w", format=tarfile.GNU_FORMAT, encoding="utf-8", errors="surrogateescape"
    ) as tar:
        for member, content in entries:
            tar.addfile(member, io.BytesIO(content))
    return written.getvalue()


def member(name: str, kind: bytes, mode: int, size: int = 0, target: str = "") -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.mode, made.size, made.linkname = kind, mode, size, target
    return made


@given(st.lists(st.tuples(NAMES, st.booleans(), st.binary(max_size=2000)), max_size=5), NAMES, NAMES)
def test_every_member_is_as_tarfile_writes_it(files: list[tuple[str, bool, bytes]], folder: str, target: str) -> None:
    def fill(tar: Tar) -> None:
        tar.add_folder(folder)
        for name, executable, content in files:
            tar.add_bytes(name, content, executable)
        tar.add_link(folder, target)

    programs = [
        (member(name, tarfile.REGTYPE, 0o755 if executable else 0o644, len(content)), content)
        for name, executable, content in files
    ]
    assert make(fill) == make_by_tarfile(
        (member(folder, tarfile.DIRTYPE, 0o755), b""),
        *programs,
        (member(folder, tarfile.SYMTYPE, 0o777, target=target), b""),
    )


@pytest.mark.parametrize("size", [8**11 - 1, 8**11], ids=["digits", "more than digits"])
def test_a_size_that_no_digits_can_tell_is_told_as_tarfile_does(size: int) -> None:
    written: list[bytes] = []
    tar = Tar(written.append)
    tar.add_blocks("large", size, False, [bytes(BLOCK)])
    header = member("large", tarfile.REGTYPE, 0o644, size).tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")
    assert b"".join(written)[: len(header)] == header


@pytest.mark.parametrize("size", [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 3 * BLOCK + 511])
def test_a_file_of_any_size_is_copied_and_summed(room: Path, size: int) -> None:
    content = os.urandom(size)
    (room / "file").write_bytes(content + b"not wanted")
    with open(room / "file", "rb", buffering=0) as file:
        told: list[tuple[str, str]] = []

        def fill(tar: Tar) -> None:
            told.append(tar.add_file("file", file.fileno(), size, executable=True))
            tar.add_bytes("next", b"")

        tar = make(fill)
    after = member("next", tarfile.REGTYPE, 0o644), b""
    assert tar == make_by_tarfile((member("file", tarfile.REGTYPE, 0o755, size), content), after)
    assert told == [(hashlib.sha256(content).hexdigest(), "")]


def test_a_disk_that_gives_little_at_a_time_gives_no_more_than_was_promised(
    room: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.read
    monkeypatch.setattr(os, "read", lambda descriptor, size: real(descriptor, min(size, 700)))
    (room / "file").write_bytes(b"e" * 2000)
    with open(room / "file", "rb", buffering=0) as file:
        tar = make(lambda tar: tar.add_file("file", file.fileno(), 1000))
    assert tar == make_by_tarfile((member("file", tarfile.REGTYPE, 0o644, 1000), b"e" * 1000))


def test_what_cannot_be_read_is_zeros(room: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(descriptor: int, size: int) -> bytes:
        raise OSError(5, "Input/output error")

    told: list[tuple[str, str]] = []
    monkeypatch.setattr(os, "read", fail)
    tar = make(lambda tar: told.append(tar.add_file("file", 0, 1000)))
    assert tar == make_by_tarfile((member("file", tarfile.REGTYPE, 0o644, 1000), bytes(1000)))
    words = "could not be read to its end (Input/output error): the rest is zeros"
    assert told == [(hashlib.sha256(bytes(1000)).hexdigest(), words)]


def test_of_a_large_file_few_blocks_are_in_memory_and_no_thread_stays(room: Path) -> None:
    threads = threading.enumerate()
    with open(room / "file", "wb") as sparse:
        sparse.truncate(20 * BLOCK)
    sizes = []
    with open(room / "file", "rb", buffering=0) as file:
        Tar(lambda data: sizes.append(len(data))).add_file("file", file.fileno(), 20 * BLOCK)
    assert max(sizes) <= BLOCK + tarfile.BLOCKSIZE
    assert sum(sizes) >= 20 * BLOCK
    # Of tests before us there may be some, which end in their own time.
    assert not set(threading.enumerate()).difference(threads)


def test_a_file_of_one_block_needs_no_thread(room: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pack, "ThreadPoolExecutor", None)
    (room / "file").write_bytes(bytes(BLOCK))
    with open(room / "file", "rb", buffering=0) as file:
        assert make(lambda tar: tar.add_file("file", file.fileno(), BLOCK))


def test_a_disk_that_is_full_within_a_large_file_is_an_error_and_no_thread_stays(room: Path) -> None:
    threads = threading.enumerate()

    def refuse(data: bytes) -> None:
        raise OSError(28, "No space left on device")

    (room / "file").write_bytes(bytes(3 * BLOCK))
    with open(room / "file", "rb", buffering=0) as file, pytest.raises(OSError, match="No space left"):
        Tar(refuse).add_file("file", file.fileno(), 3 * BLOCK)
    # Of tests before us there may be some, which end in their own time.
    assert not set(threading.enumerate()).difference(threads)


def test_a_large_file_that_shrinks_is_made_up_with_zeros(room: Path) -> None:
    (room / "file").write_bytes(b"e" * (2 * BLOCK))
    told: list[tuple[str, str]] = []
    with open(room / "file", "rb", buffering=0) as file:
        tar = make(lambda tar: told.append(tar.add_file("file", file.fileno(), 4 * BLOCK)))
    content = b"e" * (2 * BLOCK) + bytes(2 * BLOCK)
    assert tar == make_by_tarfile((member("file", tarfile.REGTYPE, 0o644, 4 * BLOCK), content))
    assert told == [(hashlib.sha256(content).hexdigest(), "shrank while it was read: the rest is zeros")]


def test_what_is_small_is_written_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pack, "BLOCK", 4096)
    sizes: list[int] = []
    with write_tar(lambda data: sizes.append(len(data))) as tar:
        for number in range(9):
            tar.add_bytes(str(number), b"content")
    assert sizes == [4096, 4096, tarfile.RECORDSIZE - 8192]
