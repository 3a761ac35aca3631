"""``samgrid repair``: columns as their documents say, documents from what else is known, and the old file kept."""

import sqlite3
import tarfile
import time
from contextlib import closing

import pytest

from batch_adapters.states import Event, State
from jobmanager.commands import cli
from jobmanager.control.removal import remove_grid_job
from jobmanager.control.repair import rebuild_grid_job
from jobmanager.database.database import Database
from jobmanager.database.local_job import LocalJob
from jobmanager.monitor.worker import do_task
from jobmanager.site.account import Account
from jobmanager.states.aggregation import Task
from jobmanager.states.driver_status import status_file
from jobmanager.states.registration import apply_events
from sandbox.status import PhaseStatus
from tests.unit.grid_jobs import changing, make_whole, put, put_local_jobs
from tests.unit.jobmanager.test_damaged_documents import SICK, WELL, damage, put_grid_job


@pytest.fixture
def account(account: Account) -> Account:
    """An account with two grid jobs whose local jobs run."""
    for job_id in (SICK, WELL):
        put_grid_job(account, job_id)
    return account


def run(account: Account) -> int:
    return cli.main(["repair", "--state-dir", str(account.places.root)])


def tables(account: Account) -> list[list[tuple[object, ...]]]:
    with closing(sqlite3.connect(account.places.database)) as connection:
        names = ("grid_job", "local_job", "phase", "attempt", "step")
        return [sorted(connection.execute(f"SELECT * FROM {name}"), key=str) for name in names]


def test_columns_become_what_the_documents_say(account: Account, capsys: pytest.CaptureFixture[str]) -> None:
    with changing(account.database, WELL) as job:
        job.put_phases([PhaseStatus("generate", 1, 2)], time.time())
    before = tables(account)
    with account.database.transaction():
        for sql in (
            "UPDATE local_job SET state = 'done', local_id = NULL",
            "UPDATE grid_job SET owner = 'bob'",
            "DELETE FROM phase",
            f"INSERT INTO attempt (grid_job, number, attempt) VALUES ('{SICK}', 1, 1)",
            "UPDATE local_job_count SET number = 5",
            f"INSERT INTO step VALUES ('{SICK}', 1, 'a', NULL)",
        ):
            account.database._store.write(sql)
    assert run(account) == 0
    assert tables(account) == before
    assert "left: 0" in capsys.readouterr().out


def test_a_local_job_is_made_anew_from_its_index_and_its_driver(account: Account) -> None:
    before = list(account.database.local_jobs.lines(SICK))
    damage(account.database, "local_job")
    now = int(time.time())
    apply_events(account.database, "fork", [Event(now, f"{SICK}-1.2", State.DONE)])
    file = status_file(account, SICK, f"{SICK}-1.2")
    file.write_text(f"start {now}\nindex 2\ntoken {SICK}-1\nexit 0\nend {now}\n")
    assert run(account) == 0
    assert next(account.database.local_jobs.lines(SICK)) == before[0]
    job = account.database.local_jobs.get(SICK, 2)
    assert (job.driver, job.token, job.state, job.succeeded) == ("ended", f"{SICK}-1", State.DONE, True)
    assert "made anew from the index" in [seen.verdict for seen in job.evidence()]
    assert not account.database.quarantine.list()


def test_what_nobody_can_mend_is_said_and_what_was_there_is_kept(
    account: Account, capsys: pytest.CaptureFixture[str]
) -> None:
    damage(account.database, "grid_job")
    with account.database.transaction():
        account.database._store.write("DELETE FROM local_job WHERE grid_job = ?", [(SICK,)])
    assert run(account) == 1
    out = capsys.readouterr().out
    assert f"left: the document of grid job {SICK} cannot be read" in out
    remedy = f"samgrid remove {SICK} removes it"
    assert f"left: grid job {SICK} cannot be made anew: nobody knows how it was cut; {remedy}" in out
    (saved,) = account.places.root.glob("jobs.db.before-*Z")
    assert f"saved as {saved}" in out
    kept = Database(saved)
    assert [damage.grid_job for damage in kept.find_damages()] == [SICK]
    assert len(kept.local_jobs.all_of(WELL)) == 2
    kept.close()


def test_a_grid_job_is_made_anew_wherever_its_document_ends(account: Account) -> None:
    database, job_id = account.database, "cccccccc"
    put_grid_job(account, job_id, origin=True)
    before, text = database.grid_jobs.get(job_id), database.read_text(job_id)
    overview = database.grid_jobs.overview()
    for length in range(0, len(text), 7):
        with database.transaction():
            database._store.write("UPDATE grid_job SET document = ? WHERE id = ?", [(text[:length], job_id)])
            lost = rebuild_grid_job(database, job_id, time.time())
        assert list(database.checking.list_document_faults()) == []
        assert database.grid_jobs.overview() == overview
        job = database.grid_jobs.get(job_id)
        assert (job.request() == before.request()) is ("request" not in lost)
        assert (job.origin == before.origin) is ("GRAM" not in lost)
        assert (job.count, job.uniqid, job.cancelled) == (2, job_id, False)


@pytest.mark.parametrize("table", ["grid_job", "both"])
def test_a_grid_job_whose_request_is_lost_is_collected_and_removed(
    account: Account, capsys: pytest.CaptureFixture[str], table: str
) -> None:
    damage(account.database, "grid_job")
    if table == "both":
        damage(account.database, "local_job")
    assert run(account) == 0
    assert f"grid job {SICK} was made anew without what is lost: request" in capsys.readouterr().out
    now = int(time.time())
    apply_events(account.database, "fork", [Event(now, f"{SICK}-1.{index}", State.DONE) for index in (1, 2)])
    for index in (1, 2):
        told = f"start {now}\nindex {index}\ntoken {SICK}-1\nexit 0\nend {now}\n"
        status_file(account, SICK, f"{SICK}-1.{index}").write_text(told)
    assert do_task(account, Task.COLLECT, SICK) == 0
    job = account.database.grid_jobs.get(SICK)
    assert (job.state, job.reason) == (State.DONE, None)
    with tarfile.open(account.places.output(SICK)) as archive:
        assert f"{SICK}/{SICK}.{SICK}-1.2.status" in archive.getnames()
    remove_grid_job(account, SICK)
    assert not account.database.grid_jobs.has(SICK)


def test_what_was_not_submitted_is_given_up_where_the_request_is_lost(account: Account) -> None:
    put_local_jobs(account.database, SICK, LocalJob.new(3, "fork", None))
    damage(account.database, "grid_job")
    assert run(account) == 0
    job = account.database.grid_jobs.get(SICK)
    assert (job.count, job.cancelled_by) == (3, "us")
    assert job.reason == "its request is lost: what was not submitted cannot be"


def test_what_the_tables_tell_of_steps_and_of_a_cancel_is_kept(account: Account) -> None:
    whole = make_whole("cccccccc", "production", "merge", production=SICK)
    whole.cancel(200, "wanted")
    put(account.database, whole)
    for job_id in (whole.job_id, SICK):
        damage(account.database, "grid_job", job_id)
    assert run(account) == 0
    made = account.database.grid_jobs.get(whole.job_id)
    assert (made.steps, made.was_cancelled) == (whole.steps, True)
    step = account.database.grid_jobs.get(SICK)
    assert (step.parent, step.step) == (whole.job_id, "production")
