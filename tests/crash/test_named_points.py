"""kill -9 of the worker at every point: nothing is submitted twice, nothing stays behind, no output is lost."""

import json
import tarfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import pytest

from batch_adapters.states import State
from jobmanager.acceptance import accept_grid_job
from jobmanager.account import Account
from jobmanager.batch import find_batch_system
from jobmanager.database import Database
from jobmanager.tombstone import put_tombstone
from jobmanager.worker import main as run_worker
from tests.conformance.fakes.site import SETTLE, Site
from tests.crash.points import CANCELLATION, GATHERING, SUBMISSION, Point, run_and_die
from tests.waiting import wait_until

COUNT = 3
"""Local jobs of a grid job: an array of two, and one alone."""


class Ground(Protocol):
    """A batch system, and an account that uses it."""

    name: str
    account: Account

    @property
    def database(self) -> Database:
        """The account's database."""

    def accept_three(self) -> str:
        """A new grid job of `COUNT` local jobs, each of which prints its number."""

    def work(self, task: str, subject: str) -> int:
        """The exit status of one worker."""

    def advance(self, seconds: float) -> None:
        """Let time pass."""

    def start(self) -> None:
        """Start what waits."""

    def run(self) -> None:
        """Let everything run to its end."""

    def runs(self, grid_job: str) -> dict[int, int]:
        """How often each local job has run."""

    def taken_ids(self, grid_job: str) -> list[str]:
        """The ids of all local jobs of a grid job that the batch system ever took."""

    def live_ids(self) -> list[str]:
        """The ids of those that wait or run."""


class FakeSlurm(Site):
    """A fake batch system, whose jobs run when they are told to."""

    def accept_three(self) -> str:
        return self.accept(COUNT)

    def runs(self, grid_job: str) -> dict[int, int]:
        return {job.number_in_grid_job: job.runs for job in self.taken(grid_job) if job.runs}

    def taken_ids(self, grid_job: str) -> list[str]:
        return [self.dialect.local_id(job) for job in self.taken(grid_job)]

    def live_ids(self) -> list[str]:
        return [self.dialect.local_id(job) for job in self.book.jobs() if job.is_live]


class Fork:
    """The embedded batch system, whose jobs leave a mark when they run and wait until they may go."""

    name = "fork"

    def __init__(self, account: Account, folder: Path) -> None:
        self.account = account
        self._folder = folder
        (folder / "marks").mkdir()

    @property
    def database(self) -> Database:
        return self.account.database

    def accept_three(self) -> str:
        mark = f'echo "output of $SAMGRID_INDEX"; echo run >>{self._folder}/marks/"$SAMGRID_INDEX"'
        script = f"{mark}; until [ -e {self._folder}/go ]; do sleep 0.05; done"
        words = {"samgrid_type": ("command",), "executable": ("/bin/sh",), "count": (str(COUNT),)}
        request = [*words.items(), ("arguments", ("-c", script))]
        return accept_grid_job(self.account, request, self._folder)

    def work(self, task: str, subject: str) -> int:
        return run_worker(["--state-dir", str(self.account.places.root), task, subject])

    def advance(self, seconds: float) -> None:
        """It needs no time."""

    def start(self) -> None:
        wait_until(lambda: len(list((self._folder / "marks").iterdir())) == COUNT)

    def run(self) -> None:
        (self._folder / "go").touch()
        wait_until(lambda: not self.live_ids())

    def runs(self, grid_job: str) -> dict[int, int]:
        return {int(mark.name): mark.read_text().count("run") for mark in (self._folder / "marks").iterdir()}

    def taken_ids(self, grid_job: str) -> list[str]:
        return [status.local_id for status in find_batch_system(self.account, "fork").query()]

    def live_ids(self) -> list[str]:
        statuses = find_batch_system(self.account, "fork").query()
        return [status.local_id for status in statuses if status.state in (State.PENDING, State.ACTIVE)]


@pytest.fixture(params=["fork", "slurm"])
def ground(
    request: pytest.FixtureRequest, account: Account, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Ground]:
    if request.param == "slurm":
        slurm = FakeSlurm("slurm", tmp_path / "site", monkeypatch)
        yield slurm
        slurm.check()
        return
    configuration = tmp_path / "samgrid.toml"
    configuration.write_text("[fork]\nslots = 9\ncancel_grace = 1\n[batch.fork]\nmax_array = 2\n")
    monkeypatch.setenv("SAMGRID_CONFIG", str(configuration))
    monkeypatch.setenv("SAMGRID_SANDBOX_SCRATCH_FOLDER", str(tmp_path))
    yield Fork(account, tmp_path)
    (tmp_path / "go").touch()


def work_until(ground: Ground, grid_job: str, task: str, is_done: Callable[[], bool]) -> None:
    """Start workers, as the monitor does, until the task is done."""
    for _ in range(8):
        status = ground.work(task, grid_job)
        if status == 0 and is_done():
            return
        ground.advance(SETTLE + 1)
    raise AssertionError(f"{task} does not come to an end")


def submit(ground: Ground, grid_job: str) -> None:
    work_until(ground, grid_job, "submit", lambda: State.UNSUBMITTED not in ground.database.count_local_jobs(grid_job))


def put_in_doubt(ground: Ground, grid_job: str) -> None:
    """Submit something and forget it."""
    point = Point("submit", "batch_adapters.batch_system.BatchSystem.submit", "after")
    run_and_die(point, lambda: ground.work("submit", grid_job))


def reconcile_until_over(ground: Ground, grid_job: str) -> None:
    def is_over() -> bool:
        return all(state.is_final for state in ground.database.count_local_jobs(grid_job))

    for _ in range(8):
        assert ground.work("reconcile", ground.name) == 0
        if is_over():
            return
        ground.advance(SETTLE + 1)
    raise AssertionError("its local jobs do not end")


def check_nothing_is_unknown(ground: Ground, grid_job: str) -> None:
    """What the batch system has taken is in the database, and nothing of it lives any more."""
    known = [str(job.local_id) for job in ground.database.local_jobs(grid_job) if job.local_id]
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
    work_until(ground, grid_job, "collect", lambda: ground.database.grid_job(grid_job).state.is_final)
    assert ground.database.grid_job(grid_job).state is State.DONE
    assert ground.runs(grid_job) == dict.fromkeys(range(1, COUNT + 1), 1)
    check_nothing_is_unknown(ground, grid_job)
    check_outputs(ground, grid_job)


@pytest.mark.parametrize("point", SUBMISSION, ids=str)
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
        if State.UNSUBMITTED in ground.database.count_local_jobs(grid_job) or "pack" in point.name:
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


@pytest.mark.parametrize("point", CANCELLATION, ids=str)
def test_a_worker_that_dies_while_it_cancels_leaves_nothing(ground: Ground, point: Point) -> None:
    grid_job = ground.accept_three()
    if point.in_doubt:
        put_in_doubt(ground, grid_job)
    else:
        submit(ground, grid_job)
        ground.start()
    assert put_tombstone(ground.database, grid_job, "cancelled by a test")
    run_and_die(point, lambda: ground.work(point.task, grid_job))
    work_until(ground, grid_job, "cancel", lambda: True)
    if ground.name == "fork":
        wait_until(lambda: not ground.live_ids())
    ground.advance(SETTLE + 1)
    reconcile_until_over(ground, grid_job)
    work_until(ground, grid_job, "collect", lambda: ground.database.grid_job(grid_job).state.is_final)
    assert ground.database.grid_job(grid_job).state is State.FAILED
    check_nothing_is_unknown(ground, grid_job)
    assert Counter(ground.runs(grid_job).values()).keys() <= {1}


@pytest.mark.parametrize("point", GATHERING, ids=str)
def test_a_worker_that_dies_while_it_gathers_loses_no_output(ground: Ground, point: Point) -> None:
    grid_job = ground.accept_three()
    submit(ground, grid_job)
    ground.run()
    if point.task == "collect":
        reconcile_until_over(ground, grid_job)
    run_and_die(point, lambda: ground.work(point.task, grid_job if point.task == "collect" else ground.name))
    assert not ground.database.grid_job(grid_job).state.is_final
    check_all_ran_once(ground, grid_job)
    leftovers = [path.name for path in ground.account.places.grid_job(grid_job).iterdir() if path.name.startswith(".")]
    assert leftovers == []
