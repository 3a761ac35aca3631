"""Tar members that carry nothing of the machine they were made on, and the reader that fills them."""

import hashlib
import io
import os
import stat
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager

from sandbox.files import Sink

FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
# A named pipe put in a file's place must not make the open wait for its writer.
FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK


def folder_member(name: str) -> tarfile.TarInfo:
    """A folder, mode 0755."""
    member = tarfile.TarInfo(name)
    member.type = tarfile.DIRTYPE
    member.mode = 0o755
    return member


def file_member(name: str, size: int, executable: bool) -> tarfile.TarInfo:
    """A file of ``size`` bytes, mode 0755 or 0644."""
    member = tarfile.TarInfo(name)
    member.size = size
    member.mode = 0o755 if executable else 0o644
    return member


def link_member(name: str, target: str) -> tarfile.TarInfo:
    """A symbolic link."""
    member = tarfile.TarInfo(name)
    member.type = tarfile.SYMTYPE
    member.mode = 0o777
    member.linkname = target
    return member


@contextmanager
def write_tar(sink: Sink) -> Iterator[tarfile.TarFile]:
    """Give an uncompressed GNU tar that goes to ``sink``; names are kept byte by byte, dates and owners are 0."""
    with tarfile.open(
        fileobj=sink,
        mode="w|",
        format=tarfile.GNU_FORMAT,
        encoding="utf-8",
        errors="surrogateescape",
        bufsize=1 << 16,
    ) as tar:
        yield tar


def add_bytes(tar: tarfile.TarFile, name: str, content: bytes, executable: bool = False) -> None:
    """Add a file whose content is at hand."""
    tar.addfile(file_member(name, len(content), executable), io.BytesIO(content))


def is_executable(status: os.stat_result) -> bool:
    """True where anybody may execute the file."""
    return bool(status.st_mode & (stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH))


class ExactReader:
    """Reads as many bytes as a member's header promised, whatever becomes of the file meanwhile, and hashes them.

    What is missing at the end is made up with zeros, and ``fault`` says why.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._digest = hashlib.sha256()
        self.fault = ""

    def read(self, size: int = 1 << 14, /) -> bytes:
        """The next ``size`` bytes, never fewer."""
        data = b""
        while len(data) < size and (chunk := self._next_chunk(size - len(data))):
            data += chunk
        data += bytes(size - len(data))
        self._digest.update(data)
        return data

    @property
    def sha256(self) -> str:
        """The sha256 of everything read so far, in hexadecimal."""
        return self._digest.hexdigest()

    def _next_chunk(self, size: int) -> bytes:
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
