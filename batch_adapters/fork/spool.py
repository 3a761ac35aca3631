"""The spool folder of one account: what was submitted, what was claimed, what is to be cancelled.

jobs/TOKEN/submission.json   one submission, made aside and renamed: it is there whole or not at all
jobs/TOKEN/INDEX             the record of one claimed job (records.py)
jobs/TOKEN/announced         its PENDING events are in the log
jobs/TOKEN/ended             all of its jobs have ended
jobs/starter.lock            held while a fork starter may start jobs
cancel/TOKEN.INDEX           this job is to be cancelled
events                       the scheduler log: 001 lines
queue.lock queue.wake        held by, and read by, the queue process; queue.log is its output
"""

import contextlib
import fcntl
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from batch_adapters.fork.records import is_token, write_directory_to_disk
from batch_adapters.fork.submission import Submission, read_submission, render_submission
from batch_adapters.launch import command_line

HISTORY_SECONDS = 7 * 86400.0
"""How long ended jobs are in the answer to a query that names none; one that names their token always tells of them."""


class SpoolError(Exception):
    """The spool folder cannot be used: one sentence that says why and what to do."""


@dataclass(frozen=True, slots=True)
class Spool:
    """The spool folder and what lies in it."""

    root: Path

    @property
    def jobs(self) -> Path:
        """The folder of submissions and their records."""
        return self.root / "jobs"

    @property
    def cancel(self) -> Path:
        """The folder of cancel markers."""
        return self.root / "cancel"

    @property
    def events(self) -> Path:
        """The scheduler log."""
        return self.root / "events"

    @property
    def wake(self) -> Path:
        """The FIFO by which the queue process is woken."""
        return self.root / "queue.wake"

    @property
    def lock(self) -> Path:
        """The lock of the queue process."""
        return self.root / "queue.lock"

    @property
    def log(self) -> Path:
        """What the queue process and its starters print."""
        return self.root / "queue.log"


def make_spool(root: Path) -> Spool:
    """The spool folder, made where it is missing (not its parent); raises SpoolError."""
    spool = Spool(root)
    try:
        for folder in (root, spool.jobs, spool.cancel, root / "aside"):
            folder.mkdir(mode=0o700, exist_ok=True)
        _make_fifo(spool.wake)
        status = root.lstat()
    except OSError as error:
        raise SpoolError(f"cannot use the spool folder {root}: {error.strerror} ({error.filename})") from error
    if root.is_symlink() or status.st_uid != os.geteuid():
        raise SpoolError(f"the spool folder {root} must be a folder of your own, not a link or another user's")
    return spool


def _make_fifo(path: Path) -> None:
    with contextlib.suppress(FileExistsError):
        os.mkfifo(path, 0o600)


def read_tokens(spool: Spool) -> set[str]:
    """The tokens of all submissions."""
    return {folder.name for folder in spool.jobs.iterdir() if is_token(folder.name)}


def read_stored_submission(spool: Spool, token: str) -> Submission | None:
    """The submission of a token, None where there is none; raises SpoolError where it cannot be read."""
    path = spool.jobs / token / "submission.json"
    try:
        return read_submission(path.read_text(encoding="ascii"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise SpoolError(f"cannot read the submission {path}: {error}") from error


def read_claimed(spool: Spool, token: str) -> set[int]:
    """The indices of a submission that have a record."""
    return {int(entry.name) for entry in os.scandir(spool.jobs / token) if entry.name.isdecimal()}


def has_ended_long_ago(spool: Spool, token: str, now: float) -> bool:
    """True where all jobs of a submission had ended a week before ``now``, in seconds since the epoch."""
    try:
        return now - (spool.jobs / token / "ended").stat().st_mtime > HISTORY_SECONDS
    except FileNotFoundError:
        return False


def has_ended(spool: Spool, token: str) -> bool:
    """True where all jobs of a submission have ended."""
    return (spool.jobs / token / "ended").exists()


def has_work(spool: Spool, besides: Iterable[str] = ()) -> bool:
    """True where a queue process is needed, for other submissions than these or to cancel something."""
    tokens = read_tokens(spool).difference(besides)
    return any(os.scandir(spool.cancel)) or not all(has_ended(spool, token) for token in tokens)


def write_submission(spool: Spool, submission: Submission) -> Submission:
    """Store a submission; where its token is taken nothing changes, and the stored one is the result."""
    aside = spool.root / "aside" / f"{submission.token}.{os.getpid()}"
    target = spool.jobs / submission.token
    _remove_aside(aside)
    aside.mkdir(mode=0o700)
    try:
        _write_to_disk(aside / "submission.json", render_submission(submission))
        write_directory_to_disk(aside)
        # Fails where the target exists, since a submission's folder is never empty.
        aside.rename(target)
    except OSError:
        _remove_aside(aside)
        stored = read_stored_submission(spool, submission.token)
        if stored is None:
            raise
        return stored
    write_directory_to_disk(spool.jobs)
    return submission


def _remove_aside(aside: Path) -> None:
    (aside / "submission.json").unlink(missing_ok=True)
    with contextlib.suppress(FileNotFoundError):
        aside.rmdir()


def _write_to_disk(path: Path, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "w", encoding="ascii") as file:
        file.write(text)
        file.flush()
        os.fsync(descriptor)


def write_marker(path: Path) -> None:
    """Make an empty file, if it is not there."""
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600))


@contextlib.contextmanager
def lock_file(path: Path, *, wait: bool) -> Iterator[bool]:
    """Hold a lock as long as the context lasts; yields False where another process holds it and we do not wait."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        yield _lock(descriptor, wait)
    finally:
        os.close(descriptor)


def _lock(descriptor: int, wait: bool) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    return True


def starter_lock(records: Path) -> Path:
    """The lock that a fork starter, and each job of it that has not yet claimed, holds while it may start jobs."""
    return records / "starter.lock"


def run_wake(spool: Spool) -> bool:
    """Wake the queue process; False where none reads."""
    try:
        descriptor = os.open(spool.wake, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        os.write(descriptor, b"w")
    except BlockingIOError:
        # Full: it has been woken often enough.
        return True
    except BrokenPipeError:
        return False
    finally:
        os.close(descriptor)
    return True


def run_queue_if_none(spool: Spool, slots: int, grace: float) -> None:
    """Wake the queue process, or start one: detached, so that whoever waits for our end does not wait for its."""
    if run_wake(spool):
        return
    import subprocess  # Seldom needed: there mostly is a queue process.

    options = ["--spool", str(spool.root), "--slots", str(slots), "--grace", str(grace)]
    log = os.open(spool.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
    with open(log, "ab") as output:
        subprocess.Popen(
            [*command_line("samgrid-fork"), *options, "serve"],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd="/",
            start_new_session=True,
        )
