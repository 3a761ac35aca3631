"""Stops running jobs and lets them go on; a job's stopped process is all there is to remember."""

import signal
import time
from collections.abc import Iterable

from batch_adapters.fork.jobs import read_local_id, read_run_file, write_events
from batch_adapters.fork.processes import is_alive, is_stopped, run_signal_group
from batch_adapters.fork.spool import Spool
from batch_adapters.states import Event, State


def run_suspend(spool: Spool, ids: Iterable[str]) -> None:
    """Stop all processes of these jobs, and print what became of each."""
    _signal_jobs(spool, ids, signal.SIGSTOP, State.SUSPENDED)


def run_resume(spool: Spool, ids: Iterable[str]) -> None:
    """Let them go on."""
    _signal_jobs(spool, ids, signal.SIGCONT, State.ACTIVE)


def _signal_jobs(spool: Spool, ids: Iterable[str], number: signal.Signals, state: State) -> None:
    for local_id in ids:
        is_done = read_local_id(local_id) is not None and _signal_job(spool, local_id, number)
        if is_done:
            write_events(spool.events, [Event(int(time.time()), local_id, state)])
        print(f"{local_id} {'signalled' if is_done else 'not-running'}")


def _signal_job(spool: Spool, local_id: str, number: signal.Signals) -> bool:
    """True where the job's processes got a signal that changes something."""
    run = read_run_file(spool.run / local_id)
    if run is None or run.end is not None or run.process is None or not is_alive(run.process):
        return False
    if is_stopped(run.process) == (number is signal.SIGSTOP):
        return False
    run_signal_group(run.process.pid, number)
    return True
