"""kill -9 of whatever works for a grid job, at random moments: every local job still runs exactly once."""

import json
import os
import random
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from tests.conftest import processes_of
from tests.samgrid import LAUNCH, Samgrid
from tests.waiting import SECONDS, Gate, wait_until

SEED = int(os.environ.get("SAMGRID_TEST_SEED", "0")) or random.SystemRandom().randrange(1, 10**6)
"""Of the moments and victims; a failed test tells it."""

STRIKES = 6
"""At each victim: no more, since on a busy machine nothing would get done between them."""

WORKERS = "samgrid-worker"
JOB_MANAGER = ("samgrid-monitor", "samgrid-scheduler-event-generator", WORKERS)
QUEUE, KEEPER = "samgrid-queue", "samgrid-keeper"
BATCH_SYSTEM = (KEEPER, QUEUE)


def parent_of(pid: int) -> int | None:
    """The parent's pid; None if there is no such process any more."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return None


def find(state: Path, victim: str) -> list[int]:
    """A victim's processes; the queue is a fork of its keeper, with a name of its own."""
    if victim not in BATCH_SYSTEM:
        return processes_of(state, victim)
    of_both = "samgrid-fork\0--spool"
    named = [pid for pid in processes_of(state, of_both) if (name_of(pid) == QUEUE) == (victim == QUEUE)]
    # A local job may have become its program, with another name, between the two looks.
    return [pid for pid in processes_of(state, of_both) if pid in named]


def name_of(pid: int) -> str:
    """What ps calls it."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""


def choose(found: list[int], victim: str, randomness: random.Random) -> list[int]:
    """Which of a victim's processes are killed."""
    if victim == WORKERS:
        # Their server, which takes them all along, or one of them.
        return randomness.sample(found, min(1, len(found)))
    # A child between fork and exec looks like its parent, but is a local job already: not ours to kill.
    return [pid for pid in found if parent_of(pid) not in found]


def kill_at_random(samgrid: Samgrid, victims: tuple[str, ...], is_over: Callable[[], bool]) -> dict[str, int]:
    """Strike at the victims, one after another, `STRIKES` times at each; how many processes of each were hit."""
    randomness = random.Random(SEED)
    killed = dict.fromkeys(victims, 0)

    def strike(victim: str) -> bool:
        """True where it need not be tried again: workers come and go; of the others one at least is to be hit."""
        for pid in choose(find(samgrid.state, victim), victim, randomness):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                killed[victim] += 1
        return victim == WORKERS or killed[victim] > 0 or is_over()

    for victim in randomness.sample(victims, len(victims)) * STRIKES:
        time.sleep(randomness.uniform(0.05, 0.5))
        wait_until(partial(strike, victim))
    return killed


@pytest.mark.parametrize(
    ("victims", "local_jobs"),
    [pytest.param(JOB_MANAGER, 60, id="job manager"), pytest.param(BATCH_SYSTEM, 40, id="batch system")],
)
def test_every_local_job_runs_exactly_once_whoever_is_killed(
    samgrid: Samgrid, tmp_path: Path, victims: tuple[str, ...], local_jobs: int
) -> None:
    samgrid = replace(samgrid, settings={"SAMGRID_FORK_SLOTS": "16", "SAMGRID_MONITOR_RECONCILE_INTERVAL": "1"})
    marks, gate = tmp_path / "marks", Gate(tmp_path / "go")
    marks.mkdir()
    # Each takes a while, for little CPU time, so that strikes find some at work; the last one waits for all strikes.
    script = f'echo run >>{marks}/"$SAMGRID_INDEX"; sleep 1; [ "$SAMGRID_INDEX" -lt {local_jobs} ] || : <{gate.path}'
    job_id = samgrid.submit(f"&(samgrid_type=command)(executable=/bin/sh)(arguments=-c '{script}')(count={local_jobs})")
    watching = subprocess.Popen(
        [sys.executable, "-P", str(LAUNCH), "samgrid", "watch", job_id],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=samgrid.environment(),
    )
    killed = kill_at_random(samgrid, victims, lambda: watching.poll() is not None)
    gate.open()
    output, _ = watching.communicate(timeout=SECONDS)
    gate.close()
    told = f"seed {SEED}, killed {killed}\n{output[-3000:]}"
    assert watching.returncode == 0, told
    assert all(killed[victim] for victim in victims[:2]), told
    runs = {int(mark.name): mark.read_text().count("run") for mark in marks.iterdir()}
    assert runs == dict.fromkeys(range(1, local_jobs + 1), 1), told
    (row,) = json.loads(samgrid("status", "--format", "json", job_id).stdout)
    assert (row["state"], row["counts"]) == ("done", {"done": local_jobs}), told
    with tarfile.open(samgrid.state / "jobs" / job_id / f"{job_id}.tar") as tar:
        names = tar.getnames()
    assert len([name for name in names if name.endswith(".stdout")]) == local_jobs, told
    assert [path.name for path in (samgrid.state / "jobs" / job_id).glob("*.tar*")] == [f"{job_id}.tar"], told
