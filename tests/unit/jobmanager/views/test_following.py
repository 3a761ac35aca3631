"""``samgrid log -f``: what a local job prints is shown as it comes, once, and bounded, whatever is in its files."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from batch_adapters.states import State
from jobmanager.database.local_job import LocalJob, Outcome
from jobmanager.site.account import Account
from jobmanager.states.ends import put_outcome
from jobmanager.views.following import (
    _AT_ONCE,
    _TAIL,
    PrintedEnd,
    Wish,
    _Stream,
    find_printed,
    follow_local_job,
    read_printed,
)
from tests.unit.grid_jobs import make_grid_job, put, put_local_jobs

JOB = "aaaaaaaa"


@pytest.fixture
def job(account: Account) -> LocalJob:
    """A local job that runs."""
    grid_job = make_grid_job(JOB)
    local_job = LocalJob.new(1, "fork", None)
    local_job.register("77", "", 1000)
    local_job.state = State.ACTIVE
    put(account.database, grid_job, [local_job])
    account.places.results(JOB).mkdir(parents=True)
    return local_job


def begin(account: Account, folder: Path) -> Path:
    """The folder of a driver on this host that has begun; where it keeps what is printed."""
    (folder / ".samgrid").mkdir(parents=True)
    (account.places.results(JOB) / f"{JOB}.77.status").write_text(f"start 10\nscratch {folder}\n")
    return folder / ".samgrid"


def end(account: Account, job: LocalJob) -> None:
    job.state, job.exit_code, job.driver = State.DONE, 0, "ended"
    put_outcome(job)
    put_local_jobs(account.database, JOB, job)


def read(stream: _Stream, path: Path, begin: int = 0, is_over: bool = False) -> list[str]:
    return list(stream.read((begin, path.open("rb")), is_over))


def test_each_line_is_shown_once_when_it_is_whole(tmp_path: Path) -> None:
    file, stream = tmp_path / "stdout", _Stream()
    seen = []
    for more in (b"one\ntw", b"", b"o\n\x1b[2J\xff\n", b"last"):
        with file.open("ab") as sink:
            sink.write(more)
        seen.append(read(stream, file))
    assert seen == [["one"], [], ["two", "\ufffd[2J\ufffd"], []]
    assert read(stream, file, is_over=True) == ["last"]
    assert read(stream, file, is_over=True) == []


def test_of_what_comes_too_fast_the_last_is_shown_and_the_rest_counted(tmp_path: Path) -> None:
    file, stream = tmp_path / "stdout", _Stream()
    file.write_bytes(b"x" * 1000 + b"\n" + b"y" * (_AT_ONCE - 1) + b"\n")
    assert read(stream, file) == ["… 1001 bytes before this are not shown", "y" * (_AT_ONCE - 1)]
    with file.open("ab") as sink:
        sink.truncate(10**10)
    lines = read(stream, file)
    assert lines[0] == f"… {10**10 - 2 * _AT_ONCE - 1001} bytes before this are not shown"
    assert len("".join(lines)) <= _AT_ONCE + 100


def test_a_run_that_began_anew_is_shown_from_its_beginning(tmp_path: Path) -> None:
    file, stream = tmp_path / "stdout", _Stream()
    file.write_text("first run\n")
    assert read(stream, file) == ["first run"]
    file.write_text("second\n")
    assert read(stream, file) == ["second"]


def test_a_copy_that_begins_later_goes_on_where_the_one_before_ended(tmp_path: Path) -> None:
    stream = _Stream()
    for text, shown in (("0\none\ntwo\n", ["one", "two"]), ("4\ntwo\nthree\n", ["three"]), ("30\nx\n", None)):
        file = tmp_path / "copy"
        file.write_text(text)
        source = file.open("rb")
        begin = int(source.readline())
        lines = list(stream.read((begin, source), False))
        assert lines == (shown or ["… 16 bytes before this are not shown", "x"])


def test_what_is_printed_is_followed_to_the_end(
    account: Account, job: LocalJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = begin(account, tmp_path / f"samgrid.{JOB}.x")
    (live / "stdout").write_text("one\n")
    (live / "stderr").write_text("")

    def steps() -> Iterator[None]:
        (live / "stderr").write_text("oops\n")
        yield
        (account.places.results(JOB) / f"{JOB}.77.stdout").write_text("one\ntwo")
        end(account, job)
        yield

    step = steps()
    monkeypatch.setattr("jobmanager.views.following.time.sleep", lambda _: next(step))
    assert list(follow_local_job(account, JOB, 1)) == [
        f"local job {JOB}/1 is active",
        *(f"stdout of {JOB}/1:", "one", f"stderr of {JOB}/1:", "oops", f"stdout of {JOB}/1:", "two"),
        f"local job {JOB}/1 has succeeded",
    ]
    assert not list(account.places.results(JOB).glob(".*")), "nobody was asked for copies"


def test_the_end_of_what_was_cancelled_is_told_as_such(account: Account, job: LocalJob) -> None:
    job.state, job.outcome, job.reason = State.FAILED, Outcome.CANCELLED, "enough"
    put_local_jobs(account.database, JOB, job)
    assert list(follow_local_job(account, JOB, 1)) == [f"local job {JOB}/1 was cancelled: enough"]


def test_a_driver_elsewhere_is_asked_for_copies_until_nobody_looks_any_more(
    account: Account, job: LocalJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = account.places.results(JOB)
    (results / f"{JOB}.77.status").write_text(f"start 10\nscratch /nowhere/samgrid.{JOB}.x\n")
    wish = results / f".{JOB}.77.live"

    def copy(_: float) -> None:
        assert wish.stat().st_mode & 0o777 == 0o600
        (results / f"{wish.name}.stdout").write_text("0\nhello\n")
        if not wish.with_name(f"{wish.name}.stderr").exists():
            (results / f"{wish.name}.stderr").write_text("nonsense")
            return
        end(account, job)

    monkeypatch.setattr("jobmanager.views.following.time.sleep", copy)
    lines = list(follow_local_job(account, JOB, 1))
    assert lines[1:] == [f"stdout of {JOB}/1:", "hello", f"local job {JOB}/1 has succeeded"]
    assert [path.name for path in results.iterdir()] == [f"{JOB}.77.status"]


@pytest.mark.parametrize("name", ["etc", f"samgrid.{JOB}.x"], ids=["another folder", "a link"])
def test_a_record_that_leads_elsewhere_is_not_followed(
    account: Account, job: LocalJob, tmp_path: Path, name: str
) -> None:
    live = begin(account, tmp_path / name)
    secret = tmp_path / "secret"
    secret.write_text("secret")
    (live / "stdout").symlink_to(secret)
    (live / "stderr").write_text("")
    assert find_printed(account, JOB, job, "stdout") is None
    assert (find_printed(account, JOB, job, "stderr") is None) == (name == "etc")
    live.rename(tmp_path / "moved")
    live.symlink_to(tmp_path / "moved")
    assert find_printed(account, JOB, job, "stderr") is None


def test_a_wish_that_has_ended_is_made_no_more_by_a_thread_that_comes_late(account: Account, job: LocalJob) -> None:
    wish = Wish()
    for _ in range(2):
        wish.make(account, JOB, job)
        assert len([*account.places.results(JOB).iterdir()]) == 1
    wish.end()
    wish.make(account, JOB, job)
    assert [*account.places.results(JOB).iterdir()] == []


def test_of_a_channel_the_end_is_read_from_a_whole_line_on(account: Account, job: LocalJob, tmp_path: Path) -> None:
    live = begin(account, tmp_path / f"samgrid.{JOB}.x")
    (live / "stdout").write_bytes(b"x" * 1000 + b"\n" + b"y" * _TAIL + b"\nz\x1b\n")
    (live / "stderr").write_bytes(b"one\r\n10 %\r50 %\r")
    out, err = read_printed(account, JOB, job)
    assert err == PrintedEnd("stderr", "one\n50 %", 0)
    assert (out.left_out, out.text) == (1000 + 1 + _TAIL + 1, "z\ufffd\n")


def test_of_a_copy_from_elsewhere_it_is_known_what_came_before(account: Account, job: LocalJob) -> None:
    copy = account.places.results(JOB) / f".{JOB}.77.live.stdout"
    copy.write_text("4000\ntorn\nnext\n")
    assert read_printed(account, JOB, job) == [PrintedEnd("stdout", "next\n", 4005)]


def test_where_nothing_can_be_read_nothing_is_shown(account: Account, job: LocalJob, tmp_path: Path) -> None:
    results = account.places.results(JOB)
    (results / f"{JOB}.77.stdout").symlink_to("/etc/passwd")
    (results / f"{JOB}.77.stderr").mkdir()
    assert read_printed(account, JOB, job) == []
    (tmp_path / f"{JOB}.77.stdout").write_text("secret")
    results.rename(tmp_path / "results")
    results.symlink_to(tmp_path)
    assert read_printed(account, JOB, job) == []
    assert read_printed(account, JOB, LocalJob.new(2, "fork", None)) == []
