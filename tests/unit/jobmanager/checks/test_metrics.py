"""Metrics: what Prometheus reads is what is there, under the names that docs/metrics.md tells."""

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from batch_adapters.running.rate_limiter import RateLimiter
from batch_adapters.states import Cause, State
from jobmanager import SETUP
from jobmanager.checks.metrics import METRICS, render_metrics, write_textfile
from jobmanager.commands import cli
from jobmanager.control.removal import remove_grid_job
from jobmanager.database.database import DamagedDocument
from jobmanager.database.local_job import LocalJob
from jobmanager.site.account import Account, limiter_file
from jobmanager.site.places import StatePlaces
from tests.extras import Later, need
from tests.unit.grid_jobs import changing, put_local_jobs
from tests.unit.jobmanager.checks.fake_monitor import monitor_that_says
from tests.unit.jobmanager.views.test_usage import DAY, A, B, C, Part, put_grid_job
from tests.unit.traps import TRAPS

parser: Any = Later("prometheus_client.parser")
NOW = 20.0 * DAY
CAME = 10 * DAY
Labels = frozenset[tuple[str, str]]


def scrape(account: Account) -> dict[str, dict[Labels, float]]:
    """What Prometheus would know: by metric, the value of each set of labels but for the account."""
    return read(render_metrics(account, account.database, NOW))


def read(text: str) -> dict[str, dict[Labels, float]]:
    need("prometheus_client")
    found: dict[str, dict[Labels, float]] = {}
    for family in parser.text_string_to_metric_families(text):
        for sample in family.samples:
            labels = frozenset((name, word) for name, word in sample.labels.items() if name != "account")
            assert labels not in found.setdefault(sample.name, {}), "no set of labels comes twice"
            found[sample.name][labels] = sample.value
    return found


def labels(**words: str) -> Labels:
    return frozenset(words.items())


def positive(values: dict[Labels, float]) -> dict[Labels, float]:
    return {label: value for label, value in values.items() if value}


def end_grid_job(account: Account, job_id: str) -> None:
    account.database.grid_jobs.change(job_id, lambda job: job.end(State.DONE, NOW))


def change_local_job(account: Account, job_id: str, index: int, change: str) -> None:
    with changing(account.database, job_id, index) as job:
        getattr(job, change)()


def test_every_metric_is_in_the_documentation_and_nothing_else_is() -> None:
    text = (SETUP.parent / "docs/metrics.md").read_text()
    told = re.findall(r"^\| `(samgrid_\w+)", text, re.MULTILINE)
    assert sorted(told) == sorted(METRICS)
    assert set(re.findall(r"\bsamgrid_\w+\b", text)) == set(METRICS), "alarms name metrics that there are"


def test_the_dashboard_shows_every_metric_and_no_other(account: Account) -> None:
    dashboard = json.loads((SETUP.parent / "docs/grafana.json").read_text())
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    asked = set(re.findall(r"\bsamgrid_\w+", " ".join(expressions)))
    assert asked == set(re.findall(r"^# TYPE (\w+) ", render_metrics(account, account.database, NOW), re.MULTILINE))
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])


def test_room_on_disks_is_of_folders_that_are_there(account: Account) -> None:
    (value,) = scrape(account)["samgrid_disk_free_bytes"].items()
    assert value[0] == labels(folder="state")
    account.places.jobs.mkdir()
    assert set(scrape(account)["samgrid_disk_free_bytes"]) == {labels(folder="state"), labels(folder="jobs")}


def test_every_metric_has_its_kind_and_meaning(account: Account) -> None:
    need("prometheus_client")
    families = list(parser.text_string_to_metric_families(render_metrics(account, account.database, NOW)))
    told = {family.name + ("_total" if family.type == "counter" else ""): family for family in families}
    assert {name: (family.type, family.documentation) for name, family in told.items()} == METRICS


def test_where_nothing_ever_was_there_are_zeros_and_no_state_folder(tmp_path: Path, account: Account) -> None:
    nowhere = Account(StatePlaces(tmp_path / "no"), account.configuration)
    found = scrape(nowhere)
    assert found["samgrid_monitor_up"] == {labels(): 0}
    assert "samgrid_problems" not in found, "nobody can say"
    assert "samgrid_oldest_unsubmitted_timestamp_seconds" not in found
    assert found["samgrid_local_jobs"][labels(batch="fork", state="active")] == 0
    assert set(found["samgrid_local_job_ends_total"].values()) == {0}
    assert len(found["samgrid_local_job_ends_total"]) == 1 + len(Cause)
    assert labels(batch="fork", outcome="cancelled", cause="fail-fast") in found["samgrid_local_job_ends_total"]
    assert not (tmp_path / "no").exists()


def test_open_grid_jobs_and_their_local_jobs_count_by_state(account: Account) -> None:
    database = account.database
    running = [Part(0, None, state=State.ACTIVE)] * 2
    put_grid_job(database, A, "ada", "pythia", [*running, Part(0, 10), Part(0, 10, code=1)])
    put_grid_job(database, B, "ada", "pythia", [Part(None, None, state=State.PENDING)])
    put_grid_job(database, C, "ada", "pythia", [Part(0, 10, code=1)])
    database.grid_jobs.change(A, lambda job: setattr(job, "state", State.ACTIVE))
    database.grid_jobs.change(B, lambda job: setattr(job, "state", State.PENDING))
    end_grid_job(account, C)
    with database.transaction():
        database.events.put_generator_time("slurm", 4711)
    found = scrape(account)
    of = {state: labels(batch="slurm", state=state) for state in ("active", "pending", "done", "failed")}
    assert positive(found["samgrid_grid_jobs"]) == {of["active"]: 1, of["pending"]: 1}
    expected = {of["active"]: 2, of["pending"]: 1, of["done"]: 1, of["failed"]: 1}
    assert positive(found["samgrid_local_jobs"]) == expected, "not that of the grid job that has ended"
    assert found["samgrid_generator_timestamp_seconds"] == {labels(batch="slurm"): 4711}
    assert labels(batch="fork", state="active") in found["samgrid_local_jobs"], "the configured one is there from 0 on"


def test_ends_never_go_down_whatever_is_tried_again_ends_or_is_removed(account: Account) -> None:
    parts = [Part(0, 10), Part(0, 10, code=3), Part(0, DAY, code=3), Part(0, 9, state=State.FAILED, reason="enough")]
    put_grid_job(account.database, A, "ada", "pythia", parts)
    failed = labels(batch="slurm", outcome="failed", cause="exit-code")
    assert positive(ends(account)) == {}, "what is known of them may change"
    change_local_job(account, A, 3, "begin_attempt")
    assert positive(ends(account)) == {failed: 1}
    put_local_jobs(account.database, A, LocalJob.new(5, "slurm", None))
    end_grid_job(account, A)
    settled = {
        labels(batch="slurm", outcome="succeeded", cause=""): 1,
        failed: 2,
        labels(batch="slurm", outcome="cancelled", cause="cancelled-by-us"): 1,
    }
    assert positive(ends(account)) == settled
    remove_grid_job(account, A)
    assert positive(ends(account)) == settled


def ends(account: Account) -> dict[Labels, float]:
    return scrape(account)["samgrid_local_job_ends_total"]


def test_the_eldest_unsubmitted_waits_since_its_request_or_since_its_last_attempt(account: Account) -> None:
    database = account.database

    def eldest() -> int | None:
        return database.local_jobs.eldest_unsubmitted()

    put_grid_job(database, A, "ada", "pythia", [Part(CAME, CAME + 70, code=1), Part(0, None, state=State.ACTIVE)])
    assert eldest() is None
    change_local_job(account, A, 1, "begin_attempt")
    assert eldest() == CAME + 70
    put_grid_job(database, B, "ada", "pythia", [])
    assert eldest() == CAME, "it is to get local jobs still"
    assert scrape(account)["samgrid_oldest_unsubmitted_timestamp_seconds"] == {labels(): CAME}
    end_grid_job(account, B)
    assert eldest() == CAME + 70
    put_local_jobs(database, A, LocalJob.new(2, "slurm", None))
    assert eldest() == CAME
    end_grid_job(account, A)
    assert eldest() is None


def test_a_grid_job_that_has_steps_waits_for_no_local_jobs_of_its_own(account: Account) -> None:
    put_grid_job(account.database, A, "ada", "structured", [])
    account.database._store.write("INSERT INTO step VALUES (?, 1, 'events', NULL)", [(A,)])
    assert account.database.local_jobs.eldest_unsubmitted() is None


def test_a_silent_batch_system_and_how_much_it_was_asked(account: Account) -> None:
    name = account.configuration.site.batch_system
    limiter = RateLimiter(limiter_file(account, name), 100)
    limiter.acquire()
    limiter.acquire()
    limiter.note_outage("no contact")
    outage = limiter.outage()
    assert outage
    found = read(render_metrics(account, account.database, outage.since + 1))
    assert found["samgrid_batch_commands_last_minute"] == {labels(batch=name): 2}
    assert found["samgrid_batch_silent_since_timestamp_seconds"] == {labels(batch=name): outage.since}
    limiter.note_answer()
    found = read(render_metrics(account, account.database, outage.since + 70))
    assert found["samgrid_batch_commands_last_minute"] == {labels(batch=name): 0}
    assert "samgrid_batch_silent_since_timestamp_seconds" not in found


def test_problems_that_the_monitor_tells_count_by_what_they_are_about(account: Account) -> None:
    answer = "aaaaaaaa: submit: refused\nslurm: reconcile: silent\nmonitor: no space\nevents: generator ended\n"
    with monitor_that_says(account, answer):
        found = scrape(account)
    assert found["samgrid_monitor_up"] == {labels(): 1}
    told = {labels(about="task"): 2, labels(about="monitor"): 1, labels(about="events"): 1}
    assert found["samgrid_problems"] == told
    account.places.monitor_socket.unlink()
    with monitor_that_says(account, ""):
        assert set(scrape(account)["samgrid_problems"].values()) == {0}


def test_quarantines_version_and_size(account: Account) -> None:
    put_grid_job(account.database, A, "ada", "pythia", [])
    with account.database.transaction():
        account.database.quarantine.put(DamagedDocument(A, 0, "torn"), NOW)
    found = scrape(account)
    assert found["samgrid_quarantined_grid_jobs"] == {labels(): 1}
    ((info, one),) = found["samgrid_info"].items()
    assert one == 1
    assert dict(info)["layout"].isdigit()
    files = [account.places.database, account.places.database.with_name("jobs.db-wal")]
    assert found["samgrid_database_bytes"] == {labels(): sum(file.stat().st_size for file in files)}


def test_a_hostile_name_stays_within_its_label(account: Account) -> None:
    name = 'a"} 1\nsamgrid_evil 1\\'
    put_grid_job(account.database, A, "ada", "pythia", [])
    with account.database.transaction():
        account.database.events.put_generator_time(name, 1)
    found = scrape(account)
    assert set(found) <= set(METRICS)
    assert found["samgrid_generator_timestamp_seconds"] == {labels(batch=name.replace("\n", "\ufffd")): 1}


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600)])
def test_a_textfile_is_replaced_whole_and_read_by_whom_the_umask_says(
    account: Account, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], umask: int,
    mode: int,
) -> None:  # fmt: skip
    monkeypatch.setenv("SAMGRID_STATE", str(account.places.root))
    file = tmp_path / "out" / "samgrid.prom"
    file.parent.mkdir()
    file.write_text("what was there")
    before = os.umask(umask)
    try:
        assert cli.main(["metrics", "--textfile", str(file)]) == 0
        assert os.umask(umask) == umask
    finally:
        os.umask(before)
    assert read(file.read_text())["samgrid_monitor_up"] == {labels(): 0}
    assert file.stat().st_mode & 0o777 == mode
    assert list(file.parent.iterdir()) == [file]
    assert capsys.readouterr().out == ""
    assert cli.main(["metrics"]) == 0
    assert read(capsys.readouterr().out).keys() == read(file.read_text()).keys()


@pytest.mark.parametrize("make", TRAPS)
def test_what_is_no_file_is_not_replaced_by_one(tmp_path: Path, make: Callable[[Path], object]) -> None:
    make(tmp_path / "trap")
    before = os.lstat(tmp_path / "trap")
    with pytest.raises(OSError, match="is there, and is no regular file"):
        write_textfile(tmp_path / "trap", "text")
    assert os.path.samestat(os.lstat(tmp_path / "trap"), before)
    assert [path.name for path in tmp_path.iterdir()] == ["trap"]


def test_a_textfile_that_cannot_be_written_stays_as_it_was(
    account: Account, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SAMGRID_STATE", str(account.places.root))
    file = tmp_path / "samgrid.prom"
    file.write_text("what was there")
    account.places.database.write_text("no database at all" * 100)
    assert cli.main(["metrics", "--textfile", str(file)]) == 1
    assert file.read_text() == "what was there"
    assert "file is not a database" in capsys.readouterr().err
    account.places.database.unlink()
    assert cli.main(["metrics", "--textfile", str(tmp_path / "no" / "a.prom")]) == 1
    assert "No such" in capsys.readouterr().err
