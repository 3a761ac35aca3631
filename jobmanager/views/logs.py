"""What was logged of a grid job, and what a local job printed: harmless lines, of files of any size."""

import os
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from jobmanager.site.account import Account
from jobmanager.views.explaining import find_local_jobs
from jobmanager.views.text import printable
from sandbox.files import open_regular
from sandbox.gather import render_stem

LAST_LINES = 100
"""Lines of a local job's standard output, and of its standard error, that are shown."""
_LONGEST = 4096


def render_log(account: Account, job_id: str, lines: int | None) -> Iterator[str]:
    """The log of a grid job, or its last lines.

    :raises OSError: it cannot be read.
    """
    path = account.places.log(job_id)
    yield from _read_lines(path, lines) if os.path.lexists(path) else ["nothing has been logged yet"]


def render_local_log(account: Account, name: str, lines: int | None) -> Iterator[str]:
    """The last lines of standard output and standard error of the local job that ``ID/NUMBER`` names.

    :raises UnknownJob: there is none; OSError: something cannot be read.
    """
    for grid_job, job in find_local_jobs(account.database, name):
        for kind in ("stdout", "stderr"):
            yield f"{kind} of {grid_job}/{job.index}:"
            path = account.places.results(grid_job) / f"{render_stem(grid_job, str(job.local_id))}.{kind}"
            if os.path.lexists(path):
                yield from _read_lines(path, LAST_LINES if lines is None else lines)
            else:
                yield f"  is not back: the local job is {job.state.word}"


def _read_lines(path: Path, last: int | None) -> Iterator[str]:
    """The lines, or the last ones, in constant memory."""
    with open_regular(path) as stream:
        if last is not None:
            stream.seek(max(0, os.fstat(stream.fileno()).st_size - last * _LONGEST))
        pieces = iter(lambda: stream.readline(_LONGEST), b"")
        for piece in pieces if last is None else deque(pieces, last):
            yield printable(piece.decode(errors="replace").rstrip("\r\n").expandtabs())
