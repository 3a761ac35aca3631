"""The queue process of one spool: it manages the slots, starts the jobs and records the end of each.

All its state is in the spool, and the next queue process can repeat every step.
"""

import logging
import os
import signal
import sqlite3
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from batch_adapters.fork.processes import (
    Process,
    ProcessWatch,
    find_boottime,
    find_session_leader,
    is_alive,
    is_waited_for,
    read_boot,
    read_end,
    read_own_end,
    read_process,
    read_started_seconds,
    run_signal_group,
    run_signal_orphans,
)
from batch_adapters.fork.protocol import StartRefused
from batch_adapters.fork.spool import (
    EVENTS_BYTES,
    JobEnd,
    JobRun,
    Spool,
    StoredSubmission,
    forget_old,
    has_work,
    read_run_file,
    read_submission,
    remove_claim,
    render_end,
    render_job,
    render_local_id,
    render_process,
    rotate,
    write_claim,
    write_events,
    write_to_claim,
)
from batch_adapters.fork.starter import CLAIM_VARIABLE, run_program
from batch_adapters.states import Cause, Event, GramError, State
from sandbox.files import locked

IDLE_SECONDS = 3.0
# Interval at which we check for an end that the keeper is about to write.
END_SECONDS = 0.02
RETRY_SECONDS, LONGEST_WAIT = 1.0, 60.0
LOST_EXIT_CODE = 255
# A job that is cancelled before its start has no exit code; PBS and its generator use 0 as well.
CANCELLED_EXIT_CODE = 0
# The exit codes of the shell if a program is not found, or cannot be run.
NOT_FOUND, CANNOT_RUN = 127, 126

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class QueuedJob:
    """One job: its submission's number and token, and its index."""

    number: int
    token: str
    index: int

    @property
    def local_id(self) -> str:
        """TOKEN.INDEX."""
        return render_local_id(self.token, self.index)


@dataclass(slots=True)
class _Running:
    """A started job; `stop_at`: when (CLOCK_BOOTTIME, seconds) its process group gets `stop_signal`."""

    job: QueuedJob
    process: Process | None = None
    stop_at: float | None = None
    cause: Cause = Cause.TIME_LIMIT
    stop_signal: signal.Signals = signal.SIGTERM
    cores: int = 1


class Queue:
    """The jobs of one spool; used by the process that holds the spool's lock."""

    def __init__(self, spool: Spool, slots: int, grace: float, keeper: int) -> None:
        """``keeper``: the pid that our parent has, or had; raises KeeperDied."""
        self._spool = spool
        self._slots = slots
        self._grace = grace
        self._watch = ProcessWatch(spool.wake, keeper)
        self._running: dict[str, _Running] = {}
        # Started, but not yet recorded.
        self._started: dict[str, Process] = {}
        # Their processes are dead (None), or could not be started (then the end is known).
        self._dead: dict[str, JobEnd | None] = {}
        # Their ends are known, but not yet recorded.
        self._ended: dict[str, JobEnd] = {}
        self._feed_after = 0.0
        # By then a keeper has recorded the ends of jobs that an earlier queue process left.
        self._keeper_deadline = _now() + RETRY_SECONDS
        self._woken = True
        # Whether a job waits; True until we have checked.
        self._waits = True
        # Whether jobs that we do not know may be running.
        self._in_doubt = True
        self._read_submission = lru_cache(64)(self._read_stored_submission)

    def run(self) -> None:
        """Serve until there has been nothing to do for a while; raises KeeperDied."""
        try:
            # Claims are complete only once no earlier queue process can start a job any more.
            with locked(self._spool.starter_lock, wait=True):
                while self._woken or self._running or has_work(self._spool):
                    self._try_step()
        finally:
            # From now on nobody can wake us: a new submission starts the next queue process.
            self._watch.close()

    def _try_step(self) -> None:
        try:
            if self._in_doubt:
                self._take_stock()
            self._take_step()
        except (OSError, sqlite3.OperationalError) as error:
            # Most likely the disk is full: repeat the step.
            log.warning("%s; trying again", error)
            self._in_doubt = True
            time.sleep(RETRY_SECONDS)

    def _take_step(self) -> None:
        if self._woken:
            self._read_news()
            self._woken = False
        self._write_started()
        self._write_dead()
        self._feed()
        self._stop_overdue()
        woken, dead = self._watch.wait(self._read_patience())
        self._woken = self._woken or woken
        self._dead.update(dict.fromkeys(dead))

    def _read_patience(self) -> float:
        """The number of seconds to wait for events before the next step."""
        now = _now()
        if self._woken or self._ended or any(self._dead.values()):
            return 0.0
        if not self._running and not self._waits:
            return IDLE_SECONDS
        times = [running.stop_at for running in self._running.values() if running.stop_at is not None]
        if self._dead:
            times.append(now + END_SECONDS)
        if self._feed_after > now:
            times.append(self._feed_after)
        return min([now + LONGEST_WAIT, *times]) - now

    # --- what others have changed

    def _take_stock(self) -> None:
        """Find all running jobs, also those of a queue process that was killed."""
        jobs = self._find_jobs("state = 'running'")
        self._claim_after_boot(jobs)
        for stale in {path.name for path in self._spool.run.iterdir()} - {job.local_id for job in jobs}:
            remove_claim(self._path(stale))
        self._put_back([job for job in jobs if not self._adopt(job)])
        self._in_doubt = False

    def _claim_after_boot(self, jobs: Sequence[QueuedJob]) -> None:
        """Claim all jobs that ran when the machine stopped: claims are not synced to disk, so theirs may be lost."""
        database = self._spool.database
        if database.execute("SELECT id FROM boot").fetchone() == (read_boot(),):
            return
        for job in jobs:
            write_claim(self._spool.run / job.local_id)
        with self._spool.transaction():
            database.execute("DELETE FROM boot")
            database.execute("INSERT INTO boot VALUES (?)", (read_boot(),))

    def _put_back(self, jobs: Sequence[QueuedJob]) -> None:
        """Queue jobs without a claim again."""
        if not jobs:
            return
        with self._spool.transaction() as database:
            change = "UPDATE job SET state = 'queued' WHERE submission = ? AND job = ? AND state = 'running'"
            database.executemany(change, [(job.number, job.index) for job in jobs])
        self._woken = True

    def _find_jobs(self, condition: str, index: str = "job_open", limit: int = -1) -> list[QueuedJob]:
        # SQLite uses a partial index only if its condition is repeated literally; else it searches all jobs ever run.
        of_index = {"job_open": "state IN ('queued', 'running')", "job_cancel": "cancel"}[index]
        select = f"SELECT submission, token, job FROM job INDEXED BY {index} JOIN submission ON number = submission"
        query = f"{select} WHERE {of_index} AND {condition} ORDER BY submission, job LIMIT ?"
        return [QueuedJob(*row) for row in self._spool.database.execute(query, (limit,))]

    def _read_news(self) -> None:
        self._waits = True
        forget_old(self._spool)
        rotate(self._spool.events, EVENTS_BYTES, 2)
        database = self._spool.database
        new = "SELECT number, token, last FROM submission WHERE NOT announced ORDER BY number"
        for number, token, last in database.execute(new).fetchall():
            self._write_events((render_local_id(token, index), State.PENDING, 0) for index in range(1, last + 1))
            with self._spool.transaction():
                database.execute("UPDATE submission SET announced = 1 WHERE number = ?", (number,))
            log.info("%s 1-%d", token, last)
        self._read_cancels()

    def _read_cancels(self) -> None:
        cancelled = []
        for job in self._find_jobs("cancel", "job_cancel"):
            running = self._running.get(job.local_id)
            if running is None:
                cancelled.append(job)
            elif running.stop_signal is signal.SIGTERM:
                running.stop_at, running.cause = _now(), Cause.CANCELLED_OUTSIDE
        if not cancelled:
            return
        with self._spool.transaction() as database:
            # Only jobs that have not started.
            unstarted = (
                "UPDATE job SET state = 'cancelled', cause = ? WHERE submission = ? AND job = ? AND state = 'queued'"
            )
            cause = Cause.CANCELLED_OUTSIDE.value
            database.executemany(unstarted, [(cause, job.number, job.index) for job in cancelled])
            self._end_submissions({job.number for job in cancelled})
        over = {(job.number, job.index) for job in self._find_jobs("state = 'cancelled'", "job_cancel")}
        cancelled = [job for job in cancelled if (job.number, job.index) in over]
        self._write_events((job.local_id, State.FAILED, CANCELLED_EXIT_CODE) for job in cancelled)
        with self._spool.transaction() as database:
            told = "UPDATE job SET cancel = 0 WHERE submission = ? AND job = ?"
            database.executemany(told, [(job.number, job.index) for job in cancelled])

    # --- starting and ending

    def _feed(self) -> None:
        """Record what has ended, and fill the free slots, in one transaction."""
        taken = sum(running.cores for local_id, running in self._running.items() if local_id not in self._ended)
        free = max(0, self._slots - taken) if _now() >= self._feed_after else 0
        if not self._ended and not (free and self._waits):
            return
        ended = [(self._running[local_id].job, end) for local_id, end in self._ended.items()]
        with self._spool.transaction() as database:
            self._write_ended(ended)
            found = self._find_jobs("state = 'queued' AND NOT cancel", limit=free)
            jobs = self._fit(found, free)
            started = [(job.number, job.index) for job in jobs]
            database.executemany("UPDATE job SET state = 'running' WHERE submission = ? AND job = ?", started)
        self._waits = len(found) == free or len(jobs) < len(found)
        for job, _ in ended:
            process = self._running.pop(job.local_id).process
            if process is not None and read_own_end(process) is not None:
                os.waitpid(process.pid, 0)
            del self._ended[job.local_id]
            remove_claim(self._path(job.local_id))
        unstarted = [job for job in jobs if not self._start(job)]
        self._put_back(unstarted)
        if unstarted:
            self._feed_after = _now() + RETRY_SECONDS

    def _fit(self, jobs: Sequence[QueuedJob], free: int) -> Sequence[QueuedJob]:
        """The first jobs for which there are slots; later, smaller jobs do not overtake."""
        for position, job in enumerate(jobs):
            free -= self._read_cores(job.number)
            if free < 0:
                return jobs[:position]
        return jobs

    def _write_ended(self, ended: Sequence[tuple[QueuedJob, JobEnd]]) -> None:
        changes = [(_render_native(end), end.exit_code, job.number, job.index) for job, end in ended]
        change = "UPDATE job SET state = ?, exit_code = ?, cancel = 0 WHERE submission = ? AND job = ?"
        self._spool.database.executemany(change, changes)
        self._end_submissions({job.number for job, _ in ended})

    def _end_submissions(self, numbers: set[int]) -> None:
        left = "SELECT 1 FROM job WHERE submission = number AND state IN ('queued', 'running')"
        change = f"UPDATE submission SET ended = ? WHERE number = ? AND ended IS NULL AND NOT EXISTS ({left})"
        self._spool.database.executemany(change, [(int(time.time()), number) for number in numbers])

    def _start(self, job: QueuedJob) -> bool:
        """Start a job, or note the end of one that cannot start; False if it may be tried again: it has no claim."""
        path, submission = self._path(job.local_id), self._read_submission(job.number)
        if submission is None:
            return self._note_refused(job, CANNOT_RUN)
        try:
            pid = run_program(render_job(submission, job.token, job.index), 0, path)
        except StartRefused as refusal:
            log.warning("%s: refused, GRAM error %d: %s", job.local_id, refusal.error, refusal)
            if refusal.for_good:
                # The process may have created the claim before its exec failed.
                write_claim(path)
            if read_run_file(path) != JobRun():
                return self._adopt(job)
            is_missing = refusal.error == GramError.EXECUTABLE_NOT_FOUND
            return self._note_refused(job, NOT_FOUND if is_missing else CANNOT_RUN)
        process = read_process(pid, zombie=True)
        if process is None:
            raise OSError("cannot read /proc; is it mounted?")
        self._note_running(job, process)
        self._started[job.local_id] = process
        self._write_started()
        self._watch_process(job.local_id)
        return True

    def _note_refused(self, job: QueuedJob, exit_code: int) -> bool:
        self._running[job.local_id] = _Running(job)
        self._dead[job.local_id] = JobEnd(State.FAILED, exit_code, int(time.time()))
        return True

    def _note_running(self, job: QueuedJob, process: Process | None) -> None:
        submission = self._read_submission(job.number)
        # If the submission can no longer be read, its running jobs continue without a limit.
        minutes = submission.wall_minutes if submission else 0
        stop_at = read_started_seconds(process) + 60 * minutes if process and minutes else None
        self._running[job.local_id] = _Running(job, process, stop_at, cores=self._read_cores(job.number))

    def _watch_process(self, local_id: str) -> None:
        process = self._running[local_id].process
        if process is None or not self._watch.add(local_id, process):
            self._dead[local_id] = None

    def _write_started(self) -> None:
        if not self._started:
            return
        for local_id, process in self._started.items():
            write_to_claim(self._path(local_id), render_process(process))
        self._write_events((local_id, State.ACTIVE, 0) for local_id in self._started)
        self._started.clear()

    def _read_stored_submission(self, number: int) -> StoredSubmission | None:
        row = self._spool.database.execute("SELECT text FROM submission WHERE number = ?", (number,)).fetchone()
        try:
            return read_submission(row[0])
        except ValueError as error:
            log.warning("submission %d cannot be read, and its jobs cannot be run: %s", number, error)
            return None

    def _read_cores(self, number: int) -> int:
        """The number of slots that a job takes; at most all there are."""
        submission = self._read_submission(number)
        return min(max(1, submission.cores), self._slots) if submission else 1

    def _adopt(self, job: QueuedJob) -> bool:
        """Watch a claimed job unless we do already; False if it has no claim."""
        local_id = job.local_id
        if local_id in self._watch or local_id in self._ended or local_id in self._dead:
            return True
        if local_id not in self._running:
            if read_run_file(self._path(local_id)) is None:
                return False
            self._note_running(job, find_process(self._path(local_id)))
        self._watch_process(local_id)
        return True

    def _path(self, local_id: str) -> Path:
        return self._spool.run / local_id

    def _write_dead(self) -> None:
        for local_id, known in list(self._dead.items()):
            end = known or self._find_end(local_id)
            if end is not None:
                self._write_end(local_id, end)
                del self._dead[local_id]

    def _find_end(self, local_id: str) -> JobEnd | None:
        """How a job with a dead process ended; None if a keeper may still record it."""
        process = self._running[local_id].process
        child = read_own_end(process) if process else None
        if process is not None and child is not None:
            run_signal_group(process.pid, signal.SIGKILL)
            return JobEnd(*read_end(child), int(time.time()))
        may_come = is_waited_for(process, self._spool.root) if process else _now() < self._keeper_deadline
        # Read only after that check. The end may be logged twice: its writer may have died before or after logging it.
        run = read_run_file(self._path(local_id)) or JobRun()
        if run.end is not None or may_come:
            return run.end
        if process is not None:
            run_signal_orphans(process)
        return JobEnd(State.FAILED, LOST_EXIT_CODE, int(time.time()), lost=True)

    def _write_end(self, local_id: str, end: JobEnd) -> None:
        """Log an end; if we are killed before it is recorded, the next queue process finds it in the claim."""
        if not end.lost:
            write_to_claim(self._path(local_id), render_end(end))
        self._write_events([(local_id, end.state, end.exit_code)], end.timestamp)
        log.info("%s: %s %d%s", local_id, end.state.word, end.exit_code, " (lost)" if end.lost else "")
        self._ended[local_id] = end

    def _write_events(self, changes: Iterable[tuple[str, State, int]], timestamp: int | None = None) -> None:
        now = int(time.time()) if timestamp is None else timestamp
        write_events(self._spool.events, (Event(now, *change) for change in changes))

    # --- stopping

    def _stop_overdue(self) -> None:
        now = _now()
        for local_id, running in self._running.items():
            if running.stop_at is None or running.stop_at > now or local_id in self._ended or local_id in self._dead:
                continue
            if running.stop_signal is signal.SIGTERM:
                self._write_cause(running)
            process = running.process
            if process is not None and is_alive(process):
                log.info("%s gets %s", local_id, running.stop_signal.name)
                run_signal_group(process.pid, running.stop_signal)
                # A suspended process would not handle the signal.
                run_signal_group(process.pid, signal.SIGCONT)
            running.stop_signal = signal.SIGKILL
            running.stop_at = now + self._grace

    def _write_cause(self, running: _Running) -> None:
        try:
            with self._spool.transaction() as database:
                change = "UPDATE job SET cause = ? WHERE submission = ? AND job = ? AND cause IS NULL"
                database.execute(change, (running.cause.value, running.job.number, running.job.index))
        except sqlite3.OperationalError as error:
            # Ending the job matters more than recording why.
            log.warning("%s: cannot write down why it is ended: %s", running.job.local_id, error)


def find_process(path: Path, slack: float = 1.0) -> Process | None:
    """The process of a claimed job, even if a queue process was killed before recording it.

    ``slack``: the number of seconds by which the clock may have been adjusted since the claim was created.
    """
    run = read_run_file(path) or JobRun()
    if run.process is not None or run.end is not None or not path.exists():
        return run.process
    made = find_boottime(path.stat().st_mtime)
    process = find_session_leader(CLAIM_VARIABLE + b"=" + os.fsencode(path), made + slack)
    if process is not None:
        write_to_claim(path, render_process(process))
    return process


def _render_native(end: JobEnd) -> str:
    return "lost" if end.lost else "ended" if end.state is State.DONE else "killed"


def _now() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)
