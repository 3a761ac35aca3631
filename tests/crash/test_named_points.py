"""kill -9 of the worker at every point: nothing is submitted twice, nothing stays behind, no output is lost."""

import json
import tarfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from batch_adapters.states import State
from jobmanager.control.cancel_requests import request_cancel
from jobmanager.site.account import Account
from tests.conformance.fakes.site import SETTLE
from tests.crash.grounds import COUNT, FakeSlurm, Ground, make_fork
from tests.crash.points import CANCELLATION, GATHERING, SUBMISSION, Point, run_and_die


@pytest.fixture(params=["fork", "slurm"])
def ground(
    request: pytest.FixtureRequest, account: Account, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Ground]:
    if request.param == "slurm":
        slurm = FakeSlurm("slurm", tmp_path / "site", monkeypatch)
        yield slurm
        slurm.check()
        return
    settings = "[fork]\nslots = 9\ncancel_grace = 1\n[batch.fork]\nmax_array = 2\n"
    fork = make_fork(account, tmp_path, monkeypatch, settings)
    yield fork
    fork.close()


def at_each(points: Iterable[Point]) -> pytest.MarkDecorator:
    """Of both batch systems, where they have a part in it."""
    cases = [
        pytest.param(ground, point, id=f"{ground}-{point}")
        for point in points
        for ground in (("slurm",) if point.is_inside else ("fork", "slurm"))
    ]
    return pytest.mark.parametrize(("ground", "point"), cases, indirect=["ground"])


def work_until(ground: Ground, grid_job: str, task: str, is_done: Callable[[], bool]) -> None:
    """Start workers, as the monitor does, until the task is done."""
    for _ in range(8):
        status = ground.work(task, grid_job)
        if status == 0 and is_done():
            return
        ground.advance(SETTLE + 1)
    raise AssertionError(f"{task} does not come to an end")


def submit(ground: Ground, grid_job: str) -> None:
    work_until(ground, grid_job, "submit", lambda: State.UNSUBMITTED not in ground.database.local_jobs.count(grid_job))


def put_in_doubt(ground: Ground, grid_job: str) -> None:
    """Submit something and forget it."""
    point = Point("submit", "batch_adapters.running.batch_system.BatchSystem.submit", "after")
    run_and_die(point, lambda: ground.work("submit", grid_job))


def reconcile_until_over(ground: Ground, grid_job: str) -> None:
    def is_over() -> bool:
        return all(state.is_final for state in ground.database.local_jobs.count(grid_job))

    for _ in range(8):
        assert ground.work("reconcile", ground.name) == 0
        if is_over():
            return
        ground.advance(SETTLE + 1)
    raise AssertionError("its local jobs do not end")


def check_nothing_is_unknown(ground: Ground, grid_job: str) -> None:
    """What the batch system has taken is in the database, and nothing of it lives any more."""
    known = [str(job.local_id) for job in ground.database.local_jobs.all_of(grid_job) if job.local_id]
    assert sorted(known) == sorted(ground.taken_ids(grid_job))
    assert ground.live_ids() == []


def check_outputs(ground: Ground, grid_job: str) -> None:
    """Every output is in the tar, once."""
    with tarfile.open(ground.account.places.output(grid_job)) as tar:
        names = tar.getnames()
        manifest = json.load(tar.extractfile(f"{grid_job}/manifest.json") or pytest.fail("there is no manifest"))
        outputs = [tar.extractfile(name) for name in names if name.endswith(".stdout")]
        texts = sorted(output.read().decode() for output in outputs if output)
    assert len(names) == len(set(names))
    assert manifest["missing"] == []
    assert texts == [f"output of {index}\n" for index in range(1, COUNT + 1)]


def check_all_ran_once(ground: Ground, grid_job: str) -> None:
    """Go on to the end of the grid job: each local job has run once, and its output is there."""
    ground.run()
    reconcile_until_over(ground, grid_job)
    work_until(ground, grid_job, "collect", lambda: ground.database.grid_jobs.get(grid_job).state.is_final)
    assert ground.database.grid_jobs.get(grid_job).state is State.DONE
    assert ground.runs(grid_job) == dict.fromkeys(range(1, COUNT + 1), 1)
    check_nothing_is_unknown(ground, grid_job)
    check_outputs(ground, grid_job)


@at_each(SUBMISSION)
def test_a_worker_that_dies_while_it_submits_submits_once(ground: Ground, point: Point) -> None:
    grid_job = ground.accept_three()
    if point.in_doubt:
        put_in_doubt(ground, grid_job)
    run_and_die(point, lambda: ground.work(point.task, grid_job))
    submit(ground, grid_job)
    check_all_ran_once(ground, grid_job)


def test_workers_that_die_at_every_point_one_after_another_submit_once(ground: Ground) -> None:
    grid_job = ground.accept_three()
    for point in [point for point in SUBMISSION if point.call == 1 and not point.in_doubt]:
        if State.UNSUBMITTED in ground.database.local_jobs.count(grid_job) or "pack" in point.name:
            run_until_point_or_end(ground, grid_job, point)
        ground.advance(SETTLE + 1)
    submit(ground, grid_job)
    check_all_ran_once(ground, grid_job)


def run_until_point_or_end(ground: Ground, grid_job: str, point: Point) -> None:
    """A point behind which an earlier worker has come need not be reached again."""
    try:
        run_and_die(point, lambda: ground.work(point.task, grid_job))
    except pytest.fail.Exception:
        return


@at_each(CANCELLATION)
def test_a_worker_that_dies_while_it_cancels_leaves_nothing(ground: Ground, point: Point) -> None:
    grid_job = ground.accept_three()
    if point.in_doubt:
        put_in_doubt(ground, grid_job)
    else:
        submit(ground, grid_job)
        ground.start()
    assert request_cancel(ground.database, grid_job, "cancelled by a test")
    run_and_die(point, lambda: ground.work(point.task, grid_job))
    work_until(ground, grid_job, "cancel", lambda: True)
    ground.wait_for_ends()
    ground.advance(SETTLE + 1)
    reconcile_until_over(ground, grid_job)
    work_until(ground, grid_job, "collect", lambda: ground.database.grid_jobs.get(grid_job).state.is_final)
    assert ground.database.grid_jobs.get(grid_job).state is State.FAILED
    check_nothing_is_unknown(ground, grid_job)
    assert Counter(ground.runs(grid_job).values()).keys() <= {1}


@at_each(GATHERING)
def test_a_worker_that_dies_while_it_gathers_loses_no_output(ground: Ground, point: Point) -> None:
    grid_job = ground.accept_three()
    submit(ground, grid_job)
    ground.run()
    if point.task == "collect":
        reconcile_until_over(ground, grid_job)
    run_and_die(point, lambda: ground.work(point.task, grid_job if point.task == "collect" else ground.name))
    assert not ground.database.grid_jobs.get(grid_job).state.is_final
    check_all_ran_once(ground, grid_job)
    leftovers = [path.name for path in ground.account.places.grid_job(grid_job).iterdir() if path.name.startswith(".")]
    assert leftovers == []
