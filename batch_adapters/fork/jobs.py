"""Names of local jobs, and what is known of one that was started: a small file that is there while it runs.

The file RUN/TOKEN.INDEX is made, empty, by the job's own process just before its exec, and only if it is not there:
that is the claim, by which a job starts at most once. Its starter then appends

process PID STARTED BOOT STARTER-PID STARTER-STARTED
end STATE EXIT-CODE EPOCH
"""

import errno
import fcntl
import os
import re
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from batch_adapters.fork.processes import Process
from batch_adapters.states import Event, State, render_event
from sandbox.files import open_regular

MAX_INDEX = 999_999_999
CLAIM_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL
"""What a claim is opened with, to be made or to fail."""
_REPLACED = (errno.ENOENT, errno.ELOOP, errno.EINVAL, errno.ENXIO, errno.EISDIR)
"""It has gone where nobody waits for it any more, or its job has put a link, a pipe or a folder in its place."""

_TOKEN = re.compile(r"[a-z][a-z0-9-]{0,14}", re.ASCII)
_INDEX = re.compile(r"[1-9]\d{0,8}", re.ASCII)
_PROCESS = re.compile(r"^process (\d+) (\d+) (\S+) (\d+) (\d+)$", re.ASCII | re.MULTILINE)
_END = re.compile(r"^end ([48]) (\d+) (\d+)\n", re.ASCII | re.MULTILINE)


@dataclass(frozen=True, slots=True)
class JobEnd:
    """How a job ended: DONE or FAILED, its exit code, when (epoch); `lost`: nobody saw it, the code is not its own."""

    state: State
    exit_code: int
    timestamp: int
    lost: bool = False


@dataclass(frozen=True, slots=True)
class JobRun:
    """What is known of a claimed job: a starter that was killed may have written none of it."""

    process: Process | None = None
    starter: Process | None = None
    end: JobEnd | None = None


def is_token(text: str) -> bool:
    """True for a submission's name: at most 15 characters [a-z][a-z0-9-]*."""
    return _TOKEN.fullmatch(text) is not None


def read_local_id(text: str) -> tuple[str, int] | None:
    """Token and index of a local id TOKEN.INDEX, or None where the text is none."""
    token, _, index = text.partition(".")
    return (token, int(index)) if is_token(token) and _INDEX.fullmatch(index) else None


def render_process(process: Process, starter: Process) -> str:
    """The line that says who runs the job, and who waits for its end."""
    return f"process {process.pid} {process.started} {process.boot} {starter.pid} {starter.started}\n"


def render_end(end: JobEnd) -> str:
    """The line that says how the job ended."""
    return f"end {end.state.value} {end.exit_code} {end.timestamp}\n"


def read_run(text: str) -> JobRun:
    """What a file's text says; lines that are torn say nothing."""
    processes, ended = _PROCESS.findall(text), _END.search(text)
    end = JobEnd(State(int(ended[1])), int(ended[2]), int(ended[3])) if ended else None
    if not processes:
        return JobRun(end=end)
    # The queue may have found the process before its starter could write it down: who waits for it is said last.
    pid, started, boot, starter_pid, starter_started = processes[-1]
    return JobRun(Process(int(pid), int(started), boot), Process(int(starter_pid), int(starter_started), boot), end)


def read_run_file(path: Path) -> JobRun | None:
    """What a file says, or None where nobody has claimed the job; nothing where the job has made it something else."""
    try:
        with open_regular(path) as file:
            return read_run(file.read().decode("ascii", "replace"))
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno not in _REPLACED:
            raise
        return JobRun()


def is_starter_late(claims: Path) -> bool:
    """True while a starter knows something of its jobs that it could not write down yet (a full disk)."""
    descriptor = os.open(claims, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def write_claim(path: Path) -> bool:
    """Claim a job that will have no process; False where it was claimed already."""
    try:
        os.close(os.open(path, CLAIM_FLAGS, 0o600))
    except FileExistsError:
        return False
    return True


def write_to_claim(path: Path, line: str) -> None:
    """Append to a claim; what its job has done to it must keep no others from being seen to."""
    try:
        write_line(path, line)
    except OSError as error:
        if error.errno not in _REPLACED:
            raise


def remove_claim(path: Path) -> None:
    """Remove what is under the name of a claim."""
    try:
        path.unlink(missing_ok=True)
    except IsADirectoryError:
        shutil.rmtree(path)


def write_events(log: Path, events: Iterable[Event]) -> None:
    """Append events to the scheduler log in one write."""
    write_line(log, "".join(render_event(event) for event in events), os.O_CREAT)


def write_line(path: Path, text: str, flags: int = os.O_NOFOLLOW | os.O_NONBLOCK) -> None:
    """Append to a file in one write."""
    data = text.encode("ascii")
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | flags, 0o600)
    try:
        written = os.write(descriptor, data)
        if written != len(data):
            # A full disk took part of it: end that line, so that the next try begins on a line of its own.
            os.write(descriptor, b"\n")
            raise OSError(28, f"only {written} of {len(data)} bytes could be written; is the disk full?", str(path))
    finally:
        os.close(descriptor)
