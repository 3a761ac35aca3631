"""The keeper, parent of the queue process: only a parent learns how a job ended.

If the queue process is killed, its jobs become children of the keeper, which records their ends and forks a new queue
process. If the keeper is killed, the queue process starts a new pair of both, and keeps its own jobs.
"""

import fcntl
import logging
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import NoReturn

from batch_adapters.fork.processes import (
    KeeperDied,
    Process,
    find_boottime,
    find_ended_children,
    has_children,
    read_end,
    read_process,
    read_started_seconds,
    run_become_subreaper,
    run_signal_group,
)
from batch_adapters.fork.queue import RETRY_SECONDS, Queue, find_process
from batch_adapters.fork.spool import (
    JobEnd,
    JobRun,
    Spool,
    has_work,
    read_run_file,
    render_end,
    render_process,
    run_queue_if_none,
    write_keeper,
    write_to_claim,
)
from sandbox.files import locked, take_lock

_TICK, _LONGEST_START = 0.02, 10.0
"""Seconds: resolution of the kernel's times; longest time between a process' start and its claim."""

log = logging.getLogger(__name__)


def run_keeper(spool: Spool, slots: int, grace: float) -> None:
    """Keep a queue process as a child until nothing is left to do; standard input is the spool's lock."""
    # Both have the same command line; ps tells them apart by name.
    _name_process("samgrid-keeper")
    write_keeper(0)
    # If our parent ignored the signal, so would we: the kernel would reap the jobs, and their ends would be lost.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    run_become_subreaper()
    while True:
        try:
            child = os.fork()
        except OSError as error:
            log.warning("%s; trying again", error)
            time.sleep(RETRY_SECONDS)
            continue
        if child == 0:
            _run_and_exit(partial(_run_queue, spool, slots, grace, os.getppid()))
        began = time.monotonic()
        status = _wait_for(spool, child)
        if status == 0 or (status > 0 and not has_children()):
            return
        if status > 0 or time.monotonic() < began + RETRY_SECONDS:
            # It failed, perhaps because of a damaged disk or a lack of memory.
            time.sleep(RETRY_SECONDS)
        # Before the next queue process starts: it would not find unrecorded jobs.
        while not _try(partial(_write_unwritten, spool)):
            time.sleep(RETRY_SECONDS)


def _run_queue(spool: Spool, slots: int, grace: float, keeper: int) -> None:
    _name_process("samgrid-queue")
    try:
        with closing(spool):
            # A queue process that was killed here may have released the lock already.
            while take_lock(0):
                if has_work(spool):
                    Queue(spool, slots, grace, keeper).run()
                fcntl.flock(0, fcntl.LOCK_UN)
                # Commands may have seen the lock held after the queue had stopped listening: so check again.
                if not has_work(spool):
                    return
    except KeeperDied:
        log.warning("the keeper has died; another pair takes over")
        _keep_own_jobs(spool, partial(run_queue_if_none, spool, slots, grace))


def _keep_own_jobs(spool: Spool, run_successors: Callable[[], None]) -> None:
    """Start a new keeper and queue process, and record how our own jobs end."""
    fcntl.flock(0, fcntl.LOCK_UN)
    while not _try(partial(_run_in_child, run_successors)):
        time.sleep(RETRY_SECONDS)
    while has_children():
        ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
        if ended is not None and not _record_end(spool, ended):
            time.sleep(RETRY_SECONDS)


def _run_in_child(run: Callable[[], None]) -> None:
    # In a child of ours, because we wait for all our children: its children are not ours.
    if os.fork() == 0:
        _run_and_exit(run)


def _run_and_exit(run: Callable[[], None]) -> NoReturn:
    status = 1
    try:
        run()
        status = 0
    except Exception:
        log.exception("a process of the queue ends")
    finally:
        # Whatever happens, this process must not continue its parent's code.
        os._exit(status)


def _try(write: Callable[[], None]) -> bool:
    """False if it failed and must be tried again."""
    try:
        write()
    except OSError as error:
        log.warning("%s; trying again", error)
        return False
    return True


def _wait_for(spool: Spool, child: int) -> int:
    """The exit status of a child, or below 0 the signal that ended it."""
    while os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WSTOPPED | os.WNOWAIT)
        if ended is not None and ended.si_code == os.CLD_STOPPED:
            _pass_over_stop(ended.si_pid, child)
            continue
        # A job that ended together with the queue process may have only an empty claim, which is handled later.
        is_left = os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
        if ended is not None and is_left and not _record_end(spool, ended):
            time.sleep(RETRY_SECONDS)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _pass_over_stop(stopped: int, queue: int) -> None:
    """Let the queue process go on after a signal has stopped it; jobs are suspended on purpose."""
    with suppress(ChildProcessError):  # it was killed meanwhile
        os.waitid(os.P_PID, stopped, os.WSTOPPED | os.WNOHANG)
        if stopped == queue:
            log.warning("the queue process was stopped by a signal, and is let go on")
            os.kill(queue, signal.SIGCONT)


def _record_end(spool: Spool, ended: os.waitid_result) -> bool:
    """Record how a child ended and reap it; False if that must be tried again."""
    # Until then it stays a zombie, so the queue process knows that its end will be recorded.
    if not _try(partial(_write_left, spool, ended)):
        return False
    os.waitpid(ended.si_pid, 0)
    return True


def _write_left(spool: Spool, ended: os.waitid_result) -> None:
    """Record how a child ended, if it is a job of a killed queue process."""
    process = read_process(ended.si_pid, zombie=True)
    # Processes left over from jobs become our children, too; they are rarely session leaders.
    if process is None or os.getsid(process.pid) != process.pid:
        return
    for path in spool.run.iterdir():
        run = read_run_file(path)
        if run is not None and run.process == process:
            run_signal_group(process.pid, signal.SIGKILL)
            write_to_claim(path, render_end(JobEnd(*read_end(ended), int(time.time()))))


def _write_unwritten(spool: Spool) -> None:
    """Record the process of the job that a dead queue process started last, if it was killed before doing so."""
    # The process of that job may not have created its claim yet.
    with locked(spool.starter_lock, wait=True):
        runs = {path: read_run_file(path) for path in spool.run.iterdir()}
    claims = [path for path, run in runs.items() if run == JobRun()]
    for _ in range(2):
        # Running processes are found by their environment; leftovers of an ended job started after its claim.
        claims = [path for path in claims if find_process(path, _TICK) is None]
        if not claims:
            return
        # During exec, a process has no environment for a moment.
        time.sleep(_TICK)
    known = {run.process for run in runs.values() if run is not None}
    children = [process for process in find_ended_children() if process not in known]
    makers = {path: _find_maker(path, children) for path in claims}
    count = Counter(makers.values())
    for path, process in makers.items():
        if process is not None and count[process] == 1:
            write_to_claim(path, render_process(process))


def _find_maker(claim: Path, children: Sequence[Process]) -> Process | None:
    """The session leader that started just before the claim was created; None if there are several."""
    made = find_boottime(claim.lstat().st_mtime)
    fitting = [
        process
        for process in children
        if -_TICK <= made - read_started_seconds(process) <= _LONGEST_START and os.getsid(process.pid) == process.pid
    ]
    return fitting[0] if len(fitting) == 1 else None


def _name_process(name: str) -> None:
    Path("/proc/self/comm").write_text(name, encoding="ascii")
