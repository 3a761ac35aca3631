"""Usage: which local jobs count, what they sum up to, and how it is shown."""

import csv
import io
import json
import math
from collections.abc import Iterable
from dataclasses import dataclass

import pytest

from batch_adapters.states import Cause, State
from jobmanager.commands import cli
from jobmanager.control.removal import remove_grid_job
from jobmanager.database.database import Database
from jobmanager.database.local_job import LocalJob, Outcome
from jobmanager.site.account import Account
from jobmanager.states.ends import put_outcome
from jobmanager.views.usage import fold_reason, render_usage, render_usage_csv, render_usage_json, sum_usage
from tests.samgrid import Samgrid
from tests.unit.grid_jobs import make_grid_job, put

A, B, C = "aaaaaaaa", "bbbbbbbb", "cccccccc"
DAY = 86_400


@dataclass(frozen=True)
class Part:
    """A local job that ran from one second to another, with so much CPU time and exit code."""

    started: int | None
    ended: int | None
    cpu: float | None = None
    code: int = 0
    state: State = State.DONE
    reason: str | None = None


def put_grid_job(database: Database, job_id: str, owner: str, job_type: str, parts: Iterable[Part]) -> None:
    put(
        database,
        make_grid_job(job_id, 9, job_type=job_type, owner=owner, batch="slurm", submitted=10 * DAY),
        [make_local_job(index, part) for index, part in enumerate(parts, 1)],
    )


def make_local_job(index: int, part: Part) -> LocalJob:
    job = LocalJob.new(index, "slurm", None)
    job.register(f"{index}", "", 0)
    job.state = part.state
    job.started_time, job.ended_time = part.started, part.ended
    job.driver, job.host, job.cpu_seconds = "ended", "node", part.cpu
    job.exit_code = part.code
    put_outcome(job)
    if part.reason:
        job.outcome, job.cause, job.reason = Outcome.CANCELLED, Cause.CANCELLED_BY_US, part.reason
    return job


@pytest.fixture
def database(account: Account) -> Database:
    database = account.database
    put_grid_job(database, A, "ada", "pythia", [Part(0, 100, 50), Part(0, 100, 100), Part(10, 20, None, code=3)])
    put_grid_job(database, B, "ada", "pythia", [Part(0, DAY, 1000, code=3), Part(0, None, state=State.ACTIVE)])
    lost = Part(None, None, state=State.FAILED, reason="never submitted: the grid job was cancelled before")
    put_grid_job(database, C, "bob", "command", [lost, Part(50, 40, 5)])
    return database


def test_sums_by_user_type_and_batch_system(database: Database) -> None:
    ada, bob = (line.usage for line in sum_usage(database, ("user", "type", "batch"), -math.inf, math.inf))
    assert ada.group == ("ada", "pythia", "slurm")
    assert (ada.grid_jobs, ada.local_jobs, ada.succeeded, ada.failed) == (2, 4, 2, 2)
    assert (ada.cpu_seconds, ada.wall_seconds) == (1150, 200 + 10 + DAY)
    assert ada.efficiency == pytest.approx(1150 / (200 + DAY))  # one has no CPU time
    assert bob.group == ("bob", "command", "slurm")
    # A clock that went backwards takes nothing away.
    assert (bob.local_jobs, bob.succeeded, bob.cancelled, bob.wall_seconds, bob.efficiency) == (2, 1, 1, 0, None)


@pytest.mark.parametrize(
    ("since", "until", "local_jobs"),
    [(0, 101, 4), (100, 101, 2), (100, 100, 0), (101, DAY + 1, 1), (10 * DAY, 11 * DAY, 1), (11 * DAY, 12 * DAY, 0)],
    ids=["first", "the second itself", "empty", "next day", "never submitted counts with its request", "later"],
)
def test_what_counts_is_the_end(database: Database, since: float, until: float, local_jobs: int) -> None:
    assert sum(line.usage.local_jobs for line in sum_usage(database, ("user",), since, until)) == local_jobs


def test_what_earlier_attempts_used_counts(account: Account) -> None:
    put_grid_job(account.database, A, "ada", "pythia", [Part(0, 100, 50, code=3)])
    with account.database.transaction():
        (job,) = account.database.local_jobs.all_of(A)
        job.begin_attempt()
        account.database.local_jobs.put(A, [job])
    (line,) = sum_usage(account.database, ("user",), 0, 1000)
    assert (line.usage.local_jobs, line.usage.failed, line.usage.cpu_seconds) == (1, 1, 50)
    with account.database.transaction():
        job.register("2", "", 200)
        job.state, job.outcome = State.DONE, Outcome.SUCCEEDED
        job.started_time, job.ended_time = 200, 300
        account.database.local_jobs.put(A, [job])
    (line,) = sum_usage(account.database, ("user",), 0, 1000)
    assert (line.usage.local_jobs, line.usage.failed, line.usage.wall_seconds) == (2, 1, 200)
    assert line.reasons == [("the program ended with exit code 3", 1)]
    account.database.grid_jobs.change(A, lambda job: job.end(State.DONE, 400))
    remove_grid_job(account, A)
    assert sum_usage(account.database, ("user",), 0, 1000) == [line]


@pytest.mark.parametrize("by", [("user", "type", "batch"), ("type",)], ids=str)
def test_what_was_removed_counts_as_before(account: Account, database: Database, by: tuple[str, ...]) -> None:
    spans = [(-math.inf, math.inf), (0, DAY), (DAY, 2 * DAY), (0, 11 * DAY), (11 * DAY, 12 * DAY)]
    before = [sum_usage(database, by, *span) for span in spans]
    database.grid_jobs.change(C, lambda job: job.end(State.DONE, 10 * DAY))
    remove_grid_job(account, C)
    database.grid_jobs.change(A, lambda job: job.end(State.DONE, 10 * DAY))
    remove_grid_job(account, A)
    assert [sum_usage(database, by, *span) for span in spans] == before


def test_of_a_removed_grid_job_a_row_stays_for_each_day_outcome_and_reason(account: Account) -> None:
    put_grid_job(
        account.database, A, "ada", "pythia", [Part(0, end, 1) for end in (5, 7, DAY + 1)] + [Part(0, 3, code=1)]
    )
    account.database.grid_jobs.change(A, lambda job: job.end(State.DONE, 10 * DAY))
    remove_grid_job(account, A)
    # A day's local jobs count when the last of them ended.
    counts = [
        [line.usage.succeeded for line in sum_usage(account.database, ("user",), *span)]
        for span in ((5, 7), (7, 8), (DAY, DAY + 2))
    ]
    assert counts == [[], [2], [1]]
    assert account.database.usage.failure_reasons((), 0, DAY) == [((), "the program ended with exit code 1", 1)]


def test_failures_are_grouped_by_reason_the_most_frequent_first(account: Account) -> None:
    reasons = ["host node7 died", "exit code 3", "host node8 died", "exit code 4", "host node9.site died"]
    parts = [Part(0, 1, code=1, reason=reason) for reason in reasons]
    put_grid_job(account.database, A, "ada", "pythia", parts)
    (line,) = sum_usage(account.database, ("type",), 0, 10)
    assert line.reasons[0] == ("host # died", 3)
    assert sorted(line.reasons[1:]) == [("exit code 3", 1), ("exit code 4", 1)]


@pytest.mark.parametrize(
    ("reason", "folded"),
    [
        ("the program ended with exit code 3", "the program ended with exit code 3"),
        ("the batch system reports a failure (code 271): job 17 of q@host3", "the batch system reports a failure "
         "(code 271): job # of #"),
        ("cannot be entered: /tmp/samgrid.k3f.aB1: gone\n\x1b[31m", "cannot be entered: # gone #"),
        ("x " * 5000, "x " * 100),
    ],
    ids=["exit code", "ids and hosts", "hostile", "long"],
)  # fmt: skip
def test_a_reason_loses_what_is_particular(reason: str, folded: str) -> None:
    assert fold_reason(reason) == folded


def test_the_table_shows_efficiency_and_reasons(database: Database) -> None:
    table = render_usage(sum_usage(database, ("user",), 0, 101), ("user",))
    lines = [line.split() for line in table.splitlines()]
    assert lines[0][:3] == ["USER", "GRID", "JOBS"]
    assert lines[1] == ["ada", "1", "3", "2", "1", "0", "0:02:30", "0:03:30", "75%"]
    assert "       1 × the program ended with exit code 3" in table


def test_json_and_csv_say_the_same(database: Database) -> None:
    by = ("user", "type")
    lines = sum_usage(database, by, 0, 101)
    ada = json.loads(render_usage_json(lines, by))[0]
    row = next(csv.DictReader(io.StringIO(render_usage_csv(lines, by))))
    assert ada["reasons"] == [{"reason": "the program ended with exit code 3", "local_jobs": 1}]
    assert row["reasons"] == "1 × the program ended with exit code 3"
    assert {name: str(value) for name, value in ada.items() if name != "reasons"} == {
        name: value for name, value in row.items() if name != "reasons"
    }


def test_hostile_owners_are_shown_harmlessly(account: Account) -> None:
    put_grid_job(account.database, A, '\x1b[31m<script>",\n', "pythia", [Part(0, 1)])
    lines = sum_usage(account.database, ("user",), 0, 10)
    for text in (
        render_usage(lines, ("user",)),
        render_usage_csv(lines, ("user",)),
        render_usage_json(lines, ("user",)),
    ):
        assert "\x1b" not in text
    assert len(render_usage(lines, ("user",)).splitlines()) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--by", "user,host"], "no list of user, type, batch"),
        (["--by", "user,user"], "no list of user, type, batch"),
        (["--since", "yesterday"], "is no time"),
        (["--format", "xml"], "invalid choice"),
    ],
)
def test_bad_options_are_one_clear_error(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    with pytest.raises(SystemExit) as raised:
        cli.main(["usage", *arguments])
    printed = capsys.readouterr()
    assert (raised.value.code, printed.out) == (2, "")
    assert message in printed.err


def test_an_account_without_jobs_has_no_usage(samgrid: Samgrid) -> None:
    done = samgrid("usage", "--since", "7d")
    assert (done.returncode, done.stdout, done.stderr) == (0, "no local job ended in this time\n", "")
    assert not samgrid.state.exists()
