"""Where events go: standard output, or a folder with one file for each day."""

import os
import select
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from batch_adapters.generator.watch import Watch

_DAY = 86_400
# Behind a longer gap no reader waits any more.
_MOST_EMPTY_DAYS = 400
_LONGEST_LINE = 4096


class Output(Protocol):
    """Takes blocks of good lines."""

    def write(self, block: bytes) -> None:
        """Hand the lines on at once; raises OSError where that is not possible."""

    def write_empty_days(self, now: float) -> None:
        """See that the day of ``now`` (seconds since 1970), and each before it, has its file."""


class StandardOutput:
    """Writes whole lines, at most PIPE_BUF bytes each time: a reader of a pipe never sees part of a line."""

    def __init__(self, fd: int, watch: Watch) -> None:
        self._fd = fd
        self._watch = watch

    def write(self, block: bytes) -> None:
        """Write the lines as the reader takes them.

        :raises BrokenPipeError: it is gone; InputEnded: it wants no more.
        """
        for lines in _cut_lines(block, select.PIPE_BUF):
            while lines:
                self._watch.wait_for_room()
                lines = lines[os.write(self._fd, lines) :]

    def write_empty_days(self, now: float) -> None:
        """There are no days here."""


def _cut_lines(block: bytes, most: int) -> Iterator[bytes]:
    begin = 0
    while begin < len(block):
        end = block.rfind(b"\n", begin, begin + most) + 1
        yield block[begin:end]
        begin = end


class EventFolder:
    """A folder of files YYYYMMDD by the UTC date of the event, as GRAM's own reader wants them.

    Its rules (measured on globus-gram-job-manager 13): each line comes whole, in one write; a malformed line, even the
    torn end of one, blocks it for ever; a day without a file blinds it. So days without events get an empty file, not
    before they begin, because it leaves a day's file when the next one appears.
    """

    def __init__(self, folder: Path) -> None:
        """Make today's file and those of days that were missed since the newest one.

        :raises OSError: the folder cannot be written.
        """
        self._folder = folder
        self._day = -1
        self._fd = -1
        today = int(time.time()) // _DAY
        back = range(today - 1, today - _MOST_EMPTY_DAYS, -1)
        self._last_day = next((day for day in back if self._path(day).exists()), today - 1)
        self.write_empty_days(today * _DAY)

    def write(self, block: bytes) -> None:
        """Append each line to its day's file.

        :raises OSError: it cannot be written.
        """
        for line in block.splitlines(keepends=True):
            day = int(line[4 : line.index(b";", 4)]) // _DAY
            if day != self._day:
                self._open_day(day)
            if os.write(self._fd, line) != len(line):
                raise OSError(f"{self._folder}: only part of a line could be written (disk full?)")

    def write_empty_days(self, now: float) -> None:
        """Make the files of days that have begun since the last call."""
        today = int(now) // _DAY
        for day in range(self._last_day + 1, today + 1):
            os.close(self._open_file(day))
        self._last_day = max(self._last_day, today)

    def _open_day(self, day: int) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = self._open_file(day)
        self._day = day

    def _open_file(self, day: int) -> int:
        mode = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        # Readable by all: the accounts' monitors and GRAM's job managers follow it.
        fd = os.open(self._path(day), mode, 0o644)
        _cut_torn_line(fd)
        return fd

    def _path(self, day: int) -> Path:
        return self._folder / time.strftime("%Y%m%d", time.gmtime(day * _DAY))


def _cut_torn_line(fd: int) -> None:
    # Left by a generator that a full disk or a power cut stopped in the middle of a line.
    size = os.fstat(fd).st_size
    begin = max(0, size - _LONGEST_LINE)
    tail = os.pread(fd, size - begin, begin)
    if tail and not tail.endswith(b"\n"):
        os.ftruncate(fd, begin + tail.rfind(b"\n") + 1)
