"""``samgrid repair``: columns as their documents say, documents from what else is known, and the old file kept."""

import sqlite3
import time
from contextlib import closing

import pytest

from batch_adapters.states import Event, State
from jobmanager.commands import cli
from jobmanager.database.database import Database
from jobmanager.site.account import Account
from jobmanager.states.driver_status import status_file
from jobmanager.states.registration import apply_events
from sandbox.status import Phase
from tests.unit.jobmanager.test_damaged_documents import SICK, WELL, damage, put_grid_job


@pytest.fixture
def account(account: Account) -> Account:
    """An account with two grid jobs whose local jobs run."""
    for identity in (SICK, WELL):
        put_grid_job(account, identity)
    return account


def run(account: Account) -> int:
    return cli.main(["repair", "--state-dir", str(account.places.root)])


def tables(account: Account) -> list[list[tuple[object, ...]]]:
    with closing(sqlite3.connect(account.places.database)) as connection:
        names = ("grid_job", "local_job", "phase", "attempt", "step")
        return [sorted(connection.execute(f"SELECT * FROM {name}"), key=str) for name in names]


def test_columns_become_what_the_documents_say(account: Account, capsys: pytest.CaptureFixture[str]) -> None:
    with account.database.transaction():
        job = account.database.local_jobs.get(WELL, 1)
        job.put_phases([Phase("generate", 1, 2)], time.time())
        account.database.local_jobs.put(WELL, [job])
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
    before = account.database.local_jobs.lines(SICK)
    damage(account.database, "local_job")
    now = int(time.time())
    apply_events(account.database, "fork", [Event(now, f"{SICK}-1.2", State.DONE)])
    file = status_file(account, SICK, f"{SICK}-1.2")
    file.write_text(f"start {now}\nindex 2\ntoken {SICK}-1\nexit 0\nend {now}\n")
    assert run(account) == 0
    assert account.database.local_jobs.lines(SICK)[0] == before[0]
    job = account.database.local_jobs.get(SICK, 2)
    assert (job.driver, job.token, job.state, job.succeeded) == ("ended", f"{SICK}-1", State.DONE, True)
    assert "made anew from the index" in [seen.verdict for seen in job.evidence()]
    assert not account.database.quarantine.list()


def test_what_nobody_can_mend_is_said_and_what_was_there_is_kept(
    account: Account, capsys: pytest.CaptureFixture[str]
) -> None:
    damage(account.database, "grid_job")
    assert run(account) == 1
    out = capsys.readouterr().out
    assert f"left: the document of grid job {SICK} cannot be read" in out
    (saved,) = account.places.root.glob("jobs.db.before-*Z")
    assert f"saved as {saved}" in out
    kept = Database(saved)
    assert [damage.grid_job for damage in kept.find_damages()] == [SICK]
    assert len(kept.local_jobs.all_of(WELL)) == 2
    kept.close()
