"""The monitor's loop, its workers and its callers, in situations that must not stop one another."""

import os
import shutil
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from batch_adapters.launch import command_line
from batch_adapters.states import Event, State
from jobmanager.commands import grid_jobs as commands
from jobmanager.database.database import DatabaseError
from jobmanager.database.local_job import LocalJob
from jobmanager.monitor import client as monitor_client
from jobmanager.monitor import monitor as monitor_module
from jobmanager.monitor.client import ask_monitor, listening, socket_address, wake_monitor
from jobmanager.monitor.monitor import Monitor
from jobmanager.site.account import Account
from jobmanager.site.settings import MonitorSettings
from jobmanager.states.aggregation import Task
from jobmanager.states.driver_status import ProgressReader, status_file
from jobmanager.states.registration import apply_events
from tests.unit.grid_jobs import make_grid_job, put
from tests.unit.traps import TRAPS

GRID_JOB = "abcdefgh"
LOCAL_ID = f"{GRID_JOB}-1.1"


class Over(Exception):
    """Ends a monitor's loop."""


@pytest.fixture
def listener(account: Account) -> Iterator[socket.socket]:
    with socket_address(account) as address, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen(0)
        listener.setblocking(False)
        yield listener


def add_grid_job(account: Account, state: State = State.ACTIVE) -> None:
    """A grid job with one local job of that state, on fork."""
    job = make_grid_job(GRID_JOB, submitted=time.time())
    local_job = LocalJob.new(1, "fork", None)
    local_job.intend(f"{GRID_JOB}-1", time.time())
    local_job.register(LOCAL_ID, "", time.time())
    local_job.state = state
    put(account.database, job, [local_job])
    account.places.results(GRID_JOB).mkdir(parents=True)


def fail_always(error: Exception) -> Callable[..., None]:
    def fail(*arguments: object) -> None:
        raise error

    return fail


def test_a_monitor_whose_state_folder_is_removed_ends_after_a_while(
    account: Account, listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    configuration = replace(account.configuration, monitor=MonitorSettings(idle_time=0))
    monitor = Monitor(replace(account, configuration=configuration), listener)
    shutil.rmtree(account.places.root)
    monitor._idle_since = time.monotonic() - 60
    assert not monitor._has_been_idle(), "it may come back"
    monkeypatch.setattr(monitor_module, "_LOOK", 0.01)
    monkeypatch.setattr(monitor_module, "_GONE_TIME", 60.01)
    monkeypatch.setattr(monitor_module, "STAMP_INTERVAL", 0)
    wait, turns = monitor._selector.select, 0

    def select(seconds: float) -> object:
        nonlocal turns
        turns += 1
        assert turns < 20, "it goes on for ever"
        return wait(seconds)

    monkeypatch.setattr(monitor._selector, "select", select)
    monitor.run(stay=False)
    assert not account.places.root.exists()


@pytest.mark.parametrize("error", [DatabaseError("full"), BlockingIOError(11, "full")], ids=["disk", "fork"])
def test_a_monitor_that_rests_still_reaps_its_workers(
    account: Account, listener: socket.socket, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    add_grid_job(account)
    monkeypatch.setattr(monitor_module, "_LOOK", 0.01)
    monitor = Monitor(account, listener)
    # A workers' server that ends when it is told to start one.
    monkeypatch.setattr(Account, "program", lambda self, *arguments: ["/usr/bin/head", "-c", "1"])
    monitor._workers.start(Task.SUBMIT, GRID_JOB)
    monkeypatch.setattr(monitor, "_work", fail_always(error))
    wait, turns = monitor._selector.select, 0

    def select(seconds: float) -> object:
        nonlocal turns
        turns += 1
        if not monitor._workers.are_busy:
            raise Over
        assert turns < 20, "the loop spins: nobody reaps the worker"
        return wait(seconds)

    monkeypatch.setattr(monitor._selector, "select", select)
    with pytest.raises(Over):
        monitor.run(stay=False)
    assert monitor._problem == "full"


def test_a_caller_who_cannot_be_answered_makes_no_monitor_spin(
    account: Account, listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monitor = Monitor(account, listener)
    wait, turns, rests = monitor._selector.select, 0, list[float]()

    def select(seconds: float) -> object:
        nonlocal turns
        turns += 1
        if turns == 3:
            raise Over
        return wait(seconds)

    monkeypatch.setattr(monitor._selector, "select", select)
    monkeypatch.setattr(monitor_module, "check_host", fail_always(OSError(5, "Input/output error")))
    monkeypatch.setattr(monitor_module, "time", SimpleNamespace(**{**vars(time), "sleep": rests.append}))
    with socket_address(account) as address, socket.socket(socket.AF_UNIX) as caller:
        caller.connect(address)
        with pytest.raises(Over):
            monitor.run(stay=True)
    assert len(rests) == turns


def test_a_monitor_without_idle_time_works_before_it_ends(
    account: Account, listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    configuration = replace(account.configuration, monitor=MonitorSettings(idle_time=0))
    monitor = Monitor(replace(account, configuration=configuration), listener)
    looks: list[str] = []
    work = monitor._work

    def look() -> None:
        looks.append("looked")
        work()

    monkeypatch.setattr(monitor, "_work", look)
    monitor.run(stay=False)
    assert looks == ["looked"]


def test_a_monitor_starts_anew_when_another_version_is_installed(
    account: Account, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    launch = tmp_path / "launch.py"
    launch.touch()
    monkeypatch.setattr("batch_adapters.launch.LAUNCH", launch)
    os.utime(launch, (0, 0))
    monkeypatch.setattr("batch_adapters.launch.UPGRADE", -1.0)
    monkeypatch.setattr(monitor_module, "_log_to", lambda account: None)
    monkeypatch.setattr("os.umask", lambda mask: 0o022)

    def upgrade(monitor: Monitor) -> None:
        # Missing for a while, as pip has it.
        if launch.exists():
            launch.unlink()
        else:
            launch.write_text("another")

    started: list[Sequence[str]] = []

    def start(program: str, words: Sequence[str]) -> None:
        started.append(words)
        raise Over

    monkeypatch.setattr(Monitor, "_work", upgrade)
    monkeypatch.setattr("os.execv", start)
    words = ["--state-dir", str(account.places.root), "--stay"]
    with pytest.raises(Over):
        monitor_module.main(words)
    assert started == [command_line("samgrid-monitor", *words)]


def test_a_look_at_a_batch_system_does_not_wait_for_a_free_worker(
    account: Account, listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Account, "program", lambda self, *arguments: ["/bin/cat"])
    workers = Monitor(account, listener)._workers
    for subject in ("aaaaaaaa", "bbbbbbbb", "cccccccc"):
        workers.start(Task.SUBMIT, subject)
    workers.start(Task.RECONCILE, "fork")
    running = {name for name, subject in workers._subjects.items() if subject.worker}
    assert running == {"aaaaaaaa", "bbbbbbbb", "fork"}


@pytest.mark.parametrize("spoil", TRAPS)
def test_a_local_job_that_replaces_its_status_file_is_its_own_problem_only(
    account: Account, spoil: Callable[[Path], None]
) -> None:
    add_grid_job(account)
    spoil(status_file(account, GRID_JOB, LOCAL_ID))
    ProgressReader(account).read_grid_job(GRID_JOB)
    assert account.database.local_jobs.get(GRID_JOB, 1).reason == "its status file is no regular file any more"


def test_progress_that_could_not_be_written_is_read_again(account: Account, monkeypatch: pytest.MonkeyPatch) -> None:
    add_grid_job(account)
    status_file(account, GRID_JOB, LOCAL_ID).write_text("start 1000\nphase generate 5 250 event\n")
    reader = ProgressReader(account)
    with monkeypatch.context() as patch:
        patch.setattr(account.database.local_jobs, "put", fail_always(DatabaseError("disk full")))
        with pytest.raises(DatabaseError):
            reader.read_grid_job(GRID_JOB)
    reader.read_grid_job(GRID_JOB)
    assert [phase.done for phase in account.database.local_jobs.get(GRID_JOB, 1).phases()] == [5]


def test_an_event_of_the_future_does_not_hide_those_until_then(account: Account) -> None:
    now = int(time.time())
    future = Event(now + 10**6, "77", State.ACTIVE)
    apply_events(account.database, "fork", [Event(now - 5, "76", State.ACTIVE), future])
    assert account.database.events.generator_time("fork") == now - 5


def test_a_crowded_monitor_is_no_error_to_who_wakes_it(
    account: Account, listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Account] = []
    monkeypatch.setattr(monitor_client, "start_monitor", started.append)
    with socket_address(account) as address:
        crowd = [socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) for _ in range(4)]
        codes = [each.connect_ex(address) for each in crowd]
    assert any(codes), "the queue of callers is not full"
    wake_monitor(account)
    assert ask_monitor(account).startswith("monitor: no answer")
    assert not started
    for each in crowd:
        each.close()


def test_a_request_that_was_accepted_is_never_told_as_refused(
    account: Account, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    request = tmp_path / "request.rsl"
    request.write_text("&(samgrid_type=command)(executable=/bin/true)")
    monkeypatch.setattr("jobmanager.monitor.client.start_monitor", fail_always(OSError("no fork")))
    job_id = commands._submit(account, str(request))
    assert account.database.grid_jobs.has(job_id)
    assert f"{job_id} is accepted" in capsys.readouterr().err


def test_the_socket_that_another_monitor_has_made_in_a_new_state_folder_stays(account: Account) -> None:
    socket_file = account.places.monitor_socket
    with listening(account):
        socket_file.unlink()
        socket_file.touch()
    assert socket_file.exists()
    with listening(account):
        pass
    assert not socket_file.exists()
