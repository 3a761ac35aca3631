"""Files of grid jobs for the browser: opened without following a link, and sent in bounded parts."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from sandbox.files import open_regular

TAIL = 256 * 1024
"""Bytes of a text's end that are shown."""
_CHUNK = 256 * 1024


@dataclass(frozen=True)
class Tail:
    """The end of a file."""

    text: bytes
    size: int
    """Bytes of the whole file."""


def open_file(path: Path) -> BinaryIO | None:
    """A regular file in a folder of ours; None where there is none.

    Neither the file nor the folder that it lies in may be a link: local jobs can put links there.
    """
    try:
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return open_regular(Path(path.name), folder)
    except OSError:
        return None
    finally:
        os.close(folder)


def find_size(stream: BinaryIO) -> int:
    """The bytes of an open file."""
    return os.fstat(stream.fileno()).st_size


def read_tail(path: Path) -> Tail | None:
    """The last part of a file; None where there is no such file."""
    stream = open_file(path)
    if stream is None:
        return None
    with stream:
        size = find_size(stream)
        stream.seek(max(0, size - TAIL))
        return Tail(stream.read(TAIL), size)


def read_chunks(stream: BinaryIO, size: int) -> Iterator[bytes]:
    """So many bytes of a file, which is closed at the end."""
    with stream:
        while size > 0 and (chunk := stream.read(min(size, _CHUNK))):
            size -= len(chunk)
            yield chunk
