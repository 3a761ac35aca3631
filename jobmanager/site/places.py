"""The state folder of an account, and the paths of everything in it."""

import os
import pwd
import re
import stat
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from jobmanager import UserError

_REMOVED = ".removed-"
_GRID_JOB_ID = re.compile(r"[a-z][a-z0-9]{7}", re.ASCII)

CREDENTIALS = "credentials"
"""The folder in a grid job's folder whose files are never copied anywhere."""

QUESTIONS = ("check", "pack", "lines", "summary")
"""The kinds of calls of a grid job's handler by workers."""
FIRST_QUESTIONS = QUESTIONS[:2]
"""Those before anything is submitted."""


class StateFolderError(UserError):
    """The state folder cannot be found or must not be used; the message says why, and what to do."""


@dataclass(frozen=True)
class _Place:
    """A file or folder of the state folder."""

    name: str

    def __get__(self, places: "StatePlaces", kind: type) -> Path:
        return places.root / self.name


def _of_grid_job(*names: str) -> "Callable[[StatePlaces, str], Path]":
    return lambda places, grid_job: places.grid_job(grid_job).joinpath(*names)


@dataclass(frozen=True)
class StatePlaces:
    """The files and folders of one account's state folder; nothing here changes the disk."""

    root: Path
    spool: Path | None = None
    """Where the grid jobs' folders are, if not in the state folder: on a file system shared with worker nodes."""

    database = _Place("jobs.db")
    """The XML job database."""
    active_host = _Place("active-host")
    """The active host; the file's time is when its monitor was last at work."""
    monitor_lock = _Place("monitor.lock")
    """Held by the account's one monitor."""
    monitor_socket = _Place("monitor.sock")
    """The socket that wakes the monitor; the kernel accepts paths of at most 107 bytes."""
    monitor_configuration = _Place("monitor.configuration")
    """The fingerprint of the configuration that the monitor was started with."""
    monitor_log = _Place("monitor.log")
    """The log of the monitor and its children."""
    notified = _Place("notified.json")
    """Which notifications were sent."""
    notification_lock = _Place("notified.lock")
    """Held by the one process that sends them."""
    accounting_lock = _Place("accounting.lock")
    """Held by the one process that writes usage records."""
    fork_spool = _Place("fork")
    """The spool folder of the embedded batch system."""
    gram = _Place("gram")
    """The folder of the answers to GRAM's polls, one file for each grid job."""
    withdrawn = _Place("withdrawn")
    """The folder with marks of requests that GRAM may have reported as failed, by uniqid (gram_shims/perl)."""

    @property
    def jobs(self) -> Path:
        """The folder of the grid jobs' folders."""
        return self.spool or self.root / "jobs"

    def grid_job(self, grid_job: str) -> Path:
        """The folder of one grid job; raises ValueError for an invalid id, so that no path leaves the folder."""
        if not _GRID_JOB_ID.fullmatch(grid_job):
            raise ValueError(f"{grid_job!r} is not the id of a grid job: that has 8 characters, like 'k3f9zq2m'")
        return self.jobs / grid_job

    def removed(self, grid_job: str) -> Path:
        """The name of a grid job's folder while it is being removed."""
        return self.jobs / f"{_REMOVED}{self.grid_job(grid_job).name}"

    def all_removed(self) -> dict[str, Path]:
        """The folders of unfinished removals, by grid job."""
        return {folder.name.removeprefix(_REMOVED): folder for folder in sorted(self.jobs.glob(f"{_REMOVED}*"))}

    sandbox = _of_grid_job("sandbox")
    """The folder with everything for the local jobs."""
    work_area = _of_grid_job("work-area")
    """The folder that a handler fills, and of which the sandbox is made."""
    sandbox_tar = _of_grid_job("sandbox", "sandbox.tar")
    """The packed work area."""
    driver = _of_grid_job("sandbox", "driver.sh")
    """The script that runs one local job."""
    local_jobs = _of_grid_job("sandbox", "local-jobs")
    """The table of the local jobs' command lines; the tables of submissions lie beside it."""
    results = _of_grid_job("results")
    """The folder with everything that comes back from the local jobs."""

    def step_input(self, grid_job: str, step: str) -> Path:
        """The folder with the outputs of a structured grid job's step, for the steps that read them."""
        return self.grid_job(grid_job) / "inputs" / step

    datasets = _of_grid_job("datasets.json")
    """The datasets that the site's command listed when the request was accepted."""

    credentials = _of_grid_job(CREDENTIALS)
    """The folder with copies of credentials, which programs find through variables."""

    reports = _of_grid_job("results", "reports")
    """The folder with files in which programs report while they run."""
    reports_lock = _of_grid_job("reports.lock")
    """Held by the one reader of the reports."""
    log = _of_grid_job("log")
    """The log of the workers about one grid job."""
    worker_lock = _of_grid_job("worker.lock")
    """Held by the one worker of a grid job."""

    def of_handler(self, grid_job: str, what: str, name: str) -> Path:
        """A file about calls of the grid job's handler of one of the kinds in `QUESTIONS`: see `time_limit.Asking`."""
        return self.grid_job(grid_job) / f"handler-{what}.{name}"

    def is_handler_asked(self, grid_job: str, questions: Iterable[str] = QUESTIONS) -> bool:
        """True while a worker waits for its handler in one of these calls; False also where nobody may look."""
        return any(os.path.exists(self.of_handler(grid_job, what, "asked")) for what in questions)  # noqa: PTH110

    def output(self, grid_job: str) -> Path:
        """The tar with all outputs."""
        return self.grid_job(grid_job) / f"{grid_job}.tar"


def find_state_folder(option: str | None, environment: Mapping[str, str]) -> Path:
    """The state folder's absolute path: the option, $SAMGRID_STATE, or ``samgrid`` in the XDG state folder.

    An empty variable counts as not set, and a relative $XDG_STATE_HOME too (XDG Base Directory Specification).
    """
    named = option or environment.get("SAMGRID_STATE")
    if named:
        return Path(named).absolute()
    xdg = Path(environment.get("XDG_STATE_HOME", ""))
    state_home = xdg if xdg.is_absolute() else _find_home(environment) / ".local" / "state"
    return state_home / "samgrid"


def _find_home(environment: Mapping[str, str]) -> Path:
    home = environment.get("HOME", "")
    if home.startswith("/"):
        return Path(home)
    try:
        return Path(pwd.getpwuid(os.getuid()).pw_dir)
    except KeyError:
        raise StateFolderError(f"user {os.getuid()} has no home folder: say --state-dir or set SAMGRID_STATE") from None


def make_state_folder(path: Path) -> None:
    """Make the folder and missing parents, only for the owner (0700), or check the existing one.

    :raises StateFolderError: it cannot be made, or others could write into it.
    """
    if not str(path).isprintable():
        # Not all batch systems, nor documents, can name it.
        raise StateFolderError(f"the state folder {str(path)!r} has control characters, or is no UTF-8: name another")
    try:
        for folder in (*reversed(path.parents), path):
            if not os.path.lexists(folder):
                folder.mkdir(mode=0o700, exist_ok=True)
        status = path.lstat()
    except OSError as error:
        raise StateFolderError(f"cannot make the state folder {path}: {error.strerror}") from error
    _check_state_folder(path, status)


def _check_state_folder(path: Path, status: os.stat_result) -> None:
    if stat.S_ISLNK(status.st_mode):
        raise StateFolderError(f"the state folder {path} is a symbolic link: name the folder itself")
    if not stat.S_ISDIR(status.st_mode):
        raise StateFolderError(f"the state folder {path} is not a folder: name another")
    if status.st_uid != os.geteuid():
        raise StateFolderError(
            f"the state folder {path} belongs to user {status.st_uid}, not to user {os.geteuid()}: name another"
        )
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise StateFolderError(f"others can write the state folder {path}: chmod go-w it, or name another")
