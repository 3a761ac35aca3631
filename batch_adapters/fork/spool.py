"""The spool folder of one account: submissions (arrays of local jobs that run one command), claims, and the log.

spool.db                     submissions and their jobs (SQLite): every promise is committed here
run/TOKEN.INDEX              the claim of one running job
starter.lock                 held by a queue process while it may start jobs, and by each of its jobs until its exec
events                       the scheduler log: 001 lines; events.1, events.2 are its older parts
queue.lock                   held by the queue process (whoever starts one passes it on); names the keeper
queue.wake                   the FIFO that the queue process reads
queue.log                    what the queue process and its keeper print

The job's own process creates its claim, empty, just before its exec, and gives up if the claim exists: so a job starts
at most once. The queue process then appends

process PID STARTED BOOT
end STATE EXIT-CODE EPOCH
"""

import contextlib
import errno
import json
import os
import re
import signal
import sqlite3
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from pathlib import Path

from batch_adapters.fork.processes import Process, is_stopped, read_process
from batch_adapters.fork.protocol import StartRequest
from batch_adapters.launch import command_line
from batch_adapters.states import Event, State, render_event
from sandbox.files import kept_open, locked, open_own, open_regular, remove_folder

LOG_BYTES, EVENTS_BYTES = 1_000_000, 16_000_000
"""The size in bytes at which a log is rotated."""

_TABLES = """
CREATE TABLE submission (
    number INTEGER PRIMARY KEY AUTOINCREMENT, token TEXT NOT NULL UNIQUE, first INTEGER, last INTEGER, text TEXT,
    announced INTEGER NOT NULL DEFAULT 0, ended INTEGER);
CREATE TABLE job (
    submission INTEGER NOT NULL, job INTEGER NOT NULL, state TEXT NOT NULL DEFAULT 'queued', exit_code INTEGER,
    cause TEXT, cancel INTEGER NOT NULL DEFAULT 0, PRIMARY KEY (submission, job)) WITHOUT ROWID;
CREATE INDEX job_open ON job (state, submission, job) WHERE state IN ('queued', 'running');
CREATE INDEX job_cancel ON job (cancel) WHERE cancel;
CREATE INDEX submission_ended ON submission (ended);
CREATE INDEX submission_new ON submission (announced) WHERE NOT announced;
CREATE TABLE boot (id TEXT);
PRAGMA user_version = 1;
"""


class SpoolError(Exception):
    """The spool folder cannot be used; the message says why and what to do."""


class Spool:
    """The spool folder and its files, which the docstring of this module explains."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.run = root / "run"
        self.events = root / "events"
        self.wake = root / "queue.wake"
        self.log = root / "queue.log"
        self.starter_lock = root / "starter.lock"
        self.queue_lock = root / "queue.lock"

    @cached_property
    def database(self) -> sqlite3.Connection:
        """The submissions and jobs."""
        path = self.root / "spool.db"
        # SQLite gives its other files the mode of this one. To close a file that SQLite has open would drop its locks.
        with contextlib.suppress(FileExistsError):
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        database = sqlite3.connect(path, isolation_level=None, timeout=60)
        database.execute("PRAGMA journal_mode = WAL")
        # A confirmed submission must survive a power failure.
        database.execute("PRAGMA synchronous = FULL")
        if database.execute("PRAGMA user_version").fetchone() == (0,):
            with _transaction(database):
                if database.execute("PRAGMA user_version").fetchone() == (0,):
                    for statement in _TABLES.split(";"):
                        database.execute(statement)
        return database

    def close(self) -> None:
        if "database" in vars(self):
            vars(self).pop("database").close()

    def transaction(self) -> contextlib.AbstractContextManager[sqlite3.Connection]:
        """A transaction: all of it is committed, or nothing."""
        return _transaction(self.database)


@contextlib.contextmanager
def _transaction(database: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    database.execute("BEGIN IMMEDIATE")
    with database:
        yield database


def open_spool(root: Path) -> Spool:
    """Open the spool folder, and create it (but not its parent) if it is missing; raises SpoolError."""
    spool = Spool(root)
    try:
        for folder in (root, spool.run):
            folder.mkdir(mode=0o700, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            os.mkfifo(spool.wake, 0o600)
        status = root.lstat()
    except OSError as error:
        raise SpoolError(f"cannot use the spool folder {root}: {error.strerror} ({error.filename})") from error
    if root.is_symlink() or status.st_uid != os.geteuid():
        raise SpoolError(f"the spool folder {root} must be a folder of your own, not a link or another user's")
    return spool


def has_work(spool: Spool) -> bool:
    """True if a queue process is needed: a job waits, runs or is to be cancelled."""
    open_jobs = "SELECT 1 FROM job WHERE state IN ('queued', 'running')"
    found = f"SELECT EXISTS ({open_jobs}) OR EXISTS (SELECT 1 FROM job WHERE cancel)"
    return bool(spool.database.execute(found).fetchone()[0])


def rotate(path: Path, largest: int, parts: int) -> None:
    """Start a new file if the log is larger than ``largest`` bytes; ``parts`` older ones are kept."""
    if not path.exists() or path.stat().st_size <= largest:
        return
    for number in range(parts, 0, -1):
        newer = path.with_name(f"{path.name}.{number - 1}") if number > 1 else path
        with contextlib.suppress(FileNotFoundError):
            newer.rename(path.with_name(f"{path.name}.{number}"))


def run_queue_if_none(spool: Spool, slots: int, grace: float) -> None:
    """Wake the queue process, or start one in the background."""
    with locked(spool.queue_lock) as lock:
        if lock is None:
            _let_keeper_go_on(spool)
            _wake(spool)
            return
        import subprocess  # Rarely needed: usually a queue process runs.

        rotate(spool.log, LOG_BYTES, 1)
        options = ["--spool", str(spool.root), "--slots", str(slots), "--grace", str(grace)]
        with open(open_own(spool.log, os.O_APPEND), "ab") as output:
            subprocess.Popen(
                [*command_line("samgrid-fork"), *options, "serve"],
                # It inherits the lock, so nobody else starts one meanwhile.
                stdin=lock,
                stdout=output,
                stderr=output,
                cwd="/",
                start_new_session=True,
            )


def write_keeper(lock: int) -> None:
    """Write down in the spool's open lock file that this process is its keeper."""
    process = read_process(os.getpid())
    # On a full disk nobody would let it go on: it works all the same.
    with contextlib.suppress(OSError):
        os.ftruncate(lock, 0)
        os.pwrite(lock, render_process(process).encode() if process else b"", 0)


def _let_keeper_go_on(spool: Spool) -> None:
    """Let a keeper go on that a signal has stopped; it lets its queue process go on."""
    run = read_run_file(spool.queue_lock)
    if run is not None and run.process is not None and is_stopped(run.process):
        os.kill(run.process.pid, signal.SIGCONT)


def _wake(spool: Spool) -> None:
    """Wake the queue process; one that does not listen yet, or no longer, checks for work by itself."""
    with contextlib.suppress(OSError):
        descriptor = os.open(spool.wake, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
        with open(descriptor, "wb", buffering=0) as wake:
            # A full FIFO does no harm: the process has been woken already.
            wake.write(b"w")


KEEP_SECONDS = 30 * 86400
"""How long a submission is kept after its end; until then its token cannot be used again."""


@dataclass(frozen=True, slots=True)
class StoredSubmission:
    """What the jobs of one token run; a limit of 0 means none; texts are as `protocol.read_wire` returns them."""

    command: tuple[str, ...]
    directory: str
    environment: tuple[tuple[str, str], ...]
    stdout: str = "/dev/null"
    stderr: str = "/dev/null"
    wall_minutes: int = 0
    cores: int = 1
    """The number of slots that each job takes."""


_DEFAULTS = {field.name: field.default for field in fields(StoredSubmission)}


def render_submission(submission: StoredSubmission) -> str:
    """The submission as JSON; pure ASCII, so that any byte of an argument survives.

    Fields with default values are left out: so a queue process of an earlier version, which keeps running while it has
    work, can read the submission even if it does not know all fields.
    """
    return json.dumps({name: value for name, value in asdict(submission).items() if value != _DEFAULTS[name]})


def read_submission(text: str) -> StoredSubmission:
    """The submission that `render_submission` wrote, in any version; raises ValueError for any other text."""
    try:
        found = {name: value for name, value in json.loads(text).items() if name in _DEFAULTS}
        environment = tuple((name, value) for name, value in found.pop("environment"))
        return StoredSubmission(command=tuple(found.pop("command")), environment=environment, **found)
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"it does not describe a submission: {error}") from error


def write_submission(spool: Spool, token: str, count: int, submission: StoredSubmission) -> int:
    """Store a submission unless its token exists already; returns the number of jobs of the stored one."""
    with spool.transaction() as database:
        stored: tuple[int] | None = database.execute("SELECT last FROM submission WHERE token = ?", (token,)).fetchone()
        if stored is not None:
            return stored[0]
        columns = "INSERT INTO submission (token, first, last, text) VALUES (?, 1, ?, ?)"
        number = database.execute(columns, (token, count, render_submission(submission))).lastrowid
        jobs = ((number, index) for index in range(1, count + 1))
        database.executemany("INSERT INTO job (submission, job) VALUES (?, ?)", jobs)
    return count


def forget_old(spool: Spool) -> None:
    """Delete submissions that ended long ago."""
    with spool.transaction() as database:
        old = "SELECT number FROM submission WHERE ended < ?"
        _forget(database, database.execute(old, (int(time.time()) - KEEP_SECONDS,)).fetchall())


def forget_prefix(spool: Spool, prefix: str) -> None:
    """Delete the submissions with this prefix of the token whose jobs have all ended and been reported."""
    ended = "token GLOB ? AND ended IS NOT NULL AND NOT EXISTS (SELECT 1 FROM job WHERE submission = number AND cancel)"
    with spool.transaction() as database:
        _forget(database, database.execute(f"SELECT number FROM submission WHERE {ended}", (f"{prefix}*",)).fetchall())


def _forget(database: sqlite3.Connection, numbers: list[tuple[int]]) -> None:
    database.executemany("DELETE FROM job WHERE submission = ?", numbers)
    database.executemany("DELETE FROM submission WHERE number = ?", numbers)


def render_local_id(token: str, index: int) -> str:
    """The local id of one job of a submission: TOKEN.INDEX."""
    return f"{token}.{index}"


def render_job(submission: StoredSubmission, token: str, index: int) -> StartRequest:
    """The request to start one local job of the submission."""
    local_id = render_local_id(token, index)
    executable, *arguments = submission.command
    own = (("SAMGRID_FORK_ID", local_id), ("SAMGRID_FORK_INDEX", str(index)))
    return StartRequest(
        tag=local_id,
        executable=executable,
        arguments=tuple(arguments),
        directory=submission.directory,
        environment=(*submission.environment, *own),
        stdout=(_render_file(submission.stdout, index),),
        stderr=(_render_file(submission.stderr, index),),
    )


def _render_file(pattern: str, index: int) -> str:
    return re.sub("%([%i])", lambda found: "%" if found[1] == "%" else str(index), pattern)


CLAIM_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL
"""Flags for open(2) that create a claim, or fail if it exists."""
_REPLACED = (errno.ENOENT, errno.ELOOP, errno.EINVAL, errno.ENXIO, errno.EISDIR)
"""Errors if a claim is gone, or if its job has put a link, a pipe or a folder in its place."""

_TOKEN = re.compile(r"[a-z][a-z0-9-]{0,14}", re.ASCII)
_INDEX = re.compile(r"[1-9]\d{0,8}", re.ASCII)
# The id of a boot has 36 characters; a shorter one was truncated by a full disk. Earlier versions add two numbers.
_PROCESS = re.compile(r"^process (\d+) (\d+) (\S{36})(?: \d+ \d+)?\n", re.ASCII | re.MULTILINE)
_END = re.compile(r"^end ([48]) (\d+) (\d+)\n", re.ASCII | re.MULTILINE)


@dataclass(frozen=True, slots=True)
class JobEnd:
    """How and when (epoch) a job ended: DONE or FAILED; `lost`: nobody saw the end, and the exit code is made up."""

    state: State
    exit_code: int
    timestamp: int
    lost: bool = False


@dataclass(frozen=True, slots=True)
class JobRun:
    """The content of a claim; a queue process that was killed may have written nothing to it."""

    process: Process | None = None
    end: JobEnd | None = None


def is_token(text: str) -> bool:
    """True for a submission's name: at most 15 characters [a-z][a-z0-9-]*."""
    return _TOKEN.fullmatch(text) is not None


def read_local_id(text: str) -> tuple[str, int] | None:
    """Token and index of a local id TOKEN.INDEX, or None if the text is not one."""
    token, _, index = text.partition(".")
    return (token, int(index)) if is_token(token) and _INDEX.fullmatch(index) else None


def render_process(process: Process) -> str:
    """The line of a claim with the process of the job."""
    return f"process {process.pid} {process.started} {process.boot}\n"


def render_end(end: JobEnd) -> str:
    """The line of a claim with the end of the job."""
    return f"end {end.state.value} {end.exit_code} {end.timestamp}\n"


def read_run(text: str) -> JobRun:
    """Read the text of a claim; incomplete lines are ignored."""
    started, ended = _PROCESS.search(text), _END.search(text)
    return JobRun(
        Process(int(started[1]), int(started[2]), started[3]) if started else None,
        JobEnd(State(int(ended[1])), int(ended[2]), int(ended[3])) if ended else None,
    )


def read_run_file(path: Path) -> JobRun | None:
    """Read a claim; None if there is none, an empty JobRun if the job has replaced it by something else."""
    try:
        with open_regular(path) as file:
            return read_run(file.read().decode("ascii", "replace"))
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno not in _REPLACED:
            raise
        return JobRun()


def write_claim(path: Path) -> bool:
    """Claim a job that will have no process; False if it is claimed already."""
    try:
        os.close(os.open(path, CLAIM_FLAGS, 0o600))
    except FileExistsError:
        return False
    return True


def write_to_claim(path: Path, line: str) -> None:
    """Append to a claim; one that its job has replaced or removed is ignored, so that other jobs are still served."""
    try:
        write_line(path, line)
    except OSError as error:
        if error.errno not in _REPLACED:
            raise


def remove_claim(path: Path) -> None:
    """Remove a claim, or the folder that its job has put in its place."""
    try:
        path.unlink(missing_ok=True)
    except IsADirectoryError:
        remove_folder(path)


def write_events(log: Path, events: Iterable[Event]) -> None:
    """Append events to the scheduler log in one write."""
    write_line(log, "".join(render_event(event) for event in events), os.O_CREAT)


def write_line(path: Path, text: str, flags: int = os.O_NOFOLLOW | os.O_NONBLOCK) -> None:
    """Append to a file in one write."""
    data = text.encode("ascii")
    with kept_open(os.open(path, os.O_WRONLY | os.O_APPEND | flags, 0o600)) as descriptor:
        written = os.write(descriptor, data)
        if written != len(data):
            # The disk is full: end the line, so that the next attempt starts on a new one.
            os.write(descriptor, b"\n")
            raise OSError(28, f"only {written} of {len(data)} bytes could be written; is the disk full?", str(path))
