"""What a module of the event generator defines: where the log is, how a record ends, which events a block has.

A module is one ``LogModule`` (data) with one ``Parser`` (a few compiled byte patterns). The core does everything else:
following files through rotations, half-written records, start times, checking and writing events.
"""

import abc
import os
import re
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Protocol, TypeVar

from batch_adapters.generator.follow import DatedFiles, Follower, RotatedFile, Source
from batch_adapters.generator.local_time import be_in_zone, find_zone
from batch_adapters.states import Cause
from sandbox.files import kept_open

_ZONE_INTERVAL = 900.0
"""Seconds between two looks at the zone in which a log is written."""
_TAIL = 1 << 16
_MOST_FILES = 3


class LogNotKnown(Exception):
    """The module cannot find its scheduler's log; the message says what to set, or names ``--log``."""


class Parser(abc.ABC):
    """Reads one scheduler's log; one object sees the whole log in order, so it may keep (bounded) state."""

    @abc.abstractmethod
    def read_events(self, block: bytes) -> bytes:
        """The events in a block of whole records, as 001 lines one after another, newline behind each.

        A block is at most about 1 MiB, ends with one of the module's record ends, and may begin with garbage (the rest
        of a torn record). Any bytes may come: never raise, never let a record's user text forge an event. The core
        drops and counts lines that are not well-formed (an id with ``;`` or of more than 128 characters, an empty
        stamp) and drops events before the start time, so the parser need not check either.
        """

    def ask(self) -> bytes:
        """Events that are in no record, from an answer of the scheduler that has come; must not wait for one.

        Called before the first block, and after each reading of the log, but only if the scheduler may be asked.
        """
        return b""

    def read_time(self, block: bytes) -> int | None:
        """Seconds since 1970 of the first dated record in the block; None where none is, or where the log has no order.

        Lets the core find a start time by bisection; an order right to within an hour is enough. It is asked of a
        parser of its own, never of the one that reads events.
        """
        del block
        return None


class Feed(Protocol):
    """Where events come from while the generator runs: a followed log, or a batch system asked at intervals."""

    @property
    def folders(self) -> tuple[Path, ...]:
        """Folders to watch for changes; they need not exist yet."""

    def read_events(self, look_for_files: bool) -> Iterator[bytes]:
        """Everything that is available now, as blocks of 001 lines, without waiting for more.

        ``look_for_files`` is False if known files have grown, and nothing else has changed.
        """

    def render_warnings(self) -> tuple[str, ...]:
        """What was skipped so far: one sentence each, with its count."""


@dataclass(frozen=True)
class FeedSettings:
    """The options of the command line."""

    log: Path | None
    """The log's file or folder; None: where the module finds it."""
    since: int | None
    """Seconds since 1970, inclusive; None or 0: from now on."""
    environment: Mapping[str, str]
    interval: float = 1.0
    """Seconds after which the log is read again if nothing else wakes the generator."""
    may_ask: bool = False
    """True if the scheduler may be queried: for one generator per host, but not for one per account."""


class Module(Protocol):
    """What a registered name stands for; every ``LogModule`` is one."""

    def open_feed(self, settings: FeedSettings) -> Feed:
        """A feed for one run of the generator; raises OSError where the log cannot be read, or LogNotKnown."""


@dataclass(frozen=True)
class LogModule:
    """A scheduler's log: its files, and its parser."""

    name: str
    find_log: Callable[[Mapping[str, str]], Path]
    """Finds the log's file (with ``dated_files`` its folder) from the environment; may raise LogNotKnown."""
    new_parser: Callable[[], Parser]
    record_ends: tuple[bytes, ...] = (b"\n",)
    """How a record ends, e.g. ``b"\\n...\\n"``; several, if formats are mixed."""
    file_name: str = ""
    """The log's name within its folder, for ``--log FOLDER``."""
    dated_files: bool = False
    """The log is a folder of files ``YYYYMMDD``, not one file with rotated ones (``.1``, ``.old``) beside it."""
    read_deletions: Callable[[bytes], Iterable[tuple[bytes, bytes | Cause]]] | None = None
    """Reads the deletions in a block of complete records: the id of the job or array, and the user, or the limit at
    which it was removed, for which 001 lines have no room; REFUSED: its dependency could not be met; without a user:
    what was said before was no deletion. None: they are not in the log."""

    def open_feed(self, settings: FeedSettings) -> Feed:
        """A feed that follows the log; raises OSError if it exists but cannot be read, or LogNotKnown."""
        return LogFeed(self, settings)

    def find_deletions(self, log: Path, ids: Container[str], since: int) -> dict[str, str | Cause]:
        """The users who deleted some of the jobs ``ids`` since a second, or the limits that did, by id.

        :raises OSError: the log cannot be read.
        """
        if self.read_deletions is None:
            return {}
        follower = Follower(find_source(self, log), self.record_ends)
        follower.start(since, self.new_parser().read_time)
        found = (deletion for block in follower.read_blocks() for deletion in self.read_deletions(block))
        named = ((os.fsdecode(name), by if isinstance(by, Cause) else os.fsdecode(by)) for name, by in found)
        return {local_id: by for local_id, by in named if local_id in ids}


def render_line(stamp: bytes, local_id: bytes, state: bytes, exit_code: bytes = b"0") -> bytes:
    """One 001 line from its fields, unchecked: the core checks lines.

    ``stamp``: the second since 1970, ``b"0"`` for now; ``state``: the GRAM number, e.g. ``b"2"``.
    """
    return b"001;%b;%b;%b;%b\n" % (stamp, local_id, state, exit_code)


Known = TypeVar("Known")


def remember(memory: dict[bytes, Known], key: bytes, value: Known, most: int) -> None:
    """Store a value in a parser's memory; if there are more than ``most``, forget the oldest one."""
    memory[key] = value
    if len(memory) > most:
        del memory[next(iter(memory))]


def forget_oldest(memory: dict[bytes, Any], most: int) -> None:
    """If there are more than ``most`` entries in a parser's memory, forget all but the latest ``most / 2``."""
    if len(memory) > most:
        for key in tuple(islice(memory, len(memory) - most // 2)):
            del memory[key]


class LogFeed:
    """A scheduler's log, read from the wanted time on."""

    def __init__(self, module: LogModule, settings: FeedSettings) -> None:
        """Open the log, if it exists already.

        :raises OSError: it exists but cannot be read.
        :raises LogNotKnown: the module cannot find it.
        """
        self._module = module
        self._may_ask = settings.may_ask
        self._source = find_source(module, settings.log or module.find_log(settings.environment))
        self._zone = ""
        self._next_look_at_zone = 0.0
        self._be_where_it_is_written()
        self._follower = Follower(self._source, module.record_ends)
        self._parser = module.new_parser()
        if self._may_ask:
            self._parser.ask()
        # The records just before the start fill the parser's memory.
        self._parser.read_events(self._follower.start(settings.since or None, module.new_parser().read_time))

    @property
    def folders(self) -> tuple[Path, ...]:
        """The folders of the log's files."""
        return self._source.folders

    def read_events(self, look_for_files: bool) -> Iterator[bytes]:
        """All events that were not read before; see `Feed`."""
        for block in self._follower.read_blocks(look_for_files):
            self._be_where_it_is_written()
            yield self._parser.read_events(block)
        if self._may_ask and (block := self._parser.ask()):
            yield block

    def _be_where_it_is_written(self) -> None:
        """Use the time zone of the host that writes the log; checked now and then, as summer time may begin."""
        if time.monotonic() < self._next_look_at_zone:
            return
        zone = find_log_zone(self._module, self._source)
        if zone is None:
            return
        if zone:
            self._zone = zone
            be_in_zone(zone)
        self._next_look_at_zone = time.monotonic() + _ZONE_INTERVAL

    def render_warnings(self) -> tuple[str, ...]:
        """Warn of another time zone, of records that were too long, and of a file that cannot be read."""
        warnings = []
        if self._zone:
            warnings.append(f"the log's times are of another zone than ours: they are read as {self._zone} (POSIX TZ)")
        if self._follower.skipped:
            warnings.append(f"{self._follower.skipped} records of more than 1 MiB were skipped")
        if self._follower.unreadable:
            warnings.append(f"{self._follower.unreadable}: permission denied, waiting until it can be read")
        return tuple(warnings)


def find_log_zone(module: LogModule, source: Source) -> str | None:
    """The zone of a log's local times; empty: this process' own, or not known; None: there is no log yet.

    See `find_zone`.
    """
    # Reading the log will report errors.
    with suppress(OSError):
        for path in islice(source.newest_first(), _MOST_FILES):
            with suppress(FileNotFoundError):
                tail, written = _read_tail(path)
                if tail:
                    return find_zone(lambda: module.new_parser().read_time, tail, written) or ""
    return None


def _read_tail(path: Path) -> tuple[bytes, float]:
    """The end of a file, and when it was last written."""
    with kept_open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)) as descriptor:
        found = os.fstat(descriptor)
        return os.pread(descriptor, _TAIL, max(0, found.st_size - _TAIL)), found.st_mtime


def find_source(module: LogModule, log: Path) -> Source:
    """The files of the log that a path names: a file, a folder, or one day's file of a log of dated files."""
    if module.dated_files and not log.is_file():
        return DatedFiles(log)
    if module.file_name and log.is_dir():
        return RotatedFile(log / module.file_name)
    return RotatedFile(log)


_TIME = re.compile(rb"^001;([0-9]{1,10});", re.MULTILINE)


class ReadyLines(Parser):
    """For logs that consist of 001 lines: passes them on, and the core checks them."""

    def read_events(self, block: bytes) -> bytes:
        """The block itself."""
        return block

    def read_time(self, block: bytes) -> int | None:
        """The first event's time."""
        found = _TIME.search(block)
        return int(found[1]) if found else None


def refuse_to_guess(environment: Mapping[str, str]) -> Path:
    """The folder must be given: it cannot be found."""
    del environment
    raise LogNotKnown("the folder of the event files is needed: --log FOLDER, the -d folder of the other generator")


DAY_FILES = LogModule(name="events", find_log=refuse_to_guess, new_parser=ReadyLines, dated_files=True)
"""Follows the folder that a generator (ours, or Globus' C program) fills with ``-d``: one file a day, by UTC date."""
