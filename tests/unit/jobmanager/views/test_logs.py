"""``samgrid log`` shows what was logged and printed, whatever is in the files, and whatever lies in their place."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from batch_adapters.adapter import LocalStatus
from batch_adapters.states import Cause, State
from jobmanager.commands import cli
from jobmanager.database.local_job import LocalJob, Outcome
from jobmanager.site.account import Account
from jobmanager.states.ends import put_outcome
from jobmanager.states.transitions import apply_status
from tests.unit.grid_jobs import make_grid_job, make_whole, put, put_local_jobs

JOB = "aaaaaaaa"
HOSTILE = b"\x1b[2J<script>\x9b\xff\t'\"\r" + b"x" * 10_000 + b"\nlast"
Run = Callable[..., tuple[int, list[str], str]]


@pytest.fixture
def log(account: Account, capsys: pytest.CaptureFixture[str]) -> Run:
    """``samgrid log`` on a grid job of two local jobs, of which one has an id: exit status, lines, and stderr."""
    job = make_grid_job(JOB, 2)
    first = LocalJob.new(1, "fork", None)
    first.register("77", "", 1000)
    put(account.database, job, [first, LocalJob.new(2, "fork", None)])
    account.places.results(JOB).mkdir(parents=True)

    def run(*words: str) -> tuple[int, list[str], str]:
        try:
            status = cli.main(["log", "--state-dir", str(account.places.root), *words])
        except SystemExit as wrong_usage:
            status = int(str(wrong_usage))
        printed = capsys.readouterr()
        return status, printed.out.split("\n")[:-1], printed.err

    return run


def stdout_of(account: Account) -> Path:
    return account.places.results(JOB) / f"{JOB}.77.stdout"


FOLLOWED_BADLY = ([JOB], [f"{JOB}/1-2"], [f"{JOB}/1", f"{JOB}/2"])


def test_several_local_jobs_are_shown_and_those_that_failed(account: Account, log: Run) -> None:
    jobs = [LocalJob.new(index, "fork", None) for index in range(1, 31)]
    for job in jobs:
        job.register(str(job.index), "", 1000)
        job.state, job.driver, job.exit_code = State.DONE, "ended", int(job.index > 5)
        put_outcome(job)
        (account.places.results(JOB) / f"{JOB}.{job.index}.stdout").write_text(f"text {job.index}\n")
    put_local_jobs(account.database, JOB, *jobs)
    status, lines, _ = log(f"{JOB}/4-5", f"{JOB}/7")
    assert (status, [line for line in lines if line.startswith("text")]) == (0, ["text 4", "text 5", "text 7"])
    status, lines, _ = log(f"{JOB}/29-99999")
    assert [line for line in lines if line.startswith("text")] == ["text 29", "text 30"]
    status, lines, _ = log("--failed", JOB)
    assert [line for line in lines if line.startswith("text")] == [f"text {index}" for index in range(6, 26)]
    assert lines[-1] == "… and others: 20 local jobs are shown at once"
    assert log(f"{JOB}/31-40")[2] == f"samgrid log: grid job {JOB} has no local jobs 31 to 40\n"
    for words, error in (
        (["--failed", f"{JOB}/7"], f"--failed takes whole grid jobs: leave it out, or say ID instead of {JOB}/7"),
        *((["-f", *words], "one local job can be followed: say ID/NUMBER") for words in FOLLOWED_BADLY),
    ):
        status, _, said = log(*words)
        assert (status, said.splitlines()[-1]) == (2, f"samgrid log: error: {error}")


def test_what_failed_in_a_sequence_failed_in_its_steps(account: Account, log: Run) -> None:
    failed = LocalJob.new(1, "fork", None)
    failed.register("77", "", 1000)
    failed.state, failed.driver, failed.exit_code = State.DONE, "ended", 3
    put_outcome(failed)
    whole = make_whole("bbbbbbbb", "one", "two", one=JOB)
    with account.database.transaction():
        account.database.local_jobs.put(JOB, [failed])
        account.database.grid_jobs.put(whole)
    stdout_of(account).write_text("no such card\n")
    assert log("--failed", "bbbbbbbb")[1] == log("--failed", JOB)[1]
    assert "no such card" in log("--failed", "bbbbbbbb")[1]
    complaint = f"samgrid log: grid job bbbbbbbb has no local job 1: those of its steps are of {JOB}\n"
    assert log("bbbbbbbb/1")[2] == complaint


def test_a_name_with_a_slash_is_a_grid_jobs(account: Account, log: Run) -> None:
    account.database.grid_jobs.change(JOB, lambda job: setattr(job, "name", "Z/gamma"))
    stdout_of(account).write_text("text\n")
    account.places.log(JOB).write_text("a line\n")
    assert log("Z/gamma") == (0, ["a line"], "")
    assert log("Z/gamma/1")[1][:2] == [f"stdout of {JOB}/1:", "text"]


def test_the_whole_log_is_shown_or_its_last_lines(account: Account, log: Run) -> None:
    lines = [f"line {number}" for number in range(1000)]
    account.places.log(JOB).write_text("\n".join(lines) + "\n")
    assert log("aaa") == (0, lines, "")
    assert log("aaa", "--lines", "3") == (0, lines[-3:], "")


@pytest.mark.parametrize("table", ["grid_job", "local_job"])
def test_what_was_logged_is_shown_where_a_document_cannot_be_read(account: Account, log: Run, table: str) -> None:
    account.places.log(JOB).write_text("a line\n")
    with account.database.transaction():
        account.database._store.write("UPDATE local_job SET state = 'failed', wait_reason = 'held', cause = 'signal'")
        account.database._store.write(f"UPDATE {table} SET document = substr(document, 1, 60)")
    status, lines, complaint = log("aaa")
    assert (status, lines[0], complaint) == (0, "a line", "")


def test_the_log_tells_what_happened_between_what_was_logged(account: Account, log: Run) -> None:
    first, second = account.database.local_jobs.all_of(JOB)
    first.state, first.exit_code, first.driver = State.FAILED, 3, "ended"
    first.started_time, first.ended_time = 1010, 1020
    put_outcome(first)
    first.begin_attempt()
    first.register("78", "", 1030)
    held = LocalStatus("78", "HELD", State.SUSPENDED, reason="no\nroom", helps="condor_release 78")
    apply_status(first, held, 1040, "queue")
    first.put_batch_end("REMOVED", State.FAILED, Cause.CANCELLED_OUTSIDE, "root")
    first.state = State.FAILED
    second.register("79", "", 1000)
    second.state, second.exit_code, second.driver = State.DONE, 0, "ended"
    for job in (first, second):
        job.ended_time = 1060
        put_outcome(job)
    with account.database.transaction():
        account.database.local_jobs.put(JOB, [first, second])
        whole = account.database.grid_jobs.get(JOB)
        whole.cancel(1050, "cancelled by physicist")
        whole.no_summary = "ZeroDivisionError: x"
        whole.state, whole.outcome, whole.ended_time = State.FAILED, "cancelled", 1070
        account.database.grid_jobs.put(whole)
    account.places.log(JOB).write_text(
        "before\n1970-01-01T00:17:05.123Z WARNING a\nTraceback\n1970-01-01T00:17:45.001Z INFO b\nend\n"
    )
    told = [
        "before",
        "1970-01-01T00:16:50Z active: its first local job has started",
        "1970-01-01T00:17:00Z attempt 1 failed: 1 exit code; tried again",
        "1970-01-01T00:17:05.123Z WARNING a",
        "Traceback",
        "1970-01-01T00:17:20Z blocked, number 1: no room: condor_release 78",
        "1970-01-01T00:17:30Z cancelled by physicist",
        "1970-01-01T00:17:45.001Z INFO b",
        "end",
        "1970-01-01T00:17:50Z local jobs: 1 cancelled (cancelled outside), 1 succeeded",
        "1970-01-01T00:17:50Z no summary: ZeroDivisionError: x",
        "1970-01-01T00:17:50Z cancelled: cancelled by physicist",
    ]
    assert log("aaa")[1] == told
    assert log("aaa", "--lines", "5")[1] == told[-5:]


def test_of_a_local_job_the_last_lines_of_both_outputs_are_shown(account: Account, log: Run) -> None:
    stdout_of(account).write_text("".join(f"line {number}\n" for number in range(1000)))
    _, lines, _ = log("aaa/1")
    shown = [f"line {number}" for number in range(900, 1000)]
    assert lines == [f"stdout of {JOB}/1:", *shown, f"stderr of {JOB}/1:", "  is not back: the local job is pending"]
    assert log("aaa/1", "--lines", "2")[1][1:3] == shown[-2:]


def test_of_a_huge_file_only_the_end_is_read(account: Account, log: Run) -> None:
    with stdout_of(account).open("wb") as stream:
        stream.truncate(1 << 40)
        stream.seek(0, os.SEEK_END)
        stream.write(b"\nthe end\n")
    assert log("aaa/1", "--lines", "1")[1][1] == "the end"


def test_what_is_not_there_yet_is_said(log: Run) -> None:
    assert log("aaa") == (0, ["nothing has been logged yet"], "")
    assert log("aaa/2")[1][1] == "  is not back: the local job is unsubmitted"


def test_what_was_cancelled_is_not_called_failed(account: Account, log: Run) -> None:
    (first, _) = account.database.local_jobs.all_of(JOB)
    first.state, first.outcome = State.FAILED, Outcome.CANCELLED
    put_local_jobs(account.database, JOB, first)
    assert log("--failed", JOB)[1][1] == "  is not back: the local job is cancelled"


def test_a_name_like_a_local_job_is_not_taken_silently(account: Account, log: Run) -> None:
    account.database.grid_jobs.change(JOB, lambda job: setattr(job, "name", "aaa/2"))
    assert log("aaa/2")[2] == (
        f'samgrid log: "aaa/2" fits grid job {JOB} by its name, and local job {JOB}/2: use an id, or --name\n'
    )
    assert log(f"{JOB}/2")[0] == 0
    assert log("--name", "aaa/2")[0] == 0


@pytest.mark.parametrize("words", [["aaa"], ["aaa", "--lines", "9"], ["aaa/1"]], ids=["log", "its end", "local job"])
def test_what_is_in_a_file_is_shown_harmlessly(account: Account, log: Run, words: list[str]) -> None:
    for path in (account.places.log(JOB), stdout_of(account)):
        path.write_bytes(HOSTILE)
    status, lines, _ = log(*words)
    assert status == 0
    assert all(line.isprintable() for line in lines)
    assert "last" in lines


@pytest.mark.parametrize("name", ["zzz", "zzz/1", "aaa/3", "aaa/0", "aaa/x", "/", ""])
def test_what_there_is_not_is_one_clear_error(log: Run, name: str) -> None:
    status, lines, errors = log(name)
    assert (status, lines) == (1, [])
    assert errors.startswith("samgrid log: ")
    assert errors.count("\n") == 1


def test_nothing_is_read_behind_a_link_in_place_of_the_results(account: Account, log: Run, tmp_path: Path) -> None:
    (tmp_path / stdout_of(account).name).write_text("the secret")
    stdout_of(account).parent.rmdir()
    stdout_of(account).parent.symlink_to(tmp_path)
    assert "the secret" not in log("aaa/1")[1]


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_what_is_no_file_is_not_read(account: Account, log: Run, tmp_path: Path, kind: str) -> None:
    (tmp_path / "secret").write_text("the secret")
    path = stdout_of(account)
    if kind == "link":
        path.symlink_to(tmp_path / "secret")
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.mkdir()
    status, lines, errors = log("aaa/1")
    assert (status, str(path) in errors) == (1, True)
    assert "the secret" not in lines


def test_a_local_job_is_followed_from_before_it_is_written_down(
    account: Account, log: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = make_grid_job("bbbbbbbb")
    put(account.database, job)

    def write_down(_: float) -> None:
        local_job = LocalJob.new(1, "fork", None)
        local_job.register("78", "", 1000)
        local_job.state, local_job.driver, local_job.exit_code = State.DONE, "ended", 0
        put_outcome(local_job)
        put_local_jobs(account.database, "bbbbbbbb", local_job)

    monkeypatch.setattr("time.sleep", write_down)
    assert log("-f", "bbbbbbbb/1")[:2] == (0, ["local job bbbbbbbb/1 has succeeded"])
    assert "has no local job 2: it has 1" in log("-f", "bbbbbbbb/2")[2]
