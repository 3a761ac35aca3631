"""Reads the status files that drivers write while local jobs run, and applies them to the documents."""

import errno
import os
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from batch_adapters.states import Event
from jobmanager.site.account import Account
from jobmanager.states.changes import Run, change_local_jobs, same_runs
from jobmanager.states.transitions import apply_driver_status
from sandbox.status import DriverStatus, fetch_status, render_stem

_NO_FILE = (errno.EINVAL, errno.ELOOP, errno.ENXIO)
"""Errors when something that is no regular file (a pipe, a link, a socket) is opened."""
MOST_AT_ONCE = 2000
"""Status files that are checked each time: each check is a query of the network file system."""


@dataclass(frozen=True, slots=True)
class _Running:
    index: int
    local_id: str


class ProgressReader:
    """Reads the status files of running local jobs when they have changed.

    At most `MOST_AT_ONCE` are checked each time; if more local jobs run, they take turns. Ends that come as events do
    not wait for this.
    """

    def __init__(self, account: Account) -> None:
        self._account = account
        self._seen: dict[str, dict[int, tuple[int, int] | None]] = {}
        self._left = MOST_AT_ONCE
        self._turn = ""
        self._read_up_to: dict[str, int] = {}

    def turns(self, grid_jobs: Sequence[str]) -> Iterator[str]:
        """The grid jobs to be read this time, starting where the last time ended; read each before taking the next."""
        self._left = MOST_AT_ONCE
        start = grid_jobs.index(self._turn) if self._turn in grid_jobs else 0
        for grid_job in (*grid_jobs[start:], *grid_jobs[:start]):
            if self._left == 0:
                return
            self._turn = grid_job
            yield grid_job

    def read_grid_job(self, grid_job: str) -> None:
        """Apply the status files of a grid job's running local jobs that have changed."""
        after = self._read_up_to.pop(grid_job, 0)
        running = self._account.database.local_jobs.running_ids(grid_job, after, self._left)
        self._left -= len(running)
        if self._left == 0:
            self._read_up_to[grid_job] = max(running)
        results = self._account.places.results(grid_job)
        stamps = {
            index: _stamp(f"{results}/{render_stem(grid_job, local_id)}.status") for index, local_id in running.items()
        }
        seen = self._seen.setdefault(grid_job, {})
        changed = [index for index, stamp in stamps.items() if stamp != seen.get(index)]
        if changed:
            reconcile_with_drivers(self._account, grid_job, [_Running(index, running[index]) for index in changed])
        seen.update((index, stamps[index]) for index in changed)

    def forget_all_but(self, grid_jobs: Collection[str]) -> None:
        """Forget what is known of grid jobs that have ended."""
        self._seen = {name: seen for name, seen in self._seen.items() if name in grid_jobs}
        self._read_up_to = {name: index for name, index in self._read_up_to.items() if name in grid_jobs}


def _stamp(file: str) -> tuple[int, int] | None:
    try:
        status = os.lstat(file)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return status.st_mtime_ns, status.st_size


def reconcile_with_drivers(account: Account, grid_job: str, jobs: Iterable[Run]) -> None:
    """Apply the drivers' status files to the current documents of these local jobs."""
    known = [job for job in jobs if job.local_id]
    now = time.time()
    statuses = {job.index: read_driver_status(status_file(account, grid_job, str(job.local_id))) for job in known}
    change_local_jobs(
        account.database,
        grid_job,
        same_runs(grid_job, known),
        lambda job: apply_driver_status(job, statuses[job.index], now),
    )


def read_ended(account: Account, batch: str, events: Iterable[Event]) -> dict[str, DriverStatus]:
    """What the drivers of the local jobs that end by these events recorded, by id, where it can be read now."""
    ids = {event.local_id for event in events if event.state.is_final}
    found = account.database.local_jobs.find_all(batch, ids) if ids else {}
    statuses = {}
    for local_id, (grid_job, _, _) in found.items():
        with suppress(OSError):  # no reason to hold up the events
            statuses[local_id] = read_driver_status(status_file(account, grid_job, local_id))
    return statuses


def read_driver_status(file: Path) -> DriverStatus:
    """What a driver recorded; if its program made the file unreadable, that is a problem of this local job only.

    :raises OSError: it cannot be read now.
    """
    try:
        return fetch_status(file)
    except (FileNotFoundError, NotADirectoryError):
        return DriverStatus()
    except PermissionError:
        return DriverStatus(problem="its status file must not be read any more")
    except OSError as error:
        if error.errno not in _NO_FILE:
            raise
        return DriverStatus(problem="its status file is no regular file any more")


def status_file(account: Account, grid_job: str, local_id: str) -> Path:
    return account.places.results(grid_job) / f"{render_stem(grid_job, local_id)}.status"
