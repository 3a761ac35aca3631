"""How jobs ended that a killed queue process has left to its keeper."""

import os
import signal
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from batch_adapters.fork import keeper
from batch_adapters.fork.keeper import _run_and_exit, _write_left, _write_unwritten
from batch_adapters.fork.processes import read_process, read_started_seconds
from batch_adapters.fork.protocol import StartRequest
from batch_adapters.fork.queue import RETRY_SECONDS, Queue
from batch_adapters.fork.spool import (
    JobRun,
    Spool,
    StoredSubmission,
    open_spool,
    read_run_file,
    render_process,
    write_line,
    write_submission,
)
from batch_adapters.fork.starter import run_program
from batch_adapters.states import State
from tests.waiting import wait_until


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    return open_spool(tmp_path / "spool")


def run_job(spool: Spool, local_id: str) -> os.waitid_result:
    """A job of the spool, as it has ended; it is a zombie."""
    pid = run_program(StartRequest(local_id, "/bin/sh", ("-c", "exit 3")), 0, spool.run / local_id)
    ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert ended is not None
    return ended


def end_of(spool: Spool, local_id: str) -> tuple[State, int] | None:
    """State and exit code of an end that is written into the claim."""
    run = read_run_file(spool.run / local_id)
    assert run is not None
    return (run.end.state, run.end.exit_code) if run.end else None


def test_the_end_of_a_job_is_written_into_its_claim(spool: Spool) -> None:
    ended = run_job(spool, "a.1")
    process = read_process(ended.si_pid, zombie=True)
    assert process is not None
    write_line(spool.run / "a.1", render_process(process))
    for other in ("b.1", "c.1"):
        (spool.run / other).touch()
    _write_left(spool, ended)
    os.waitpid(ended.si_pid, 0)
    assert end_of(spool, "a.1") == (State.DONE, 3)
    assert read_run_file(spool.run / "b.1") == JobRun()


def test_a_job_whose_process_nobody_could_write_down_is_known_by_the_time_of_its_claim(spool: Spool) -> None:
    ended = run_job(spool, "a.1")
    write_down(spool, ended)
    assert end_of(spool, "a.1") == (State.DONE, 3)


def write_down(spool: Spool, *ended: os.waitid_result) -> None:
    """As the keeper does when the queue process has been killed."""
    _write_unwritten(spool)
    for one in ended:
        _write_left(spool, one)
        os.waitpid(one.si_pid, 0)


@pytest.mark.parametrize("seconds", [-100, 100], ids=["before it was started", "long after it was started"])
def test_a_claim_of_another_time_is_another_jobs(spool: Spool, seconds: int) -> None:
    ended = run_job(spool, "a.1")
    os.utime(spool.run / "a.1", (0, time.time() + seconds))
    write_down(spool, ended)
    assert end_of(spool, "a.1") is None


def test_of_two_claims_of_one_moment_neither_is_taken(spool: Spool) -> None:
    ended = run_job(spool, "a.1")
    (spool.run / "b.1").touch()
    write_down(spool, ended)
    assert [end_of(spool, local_id) for local_id in ("a.1", "b.1")] == [None, None]


def run_daemon(spool: Spool) -> os.waitid_result:
    """What another job left behind, a session of its own, as it has ended, a clock tick before the next is started."""
    ended = run_job(spool, "daemon.1")
    (spool.run / "daemon.1").unlink()
    process = read_process(ended.si_pid, zombie=True)
    assert process is not None
    wait_until(lambda: time.clock_gettime(time.CLOCK_BOOTTIME) > read_started_seconds(process) + 0.03)
    return ended


def test_what_another_job_left_behind_is_not_taken_for_a_job_that_runs(spool: Spool) -> None:
    daemon = run_daemon(spool)
    request = StartRequest("a.1", "/bin/sleep", ("60",))
    job = run_program(request, 0, spool.run / "a.1")
    process = read_process(job)
    write_down(spool, daemon)
    assert read_run_file(spool.run / "a.1") == JobRun(process)
    os.kill(job, signal.SIGKILL)
    os.waitpid(job, 0)


def test_of_two_that_may_have_made_a_claim_neither_is_taken(spool: Spool) -> None:
    daemon = run_daemon(spool)
    job = run_job(spool, "a.1")
    write_down(spool, daemon, job)
    assert end_of(spool, "a.1") is None


def test_a_job_that_is_known_has_made_no_claim_but_its_own(spool: Spool) -> None:
    known = run_job(spool, "a.1")
    process = read_process(known.si_pid, zombie=True)
    assert process is not None
    write_line(spool.run / "a.1", render_process(process))
    job = run_job(spool, "b.1")
    write_down(spool, known, job)
    assert [end_of(spool, local_id) for local_id in ("a.1", "b.1")] == [(State.DONE, 3)] * 2


@pytest.mark.parametrize("waits", [[], [0.3]], ids=["", "though who looks has to wait between two clocks"])
def test_what_a_job_left_behind_is_not_taken_for_it(
    spool: Spool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waits: list[float]
) -> None:
    script = f"sleep 0.1; setsid sh -c 'echo $$ >{tmp_path}/new; mv {tmp_path}/new {tmp_path}/pid; sleep 60' & exit 7"
    job = run_program(StartRequest("a.1", "/bin/sh", ("-c", script)), 0, spool.run / "a.1")
    ended = os.waitid(os.P_PID, job, os.WEXITED | os.WNOWAIT)
    assert ended is not None
    wait_until((tmp_path / "pid").exists)
    read_clock, waits = time.time, [*waits]

    def read_clock_and_wait() -> float:
        now = read_clock()
        time.sleep(waits.pop() if waits else 0)
        return now

    monkeypatch.setattr(time, "time", read_clock_and_wait)
    write_down(spool, ended)
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
    assert end_of(spool, "a.1") == (State.DONE, 7)


def test_what_ends_while_the_queue_process_lives_has_made_no_claim_of_its(spool: Spool) -> None:
    daemon = run_daemon(spool)
    (spool.run / "a.1").touch()
    _write_left(spool, daemon)
    os.waitpid(daemon.si_pid, 0)
    assert end_of(spool, "a.1") is None


def test_a_queue_process_that_dies_at_once_is_not_made_again_at_once(
    spool: Spool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_submission(spool, "a", 1, StoredSubmission(("/bin/true",), "/", ()))
    spool.close()
    noted = tmp_path / "noted"

    def note(what: object) -> None:
        with noted.open("a") as file:
            print(what, file=file)

    def die(_queue: Queue) -> None:
        note("run")
        if noted.read_text().count("run") < 3:
            os.kill(os.getpid(), signal.SIGKILL)
        with spool.transaction() as database:
            database.execute("DELETE FROM job")

    monkeypatch.setattr(Queue, "run", die)
    # However busy the machine is, each has died at once.
    monkeypatch.setattr(keeper, "time", SimpleNamespace(monotonic=lambda: 0.0, sleep=note))
    child = os.fork()
    if child == 0:
        os.dup2(os.open(spool.queue_lock, os.O_RDWR | os.O_CREAT), 0)
        _run_and_exit(lambda: keeper.run_keeper(spool, 1, 1.0))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert noted.read_text().split() == ["run", f"{RETRY_SECONDS}", "run", f"{RETRY_SECONDS}", "run"]
