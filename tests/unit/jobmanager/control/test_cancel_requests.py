"""Requests of which GRAM was told that they failed."""

import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from batch_adapters.states import State
from jobmanager.control import cancel_requests
from jobmanager.control.cancel_requests import cancel_withdrawn, forget_withdrawal, hold_back, request_cancel
from jobmanager.database.grid_job import GramOrigin
from jobmanager.site.account import Account
from tests.unit.grid_jobs import make_grid_job, put

JOB, UNIQID = "aaaaaaaa", "1737.3521.30"


@pytest.fixture
def mark(account: Account) -> Path:
    """What the Perl module leaves."""
    account.places.withdrawn.mkdir(mode=0o700)
    path = account.places.withdrawn / UNIQID
    path.touch()
    os.utime(path, (time.time() - 1, time.time() - 1))
    return path


@pytest.mark.parametrize(("age", "is_cancelled"), [(0.5, False), (1, True)])
def test_a_mark_that_is_being_made_cancels_nothing_yet(
    account: Account, mark: Path, monkeypatch: pytest.MonkeyPatch, age: float, is_cancelled: bool
) -> None:
    accept(account)
    set_age(mark, age, monkeypatch)
    assert cancel_withdrawn(account) == {JOB}
    assert account.database.grid_jobs.get(JOB).cancelled is is_cancelled


def set_age(mark: Path, age: float, monkeypatch: pytest.MonkeyPatch) -> None:
    os.utime(mark, (1000, 1000))
    monkeypatch.setattr(cancel_requests, "time", SimpleNamespace(time=lambda: 1000 + age))


def accept(account: Account) -> None:
    job = make_grid_job(JOB, submitted=time.time())
    job.put_origin(GramOrigin(UNIQID, "https://localhost/1/2/", "/dev/null", "/dev/null", is_plain=True))
    put(account.database, job)


@pytest.mark.parametrize(("by", "is_wanted"), [(None, True), ("us", False)])
def test_a_request_is_recorded_with_its_first_reason_until_the_end(
    account: Account, by: str | None, is_wanted: bool
) -> None:
    accept(account)
    assert request_cancel(account.database, JOB, "enough", by)
    assert request_cancel(account.database, JOB, "more than enough")
    job = account.database.grid_jobs.get(JOB)
    assert (job.cancelled_by, job.was_cancelled, job.reason) == (by, is_wanted, "enough")
    account.database.grid_jobs.change(JOB, lambda job: job.end(State.DONE, 1.0))
    assert not request_cancel(account.database, JOB, "too late")


def test_a_grid_job_that_became_of_it_is_cancelled_whatever_other_marks_there_are(account: Account, mark: Path) -> None:
    accept(account)
    others = {f"1738.{number}" for number in range(9)}
    for name in others:
        hold_back(account, name, 60)
    assert cancel_withdrawn(account) == {JOB}
    assert account.database.grid_jobs.get(JOB).reason == "GRAM was told that it failed, because no answer to it came"
    assert {path.name for path in mark.parent.iterdir()} == others


def test_one_that_has_ended_before_stays_as_it_is_also_where_the_mark_is_removed_meanwhile(
    account: Account, mark: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cancel_late(*arguments: Any) -> bool:
        forget_withdrawal(account, UNIQID)
        return request_cancel(*arguments)

    monkeypatch.setattr(cancel_requests, "request_cancel", cancel_late)
    accept(account)
    account.database.grid_jobs.change(JOB, lambda job: job.end(State.DONE, 1.0))
    cancel_withdrawn(account)
    assert account.database.grid_jobs.get(JOB).state is State.DONE
    forget_withdrawal(account, UNIQID)


@pytest.mark.parametrize(("age", "is_kept"), [(1, True), (86_400, True), (86_401, False)])
def test_a_request_that_never_became_one_is_remembered_for_a_day(
    account: Account, mark: Path, monkeypatch: pytest.MonkeyPatch, age: int, is_kept: bool
) -> None:
    set_age(mark, age, monkeypatch)
    cancel_withdrawn(account)
    assert mark.exists() is is_kept


def test_what_gram_submits_again_is_not_cancelled(account: Account, mark: Path) -> None:
    forget_withdrawal(account, UNIQID)
    accept(account)
    cancel_withdrawn(account)
    assert not account.database.grid_jobs.get(JOB).cancelled


def test_a_grid_job_whose_answer_may_still_be_taken_waits(account: Account) -> None:
    hold_back(account, UNIQID, 60)
    assert account.places.withdrawn.stat().st_mode & 0o777 == 0o700
    accept(account)
    assert cancel_withdrawn(account) == {JOB}
    assert not account.database.grid_jobs.get(JOB).cancelled
    forget_withdrawal(account, UNIQID)
    assert cancel_withdrawn(account) == set()


def test_an_answer_that_nobody_took_in_time_was_lost(account: Account, mark: Path) -> None:
    hold_back(account, UNIQID, 60)
    accept(account)
    hold_back(account, UNIQID, -1)
    assert cancel_withdrawn(account) == {JOB}
    assert account.database.grid_jobs.get(JOB).cancelled
    assert not mark.exists()


def test_no_link_is_followed_to_hold_a_grid_job_back(account: Account, tmp_path: Path) -> None:
    account.places.withdrawn.mkdir(mode=0o700)
    (account.places.withdrawn / UNIQID).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic"):
        hold_back(account, UNIQID, 60)
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("name", ["../jobs.db", "", ".", "a/b", "\udcff"])
def test_no_other_file_is_removed(account: Account, mark: Path, name: str) -> None:
    accept(account)
    (account.places.withdrawn / "folder").mkdir()
    forget_withdrawal(account, name)
    hold_back(account, name, 1)
    cancel_withdrawn(account)
    assert account.places.database.exists()
    assert (account.places.withdrawn / "folder").is_dir()


def test_without_any_nothing_is_made(account: Account) -> None:
    cancel_withdrawn(account)
    assert not account.places.withdrawn.exists()
