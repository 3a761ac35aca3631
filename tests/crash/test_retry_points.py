"""kill -9 of the worker while a grid job tries a failed local job again and another still runs: once each attempt."""

from pathlib import Path

import pytest

from batch_adapters.states import State
from jobmanager.monitor.worker import main as run_worker
from jobmanager.requests.acceptance import accept_grid_job
from jobmanager.states.aggregation import Due, Task, next_task
from jobmanager.states.failures import find_due
from tests.crash.grounds import Fork
from tests.crash.points import RETRYING, Point, run_and_die
from tests.waiting import wait_until


def accept_failing(ground: Fork, folder: Path) -> str:
    """A grid job of two local jobs that leave marks: the first runs until it may go, the second fails at first."""
    mark = f'{folder}/marks/"$SAMGRID_INDEX"'
    wait = f'[ "$SAMGRID_INDEX" = 2 ] || : <{ground.gate.path}'
    script = f'echo run >>{mark}; {wait}; [ "$SAMGRID_INDEX" = 1 ] || [ "$(wc -l <{mark})" -gt 1 ]'
    words = {"samgrid_type": ("command",), "executable": ("/bin/sh",), "count": ("2",), "retries": ("1",)}
    return accept_grid_job(ground.account, [*words.items(), ("arguments", ("-c", script))], folder)


def find_task(ground: Fork, grid_job: str) -> Task | None:
    """What the monitor would start a worker for."""
    return next_task(ground.database.local_jobs.count(grid_job), False, find_due(ground.database, grid_job))


def take_next_task(ground: Fork, grid_job: str) -> None:
    """Do what the monitor would start a worker for, or hear of what has ended; let the first go when the second has."""
    task = find_task(ground, grid_job)
    if task is None:
        wait_until(lambda: len(ground.live_ids()) < 2)
        if ground.database.local_jobs.get(grid_job, 2).succeeded:
            ground.run()
        assert ground.work("reconcile", ground.name) == 0
    else:
        assert run_worker(["--state-dir", str(ground.account.places.root), task, grid_job]) == 0


@pytest.mark.parametrize("point", RETRYING, ids=str)
def test_a_worker_that_dies_while_it_tries_again_makes_each_attempt_once(
    fork: Fork, tmp_path: Path, point: Point
) -> None:
    grid_job = accept_failing(fork, tmp_path)
    while find_due(fork.database, grid_job) is not Due.NOW:
        take_next_task(fork, grid_job)
    assert fork.database.local_jobs.get(grid_job, 1).state is State.ACTIVE
    run_and_die(point, lambda: fork.work("submit", grid_job))
    for _ in range(20):
        take_next_task(fork, grid_job)
        if fork.database.grid_jobs.get(grid_job).state.is_final:
            break
    assert fork.database.grid_jobs.get(grid_job).state is State.DONE
    assert fork.runs(grid_job) == {1: 1, 2: 2}
    (attempt,) = fork.database.local_jobs.get(grid_job, 2).earlier_attempts()
    assert (attempt.local_id, fork.database.local_jobs.get(grid_job, 2).local_id) == (
        f"{grid_job}-1.2",
        f"{grid_job}-2.1",
    )
