"""Each local job is submitted exactly once: the real commands of fork behind a program that misbehaves on demand.

What test_batch_systems.py does on fakes of all batch systems is not done again here.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from lxml import etree

from batch_adapters.adapter import BatchAdapter, Command, LocalStatus, Submission, Unreachable
from batch_adapters.fork.adapter import FORK
from batch_adapters.naming import Naming
from batch_adapters.running.batch_system import BatchSystem
from batch_adapters.states import State
from jobmanager.control.cancel_requests import request_cancel
from jobmanager.database.database import Database
from jobmanager.database.local_jobs import LocalJobs
from jobmanager.monitor.worker import main as run_worker
from jobmanager.monitor.workers import TRY_LATER
from jobmanager.requests.acceptance import accept_grid_job
from jobmanager.site.account import Account
from jobmanager.states import registration
from jobmanager.states.registration import register_local_jobs
from jobmanager.submission import adoption
from jobmanager.submission import submit as submission
from tests.conformance.spool import Job, count_runs, install_fork, query_spool, wait_for_ends
from tests.conftest import processes_of
from tests.hanging import give_up_what_hangs
from tests.waiting import Gate, wait_until

COUNT = 3
ARRAY = 2
SLOTS = 9
GRACE = 1

WAYS = {
    "done, not said": ("hang-after", "fail-after", "die-after", "garbage-after", "silent-after"),
    "not done": ("hang-before", "fail-before", "die-before", "garbage-before", "silent-before"),
    "said badly": ("banner", "torn"),
}


def misbehaving(folder: Path) -> BatchAdapter:
    """The adapter of fork, each of its commands behind the program that misbehaves."""

    def behind(kind: str, command: Command) -> Command:
        return replace(command, argv=(str(folder / "misbehaving.sh"), kind, *command.argv))

    return replace(
        FORK,
        submit=behind("submit", FORK.submit),
        queue=behind("queue", FORK.queue),
        find=behind("find", FORK.find),
        cancel=behind("cancel", FORK.cancel),
        max_array=ARRAY,
    )


class GridJob:
    """One grid job whose local jobs leave a mark each time they run, and the batch system that it is on."""

    def __init__(self, account: Account, folder: Path) -> None:
        self.account = account
        self.database = account.database
        self._folder = folder
        (folder / "marks").mkdir(parents=True)
        # Beside the program, so that it finds its plan; a link would do but for its name in error messages.
        shutil.copy(Path(__file__).with_name("misbehaving.sh"), folder)
        self.adapter = misbehaving(folder)
        self.gate = Gate(folder / "go")
        self.accept(COUNT)

    def accept(self, count: int) -> None:
        """Be another grid job, of so many local jobs."""
        script = f'echo run >>{self._folder}/marks/"$SAMGRID_INDEX"; : <{self._folder}/go'
        request = [
            ("samgrid_type", ("command",)),
            ("executable", ("/bin/sh",)),
            ("arguments", ("-c", script)),
            ("count", (str(count),)),
        ]
        self.count, self.job_id = count, accept_grid_job(self.account, request, self._folder)

    def plan(self, kind: str, *ways: str) -> None:
        """Let the next commands of that kind misbehave, each in one of these ways."""
        (self._folder / f"{kind}.plan").write_text("".join(f"{way}\n" for way in ways))

    def put_down(self) -> None:
        """Let nobody answer."""
        (self._folder / "down").touch()

    def put_up(self) -> None:
        """Let commands be answered again."""
        (self._folder / "down").unlink()

    def let_late_commands_go(self) -> None:
        """Let those commands do their work that were told to be late."""
        (self._folder / "late").touch()

    def has_late_commands(self) -> bool:
        """True while a command runs, or the program that misbehaves before it."""
        return bool(processes_of(self._folder, "samgrid-fork", "submit"))

    def calls(self) -> list[str]:
        """The kinds of the batch commands so far."""
        return (self._folder / "calls").read_text().split() if (self._folder / "calls").exists() else []

    def work(self, task: str, subject: str | None = None) -> int:
        """The exit status of a worker for that task."""
        return run_worker(["--state-dir", str(self.account.places.root), task, subject or self.job_id])

    def work_until_done(self, task: str) -> int:
        """Run workers until one is done with the task, as the monitor does; how many it took."""
        for number in range(1, 12):
            if self.work(task) == 0 and not self._is_needed(task):
                return number
        raise AssertionError(f"{task} does not come to an end")

    def _is_needed(self, task: str) -> bool:
        return task == "submit" and State.UNSUBMITTED in self.counts()

    def counts(self) -> dict[State, int]:
        """Local jobs by state."""
        return self.database.local_jobs.count(self.job_id)

    def document(self) -> bytes:
        """All that the database says."""
        return etree.tostring(self.database.to_xml())

    def in_system(self) -> list[Job]:
        """Its local jobs in the batch system."""
        return query_spool(self.account.places.fork_spool, SLOTS, GRACE)

    def wait_for_ends(self) -> None:
        """Return when none of its jobs waits or runs in the batch system."""
        wait_for_ends(self.account.places.fork_spool, SLOTS, GRACE)

    def finish(self) -> None:
        """Let the local jobs end, and tell the database."""
        self.gate.open()
        self.wait_for_ends()
        assert self.work("reconcile", "fork") == 0

    def runs(self) -> dict[int, int]:
        """How often each local job has run."""
        return count_runs(self._folder / "marks")


@pytest.fixture
def silent_drivers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drivers that have not begun to write yet: else what they write would prove what nobody answers."""
    monkeypatch.setattr(adoption, "_add_drivers", lambda found, account, grid_job, token: None)


@pytest.fixture
def job(account: Account, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[GridJob]:
    monkeypatch.setenv("SAMGRID_SANDBOX_SCRATCH_FOLDER", str(tmp_path))
    monkeypatch.setenv("SAMGRID_FORK_SLOTS", f"{SLOTS}")
    monkeypatch.setenv("SAMGRID_FORK_CANCEL_GRACE", f"{GRACE}")
    job = GridJob(account, tmp_path / "toy")
    monkeypatch.setattr("batch_adapters.site_adapter.find_adapter", lambda name, tables: {"fork": job.adapter}[name])
    give_up_what_hangs(monkeypatch, tmp_path / "toy")
    resident = install_fork(tmp_path / "commands", monkeypatch)
    yield job
    job.gate.close()
    resident.close()


def check_each_ran_once(job: GridJob) -> None:
    job.finish()
    assert job.runs() == dict.fromkeys(range(1, job.count + 1), 1)
    assert len(job.in_system()) == job.count
    assert job.counts() == {State.DONE: job.count}
    assert job.work("collect") == 0
    assert job.database.grid_jobs.get(job.job_id).state is State.DONE


def check_all_is_over(job: GridJob) -> None:
    """Nothing of a cancelled grid job is left, comes back, or ran twice."""
    job.wait_for_ends()
    assert job.work("reconcile", "fork") == 0
    assert job.counts().keys() <= {State.FAILED, State.DONE}
    assert max(job.runs().values(), default=1) == 1
    in_system, submitted = len(job.in_system()), job.calls().count("submit")
    registered = [local for local in job.database.local_jobs.all_of(job.job_id) if local.local_id]
    assert len(registered) == in_system, "what the batch system has is known to the database"
    job.work("submit")
    assert (job.calls().count("submit"), len(job.in_system())) == (submitted, in_system)
    assert job.work("collect") == 0
    assert job.database.grid_jobs.get(job.job_id).state is State.FAILED


# --- commands that misbehave


def test_a_grid_job_goes_in_arrays_of_the_batch_systems_size(job: GridJob) -> None:
    assert job.work_until_done("submit") == 1
    assert job.calls() == ["submit"] * 2
    tokens = [local.token for local in job.database.local_jobs.all_of(job.job_id)]
    assert tokens == [f"{job.job_id}-{number}" for number in (1, 1, 2)]
    check_each_ran_once(job)


@pytest.mark.parametrize("ways", WAYS.values(), ids=WAYS)
def test_a_submit_command_that_misbehaves_submits_once(job: GridJob, ways: tuple[str, ...]) -> None:
    job.accept(ARRAY * (1 + len(ways)))
    job.plan("submit", "good", *ways)
    job.work_until_done("submit")
    assert job.calls().count("find") >= len(ways)
    check_each_ran_once(job)


@pytest.mark.parametrize("way", ["die-after", "torn"])
def test_answers_that_are_lost_again_and_again_are_found(job: GridJob, way: str) -> None:
    job.plan("submit", way, way, way, way)
    assert job.work_until_done("submit") == 1
    assert job.calls() == ["submit", "find"] * 2
    check_each_ran_once(job)


@pytest.mark.parametrize("ways", [("silent-before",) * 2, ("first-line",)], ids=["all of it", "a part of it"])
def test_an_answer_about_a_submission_in_doubt_that_was_cut_short_submits_nothing_twice(
    job: GridJob, ways: tuple[str, ...]
) -> None:
    job.plan("submit", "fail-after")
    job.plan("find", *ways)
    job.work_until_done("submit")
    check_each_ran_once(job)


@pytest.mark.usefixtures("silent_drivers")
def test_a_batch_system_that_goes_down_in_the_middle_keeps_what_it_has(job: GridJob) -> None:
    job.plan("submit", "good", "fail-after")
    job.plan("find", "die-before")
    assert job.work("submit") == TRY_LATER
    job.put_down()
    assert [job.work("submit") for _ in range(2)] == [TRY_LATER] * 2
    assert job.counts() == {State.PENDING: 2, State.UNSUBMITTED: 1}
    job.put_up()
    job.work_until_done("submit")
    check_each_ran_once(job)


def test_an_array_of_which_a_part_is_not_there_is_completed(job: GridJob, monkeypatch: pytest.MonkeyPatch) -> None:
    def submit_half(self: BatchSystem, array: Submission) -> dict[int, str]:
        real_submit(self, replace(array, count=1))
        raise Unreachable("the connection broke in the middle of an array")

    real_submit = BatchSystem.submit
    monkeypatch.setattr(BatchSystem, "submit", submit_half)
    job.work("submit")
    monkeypatch.undo()
    monkeypatch.setattr("batch_adapters.site_adapter.find_adapter", lambda name, tables: job.adapter)
    job.work_until_done("submit")
    check_each_ran_once(job)


def test_a_refusal_ends_the_grid_job_with_its_reason(job: GridJob) -> None:
    job.adapter = replace(
        job.adapter,
        submit=replace(job.adapter.submit, argv=("/bin/sh", "-c", "echo samgrid-fork submit: error: no queue; exit 2")),
    )
    assert job.work("submit") == 0
    assert job.work_until_done("cancel") == 1
    grid_job = job.database.grid_jobs.get(job.job_id)
    assert grid_job.cancelled
    assert "no queue" in str(grid_job.reason)
    assert job.counts() == {State.FAILED: COUNT}
    assert job.runs() == {}


# --- workers that are killed


def dies(function: Callable[..., object], when: str, times: list[int]) -> Callable[..., object]:
    """The function, but at its n-th call the process is gone before it, or after it."""

    def replacement(*arguments: object, **named: object) -> object:
        times[0] -= 1
        if times[0] == 0 and when == "before":
            os._exit(9)
        result = function(*arguments, **named)
        if times[0] == 0:
            os._exit(9)
        return result

    return replacement


CRASHES = [
    pytest.param(submission, "write_intent", "before", id="before the intent"),
    pytest.param(LocalJobs, "last_token", "after", id="before the intent is committed"),
    pytest.param(submission, "write_intent", "after", id="after the intent"),
    pytest.param(BatchSystem, "submit", "after", id="after the submit command"),
    pytest.param(registration, "put_local_jobs", "after", id="before the registration is committed"),
    pytest.param(submission, "register_local_jobs", "after", id="after the registration"),
]


def crash(job: GridJob, owner: object, name: str, when: str, number: int) -> None:
    """Run a submitting worker that is gone at the n-th call of a function, without a chance to clean up."""
    child = os.fork()
    if child == 0:
        try:
            setattr(owner, name, dies(getattr(owner, name), when, [number]))
            job.work("submit")
        finally:
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9, "the worker has not come to that point"


@pytest.mark.usefixtures("silent_drivers")
def test_a_killed_worker_leaves_a_doubt_that_waits_while_nobody_answers(job: GridJob) -> None:
    crash(job, BatchSystem, "submit", "after", 2)
    job.put_down()
    before = job.document()
    assert [job.work("submit") for _ in range(2)] == [TRY_LATER] * 2
    assert job.document() == before
    job.put_up()
    job.work_until_done("submit")
    check_each_ran_once(job)


# --- cancelling


def put_end(job: GridJob) -> None:
    assert request_cancel(job.database, job.job_id, "cancelled by a test")


@pytest.mark.parametrize(("owner", "name", "when"), CRASHES)
def test_a_cancel_after_a_worker_was_killed_leaves_nothing(job: GridJob, owner: object, name: str, when: str) -> None:
    crash(job, owner, name, when, 2)
    put_end(job)
    job.work_until_done("cancel")
    check_all_is_over(job)


@pytest.mark.parametrize("way", ["hang-after", "fail-before", "die-after", "silent-after"])
def test_a_cancel_after_a_submission_in_doubt_leaves_nothing(job: GridJob, way: str) -> None:
    job.plan("submit", "good", way)
    job.plan("find", "die-before")
    job.work("submit")
    put_end(job)
    job.work_until_done("cancel")
    check_all_is_over(job)


@pytest.mark.usefixtures("silent_drivers")
def test_a_cancel_that_gets_no_good_answer_about_a_doubt_goes_on_later(
    job: GridJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Most cannot run yet: their drivers' records would clear up the doubt.
    monkeypatch.setenv("SAMGRID_FORK_SLOTS", "1")
    crash(job, BatchSystem, "submit", "after", 1)
    put_end(job)
    ways = ("hang-before", "fail-after", "banner", "first-line")
    job.plan("find", *ways)
    for way in ways:
        assert job.work("cancel") == TRY_LATER, way
        assert State.UNSUBMITTED in job.counts(), "none of them is given up"
    assert job.calls().count("find") == len(ways)
    job.work_until_done("cancel")
    check_all_is_over(job)


def test_a_submit_command_does_not_outlive_its_worker_and_a_cancel(job: GridJob) -> None:
    job.plan("submit", "late")
    worker = os.fork()
    if worker == 0:
        try:
            job.work("submit")
        finally:
            os._exit(0)
    wait_until(lambda: job.calls() == ["submit"])
    os.kill(worker, 9)
    os.waitpid(worker, 0)
    put_end(job)
    job.work_until_done("cancel")
    job.let_late_commands_go()
    wait_until(lambda: not job.has_late_commands())
    check_all_is_over(job)


@pytest.mark.usefixtures("silent_drivers")
def test_a_cancel_while_the_batch_system_is_down_converges_later(
    job: GridJob, capsys: pytest.CaptureFixture[str]
) -> None:
    crash(job, BatchSystem, "submit", "after", 2)
    job.put_down()
    put_end(job)
    before = job.counts()
    capsys.readouterr()
    assert job.work("cancel") == TRY_LATER
    (line,) = capsys.readouterr().err.splitlines()
    assert "cannot connect to the batch system" in line
    assert job.counts() == before, "nobody answered: nothing is known"
    job.put_up()
    job.work_until_done("cancel")
    check_all_is_over(job)


def test_a_cancel_between_two_arrays_stops_the_submission(job: GridJob, monkeypatch: pytest.MonkeyPatch) -> None:
    def register_and_cancel(database: Database, grid_job: str, ids: dict[int, str], naming: Naming) -> None:
        register_local_jobs(database, grid_job, ids, naming)
        request_cancel(database, grid_job, "cancelled meanwhile")

    monkeypatch.setattr(submission, "register_local_jobs", register_and_cancel)
    assert job.work("submit") == 0
    assert job.calls() == ["submit"]
    job.work_until_done("cancel")
    check_all_is_over(job)


def test_a_cancel_while_a_doubt_is_looked_up_stops_the_submission(
    job: GridJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    def find_and_cancel(system: BatchSystem, token: str) -> list[LocalStatus]:
        found = real_find(system, token)
        request_cancel(job.database, job.job_id, "cancelled meanwhile")
        return found

    crash(job, submission, "write_intent", "after", 1)
    real_find = BatchSystem.find
    monkeypatch.setattr(BatchSystem, "find", find_and_cancel)
    job.work("submit")
    assert "submit" not in job.calls(), "nothing is submitted once the cancel is requested"
    job.work_until_done("cancel")
    check_all_is_over(job)


def test_a_cancelled_grid_job_is_not_submitted_by_a_worker_that_comes_late(job: GridJob) -> None:
    put_end(job)
    job.work("submit")
    assert job.calls() == []
    job.work_until_done("cancel")
    check_all_is_over(job)
