"""The fork starter: parent of the jobs it is asked to start, after Globus' globus-fork-starter.

`samgrid-fork-starter LOG [--records DIR]` reads 100 messages, answers 101 or 102, and writes 001 lines to LOG. Without
--records it is Globus' program: a job's id in the log is its pid. With --records (our extension) its id is its tag,
TOKEN.INDEX, its process makes the claim DIR/TOKEN/INDEX before its exec, and its end is written there too; what has a
claim is never started again. It starts nothing any more once its standard input or output is closed, and stays until
all its jobs have ended.
"""

import contextlib
import os
import select
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from batch_adapters.fork.child import Claim, StartRefused, run_job
from batch_adapters.fork.processes import Process, read_end, read_ended_child, read_process, run_signal_group
from batch_adapters.fork.protocol import (
    BadRequest,
    GramError,
    Refused,
    Started,
    StartRequest,
    read_start_request,
    read_wire,
    render_answer,
    render_wire,
)
from batch_adapters.fork.records import End, read_local_id, record_path, write_end, write_events
from batch_adapters.fork.spool import lock_file, starter_lock
from batch_adapters.states import Event, State

RETRY_MILLISECONDS = 1000
_USAGE = "usage: samgrid-fork-starter LOG [--records DIR]"


@dataclass(frozen=True, slots=True)
class _Job:
    """A running job: its id in the log, its record, and whether its exec failed."""

    local_id: str
    record: Path | None
    refused: bool = False


class Starter:
    """The jobs of one fork starter process."""

    def __init__(self, log: Path, records: Path | None, process: Process) -> None:
        self._log = log
        self._records = records
        self._process = process
        self._jobs: dict[int, _Job] = {}
        self._unwritten: list[Event] = []
        self._late = False
        self._input = b""
        self._accepting = True

    def run_accepting(self, woken: int) -> None:
        """Start what is asked and write what ends, until standard input or output is closed."""
        poll = select.poll()
        poll.register(0, select.POLLIN)
        poll.register(1, 0)
        poll.register(woken, select.POLLIN)
        while self._accepting:
            ready = dict(poll.poll(RETRY_MILLISECONDS if self._late else None))
            if woken in ready:
                os.read(woken, 4096)
            if 1 in ready:
                self._accepting = False
            elif 0 in ready:
                self._read_input()
            self._write_ends()

    def run_remaining(self, woken: int) -> None:
        """Write what ends, until all jobs have ended."""
        while self._jobs or self._unwritten:
            select.select([woken], [], [], RETRY_MILLISECONDS / 1000 if self._late else None)
            with contextlib.suppress(BlockingIOError):
                os.read(woken, 4096)
            self._write_ends()

    def _read_input(self) -> None:
        data = os.read(0, 65536)
        *lines, self._input = (self._input + data).split(b"\n")
        for line in lines:
            if self._accepting and not _is_output_closed():
                self._answer(self._start(read_wire(line)))
        if not data:
            self._accepting = False

    def _answer(self, answer: Started | Refused) -> None:
        data = render_wire(render_answer(answer))
        try:
            while data:
                data = data[os.write(1, data) :]
        except BrokenPipeError:
            self._accepting = False

    def _start(self, line: str) -> Started | Refused:
        try:
            request = read_start_request(line)
            claim = self._claim(request)
        except BadRequest as bad:
            return Refused(bad.tag, bad.error, str(bad))
        pids: list[int] = []
        try:
            for number in range(request.count):
                pids.append(run_job(request, number, claim))
        except StartRefused as refusal:
            self._give_up(request, claim, pids, refusal.pid)
            return Refused(request.tag, refusal.error, str(refusal))
        for pid in pids:
            self._note_active(pid, request.tag, claim)
        return Started(request.tag, tuple(pids))

    def _claim(self, request: StartRequest) -> Claim | None:
        if self._records is None:
            return None
        place = read_local_id(request.tag)
        if place is None:
            raise BadRequest(
                request.tag, GramError.BAD_RSL, f"with --records a tag is TOKEN.INDEX, not {request.tag!r}"
            )
        if request.count != 1:
            raise BadRequest(request.tag, GramError.INVALID_COUNT, "with --records count must be 1")
        return Claim(record_path(self._records, *place), self._process)

    def _give_up(self, request: StartRequest, claim: Claim | None, pids: list[int], claimed_pid: int | None) -> None:
        """Leave nothing running of a request that could not be obeyed whole."""
        for pid in pids:
            run_signal_group(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        if claim is not None and claimed_pid is not None:
            self._jobs[claimed_pid] = _Job(request.tag, claim.record, refused=True)

    def _note_active(self, pid: int, tag: str, claim: Claim | None) -> None:
        job = _Job(str(pid), None) if claim is None else _Job(tag, claim.record)
        self._jobs[pid] = job
        self._unwritten.append(Event(int(time.time()), job.local_id, State.ACTIVE))
        self._late = not self._write_active()

    def _write_active(self) -> bool:
        """Write the ACTIVE events that wait; False where it must be tried again."""
        try:
            if self._unwritten:
                write_events(self._log, self._unwritten)
        except OSError as error:
            _complain(f"cannot write to the scheduler log {self._log}, trying again: {error}")
            return False
        self._unwritten.clear()
        return True

    def _write_ends(self) -> None:
        self._late = not self._write_active()
        while not self._late and (child := read_ended_child()) is not None:
            # It stays a zombie until its end is written: if we die before, who inherits it still learns its exit code.
            run_signal_group(child.si_pid, signal.SIGKILL)
            job = self._jobs.get(child.si_pid)
            if job is None or self._write_end(job, child):
                os.waitpid(child.si_pid, 0)
                self._jobs.pop(child.si_pid, None)
            else:
                self._late = True

    def _write_end(self, job: _Job, child: os.waitid_result) -> bool:
        state, exit_code = read_end(child)
        end = End(State.FAILED if job.refused else state, exit_code, int(time.time()))
        event = Event(end.timestamp, job.local_id, end.state, end.exit_code)
        try:
            write_events(self._log, [event])
            if job.record is not None:
                write_end(job.record, end)
        except OSError as error:
            _complain(f"{job.local_id}: cannot write its end, trying again: {error}")
            return False
        return True


def _complain(sentence: str) -> None:
    # Whoever started us may have closed our standard error; our jobs need us all the same.
    with contextlib.suppress(OSError):
        os.write(2, f"{sentence}\n".encode())


def _is_output_closed() -> bool:
    poll = select.poll()
    poll.register(1, 0)
    return bool(poll.poll(0))


def _fill_standard_descriptors() -> None:
    """Put /dev/null where 0, 1 or 2 is closed, so that no file of ours is ever taken for it."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)


def _make_wakeup() -> int:
    """A descriptor that becomes readable when a child ends."""
    reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    # A handler of our own, since the one we inherited may be "ignore", which would reap the children for us.
    signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGCHLD,))
    return reader


def read_arguments(argv: Sequence[str]) -> tuple[Path, Path | None]:
    """The scheduler log and, if given, the folder of records; raises ValueError."""
    match argv:
        case [log] if not log.startswith("-"):
            return Path(log), None
        case [log, "--records", records] | ["--records", records, log]:
            return Path(log), Path(records)
    raise ValueError(_USAGE)


def main(argv: Sequence[str]) -> int:
    """Run the fork starter; exit status 2 for wrong arguments, 1 where the log or the records cannot be used."""
    if list(argv) in (["-h"], ["--help"]):
        print(f"{_USAGE}\n\n{__doc__}")
        return 0
    try:
        log, records = read_arguments(argv)
        write_events(log, [])
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    except OSError as error:
        print(f"cannot write to the scheduler log {argv[0]}: {error.strerror}", file=sys.stderr)
        return 1
    return _run(log, records)


def _run(log: Path, records: Path | None) -> int:
    process = read_process(os.getpid())
    if process is None:
        print("cannot read /proc/self/stat; is /proc mounted?", file=sys.stderr)
        return 1
    _fill_standard_descriptors()
    woken = _make_wakeup()
    starter = Starter(log.absolute(), records and records.absolute(), process)
    may_start = contextlib.nullcontext() if records is None else lock_file(starter_lock(records), wait=True)
    with may_start:
        starter.run_accepting(woken)
    # The lock is free now: another starter may take over while we see our jobs to their end.
    starter.run_remaining(woken)
    return 0
