"""What drivers write down while local jobs run reaches the database; no program that spoils its file breaks that."""

import errno
import os
import socket
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from lxml import etree

from batch_adapters.states import Event, State
from jobmanager.database.local_job import LocalJob, Outcome
from jobmanager.states.driver_status import (
    ProgressReader,
    read_driver_status,
    read_ended,
    reconcile_with_drivers,
    status_file,
)
from jobmanager.states.registration import apply_events
from jobmanager.states.transitions import apply_driver_status
from sandbox.status import DriverStatus, PhaseStatus
from tests.unit.grid_jobs import put_local_jobs
from tests.unit.toy_system import GRID_JOB, NOW, ToySystem

GENERATE = ("start 1000", "phase generate 1 9")


def phases(toy: ToySystem, index: int = 1) -> list[PhaseStatus]:
    return toy.job(index).phases()


def test_what_a_driver_tells_is_read_when_it_has_changed(toy: ToySystem, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    def reading(file: Path) -> DriverStatus:
        read.append(file.name)
        return read_driver_status(file)

    monkeypatch.setattr("jobmanager.states.driver_status.read_driver_status", reading)
    toy.add(["17_1", "17_2"], State.ACTIVE)
    reader = ProgressReader(toy.account)
    toy.drives("17_1", *GENERATE)
    for _ in range(2):
        reader.read_grid_job(GRID_JOB)
    assert (read, phases(toy)) == ([f"{GRID_JOB}.17_1.status"], [PhaseStatus("generate", 1, 9)])
    toy.drives("17_2", "start 1000", "phase detect 2 9")
    reader.read_grid_job(GRID_JOB)
    assert (read[1:], phases(toy, 2)) == ([f"{GRID_JOB}.17_2.status"], [PhaseStatus("detect", 2, 9)])
    toy.drives("17_1", *GENERATE, "phase generate 2 9")
    reader.read_grid_job(GRID_JOB)
    assert (len(read), phases(toy)) == (3, [PhaseStatus("generate", 2, 9)])
    reader.forget_all_but([GRID_JOB])
    reader.read_grid_job(GRID_JOB)
    assert len(read) == 3
    reader.forget_all_but(["another"])
    reader.read_grid_job(GRID_JOB)
    assert len(read) == 5


def test_of_many_that_run_each_has_its_turn(toy: ToySystem, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobmanager.states.driver_status.MOST_AT_ONCE", 3)
    asked: list[str] = []
    monkeypatch.setattr("jobmanager.states.driver_status._stamp", lambda file: asked.append(file[-11:-7]))
    toy.add([f"17_{index}" for index in range(1, 6)], State.ACTIVE)
    other = "zbcdefgh"
    put_running(toy, other, ["18_1", "18_2"])
    reader = ProgressReader(toy.account)

    def look(*grid_jobs: str) -> list[str]:
        asked.clear()
        reader.forget_all_but(grid_jobs)
        for grid_job in reader.turns(grid_jobs):
            reader.read_grid_job(grid_job)
        return list(asked)

    assert look(GRID_JOB, other) == ["17_1", "17_2", "17_3"]
    assert look(GRID_JOB, other) == ["17_4", "17_5", "18_1"]
    assert look(GRID_JOB, other) == ["18_2", "17_1", "17_2"]
    assert look(GRID_JOB, other) == ["17_3", "17_4", "17_5"]
    assert look(other) == ["18_1", "18_2"]
    asked_for = [name for _ in range(5) for name in look(GRID_JOB, other)]
    assert set(asked_for) == {"17_1", "17_2", "17_3", "17_4", "17_5", "18_1", "18_2"}


def put_running(toy: ToySystem, job_id: str, ids: list[str]) -> None:
    """Another grid job's local jobs, all of which run."""
    jobs = [LocalJob.new(index, "toy", None) for index in range(1, len(ids) + 1)]
    for job, local_id in zip(jobs, ids, strict=True):
        job.register(local_id, "", NOW)
        job.state = State.ACTIVE
    put_local_jobs(toy.database, job_id, *jobs)


@pytest.mark.parametrize("what", ["size", "time"])
def test_a_change_shows_in_the_size_or_the_time(toy: ToySystem, what: str) -> None:
    toy.add(["17_1"], State.ACTIVE)
    toy.drives("17_1", *GENERATE)
    file = status_file(toy.account, GRID_JOB, "17_1")
    os.utime(file, ns=(0, 5))
    reader = ProgressReader(toy.account)
    reader.read_grid_job(GRID_JOB)
    toy.drives("17_1", "start 1000", "phase generate 2 9" if what == "time" else "phase generate 22 99")
    os.utime(file, ns=(0, 6 if what == "time" else 5))
    reader.read_grid_job(GRID_JOB)
    assert phases(toy) == [PhaseStatus("generate", 2, 9) if what == "time" else PhaseStatus("generate", 22, 99)]


def test_what_is_told_is_told_now(toy: ToySystem) -> None:
    toy.add(["17_1"], State.ACTIVE)
    toy.drives("17_1", *GENERATE)
    ProgressReader(toy.account).read_grid_job(GRID_JOB)
    assert [phase.changed for phase in toy.job().phases()] == [NOW]


def test_only_those_that_are_asked_for_and_have_an_id_are_reconciled(toy: ToySystem) -> None:
    toy.add(["17_1", None, "17_3"], State.ACTIVE)
    for local_id in ("17_1", "17_3"):
        toy.drives(local_id, *GENERATE)
    jobs = toy.database.local_jobs.all_of(GRID_JOB)
    reconcile_with_drivers(toy.account, GRID_JOB, jobs[:2])
    assert [bool(phases(toy, index)) for index in (1, 2, 3)] == [True, False, False]


@pytest.mark.parametrize(("year", "driver"), [("9" * 11, "ended"), ("9" * 12, None)], ids=["5138", "33658"])
def test_no_time_that_a_program_made_up_is_too_late_for_a_document(toy: ToySystem, year: str, driver: str) -> None:
    toy.add(["17_1"], State.ACTIVE)
    toy.drives("17_1", f"start {year}", f"caught TERM {year}", "exit 3", f"end {year}")
    reconcile_with_drivers(toy.account, GRID_JOB, [toy.job()])
    assert toy.job().driver == driver


def test_an_end_is_written_once_with_what_its_driver_recorded(toy: ToySystem, monkeypatch: pytest.MonkeyPatch) -> None:
    toy.add(["17_1", "17_2"], State.ACTIVE)
    for local_id in ("17_1", "17_2"):
        toy.drives(local_id, "start 1000", "exit 3", "end 2000")

    def read(file: Path) -> DriverStatus:
        if "17_2" in file.name:
            raise OSError(errno.EIO, "its server is gone")
        return read_driver_status(file)

    monkeypatch.setattr("jobmanager.states.driver_status.read_driver_status", read)
    events = [Event(NOW, "17_1", State.FAILED, 0), Event(NOW, "17_2", State.FAILED, 0), Event(NOW, "17_9", State.DONE)]
    statuses = read_ended(toy.account, "toy", events)
    apply_events(toy.database, "toy", events, statuses)
    assert [*statuses] == ["17_1"], "nothing holds up the events"
    assert [(toy.job(index).driver, toy.job(index).exit_code) for index in (1, 2)] == [("ended", 3), (None, 0)]


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        pytest.param(lambda file: None, None, id="nothing"),
        pytest.param(os.mkdir, "its status file is no regular file any more", id="a folder"),
        pytest.param(os.mkfifo, "its status file is no regular file any more", id="a named pipe"),
        pytest.param(
            lambda file: file.symlink_to("/etc/passwd"), "its status file is no regular file any more", id="a link"
        ),
    ],
)
def test_what_a_program_makes_of_its_status_file_is_the_fault_of_that_local_job(
    room: Path, make: Callable[[Path], object], problem: str | None
) -> None:
    make(room / "status")
    assert read_driver_status(room / "status") == DriverStatus(problem=problem)


def test_a_socket_in_place_of_a_status_file_is_its_local_jobs_fault(
    room: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(room)  # the path of a socket must be short
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("status")
    assert read_driver_status(room / "status").problem == "its status file is no regular file any more"


def test_no_status_is_read_in_a_folder_that_a_link_has_taken_the_place_of(room: Path) -> None:
    (room / "theirs").mkdir()
    (room / "theirs" / "status").write_text("start 1\nexit 0\nend 2\n")
    (room / "results").symlink_to("theirs")
    assert read_driver_status(room / "results" / "status") == DriverStatus()


def put_folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(Path.unlink, id="removed"),
        pytest.param(lambda file: file.write_text(""), id="emptied"),
        pytest.param(lambda file: file.write_text("start 1000\n"), id="cut off"),
        pytest.param(put_folder, id="a folder in its place"),
    ],
)
@pytest.mark.parametrize("said", [("exit 0", "lost output/a: Permission denied"), ("exit 125", "problem no room")])
def test_what_was_read_of_an_end_holds_whatever_becomes_of_its_file(
    toy: ToySystem, spoil: Callable[[Path], object], said: Sequence[str]
) -> None:
    toy.add(["17_1"], State.ACTIVE)
    toy.drives("17_1", "start 1000", *said, "end 2000")
    reconcile_with_drivers(toy.account, GRID_JOB, [toy.job()])
    known = etree.tostring(toy.job().element)
    file = status_file(toy.account, GRID_JOB, "17_1")
    spoil(file)
    reconcile_with_drivers(toy.account, GRID_JOB, [toy.job()])
    assert not apply_driver_status(toy.job(), read_driver_status(file), NOW)
    assert etree.tostring(toy.job().element) == known
    assert toy.job().outcome is Outcome.FAILED


def test_what_was_read_of_an_end_holds_until_another_run_has_begun(toy: ToySystem) -> None:
    toy.add(["17_1"], State.ACTIVE)
    for lines in (["start 1000", "exit 0", "end 2000"], [], ["start 3000"]):
        toy.drives("17_1", *lines)
        reconcile_with_drivers(toy.account, GRID_JOB, [toy.job()])
    assert toy.job().driver == "started"


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (PermissionError(13, "no"), DriverStatus(problem="its status file must not be read any more")),
        (FileNotFoundError(2, "gone"), DriverStatus()),
    ],
    ids=["forbidden", "gone meanwhile"],
)
def test_a_status_file_that_cannot_be_opened_any_more_is_no_error(
    room: Path, monkeypatch: pytest.MonkeyPatch, error: OSError, status: DriverStatus
) -> None:
    def refuse(*_: object, **_named: object) -> int:
        raise error

    (room / "status").touch()
    monkeypatch.setattr(os, "open", refuse)
    assert read_driver_status(room / "status") == status


def test_a_disk_that_cannot_be_read_now_is_asked_again(room: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **_named: object) -> int:
        raise OSError(5, "Input/output error")

    (room / "status").touch()
    monkeypatch.setattr(os, "open", fail)
    with pytest.raises(OSError, match="Input/output error"):
        read_driver_status(room / "status")
