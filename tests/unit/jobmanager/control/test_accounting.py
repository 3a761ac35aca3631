"""Usage records: what is in them, that each attempt is in one, and that a kill neither loses nor doubles any."""

import json
import os
from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import pytest

from batch_adapters.states import State
from jobmanager.commands import cli
from jobmanager.control import accounting, removal
from jobmanager.control.accounting import RecordFormat, write_records
from jobmanager.control.removal import remove_grid_job
from jobmanager.database.grid_job import GramOrigin
from jobmanager.database.local_job import LocalJob, Outcome
from jobmanager.site.account import Account, open_account
from sandbox.files import locked
from tests.unit.grid_jobs import make_grid_job, put

A, B, C = "aaaaaaaa", "bbbbbbbb", "cccccccc"
DAY = 86_400
NOVEMBER = 1_793_491_200
"""Its first second in 2026 (UTC)."""
DN = "/O=Grid/CN=A. Physicist"
APEL = "samgrid-apel"


def run(account: Account, folder: Path, *more: str, form: str = "apel") -> int:
    return cli.main(["accounting", "--state-dir", str(account.places.root), "--format", form, *more, str(folder)])


@pytest.fixture(autouse=True)
def _site(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAMGRID_SITE_NAME", "FNAL")
    monkeypatch.setenv("SAMGRID_ACCOUNTING_BENCHMARK", "12.5")
    monkeypatch.setenv("SAMGRID_ACCOUNTING_VO", "dzero")


@pytest.fixture
def out(tmp_path: Path) -> Path:
    folder = tmp_path / "outgoing"
    folder.mkdir()
    return folder


@dataclass(frozen=True)
class Ran:
    """An attempt that ran from one second to another, of November."""

    started: int | None
    ended: int | None
    cpu: float | None = None


def put_grid_job(account: Account, job_id: str, *jobs: list[Ran], cores: int = 1, subject: str = "") -> None:
    """A grid job that has ended, with the attempts at each local job."""
    request = [("cores", [str(cores)])] if cores > 1 else []
    job = make_grid_job(job_id, len(jobs), request=request, owner="ada", batch="slurm", submitted=NOVEMBER)
    if subject:
        job.put_origin(GramOrigin(job_id, "https://h/", "/dev/null", "/dev/null", False, subject))
        job.reported, job.reported_time = State.DONE, NOVEMBER
    job.end(State.DONE, NOVEMBER)
    put(account.database, job, [make(index, ran) for index, ran in enumerate(jobs, 1)])


def make(index: int, attempts: list[Ran]) -> LocalJob:
    job = LocalJob.new(index, "slurm", None)
    for number, ran in enumerate(attempts):
        if number:
            job.begin_attempt()
        job.register(f"{number}_{index}", "", NOVEMBER)
        job.started_time = None if ran.started is None else NOVEMBER + ran.started
        job.ended_time = None if ran.ended is None else NOVEMBER + ran.ended
        job.driver, job.host, job.cpu_seconds = "ended", "node7", ran.cpu
        job.state, job.outcome = State.DONE, Outcome.SUCCEEDED
    return job


def find_ids(folder: Path) -> Counter[str]:
    """The id of every record in a folder's messages."""
    lines = [line for file in folder.glob(f"{APEL}-*") for line in file.read_text().splitlines()]
    return Counter(line.rpartition("/")[2] for line in lines if line.startswith("LocalJobId"))


def read_fields(message: str) -> list[dict[str, str]]:
    """The records of a message."""
    _, _, records = message.partition("\n")
    return [
        dict(line.split(": ", 1) for line in text.strip().splitlines()) for text in records.split("%%") if text.strip()
    ]


def test_a_record_has_what_is_known(account: Account, out: Path) -> None:
    put_grid_job(account, A, [Ran(10, 110, 95.6)], cores=4, subject=DN)
    assert run(account, out) == 0
    (file,) = out.iterdir()
    assert file.read_text().startswith("APEL-individual-job-message: v0.3\n")
    (fields,) = read_fields(file.read_text())
    assert fields.pop("SubmitHost").startswith("samgrid/")
    assert fields == {
        **{"Site": "FNAL", "LocalJobId": f"0_1/{A}-1-1", "LocalUserId": "ada", "GlobalUserName": DN, "VO": "dzero"},
        **{"WallDuration": "100", "CpuDuration": "96", "Processors": "4", "NodeCount": "1"},
        **{"StartTime": str(NOVEMBER + 10), "EndTime": str(NOVEMBER + 110)},
        **{"InfrastructureDescription": "SAMGRID-SLURM", "InfrastructureType": "grid"},
        **{"ServiceLevelType": "hepscore23", "ServiceLevel": "12.5"},
    }


def test_what_is_not_known_is_left_out(account: Account, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SAMGRID_ACCOUNTING_BENCHMARK")
    monkeypatch.delenv("SAMGRID_ACCOUNTING_VO")
    put_grid_job(account, A, [Ran(10, 110)])
    assert run(account, out) == 0
    assert run(account, out, form="auditor") == 0
    (fields,) = read_fields(next(out.glob(f"{APEL}-*")).read_text())
    assert not {"GlobalUserName", "VO", "ServiceLevel", "ServiceLevelType", "MemoryReal"} & set(fields)
    assert fields["CpuDuration"] == "0"  # which APEL wants
    (record,) = json.loads(next(out.glob("samgrid-auditor-*")).read_text())
    assert [component["name"] for component in record["components"]] == ["Cores", "NNodes"]
    assert not {"subject", "group_id"} & set(record["meta"])


def test_auditor_gets_amounts_scores_and_times(account: Account, out: Path) -> None:
    put_grid_job(account, A, [Ran(10, 110, 95.6)], cores=4, subject=DN)
    assert run(account, out, form="auditor") == 0
    (record,) = json.loads(next(out.iterdir()).read_text())
    assert record.pop("meta").keys() >= {"site_id", "user_id", "group_id", "subject", "headnode", "node"}
    assert record == {
        "record_id": f"samgrid-{A}-1-1",
        "components": [
            {"name": "Cores", "amount": 4, "scores": [{"name": "hepscore23", "value": 12.5}]},
            {"name": "NNodes", "amount": 1, "scores": []},
            {"name": "TotalCPU", "amount": 96, "scores": []},
        ],
        "start_time": "2026-11-01T00:00:10Z",
        "stop_time": "2026-11-01T00:01:50Z",
    }


def test_every_attempt_that_ran_has_one_record(account: Account, out: Path) -> None:
    never, lost_start = [Ran(None, None)], [Ran(None, 9)]
    put_grid_job(account, A, [Ran(0, 10), Ran(None, 15), Ran(20, 30)], never, [Ran(5, 6)], lost_start)
    assert run(account, out) == 0
    assert find_ids(out) == Counter([f"{A}-1-1", f"{A}-1-3", f"{A}-3-1"])


def test_a_grid_job_counts_when_it_has_ended(account: Account, out: Path) -> None:
    put_grid_job(account, A, [Ran(0, 10)])
    account.database.grid_jobs.change(A, lambda job: setattr(job, "state", State.ACTIVE))
    assert run(account, out) == 0
    assert not list(out.iterdir())
    account.database.grid_jobs.change(A, lambda job: job.end(State.DONE, NOVEMBER))
    assert run(account, out) == 0
    assert find_ids(out) == Counter([f"{A}-1-1"])


def test_what_was_removed_before_or_after_is_in_one_record(account: Account, out: Path) -> None:
    put_grid_job(account, A, [Ran(0, 10), Ran(20, 30)])
    put_grid_job(account, B, [Ran(0, 10)])
    remove_grid_job(account, A)
    assert run(account, out) == 0
    remove_grid_job(account, B)
    put_grid_job(account, C, [Ran(0, 10)])
    assert run(account, out) == 0
    assert find_ids(out) == Counter([f"{A}-1-1", f"{A}-1-2", f"{B}-1-1", f"{C}-1-1"])


@pytest.mark.parametrize("form", [form.value for form in RecordFormat])
def test_with_nothing_new_nothing_is_written(account: Account, out: Path, form: str) -> None:
    put_grid_job(account, A, [Ran(0, 10)])
    assert run(account, out, form=form) == 0
    for file in out.iterdir():
        file.unlink()
    assert run(account, out, form=form) == 0
    assert not list(out.iterdir())


class Killed(BaseException):
    """Nobody catches it."""


@pytest.mark.parametrize("before", [True, False], ids=["before the file is there", "before it is noted"])
@pytest.mark.parametrize("nth", [1, 2, 3])
def test_who_is_killed_neither_loses_nor_doubles(
    account: Account, out: Path, monkeypatch: pytest.MonkeyPatch, before: bool, nth: int
) -> None:
    monkeypatch.setattr(accounting, "MOST", 3)
    put_grid_job(account, A, *[[Ran(0, 10)]] * 8)
    put_file, calls = accounting._put_file, iter(range(1, 10))

    def die(folder: Path, name: str, text: str) -> None:
        is_last = next(calls) == nth
        if not (is_last and before):
            put_file(folder, name, text)
        if is_last:
            raise Killed

    monkeypatch.setattr(accounting, "_put_file", die)
    with pytest.raises(Killed):
        run(account, out)
    put_grid_job(account, B, [Ran(0, 10)])  # and what is new does not move what was begun
    monkeypatch.setattr(accounting, "_put_file", put_file)
    assert run(account, out) == 0
    assert find_ids(out) == Counter([f"{B}-1-1", *(f"{A}-{number}-1" for number in range(1, 9))])


def test_what_a_killed_process_left_half_written_is_in_nobodys_way(account: Account, out: Path) -> None:
    put_grid_job(account, A, [Ran(0, 10)])
    beside = out / f".samgrid-{os.geteuid()}"
    beside.mkdir(mode=0o700)
    for name in (f".{APEL}-{A}-1-1.new", f".samgrid-auditor-{A}-1-1.new"):
        (beside / name).write_text("APEL-indiv")
    assert run(account, out) == 0
    assert find_ids(out) == Counter([f"{A}-1-1"])
    assert run(account, out, form="auditor") == 0
    assert not beside.exists()


def test_files_are_written_again_with_the_same_records(
    account: Account, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accounting, "MOST", 2)
    put_grid_job(account, A, *[[Ran(0, end)] for end in (10, 10, 10, 5 * DAY)])
    assert run(account, out) == 0
    sent = {file.name: file.read_text() for file in out.iterdir()}
    for file in out.iterdir():
        file.unlink()
    monkeypatch.setenv("SAMGRID_ACCOUNTING_BENCHMARK", "20")  # what was sent once does not change
    assert run(account, out, "--again", "2026-11-03") == 0
    assert {file.name: file.read_text() for file in out.iterdir()} == {
        name: text for name, text in sent.items() if f"{A}-4-1" in text
    }


def test_a_summary_sums_up_whole_months(account: Account, out: Path) -> None:
    put_grid_job(account, A, [Ran(0, 100, 50)], [Ran(50, 150, 25.4)], [Ran(-100, -50, 9)], subject=DN)
    put_grid_job(account, B, [Ran(0, 10)])
    write_records(open_account(str(account.places.root)), out, RecordFormat.APEL_SUMMARY, None, NOVEMBER + 30 * DAY)
    (file,) = out.iterdir()
    assert file.read_text().startswith("APEL-summary-job-message: v0.2\n")
    found = {
        (one["Month"], one.get("GlobalUserName")): (one["NumberOfJobs"], one["WallDuration"], one["CpuDuration"])
        for one in read_fields(file.read_text())
    }
    assert found == {("10", DN): ("1", "50", "9"), ("11", DN): ("2", "200", "75"), ("11", None): ("1", "10", "0")}
    file.unlink()
    put_grid_job(account, C, [Ran(0, 1000)])
    write_records(open_account(str(account.places.root)), out, RecordFormat.APEL_SUMMARY, None, NOVEMBER + 30 * DAY)
    (file,) = out.iterdir()
    again = {one.get("GlobalUserName"): one["NumberOfJobs"] for one in read_fields(file.read_text())}
    assert again == {DN: "2", None: "2"}, "the whole of November, and nothing of October"


def test_records_of_removed_grid_jobs_go_after_a_year(account: Account, out: Path) -> None:
    in_1970 = Ran(-NOVEMBER, -NOVEMBER + 10)
    put_grid_job(account, A, [in_1970], [Ran(0, 1_000_000_000)])
    put_grid_job(account, B, [in_1970])
    put_grid_job(account, C, [in_1970])
    assert run(account, out) == 0
    remove_grid_job(account, A)
    remove_grid_job(account, B)
    removal.sweep(account)
    kept = [record.record_id for record in account.database.accounting.records(1, 99)]
    assert kept == [f"{A}-2-1", f"{C}-1-1"]
    next(out.iterdir()).unlink()
    assert run(account, out, "--again", "1970-01-01") == 0
    assert find_ids(out) == Counter(kept)


def test_hostile_words_stay_in_their_line(account: Account, out: Path) -> None:
    put_grid_job(account, A, [Ran(0, 10)], subject="/CN=%%\nSite: OTHER")
    assert run(account, out) == 0
    (fields,) = read_fields(next(out.iterdir()).read_text())
    assert fields["Site"] == "FNAL"
    assert fields["EndTime"] == str(NOVEMBER + 10)


def test_a_clock_that_was_set_back_gives_no_negative_time(account: Account, out: Path) -> None:
    put_grid_job(account, A, [Ran(50, 40)])
    assert run(account, out) == 0
    (fields,) = read_fields(next(out.iterdir()).read_text())
    assert (fields["WallDuration"], fields["StartTime"]) == ("0", fields["EndTime"])


def test_a_site_without_a_name_a_missing_folder_and_a_second_writer_are_refused(
    account: Account, out: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    put_grid_job(account, A, [Ran(0, 10)])
    assert run(account, out / "nowhere") == 1
    assert "nowhere" in capsys.readouterr().err
    with locked(account.places.accounting_lock) as lock:
        assert lock is not None
        assert run(account, out) == 1
        assert "another process" in capsys.readouterr().err
    monkeypatch.delenv("SAMGRID_SITE_NAME")
    assert run(account, out) == 1
    assert '[site] name is still "local"' in capsys.readouterr().err
    assert not list(out.iterdir())
    monkeypatch.setenv("SAMGRID_SITE_NAME", "FNAL")
    assert run(account, out) == 0
    assert find_ids(out) == Counter([f"{A}-1-1"])


def test_apel_reads_what_we_write(account: Account, out: Path) -> None:
    factory = pytest.importorskip("apel.db.loader.record_factory", reason="apel is not installed")
    put_grid_job(account, A, [Ran(-100 * DAY, -99 * DAY, 50), Ran(-99 * DAY, -98 * DAY)], cores=4, subject=DN)
    for form in ("apel", "apel-summary"):
        assert run(account, out, form=form) == 0
    for file in out.iterdir():
        records = factory.RecordFactory().create_records(file.read_text())
        assert len(records) == (1 if "summary" in file.name else 2)
        assert all(DN in record.get_db_tuple() for record in records)


def test_auditor_has_the_same_of_our_records(account: Account, out: Path) -> None:
    pyauditor = pytest.importorskip("pyauditor", reason="python-auditor is not installed")
    put_grid_job(account, A, [Ran(0, 100, 50)], cores=4, subject=DN)
    assert run(account, out, form="auditor") == 0
    (ours,) = json.loads(next(out.iterdir()).read_text())
    meta = pyauditor.Meta()
    for name, words in ours["meta"].items():
        meta.insert(name, words)
    record = pyauditor.Record(ours["record_id"], datetime.fromisoformat(ours["start_time"])).with_meta(meta)
    record = record.with_stop_time(datetime.fromisoformat(ours["stop_time"]))
    for one in ours["components"]:
        component = pyauditor.Component(one["name"], one["amount"])
        for score in one["scores"]:
            component = component.with_score(pyauditor.Score(score["name"], score["value"]))
        record = record.with_component(component)
    assert json.loads(record.to_json()) == {**ours, "runtime": 100}
