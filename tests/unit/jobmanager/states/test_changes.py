"""A clock that was set back delays nothing: what is told now counts, although later seconds were told before."""

import time
from dataclasses import replace

import pytest

from batch_adapters.adapter import LocalStatus
from batch_adapters.states import Event, State
from jobmanager.database.local_job import LocalJob
from jobmanager.site.account import Account
from jobmanager.states import changes
from jobmanager.states.changes import CLOCKS_DIFFER, change_local_jobs, forget_future, in_parts, same_runs
from jobmanager.states.registration import apply_events
from jobmanager.states.transitions import apply_event, apply_status
from tests.unit.jobmanager.test_damaged_documents import put_grid_job

JOB = "aaaaaaaa"
BACK = 200
"""Seconds."""


@pytest.fixture
def account(account: Account) -> Account:
    """An account whose local jobs started, and whose clock was set back then."""
    put_grid_job(account, JOB, State.PENDING)
    with account.database.transaction():
        jobs = account.database.local_jobs.all_of(JOB)
        for job in jobs:
            apply_event(job, Event(int(time.time()) + BACK, str(job.local_id), State.ACTIVE))
            job.queue_time = int(time.time()) + BACK
        account.database.local_jobs.put(JOB, jobs)
    return account


def get(account: Account) -> LocalJob:
    return account.database.local_jobs.get(JOB, 1)


def test_an_end_in_the_log_counts_at_once(account: Account) -> None:
    end = Event(int(time.time()), f"{JOB}-1.1", State.DONE)
    apply_events(account.database, "fork", [end])
    assert get(account).state is State.DONE
    apply_events(account.database, "fork", [replace(end, timestamp=end.timestamp + BACK, state=State.ACTIVE)])
    assert get(account).state is State.DONE, "a replay of what was told before"


def test_an_end_in_the_queue_counts_at_once(account: Account) -> None:
    now, status = int(time.time()), LocalStatus(f"{JOB}-1.1", "DONE", State.DONE, 0)
    select = same_runs(JOB, [get(account)])
    change_local_jobs(account.database, JOB, select, lambda job: apply_status(job, status, now, "queue"))
    assert get(account).state is State.DONE


def test_a_grid_job_that_has_ended_keeps_its_state(account: Account) -> None:
    account.database.grid_jobs.change(JOB, lambda job: job.end(State.FAILED, time.time()))
    change_local_jobs(account.database, JOB, same_runs(JOB, [get(account)]), lambda job: True)
    assert account.database.grid_jobs.get(JOB).state is State.FAILED


def test_the_clock_of_the_batch_system_may_be_a_little_fast(account: Account) -> None:
    job = get(account)
    job.event_time = job.queue_time = 1000
    forget_future([job], 1000 - CLOCKS_DIFFER)
    assert (job.event_time, job.queue_time) == (1000, 1000)


def test_local_jobs_are_changed_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes, "AT_ONCE", 3)
    assert list(in_parts(range(5))) == [[0, 1, 2], [3, 4]]
    assert list(in_parts(range(3), 2)) == [[0, 1], [2]]


def test_what_kept_an_end_from_being_gathered_is_no_problem_once_it_is_none(account: Account) -> None:
    ids = [f"{JOB}-1.{number}" for number in (1, 2)]
    apply_events(account.database, "fork", [Event(int(time.time()), local_id, State.DONE) for local_id in ids])
    job = account.database.grid_jobs.change(JOB, lambda job: job.put_problem("collect: no room", time.time()))
    assert job.state is State.STAGE_OUT
    assert job.problem
    apply_events(account.database, "fork", [Event(int(time.time()) + 1, ids[0], State.PENDING)])
    job = account.database.grid_jobs.get(JOB)
    assert (job.state, job.problem) == (State.ACTIVE, None)


def test_what_is_late_by_the_same_clock_stays_late(account: Account) -> None:
    with account.database.transaction():
        job = get(account)
        job.event_time = job.queue_time = int(time.time())
        account.database.local_jobs.put(JOB, [job])
    apply_events(account.database, "fork", [Event(int(time.time()) - 5, f"{JOB}-1.1", State.SUSPENDED)])
    assert get(account).state is State.ACTIVE
