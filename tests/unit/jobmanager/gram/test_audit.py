"""GRAM audit records: what they say, where they go, and that globus-gram-audit itself takes them."""

import getpass
import os
import shutil
import sqlite3
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from batch_adapters.states import State
from gram_shims.calls import find_subject, read_subject
from gram_shims.request import JobDescription
from jobmanager.database.grid_job import GramOrigin, GridJob
from jobmanager.database.local_job import LocalJob
from jobmanager.gram.answers import gram_id
from jobmanager.gram.audit import record_name, render_record, write_record
from jobmanager.gram.reports import GramReports
from jobmanager.site.account import Account
from jobmanager.site.settings import GramSettings
from tests.conftest import file_size_limit
from tests.unit.grid_jobs import make_grid_job, put

ID = "k3f9zq2m"
SUBMITTED = 1795340232.0
"""Sun Nov 22 09:37:12 UTC 2026."""
ORIGIN = GramOrigin("1737.30", "https://h:1/2/3/", "/dev/null", "/dev/null", False, '/O=Grid/CN=A. "B" C')
UPLOAD = "/usr/sbin/globus-gram-audit"


def make_job(origin: GramOrigin = ORIGIN, state: State = State.DONE, argument: str = "500") -> GridJob:
    request = [("samgrid_type", ("pythia",)), ("events", (argument,))]
    owner = getpass.getuser()
    job = make_grid_job(ID, request=request, job_type="pythia", owner=owner, batch="slurm", submitted=SUBMITTED)
    job.put_origin(origin)
    job.end(state, SUBMITTED + 3600)
    return job


def test_a_record_has_the_fields_of_the_audit_table_in_its_order() -> None:
    assert render_record(make_job(), SUBMITTED + 2) == (
        f'"https://h:1/2/3/","{gram_id(ID)}","/O=Grid/CN=A. &quot;B&quot; C","{getpass.getuser()}","1737.30",'
        '"Sun Nov 22 09:37:12 UTC 2026","Sun Nov 22 09:37:14 UTC 2026","NULL","NULL","NULL",'
        '"samgrid 0.1","slurm","&(samgrid_type = pythia) (events = 500)","true","true","NULL"\n'
    )


@pytest.mark.parametrize(
    ("job", "said"),
    [
        pytest.param(make_job(state=State.FAILED), '"false","true","NULL"', id="failed"),
        pytest.param(make_job(replace(ORIGIN, subject="")), f'"{gram_id(ID)}","unknown","', id="no subject"),
        pytest.param(make_job(replace(ORIGIN, contact="")), f'"1737.30","{gram_id(ID)}"', id="no contact"),
        pytest.param(make_job(), '"Sun Nov 22 09:37:12 UTC 2026","NULL","NULL"', id="never submitted"),
        pytest.param(make_job(argument='a\n"b","c'), "(events = &quot;a &quot;&quot;b&quot;&quot;,", id="hostile text"),
    ],
)
def test_what_is_not_known_or_not_harmless_leaves_the_record_readable(job: GridJob, said: str) -> None:
    record = render_record(job, None)
    assert said in record
    assert record.count("\n") == 1
    assert len(record.strip('\n"').split('","')) == 16


def test_a_record_written_twice_is_one_file_for_its_owner_alone(tmp_path: Path) -> None:
    job = make_job()
    write_record(tmp_path, job, None)
    write_record(tmp_path, job, None)
    (record,) = tmp_path.iterdir()
    assert record.name == record_name(job) == f"20261122T10:37:12-{getpass.getuser()}-{ID}.gramaudit"
    assert record.stat().st_mode & 0o777 == 0o600
    assert record.read_text() == render_record(job, None)


def test_a_trap_in_the_shared_folder_is_not_written_into(tmp_path: Path) -> None:
    job = make_job()
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / f".{record_name(job)}.{os.getpid()}").symlink_to(victim)
    write_record(tmp_path, job, None)
    assert victim.read_text() == "mine"


def test_a_disk_that_takes_half_a_record_gets_none(tmp_path: Path) -> None:
    with file_size_limit(100), pytest.raises(OSError, match="large"):
        write_record(tmp_path, make_job(), None)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def audited(account: Account, tmp_path: Path) -> Account:
    """An account that writes audit records, with a grid job of GRAM's that has ended."""
    folder = tmp_path / "audit"
    folder.mkdir()
    account.database.check_room()
    copy = replace(account, configuration=replace(account.configuration, gram=GramSettings(audit_folder=folder)))
    copy.__dict__["database"] = account.database
    local_job = LocalJob.new(1, "slurm", None)
    local_job.register("17", "", SUBMITTED + 2)
    put(copy.database, make_job(), [local_job])
    return copy


def records(account: Account) -> list[str]:
    assert account.configuration.gram.audit_folder is not None
    return [path.read_text() for path in account.configuration.gram.audit_folder.iterdir()]


def test_the_end_of_a_grid_job_is_told_and_audited(audited: Account) -> None:
    GramReports(audited).report()
    assert records(audited) == [render_record(make_job(), SUBMITTED + 2)]
    assert audited.database.grid_jobs.get(ID).reported is State.DONE


def test_a_monitor_killed_before_it_noted_the_end_writes_the_same_record(
    audited: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(self: GramReports, told: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(GramReports, "_note", die)
        with pytest.raises(KeyboardInterrupt):
            GramReports(audited).report()
    GramReports(audited).report()
    assert records(audited) == [render_record(make_job(), SUBMITTED + 2)]


def test_a_folder_that_cannot_be_written_is_a_problem_until_it_can(audited: Account) -> None:
    folder = audited.configuration.gram.audit_folder
    assert folder is not None
    folder.rmdir()
    reports = GramReports(audited)
    reports.report()
    assert "audit records cannot be written" in reports.problem
    assert reports.are_pending
    folder.mkdir()
    reports.report()
    assert (reports.problem, reports.are_pending, len(records(audited))) == ("", False, 1)


def test_an_end_that_waits_for_its_record_is_told_by_events_once(audited: Account, tmp_path: Path) -> None:
    events = tmp_path / "events"
    events.mkdir()
    missing = tmp_path / "missing"
    gram = GramSettings(event_folder=events, audit_folder=missing)
    account = replace(audited, configuration=replace(audited.configuration, gram=gram))
    account.__dict__["database"] = audited.database
    reports = GramReports(account)
    for _ in range(3):
        reports.report()
    missing.mkdir()
    reports.report()
    lines = [line for file in events.iterdir() for line in file.read_text().splitlines()]
    assert [line.split(";", 2)[2] for line in lines] == [f"{gram_id(ID)};2;0", f"{gram_id(ID)};8;0"]
    assert len(records(account)) == 1


@pytest.mark.parametrize(
    ("line", "subject"),
    [
        ("subject=/O=Grid/OU=D0/CN=A. Physicist\n", "/O=Grid/OU=D0/CN=A. Physicist"),
        ("subject=/O=Grid/CN=A. Physicist/CN=1234567/CN=42", "/O=Grid/CN=A. Physicist"),
        ("subject= /O=Grid/CN=A. Physicist/CN=limited proxy", "/O=Grid/CN=A. Physicist"),
        ("subject=/O=Grid/CN=4711 Physicist/CN=proxy", "/O=Grid/CN=4711 Physicist"),
    ],
    ids=["certificate", "two delegations", "old proxy", "name with digits"],
)
def test_the_subject_is_the_persons(line: str, subject: str) -> None:
    assert read_subject(line) == subject


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_the_subject_is_read_from_a_proxy(tmp_path: Path) -> None:
    proxy = tmp_path / "proxy"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", str(proxy), "-out", str(proxy)]
    subprocess.run([*command, "-subj", "/O=Grid/CN=A. Physicist/CN=1234"], check=True, capture_output=True)
    assert find_subject(JobDescription({}, {"X509_USER_PROXY": str(proxy)})) == "/O=Grid/CN=A. Physicist"


@pytest.mark.parametrize("proxy", ["", "relative", "/nonexistent", "/dev/null"])
def test_a_proxy_that_cannot_be_read_costs_the_subject_only(proxy: str) -> None:
    assert find_subject(JobDescription({}, {"X509_USER_PROXY": proxy})) == ""


@pytest.mark.skipif(not Path(UPLOAD).exists(), reason="globus-gram-audit is not installed")
@pytest.mark.parametrize("version", ["1", "1TG"])
def test_globus_own_program_uploads_the_records(tmp_path: Path, version: str) -> None:
    folder, database, settings = tmp_path / "audit", tmp_path / "db", tmp_path / "conf"
    folder.mkdir()
    hostile = make_job(argument='a\n"b","c\\ \x7f é')
    write_record(folder, hostile, SUBMITTED + 2)
    settings.write_text(f"DRIVER:SQLite\nDATABASE:dbname={database}\nUSERNAME:\nPASSWORD:\nAUDITVERSION:{version}\n")
    subprocess.run([UPLOAD, "--conf", settings, "--create"], check=False)
    done = subprocess.run(
        [UPLOAD, "--conf", settings, "--check", "--audit-directory", folder], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr, list(folder.iterdir())) == (0, "", [])
    columns = "job_grid_id, local_job_id, subject_name, username, creation_time, queued_time, stage_in_grid_id"
    with sqlite3.connect(database) as table:
        assert table.execute(
            f"SELECT {columns}, resource_manager_type, success_flag FROM gram_audit_table"
        ).fetchall() == [
            (
                *("https://h:1/2/3/", gram_id(ID), '/O=Grid/CN=A. "B" C', getpass.getuser()),
                *("2026-11-22 09:37:12", "2026-11-22 09:37:14", None, "slurm", 1),
            )
        ]
