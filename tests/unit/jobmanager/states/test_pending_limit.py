"""What waits for its turn, or is held, longer than its request allows is cancelled, and says why."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from batch_adapters.states import Cause, Event, State
from jobmanager.control.cancel_requests import request_cancel
from jobmanager.control.cancellation import cancel_local_jobs
from jobmanager.database.local_job import Evidence, LocalJob
from jobmanager.site.account import Account
from jobmanager.states.driver_status import reconcile_with_drivers
from jobmanager.states.reconciliation import cancel_overdue, waiting_since
from jobmanager.states.registration import apply_events
from tests.unit.grid_jobs import make_grid_job, put
from tests.unit.toy_system import GRID_JOB, NOW, TOKEN, ToySystem


@pytest.fixture
def toy(account: Account, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ToySystem:
    return ToySystem(account, tmp_path / "toy", monkeypatch)


def make(state: State, helps: str | None = None, *seen: Evidence, signalled: int | None = None) -> LocalJob:
    job = LocalJob.new(1, "toy", None)
    job.intend("abcdefgh-1", NOW)
    job.register("7", "", NOW)
    job.state, job.helps, job.signalled = state, helps, signalled
    for evidence in seen:
        job.put_evidence(evidence)
    return job


def saw(state: State, when: int) -> Evidence:
    return Evidence("queue", "X", when, state.word, state)


@pytest.mark.parametrize(
    ("job", "expected"),
    [
        pytest.param(make(State.PENDING), NOW, id="it waits"),
        pytest.param(make(State.PENDING, "release"), NOW, id="it is held while it waits"),
        pytest.param(make(State.PENDING, None, saw(State.PENDING, NOW + 9)), NOW + 9, id="it was queued again"),
        pytest.param(make(State.SUSPENDED, "release", saw(State.SUSPENDED, NOW + 5)), NOW + 5, id="it is held"),
        pytest.param(make(State.SUSPENDED), None, id="it goes on by itself"),
        pytest.param(make(State.SUSPENDED, "resume", signalled=NOW), None, id="we suspended it"),
        pytest.param(make(State.ACTIVE, "rm"), None, id="it runs"),
        pytest.param(make(State.DONE), None, id="it has ended"),
    ],
)
def test_since_when_a_local_job_waits_or_is_held_is_known(job: LocalJob, expected: int | None) -> None:
    assert waiting_since(job) == expected


def limit(toy: ToySystem, minutes: int | None) -> None:
    toy.database.grid_jobs.change(GRID_JOB, lambda job: setattr(job, "max_pending_minutes", minutes))


def cancel(toy: ToySystem) -> None:
    cancel_overdue(toy.account, toy.system, [GRID_JOB])


def test_what_waits_for_too_long_is_cancelled_until_it_has_ended(toy: ToySystem) -> None:
    toy.add(["7_1", "7_2"])
    apply_events(toy.database, "toy", [Event(NOW, "7_2", State.ACTIVE)])
    toy.answers("queue", f"7_1 PD {TOKEN} -")
    limit(toy, 5)
    toy.now += 299
    cancel(toy)
    assert toy.calls("cancel") == []
    toy.now += 1
    cancel(toy)
    toy.now += 60
    cancel(toy)
    assert toy.calls("cancel") == ["7_1"] * 2
    assert (toy.job(1).cancel_asked, toy.job(1).cancel_cause) == (NOW + 300, Cause.PENDING_LIMIT)
    assert [(seen.said, seen.verdict) for seen in toy.job(1).evidence()] == [
        ("waited or held for 5 min", "cancelled: max_pending_time")
    ]
    apply_events(toy.database, "toy", [Event(toy.now, "7_1", State.FAILED)])
    cancel(toy)
    assert len(toy.calls("cancel")) == 2
    assert toy.job(1).cause is Cause.PENDING_LIMIT
    assert toy.job(2).cancel_asked is None


def test_who_is_queued_again_waits_anew(toy: ToySystem) -> None:
    toy.add(["7_1"])
    limit(toy, 5)
    apply_events(toy.database, "toy", [Event(NOW + 200, "7_1", State.ACTIVE), Event(NOW + 250, "7_1", State.DONE, 1)])
    apply_events(toy.database, "toy", [Event(NOW + 260, "7_1", State.PENDING)])
    toy.now += 559
    cancel(toy)
    assert toy.calls("cancel") == []
    toy.now += 1
    cancel(toy)
    assert toy.calls("cancel") == ["7_1"]


def test_a_grid_job_that_cannot_be_read_keeps_no_other_from_being_looked_at(toy: ToySystem) -> None:
    toy.add(["7_1"])
    limit(toy, 1)
    put(toy.database, make_grid_job("aaaaaaaa", batch="toy", submitted=NOW))
    with closing(sqlite3.connect(toy.account.places.database)) as database, database:
        database.execute("UPDATE grid_job SET document = '<' WHERE id = 'aaaaaaaa'")
    toy.now += 60
    cancel_overdue(toy.account, toy.system, ["aaaaaaaa", GRID_JOB])
    assert toy.calls("cancel") == ["7_1"]


def test_without_a_limit_a_local_job_may_wait_for_ever(toy: ToySystem) -> None:
    toy.add(["7_1"])
    toy.now += 10**6
    cancel(toy)
    assert toy.calls("cancel") == []


def test_what_ends_by_itself_before_its_cancel_counts_as_it_ended(toy: ToySystem) -> None:
    toy.add(["7_1"])
    limit(toy, 1)
    toy.now += 60
    cancel(toy)
    toy.drives("7_1", f"start {toy.now}", "host n", "exit 0", f"end {toy.now}")
    apply_events(toy.database, "toy", [Event(toy.now, "7_1", State.DONE, 0)])
    reconcile_with_drivers(toy.account, GRID_JOB, [toy.job(1)])
    assert toy.job(1).succeeded


def test_a_grid_job_that_is_cancelled_meanwhile_keeps_the_cause_that_was_first(toy: ToySystem) -> None:
    toy.add(["7_1"])
    limit(toy, 1)
    toy.now += 60
    cancel(toy)
    request_cancel(toy.database, GRID_JOB, "cancelled by a test")
    cancel_local_jobs(toy.account, GRID_JOB)
    apply_events(toy.database, "toy", [Event(toy.now, "7_1", State.FAILED)])
    assert toy.job(1).cause is Cause.PENDING_LIMIT
