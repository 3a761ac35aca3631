"""Follows a log through its files: reads each complete record once, in order, even while files are rotated.

A log is one file with its rotated predecessors, or a folder with one file per day.
"""

import errno
import itertools
import os
import re
import stat
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Protocol

BLOCK = 1 << 20
"""Bytes read at once; also the longest record: a longer one is skipped and counted."""

_MARK = 64

Identity = tuple[int, int]
"""Device and inode: they identify a file under any name, as long as it is kept open."""


class LogFile:
    """A file of the log and the offset up to which it has been read, always the end of a complete record.

    The bytes just before that offset are the mark: if they have changed, the file was truncated or overwritten, even if
    it has grown beyond the offset since. An incomplete record at the end is read again when there is more, so none is
    kept in memory.
    """

    def __init__(self, path: Path, record_ends: tuple[bytes, ...]) -> None:
        """Open the file at its start.

        :raises OSError: it cannot be read, or is no regular file.
        """
        # O_NONBLOCK: a FIFO in the log's place must not block us forever.
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
        self.close = weakref.finalize(self, os.close, self._fd)
        """Closes the file; at the latest, garbage collection does."""
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
        """The current length of the file in bytes."""
        return os.fstat(self._fd).st_size

    @property
    def is_deleted(self) -> bool:
        """True if the file has no name any more."""
        return os.fstat(self._fd).st_nlink == 0

    def read_block(self) -> bytes | None:
        """The next complete records; ``b""`` if only garbage was skipped; None if there is no complete record yet.

        None also if the file was overwritten: then ``rewritten`` is set, and reading continues only after ``restart``.
        """
        wanted = min(max(self.size - self.offset, 0), BLOCK)
        data = os.pread(self._fd, wanted, self.offset)
        # Checked after reading the records, so that an unchanged mark proves them valid.
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
        """Go to an offset at which a record begins."""
        self.offset = offset
        self._mark = os.pread(self._fd, min(_MARK, offset), offset - min(_MARK, offset))

    def move_to_end(self) -> None:
        """Go to the end of the last complete record."""
        size = self.size
        begin = max(0, size - BLOCK)
        end = self._find_last_end(os.pread(self._fd, size - begin, begin))
        self._skipping = end == 0 and begin > 0
        self.move_to(size if self._skipping else begin + end)

    def take_place_of(self, other: "LogFile") -> bool:
        """Go to the offset of the other file if this one is a copy of it: it has the same bytes there."""
        mark = os.pread(self._fd, len(other._mark), other.offset - len(other._mark))
        if not mark or mark != other._mark:
            return False
        self.offset, self._mark, self._skipping = other.offset, other._mark, other._skipping
        return True

    def read_records_at(self, offset: int, length: int) -> tuple[int, bytes]:
        """The offset of the first record that begins in a section of the file, and its complete records."""
        data = os.pread(self._fd, length, offset)
        start = self._find_first_end(data) if offset else 0
        return offset + start, data[start : max(start, self._find_last_end(data))]


_DAY = 86_400


class Source(Protocol):
    """The files of one log."""

    @property
    def folders(self) -> tuple[Path, ...]:
        """The folders in which its files appear, change and go."""

    def newest_first(self) -> Iterator[Path]:
        """The log's files, beginning with the one being written; some may be gone before they are opened."""


class RotatedFile:
    """A log with a fixed name; rotated, older parts are in the same folder.

    Their names are NAME.old, NAME.1 (newest) … NAME.N, or NAME-YYYYMMDD. Compressed parts are not read.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._rotated = re.compile(re.escape(path.name) + r"(?:\.old|\.(\d{1,6})|-(\d{8}(?:\d\d)?))")

    @property
    def folders(self) -> tuple[Path, ...]:
        """The log's folder and, if the log is a symbolic link, the folder of the file itself."""
        return tuple({self._path.parent, self._path.resolve().parent})

    def newest_first(self) -> Iterator[Path]:
        """The log, then its rotated parts."""
        yield self._path
        names = (path.name for path in _list_folder(self._path.parent))
        ages = sorted((self._age(match), match[0]) for match in map(self._rotated.fullmatch, names) if match)
        yield from (self._path.with_name(name) for _, name in ages)

    @staticmethod
    def _age(match: re.Match[str]) -> tuple[int, int]:
        number, date = match.groups()
        return (0, int(number)) if number else (1, -int(date)) if date else (0, -1)


class DatedFiles:
    """A folder with one file named YYYYMMDD for each day on which something was logged."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def folders(self) -> tuple[Path, ...]:
        """The folder."""
        return (self._folder,)

    def newest_first(self) -> Iterator[Path]:
        """The days' files, the last day first."""
        # A file of the far future (the clock was wrong for a moment) must not hide those of the next days.
        tomorrow = time.strftime("%Y%m%d", time.localtime(time.time() + _DAY))
        paths = _list_folder(self._folder)
        dated = (path for path in paths if re.fullmatch("[0-9]{8}", path.name) and path.name <= tomorrow)
        yield from sorted(dated, reverse=True)


def _list_folder(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except FileNotFoundError:
        return []


# Most files kept open, the current one and those before it: their writers may still append to them, and the inode of
# an open file is not reused, so that a new file is never mistaken for one that has been read.
_HELD = 8
# Most files searched for a start time: all are open for a moment, so that no rotation can change their names.
_REACH = 500
# Records may be out of order by so many seconds: clocks repeat an hour, and there may be several writers.
_DISORDER = 3700
_PROBE = 1 << 16

ReadTime = Callable[[bytes], int | None]


class Follower:
    """A position in a log, up to which it has been read; keeps a few files open."""

    def __init__(self, source: Source, record_ends: tuple[bytes, ...]) -> None:
        self._source = source
        self._ends = record_ends
        self._held: list[LogFile] = []
        self._skipped_before = 0
        self.unreadable: Path | None = None

    @property
    def skipped(self) -> int:
        """The number of records that were too long to be read."""
        return self._skipped_before + sum(file.skipped for file in self._held)

    def start(self, since: int | None, read_time: ReadTime) -> bytes:
        """Go to the first records of that time (None: to the end), and return the last records before them.

        :raises OSError: the log cannot be read.
        """
        files = self._open_newest(_HELD if since is None else _REACH)
        begin = 0 if since is None else _find_first_file(files, read_time, since - _DISORDER)
        for file in files[:begin] + files[begin + _HELD :]:
            file.close()
        self._held = files[begin : begin + _HELD][::-1]
        for file in self._held:
            file.move_to_end()
        if not self._held:
            return b""
        current = self._held[-1]
        if since is not None:
            current.move_to(_find_offset(current, read_time, since - _DISORDER))
        begin = max(0, current.offset - BLOCK)
        return current.read_records_at(begin, current.offset - begin)[1]

    def read_blocks(self, look_for_files: bool = True) -> Iterator[bytes]:
        """All complete records that are there now, in blocks of at most 1 MiB.

        :raises OSError: the log cannot be read.
        """
        while True:
            for file in tuple(self._held):
                yield from self._drain(file)
            # Only now: a file must be read to its end after its successor has appeared.
            if not (look_for_files and self._open_next()):
                return

    def _drain(self, file: LogFile) -> Iterator[bytes]:
        while True:
            while (block := file.read_block()) is not None:
                if block:
                    yield block
            if not file.rewritten:
                return
            for copy in self._find_copies(file):
                self._held.insert(self._held.index(file), copy)
                yield from self._drain(copy)
            file.restart()

    def _find_copies(self, file: LogFile) -> list[LogFile]:
        """The copies that were made before the file was truncated, oldest first, at the offset already read.

        A file that was truncated before any of it was read cannot be distinguished from one that was always empty.
        """
        copies: list[LogFile] = []
        for path in self._list_older(file):
            try:
                copy = LogFile(path, self._ends)
            except (FileNotFoundError, PermissionError):
                continue
            copies.insert(0, copy)
            if copy.take_place_of(file):
                return copies
        for copy in copies:
            copy.close()
        return []

    def _list_older(self, file: LogFile) -> list[Path]:
        older: list[Path] = []
        for path, identity in self._list_files():
            if identity == file.identity:
                older.clear()
            elif not self._holds(identity):
                older.append(path)
        return older[:_HELD]

    def _open_newest(self, most: int) -> list[LogFile]:
        while True:
            listed = self._list_stable()[:most]
            files = self._open_readable(listed)
            if self._list_stable()[:most] == listed:
                return files
            for file in files:
                file.close()

    def _open_readable(self, listed: list[tuple[Path, Identity]]) -> list[LogFile]:
        files: list[LogFile] = []
        for path, _ in listed:
            try:
                files.append(LogFile(path, self._ends))
            except FileNotFoundError:
                break
            except PermissionError:
                # We may lack the permission to read older parts: then the log begins here.
                if not files:
                    raise
                break
        return files

    def _open_next(self) -> bool:
        """Open the oldest file that is newer than all we hold; True if there may be another."""
        self.unreadable = None
        for path, identity in reversed(self._list_stable()):
            try:
                file = LogFile(path, self._ends)
            except FileNotFoundError:
                return True
            except PermissionError:
                # Its mode may change soon; if not, newer files must be read all the same.
                self.unreadable = path
                continue
            if file.identity == identity:
                # If the file that we read was replaced by a copy, continue there at the same offset.
                if self._held:
                    file.take_place_of(self._held[-1])
                self._hold(file)
            else:
                file.close()
            return True
        return False

    def _hold(self, file: LogFile) -> None:
        self._held.append(file)
        while len(self._held) > _HELD:
            # Prefer to close deleted files: those with a name show how far back the log has been read.
            leaving = next((file for file in self._held[:-1] if file.is_deleted), self._held[0])
            self._held.remove(leaving)
            self._skipped_before += leaving.skipped
            leaving.close()

    def _list_stable(self) -> list[tuple[Path, Identity]]:
        # A rotation renames one file after the other: only two equal listings in succession are consistent.
        listed = self._list_unknown()
        while (again := self._list_unknown()) != listed:
            listed = again
        return listed

    def _list_unknown(self) -> list[tuple[Path, Identity]]:
        """The files newer than any that we hold, newest first."""
        return list(itertools.takewhile(lambda listed: not self._holds(listed[1]), self._list_files()))

    def _list_files(self) -> Iterator[tuple[Path, Identity]]:
        for path in self._source.newest_first():
            with suppress(FileNotFoundError):
                found = path.stat()
                yield path, (found.st_dev, found.st_ino)

    def _holds(self, identity: Identity) -> bool:
        return any(file.identity == identity for file in self._held)


def _find_first_file(files: list[LogFile], read_time: ReadTime, time: int) -> int:
    """The index of the file (newest first) to begin with: the first that begins before the time, or the oldest."""
    for index, file in enumerate(files):
        first = read_time(file.read_records_at(0, _PROBE)[1])
        if first is not None and first < time:
            return index
    return max(0, len(files) - 1)


def _find_offset(file: LogFile, read_time: ReadTime, time: int) -> int:
    """An offset before which all records are older than the time; 0 if the format has no times in order."""
    low, high, offset = 0, file.size, 0
    while high - low > BLOCK:
        middle = (low + high) // 2
        begin, records = file.read_records_at(middle, _PROBE)
        found = read_time(records)
        if found is not None and found < time:
            low, offset = middle, begin
        else:
            high = middle
    return offset
