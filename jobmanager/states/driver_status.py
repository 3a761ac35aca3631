"""What the drivers write down while local jobs run: read from the sandbox, put into the documents."""

import stat
import time
from collections.abc import Collection, Iterable
from pathlib import Path

from jobmanager.database.local_job import LocalJob
from jobmanager.site.account import Account
from jobmanager.states.changes import change_local_jobs, same_runs
from jobmanager.states.transitions import apply_driver_status
from sandbox.gather import render_stem
from sandbox.status import DriverStatus, fetch_status


class ProgressReader:
    """Reads the status files of running local jobs, each only when it has changed."""

    def __init__(self, account: Account) -> None:
        self._account = account
        self._seen: dict[tuple[str, int], tuple[int, int] | None] = {}

    def read_grid_job(self, grid_job: str) -> None:
        """Bring the documents of a grid job's running local jobs up to date with their drivers."""
        database = self._account.database
        running = database.local_jobs.running_ids(grid_job)
        stamps = {index: _stamp(status_file(self._account, grid_job, local_id)) for index, local_id in running.items()}
        changed = [index for index, stamp in stamps.items() if stamp != self._seen.get((grid_job, index))]
        if changed:
            reconcile_with_drivers(
                self._account, grid_job, [database.local_jobs.get(grid_job, index) for index in changed]
            )
        for index in changed:
            self._seen[grid_job, index] = stamps[index]

    def forget_all_but(self, grid_jobs: Collection[str]) -> None:
        """Forget what is known of grid jobs that have ended."""
        self._seen = {key: value for key, value in self._seen.items() if key[0] in grid_jobs}


def _stamp(file: Path) -> tuple[int, int] | None:
    try:
        status = file.lstat()
    except FileNotFoundError:
        return None
    return status.st_mtime_ns, status.st_size


def reconcile_with_drivers(account: Account, grid_job: str, jobs: Iterable[LocalJob]) -> None:
    """Put what the drivers say into the documents of these local jobs, as those are at this moment."""
    known = [job for job in jobs if job.local_id]
    now = time.time()
    statuses = {job.index: read_driver_status(status_file(account, grid_job, str(job.local_id))) for job in known}
    change_local_jobs(
        account.database,
        grid_job,
        same_runs(grid_job, known),
        lambda job: apply_driver_status(job, statuses[job.index], now),
    )


def read_driver_status(file: Path) -> DriverStatus:
    """What a driver wrote down; that its program made the file unreadable is a fault of that one local job only.

    :raises OSError: it cannot be read now.
    """
    try:
        if not stat.S_ISREG(file.lstat().st_mode):
            return DriverStatus(problem="its status file is no regular file any more")
        return fetch_status(file)
    except FileNotFoundError:
        return DriverStatus()
    except PermissionError:
        return DriverStatus(problem="its status file must not be read any more")


def status_file(account: Account, grid_job: str, local_id: str) -> Path:
    """Where the driver of a local job writes down what happens."""
    return account.places.results(grid_job) / f"{render_stem(grid_job, local_id)}.status"
