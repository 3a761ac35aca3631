"""How long `samgrid status` takes with many grid jobs, and with one of very many local jobs."""

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from grid_report import Row

from batch_adapters.launch import command_line
from batch_adapters.states import State
from jobmanager.database.grid_job import GridJob
from jobmanager.database.local_job import Evidence, LocalJob
from jobmanager.site.account import Account, open_account

MANY = (1_000, 100)
LARGE = (1, 10_000)
"""Grid jobs, local jobs of each."""
_BEGIN = 1_000_000_000


def measure_status(folder: Path, runs: int) -> Iterator[Row]:
    """The command in a process of its own, from its start to its end."""
    for grid_jobs, local_jobs in (MANY, LARGE):
        state = folder / f"{grid_jobs}"
        state.parent.mkdir(exist_ok=True)
        account = open_account(str(state))
        for number in range(grid_jobs):
            _write_grid_job(account, f"a{number:07}", local_jobs)
        account.database.close()
        what = f"with {grid_jobs:,} × {local_jobs:,} local jobs"
        yield Row(f"`samgrid status` {what}", "ms", _time(state, runs))
        yield Row(f"`samgrid status ID` {what}", "ms", _time(state, runs, "a0000000"))


def _time(state: Path, runs: int, *words: str) -> tuple[float, ...]:
    """Milliseconds of each run."""
    command = command_line("samgrid", "status", *words)
    figures = []
    for _ in range(runs):
        begin = time.perf_counter()
        subprocess.run(command, stdout=subprocess.DEVNULL, env={**os.environ, "SAMGRID_STATE": str(state)}, check=True)
        figures.append((time.perf_counter() - begin) * 1e3)
    return tuple(figures)


def _write_grid_job(account: Account, job_id: str, local_jobs: int) -> None:
    """A grid job that has ended, so that nobody wakes a monitor for it."""
    job = GridJob.new(job_id, "command", "physicist", "fork", _BEGIN)
    job.put_request([("executable", ("/bin/true",))], Path("/"))
    job.put_slices(local_jobs, None, 1)
    job.end(State.DONE, _BEGIN)
    with account.database.transaction():
        account.database.grid_jobs.put(job)
        account.database.local_jobs.put(job_id, (_make(job_id, index) for index in range(1, local_jobs + 1)))


def _make(job_id: str, index: int) -> LocalJob:
    job = LocalJob.new(index, "fork", None)
    job.intend(f"{job_id}-1", _BEGIN)
    job.register(f"{job_id}-1.{index}", "", _BEGIN)
    for second, said in enumerate(("pending", "active", "done 0")):
        job.put_evidence(Evidence("log", said, _BEGIN + second, said))
    job.state, job.exit_code = State.DONE, 0
    job.driver, job.host, job.cpu_seconds = "ended", "node.example.org", 12.3
    job.started_time, job.ended_time = _BEGIN, _BEGIN + 10
    return job
