"""``samgrid log -f``: what a local job prints while it runs, bounded, until it has ended.

From its driver's own file where this host has it. Where not, a file beside the outputs asks the driver, which looks for
it now and then, to copy the end of what was printed to there.
"""

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from jobmanager.database.local_job import LocalJob, Outcome
from jobmanager.site.account import Account
from jobmanager.states.driver_status import read_driver_status, status_file
from jobmanager.views.text import printable
from sandbox.files import open_regular
from sandbox.status import render_stem

KINDS = ("stdout", "stderr")
_INTERVAL = 0.5
_AT_ONCE = 65_536
"""Bytes that are shown at once: of a program that prints more in that time the rest is left out, and that is said."""


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
    return live if live.is_file() and not live.is_symlink() else None


def follow_local_job(account: Account, grid_job: str, index: int) -> Iterator[str]:
    """Lines as they come, from a little before now on; what is printed on both channels has a heading at each change.

    :raises OSError: something cannot be read.
    """
    name, heading, wish = f"{grid_job}/{index}", "", _Wish()
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
            for kind, stream in streams.items() if local_id else ():
                for line in stream.read(*_open(account, grid_job, job, kind, wish), job.state.is_final):
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
        wish.withdraw()


class _Stream:
    """One channel, and how far it has been shown."""

    def __init__(self) -> None:
        self._at: int | None = None
        self._torn = b""

    def read(self, begin: int, source: BinaryIO | None, is_over: bool) -> Iterator[str]:
        """The whole lines that are new in a file whose first byte is number ``begin`` of what was printed."""
        if source is not None:
            with source:
                yield from self._read_new(begin, source)
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
    return printable(line.rstrip(b"\r").decode(errors="replace").expandtabs())


class _Wish:
    """Asks drivers on other hosts to copy what is printed."""

    def __init__(self) -> None:
        self._path: Path | None = None

    def make(self, path: Path) -> None:
        """Ask the driver whose file this is, and no other any more; where it cannot be made there is nothing to see."""
        if path == self._path:
            return
        self.withdraw()
        self._path = path
        with suppress(OSError):
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))

    def withdraw(self) -> None:
        """Let it stop."""
        for suffix in ("", *(f".{kind}" for kind in KINDS)) if self._path else ():
            with suppress(OSError):
                os.unlink(f"{self._path}{suffix}")  # noqa: PTH108 a name beside it


def _open(account: Account, grid_job: str, job: LocalJob, kind: str, wish: _Wish) -> tuple[int, BinaryIO | None]:
    """What there is to read of a channel, and the number of its first byte."""
    path = find_printed(account, grid_job, job, kind)
    try:
        if path is not None:
            return 0, open_regular(path)
        if job.state.is_final:
            return 0, None
        live = account.places.results(grid_job) / f".{render_stem(grid_job, str(job.local_id))}.live"
        wish.make(live)
        copy = open_regular(live.with_name(f"{live.name}.{kind}"))
    except FileNotFoundError:
        return 0, None
    head = copy.readline(20).strip()
    if not head.isdigit():
        copy.close()
        return 0, None
    return int(head), copy
