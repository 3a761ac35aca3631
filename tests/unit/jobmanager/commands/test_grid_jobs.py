"""``samgrid status`` says since when a batch system does not answer, from what the account's processes noted."""

import argparse
import json
import re
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import jsonschema
import pytest
from lxml import etree

from batch_adapters.running.rate_limiter import TRIES, Outage, RateLimiter
from batch_adapters.states import Cause, State
from jobmanager.commands import cli, control
from jobmanager.commands import grid_jobs as commands
from jobmanager.database.documents import load_schema
from jobmanager.database.grid_job import GridJob
from jobmanager.database.local_job import LocalJob, Outcome
from jobmanager.site.account import Account, find_outage, limiter_file
from jobmanager.views.grid_jobs import STATUS_SCHEMA, GridJobList, render_delays
from sandbox.status import PhaseStatus
from tests.unit.grid_jobs import make_grid_job, make_whole, put, put_local_jobs

OPEN, OTHER, ENDED = "aaaaaaaa", "bbbbbbbb", "cccccccc"


@pytest.fixture
def status(account: Account, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """``samgrid status`` on three grid jobs: one on slurm, one elsewhere, and one on slurm that has ended."""
    for job_id, batch, state in (
        (OPEN, "slurm", State.ACTIVE),
        (OTHER, "fork", State.ACTIVE),
        (ENDED, "slurm", State.DONE),
    ):
        job = make_grid_job(job_id, batch=batch)
        if state.is_final:
            job.end(state, 2000)
        else:
            job.state = state
        put(account.database, job)
    monkeypatch.setattr(commands, "account_of", lambda options: account)
    problems = f"monitor: no answer\n{OPEN}: submit: no room\n"
    monkeypatch.setattr("jobmanager.monitor.client.ask_monitor", lambda account: problems)

    def run(job_id: str | None = None, form: str = "table") -> None:
        chosen = dict.fromkeys(("type", "state", "user", "since", "name"))
        ids = [job_id] if job_id else []
        assert commands.status(argparse.Namespace(state_dir=None, id=ids, format=form, **chosen)) == 0

    return run


def be_silent(account: Account, times: int = 1) -> None:
    for _ in range(times):
        RateLimiter(limiter_file(account, "slurm"), 100).note_outage("squeue: error: Unable to\ncontact \x1b[2Jslurm")


def test_what_the_monitor_says_of_all_grid_jobs_is_said(
    status: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    status()
    assert capsys.readouterr().err == "samgrid status: monitor: no answer\n"


@pytest.mark.parametrize("job_id", [None, OPEN], ids=["all", "one"])
def test_a_line_under_the_table_says_since_when_a_batch_system_is_silent(
    account: Account, status: Callable[..., None], capsys: pytest.CaptureFixture[str], job_id: str | None
) -> None:
    be_silent(account)
    status(job_id)
    line = capsys.readouterr().out.splitlines()[-1]
    assert line.startswith("slurm has not answered since ")
    assert line.endswith(": squeue: error: Unable to contact \ufffd[2Jslurm")


@pytest.mark.parametrize("job_id", [OTHER, ENDED], ids=["elsewhere", "ended"])
def test_it_is_not_said_where_nothing_waits_for_it(
    account: Account, status: Callable[..., None], capsys: pytest.CaptureFixture[str], job_id: str
) -> None:
    be_silent(account)
    status(job_id)
    status(job_id, "json")
    printed = capsys.readouterr().out
    assert "has not answered" not in printed
    assert "silent_since" not in printed


@pytest.mark.usefixtures("account")
def test_as_json_only_grid_jobs_that_wait_for_it_say_so(
    account: Account, status: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    be_silent(account, TRIES)
    outage = find_outage(account, "slurm")
    assert outage is not None
    status(form="json")
    rows = {row.pop("id"): row for row in json.loads(capsys.readouterr().out)}
    since = datetime.strptime(rows[OPEN].pop("silent_since"), "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
    assert since.timestamp() == int(outage.since)
    assert set(rows[OPEN]) == set(rows[OTHER]) == set(rows[ENDED])


def test_once_it_answers_nothing_is_said(
    account: Account, status: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    be_silent(account, 5)
    RateLimiter(limiter_file(account, "slurm"), 100).note_answer()
    status()
    assert "has not answered" not in capsys.readouterr().out


NOON = datetime(2026, 3, 4, 12, tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    ("next_try", "words"), [(NOON + 65, "asked again at 2026-03-04T12:01:05Z"), (0, "asked again soon")]
)
def test_it_is_said_when_a_silent_batch_system_is_asked_again(next_try: float, words: str) -> None:
    (said,) = render_delays(GridJobList([], {"slurm": Outage(NOON - 60, "dead", next_try)}, {}), NOON)
    assert said == f"slurm has not answered since 2026-03-04T11:59:00Z ({words}): dead"


# --- choosing, and other forms


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        pytest.param([], {OPEN, OTHER, ENDED}, id="all"),
        pytest.param(["--type", "command"], {OPEN, OTHER, ENDED}, id="type"),
        pytest.param(["--type", "comm"], set(), id="no such type"),
        pytest.param(["--state", "active"], {OPEN, OTHER}, id="state"),
        pytest.param(["--user", "physicist", "--state", "done"], {ENDED}, id="all must fit"),
        pytest.param(["--user", "' OR TRUE --"], set(), id="hostile user"),
        pytest.param(["--since", "1970-01-01T00:16:40"], {OPEN, OTHER, ENDED}, id="since their second"),
        pytest.param(["--since", "1970-01-01T00:16:41"], set(), id="since the next second"),
        pytest.param(["--since", "1d"], set(), id="since yesterday"),
        pytest.param(["--since", "999999d"], {OPEN, OTHER, ENDED}, id="since before time began"),
        pytest.param([OPEN[0], "--type", "command"], {OPEN}, id="one that fits"),
        pytest.param([OPEN, "--type", "command", ENDED], {OPEN, ENDED}, id="ids on both sides"),
        pytest.param(["--type", "command", "--", OTHER], {OTHER}, id="after two dashes"),
    ],
)
@pytest.mark.usefixtures("status")
def test_options_choose_grid_jobs(words: list[str], shown: set[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["status", "--format", "json", *words]) == 0
    assert {row["id"] for row in json.loads(capsys.readouterr().out)} == shown
    assert cli.main(["status", "--format", "xml", *words]) == 0
    root = etree.fromstring(capsys.readouterr().out)
    assert {job.get("id") for job in root.iterfind("grid-job")} == shown
    assert cli.main(["status", *words]) == 0
    printed = capsys.readouterr().out
    assert {job_id for job_id in (OPEN, OTHER, ENDED) if job_id in printed} == shown
    assert ("no grid jobs fit" in printed) == (not shown)


def test_where_there_is_no_grid_job_the_state_folder_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["status", "--state-dir", str(tmp_path / "mistyped")]) == 0
    assert capsys.readouterr().out == f'no grid jobs in {tmp_path}/mistyped: "samgrid submit FILE" makes one\n'


@pytest.mark.usefixtures("status")
def test_an_id_that_does_not_fit_the_options_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["status", OPEN, "--type", "pythia"]) == 1
    assert f"the other options choose none of these: {OPEN}" in capsys.readouterr().err


def test_json_is_as_its_published_schema_says_and_leaves_nothing_out(
    account: Account, status: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    status(form="json-schema")
    validator = jsonschema.Draft202012Validator(json.loads(capsys.readouterr().out))
    be_silent(account)

    def fail(job: GridJob) -> None:
        job.name, job.reason, job.repeats = "tune 7", "why", OTHER
        job.end(State.FAILED, 2000)

    account.database.grid_jobs.change(ENDED, fail)
    account.database.grid_jobs.change(OPEN, lambda job: job.put_problem("disk full", 2000))
    local_job = LocalJob.new(1, "slurm", None)
    local_job.put_phases([PhaseStatus("tea", 2, 3, "cups")], 2000)
    put_local_jobs(account.database, OPEN, local_job)
    status(form="json")
    rows = {row["id"]: row for row in json.loads(capsys.readouterr().out)}
    for job_id in (None, OPEN, ENDED):
        status(job_id, "json")
        found = json.loads(capsys.readouterr().out)
        validator.validate(found)
    (ended,) = found
    assert [ended[name] for name in ("name", "outcome", "reason", "batch", "ended", "repeats")] == [
        *("tune 7", "failed", "why", "slurm", "1970-01-01T00:33:20Z", OTHER)
    ]
    assert rows[OPEN]["phases"] == [{"name": "tea", "unit": "cups", "done": 2, "total": 3, "local_jobs": 1}]
    with pytest.raises(jsonschema.ValidationError):
        validator.validate([{**ended, "unknown": 1}])


@pytest.mark.usefixtures("status")
def test_with_an_id_a_state_lists_its_local_jobs(account: Account, capsys: pytest.CaptureFixture[str]) -> None:
    jobs = [LocalJob.new(index, "slurm", None) for index in (1, 2, 3)]
    jobs[0].state, jobs[0].outcome = State.DONE, Outcome.SUCCEEDED
    jobs[1].state, jobs[1].outcome, jobs[1].cause, jobs[1].reason = (
        State.DONE,
        Outcome.FAILED,
        Cause.EXIT_CODE,
        "code 3",
    )
    put_local_jobs(account.database, OPEN, *jobs)
    listed = {}
    for state in ("done", "failed", "cancelled", "unsubmitted"):
        assert cli.main(["status", OPEN, "--state", state]) == 0
        listed[state] = capsys.readouterr().out.splitlines()[-1].split()
    assert listed["done"] == ["1", "-", "-", "-"]
    assert listed["failed"] == ["2", "-", "exit-code", "code", "3"]
    assert listed["cancelled"] == ["no", "local", "job", "is", "cancelled"]
    assert listed["unsubmitted"] == ["3", "-", "-", "-"]


def test_a_cancel_of_several_passes_over_one_that_cannot_be_read(
    account: Account, status: Callable[..., None], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    woken: list[Account] = []
    monkeypatch.setattr("jobmanager.monitor.client.wake_monitor", woken.append)
    with account.database.transaction():
        account.database._store.write("UPDATE grid_job SET document = 'no XML' WHERE id = ?", [(OPEN,)])
    chosen = dict.fromkeys(("type", "state", "user", "since", "name"))
    monkeypatch.setattr(control, "account_of", lambda options: account)
    assert control.cancel(argparse.Namespace(id=[OTHER, OPEN, ENDED], **chosen)) == 1
    said = capsys.readouterr()
    assert said.out == f"grid job {OTHER} is being cancelled\ngrid job {ENDED} has ended already\n"
    assert said.err.startswith(f"samgrid cancel: the document of grid job {OPEN} cannot be read")
    assert account.database.grid_jobs.get(OTHER).cancelled
    assert woken == [account]


def test_a_cancel_says_what_it_waits_for(
    account: Account, status: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    job = LocalJob.new(1, "slurm", None)
    job.state = State.ACTIVE
    put_local_jobs(account.database, OPEN, job)
    account.database.grid_jobs.change(OPEN, lambda job: job.cancel(2000, "enough"))
    status(OPEN)
    assert re.search(r"\ncancel +waits for the end of 1 local job\n", capsys.readouterr().out)
    be_silent(account)
    status(OPEN)
    words = "end of 1 local job, as far as is known: slurm does not answer, and the cancel goes on when it does"
    assert words in capsys.readouterr().out


@pytest.mark.usefixtures("status")
def test_a_watch_of_what_was_cancelled_says_so(account: Account, capsys: pytest.CaptureFixture[str]) -> None:
    def cancel(job: GridJob) -> None:
        job.cancel(2000, "enough")
        job.end(State.FAILED, 2000)

    account.database.grid_jobs.change(OPEN, cancel)
    assert cli.main(["watch", OPEN]) == 1
    assert [line.partition(":")[0] for line in capsys.readouterr().out.splitlines()] == [
        *("cancelled", f"grid job {OPEN} cancelled")
    ]


@pytest.mark.usefixtures("status")
def test_what_blocks_is_shown_in_the_list_of_one_and_of_its_local_jobs(
    account: Account, capsys: pytest.CaptureFixture[str]
) -> None:
    held = LocalJob.new(1, "slurm", None)
    held.state, held.wait_reason, held.helps = State.PENDING, "JobHeldUser", "scontrol release 17"
    full, ending = LocalJob.new(2, "slurm", None), LocalJob.new(3, "slurm", None)
    full.state, full.reason = State.ACTIVE, "output waits for room: No space left on device"
    ending.state, ending.reason = State.ACTIVE, "no scratch folder"
    put_local_jobs(account.database, OPEN, held, full, ending)
    shown = []
    for words in ([], [OPEN], [OPEN, "--state", "pending"], ["--format", "json"]):
        assert cli.main(["status", *words]) == 0
        shown.append(" ".join(capsys.readouterr().out.split()))
    assert "1 pending, 2 active, 2 blocked" in shown[0]
    assert "blocked number 1: JobHeldUser: scontrol release 17" in shown[1]
    assert "blocked number 2: output waits for room: No space left on device" in shown[1]
    assert "number 3" not in shown[1]
    assert shown[2].endswith("1 - - JobHeldUser")
    assert '"blocked": 2' in shown[3]
    assert cli.main(["status", OPEN, "--format", "json"]) == 0
    (status,) = told = json.loads(capsys.readouterr().out)
    jsonschema.validate(told, json.loads(STATUS_SCHEMA.read_text()))
    assert status["blocks"] == [
        {"count": 1, "first": 1, "wait_reason": "JobHeldUser", "helps": "scontrol release 17"},
        {"count": 1, "first": 2, "wait_reason": full.reason, "helps": ""},
    ]


@pytest.mark.usefixtures("status")
def test_of_what_has_ended_is_said_when_and_that_nothing_comes_any_more(
    account: Account, capsys: pytest.CaptureFixture[str]
) -> None:
    account.database.grid_jobs.change(ENDED, lambda job: job.end(State.DONE, 2000))
    whole = make_whole("dddddddd", "first")
    whole.end(State.FAILED, 2000)
    put(account.database, whole)
    shown = []
    for job_id in (ENDED, whole.job_id):
        assert cli.main(["status", job_id]) == 0
        shown.append(" ".join(capsys.readouterr().out.split()))
    assert "ended 1970-01-01T00:33:20Z" in shown[0]
    assert "no local jobs yet" not in shown[0]
    assert "step 1 of 1 first never began" in shown[1]


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--state", "actve"], "invalid choice: 'actve'"),
        (["--since", "soon"], "'soon' is no time"),
    ],
    ids=["state", "since"],
)
def test_a_bad_value_is_named_with_the_good_ones(
    words: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        cli.main(["status", *words])
    assert complaint in capsys.readouterr().err


def test_as_xml_the_list_is_what_the_schema_allows(
    account: Account, status: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    be_silent(account)
    local = LocalJob.new(1, "slurm", None)
    local.state, local.outcome = State.DONE, Outcome.FAILED
    put_local_jobs(account.database, OPEN, local)
    status(form="xml")
    root = etree.fromstring(capsys.readouterr().out)
    load_schema().assertValid(root)
    assert root.xpath("string(grid-job[@silent-since]/@id)") == OPEN
    assert root.xpath("count(grid-job[@silent-since]/local-jobs[@state = 'failed'])") == 1


def test_a_name_of_the_command_line_replaces_that_of_the_request(
    account: Account, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.rsl").write_text("&(samgrid_type = command)(executable = /bin/true)(NA_ME = old)")
    monkeypatch.setattr("jobmanager.monitor.client.end_other_monitor", lambda account: None)
    monkeypatch.setattr(commands, "wake_for", lambda account, job_id: None)
    job = account.database.grid_jobs.get(commands._submit(account, str(tmp_path / "a.rsl"), "new"))
    assert (job.name, job.request()[2:]) == ("new", [("name", ("new",))])
