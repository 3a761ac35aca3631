"""kill -9 of the worker while a structured grid job goes on: each step becomes one grid job, its input is whole."""

from pathlib import Path

import pytest

from batch_adapters.states import State
from jobmanager.database.grid_jobs import states_of
from jobmanager.requests.acceptance import accept_grid_job
from jobmanager.requests.rsl import read_rsl
from jobmanager.states.aggregation import Task, next_task, next_task_of_steps
from tests.crash.grounds import Fork
from tests.crash.points import ADVANCING, Point, run_and_die

_REQUEST = """&(samgrid_type = structured)(steps =
 (make (samgrid_type command) (executable /bin/sh) (count 3)
       (arguments -c "echo run >>{marks}/make$SAMGRID_INDEX; echo $SAMGRID_INDEX >output/part"))
 (read (samgrid_type command) (executable /bin/sh) (input_step make)
       (arguments -c "echo run >>{marks}/read; cat $SAMGRID_INPUT_FOLDER/*/part >{marks}/all")))"""


def find_task(ground: Fork, grid_job: str) -> Task | None:
    job = ground.database.grid_jobs.get(grid_job)
    if job.steps:
        states = states_of(ground.database.grid_jobs.steps_of(grid_job))
        return next_task_of_steps(states, job.needs, job.cancelled)
    return next_task(ground.database.local_jobs.count(grid_job), job.cancelled)


def work_once(ground: Fork) -> None:
    """Do one thing that the monitor would start a worker for."""
    for open_job in ground.database.grid_jobs.list_open():
        task = find_task(ground, open_job.id)
        if task is not None:
            assert ground.work(task, open_job.id) == 0
            return
    ground.wait_for_ends()
    assert ground.work("reconcile", ground.name) == 0


_DIAMOND = """&(samgrid_type = structured)(steps =
 (make (samgrid_type command) (executable /bin/sh) (arguments -c "echo run >>{marks}/make"))
 (one (samgrid_type command) (executable /bin/sh) (arguments -c "echo run >>{marks}/one"))
 (two (samgrid_type command) (executable /bin/sh) (arguments -c "echo run >>{marks}/two") (after make))
 (all (samgrid_type command) (executable /bin/sh) (arguments -c "echo run >>{marks}/all") (after one two)))"""


def die_and_go_on(fork: Fork, point: Point, whole: str, steps: int, folder: Path) -> dict[str, str]:
    """Kill a worker there and let others end the grid job: the marks that its local jobs leave."""
    run_and_die(point, lambda: fork.work(point.task, whole))
    for _ in range(30):
        work_once(fork)
        if fork.database.grid_jobs.get(whole).state.is_final:
            break
    assert fork.database.grid_jobs.get(whole).state is State.DONE
    assert len(fork.database.grid_jobs.overview()) == 1 + steps, "the whole and its steps"
    return {mark.name: mark.read_text() for mark in (folder / "marks").iterdir()}


@pytest.mark.parametrize(
    "point",
    [
        Point("advance", "jobmanager.workflow.add_grid_job", "after"),
        Point("advance", "jobmanager.workflow._begin_step", "after"),
        Point("advance", "jobmanager.workflow.add_grid_job", "after", call=2),
        Point("advance", "jobmanager.workflow._begin_step", "after", call=2),
    ],
    ids=str,
)
def test_a_worker_that_dies_while_it_begins_two_steps_begins_each_once(
    fork: Fork, tmp_path: Path, point: Point
) -> None:
    relations = read_rsl(_DIAMOND.format(marks=tmp_path / "marks"), {})
    whole = accept_grid_job(fork.account, [(relation.name, relation.values) for relation in relations], tmp_path)
    for _ in range(30):
        if fork.database.grid_jobs.steps_of(whole)[0].state == "done":
            break
        work_once(fork)
    assert find_task(fork, whole) == "advance"
    marks = die_and_go_on(fork, point, whole, 4, tmp_path)
    assert marks == dict.fromkeys(("make", "one", "two", "all"), "run\n")


@pytest.mark.parametrize("point", ADVANCING, ids=str)
def test_a_worker_that_dies_while_it_advances_begins_each_step_once(fork: Fork, tmp_path: Path, point: Point) -> None:
    relations = read_rsl(_REQUEST.format(marks=tmp_path / "marks"), {})
    whole = accept_grid_job(fork.account, [(relation.name, relation.values) for relation in relations], tmp_path)
    # Up to the second step, whose worker has most to do, or to the end.
    for _ in range(30):
        first, _ = fork.database.grid_jobs.steps_of(whole)
        if first.state == "done" and find_task(fork, whole) == point.task:
            break
        work_once(fork)
    marks = die_and_go_on(fork, point, whole, 2, tmp_path)
    assert marks == {"make1": "run\n", "make2": "run\n", "make3": "run\n", "read": "run\n", "all": "1\n2\n3\n"}
