"""``samgrid log -f`` and the page: show what a local job prints until it ends, in limited amounts.

If the local job runs on this host, the driver's own file is read. Otherwise, a file beside the outputs asks the driver,
which looks for it from time to time, to copy the end of what was printed there.
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
"""Bytes that are shown at once; if a program prints more in that time, a line says what was left out."""
_TAIL = 8192
"""Bytes of the end of a channel that a page shows."""


def find_printed(account: Account, grid_job: str, job: LocalJob, kind: str) -> Path | None:
    """The file with what a local job has printed: the one that was brought back, or its driver's on this host."""
    path = account.places.results(grid_job) / f"{render_stem(grid_job, str(job.local_id))}.{kind}"
    if os.path.lexists(path):
        return path
    scratch = read_driver_status(status_file(account, grid_job, str(job.local_id))).scratch
    # Programs can change the record, so no other folder is accepted.
    if scratch is None or not Path(scratch).name.startswith(f"samgrid.{grid_job}."):
        return None
    live = Path(scratch) / ".samgrid" / kind
    links = map(os.path.islink, (live, live.parent, live.parent.parent))
    return live if os.path.isfile(live) and not any(links) else None  # noqa: PTH113 is_file raises where it may not look


@dataclass(frozen=True)
class PrintedEnd:
    """The end of what a local job has printed to a channel."""

    kind: str
    text: str
    left_out: int
    """The number of bytes before it."""


def read_printed(account: Account, grid_job: str, job: LocalJob) -> list[PrintedEnd]:
    """The ends of both channels, if they can be read; from other hosts, what a `Wish` has brought here."""
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
    # A text that is cut begins with a complete line, if there is one.
    torn = data.find(b"\n") + 1 if left_out else 0
    return PrintedEnd(kind, "\n".join(map(_show, data[torn:].split(b"\n"))), left_out + torn)


def follow_local_job(account: Account, grid_job: str, index: int) -> Iterator[str]:
    """Lines as they are printed, and some before; a heading at each change between the two channels.

    :raises OSError: something cannot be read.
    """
    name, heading, wish = f"{grid_job}/{index}", "", Wish()
    streams: dict[str, _Stream] = {}
    local_id: str | None = ""
    try:
        while True:
            # Read before its files: nothing is printed after its end.
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
        """The complete new lines in a file, which comes with the number of its first byte."""
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
            self._at, self._torn = 0, b""  # the batch system has run it again
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
    """A line as a terminal would show it: progress bars overwrite themselves."""
    return printable(line.rstrip(b"\r").rpartition(b"\r")[2].decode(errors="replace").expandtabs())


class Wish:
    """Asks the driver of a local job on another host to copy what is printed, while somebody watches."""

    def __init__(self) -> None:
        self._path: Path | None = None
        self._has_ended = False

    def make(self, account: Account, grid_job: str, job: LocalJob) -> None:
        """Ask this local job's driver if that is needed, and no other one any more.

        Called repeatedly, because another watcher that ends removes the file of the wish.
        """
        is_needed = job.local_id is not None and not job.state.is_final
        is_needed = is_needed and not all(find_printed(account, grid_job, job, kind) for kind in KINDS)
        path = _live(account, grid_job, job) if is_needed else None
        if path != self._path:
            self._withdraw()
        self._path = path
        if path is not None:
            with suppress(OSError):
                os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
        if self._has_ended:  # meanwhile, in another thread
            self._withdraw()

    def end(self) -> None:
        """Withdraw the wish for good."""
        self._has_ended = True
        self._withdraw()

    def _withdraw(self) -> None:
        for suffix in ("", *(f".{kind}" for kind in KINDS)) if self._path else ():
            with suppress(OSError):
                os.unlink(f"{self._path}{suffix}")  # noqa: PTH108 a name beside it


def _live(account: Account, grid_job: str, job: LocalJob) -> Path:
    return account.places.results(grid_job) / f".{render_stem(grid_job, str(job.local_id))}.live"


def _open(account: Account, grid_job: str, job: LocalJob, kind: str) -> tuple[int, BinaryIO] | None:
    """The number of a channel's first byte that can be read, and the file from there."""
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
