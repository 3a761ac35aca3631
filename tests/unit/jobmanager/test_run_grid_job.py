"""Accepting and collecting grid jobs: what is refused at once, and what collecting never does."""

import os
import re
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

import sandbox
from adapters import Attribute, Kind, PlannedJob, Step, Value
from batch_adapters.states import State
from handlers.command import CommandAdapter
from jobmanager.completion.collection import collect_grid_job
from jobmanager.database.database import UnknownJob
from jobmanager.database.grid_job import GridJob
from jobmanager.monitor.worker import main as run_worker
from jobmanager.requests import acceptance, time_limit
from jobmanager.requests.acceptance import accept_grid_job
from jobmanager.requests.attributes import DRIVER_VARIABLES, BadRequest
from jobmanager.requests.job_types import (
    KNOWN_TYPES,
    HandlerError,
    HandlerUnreachable,
    find_job_type,
    load_job_types,
    read_job_types,
)
from jobmanager.requests.request_handler import make_adapter
from jobmanager.run_grid_job import cut_grid_job, find_command_lines, run_grid_job
from jobmanager.site.account import Account
from jobmanager.site.settings import SiteSettings, Transfer
from jobmanager.states.registration import create_local_jobs
from jobmanager.submission import packing
from jobmanager.submission.packing import find_entries
from sandbox.files import SandboxRefused
from tests.waiting import wait_until

Given = Sequence[tuple[str, tuple[Value, ...]]]

REQUEST: Given = [("samgrid_type", ("command",)), ("executable", ("/bin/true",))]


def accept_cancelled(account: Account) -> str:
    """A grid job that is ready to be collected: cancelled, its one local job never submitted."""
    job_id = accept_grid_job(account, REQUEST, Path("/"))
    database = account.database
    job = database.grid_jobs.change(job_id, lambda job: job.cancel(1000, "cancelled by a test"))
    create_local_jobs(database, job, [PlannedJob(1, 1)])
    with database.transaction():
        (local_job,) = database.local_jobs.all_of(job_id)
        local_job.state = State.FAILED
        database.local_jobs.put(job_id, [local_job])
    account.places.results(job_id).mkdir(parents=True)
    return job_id


@pytest.mark.parametrize(
    ("given", "folder", "word"),
    [
        pytest.param([("environment", (("A-B", "x"),))], "/", "'A-B' is no variable's name", id="environment"),
        pytest.param([], "/no\x01folder", "request's folder", id="folder that XML cannot hold"),
        pytest.param([("cores", ("64",))], "/", "cores: a local job wants 64, but .* fork has 2 slots", id="slots"),
        pytest.param(
            [("retry_on", ("node-lost", "refused"))],
            "/",
            "retry_on must be any of exit-code, signal, ",
            id="no cause of failure",
        ),
        pytest.param(
            [("retries", ("101",))], "/", "retries must be an integer from 0 to 100 .times., not 101", id="retries"
        ),
        pytest.param([("cores", ("9" * 23,))], "/", "cores must be an integer from 1 to 100000", id="too many cores"),
        pytest.param([("max_wall_time", ("10000001",))], "/", "max_wall_time must be .* to 10000000 ", id="wall time"),
        pytest.param([("stdin", ("n" * 256,))], "/", "stdin: no such file", id="name too long"),
        pytest.param([("directory", ("n" * 256,))], "/", "directory: no such folder", id="name of a folder too long"),
    ],
)
def test_what_could_never_run_is_refused_at_once(account: Account, given: Given, folder: str, word: str) -> None:
    fork = replace(account.configuration.fork, slots=2)
    account = Account(account.places, replace(account.configuration, fork=fork))
    with pytest.raises(BadRequest, match=word):
        accept_grid_job(account, [*REQUEST, *given], Path(folder))
    assert account.database.grid_jobs.overview() == []


def test_a_standard_input_that_cannot_be_read_is_refused_at_once(
    account: Account, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "words"
    file.touch()
    access = os.access
    # Root may read everything.
    monkeypatch.setattr(os, "access", lambda path, *how: Path(path) != file and access(path, *how))
    with pytest.raises(BadRequest, match=f"stdin: {file} cannot be read"):
        accept_grid_job(account, [*REQUEST, ("stdin", ("words",))], tmp_path)


@pytest.mark.parametrize(("owns_process", "limit"), [(True, "; it may take 900 s in all"), (False, "")])
def test_who_submits_is_told_that_the_handler_takes_long(
    account: Account, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, owns_process: bool, limit: str
) -> None:
    account = replace(account, owns_process=owns_process)

    def prepare(*_: object) -> GridJob:
        wait_until(lambda: f"has not answered for 0 s{limit}\n" in caplog.text)
        raise BadRequest(["answered"])

    monkeypatch.setattr(time_limit, "PATIENCE", 0)
    monkeypatch.setattr(acceptance, "prepare_grid_job", prepare)
    with pytest.raises(BadRequest, match="answered"):
        accept_grid_job(account, REQUEST, Path("/"))


SWEPT = [("samgrid_type", ("command",)), ("executable", ("/bin/echo",)), ("parameters", ("points.csv",))]


def test_a_sweep_has_a_local_job_for_each_row_with_its_own_command_and_variables(
    account: Account, tmp_path: Path
) -> None:
    (tmp_path / "points.csv").write_text("mass,tag\n91.2,Z\n80.4,it's W\n")
    given: Given = [*SWEPT, ("arguments", ("{mass}", "{x}")), ("environment", (("TAG", "{tag}"), ("A", "{b}")))]
    assert find_command_lines(account, given, tmp_path) == [
        "1: TAG=Z /bin/echo 91.2 '{x}'",
        """2: TAG='it'"'"'s W' /bin/echo 80.4 '{x}'""",
    ]
    with pytest.raises(BadRequest, match="samgrid_output: no such folder"):
        find_command_lines(account, [*given, ("samgrid_output", ("/nowhere/all.tar",))], tmp_path)
    assert account.database.grid_jobs.overview() == [], "a look makes nothing"
    job_id = accept_grid_job(account, given, tmp_path)
    job = account.database.grid_jobs.get(job_id)
    assert job.count == 2


@pytest.mark.parametrize("rows", ["91.2\n", "80.4\n91.2\n"], ids=["fewer", "others, as many"])
def test_a_sweep_whose_rows_are_others_by_now_is_not_packed(account: Account, tmp_path: Path, rows: str) -> None:
    (tmp_path / "points.csv").write_text("mass\n91.2\n80.4\n")
    given: Given = [*SWEPT, ("arguments", ("{mass}",))]
    job = account.database.grid_jobs.get(accept_grid_job(account, given, tmp_path))
    (tmp_path / "points.csv").write_text(f"mass\n{rows}")
    with pytest.raises(SandboxRefused, match=r"parameters 'points\.csv': .* has changed .*: put it back, or submit"):
        find_entries(make_adapter(account, given, tmp_path), job, cut_grid_job(job))


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ([("count", ("2",)), ("arguments", ("{mass}",))], "count does not go with parameters"),
        ([("arguments", ("{x}", "${mass}"))], r"no argument and no variable has \{mass\}"),
        ([("parameters", ("nothing.csv",))], "parameters: 'nothing.csv' cannot be read"),
        ([("files_per_local_job", ("1",)), ("arguments", ("{mass}",))], "files_per_local_job goes with split_files"),
    ],
    ids=str,
)
def test_a_sweep_that_cannot_be_meant_is_refused(account: Account, tmp_path: Path, given: Given, fault: str) -> None:
    (tmp_path / "points.csv").write_text("mass\n91.2\n")
    with pytest.raises(BadRequest, match=fault):
        accept_grid_job(account, [*SWEPT, *given], tmp_path)


def test_a_name_in_braces_that_is_no_column_is_told_with_the_columns(
    account: Account, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "points.csv").write_text("mass,tag\n91.2,Z\n")
    words = ("{mass}", "{mas}", "--tag={Tag}", "--tag={tag}", "${HOME}", "{ print }", "{1}")
    accept_grid_job(account, [*SWEPT, ("arguments", words)], tmp_path)
    assert [record.message for record in caplog.records if record.levelname == "WARNING"] == [
        "arguments: not replaced: {mas}, {Tag}; local jobs differ by {mass}, {tag}"
    ]


RETRIES: Given = [
    ("retry_on", ("node-lost", "memory-limit")),
    *((name, ("2",)) for name in ("retry_memory_factor", "retry_time_factor")),
    ("retry_elsewhere", ("yes",)),
]


def test_what_is_asked_of_retries_and_changes_nothing_is_told(
    account: Account, caplog: pytest.LogCaptureFixture
) -> None:
    accept_grid_job(account, [*REQUEST, *RETRIES], Path("/"))
    assert [record.message for record in caplog.records if record.levelname == "WARNING"] == [
        "retry_on changes nothing without retries",
        "retry_memory_factor changes nothing without retries",
        "retry_memory_factor changes nothing without max_memory",
        "retry_time_factor changes nothing without retries",
        "retry_time_factor changes nothing without max_wall_time or max_cpu_time",
        "retry_elsewhere changes nothing without retries",
        "retry_elsewhere changes nothing: the batch system fork cannot avoid a host",
    ]
    caplog.clear()
    limits = [("retries", ("1",)), ("max_memory", ("100",)), ("max_cpu_time", ("1",))]
    accept_grid_job(account, [*REQUEST, *RETRIES[:-1], *limits], Path("/"))
    accept_grid_job(account, REQUEST, Path("/"))
    assert not [record for record in caplog.records if record.levelname == "WARNING"]


def test_variables_that_programs_will_not_find_as_they_were_given_are_told(
    account: Account, caplog: pytest.LogCaptureFixture
) -> None:
    given = ("environment", (("COLOUR", "blue"), ("SAMGRID_INDEX", "7"), ("COLOUR", "red"), ("SAMGRID_TUNE", "1")))
    accept_grid_job(account, [*REQUEST, given], Path("/"))
    assert [record.message for record in caplog.records if record.levelname == "WARNING"] == [
        "environment: COLOUR is given 2 times: the last value counts",
        "environment: SAMGRID_INDEX is the job manager's: where it sets one, programs find that",
    ]


def test_the_variables_that_are_the_job_managers_are_those_that_the_driver_sets() -> None:
    program = (Path(sandbox.__file__).parent / "script/program.sh.j2").read_text()
    start = program[program.index("\n    vary\n") :]
    assert set(re.findall(r"(?<=[ ])(SAMGRID_\w+)=", start[: start.index("umask")])) == DRIVER_VARIABLES


def test_what_is_to_be_done_about_failures_stands_in_the_document(account: Account) -> None:
    wishes = [("retries", ("3",)), ("fail_fast", ("yes",)), ("max_pending_time", ("90",))]
    job = account.database.grid_jobs.get(accept_grid_job(account, [*REQUEST, *RETRIES, *wishes], Path("/")))
    assert (job.retries, job.retry_on) == (3, ("node-lost", "memory-limit"))
    assert (job.fail_fast, job.max_pending_minutes) == (True, 90)
    bare = account.database.grid_jobs.get(accept_grid_job(account, REQUEST, Path("/")))
    assert (bare.retries, bare.retry_on, bare.fail_fast, bare.max_pending_minutes) == (0, None, None, None)


def test_a_sweep_of_more_rows_than_the_site_takes_is_refused(account: Account, tmp_path: Path) -> None:
    (tmp_path / "points.csv").write_text("mass\n" + "1\n" * 100_001)
    with pytest.raises(BadRequest, match="makes 100001 local jobs, but this site takes at most 100000"):
        accept_grid_job(account, [*SWEPT, ("arguments", ("{mass}",))], tmp_path)


@pytest.mark.parametrize("pattern", ["*.root", "/*.root"])
def test_files_that_no_file_system_shares_are_not_shared_out(account: Account, tmp_path: Path, pattern: str) -> None:
    (tmp_path / "a.root").touch()
    settings = replace(account.configuration.sandbox, transfer=Transfer.BATCH_SYSTEM)
    site = replace(account.configuration.site, batch_system="condor")
    account = Account(account.places, replace(account.configuration, sandbox=settings, site=site))
    name = f"{tmp_path}{pattern}" if pattern.startswith("/") else pattern
    given = [*SWEPT[:2], ("split_files", (name,)), ("arguments", ("{files}",))]
    if name == pattern:
        with pytest.raises(BadRequest, match="no file system is shared here"):
            accept_grid_job(account, given, tmp_path)
    else:
        assert account.database.grid_jobs.get(accept_grid_job(account, given, tmp_path)).count == 1


def test_a_step_whose_sweep_can_be_read_only_later_is_taken_where_files_are_carried(
    account: Account, tmp_path: Path
) -> None:
    settings = replace(account.configuration.sandbox, transfer=Transfer.BATCH_SYSTEM)
    site = replace(account.configuration.site, batch_system="condor")
    account = Account(account.places, replace(account.configuration, sandbox=settings, site=site))
    make = ("make", ("samgrid_type", "command"), ("executable", "/bin/true"))
    files = ("split_files", str(tmp_path / "*.made"))
    read = ("read", *make[1:], ("input_step", "make"), ("arguments", "{files}"), files)
    given: Given = [("samgrid_type", ("structured",)), ("steps", (make, read))]
    assert len(account.database.grid_jobs.get(accept_grid_job(account, given, tmp_path)).steps) == 2


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ZeroDivisionError("by 0"), "by 0$"),
        (ConnectionRefusedError("refused"), "refused: not accepted now, submit it again later$"),
    ],
)
def test_a_handler_whose_warnings_fail_is_blamed(
    account: Account, monkeypatch: pytest.MonkeyPatch, error: Exception, words: str
) -> None:
    def fail(self: CommandAdapter) -> list[str]:
        raise error

    monkeypatch.setattr(CommandAdapter, "findWarnings", fail)
    with pytest.raises(HandlerError, match=f"^handler command: {type(error).__name__}: {words}"):
        accept_grid_job(account, REQUEST, Path("/"))
    assert account.database.grid_jobs.overview() == []


@pytest.mark.parametrize(
    ("value", "rows", "times", "fault"),
    [
        ("x" * 20_000, 1, 101, r"local job 1 would have 2,02\d,\d+ characters: at most 2,000,000"),
        ("x" * 20_000, 200, 80, r"all local jobs would have 320,\d+,\d+ characters, of 300,000,000 at most"),
    ],
    ids=["of one", "of all"],
)
def test_braces_that_would_make_endless_command_lines_are_refused_before_any_is_made(
    account: Account, tmp_path: Path, value: str, rows: int, times: int, fault: str
) -> None:
    (tmp_path / "points.csv").write_text("a\n" + f"{value}\n" * rows)
    arguments = ("arguments", (" ".join(["{a}"] * times),))
    with pytest.raises(BadRequest, match=fault):
        accept_grid_job(account, [*REQUEST, ("parameters", ("points.csv",)), arguments], tmp_path)


def test_long_command_lines_of_many_local_jobs_are_refused_as_they_are_made(
    account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = [*REQUEST, ("count", ("5",)), ("arguments", ("x" * 2_500,))]
    letters = 5 * (len("/bin/true") + 2_500)
    monkeypatch.setattr(packing, "MOST_LETTERS", letters)
    assert len(find_command_lines(account, request, Path("/"))) == 5
    monkeypatch.setattr(packing, "MOST_LETTERS", letters - 1)
    with pytest.raises(BadRequest, match="all command lines together have more than 12,544 characters: put"):
        find_command_lines(account, request, Path("/"))


def test_a_command_line_that_no_system_runs_is_refused_as_it_is_made(
    account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = [*REQUEST, ("arguments", ("x" * 2_500,))]
    letters = len("/bin/true") + 2_500
    monkeypatch.setattr(packing, "LONGEST_COMMAND_LINE", letters)
    assert len(find_command_lines(account, request, Path("/"))) == 1
    monkeypatch.setattr(packing, "LONGEST_COMMAND_LINE", letters - 1)
    with pytest.raises(BadRequest, match="the command line of local job 1 has 2,509 characters: at most 2,508, so put"):
        find_command_lines(account, request, Path("/"))


class Own(BaseException):
    """What a handler's author may think of."""


def fail_by(error: BaseException) -> Callable[..., object]:
    def fail(self: object, *arguments: object) -> object:
        raise error

    return fail


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)


class Unprintable:
    def __repr__(self) -> str:
        raise SystemExit(3)


@pytest.mark.parametrize(
    ("method", "answer", "words"),
    [
        ("checkErrors", fail_by(Unspeakable()), "Unspeakable, which fails when it is to be shown$"),
        ("checkErrors", fail_by(ValueError("x" * 1_000_000)), "ValueError: x{2000}$"),
        ("checkErrors", lambda self: "one", "TypeError: checkErrors gave 'one', not a list of sentences"),
        ("findWarnings", lambda self: "one", "TypeError: findWarnings gave 'one', not a list of sentences"),
        ("findWarnings", lambda self: [Unprintable()], "SystemExit: 3"),
        ("getSize", lambda self: 10**5000, "getSize gave a number of 16610 bits"),
        ("getNumSubmissionTimes", lambda self: 10**5000, "getNumSubmissionTimes gave a number of 16610 bits"),
        ("prepareWorkArea", fail_by(Unspeakable()), "Unspeakable, which"),
        ("checkErrors", fail_by(KeyboardInterrupt()), "KeyboardInterrupt"),
        ("checkErrors", fail_by(GeneratorExit()), "GeneratorExit"),
        ("checkErrors", fail_by(Own("mine")), "Own: mine"),
        ("checkErrors", lambda self: [["a fault"]], r"TypeError: checkErrors gave \['a fault'\], which is no text"),
        ("__init__", fail_by(Own()), "Own"),
        ("getSize", fail_by(Own()), "Own"),
        ("__init__", lambda self, request, site: None, "its __init__ must take request and site, and call super"),
        ("__init__", lambda self: None, "its __init__ must take request and site, and call super"),
        ("checkErrors", lambda self: None, "TypeError: checkErrors gave None, not a list of sentences"),
        ("getSteps", lambda self: [1], "TypeError: getSteps gave 1, which is no adapters.Step"),
        ("getSteps", lambda self: [Step("../x", ())], "getSteps: steps: a name is letters, .*, not '../x'"),
        ("getSteps", lambda self: [Step(Path("x"), ())], "TypeError"),  # type: ignore[arg-type]
        *(
            ("getSteps", lambda self, request=request: [Step("a", request)], "TypeError: getSteps: the request of 'a'")
            for request in (
                {"samgrid_type": "command"},
                (("samgrid_type", "command"),),
                (("samgrid_type", ("command",)), ("count", (3,))),
            )
        ),
        ("prepareWorkArea", fail_by(Own("mine")), "Own: mine"),
        ("getCommandAndArguments", lambda self, local_job: ["/bin/echo", 1], "TypeError: getCommand.* gave 1, which"),
        ("getCommandAndArguments", lambda self, local_job: "no", "TypeError: .* gave 'no', which is no list of words"),
        (
            "getEnvironment",
            lambda self: [("A", "1")],
            r"TypeError: getEnvironment gave \[\('A', '1'\)\], which is no dict",
        ),
        ("getEnvironment", lambda self: {"A": 1}, "TypeError: getEnvironment gave 1, which is no text"),
        (
            "getEnvironment",
            lambda self: {"A": "é\udcff", "B": "\ud800", "C": "\ud801"},
            r"ValueError: getEnvironment gave '\\ud800', which no program",
        ),
        (
            "getEnvironment",
            lambda self: {"SAMGRID_SEED": "1", "SAMGRID_INDEX": "1"},
            "ValueError: .* SAMGRID_INDEX, SAMGRID_SEED, which the job manager",
        ),
    ],
)
def test_whatever_a_handler_raises_or_gives_is_one_line(
    account: Account, monkeypatch: pytest.MonkeyPatch, method: str, answer: Callable[..., object], words: str
) -> None:
    monkeypatch.setattr(CommandAdapter, method, answer)
    with pytest.raises(HandlerError, match=f"^handler command: {words}"):
        run_grid_job(account, accept_grid_job(account, REQUEST, Path("/")))


def test_a_dry_run_asks_for_the_variables(account: Account, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CommandAdapter, "getEnvironment", lambda self: {"A": 1})
    with pytest.raises(HandlerError, match="getEnvironment gave 1, which is no text"):
        find_command_lines(account, REQUEST, Path("/"))


def test_a_handler_may_not_declare_what_every_job_type_has(account: Account, monkeypatch: pytest.MonkeyPatch) -> None:
    own = (*CommandAdapter.attributes, Attribute("Name", "Number of the run.", Kind.INTEGER, default=1))
    monkeypatch.setattr(CommandAdapter, "attributes", own)
    with pytest.raises(BadRequest, match="job type command declares Name, which every job type has"):
        accept_grid_job(account, REQUEST, Path("/"))


@pytest.mark.parametrize("attribute", ["stdin", "input_files"])
def test_a_request_that_brings_too_much_is_refused_at_once(account: Account, tmp_path: Path, attribute: str) -> None:
    (tmp_path / "sparse").touch()
    os.truncate(tmp_path / "sparse", 10**11)
    with pytest.raises(BadRequest) as refusal:
        accept_grid_job(account, [*REQUEST, (attribute, ("sparse",))], tmp_path)
    (fault,) = refusal.value.faults
    assert "100000000000 bytes together: this site takes 2000000000 bytes ([sandbox] max_input_size)" in fault


def grow(path: Path) -> None:
    os.truncate(path, 10**11)


def make_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize(
    ("attribute", "change", "words"),
    [
        pytest.param("stdin", grow, "this site takes", id="stdin grows"),
        pytest.param("input_files", grow, "this site takes", id="input grows"),
        pytest.param("input_files", make_pipe, "is not a regular file", id="input becomes a pipe"),
        pytest.param("stdin", make_pipe, "stdin: no such file, or no file", id="stdin becomes a pipe"),
    ],
)
def test_what_a_request_brings_is_looked_at_again_and_nothing_half_made_stays(
    account: Account, tmp_path: Path, attribute: str, change: Callable[[Path], None], words: str
) -> None:
    (tmp_path / "file").touch()
    job_id = accept_grid_job(account, [*REQUEST, (attribute, ("file",))], tmp_path)
    change(tmp_path / "file")
    assert run_worker(["--state-dir", str(account.places.root), "submit", job_id]) == 0
    (account.places.work_area(job_id) / "large").mkdir(parents=True)
    (account.places.sandbox(job_id) / "sandbox.tar.tmp").touch()
    assert run_worker(["--state-dir", str(account.places.root), "collect", job_id]) == 0
    job = account.database.grid_jobs.get(job_id)
    assert job.state is State.FAILED
    assert words in str(job.reason)
    left = {path.name for path in account.places.grid_job(job_id).iterdir()}
    assert left == {"log", "results", "worker.lock", "reports.lock", f"{job_id}.tar"}


def test_a_batch_system_that_nobody_knows_is_refused_at_once(account: Account) -> None:
    configuration = replace(account.configuration, site=SiteSettings(batch_system="nosuch"))
    with pytest.raises(BadRequest, match="unknown batch system"):
        accept_grid_job(replace(account, configuration=configuration), REQUEST, Path("/"))


@pytest.mark.parametrize(("word", "value"), [("queue", "d0"), ("project", "d0"), ("gpus", "1"), ("max_disk", "5")])
def test_a_batch_system_without_queues_or_gpus_is_not_asked_for_one(account: Account, word: str, value: str) -> None:
    with pytest.raises(BadRequest, match=f"^{word}: the batch system fork has no option for it: leave it out$"):
        accept_grid_job(account, [*REQUEST, (word, (value,))], Path("/"))
    site = replace(account.configuration.site, batch_system="slurm")
    other = replace(account, configuration=replace(account.configuration, site=site))
    assert accept_grid_job(other, [*REQUEST, (word, (value,))], Path("/"))


def test_a_grid_job_shows_stage_in_while_its_inputs_are_fetched(
    account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = accept_grid_job(account, REQUEST, Path("/"))
    seen = []

    def note_state(*_: object) -> None:
        seen.append(account.database.grid_jobs.get(job_id).state)

    class Full(Exception):
        """As if the disk were full after some of the inputs."""

    def fail(*_: object) -> None:
        note_state()
        raise Full

    monkeypatch.setattr("jobmanager.run_grid_job.submit_local_jobs", note_state)
    monkeypatch.setattr("jobmanager.run_grid_job.pack_sandbox", fail)
    with pytest.raises(Full):
        run_grid_job(account, job_id)
    monkeypatch.setattr("jobmanager.run_grid_job.pack_sandbox", note_state)
    run_grid_job(account, job_id)
    assert seen == [State.STAGE_IN, State.STAGE_IN, State.UNSUBMITTED]


def test_any_fraction_may_be_the_least_success(account: Account) -> None:
    job_id = accept_grid_job(account, [*REQUEST, ("min_success", ("0.000001",))], Path("/"))
    assert account.database.grid_jobs.get(job_id).min_success == 1e-6


def test_everybody_can_write_while_a_handler_reads_the_outputs(
    account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = accept_cancelled(account)

    def summarise(self: CommandAdapter, outputs: Sequence[Path]) -> Mapping[str, str]:
        other = sqlite3.connect(account.places.database, timeout=0, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        other.close()
        return {"written": "meanwhile"}

    monkeypatch.setattr(CommandAdapter, "getSummary", summarise)
    collect_grid_job(account, job_id)
    assert account.database.grid_jobs.get(job_id).summary() == {"written": "meanwhile"}


def hang(outputs: Sequence[Path]) -> Mapping[str, str]:
    while True:
        with suppress(Exception):
            time.sleep(60)


@pytest.mark.parametrize(
    ("summarise", "summary"),
    [
        pytest.param(hang, {}, id="hangs, and catches all it can"),
        pytest.param(lambda outputs: None, {}, id="nothing"),
        pytest.param(lambda outputs: {"events": 7}, {"events": "7"}, id="a number"),
        pytest.param(lambda outputs: {"\x1b": "\udcff"}, {"\ufffd": "\ufffd"}, id="no text"),
    ],
)
def test_a_handler_that_gives_no_summary_keeps_no_grid_job_from_ending(
    account: Account,
    monkeypatch: pytest.MonkeyPatch,
    summarise: Callable[[Sequence[Path]], Mapping[str, str]],
    summary: Mapping[str, str],
) -> None:
    if summarise is hang:
        account = replace(
            account,
            configuration=replace(
                account.configuration, handlers=replace(account.configuration.handlers, time_limit=1)
            ),
        )
    monkeypatch.setattr(CommandAdapter, "getSummary", lambda self, outputs: summarise(outputs))
    job_id = accept_cancelled(account)
    collect_grid_job(account, job_id)
    assert account.database.grid_jobs.get(job_id).state is State.FAILED
    assert account.database.grid_jobs.get(job_id).summary() == summary


def test_a_problem_that_is_over_gets_neither_into_the_tar_nor_into_the_ended_grid_job(account: Account) -> None:
    job_id = accept_cancelled(account)
    collect_grid_job(account, job_id)
    tar = account.places.output(job_id).read_bytes()

    def go_back(job: GridJob) -> None:
        job.state = State.STAGE_OUT
        job.element.attrib.pop("ended")
        job.put_problem("collect: the worker ended with status -9", 1000)

    first = account.database.grid_jobs.change(job_id, go_back)
    assert first.problem
    collect_grid_job(account, job_id)
    ended = account.database.grid_jobs.change(job_id, lambda job: job.put_problem("late", 1000))
    assert b"status -9" not in account.places.output(job_id).read_bytes()
    ended.end(State.FAILED, 1000)
    assert ended.problem is None
    assert tar


@pytest.mark.parametrize("step", ["submit", "cancel", "collect"])
def test_a_grid_job_that_has_ended_stays_as_it_is(account: Account, step: str) -> None:
    job_id = accept_grid_job(account, REQUEST, Path("/"))
    account.database.grid_jobs.change(job_id, lambda job: job.end(State.FAILED, 1000))
    assert run_worker(["--state-dir", str(account.places.root), step, job_id]) == 0
    assert account.database.local_jobs.all_of(job_id) == []
    assert not account.places.output(job_id).exists()


def test_a_grid_job_that_cannot_be_run_says_every_fault_in_one_line(account: Account, tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.touch(mode=0o700)
    request = [("samgrid_type", ("command",)), ("executable", ("program",)), ("stdin", ("/dev/../etc/hostname",))]
    job_id = accept_grid_job(account, request, tmp_path)
    program.unlink()
    account.database.grid_jobs.change(job_id, lambda job: job.put_request([*request, ("stdin", ("no",))], tmp_path))
    assert run_worker(["--state-dir", str(account.places.root), "submit", job_id]) == 0
    reason = account.database.grid_jobs.get(job_id).reason
    assert reason is not None
    assert "; stdin: no such file" in reason
    assert "\n" not in reason


def test_each_of_our_job_types_is_found_without_the_others() -> None:
    ours = {name: kind.__module__ for name, kind in load_job_types([]).items()}
    assert {name: module for name, module in ours.items() if module.startswith("handlers.")} == KNOWN_TYPES


def test_a_package_does_not_replace_a_job_type_that_requests_already_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "importlib.metadata.entry_points",
        lambda group: [EntryPoint("ours", "tests.unit.jobmanager.test_run_grid_job:Imposter", group)],
    )
    assert load_job_types([])["command"] is find_job_type("command", [])


class Imposter(CommandAdapter):
    """A package's handler of a name that is taken."""


@pytest.mark.parametrize(
    ("code", "words"),
    [
        pytest.param("jobType = None", "handler Own of samgrid_handler_own has no jobType", id="type"),
        pytest.param("jobType = 'pythia'; attributes = EVENTS", "its attributes are no sequence of", id="attribute"),
        pytest.param("jobType = 'own'; siteAttributes = ['a']", "its siteAttributes are no sequence of", id="text"),
    ],
)
def test_a_handler_that_nothing_can_work_with_is_told_and_the_others_are_found(
    tmp_path: Path, code: str, words: str
) -> None:
    start = "from adapters import EVENTS\nfrom handlers.command import CommandAdapter\n"
    other = "class Other(CommandAdapter):\n    jobType = 'other'\n"
    (tmp_path / "own.py").write_text(f"{start}class Own(CommandAdapter):\n    {code}\n{other}")
    with pytest.raises(HandlerUnreachable, match=words):
        find_job_type("pythia" if "pythia" in code else "own", [str(tmp_path / "own.py")])
    assert find_job_type("other", [str(tmp_path / "own.py")]).__name__ == "Other"


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("tests.waiting:wait_until", "wait_until .* is neither a module nor a JobAdapter"),
        ("tests.no_such_module", "No module named 'tests.no_such_module'"),
    ],
)
def test_an_entry_point_that_names_no_handler_is_told_and_the_others_are_found(
    monkeypatch: pytest.MonkeyPatch, value: str, words: str
) -> None:
    entry = EntryPoint("ours", value, "samgrid.handlers")
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [entry])
    types, faults = read_job_types([])
    assert types.keys() == KNOWN_TYPES.keys()
    assert re.search(words, str(faults[value]))
    with pytest.raises(HandlerUnreachable, match=words):
        find_job_type("ours", [])


def test_an_id_in_broken_utf8_is_an_unknown_id(account: Account) -> None:
    with pytest.raises(UnknownJob):
        account.database.grid_jobs.find("\udcff")


def test_a_list_of_grid_jobs_needs_neither_xml_nor_a_template_engine(account: Account) -> None:
    heavy = "{'lxml', 'jinja2', 'sh', 'rich', 'lark', 'importlib.metadata', 'tarfile'}"
    code = "from jobmanager.commands.cli import main; import sys; main(sys.argv[1:]);"
    code += f" print(sorted({heavy} & set(sys.modules)))"
    command = [sys.executable, "-c", code, "status", "--state-dir", str(account.places.root)]
    done = subprocess.run(command, cwd=Path(__file__).parents[3], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
