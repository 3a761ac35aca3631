"""Writes events to standard output, or to a folder with one file per day; filters lines; reads a folder's end."""

import contextlib
import fcntl
import os
import re
import select
import stat
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from batch_adapters.generator.follow import BLOCK
from batch_adapters.generator.process import Watch
from batch_adapters.states import Event, render_event
from sandbox.files import open_regular

_DAY = 86_400
MOST_EMPTY_DAYS = 400
"""A longer gap is not filled: no reader waits, and no log reaches back."""

_LONGEST_LINE = 4096


class StandardOutput:
    """Writes blocks as large as a pipe takes; a reader may get a line in two parts."""

    def __init__(self, fd: int, watch: Watch) -> None:
        self._watch = watch
        pipe = _open_pipe(fd)
        self._fd, self._most = (fd, select.PIPE_BUF) if pipe is None else (pipe, BLOCK)

    def write(self, block: bytes) -> None:
        """Write lines as fast as the reader takes them.

        :raises BrokenPipeError: the reader has gone; InputEnded: standard input has ended.
        """
        rest = memoryview(block)
        while rest:
            self._watch.wait_for_room()
            # Somebody else may have filled the pipe meanwhile.
            with contextlib.suppress(BlockingIOError):
                rest = rest[os.write(self._fd, rest[: self._most]) :]

    def write_empty_days(self, now: float) -> None:
        """Nothing: there are no day files here."""


def _open_pipe(fd: int) -> int | None:
    """A new descriptor of the same pipe that never blocks; None if it is not a pipe or cannot be opened again."""
    if not stat.S_ISFIFO(os.fstat(fd).st_mode):
        return None
    # O_NONBLOCK on the old one would affect every process that shares it.
    with contextlib.suppress(OSError):
        pipe = os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        # As large as a block, so that we read the next one meanwhile; the kernel may refuse.
        with contextlib.suppress(OSError):
            fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, BLOCK)
        return pipe
    return None


class EventFolder:
    """A folder of files YYYYMMDD by the UTC date of the event, for GRAM's own reader.

    That reader (measured on globus-gram-job-manager 13) needs each line in one write; a malformed or torn line blocks
    it for ever; it stops at a day without a file. So days without events get an empty file, but not before they begin,
    because the reader leaves a day's file when the next one appears.
    """

    def __init__(self, folder: Path, end: "FolderEnd | None" = None) -> None:
        """Make today's file, and those of the days since the newest file.

        ``end``: the folder's end if writing continues there: then events of these days may still come, and their files
        are made by the next ``write_empty_days``.

        :raises OSError: the folder cannot be written.
        """
        self._folder = folder
        self._written = end.lines.copy() if end else Counter[bytes]()
        self._day = -1
        self._fd = -1
        today = int(time.time()) // _DAY
        back = range(today - 1, today - MOST_EMPTY_DAYS, -1)
        # The newest file is opened, too, as its end may be torn.
        names = set(os.listdir(folder))  # noqa: PTH208 names; one look at the folder, not one for each day
        self._last_day = next((day - 1 for day in back if day_file(folder, day).name in names), today - 1)
        if end is None:
            self.write_empty_days(today * _DAY)

    def write(self, block: bytes) -> None:
        """Append each line that is new to its day's file.

        :raises OSError: it cannot be written.
        """
        for line in block.splitlines(keepends=True):
            if self._written.get(line, 0) > 0:
                self._written[line] -= 1
                continue
            day = int(line[4 : line.index(b";", 4)]) // _DAY
            if day != self._day:
                self._open_day(day)
            if os.write(self._fd, line) != len(line):
                # At once, before a reader takes it for a complete line.
                _cut_torn_line(self._fd)
                raise OSError(f"{self._folder}: only part of a line could be written (disk full?)")

    def write_empty_days(self, now: float) -> None:
        """Make the files of days that have begun since the last call."""
        today = int(now) // _DAY
        for day in range(self._last_day + 1, today + 1):
            os.close(self._open_file(day))
        self._last_day = max(self._last_day, today)

    def close(self) -> None:
        """Write the last day's lines to the disk and close its file; a further write opens it again.

        :raises OSError: they may not be on the disk.
        """
        if self._fd < 0:
            return
        fd, self._fd, self._day = self._fd, -1, -1
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def _open_day(self, day: int) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = self._open_file(day)
        self._day = day

    def _open_file(self, day: int) -> int:
        mode = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        # Readable by all, whatever the umask: monitors and GRAM's job managers of all accounts follow it.
        fd = os.open(day_file(self._folder, day), mode, 0o644)
        if os.fstat(fd).st_uid == os.geteuid():
            os.fchmod(fd, 0o644)
        _cut_torn_line(fd)
        return fd


def day_file(folder: Path, day: int) -> Path:
    """The file of a day, counted in days since 1970 (UTC)."""
    return folder / time.strftime("%Y%m%d", time.gmtime(day * _DAY))


def _cut_torn_line(fd: int) -> None:
    # Left by a generator that a full disk or a power cut stopped in the middle of a line.
    size = os.fstat(fd).st_size
    begin = max(0, size - _LONGEST_LINE)
    tail = os.pread(fd, size - begin, begin)
    if tail and not tail.endswith(b"\n"):
        os.ftruncate(fd, begin + tail.rfind(b"\n") + 1)


def write_events_now(path: Path, events: Sequence[Event]) -> None:
    """Append events with the present second to today's file (UTC), and write them to the disk.

    There must be no other writer. A torn line at the end is cut off first.

    :raises OSError: some events may not have been written.
    """
    # Opened each time: the folder may have been removed and made again.
    folder = EventFolder(path)
    now = int(time.time())
    try:
        folder.write("".join(render_event(replace(event, timestamp=now)) for event in events).encode())
    finally:
        folder.close()


def keep_days(path: Path) -> None:
    """Make today's file, and those of the days since the newest one: GRAM's reader stops at a missing day.

    :raises OSError: they cannot be made.
    """
    EventFolder(path).close()


# What most lines end with comes first, though the other includes it: a tenth faster.
_REST = r";[ -:<-~]{1,128}+;(?:[1248];0\n|(?:[1248]|16);-?[0-9]{1,9}+\n)"
_DIGITS = 10


def render_at_least(number: int) -> str:
    """A regular expression for decimal numbers of at most ten digits (no leading zeros) from the given one on."""
    digits = str(number)
    if digits.strip("0") == "1":
        # A power of ten, such as 1, the start of a whole log: one branch.
        return f"[1-9][0-9]{{{len(digits) - 1},{_DIGITS - 1}}}+"
    longer = [f"[1-9][0-9]{{{len(digits)},{_DIGITS - 1}}}+"] if len(digits) < _DIGITS else []
    return f"(?:{'|'.join([*longer, _render_digits_from(digits)])})"


def _render_digits_from(digits: str) -> str:
    # Most events have the first digits of the start time: a branch for each place would read them again and again.
    first, rest = digits[0], digits[1:]
    same = first + (f"(?:{_render_digits_from(rest)})" if rest else "")
    return same if first == "9" else f"{same}|[{int(first) + 1}-9][0-9]{{{len(rest)}}}"


class LineFilter:
    """Filters lines, a block at a time by one compiled pattern; reads single lines only if that does not match.

    A good line is ``001;SECONDS;ID;STATE;EXIT_CODE`` with at most ten digits, an id of 1 to 128 printable ASCII
    characters without ``;`` (another id would block GRAM's reader for ever), and the state 1, 2, 4, 8 or 16. The second
    0 means now, as in Globus' interface for modules.
    """

    def __init__(self, since: int | None, now: Callable[[], float] = time.time) -> None:
        """``since``: seconds since 1970, inclusive; None: any time."""
        self.malformed = 0
        self._now = now
        self.start_from(since)

    def start_from(self, since: int | None) -> None:
        """From now on, pass events of that second and later."""
        # The second 0 is not good as it is: it means now.
        self._line = f"001;{render_at_least(since or 1)}{_REST}"
        self._all_good = re.compile(f"(?:{self._line})*+".encode())

    def read_good(self, block: bytes) -> bytes:
        """The good lines of a block, in order; the malformed ones are counted."""
        if self._all_good.fullmatch(block):
            return block
        block = re.sub(rb"(?m)^001;0;", b"001;%d;" % self._now(), block)
        lines = block.count(b"\n") + (not block.endswith(b"\n"))
        well_formed = re.compile(f"^001;{render_at_least(0)}{_REST}".encode(), re.MULTILINE)
        self.malformed += lines - sum(1 for _ in well_formed.finditer(block))
        return b"".join(re.findall(f"^{self._line}".encode(), block, re.MULTILINE))


_EVENT = re.compile(rb"001;([0-9]{1,10});[^\n]*\n")


@dataclass(frozen=True)
class FolderEnd:
    """The end of the newest day file that has events."""

    second: int
    """Seconds since 1970 of its last event, but not later than now."""
    lines: Counter[bytes]
    """Its lines from that second on, which will be read from the log again."""


def read_end(folder: Path, now: float) -> FolderEnd | None:
    """The end of a folder's day files; None if they have no events.

    :raises OSError: a day file cannot be read, or is a symbolic link.
    """
    today = int(now) // _DAY
    for day in range(today, today - MOST_EMPTY_DAYS, -1):
        path = day_file(folder, day)
        with contextlib.suppress(FileNotFoundError):
            if (last := _read_last_second(path)) is not None:
                second = min(last, int(now))
                return FolderEnd(second, Counter(line for at, line in _read_events(path) if at >= second))
    return None


def _read_last_second(path: Path) -> int | None:
    last = None
    for second, _ in _read_events(path):
        last = second
    return last


def _read_events(path: Path) -> Iterator[tuple[int, bytes]]:
    """Each complete event line with its second."""
    with open_regular(path) as file:
        for line in file:
            if found := _EVENT.fullmatch(line):
                yield int(found[1]), line
