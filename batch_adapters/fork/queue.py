"""The queue process of one spool: owns the slots, feeds one fork starter, sees every job to a recorded end.

All it knows is in the spool, and every step can be repeated by the next queue process. Its starter may be killed (the
jobs become our children, since we are their subreaper), or it itself (its starter goes on and writes the ends).
"""

import logging
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from batch_adapters.causes import Cause
from batch_adapters.fork.arrays import Array, Arrays
from batch_adapters.fork.client import StarterClient
from batch_adapters.fork.processes import (
    Process,
    is_alive,
    read_end,
    read_ended_child,
    read_own_end,
    read_started_seconds,
    run_become_subreaper,
    run_signal_group,
    run_signal_orphans,
)
from batch_adapters.fork.protocol import Refused
from batch_adapters.fork.records import (
    LOST_EXIT_CODE,
    End,
    Record,
    read_local_id,
    read_record_file,
    record_path,
    render_cancelled,
    write_claim,
    write_end,
    write_events,
    write_stop,
)
from batch_adapters.fork.spool import Spool, lock_file, starter_lock
from batch_adapters.fork.submission import render_job, render_local_id
from batch_adapters.fork.watch import Watch
from batch_adapters.states import Event, State

IDLE_SECONDS = 3.0
# How often we look again for an end that a living starter is about to write, and for orphans to reap.
END_SECONDS, REAP_SECONDS = 0.02, 5.0
RETRY_SECONDS = 1.0
# What is cancelled before it starts has no exit code; PBS and its generator say 0 as well.
CANCELLED_EXIT_CODE = 0

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Running:
    """A job whose process lives; `stop_at`: when, in CLOCK_BOOTTIME seconds, its group gets `stop_signal`."""

    process: Process
    stop_at: float | None
    cause: Cause = Cause.TIME_LIMIT
    stop_signal: signal.Signals = signal.SIGTERM


class Queue:
    """The jobs of one spool; used by the process that holds the spool's lock."""

    def __init__(self, spool: Spool, slots: int, grace: float) -> None:
        self._spool = spool
        self._slots = slots
        self._grace = grace
        self._arrays = Arrays(spool)
        self._watch = Watch(spool.wake)
        self._running: dict[str, _Running] = {}
        # Their processes are dead, their ends not yet seen to be recorded.
        self._ending: dict[str, Process | None] = {}
        self._starter: StarterClient | None = None
        self._feed_after = 0.0
        self._woken = True

    @property
    def unreadable(self) -> frozenset[str]:
        """The tokens that were left alone, since their submissions cannot be read."""
        return self._arrays.unreadable

    def run(self) -> None:
        """Serve until nothing has been left to do for a while."""
        run_become_subreaper()
        self._wait_for_starts()
        while self._arrays or self._woken:
            try:
                self._take_step()
            except OSError as error:
                # Most likely a full disk: nothing is forgotten, the step is repeated.
                log.warning("%s; trying again", error)
                time.sleep(RETRY_SECONDS)
        self._close()

    def _close(self) -> None:
        if self._starter is not None:
            self._starter.close()
        # Nobody can wake us any more: what comes from now on starts the next queue process.
        self._watch.close()

    def _take_step(self) -> None:
        if self._woken:
            self._read_news()
            self._read_cancels()
            self._woken = False
        self._write_ends()
        self._reap_orphans()
        self._stop_overdue()
        self._feed()
        self._woken, ended = self._watch.wait(self._read_patience() if self._arrays else IDLE_SECONDS)
        for local_id in ended:
            self._ending[local_id] = self._running.pop(local_id).process

    def _read_patience(self) -> float:
        """For how many seconds there is nothing to do unless something happens."""
        now = _now()
        times = [running.stop_at for running in self._running.values() if running.stop_at is not None]
        if self._ending:
            times.append(now + END_SECONDS)
        if self._feed_after > now:
            times.append(self._feed_after)
        elif len(self._running) < self._slots and self._arrays.read_next() is not None:
            times.append(now)
        return min([now + REAP_SECONDS, *times]) - now

    def _wait_for_starts(self) -> None:
        """Wait until no earlier starter can still start a job, so that the records tell all that runs."""
        with lock_file(starter_lock(self._spool.jobs), wait=True):
            return

    def _read_news(self) -> None:
        for array in self._arrays.read_new():
            self._arrays.take_in(array)
            submission = array.submission
            log.info("%s %d-%d: %d waiting", submission.token, submission.first, submission.last, len(array.waiting))
        for array in self._arrays:
            while array.claimed:
                self._adopt(render_local_id(array.submission.token, array.claimed[0]), array)
                array.claimed.popleft()

    def _read_cancels(self) -> None:
        for marker in self._spool.cancel.iterdir():
            local_id = marker.name
            array = self._arrays.find(local_id)
            if array is None:
                marker.unlink(missing_ok=True)
            elif local_id in self._running:
                self._stop(self._running[local_id])
            elif local_id not in self._ending and not self._adopt(local_id, array):
                # Its claim is older than its marker, but only the marker outlived a power failure.
                write_claim(self._record_path(local_id), render_cancelled(int(time.time())), durable=False)
                self._adopt(local_id, array)

    def _stop(self, running: _Running) -> None:
        if running.stop_signal is signal.SIGTERM:
            running.stop_at = _now()
            running.cause = Cause.CANCELLED_OUTSIDE

    def _stop_overdue(self) -> None:
        now = _now()
        for local_id, running in self._running.items():
            if running.stop_at is not None and running.stop_at <= now and is_alive(running.process):
                if running.stop_signal is signal.SIGTERM:
                    self._write_stop(local_id, running.cause)
                log.info("%s gets %s", local_id, running.stop_signal.name)
                run_signal_group(running.process.pid, running.stop_signal)
                # One that is suspended would not hear it.
                run_signal_group(running.process.pid, signal.SIGCONT)
                running.stop_signal = signal.SIGKILL
                running.stop_at = now + self._grace

    def _write_stop(self, local_id: str, cause: Cause) -> None:
        try:
            write_stop(self._record_path(local_id), cause)
        except OSError as error:
            # That it ends matters more than that its record says why.
            log.warning("%s: cannot write down why it is ended: %s", local_id, error)

    def _feed(self) -> None:
        """Fill the free slots; at most one round of them, so that ends and cancels are not left waiting."""
        for _ in range(self._slots - len(self._running)):
            waiting = self._arrays.read_next()
            if waiting is None or _now() < self._feed_after:
                return
            self._start(*waiting)

    def _start(self, array: Array, index: int) -> None:
        local_id = render_local_id(array.submission.token, index)
        self._starter = self._starter or StarterClient(self._spool)
        answer = self._starter.start(render_job(array.submission, index))
        if answer is None:
            log.warning("%s: the fork starter died before it answered; taking another", local_id)
            self._starter.close()
            self._starter = None
            # Its last child may be on the way to its claim.
            self._wait_for_starts()
        elif isinstance(answer, Refused):
            log.warning("%s: refused, GRAM error %d: %s", local_id, answer.error, answer.reason)
        if self._adopt(local_id, array):
            array.waiting.popleft()
        else:
            self._feed_after = _now() + RETRY_SECONDS

    def _adopt(self, local_id: str, array: Array) -> bool:
        """Watch a claimed job; False where it has no claim."""
        record = read_record_file(self._record_path(local_id))
        if record is None:
            return False
        if record.end or record.process is None or not self._watch.add(local_id, record.process):
            self._ending[local_id] = record.process
            return True
        minutes = array.submission.wall_minutes
        stop_at = read_started_seconds(record.process) + 60 * minutes if minutes else None
        self._running[local_id] = _Running(record.process, stop_at)
        return True

    def _write_ends(self) -> None:
        for local_id, process in list(self._ending.items()):
            path = self._record_path(local_id)
            if not _is_end_due(read_record_file(path)):
                continue
            # Read again: its starter may have written the end just before it died.
            _write_missing_end(self._spool.events, local_id, path, read_record_file(path))
            if process is not None and read_own_end(process) is not None:
                os.waitpid(process.pid, 0)
            self._arrays.write_end(*_read_place(local_id))
            del self._ending[local_id]

    def _reap_orphans(self) -> None:
        """Reap ended starters and what our jobs' descendants left us; jobs are reaped when their ends are written."""
        jobs = {running.process.pid for running in self._running.values()}
        jobs |= {process.pid for process in self._ending.values() if process is not None}
        while (child := read_ended_child()) is not None and child.si_pid not in jobs:
            os.waitpid(child.si_pid, 0)

    def _record_path(self, local_id: str) -> Path:
        return record_path(self._spool.jobs, *_read_place(local_id))


def _is_end_due(record: Record | None) -> bool:
    """True where a dead job's end is written, or where nobody but us will write it."""
    if record is None or record.end or record.starter is None:
        return True
    return not is_alive(record.starter)


def _write_missing_end(events: Path, local_id: str, path: Path, record: Record | None) -> None:
    if record is None:
        raise ValueError(f"the record {path} has disappeared; nobody may remove records while their jobs run")
    if record.end is not None:
        return
    end = _read_outcome(record, int(time.time()))
    write_events(events, [Event(end.timestamp, local_id, end.state, end.exit_code)])
    write_end(path, end)
    log.info("%s: %s %d%s", local_id, end.state.word, end.exit_code, " (lost)" if end.lost else "")


def _read_outcome(record: Record, now: int) -> End:
    """How a job ended whose starter is dead: as our child says, else lost; what is left of its group is killed."""
    if record.cancelled:
        return End(State.FAILED, CANCELLED_EXIT_CODE, now)
    child = read_own_end(record.process) if record.process else None
    if record.process is None or child is None:
        if record.process is not None:
            run_signal_orphans(record.process)
        return End(State.FAILED, LOST_EXIT_CODE, now, lost=True)
    run_signal_group(record.process.pid, signal.SIGKILL)
    state, exit_code = read_end(child)
    return End(state, exit_code, now)


def _read_place(local_id: str) -> tuple[str, int]:
    place = read_local_id(local_id)
    if place is None:
        raise ValueError(f"{local_id!r} is no local id")
    return place


def _now() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)
