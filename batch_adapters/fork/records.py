"""The record of one started (or cancelled) job: one small file, whose existence is the claim to the job.

claim PID STARTED BOOT STARTER-PID STARTER-STARTED     written by the job's own process before its exec
cancelled EPOCH                                        or: claimed so that it never starts
stop CAUSE EPOCH                                       appended before the queue ends it: its time is up, or a cancel
end STATE EXIT-CODE EPOCH [lost]                       appended when it has ended
"""

import os
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from batch_adapters.causes import CAUSE_OF_WORD, Cause
from batch_adapters.fork.processes import Process
from batch_adapters.states import Event, State, render_event

MAX_INDEX = 999_999_999
LOST_EXIT_CODE = 255

_TOKEN = re.compile(r"[a-z][a-z0-9-]{0,14}", re.ASCII)
_INDEX = re.compile(r"[1-9]\d{0,8}", re.ASCII)
_CLAIM = re.compile(r"claim (\d+) (\d+) (\S+) (\d+) (\d+)", re.ASCII)
_CANCELLED = re.compile(r"cancelled \d+", re.ASCII)
_STOP = re.compile(r"stop ([a-z-]+) \d+", re.ASCII)
_END = re.compile(r"end ([48]) (\d+) (\d+)( lost)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class End:
    """How a job ended: DONE or FAILED, its exit code, when (epoch); `lost`: nobody saw it, the code is not its own."""

    state: State
    exit_code: int
    timestamp: int
    lost: bool = False


@dataclass(frozen=True, slots=True)
class Record:
    """What is known of a claimed job; `process` and `starter` are None where it never started."""

    process: Process | None
    starter: Process | None
    end: End | None
    cancelled: bool = False
    stopped: Cause | None = None
    """Why the queue ended it, where it did, before it had ended by itself."""


def is_token(text: str) -> bool:
    """True for a submission's name: at most 15 characters [a-z][a-z0-9-]*."""
    return _TOKEN.fullmatch(text) is not None


def read_local_id(text: str) -> tuple[str, int] | None:
    """Token and index of a local id TOKEN.INDEX, or None where the text is none."""
    token, _, index = text.partition(".")
    return (token, int(index)) if is_token(token) and _INDEX.fullmatch(index) else None


def record_path(records: Path, token: str, index: int) -> Path:
    """Where the record of local job TOKEN.INDEX is: RECORDS/TOKEN/INDEX."""
    return records / token / str(index)


def render_claim(process: Process, starter: Process) -> str:
    """The claim that a job's own process makes."""
    return f"claim {process.pid} {process.started} {process.boot} {starter.pid} {starter.started}\n"


def render_cancelled(timestamp: int) -> str:
    """The claim that keeps a queued job from ever starting."""
    return f"cancelled {timestamp}\n"


def render_stop(cause: Cause, timestamp: int) -> str:
    """The line that says why the queue is about to end a job."""
    return f"stop {cause.value} {timestamp}\n"


def render_end(end: End) -> str:
    """The line that closes a record."""
    return f"end {end.state.value} {end.exit_code} {end.timestamp}{' lost' if end.lost else ''}\n"


def read_record(text: str) -> Record:
    """The record that a file's text holds; one whose first line a power failure has garbled names no process."""
    first, *rest = text.split("\n")
    ends = [_read_end(line) for line in rest]
    end = next((end for end in ends if end is not None), None)
    stopped = _read_stop(rest[: ends.index(end)] if end else rest)
    match = _CLAIM.fullmatch(first)
    if match is not None:
        pid, started, boot, starter_pid, starter_started = match.groups()
        starter = Process(int(starter_pid), int(starter_started), boot)
        return Record(Process(int(pid), int(started), boot), starter, end, stopped=stopped)
    return Record(None, None, end, cancelled=_CANCELLED.fullmatch(first) is not None)


def _read_stop(lines: Iterable[str]) -> Cause | None:
    matches = (_STOP.fullmatch(line) for line in lines)
    return next((CAUSE_OF_WORD.get(match[1]) for match in matches if match), None)


def _read_end(line: str) -> End | None:
    match = _END.fullmatch(line)
    if match is None:
        return None
    state, exit_code, timestamp, lost = match.groups()
    return End(State(int(state)), int(exit_code), int(timestamp), lost is not None)


def read_record_file(path: Path) -> Record | None:
    """The record in a file, or None where nobody has claimed the job."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    with open(descriptor, encoding="ascii", errors="replace") as file:
        return read_record(file.read())


def write_claim(path: Path, claim: str, *, durable: bool) -> bool:
    """Claim a job; False where it was claimed already. `durable`: the claim outlives a power failure."""
    # A link makes the whole claim appear at once, or fails where one exists: nobody ever reads half a claim.
    aside = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        _write_file(aside, claim, durable=durable)
        os.link(aside, path)
    except FileExistsError:
        return False
    finally:
        aside.unlink(missing_ok=True)
    if durable:
        write_directory_to_disk(path.parent)
    return True


def write_directory_to_disk(folder: Path) -> None:
    """Make the names in a folder outlive a power failure."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_stop(path: Path, cause: Cause) -> None:
    """Say in a job's record why the queue is about to end it."""
    _append(path, os.O_NOFOLLOW, render_stop(cause, int(time.time())))


def write_end(path: Path, end: End) -> None:
    """Close a job's record."""
    _append(path, os.O_NOFOLLOW, render_end(end))


def write_events(log: Path, events: Iterable[Event]) -> None:
    """Append events to the scheduler log in one write."""
    _append(log, os.O_CREAT, "".join(render_event(event) for event in events))


def _write_file(path: Path, text: str, *, durable: bool) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    with open(descriptor, "w", encoding="ascii") as file:
        file.write(text)
        file.flush()
        if durable:
            os.fsync(descriptor)


def _append(path: Path, flags: int, text: str) -> None:
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
