"""Removing grid jobs: what may go, that all of it goes, and that a kill in between leaves no riddle."""

import io
import os
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest

from batch_adapters.states import State
from jobmanager.commands import cli
from jobmanager.control import removal
from jobmanager.control.removal import (
    GRAM_ASKS,
    NotRemovable,
    find_ended_before,
    measure_grid_job,
    remove_grid_job,
    sweep,
)
from jobmanager.database.database import DatabaseError, UnknownJob
from jobmanager.database.grid_job import GramOrigin, GridJob
from jobmanager.database.local_job import LocalJob
from jobmanager.gram.answers import answer_file
from jobmanager.monitor.worker import do_task
from jobmanager.site.account import Account
from jobmanager.states.aggregation import Task
from sandbox.status import PhaseStatus
from tests.unit.grid_jobs import make_grid_job, make_whole, put
from tests.unit.toy_system import GRID_JOB, ToySystem

A, B, C = "aaaaaaaa", "bbbbbbbb", "cccccccc"


def put_grid_job(account: Account, job_id: str = A, ended: float | None = 0, told: float | None = None) -> GridJob:
    """A grid job with files; of GRAM's where ``told`` says when it was told the end (0: never)."""
    job = make_grid_job(job_id, owner="ada", submitted=0)
    if told is not None:
        job.put_origin(GramOrigin(job_id, "https://h/", "/dev/null", "/dev/null", False))
    if ended is not None:
        job.end(State.DONE, ended)
    if told:
        job.reported, job.reported_time = State.DONE, int(told)
    local_job = LocalJob.new(1, "fork", None)
    local_job.put_phases([PhaseStatus("generator", 1, 2)], 0)
    put(account.database, job, [local_job])
    return job


def put_files(account: Account, job_id: str = A) -> Path:
    """Seven bytes in a folder with what programs leave behind."""
    folder = account.places.grid_job(job_id)
    closed = account.places.results(job_id) / "a.output" / "closed"
    closed.mkdir(parents=True)
    (closed / "file").write_text("four")
    closed.chmod(0o500)
    outside = account.places.root / "outside"
    outside.mkdir(exist_ok=True)
    (outside / "kept").touch()
    account.places.log(job_id).write_text("log")
    (folder / "link").symlink_to(outside)
    return folder


def link_size(account: Account) -> int:
    return len(str(account.places.root / "outside"))


def test_documents_files_and_the_answer_to_gram_go(account: Account) -> None:
    put_grid_job(account, told=time.time() - GRAM_ASKS - 1)
    put_grid_job(account, B)
    put_files(account)
    answer_file(account, A).parent.mkdir()
    answer_file(account, A).touch()
    assert remove_grid_job(account, A) == 7 + link_size(account)
    assert [row.id for row in account.database.grid_jobs.overview()] == [B]
    assert account.database.local_jobs.all_of(A) == []
    assert (account.database.phases.sums(A), len(account.database.phases.sums(B))) == ([], 1)
    assert list(account.places.jobs.iterdir()) == []
    assert not answer_file(account, A).exists()
    assert (account.places.root / "outside" / "kept").exists()


def test_a_tree_deeper_than_any_path_goes(account: Account) -> None:
    put_grid_job(account)
    folder = account.places.results(A) / "deep"
    folder.mkdir(parents=True)
    descriptor = os.open(folder, os.O_RDONLY)
    for _ in range(80):
        os.mkdir("folder" * 10, dir_fd=descriptor)
        inner = os.open("folder" * 10, os.O_RDONLY, dir_fd=descriptor)
        os.close(descriptor)
        descriptor = inner
    os.close(os.open("file", os.O_WRONLY | os.O_CREAT, dir_fd=descriptor))
    os.fchmod(descriptor, 0)
    os.close(descriptor)
    assert measure_grid_job(account, A) == 0
    assert remove_grid_job(account, A) == 0
    assert list(account.places.jobs.iterdir()) == []


@pytest.mark.parametrize(
    ("ended", "told", "why"),
    [
        (None, None, "cancel it, or wait"),
        (0, 0, "GRAM has not been told"),
        (0, 1, "GRAM may ask for it"),
    ],
    ids=["not ended", "untold", "told just now"],
)
def test_what_must_stay_stays(account: Account, ended: float | None, told: float | None, why: str) -> None:
    put_grid_job(account, ended=ended, told=told and time.time())
    folder = put_files(account)
    with pytest.raises(NotRemovable, match=why):
        remove_grid_job(account, A)
    assert account.database.grid_jobs.has(A)
    assert (folder / "log").exists()


def test_what_an_open_grid_job_repeats_stays(account: Account, monkeypatch: pytest.MonkeyPatch) -> None:
    put_grid_job(account, A)
    put_grid_job(account, B, ended=None)
    read = account.database.grid_jobs.get

    def read_linked(job_id: str) -> GridJob:
        job = read(job_id)
        if job_id == B:
            job.element.set("repeats", A)
        return job

    monkeypatch.setattr(account.database.grid_jobs, "get", read_linked)
    with pytest.raises(NotRemovable, match=f"{A} is repeated by {B}"):
        remove_grid_job(account, A)


def put_whole(account: Account, job_id: str, step: str, ended: float | None = 0) -> None:
    whole = make_whole(job_id, "production")
    if ended is not None:
        whole.end(State.DONE, ended)
    whole.begin_step("production", step)
    put(account.database, whole)


def test_a_step_goes_with_its_whole_only(account: Account) -> None:
    put_grid_job(account, A)
    put_files(account, A)
    put_whole(account, B, A)
    with pytest.raises(NotRemovable, match=f"{A} is a step of {B}"):
        remove_grid_job(account, A)
    assert find_ended_before(account.database, 100) == [B]
    assert measure_grid_job(account, B) == 7 + link_size(account)
    assert remove_grid_job(account, B) == 7 + link_size(account)
    assert account.database.grid_jobs.steps_of(B) == []
    assert account.database.grid_jobs.overview() == []
    assert list(account.places.jobs.iterdir()) == []


def test_a_step_that_a_repetition_took_over_stays_with_that(account: Account) -> None:
    put_grid_job(account, A)
    put_whole(account, B, A)
    put_whole(account, C, A)
    remove_grid_job(account, B)
    assert [row.id for row in account.database.grid_jobs.overview()] == [A, C]
    remove_grid_job(account, C)
    assert account.database.grid_jobs.overview() == []


@pytest.mark.parametrize("answer", ["exit 0", "echo no; exit 1"], ids=["it does", "it does not"])
def test_the_batch_system_forgets_what_is_removed(toy: ToySystem, answer: str) -> None:
    toy.does("forget", answer)
    toy.add(["17_1"], State.DONE)
    toy.account.database.grid_jobs.change(GRID_JOB, lambda job: job.end(State.FAILED, 0))
    remove_grid_job(toy.account, GRID_JOB)
    assert toy.calls("forget") == [f"{GRID_JOB}-"]
    assert not toy.account.database.grid_jobs.has(GRID_JOB)


def test_a_whole_stays_while_a_step_runs(account: Account) -> None:
    put_grid_job(account, A, ended=None)
    put_whole(account, B, A)
    with pytest.raises(NotRemovable, match=f"{A} is unsubmitted"):
        remove_grid_job(account, B)


def test_a_step_that_cannot_be_read_goes_with_its_whole(account: Account) -> None:
    put_grid_job(account, A)
    put_whole(account, B, A)
    with closing(sqlite3.connect(account.places.database)) as database, database:
        database.execute("UPDATE grid_job SET document = '<torn' WHERE id = ?", [A])
    assert find_ended_before(account.database, 100) == [B]
    remove_grid_job(account, B)
    assert account.database.grid_jobs.overview() == []


def test_a_dry_run_removes_nothing_and_says_what_would_be(account: Account, capsys: pytest.CaptureFixture[str]) -> None:
    put_grid_job(account, A, ended=100)
    put_files(account, A)
    put_grid_job(account, B, told=time.time())
    command = ["remove", "--state-dir", str(account.places.root), "--dry-run", "--ended-before", "0h"]
    assert cli.main(command) == 0
    printed = capsys.readouterr()
    size = 7 + link_size(account)
    assert printed.out == f"{A}  {size} bytes\ngrid jobs that would be removed: 1, bytes: {size}\n"
    assert f"{B}: GRAM may ask for it" in printed.err
    assert account.places.grid_job(A).exists()
    assert [row.id for row in account.database.grid_jobs.overview()] == [A, B]


@pytest.mark.parametrize(
    ("terminal", "options", "answer", "stays"),
    [
        (True, [], "", True),
        (True, [], "y", False),
        (True, ["--yes"], "", False),
        (False, [], "", False),
    ],
    ids=["no answer", "yes", "not asked", "no terminal"],
)
def test_on_a_terminal_it_asks_before_it_removes_by_time(
    account: Account, monkeypatch: pytest.MonkeyPatch, terminal: bool, options: list[str], answer: str, stays: bool
) -> None:
    put_grid_job(account, A, ended=100)
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{answer}\n"))
    monkeypatch.setattr("sys.stdin.isatty", lambda: terminal)
    command = ["remove", "--state-dir", str(account.places.root), "--ended-before", "0h", *options]
    assert cli.main(command) == int(stays)
    assert account.database.grid_jobs.has(A) is stays


def test_a_whole_stays_while_a_step_of_it_is_repeated(account: Account) -> None:
    put_grid_job(account, A)
    whole, repetition = (GridJob.new(job_id, "structured", "ada", "fork", 0) for job_id in (B, C))
    for job in (whole, repetition):
        job.put_request([], Path("/"))
    whole.put_steps(["production"])
    whole.begin_step("production", A)
    whole.end(State.DONE, 0)
    repetition.put_slices(1, None, 1)
    repetition.repeats = A
    with account.database.transaction():
        account.database.grid_jobs.put(whole)
        account.database.grid_jobs.put(repetition)
    with pytest.raises(NotRemovable, match=f"{A} is repeated by {C}"):
        remove_grid_job(account, B)
    account.database.grid_jobs.change(C, lambda job: job.end(State.DONE, 0))
    remove_grid_job(account, B)


class Killed(BaseException):
    """Almost as by SIGKILL."""


@pytest.mark.parametrize("victim", ["delete", "remove_folder"])
def test_a_removal_that_was_killed_is_finished_by_the_next(
    account: Account, victim: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_grid_job(account)
    put_files(account)

    def die(*arguments: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(account.database.grid_jobs if victim == "delete" else removal, victim, die)
        with pytest.raises(Killed):
            remove_grid_job(account, A)
    if victim == "delete":  # the folder has its name back, which SIGKILL prevents
        account.places.grid_job(A).rename(account.places.removed(A))
    # What is in the database still, its owner may yet want to see.
    freed = sweep(account)
    assert (freed == 0) is (victim == "delete")
    if victim == "delete":
        freed = remove_grid_job(account, A)
    assert freed == 7 + link_size(account)
    assert not account.database.grid_jobs.has(A)
    assert list(account.places.jobs.iterdir()) == []


@pytest.mark.parametrize("error", [DatabaseError("database or disk is full"), KeyboardInterrupt()], ids=repr)
def test_a_removal_that_fails_leaves_the_files_where_they_were(
    account: Account, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_grid_job(account)
    folder = put_files(account)

    def fail(job_id: str) -> None:
        raise error

    monkeypatch.setattr(account.database.grid_jobs, "delete", fail)
    with pytest.raises(type(error)):
        remove_grid_job(account, A)
    assert account.database.grid_jobs.has(A)
    assert folder.is_dir()


def test_a_removal_that_fails_says_why_even_if_the_files_are_gone(
    account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_grid_job(account)
    account.places.grid_job(A).mkdir(parents=True)

    def fail(job_id: str) -> None:
        account.places.removed(A).rmdir()
        raise DatabaseError("database or disk is full")

    monkeypatch.setattr(account.database.grid_jobs, "delete", fail)
    with pytest.raises(DatabaseError, match="disk is full"):
        remove_grid_job(account, A)


def test_a_second_removal_at_the_same_time_finds_nothing(account: Account) -> None:
    put_grid_job(account)
    remove_grid_job(account, A)
    with pytest.raises(UnknownJob):
        remove_grid_job(account, A)


def test_those_that_ended_before_a_time(account: Account) -> None:
    put_grid_job(account, A, ended=100)
    put_grid_job(account, B, ended=200)
    put_grid_job(account, "cccccccc", ended=None)
    assert find_ended_before(account.database, 101) == [A]
    assert find_ended_before(account.database, 200) == [A]
    assert find_ended_before(account.database, 201) == [A, B]


def test_the_command_removes_what_has_ended_and_names_what_has_not(
    account: Account, capsys: pytest.CaptureFixture[str]
) -> None:
    put_grid_job(account, A)
    put_grid_job(account, B, ended=None)
    place = ["--state-dir", str(account.places.root)]
    assert cli.main(["remove", *place, A[:5], B]) == 1
    done = capsys.readouterr()
    assert done.out.startswith("grid jobs removed: 1, bytes freed: ")
    assert f"{B} is " in done.err
    assert [row.id for row in account.database.grid_jobs.overview()] == [B]
    assert cli.main(["remove", *place, "--ended-before", "0h"]) == 0
    assert capsys.readouterr() == ("grid jobs removed: 0, bytes freed: 0\n", "")


@pytest.mark.parametrize("arguments", [[], ["k3f", "--ended-before", "7d"]], ids=["nothing", "both"])
def test_it_must_be_said_what_to_remove(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    with pytest.raises(SystemExit, match=r"^2$"):
        cli.main(["remove", *arguments])
    assert "samgrid remove: error: say which" in capsys.readouterr().err


def test_a_worker_that_comes_too_late_makes_no_folder_again(account: Account) -> None:
    put_grid_job(account)
    remove_grid_job(account, A)
    assert do_task(account, Task.COLLECT, A) == 0
    assert not account.places.grid_job(A).exists()
