"""What the monitor tells GRAM of its grid jobs, when, and how often."""

import os
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from batch_adapters.adapter import Refused
from batch_adapters.generator.collector_protocol import Receipt
from batch_adapters.states import Event, State
from gram_shims.calls import poll, stage_out
from gram_shims.request import JobDescription
from jobmanager.control.cancel_requests import request_cancel
from jobmanager.database.grid_job import GramOrigin, GridJob
from jobmanager.database.local_job import LocalJob, Outcome
from jobmanager.gram import reports as gram_reports
from jobmanager.gram.answers import answer_file, gram_id, make_events, publish_answer, reported_state
from jobmanager.gram.reports import GramReports
from jobmanager.monitor import worker
from jobmanager.monitor.monitor import Monitor
from jobmanager.site.account import Account
from jobmanager.site.settings import FailedAs, GramSettings
from jobmanager.states.aggregation import Task
from tests.conftest import file_size_limit
from tests.unit.grid_jobs import make_grid_job, put, put_local_jobs

A, B = "aaaaaaaa", "bbbbbbbb"
MIDNIGHT = 1795219200.0
"""2026-11-21, UTC."""


class Clock:
    """Both clocks, which go together and only when they are told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, now: float) -> None:
        self.now = now
        monkeypatch.setattr(time, "time", lambda: self.now)
        monkeypatch.setattr(time, "monotonic", lambda: self.now)

    def pass_by(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch, MIDNIGHT + 36_000.5)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "events"
    path.mkdir()
    return path


@pytest.fixture
def seg(account: Account, folder: Path) -> Account:
    """The account in SEG mode, with a folder of its own."""
    return in_mode(account, GramSettings(event_folder=folder))


def in_mode(account: Account, settings: GramSettings) -> Account:
    account.database.check_room()  # opens it: the copies shall have the same
    copy = replace(account, configuration=replace(account.configuration, gram=settings))
    copy.__dict__["database"] = account.database
    return copy


def accept(account: Account, job_id: str = A, *, plain: bool = False) -> GridJob:
    """A grid job that has come through GRAM just now."""
    job = make_grid_job(job_id, 3, submitted=time.time())
    job.put_origin(GramOrigin(f"uniqid of {job_id}", "https://localhost/1/2/", "/dev/null", "/dev/null", plain))
    put(account.database, job)
    return job


def enter(account: Account, state: State, job_id: str = A, reason: str | None = None) -> GridJob:
    def change(job: GridJob) -> None:
        job.reason = reason
        if state.is_final:
            job.end(state, time.time())
        else:
            job.state = state

    return account.database.grid_jobs.change(job_id, change)


def lines_of(folder: Path) -> list[str]:
    """Grid job, state and exit code of every event in the folder, whose ids begin with our uid."""
    lines = [line for path in sorted(folder.iterdir()) for line in path.read_text("ascii").splitlines()]
    return [line.split(";", 2)[2].removeprefix(f"{os.getuid()}.") for line in lines]


def told(account: Account, job_id: str = A) -> State | None:
    return account.database.grid_jobs.get(job_id).reported


def test_without_events_the_answer_to_a_poll_is_published_and_noted(account: Account, clock: Clock) -> None:
    accept(account)
    reports = GramReports(account)
    reports.report()
    assert (answer_file(account, A).read_text(), told(account)) == ("JOB_STATE:1\n", State.PENDING)
    enter(account, State.DONE)
    reports.report()
    assert (answer_file(account, A).read_text(), told(account)) == ("JOB_STATE:8\n", State.DONE)
    assert answer_file(account, A).stat().st_mode & 0o777 == 0o600
    assert not reports.are_pending


def test_a_grid_job_that_did_not_come_through_gram_is_none_of_its_business(account: Account, clock: Clock) -> None:
    put(account.database, make_grid_job(A, submitted=time.time()))
    GramReports(account).report()
    assert not account.places.gram.exists()


def test_active_comes_before_done(seg: Account, folder: Path, clock: Clock) -> None:
    accept(seg)
    reports = GramReports(seg)
    reports.report()
    clock.pass_by(1)
    enter(seg, State.DONE)
    reports.report()
    assert lines_of(folder) == [f"{A};1;0", f"{A};2;0", f"{A};8;0"]
    assert answer_file(seg, A).read_text() == "JOB_STATE:8\n"


def test_nothing_that_matters_is_told_before_gram_knows_the_id(seg: Account, folder: Path, clock: Clock) -> None:
    accept(seg)
    reports = GramReports(seg)
    enter(seg, State.DONE)
    reports.report()
    clock.pass_by(0.9)
    reports.report()
    assert lines_of(folder) == []
    assert reports.are_pending
    assert reports.due_in() == pytest.approx(0.1)
    clock.pass_by(reports.due_in())
    reports.report()
    assert lines_of(folder) == [f"{A};2;0", f"{A};8;0"]


def test_a_monitor_that_starts_later_need_not_wait(seg: Account, folder: Path, clock: Clock) -> None:
    accept(seg)
    enter(seg, State.ACTIVE)
    clock.pass_by(2)
    GramReports(seg).report()
    assert lines_of(folder) == [f"{A};2;0"]


def test_an_end_is_told_again_after_5_and_60_seconds_and_no_more(seg: Account, folder: Path, clock: Clock) -> None:
    accept(seg)
    enter(seg, State.DONE)
    clock.pass_by(2)
    reports = GramReports(seg)
    end = [f"{A};2;0", f"{A};8;0"]
    for seconds, times in ((0, 1), (4.9, 1), (0.2, 2), (50, 2), (11, 3), (1000, 3)):
        clock.pass_by(seconds)
        reports.report()
        assert lines_of(folder) == end * times
        assert reports.are_pending is (times < 3)


def test_active_is_told_again_unless_something_new_was_told(seg: Account, folder: Path, clock: Clock) -> None:
    for job_id in (A, B):
        accept(seg, job_id)
        enter(seg, State.ACTIVE, job_id)
    clock.pass_by(2)
    reports = GramReports(seg)
    reports.report()
    enter(seg, State.FAILED, B)
    reports.report()
    before = len(lines_of(folder))
    clock.pass_by(5)
    reports.report()
    assert sorted(lines_of(folder)[before:]) == [f"{A};2;0", f"{B};2;0", f"{B};8;1"]


def test_a_new_monitor_tells_the_ends_of_the_last_ten_minutes_again(seg: Account, folder: Path, clock: Clock) -> None:
    for job_id in (A, B):
        accept(seg, job_id)
        enter(seg, State.DONE, job_id)
        clock.pass_by(400)
        GramReports(seg).report()
    before = lines_of(folder)
    GramReports(seg).report()
    assert lines_of(folder) == [*before, f"{A};2;0", f"{A};8;0", f"{B};2;0", f"{B};8;0"]
    clock.pass_by(300)
    GramReports(seg).report()
    assert lines_of(folder)[len(before) + 4 :] == [f"{B};2;0", f"{B};8;0"]


def test_a_monitor_killed_before_it_noted_what_it_told_tells_it_again(
    seg: Account, folder: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    accept(seg)
    enter(seg, State.DONE)
    clock.pass_by(2)

    def die(self: GramReports, jobs: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(GramReports, "_note", die)
        with pytest.raises(KeyboardInterrupt):
            GramReports(seg).report()
    assert (told(seg), lines_of(folder)) == (None, [f"{A};2;0", f"{A};8;0"])
    GramReports(seg).report()
    assert (told(seg), lines_of(folder)) == (State.DONE, [f"{A};2;0", f"{A};8;0"] * 2)


@pytest.mark.parametrize(
    ("site", "request_says", "state", "is_failure"),
    [
        pytest.param(FailedAs.FAILED, (), State.FAILED, True, id="by default"),
        pytest.param(FailedAs.DONE, (), State.FAILED, False, id="as the site says"),
        pytest.param(FailedAs.DONE, ("failed",), State.FAILED, True, id="as the request says"),
        pytest.param(FailedAs.FAILED, ("failed", "done"), State.FAILED, False, id="as last given"),
        pytest.param(FailedAs.FAILED, ("failed",), State.DONE, False, id="done"),
    ],
)
def test_site_and_request_say_what_gram_hears_of_a_failure_after_staging(
    account: Account, site: FailedAs, request_says: Sequence[str], state: State, is_failure: bool
) -> None:
    account = in_mode(account, GramSettings(failed_as=site))
    accept(account)
    asked = [("samgrid_type", ("command",)), *(("FailedAs", (word,)) for word in request_says)]
    account.database.grid_jobs.change(A, lambda job: job.put_request(asked, Path("/")))
    enter(account, state, reason="2 of 3 failed")
    answer = stage_out(account, JobDescription({"uniqid": (f"uniqid of {A}",), "jobid": ("",)}))
    assert (answer.error == 17, answer.state) == (is_failure, None)
    assert ("2 of 3 failed; what came back is in" in answer.message) is is_failure


def test_every_day_has_its_file_also_without_events(seg: Account, folder: Path, clock: Clock) -> None:
    clock.now = MIDNIGHT + 86_399.5
    reports = GramReports(seg)
    reports.report()
    clock.pass_by(1)
    reports.report()
    assert sorted(path.name for path in folder.iterdir()) == ["20261121", "20261122"]


def test_a_monitor_of_roots_leaves_the_folder_of_another_account_alone(
    seg: Account, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: folder.stat().st_uid + 1)
    GramReports(seg).report()
    assert list(folder.iterdir()) == []


def test_events_carry_the_time_of_their_writing(seg: Account, folder: Path, clock: Clock) -> None:
    accept(seg)
    enter(seg, State.ACTIVE)
    clock.pass_by(86_400)
    GramReports(seg).report()
    assert (folder / "20261122").read_text() == f"001;{int(clock.now)};{gram_id(A)};2;0\n"


def test_a_suspended_grid_job_has_no_event_but_an_answer(seg: Account, folder: Path, clock: Clock) -> None:
    accept(seg)
    enter(seg, State.SUSPENDED)
    clock.pass_by(2)
    GramReports(seg).report()
    assert (lines_of(folder), answer_file(seg, A).read_text()) == ([], "JOB_STATE:16\n")
    assert told(seg) is State.SUSPENDED


@pytest.mark.parametrize(
    ("plain", "state", "cancelled", "codes", "events"),
    [
        pytest.param(False, State.DONE, "", [0, 0], [(State.ACTIVE, 0), (State.DONE, 0)], id="done"),
        pytest.param(False, State.DONE, "", [0, 3], [(State.ACTIVE, 0), (State.DONE, 0)], id="enough succeeded"),
        pytest.param(False, State.FAILED, "", [3], [(State.ACTIVE, 0), (State.DONE, 1)], id="rule not met"),
        pytest.param(False, State.FAILED, "by a person", [], [(State.FAILED, 0)], id="cancelled"),
        pytest.param(
            False, State.FAILED, "cannot be run: x", [], [(State.ACTIVE, 0), (State.DONE, 1)], id="cannot be run"
        ),
        pytest.param(True, State.DONE, "", [0, 7, 9], [(State.ACTIVE, 0), (State.DONE, 7)], id="plain, first code"),
        pytest.param(True, State.DONE, "", [0, 0], [(State.ACTIVE, 0), (State.DONE, 0)], id="plain, all good"),
        pytest.param(True, State.DONE, "", [None, 9], [(State.ACTIVE, 0), (State.DONE, 1)], id="plain, lost"),
        pytest.param(True, State.DONE, "", [70_000], [(State.ACTIVE, 0), (State.DONE, 1)], id="plain, large code"),
        pytest.param(True, State.DONE, "", [-9], [(State.ACTIVE, 0), (State.DONE, 1)], id="plain, negative code"),
    ],
)
def test_the_end_in_events(
    account: Account,
    plain: bool,
    state: State,
    cancelled: str,
    codes: Sequence[int | None],
    events: list[tuple[State, int]],
) -> None:
    accept(account, plain=plain)
    put_local_jobs(account.database, A, *[make_local_job(index, code) for index, code in enumerate(codes, 1)])
    if cancelled:
        request_cancel(account.database, A, cancelled, "us" if cancelled.startswith("cannot") else None)
    job = account.database.grid_jobs.change(A, lambda job: job.end(state, time.time()))
    assert [(event.state, event.exit_code) for event in make_events(account, job)] == events


def make_local_job(index: int, code: int | None) -> LocalJob:
    job = LocalJob.new(index, "fork", None)
    job.state = State.FAILED if code is None else State.DONE
    job.exit_code = code
    job.outcome = Outcome.SUCCEEDED if code == 0 else Outcome.FAILED
    return job


def test_a_grid_job_that_cannot_be_run_was_not_cancelled_by_anybody(
    account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    accept(account)

    def refuse(account: Account, grid_job: str) -> None:
        raise Refused("no such queue")

    monkeypatch.setattr(worker, "run_grid_job", refuse)
    worker._do_task_of_grid_job(account, Task.SUBMIT, A)
    job = account.database.grid_jobs.get(A)
    assert (job.cancelled, job.was_cancelled) == (True, False)


@pytest.mark.parametrize("failed_as", FailedAs)
def test_a_cancelled_grid_job_whose_files_gram_brings_back_fails_when_it_has(
    account: Account, failed_as: FailedAs
) -> None:
    account = in_mode(account, GramSettings(failed_as=failed_as))
    origin = accept(account).origin
    assert origin is not None
    account.database.grid_jobs.change(A, lambda job: job.put_origin(replace(origin, is_staged_out=True)))
    request_cancel(account.database, A, "cancelled by its owner")
    job = enter(account, State.FAILED)
    # A bare FAILED would end the client with exit code 0.
    assert [(event.state, event.exit_code) for event in make_events(account, job)] == [(State.DONE, 1)]
    assert stage_out(account, JobDescription({"uniqid": (f"uniqid of {A}",), "jobid": ("",)})).error == 8


@pytest.mark.parametrize(("by", "error"), [("us", 17), (None, 8)], ids=["cannot be run", "cancelled by somebody"])
def test_the_published_answer_and_that_of_a_call_name_the_same_error(
    account: Account, monkeypatch: pytest.MonkeyPatch, by: str | None, error: int
) -> None:
    accept(account)
    request_cancel(account.database, A, "whatever the sentence says", by)
    enter(account, State.FAILED, reason="cannot be run: nor what it says later")
    publish_answer(account, account.database.grid_jobs.get(A))
    answer = poll(account, JobDescription({"jobid": (gram_id(A),)}))
    assert f"ERROR:{error}\n" in answer_file(account, A).read_text()
    assert answer.error == error


def test_a_full_disk_tears_no_line_and_loses_no_event(seg: Account, folder: Path, clock: Clock) -> None:
    accept(seg)
    accept(seg, B)
    for job_id in (A, B):
        enter(seg, State.ACTIVE, job_id)
    clock.pass_by(2)
    reports = GramReports(seg)
    with file_size_limit(35):
        told_ids = reports._events.report([seg.database.grid_jobs.get(A), seg.database.grid_jobs.get(B)])  # type: ignore[union-attr]
    assert told_ids == set()
    assert "cannot be told" in reports.problem
    assert lines_of(folder) == [f"{A};2;0"]
    assert (folder / "20261121").read_bytes().endswith(b"\n")
    clock.pass_by(11)
    reports.report()
    assert lines_of(folder)[1:] == [f"{A};2;0", f"{B};2;0"]
    assert (reports.problem, told(seg), told(seg, B)) == ("", State.ACTIVE, State.ACTIVE)


def test_what_cannot_be_published_is_not_noted_and_keeps_nobody_from_working(account: Account, clock: Clock) -> None:
    accept(account)
    enter(account, State.DONE)
    account.places.gram.write_text("in the way")
    reports = GramReports(account)
    reports.report()
    assert (told(account), reports.are_pending) == (None, True)
    assert "answers to GRAM's polls" in reports.problem
    account.places.gram.unlink()
    reports.report()
    assert (told(account), reports.are_pending, reports.problem) == (State.DONE, False, "")


class FakeCollector:
    """Answers as it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, answer: Callable[[Event], Receipt]) -> None:
        self.heard: list[Event] = []
        self.answer = answer
        monkeypatch.setattr(gram_reports, "hand_in", self.hand_in)

    def hand_in(self, collector: Path, events: Sequence[Event]) -> list[Receipt]:
        self.heard += events
        return [self.answer(event) for event in events]


def refuse_a(event: Event) -> Receipt:
    return Receipt.REFUSED if event.local_id == gram_id(A) else Receipt.TAKEN


def test_an_id_that_the_collector_refuses_does_not_delay_the_others(
    account: Account, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    collector = FakeCollector(monkeypatch, refuse_a)
    seg = in_mode(account, GramSettings(event_collector=Path("/run/x")))
    for job_id in (A, B):
        accept(seg, job_id)
        enter(seg, State.DONE, job_id)
    clock.pass_by(2)
    reports = GramReports(seg)
    reports.report()
    assert (told(seg), told(seg, B)) == (None, State.DONE)
    assert f"refuses the events of {A}" in reports.problem
    heard = len(collector.heard)
    clock.pass_by(1)
    reports.report()
    assert len(collector.heard) == heard
    collector.answer = lambda event: Receipt.TAKEN
    clock.pass_by(60)
    reports.report()
    assert (told(seg), reports.problem) == (State.DONE, "")


def test_what_the_collector_cannot_take_now_it_gets_later(
    account: Account, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    collector = FakeCollector(monkeypatch, lambda event: Receipt.LATER if event.state is State.DONE else Receipt.TAKEN)
    seg = in_mode(account, GramSettings(event_collector=Path("/run/x")))
    accept(seg)
    enter(seg, State.DONE)
    clock.pass_by(2)
    reports = GramReports(seg)
    reports.report()
    reports.report()
    assert (told(seg), len(collector.heard)) == (None, 2)
    assert "cannot take them now" in reports.problem
    collector.answer = lambda event: Receipt.TAKEN
    clock.pass_by(10)
    reports.report()
    assert (told(seg), [event.state for event in collector.heard[2:]]) == (State.DONE, [State.ACTIVE, State.DONE])


def test_without_a_collector_polls_are_answered_and_events_wait(account: Account, tmp_path: Path) -> None:
    seg = in_mode(account, GramSettings(event_collector=tmp_path / "nobody"))
    accept(seg)
    enter(seg, State.DONE)
    reports = GramReports(seg)
    reports.report()
    assert (answer_file(seg, A).read_text(), told(seg), reports.are_pending) == ("JOB_STATE:8\n", None, True)


def test_the_id_is_claimed_at_once(account: Account, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    collector = FakeCollector(monkeypatch, lambda event: Receipt.TAKEN)
    seg = in_mode(account, GramSettings(event_collector=Path("/run/x")))
    accept(seg)
    GramReports(seg).report()
    assert [(event.local_id, event.state) for event in collector.heard] == [(gram_id(A), State.PENDING)]


def test_the_last_answer_is_on_the_disk_before_it_is_noted(
    account: Account, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    sync = os.fsync

    def note(descriptor: int) -> None:
        synced.append(Path(f"/proc/self/fd/{descriptor}").readlink())
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    accept(account)
    reports = GramReports(account)
    reports.report()
    assert synced == []
    enter(account, State.FAILED, reason="it failed")
    reports.report()
    assert [path.name.split(".")[-2:] for path in synced] == [[A, str(os.getpid())], ["gram"]]
    assert told(account) is State.FAILED


def test_a_monitor_is_not_idle_before_gram_knows_every_end(account: Account, tmp_path: Path) -> None:
    accept(account)
    enter(account, State.DONE)
    with socket.socket(socket.AF_UNIX) as listener:
        monitor = Monitor(in_mode(account, GramSettings(event_collector=tmp_path / "nobody")), listener)
        monitor._work()
        assert monitor._idle_since is None
        clocks = monitor._reports._first_seen
        clocks[A] -= 10
        monitor._work()
        assert any("GRAM cannot be told by events" in problem for problem in monitor._list_problems())
        monitor = Monitor(account, listener)
        monitor._work()
        assert monitor._idle_since is not None


def test_gram_is_told_states_that_it_knows_only() -> None:
    told = {state: reported_state(state) for state in State}
    begun = {told.pop(state) for state in (State.UNSUBMITTED, State.STAGE_IN)}
    assert (begun, told.pop(State.STAGE_OUT)) == ({State.PENDING}, State.ACTIVE)
    assert all(state is before for before, state in told.items())
