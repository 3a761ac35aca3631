"""Failed local jobs are tried again: which ones, and that nothing of an earlier attempt reaches the next."""

import time
from pathlib import Path

import pytest
from lxml import etree

from batch_adapters.adapter import LocalStatus
from batch_adapters.states import Event, State
from jobmanager.completion.collection import choose_retries, retry_failed
from jobmanager.database.local_job import LocalJob, Outcome
from jobmanager.monitor.worker import main as run_worker
from jobmanager.site.account import Account
from jobmanager.states.driver_status import reconcile_with_drivers
from jobmanager.states.program_reports import read_foreign_xml, read_reports
from jobmanager.states.reconciliation import find_orphans
from jobmanager.states.registration import apply_events, register_local_jobs
from jobmanager.submission.submit import write_intent
from jobmanager.views.explaining import explain
from tests.unit.toy_system import GRID_JOB, NOW, ToySystem


@pytest.fixture
def toy(account: Account, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ToySystem:
    return ToySystem(account, tmp_path / "toy", monkeypatch)


def failed(index: int, attempts_before: int = 0) -> LocalJob:
    job = LocalJob.new(index, "toy", None)
    for _ in range(attempts_before):
        job.begin_attempt()
    job.state = State.FAILED
    return job


def succeeded(index: int) -> LocalJob:
    job = LocalJob.new(index, "toy", None)
    job.state, job.exit_code, job.outcome = State.DONE, 0, Outcome.SUCCEEDED
    job.put_driver("ended", "node", 1.0, None)
    return job


@pytest.mark.parametrize(
    ("jobs", "retries", "expected"),
    [
        pytest.param([failed(1), failed(2)], 0, [], id="no retries"),
        pytest.param([failed(1), succeeded(2)], 1, [1], id="only what failed"),
        pytest.param([failed(1, 1), failed(2)], 1, [2], id="one has had its retry"),
        pytest.param([failed(1, 2)], 3, [1], id="one retry is left"),
        pytest.param([failed(1, 3)], 3, [], id="all retries are used up"),
        pytest.param([LocalJob.new(1, "toy", None)], 3, [], id="not submitted yet"),
    ],
)
def test_a_local_job_is_tried_again_as_often_as_the_request_says(
    jobs: list[LocalJob], retries: int, expected: list[int]
) -> None:
    assert [job.index for job in choose_retries(jobs, retries)] == expected


def prepare(toy: ToySystem, retries: int = 1) -> None:
    """A grid job of an array of two local jobs, of which the second failed."""
    toy.add(["7_0", "7_1"])
    toy.database.grid_jobs.change(GRID_JOB, lambda job: setattr(job, "retries", retries))
    toy.drives("7_0", f"start {NOW}", "host node1", "exit 0", f"end {NOW + 5}")
    toy.drives("7_1", f"start {NOW}", "host node2", "exit 3", f"end {NOW + 5}")
    events = [Event(NOW + 5, "7_0", State.DONE, 0), Event(NOW + 5, "7_1", State.DONE, 3)]
    for grid_job, jobs in apply_events(toy.database, "toy", events).items():
        reconcile_with_drivers(toy.account, grid_job, jobs)


def test_the_next_attempt_is_new_and_the_last_one_is_remembered(toy: ToySystem) -> None:
    prepare(toy)
    assert retry_failed(toy.database, GRID_JOB) == 1
    first, second = toy.job(1), toy.job(2)
    assert (first.state, first.succeeded, first.earlier_attempts()) == (State.DONE, True, [])
    (attempt,) = second.earlier_attempts()
    assert (attempt.number, attempt.local_id, attempt.token, attempt.exit_code) == (1, "7_1", f"{GRID_JOB}-1", 3)
    assert (attempt.state, attempt.host) == (State.DONE, "node2")
    assert attempt.reason == "the program ended with exit code 3"
    assert (second.state, second.attempt, second.index) == (State.UNSUBMITTED, 2, 2)
    names = ("id", "token", "array", "exit-code", "started", "ended", "event-time", "host", "driver", "reason")
    assert [name for name in names if second.element.get(name) is not None] == []
    assert second.evidence() == []


def test_a_request_without_retries_tries_nothing_again(toy: ToySystem) -> None:
    prepare(toy, retries=0)
    before = toy.documents()
    assert retry_failed(toy.database, GRID_JOB) == 0
    assert toy.documents() == before


def test_a_grid_job_that_tries_again_never_looks_as_if_it_had_not_begun(toy: ToySystem) -> None:
    prepare(toy)
    assert retry_failed(toy.database, GRID_JOB) == 1
    assert toy.database.grid_jobs.get(GRID_JOB).state is State.ACTIVE


def test_a_grid_job_all_of_whose_local_jobs_are_tried_again_stays_active(toy: ToySystem) -> None:
    toy.add(["7_0"])
    toy.database.grid_jobs.change(GRID_JOB, lambda job: setattr(job, "retries", 1))
    apply_events(toy.database, "toy", [Event(NOW + 5, "7_0", State.FAILED, 1)])
    assert retry_failed(toy.database, GRID_JOB) == 1
    assert toy.states() == [State.UNSUBMITTED]
    assert toy.database.grid_jobs.get(GRID_JOB).state is State.ACTIVE


def test_no_token_is_used_again_though_nobody_has_it_any_more(toy: ToySystem) -> None:
    toy.add(["7_0"])
    toy.database.grid_jobs.change(GRID_JOB, lambda job: setattr(job, "retries", 3))
    tokens = []
    for local_id in ("7_0", "8_0", "9_0"):
        apply_events(toy.database, "toy", [Event(NOW + 5, local_id, State.FAILED, 1)])
        assert retry_failed(toy.database, GRID_JOB) == 1
        intent = write_intent(toy.database, GRID_JOB, 10)
        assert intent is not None
        tokens.append(intent.token)
        following = f"{int(local_id[0]) + 1}_0"
        register_local_jobs(toy.database, GRID_JOB, {1: following}, toy.adapter.naming)
    assert tokens == [f"{GRID_JOB}-2", f"{GRID_JOB}-3", f"{GRID_JOB}-4"]
    assert [attempt.token for attempt in toy.job().earlier_attempts()] == [f"{GRID_JOB}-{n}" for n in (1, 2, 3)]


@pytest.mark.parametrize(
    "event",
    [
        pytest.param(Event(NOW + 9, "7_1", State.PENDING, 0), id="queued again"),
        pytest.param(Event(NOW + 9, "7_1", State.ACTIVE, 0), id="started again"),
        pytest.param(Event(NOW + 5, "7_1", State.DONE, 0), id="its end, told again"),
        pytest.param(Event(NOW + 9, "7", State.FAILED, 0), id="the end of the whole array"),
    ],
)
def test_late_news_of_an_earlier_attempt_changes_nothing(toy: ToySystem, event: Event) -> None:
    prepare(toy)
    retry_failed(toy.database, GRID_JOB)
    write_intent(toy.database, GRID_JOB, 10)
    register_local_jobs(toy.database, GRID_JOB, {2: "8_0"}, toy.adapter.naming)
    before = toy.job(2).to_bytes()
    apply_events(toy.database, "toy", [event])
    assert toy.job(2).to_bytes() == before


def test_what_was_read_of_an_earlier_driver_does_not_reach_the_next_attempt(toy: ToySystem) -> None:
    prepare(toy)
    read_before = toy.database.local_jobs.all_of(GRID_JOB)
    retry_failed(toy.database, GRID_JOB)
    before = toy.job(2).to_bytes()
    reconcile_with_drivers(toy.account, GRID_JOB, read_before)
    assert toy.job(2).to_bytes() == before


def test_an_answer_that_was_asked_before_does_not_reach_the_next_attempt(
    toy: ToySystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The queue is asked, then all ends, and the grid job tries again while the answer is on its way."""
    toy.add(["7_0"])
    toy.database.grid_jobs.change(GRID_JOB, lambda job: setattr(job, "retries", 1))
    known = toy.database.local_jobs.list_open("toy")
    apply_events(toy.database, "toy", [Event(NOW + 5, "7_0", State.FAILED, 1)])
    retry_failed(toy.database, GRID_JOB)
    before = toy.job().to_bytes()
    toy.answers("queue", f"7_0 R {GRID_JOB}-1 -")
    monkeypatch.setattr(type(toy.database.local_jobs), "list_open", lambda database, batch: known)
    assert run_worker(["--state-dir", str(toy.account.places.root), "reconcile", "toy"]) == 0
    assert toy.job().to_bytes() == before


def test_an_earlier_attempt_that_lives_again_is_an_orphan(toy: ToySystem) -> None:
    prepare(toy)
    alive = LocalStatus("7_1", "R", State.ACTIVE, token=f"{GRID_JOB}-1")
    assert list(find_orphans(toy.database, toy.system, [alive])) == []
    retry_failed(toy.database, GRID_JOB)
    (orphan,) = find_orphans(toy.database, toy.system, [alive])
    assert (orphan.local_id, orphan.is_ours) == ("7_1", True)
    assert "earlier attempt" in orphan.reason


def test_a_cancelled_grid_job_tries_nothing_again(toy: ToySystem) -> None:
    prepare(toy)
    toy.database.grid_jobs.change(GRID_JOB, lambda job: job.cancel(time.time(), "cancelled by a test"))
    assert retry_failed(toy.database, GRID_JOB) == 0
    assert toy.job(2).earlier_attempts() == []


def test_a_local_job_that_was_queued_again_meanwhile_is_left_alone(toy: ToySystem) -> None:
    prepare(toy)
    apply_events(toy.database, "toy", [Event(NOW + 6, "7_0", State.PENDING, 0)])
    assert retry_failed(toy.database, GRID_JOB) == 0


def test_what_is_explained_of_a_local_job_names_its_earlier_attempts(toy: ToySystem) -> None:
    prepare(toy)
    retry_failed(toy.database, GRID_JOB)
    text = explain(toy.account, f"{GRID_JOB}/2", ask=False)
    assert "7_1 on node2: the program ended with exit code 3" in text


def test_what_an_earlier_attempt_reported_does_not_reach_the_next(
    toy: ToySystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The grid job tries again while the report is read."""
    prepare(toy)
    folder = toy.account.places.reports(GRID_JOB)
    folder.mkdir()
    (folder / f"{GRID_JOB}.7_1.1.xml").write_text('<note xmlns="urn:experiment"/>')

    def read(data: bytes) -> etree._Element:
        retry_failed(toy.database, GRID_JOB)
        return read_foreign_xml(data)

    monkeypatch.setattr("jobmanager.states.program_reports.read_foreign_xml", read)
    read_reports(toy.account, GRID_JOB)
    assert toy.job(2).attempt == 2
    assert [child.tag for child in toy.job(2).element] == ["attempt"]
