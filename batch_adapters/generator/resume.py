"""Goes on where a folder of day files ends, so that a service misses nothing of what was logged while it was down."""

import os
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from batch_adapters.generator.emit import MOST_EMPTY_DAYS, EventFolder, Output, day_file

_DAY = 86_400
_EVENT = re.compile(rb"001;([0-9]{1,10});[^\n]*\n")


@dataclass(frozen=True)
class FolderEnd:
    """What the newest day file with events in it ends with."""

    second: int
    """Seconds since 1970 of its last event, or now where that lies ahead."""
    told: Counter[bytes]
    """Its lines from that second on: the log will say them again."""


def read_end(folder: Path, now: float) -> FolderEnd | None:
    """Where the day files of a folder end; None where they have no events.

    :raises OSError: a day file cannot be read, or is a symbolic link.
    """
    today = int(now) // _DAY
    for day in range(today, today - MOST_EMPTY_DAYS, -1):
        path = day_file(folder, day)
        with suppress(FileNotFoundError):
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
    """Each whole event line with its second."""
    with open(path, "rb", opener=_open_no_link) as file:
        for line in file:
            if found := _EVENT.fullmatch(line):
                yield int(found[1]), line


def _open_no_link(path: str, mode: int) -> int:
    return os.open(path, mode | os.O_NOFOLLOW)


def open_folder(path: Path, end: FolderEnd | None) -> Output:
    """The folder, to write into it behind its end (None: from now on); raises OSError where that is not possible."""
    return EventFolder(path) if end is None else _ResumedFolder(EventFolder(path, make_days=False), end.told)


class _ResumedFolder:
    """Writes what a folder does not have yet."""

    def __init__(self, folder: EventFolder, told: Counter[bytes]) -> None:
        self._folder = folder
        self._told = told.copy()

    def write(self, block: bytes) -> None:
        """Append each line that is new to its day's file; raises OSError where it cannot be written."""
        self._folder.write(b"".join(line for line in block.splitlines(keepends=True) if self._is_new(line)))

    def _is_new(self, line: bytes) -> bool:
        if self._told[line] <= 0:
            return True
        self._told[line] -= 1
        return False

    def write_empty_days(self, now: float) -> None:
        """See that the day of ``now`` (seconds since 1970), and each before it, has its file."""
        self._folder.write_empty_days(now)
