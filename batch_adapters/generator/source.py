"""Which files make up a log, newest first: one file with its rotated predecessors, or one file a day."""

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

_DAY = 86_400


class Source(Protocol):
    """The files of one log."""

    @property
    def folders(self) -> tuple[Path, ...]:
        """The folders in which its files appear, change and go."""

    def newest_first(self) -> Iterator[Path]:
        """The log's files, the one being written first; some may be gone by the time they are looked at."""


class RotatedFile:
    """A log under one name; when it is rotated, its older parts are beside it.

    Their names are NAME.old, NAME.1 (newest) … NAME.N, or NAME-YYYYMMDD. Compressed parts are not read.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._rotated = re.compile(re.escape(path.name) + r"(?:\.old|\.(\d{1,6})|-(\d{8}(?:\d\d)?))")

    @property
    def folders(self) -> tuple[Path, ...]:
        """The log's folder, and where the log is a symbolic link, the folder of the file itself."""
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
    """A folder with one file for each day that had something to log, named YYYYMMDD."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def folders(self) -> tuple[Path, ...]:
        """The folder."""
        return (self._folder,)

    def newest_first(self) -> Iterator[Path]:
        """The days' files, the last day first."""
        # A file of the far future (a clock gone wrong for a moment) must not hide those of the days to come.
        tomorrow = time.strftime("%Y%m%d", time.localtime(time.time() + _DAY))
        paths = _list_folder(self._folder)
        dated = (path for path in paths if re.fullmatch("[0-9]{8}", path.name) and path.name <= tomorrow)
        yield from sorted(dated, reverse=True)


def _list_folder(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except FileNotFoundError:
        return []
