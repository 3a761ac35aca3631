"""What a worker says in the grid job's own log before it works."""

import logging
import os
import signal
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from handlers.pythia import PythiaAdapter
from jobmanager.database.grid_job import GramOrigin, GridJob
from jobmanager.monitor import worker
from jobmanager.monitor.workers import BUSY, POSTPONED, TRY_LATER
from jobmanager.requests.time_limit import MOST_DEATHS, MOST_UNREACHED
from jobmanager.site.account import Account
from jobmanager.states.aggregation import Task
from jobmanager.submission.credential_copies import has_copies
from sandbox.files import locked
from tests.unit.grid_jobs import put
from tests.unit.traps import TRAPS

JOB = "aaaaaaaa"


def add_grid_job(account: Account) -> GridJob:
    job = GridJob.new(JOB, "pythia", "physicist", "fork", 1.0)
    job.put_request([("samgrid_type", ("pythia",))], Path("/"))
    job.put_slices(1, 1, 1)
    put(account.database, job)
    return job


@pytest.mark.parametrize("deaths", [MOST_DEATHS - 1, MOST_DEATHS])
def test_a_handler_with_which_every_worker_dies_is_given_up(
    account: Account, deaths: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_grid_job(account)
    account.places.grid_job(JOB).mkdir(parents=True)
    account.places.of_handler(JOB, "pack", "died").write_bytes(b"." * (deaths - 1))
    account.places.of_handler(JOB, "pack", "asked").touch()
    begun: list[str] = []
    monkeypatch.setattr(worker, "run_grid_job", lambda account, job_id: begun.append(job_id))
    assert worker.do_task(account, Task.SUBMIT, JOB) == 0
    sentence = f"handler pythia was asked {deaths} times, and each time the process that asked it ended"
    assert sentence in account.places.log(JOB).read_text()
    is_given_up = deaths == MOST_DEATHS
    assert account.database.grid_jobs.get(JOB).reason == (f"cannot be run: {sentence}" if is_given_up else None)
    assert begun == ([] if is_given_up else [JOB])


def test_a_server_without_a_state_folder_says_so_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "state").touch()
    assert worker.main(["--state-dir", str(tmp_path / "state"), "serve"]) == 1
    assert capsys.readouterr().err == f"the state folder {tmp_path}/state is not a folder: name another\n"


@pytest.mark.parametrize("times", [1, MOST_UNREACHED - 1, MOST_UNREACHED])
def test_a_handler_that_does_not_reach_its_catalogue_is_asked_again_and_at_last_given_up(
    account: Account, times: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(self: PythiaAdapter, request: object, site: object) -> None:
        raise ConnectionRefusedError("Connection refused")

    monkeypatch.setattr(PythiaAdapter, "__init__", fail)
    add_grid_job(account)
    account.places.grid_job(JOB).mkdir(parents=True)
    account.places.of_handler(JOB, "check", "unreached").write_bytes(b"." * (times - 1))
    is_given_up = times == MOST_UNREACHED
    assert worker.do_task(account, Task.SUBMIT, JOB) == (0 if is_given_up else POSTPONED)
    sentence = "handler pythia: ConnectionRefusedError: Connection refused"
    assert account.database.grid_jobs.get(JOB).reason == (
        f"cannot be run: asked {times} times, {sentence}" if is_given_up else None
    )
    assert capsys.readouterr().err == ("" if is_given_up else f"{sentence}\n")
    assert ("Traceback" in account.places.log(JOB).read_text()) == (times == 1)


def test_a_process_that_a_handler_leaves_behind_does_not_keep_the_lock(
    account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_grid_job(account)
    children: list[int] = []

    def fork(account: Account, job_id: str) -> None:
        child = os.fork()
        if not child:
            while True:
                signal.pause()
        children.append(child)

    monkeypatch.setattr(worker, "run_grid_job", fork)
    try:
        assert worker.do_task(account, Task.SUBMIT, JOB) == 0
        with locked(account.places.worker_lock(JOB)) as lock:
            assert lock is not None
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def test_a_grid_job_is_left_to_the_worker_that_has_it(account: Account, monkeypatch: pytest.MonkeyPatch) -> None:
    add_grid_job(account)
    account.places.grid_job(JOB).mkdir(parents=True)
    begun: list[str] = []
    monkeypatch.setattr(worker, "run_grid_job", lambda account, job_id: begun.append(job_id))
    with locked(account.places.worker_lock(JOB)):
        assert worker.do_task(account, Task.SUBMIT, JOB) == BUSY
    assert begun == []
    assert worker.do_task(account, Task.SUBMIT, JOB) == 0
    assert begun == [JOB]


@pytest.mark.parametrize("unused", [("executable", "directory"), ()])
def test_what_a_client_of_gram_said_in_vain_stands_once_in_the_log(
    account: Account, unused: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = add_grid_job(account)
    job.put_origin(GramOrigin("1.2", "https://h/", "/dev/null", "/dev/null", is_plain=False, unused=unused))
    put(account.database, job)
    monkeypatch.setattr(worker, "run_grid_job", lambda account, job_id: worker.logger.info("%s begins", job_id))
    for _ in range(2):
        assert worker.do_task(account, Task.SUBMIT, JOB) == 0
    said = [line.split(" ", 2)[2] for line in account.places.log(JOB).read_text().splitlines()]
    note = f"{JOB} not used, because the job type pythia does not take it: executable, directory"
    assert said == [note] * bool(unused) + [f"{JOB} begins"] * 2


@pytest.mark.parametrize("make", TRAPS)
def test_what_a_program_puts_in_place_of_the_log_keeps_no_grid_job_from_going_on(
    account: Account, make: Callable[[Path], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = GridJob.new(JOB, "pythia", "physicist", "fork", 1.0)
    job.put_request([("samgrid_type", ("pythia",))], Path("/"))
    job.put_slices(1, 1, 1)
    put(account.database, job)
    account.places.grid_job(JOB).mkdir(parents=True)
    make(account.places.log(JOB))
    begun: list[str] = []
    monkeypatch.setattr(worker, "run_grid_job", lambda account, job_id: begun.append(job_id))
    assert worker.do_task(account, Task.SUBMIT, JOB) == 0
    assert begun == [JOB]


def test_a_folder_that_a_program_has_closed_is_opened_again(account: Account, monkeypatch: pytest.MonkeyPatch) -> None:
    add_grid_job(account)
    folder = account.places.grid_job(JOB)
    folder.mkdir(mode=0, parents=True)
    monkeypatch.setattr(worker, "run_grid_job", lambda account, job_id: None)
    assert worker.do_task(account, Task.SUBMIT, JOB) == 0
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


@pytest.mark.parametrize(
    "look", [lambda account: account.places.is_handler_asked(JOB), lambda account: has_copies(account, JOB)]
)
def test_the_monitor_goes_on_where_it_may_not_look_into_a_folder(
    account: Account, look: Callable[[Account], bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root may look into every folder, so only the system's answer is made."""

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "stat", refuse)
    assert not look(account)


@pytest.mark.parametrize("task", [Task.SUBMIT, Task.CANCEL, Task.COLLECT, Task.REPORTS])
def test_nothing_is_written_where_the_folder_of_a_grid_job_is_a_link(
    account: Account, task: Task, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    add_grid_job(account)
    (tmp_path / "theirs").mkdir()
    account.places.jobs.mkdir(exist_ok=True)
    account.places.grid_job(JOB).symlink_to(tmp_path / "theirs")
    assert worker.do_task(account, task, JOB) == TRY_LATER
    assert f"{account.places.grid_job(JOB)}: no folder, or a link to one" in capsys.readouterr().err
    assert list((tmp_path / "theirs").iterdir()) == []


def test_what_is_logged_by_who_does_not_know_the_grid_job_names_it(
    account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_grid_job(account)

    def begin(account: Account, grid_job: str) -> None:
        logging.getLogger("elsewhere").warning("no room on %s", "disk")
        logging.getLogger("here").warning("%s packed", grid_job)

    monkeypatch.setattr(worker, "run_grid_job", begin)
    assert worker.do_task(account, Task.SUBMIT, JOB) == 0
    said = [line.split(" ", 2)[2] for line in account.places.log(JOB).read_text().splitlines()]
    assert said == [f"{JOB} no room on disk", f"{JOB} packed"]
