"""kill -9 of the worker while a grid job tries its failed local jobs again: each attempt is made once."""

from pathlib import Path

import pytest

from batch_adapters.states import State
from jobmanager.monitor.worker import main as run_worker
from jobmanager.requests.acceptance import accept_grid_job
from jobmanager.site.account import Account
from jobmanager.states.aggregation import next_task
from tests.crash.grounds import Fork
from tests.crash.points import RETRYING, Point, run_and_die


def accept_failing(account: Account, folder: Path) -> str:
    """A grid job of two local jobs, both of which leave a mark; the second fails at its first attempt."""
    mark = f'{folder}/marks/"$SAMGRID_INDEX"'
    script = f'echo run >>{mark}; [ "$SAMGRID_INDEX" = 1 ] || [ "$(wc -l <{mark})" -gt 1 ]'
    words = {"samgrid_type": ("command",), "executable": ("/bin/sh",), "count": ("2",), "retries": ("1",)}
    return accept_grid_job(account, [*words.items(), ("arguments", ("-c", script))], folder)


def take_next_task(ground: Fork, grid_job: str, point: Point | None = None) -> bool:
    """Do what the monitor would start a worker for; True if that worker was killed at the point."""
    job = ground.database.grid_jobs.get(grid_job)
    task = next_task(ground.database.local_jobs.count(grid_job), job.cancelled)
    if task is None:
        ground.wait_for_ends()
        assert ground.work("reconcile", ground.name) == 0
    elif point is not None and point.task == task:
        run_and_die(point, lambda: ground.work(task, grid_job))
        return True
    else:
        assert run_worker(["--state-dir", str(ground.account.places.root), task, grid_job]) == 0
    return False


@pytest.mark.parametrize("point", RETRYING, ids=str)
def test_a_worker_that_dies_while_it_tries_again_makes_each_attempt_once(
    fork: Fork, tmp_path: Path, point: Point
) -> None:
    grid_job = accept_failing(fork.account, tmp_path)
    if point.task == "submit":
        # The first attempt passes unharmed: the point is of the second.
        while fork.database.grid_jobs.get(grid_job).last_token is None:
            take_next_task(fork, grid_job)
    was_killed = False
    for _ in range(20):
        was_killed = take_next_task(fork, grid_job, None if was_killed else point) or was_killed
        if fork.database.grid_jobs.get(grid_job).state.is_final:
            break
    assert was_killed
    assert fork.database.grid_jobs.get(grid_job).state is State.DONE
    assert fork.runs(grid_job) == {1: 1, 2: 2}
    (attempt,) = fork.database.local_jobs.get(grid_job, 2).earlier_attempts()
    assert (attempt.local_id, fork.database.local_jobs.get(grid_job, 2).local_id) == (
        f"{grid_job}-1.2",
        f"{grid_job}-2.1",
    )
