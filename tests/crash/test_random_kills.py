"""kill -9 of whatever works for a grid job, at random moments: every local job still runs exactly once."""

import itertools
import json
import os
import random
import signal
import subprocess
import sys
import tarfile
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.conftest import processes_of
from tests.samgrid import LAUNCH, Samgrid

SEED = int(os.environ.get("SAMGRID_TEST_SEED", "0")) or random.SystemRandom().randrange(1, 10**6)
"""Of the moments and victims; a failed test tells it."""

WORKERS = "samgrid-worker"
JOB_MANAGER = ("samgrid-monitor", "samgrid-scheduler-event-generator", WORKERS)
BATCH_SYSTEM = ("samgrid-fork-starter", "samgrid-fork\0--spool")


def parent_of(pid: int) -> int | None:
    """The parent's pid; None if there is no such process any more."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return None


def choose(found: list[int], victim: str, randomness: random.Random) -> list[int]:
    """Which of a victim's processes are killed."""
    if victim == WORKERS:
        # Their server, which takes them all along, or one of them.
        return randomness.sample(found, min(1, len(found)))
    # A child between fork and exec looks like its parent, but is a local job already: not ours to kill.
    return [pid for pid in found if parent_of(pid) not in found]


def kill_at_random(samgrid: Samgrid, watching: subprocess.Popen[str], victims: tuple[str, ...]) -> dict[str, int]:
    """Kill the victims one after another until the watching command has ended; how many of each were hit."""
    randomness = random.Random(SEED)
    turns = itertools.cycle(randomness.sample(victims, len(victims)))
    killed = dict.fromkeys(victims, 0)
    deadline = time.monotonic() + 600
    while watching.poll() is None:
        assert time.monotonic() < deadline, "the grid job does not end"
        time.sleep(randomness.uniform(0.05, 1.0))
        victim = next(turns)
        for pid in choose(processes_of(samgrid.state, victim), victim, randomness):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
            killed[victim] += 1
    return killed


@pytest.mark.parametrize(
    ("victims", "local_jobs"),
    [pytest.param(JOB_MANAGER, 1000, id="job manager"), pytest.param(BATCH_SYSTEM, 300, id="batch system")],
)
def test_every_local_job_runs_exactly_once_whoever_is_killed(
    samgrid: Samgrid, tmp_path: Path, victims: tuple[str, ...], local_jobs: int
) -> None:
    samgrid = replace(samgrid, settings={"SAMGRID_FORK_SLOTS": "16", "SAMGRID_MONITOR_RECONCILE_INTERVAL": "1"})
    marks = tmp_path / "marks"
    marks.mkdir()
    script = f'echo run >>{marks}/"$SAMGRID_INDEX"; exec /bin/true'
    identity = samgrid.submit(
        f"&(samgrid_type=command)(executable=/bin/sh)(arguments=-c '{script}')(count={local_jobs})"
    )
    watching = subprocess.Popen(
        [sys.executable, "-P", str(LAUNCH), "samgrid", "watch", identity],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=samgrid.environment(),
    )
    killed = kill_at_random(samgrid, watching, victims)
    output, _ = watching.communicate()
    told = f"seed {SEED}, killed {killed}\n{output[-3000:]}"
    assert watching.returncode == 0, told
    assert all(killed[victim] for victim in victims[:2]), told
    runs = {int(mark.name): mark.read_text().count("run") for mark in marks.iterdir()}
    assert runs == dict.fromkeys(range(1, local_jobs + 1), 1), told
    (row,) = json.loads(samgrid("status", "--format", "json", identity).stdout)
    assert (row["state"], row["counts"]) == ("done", {"done": local_jobs}), told
    with tarfile.open(samgrid.state / "jobs" / identity / f"{identity}.tar") as tar:
        names = tar.getnames()
    assert len([name for name in names if name.endswith(".stdout")]) == local_jobs, told
    assert [path.name for path in (samgrid.state / "jobs" / identity).glob("*.tar*")] == [f"{identity}.tar"], told
