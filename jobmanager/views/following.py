"""``samgrid log -f`` and the page: what a local job prints while it runs, bounded, until it has ended.

From its driver's own file where this host has it. Where not, a file beside the outputs asks the driver, which looks for
it now and then, to copy the end of what was printed to there.
"""

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from jobmanager.database.local_job import LocalJob, Outcome
from jobmanager.site.account import Account
from jobmanager.states.driver_status import read_driver_status, status_file
from jobmanager.views.text import printable
from sandbox.files import open_unlinked
from sandbox.status import render_stem

KINDS = ("stdout", "stderr")
_INTERVAL = 0.5
_AT_ONCE = 65_536
"""Bytes that are shown at once: of a program that prints more in that time the rest is left out, and that is said."""
_TAIL = 8192
"""Bytes of a channel's end that a page shows."""


def find_printed(account: Account, grid_job: str, job: LocalJob, kind: str) -> Path | None:
    """The file of what a local job has printed: brought back, else its driver's where that is on this host."""
    path = account.places.results(grid_job) / f"{render_stem(grid_job, str(job.local_id))}.{kind}"
    if os.path.lexists(path):
        return path
    scratch = read_driver_status(status_file(account, grid_job, str(job.local_id))).scratch
    # The record is within a program's reach: no other folder's name is believed.
    if scratch is None or not Path(scratch).name.startswith(f"samgrid.{grid_job}."):
        return None
    live = Path(scratch) / ".samgrid" / kind
    links = map(os.path.islink, (live, live.parent, live.parent.parent))
    return live if os.path.isfile(live) and not any(links) else None  # noqa: PTH113 is_file raises where it may not look


@dataclass(frozen=True)
class PrintedEnd:
    """The end of what a local job has printed on a channel."""

    kind: str
    text: str
    left_out: int
    """Bytes before it."""


def read_printed(account: Account, grid_job: str, job: LocalJob) -> list[PrintedEnd]:
    """The ends of both channels as far as they can be read, of other hosts what somebody's `Wish` has brought here."""
    printed = []
    for kind in KINDS if job.local_id is not None else ():
        with suppress(OSError):
            opened = _open(account, grid_job, job, kind)
            printed += [_read_tail(kind, *opened)] if opened else []
    return printed


def _read_tail(kind: str, begin: int, source: BinaryIO) -> PrintedEnd:
    with source:
        first = source.tell()
        start = max(first, os.fstat(source.fileno()).st_size - _TAIL)
        source.seek(start)
        data = source.read(_TAIL)
    left_out = begin + start - first
    # What is cut begins with a whole line, where there is one.
    torn = data.find(b"\n") + 1 if left_out else 0
    return PrintedEnd(kind, "\n".join(map(_show, data[torn:].split(b"\n"))), left_out + torn)


def follow_local_job(account: Account, grid_job: str, index: int) -> Iterator[str]:
    """Lines as they come, from a little before now on; what is printed on both channels has a heading at each change.

    :raises OSError: something cannot be read.
    """
    name, heading, wish = f"{grid_job}/{index}", "", Wish()
    streams: dict[str, _Stream] = {}
    local_id: str | None = ""
    try:
        while True:
            # Before its files: nothing is printed any more once it has ended.
            job = account.database.local_jobs.get(grid_job, index)
            if job.local_id != local_id:
                local_id, streams = job.local_id, {kind: _Stream() for kind in KINDS}
                if not job.state.is_final:
                    yield f"local job {name} is {job.state.word}"
            wish.make(account, grid_job, job)
            for kind, stream in streams.items() if local_id else ():
                for line in stream.read(_open(account, grid_job, job, kind), job.state.is_final):
                    if kind != heading:
                        heading = kind
                        yield f"{kind} of {name}:"
                    yield line
            if job.state.is_final:
                why = f": {job.reason}" if job.reason else ""
                verb = "was" if job.outcome is Outcome.CANCELLED else "has"
                yield printable(f"local job {name} {verb} {job.outcome.value if job.outcome else 'ended'}{why}")
                return
            time.sleep(_INTERVAL)
    finally:
        wish.end()


class _Stream:
    """One channel, and how far it has been shown."""

    def __init__(self) -> None:
        self._at: int | None = None
        self._torn = b""

    def read(self, opened: tuple[int, BinaryIO] | None, is_over: bool) -> Iterator[str]:
        """The whole lines that are new in a file, which comes with the number of its first byte."""
        if opened is not None:
            with opened[1]:
                yield from self._read_new(*opened)
        if is_over and self._torn:
            yield _show(self._torn)
            self._torn = b""

    def _read_new(self, begin: int, source: BinaryIO) -> Iterator[str]:
        first = source.tell()
        end = begin + os.fstat(source.fileno()).st_size - first
        if self._at is not None and self._at > end:
            self._at, self._torn = 0, b""  # the batch system has run it once more
        start = max(begin, end - _AT_ONCE, self._at or 0)
        if start > (self._at or 0):
            yield f"… {start - (self._at or 0)} bytes before this are not shown"
            self._torn = b""
        source.seek(first + start - begin)
        data = source.read(_AT_ONCE)
        self._at = start + len(data)
        *lines, self._torn = (self._torn + data).split(b"\n")
        yield from map(_show, lines)
        if len(self._torn) > _AT_ONCE:
            yield _show(self._torn)
            self._torn = b""


def _show(line: bytes) -> str:
    """What a terminal would show: a bar of progress is printed again and again, each time over the last."""
    return printable(line.rstrip(b"\r").rpartition(b"\r")[2].decode(errors="replace").expandtabs())


class Wish:
    """Asks the driver of a local job that runs on another host to copy what is printed, while somebody looks on."""

    def __init__(self) -> None:
        self._path: Path | None = None
        self._has_ended = False

    def make(self, account: Account, grid_job: str, job: LocalJob) -> None:
        """Ask where that is needed, and no other driver any more; where nobody can be asked there is nothing to see.

        Said again and again, as whoever looks on, too, and ends takes the wish away.
        """
        is_needed = job.local_id is not None and not job.state.is_final and not _is_here(account, grid_job, job)
        path = _live(account, grid_job, job) if is_needed else None
        if path != self._path:
            self._withdraw()
        self._path = path
        if path is not None:
            with suppress(OSError):
                os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
        if self._has_ended:  # in another thread, meanwhile
            self._withdraw()

    def end(self) -> None:
        """Let it stop, for ever."""
        self._has_ended = True
        self._withdraw()

    def _withdraw(self) -> None:
        for suffix in ("", *(f".{kind}" for kind in KINDS)) if self._path else ():
            with suppress(OSError):
                os.unlink(f"{self._path}{suffix}")  # noqa: PTH108 a name beside it


def _is_here(account: Account, grid_job: str, job: LocalJob) -> bool:
    return all(find_printed(account, grid_job, job, kind) for kind in KINDS)


def _live(account: Account, grid_job: str, job: LocalJob) -> Path:
    return account.places.results(grid_job) / f".{render_stem(grid_job, str(job.local_id))}.live"


def _open(account: Account, grid_job: str, job: LocalJob, kind: str) -> tuple[int, BinaryIO] | None:
    """What there is to read of a channel, behind the number of its first byte."""
    path = find_printed(account, grid_job, job, kind)
    try:
        if path is not None:
            return 0, open_unlinked(path)
        if job.state.is_final:
            return None
        live = _live(account, grid_job, job)
        copy = open_unlinked(live.with_name(f"{live.name}.{kind}"))
    except FileNotFoundError:
        return None
    head = copy.readline(20).strip()
    if not head.isdigit():
        copy.close()
        return None
    return int(head), copy
