"""One open file of a log: its whole records from a place on, whatever happens to its name or its contents."""

import errno
import os
import stat
import weakref
from pathlib import Path

BLOCK = 1 << 20
"""Bytes read at once; also the longest record: a longer one is skipped and counted."""

_MARK = 64

Identity = tuple[int, int]
"""Device and inode: what a file is, under any name, as long as somebody holds it open."""


def read_identity(path: Path) -> Identity | None:
    """Which file the path leads to just now; None where there is none."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


class LogFile:
    """A file of the log and how far it has been read, always to the end of a whole record.

    The bytes just before that place are the mark: where they have changed, the file was truncated or written anew,
    even if it has grown beyond the place since. What follows the last whole record stays in the file and is read
    again when there is more, so nothing half-written is ever kept in memory.
    """

    def __init__(self, path: Path, record_ends: tuple[bytes, ...]) -> None:
        """Open the file at its start.

        :raises OSError: it cannot be read, or is no regular file.
        """
        # O_NONBLOCK: a FIFO in the log's place must not block us for ever.
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
        self.close = weakref.finalize(self, os.close, self._fd)
        """Let go of the file; at the latest, its last user does."""
        found = os.fstat(self._fd)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        self.identity: Identity = (found.st_dev, found.st_ino)
        self.offset = 0
        self.rewritten = False
        self.skipped = 0
        self._ends = record_ends
        self._mark = b""
        self._skipping = False

    @property
    def size(self) -> int:
        """The file's length in bytes just now."""
        return os.fstat(self._fd).st_size

    @property
    def is_deleted(self) -> bool:
        """True where no name leads to the file any more."""
        return os.fstat(self._fd).st_nlink == 0

    def read_block(self) -> bytes | None:
        """The next whole records; ``b""`` where only garbage was passed over; None where there is no whole record yet.

        None also where the file was written anew: then ``rewritten`` is set, and only ``restart`` goes on.
        """
        wanted = min(max(self.size - self.offset, 0), BLOCK)
        data = os.pread(self._fd, wanted, self.offset)
        # Behind the records, so that the mark vouches for them.
        if os.pread(self._fd, len(self._mark), self.offset - len(self._mark)) != self._mark:
            self.rewritten = True
            return None
        return self._take(data)

    def _take(self, data: bytes) -> bytes | None:
        if data.startswith(b"\0"):
            return self._pass_hole(data)
        start = 0
        if self._skipping:
            start = self._find_first_end(data)
            if not start:
                return self._pass_over(data)
            self._skipping = False
        end = self._find_last_end(data)
        if end > start:
            self._advance(data, end)
            return data[start:end]
        if start:
            self._advance(data, start)
            return b""
        if len(data) < BLOCK:
            return None
        self.skipped += 1
        self._skipping = True
        return self._pass_over(data)

    def _pass_hole(self, data: bytes) -> bytes | None:
        # A writer that does not append leaves zeros in front of its next record when its file is truncated; zeros at
        # the very end may be a network file system that does not show the data yet.
        zeros = len(data) - len(data.lstrip(b"\0"))
        if zeros == len(data) < BLOCK:
            return None
        self._advance(data, zeros)
        return b""

    def _pass_over(self, data: bytes) -> bytes | None:
        # A record end may lie across the edge of what was read.
        passed = len(data) - max(map(len, self._ends)) + 1
        if passed <= 0:
            return None
        self._advance(data, passed)
        return b""

    def _advance(self, data: bytes, length: int) -> None:
        self._mark = (self._mark + data[max(0, length - _MARK) : length])[-_MARK:]
        self.offset += length

    def _find_first_end(self, data: bytes) -> int:
        return min((at + len(end) for end in self._ends if (at := data.find(end)) >= 0), default=0)

    def _find_last_end(self, data: bytes) -> int:
        return max((at + len(end) for end in self._ends if (at := data.rfind(end)) >= 0), default=0)

    def restart(self) -> None:
        """Go back to the file's start."""
        self.rewritten = False
        self._skipping = False
        self.move_to(0)

    def move_to(self, offset: int) -> None:
        """Go to a place where a record begins."""
        self.offset = offset
        self._mark = os.pread(self._fd, min(_MARK, offset), offset - min(_MARK, offset))

    def move_to_end(self) -> None:
        """Go behind the last whole record."""
        size = self.size
        begin = max(0, size - BLOCK)
        end = self._find_last_end(os.pread(self._fd, size - begin, begin))
        self._skipping = end == 0 and begin > 0
        self.move_to(size if self._skipping else begin + end)

    def take_place_of(self, other: "LogFile") -> bool:
        """Go to where the other one is, if this file has the same bytes there: it is a copy of it."""
        mark = os.pread(self._fd, len(other._mark), other.offset - len(other._mark))
        if not mark or mark != other._mark:
            return False
        self.offset, self._mark, self._skipping = other.offset, other._mark, other._skipping
        return True

    def read_records_at(self, offset: int, length: int) -> tuple[int, bytes]:
        """Where the first record behind the offset begins, and the whole records of that stretch of the file."""
        data = os.pread(self._fd, length, offset)
        start = self._find_first_end(data) if offset else 0
        return offset + start, data[start : max(start, self._find_last_end(data))]
