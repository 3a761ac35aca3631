"""State folders of earlier layouts open: documents brought up by small steps, columns derived anew."""

import sqlite3
from pathlib import Path

import pytest
from lxml import etree

from batch_adapters.states import State
from jobmanager.database.database import FIRST_LAYOUT, LAYOUT, Database, DatabaseError
from jobmanager.database.documents import load_schema
from jobmanager.database.upgrade import STEPS, renew_layout_4, renew_layout_5
from jobmanager.views.logs import read_history

RECORDED = Path(__file__).parents[3] / "recorded"


def restore(folder: Path, layout: int) -> Path:
    """The job database of a state folder that a version of that layout has left behind."""
    path = folder / "jobs.db"
    connection = sqlite3.connect(path)
    connection.executescript((RECORDED / f"state-{layout}" / "jobs.sql").read_text(encoding="utf-8"))
    connection.close()
    return path


@pytest.fixture(params=range(FIRST_LAYOUT, LAYOUT))
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return restore(tmp_path, request.param)


def test_every_layout_has_a_step_to_the_next() -> None:
    assert list(STEPS) == list(range(FIRST_LAYOUT, LAYOUT))


def test_every_document_of_an_earlier_layout_becomes_one_that_the_schema_allows(path: Path) -> None:
    schema = load_schema()
    assert schema.validate(Database(path).to_xml()), schema.error_log


def test_nothing_is_lost_and_columns_are_as_after_writing_it_anew(path: Path) -> None:
    database = Database(path)
    rows = database.grid_jobs.overview()
    assert [row.state for row in rows].count("active") == 1
    assert {row.type for row in rows} == {"command", "pythia", "structured", "cdf_concatenate"}
    tables = ("grid_job", "local_job", "step", "phase", "attempt")
    before = [sorted(database._store.query(f"SELECT * FROM {table}")) for table in tables]
    assert all(before)
    with database.transaction():
        for row in rows:
            database.grid_jobs.put(database.grid_jobs.get(row.id))
            database.local_jobs.put(row.id, database.local_jobs.all_of(row.id))
    assert [sorted(database._store.query(f"SELECT * FROM {table}")) for table in tables] == before


def test_what_ended_before_the_upgrade_gets_usage_records(path: Path) -> None:
    database = Database(path)
    ended = database.accounting.unrecorded("", 99)
    assert ended
    with database.transaction():
        for job_id in ended:
            database.accounting.record(job_id)
    records = list(database.accounting.records(1, 999))
    assert {record.grid_job for record in records} <= set(ended)
    assert {2} <= {record.attempt for record in records} <= {1, 2}
    assert database.accounting.unrecorded("", 99) == []


def test_times_are_what_they_were(tmp_path: Path) -> None:
    database = Database(restore(tmp_path, 4))
    ((grid_job, job),) = database.local_jobs.named("m1lsx5co-2.1")
    assert grid_job == "m1lsx5co"
    assert (job.event_time, job.run, job.intended) == (1795375218, 1795375217, 1795375217)
    assert job.earlier_attempts()[0].run == 1795375216
    assert [seen.when for seen in job.evidence()] == [1795375217, 1795375217, 1795375218]
    assert (job.phases()[0].begun, job.phases()[0].changed) == (1795375217, 1795375218)
    gram = database.grid_jobs.get("gr4mj0b1")
    assert gram.reported is State.DONE
    assert database.grid_jobs.list_reported_since(gram.reported_time) == ["gr4mj0b1"]
    assert database.grid_jobs.list_reported_since(gram.reported_time + 1) == []


@pytest.mark.parametrize(
    ("reason", "by"), [("cannot be run: no such queue", "us"), ("cancelled by user 7", None)], ids=["us", "somebody"]
)
def test_who_cancelled_is_no_longer_read_from_a_sentence(reason: str, by: str | None) -> None:
    document = etree.Element("grid-job", cancelled="2026-11-22T08:30:00Z", reason=reason)
    renew_layout_4(document)
    assert document.get("cancelled-by") == by


def test_what_was_called_otherwise_has_its_name_of_today() -> None:
    document = etree.fromstring('<grid-job><trouble since="2026-11-22T08:30:00Z">no answer</trouble></grid-job>')
    renew_layout_5(document)
    assert etree.tostring(document) == b'<grid-job><problem since="2026-11-22T08:30:00Z">no answer</problem></grid-job>'
    document = etree.fromstring('<local-job state="unsubmitted" remark="Priority"><attempt remark="Held"/></local-job>')
    renew_layout_5(document)
    renewed = b'<local-job state="unsubmitted" wait-reason="Priority"><attempt wait-reason="Held"/></local-job>'
    assert etree.tostring(document) == renewed


def test_what_blocked_a_local_job_is_known_after_the_upgrade(tmp_path: Path) -> None:
    history = read_history(Database(restore(tmp_path, 8)), "h5w5kl8u")
    assert (1795375300, "blocked, number 1: JobHeldUser: scontrol release 17_3") in history


def test_what_was_heard_of_batch_systems_stays(tmp_path: Path) -> None:
    database = Database(restore(tmp_path, 4))
    assert database.events.missing("fork") == {"9": (1, 1700000000)}
    assert [event.local_id for event in database.events.take("slurm", ["77"])["77"]] == ["77"]
    assert database.events.generator_time("fork") == 1795375242


def test_who_is_killed_in_the_middle_leaves_the_earlier_layout_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = restore(tmp_path, 4)
    monkeypatch.setitem(STEPS, 4, lambda document: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        Database(path)
    monkeypatch.undo()
    assert len(Database(path).grid_jobs.overview()) == 8


def test_a_database_of_a_newer_version_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    Database(path).close()
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA user_version = {LAYOUT + 1}")
    connection.close()
    with pytest.raises(DatabaseError, match=f"layout {LAYOUT + 1}.*use the newer version"):
        Database(path)
    path.unlink()


@pytest.mark.parametrize("table", ["grid_job", "local_job"])
def test_a_document_that_cannot_be_read_keeps_its_row_and_costs_no_other(tmp_path: Path, table: str) -> None:
    path = restore(tmp_path, 4)
    connection = sqlite3.connect(path)
    which = "id" if table == "grid_job" else "grid_job"
    connection.execute(f"UPDATE {table} SET document = substr(document, 1, 60) WHERE {which} = 'm1lsx5co'")
    counted = connection.execute("SELECT count(*) FROM grid_job"), connection.execute("SELECT count(*) FROM local_job")
    before = [count.fetchone()[0] for count in counted]
    connection.commit()
    connection.close()
    database = Database(path)
    rows = database.grid_jobs.overview()
    assert [len(rows), sum(sum(row.counts.values()) for row in rows)] == before
    assert list(database.quarantine.list()) == ["m1lsx5co"]
    for row in rows:
        if row.id != "m1lsx5co":
            assert database.grid_jobs.get(row.id).job_id == row.id
