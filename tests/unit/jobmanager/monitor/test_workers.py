"""The monitor's workers: which of them start when, and what is told of those that could not do their task."""

import selectors
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from batch_adapters.states import State
from jobmanager.database.database import DatabaseError
from jobmanager.database.grid_job import GridJob
from jobmanager.database.grid_jobs import GridJobs
from jobmanager.database.local_job import LocalJob
from jobmanager.monitor import workers as workers_module
from jobmanager.monitor.child import Child
from jobmanager.monitor.workers import BUSY, HANDLER_PATIENCE, HUNG, LOST, POSTPONED, Postponement, Workers
from jobmanager.site.account import Account
from jobmanager.site.settings import MonitorSettings
from jobmanager.states.aggregation import Task
from jobmanager.submission.submit import write_intent
from tests.unit.grid_jobs import make_grid_job, put, put_local_jobs
from tests.waiting import turn_until

ONE, TWO, THREE = "aaaaaaaa", "bbbbbbbb", "cccccccc"


class Bench:
    """Workers that are a shell script, and a clock that stands until it is put on."""

    def __init__(self, account: Account, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.account = account
        self.database = account.database
        self.selector = selectors.DefaultSelector()
        self.workers = Workers(account, self._start)
        self.now = 1000.0
        self._folder = folder
        clock = SimpleNamespace(monotonic=lambda: self.now, time=lambda: self.now)
        monkeypatch.setattr(workers_module, "time", clock)
        self.let_workers("exit 0")

    def let_workers(self, script: str) -> None:
        """What the workers do that start from now on; they write down their arguments first."""
        new = self._folder / "worker.new"
        new.write_text(f'#!/bin/sh\necho "$*" >>{self._folder}/started\n{script}\n')
        new.chmod(0o755)
        new.rename(self._folder / "worker")

    def _start(self, task: Task, name: str) -> Child:
        return Child(self.selector, [str(self._folder / "worker"), task, name], lambda block: None)

    def started(self) -> list[str]:
        """The arguments of each worker that started."""
        path = self._folder / "started"
        return path.read_text().splitlines() if path.exists() else []

    def let_go(self) -> None:
        """Let those workers end that wait for it (`WAIT`)."""
        (self._folder / "go").touch()

    def wait_for(self, is_so: Callable[[], bool]) -> None:
        turn_until(self.selector, is_so, self.workers.reap)

    def finish(self) -> None:
        """Be the loop until no worker runs."""
        self.wait_for(lambda: not self.workers.are_busy)

    def run(self, task: Task, subject: str) -> None:
        """Start a worker, whose time must have come, and see it to its end."""
        number = len(self.started())
        self.workers.start(task, subject)
        self.finish()
        assert len(self.started()) == number + 1, "no worker was started"

    def problem(self, grid_job: str) -> str | None:
        """What the database says that keeps a grid job from going on."""
        return self.database.grid_jobs.get(grid_job).problem


@pytest.fixture
def bench(account: Account, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    for job_id in (ONE, TWO, THREE):
        put(account.database, make_grid_job(job_id))
    limited = replace(account.configuration, monitor=MonitorSettings(workers=2))
    folder = tmp_path / "bench"
    folder.mkdir()
    bench = Bench(replace(account, configuration=limited), folder, monkeypatch)
    yield bench
    bench.let_go()
    bench.finish()
    bench.selector.close()


@pytest.fixture
def waiting(tmp_path: Path) -> str:
    """The script of a worker that runs until `Bench.let_go`."""
    return f"until [ -e {tmp_path}/bench/go ]; do sleep 0.01; done"


def test_a_worker_gets_its_task_and_its_subject(bench: Bench) -> None:
    assert not bench.workers.are_busy
    bench.workers.start(Task.SUBMIT, ONE)
    assert bench.workers.are_busy
    bench.finish()
    assert bench.started() == [f"submit {ONE}"]
    assert not bench.selector.get_map()


@pytest.mark.parametrize(
    ("running", "wanted"), [(Task.SUBMIT, Task.SUBMIT), (Task.CANCEL, Task.COLLECT), (Task.COLLECT, Task.CANCEL)]
)
def test_of_a_grid_job_one_worker_runs_at_a_time(bench: Bench, waiting: str, running: Task, wanted: Task) -> None:
    bench.let_workers(waiting)
    bench.workers.start(running, ONE)
    bench.now += 3600
    bench.workers.start(wanted, ONE)
    bench.let_go()
    bench.finish()
    assert bench.started() == [f"{running} {ONE}"]
    bench.run(wanted, ONE)


@pytest.mark.parametrize("begun", [Task.SUBMIT, Task.ADVANCE])
@pytest.mark.parametrize("wanted", [Task.CANCEL, Task.COLLECT])
def test_a_cancel_ends_a_worker_that_still_begins_something(bench: Bench, begun: Task, wanted: Task) -> None:
    bench.let_workers("exec sleep 3600")
    bench.workers.start(begun, ONE)
    bench.wait_for(lambda: bool(bench.started()))
    bench.let_workers("exit 0")
    bench.workers.start(wanted, ONE, cancelled=True)
    bench.finish()
    assert bench.started() == [f"{task} {ONE}" for task in (begun, wanted)]
    assert bench.workers.problems() == ""


def intend(bench: Bench) -> None:
    """Let an array of the first grid job be on its way."""
    put_local_jobs(bench.database, ONE, LocalJob.new(1, "fork", None))
    assert write_intent(bench.database, ONE, 1) is not None


def test_a_cancel_waits_for_the_answer_to_a_submit_command(bench: Bench, waiting: str) -> None:
    bench.let_workers(waiting)
    bench.workers.start(Task.SUBMIT, ONE)
    intend(bench)
    bench.account.places.grid_job(ONE).mkdir(parents=True)
    # Another worker reads what programs of earlier arrays print.
    bench.account.places.of_handler(ONE, "lines", "asked").touch()
    bench.workers.start(Task.CANCEL, ONE, cancelled=True)
    bench.let_go()
    bench.finish()
    assert bench.started() == [f"submit {ONE}"]
    bench.run(Task.CANCEL, ONE)


@pytest.mark.parametrize("question", ["check", "pack"])
def test_a_worker_that_asks_a_handler_is_ended_though_an_array_is_in_doubt(bench: Bench, question: str) -> None:
    bench.let_workers("exec sleep 3600")
    bench.workers.start(Task.SUBMIT, ONE)
    bench.wait_for(lambda: bool(bench.started()))
    intend(bench)
    bench.account.places.grid_job(ONE).mkdir(parents=True)
    bench.account.places.of_handler(ONE, question, "asked").touch()
    bench.let_workers("exit 0")
    bench.workers.start(Task.CANCEL, ONE, cancelled=True)
    bench.finish()
    assert bench.started() == [f"submit {ONE}", f"cancel {ONE}"]


def test_only_so_many_workers_run_at_once_and_the_next_starts_when_one_has_ended(bench: Bench, waiting: str) -> None:
    bench.let_workers(waiting)
    for subject in (ONE, TWO, THREE):
        bench.workers.start(Task.SUBMIT, subject)
    bench.wait_for(lambda: len(bench.started()) == 2)
    bench.let_go()
    bench.finish()
    assert sorted(bench.started()) == [f"submit {ONE}", f"submit {TWO}"]
    bench.run(Task.SUBMIT, THREE)


def test_a_task_that_is_needed_again_waits_longer_each_time(bench: Bench) -> None:
    bench.let_workers("exit 75")
    for wait in (1, 2, 4):
        bench.run(Task.SUBMIT, ONE)
        bench.now += wait - 0.1
        bench.workers.start(Task.SUBMIT, ONE)
        assert not bench.workers.are_busy, "too early"
        bench.now += 0.2


def test_a_task_that_failed_after_long_is_not_begun_again_at_once(bench: Bench, waiting: str) -> None:
    bench.let_workers(f"{waiting}\nexit 75")
    bench.workers.start(Task.COLLECT, ONE)
    bench.now += 60
    bench.let_go()
    bench.finish()
    bench.now += 0.9
    bench.workers.start(Task.COLLECT, ONE)
    assert bench.started() == [f"collect {ONE}"]
    bench.now += 0.2
    bench.run(Task.COLLECT, ONE)


def test_the_next_task_does_not_wait_for_the_one_before(bench: Bench) -> None:
    bench.let_workers("exit 75")
    bench.run(Task.SUBMIT, ONE)
    bench.run(Task.CANCEL, ONE)
    bench.run(Task.SUBMIT, TWO)


def test_a_worker_that_fails_says_why_in_its_last_line(bench: Bench) -> None:
    bench.let_workers("echo Traceback >&2; echo the disk is full >&2; exit 75")
    bench.run(Task.SUBMIT, ONE)
    assert bench.workers.problems() == f"{ONE}: submit: the disk is full\n"
    assert str(bench.problem(ONE)).startswith("submit: the disk is full (since ")
    assert bench.problem(TWO) is None


def test_a_worker_that_dies_without_a_word_is_a_problem_too(bench: Bench) -> None:
    bench.let_workers("kill -9 $$")
    bench.run(Task.COLLECT, ONE)
    assert bench.workers.problems() == f"{ONE}: collect: the worker ended with status -9\n"


def test_a_worker_that_is_killed_after_the_end_is_no_problem_of_a_grid_job_that_has_ended(bench: Bench) -> None:
    bench.database.grid_jobs.change(ONE, lambda job: job.end(State.DONE, 2000))
    bench.let_workers("kill -9 $$")
    bench.run(Task.COLLECT, ONE)
    assert bench.problem(ONE) is None


def test_another_worker_that_is_still_at_it_is_no_problem(bench: Bench) -> None:
    bench.let_workers(f"exit {BUSY}")
    bench.run(Task.SUBMIT, ONE)
    assert bench.workers.problems() == ""
    assert bench.problem(ONE) is None


def test_a_problem_is_over_when_the_task_is_done(bench: Bench) -> None:
    bench.let_workers("echo the disk is full >&2; exit 75")
    bench.run(Task.SUBMIT, ONE)
    bench.let_workers("echo a warning >&2")
    bench.now += 3600
    bench.run(Task.SUBMIT, ONE)
    assert bench.workers.problems() == ""
    assert bench.problem(ONE) is None


def test_a_problem_says_since_when_and_not_how_often(bench: Bench) -> None:
    bench.let_workers("echo the disk is full >&2; exit 75")
    bench.run(Task.SUBMIT, ONE)
    first = bench.problem(ONE)
    bench.now += 3600
    bench.run(Task.SUBMIT, ONE)
    assert bench.problem(ONE) == first


def test_a_problem_of_several_is_told_of_each(bench: Bench) -> None:
    bench.let_workers('echo "$1 of $2 failed" >&2; exit 1')
    bench.run(Task.SUBMIT, ONE)
    bench.run(Task.CANCEL, TWO)
    assert bench.workers.problems().splitlines() == [
        f"{ONE}: submit: submit of {ONE} failed",
        f"{TWO}: cancel: cancel of {TWO} failed",
    ]


def test_a_problem_that_cannot_be_written_down_is_kept_in_mind(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(grid_jobs: GridJobs, job: GridJob) -> None:
        raise DatabaseError("job database: database or disk is full")

    monkeypatch.setattr(GridJobs, "put", fail)
    bench.let_workers("echo the disk is full >&2; exit 75")
    bench.run(Task.SUBMIT, ONE)
    assert bench.workers.problems() == f"{ONE}: submit: the disk is full\n"
    assert bench.problem(ONE) is None


def test_grid_jobs_that_have_ended_are_forgotten_but_not_their_running_workers(bench: Bench, waiting: str) -> None:
    bench.let_workers("exit 75")
    bench.run(Task.SUBMIT, ONE)
    bench.run(Task.SUBMIT, TWO)
    bench.let_workers(waiting)
    bench.workers.start(Task.COLLECT, THREE)
    bench.workers.forget_all_but({TWO})
    assert bench.workers.problems().startswith(TWO)
    assert bench.workers.are_busy
    bench.let_go()
    bench.finish()


def test_a_batch_system_that_answers_is_looked_at_as_often_as_wanted(bench: Bench) -> None:
    for _ in range(3):
        bench.run(Task.RECONCILE, "fork")
    bench.let_workers("echo cannot connect >&2; exit 75")
    bench.run(Task.RECONCILE, "fork")
    assert bench.workers.problems() == "fork: reconcile: cannot connect\n"
    bench.workers.start(Task.RECONCILE, "fork")
    assert not bench.workers.are_busy, "one that does not answer is left alone for a while"


@pytest.mark.parametrize("status", [0, 1])
def test_a_worker_may_end_after_its_grid_job_was_removed(bench: Bench, waiting: str, status: int) -> None:
    bench.let_workers(f"echo problem >&2\n{waiting}\nexit {status}")
    bench.workers.start(Task.COLLECT, ONE)
    with bench.database.transaction():
        bench.database.grid_jobs.delete(ONE)
    bench.let_go()
    bench.finish()
    assert bench.workers.problems() == ("" if status == 0 else f"{ONE}: collect: problem\n")


def test_who_waits_for_a_handler_gives_its_place_to_others(bench: Bench, waiting: str) -> None:
    bench.let_workers(waiting)
    for subject in (ONE, TWO):
        bench.workers.start(Task.SUBMIT, subject)
        bench.account.places.grid_job(subject).mkdir(parents=True)
        bench.account.places.of_handler(subject, "pack", "asked").touch()
    bench.workers.start(Task.SUBMIT, THREE)
    bench.now += HANDLER_PATIENCE
    bench.wait_for(lambda: len(bench.started()) == 2)
    bench.workers.start(Task.SUBMIT, THREE)
    bench.wait_for(lambda: len(bench.started()) == 3)
    bench.let_go()
    bench.finish()


def test_a_cancel_waits_for_no_other_task(bench: Bench, waiting: str) -> None:
    bench.let_workers(waiting)
    for subject, task in ((ONE, Task.SUBMIT), (TWO, Task.COLLECT), (THREE, Task.CANCEL)):
        bench.workers.start(task, subject)
    bench.wait_for(lambda: f"cancel {THREE}" in bench.started())
    bench.let_go()
    bench.finish()


@pytest.mark.parametrize("ended", [False, True], ids=["heard of it", "its process had to be ended"])
def test_a_handler_that_hangs_is_asked_again_after_longer_pauses(bench: Bench, waiting: str, ended: bool) -> None:
    bench.account.places.grid_job(ONE).mkdir(parents=True)
    bench.let_workers(f"{waiting}\nexit {1 if ended else HUNG}")
    bench.let_go()
    for number in (1, 2):
        bench.workers.start(Task.SUBMIT, ONE)
        bench.now += 900
        bench.account.places.of_handler(ONE, "pack", "asked").write_text("Timeout" if ended else "")
        bench.finish()
        bench.now += number * 900 - 1
        bench.workers.start(Task.SUBMIT, ONE)
        assert not bench.workers.are_busy, "too early"
        bench.now += 1
    assert len(bench.started()) == 2


@pytest.mark.parametrize(("end", "status"), [("exit 0", 0), ("kill -9 $$", -9)])
def test_a_worker_that_ends_while_it_asks_a_handler_has_not_done_its_task(bench: Bench, end: str, status: int) -> None:
    bench.account.places.grid_job(ONE).mkdir(parents=True)
    bench.account.places.of_handler(ONE, "pack", "asked").touch()
    bench.let_workers(end)
    bench.run(Task.SUBMIT, ONE)
    problem = f"submit: the worker ended with status {status}, while it asked the handler"
    assert str(bench.problem(ONE)).startswith(problem)
    assert bench.workers.problems() == f"{ONE}: {problem}\n"


class Fallen:
    """A worker that has died with its server."""

    last_output = "the workers' server ended with status -9"

    def exit_status(self) -> int:
        return LOST

    def kill(self) -> None: ...


def falling(bench: Bench) -> tuple[Workers, Callable[[int], None]]:
    """Workers that fall at once, and a check that one grid job begins after such a pause, the other after the next."""
    begun: list[str] = []

    def start(task: Task, name: str) -> Fallen:
        begun.append(name)
        return Fallen()

    def check_pauses(seconds: int) -> None:
        for pause, expected in ((seconds - 1, []), (1, [ONE]), (seconds - 1, []), (1, [TWO])):
            bench.now += pause
            begun.clear()
            for name in (ONE, TWO):
                workers.start(Task.SUBMIT, name)
            assert begun == expected

    workers = Workers(bench.account, start)
    return workers, check_pauses


def test_those_that_ended_together_are_asked_again_apart(bench: Bench) -> None:
    workers, check_pauses = falling(bench)
    for name in (ONE, TWO):
        bench.account.places.grid_job(name).mkdir(parents=True)
        bench.account.places.of_handler(name, "pack", "asked").touch()
        workers.start(Task.SUBMIT, name)
    bench.now += 900
    workers.reap()
    assert f"{TWO}: submit: {Fallen.last_output}, while it asked the handler\n" in workers.problems()
    check_pauses(900)


def test_those_that_died_with_their_server_are_started_again_apart(bench: Bench) -> None:
    workers, check_pauses = falling(bench)
    for _ in range(50):
        bench.now += 900
        for name in (ONE, TWO):
            workers.start(Task.SUBMIT, name)
        workers.reap()
    check_pauses(50)


def test_a_batch_system_that_says_not_now_is_asked_again_after_growing_pauses(bench: Bench) -> None:
    bench.let_workers(f"echo Queue is not enabled >&2\nexit {POSTPONED}")
    pauses = []
    bench.run(Task.SUBMIT, ONE)
    for _ in range(7):
        begun = bench.now
        while not bench.workers.are_busy:
            bench.now += 1
            bench.workers.start(Task.SUBMIT, ONE)
        bench.finish()
        pauses.append(bench.now - begun)
    assert pauses == [4, 8, 16, 32, 60, 60, 60]
    assert "Queue is not enabled" in bench.workers.problems()
    bench.let_workers("exit 0")
    bench.now += Postponement.LONGEST
    bench.run(Task.SUBMIT, ONE)
    bench.now += 10
    bench.run(Task.SUBMIT, ONE)
