"""A tar that carries nothing of the machine it was made on, and what fills it."""

import hashlib
import os
import stat
import tarfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
# A named pipe put in a file's place must not make the open wait for its writer.
FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK

BLOCK = 1 << 20
"""Bytes of a file that are in memory at once, two or three times."""
_LARGEST = 8**11
"""A header has eleven octal digits for a size."""


def _render_header(name: str, kind: bytes, mode: int, size: int = 0, target: str = "") -> bytes:
    member = tarfile.TarInfo(name)
    member.type, member.mode, member.size, member.linkname = kind, mode, size, target
    return member.tobuf(tarfile.GNU_FORMAT, "utf-8")


class _Headers:
    """Headers of one kind as tarfile makes them: most are one that it has made, with another name, size and sum."""

    def __init__(self, kind: bytes, mode: int) -> None:
        self._kind, self._mode = kind, mode
        made = _render_header("", kind, mode)
        self._before, self._between, self._behind = made[100:124], made[135:148], made[154:]
        # In a sum there are blanks where the sum will be.
        self._sum = sum(self._before) + sum(self._between) + sum(b" " * 8) + sum(made[156:])

    def render(self, name: str, size: int) -> bytes:
        """The header of a member of that name and size."""
        raw = name.encode(errors="surrogateescape")
        if len(raw) > tarfile.LENGTH_NAME or size >= _LARGEST:
            return _render_header(name, self._kind, self._mode, size)
        digits = b"%011o" % size
        total = b"%06o" % (self._sum + sum(raw) + sum(digits))
        return b"".join((raw.ljust(100, b"\0"), self._before, digits, self._between, total, self._behind))


class Tar:
    """An uncompressed GNU tar as it grows; names are kept byte by byte, dates and owners are 0."""

    def __init__(self, write: Callable[[bytes], object]) -> None:
        self._write = write
        self._waiting: list[bytes] = []
        self._size = self._written = 0
        self._folders = _Headers(tarfile.DIRTYPE, 0o755)
        self._files = _Headers(tarfile.REGTYPE, 0o644)
        self._programs = _Headers(tarfile.REGTYPE, 0o755)

    def add_folder(self, name: str) -> None:
        """Add a folder, mode 0755."""
        self._put(self._folders.render(f"{name}/", 0))

    def add_link(self, name: str, target: str) -> None:
        """Add a symbolic link."""
        self._put(_render_header(name, tarfile.SYMTYPE, 0o777, target=target))

    def add_bytes(self, name: str, content: bytes, executable: bool = False) -> None:
        """Add a file whose content is at hand, mode 0755 or 0644."""
        header = (self._programs if executable else self._files).render(name, len(content))
        self._put(header, content, bytes(-len(content) % tarfile.BLOCKSIZE))

    def add_blocks(self, name: str, size: int, executable: bool, blocks: Iterable[bytes]) -> None:
        """Add a file of ``size`` bytes that come block by block."""
        self._put((self._programs if executable else self._files).render(name, size))
        for block in blocks:
            self._put(block)
        self._put(bytes(-size % tarfile.BLOCKSIZE))

    def add_file(self, name: str, descriptor: int, size: int, executable: bool = False) -> tuple[str, str]:
        """Add a file with the next bytes of an open one; their sha256 in hexadecimal, and what is wrong with them.

        There are as many as the header promises, whatever becomes of the file meanwhile: what is missing is zeros.
        """
        reader = _ExactReader(descriptor)
        if size <= BLOCK:
            content = reader.read(size)
            self.add_bytes(name, content, executable)
            return hashlib.sha256(content).hexdigest(), reader.fault
        digest = hashlib.sha256()
        self.add_blocks(name, size, executable, _hash_beside(digest.update, reader.read_blocks(size)))
        return digest.hexdigest(), reader.fault

    def end(self) -> None:
        """Write what ends a tar, in whole records as GNU tar does."""
        self._put(bytes(2 * tarfile.BLOCKSIZE))
        self._put(bytes(-self._size % tarfile.RECORDSIZE))
        self._flush()

    def _put(self, *parts: bytes) -> None:
        self._waiting += parts
        self._size += sum(map(len, parts))
        if self._size - self._written >= BLOCK:
            self._flush()

    def _flush(self) -> None:
        self._write(b"".join(self._waiting))
        self._waiting.clear()
        self._written = self._size


@contextmanager
def write_tar(write: Callable[[bytes], object]) -> Iterator[Tar]:
    """Give a tar whose bytes go to ``write``, and end it where the block ends well."""
    tar = Tar(write)
    yield tar
    tar.end()


def is_executable(status: os.stat_result) -> bool:
    """True where anybody may execute the file."""
    return bool(status.st_mode & (stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH))


def _hash_beside(update: Callable[[bytes], None], blocks: Iterable[bytes]) -> Iterator[bytes]:
    """Pass blocks on; each is hashed, which takes longest, while it is written and the next one is read."""
    hashing: Future[None] | None = None
    with ThreadPoolExecutor() as beside:
        for block in blocks:
            if hashing is not None:
                hashing.result()
            hashing = beside.submit(update, block)
            yield block


class _ExactReader:
    """Reads as many bytes as it is asked for; what is missing is made up with zeros, and ``fault`` says why."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.fault = ""

    def read(self, size: int) -> bytes:
        """The next ``size`` bytes, never fewer."""
        data = b""
        while len(data) < size and (chunk := self._read_some(size - len(data))):
            data += chunk
        return data.ljust(size, b"\0")

    def read_blocks(self, size: int) -> Iterator[bytes]:
        """The same block by block."""
        return (self.read(min(BLOCK, size - at)) for at in range(0, size, BLOCK))

    def _read_some(self, size: int) -> bytes:
        if self.fault:
            return b""
        try:
            chunk = os.read(self._descriptor, size)
        except OSError as error:
            self.fault = f"could not be read to its end ({error.strerror}): the rest is zeros"
            return b""
        if not chunk:
            self.fault = "shrank while it was read: the rest is zeros"
        return chunk
