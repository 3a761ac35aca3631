"""The questions of docs/questions.md, asked of documents whose answers are known, and of real grid jobs."""

import getpass
import re
import shlex
import tarfile
import time
from dataclasses import replace
from pathlib import Path

import pytest
from lxml import etree

from adapters import Slice
from batch_adapters.states import State
from jobmanager.database.database import Database
from jobmanager.database.grid_job import GridJob
from jobmanager.database.local_job import Evidence, LocalJob
from jobmanager.site.places import make_state_folder
from jobmanager.states.ends import put_outcome
from sandbox.status import PhaseStatus
from tests.extras import need
from tests.forked_samgrid import ForkedSamgrid
from tests.integration.conftest import HANDLERS
from tests.integration.test_experiments import STAND_IN
from tests.samgrid import Samgrid
from tests.waiting import Gate, wait_until

PAGE = Path(__file__).resolve().parents[2] / "docs" / "questions.md"
QUESTIONS = dict(re.findall(r"^\*\*(\d+)\. .*?\n```\n(.*?)\n```$", PAGE.read_text(), re.MULTILINE | re.DOTALL))
"""The command of each question, by its number."""

ANSWERS: dict[str, list[str]] = {
    "1": ["d0gstar 117 250 events", "d0gstar 10 250 events"],
    "2": ["627"],
    "3": ["name done total", "d0gstar 627 1000", "d0reco 400 500"],
    "4": ["first-event events seed", "501 250 9", "751 250 10"],
    "5": ["k3f9zq2m"],
    "6": ["6400.5"],
    "7": ["owner hours", "jan 0.50", "maria 1.78"],
    "8": ["m4x2bb7d", "t1u2v3w4"],
    "9": ["id reason", "k3f9zq2m 2 of 4 local jobs failed"],
    "10": ["since text()", "1970-01-01T00:33:20Z slurm does not answer"],
    "11": ["4711_3", "cpu-limit"],
    "12": ["name failed", "wn102.example.org 1", "wn107.example.org 1"],
    "13": [
        "count text()",
        "1 it took more CPU time than it may",
        "1 the program ended with exit code 1",
    ],
    "14": ["0.6"],
    "15": ["source said time text()", "log failed 152 1970-01-01T00:33:20Z failed"],
    "16": ["4712_1"],
    "17": ["2"],
    "18": ["k3f9zq2m"],
    "19": ["4712_1", "4712_2"],
    "20": ["Priority"],
}
"""What each answer has to show; of rows, the words in their order."""

LONG_ROWS = {"1": 2, "8": 2, "11": 1}
"""Answers with more in their rows, and how many those are."""


def make_local_job(index: int, array: str, state: State, host: str | None = None, started: int = 0) -> LocalJob:
    job = LocalJob.new(index, "slurm", Slice((index - 1) * 250 + 1, 250, 6 + index))
    job.register(f"{array}_{index}", array, 1000)
    job.state = state
    if host is not None:
        job.started_time, job.ended_time = started, started + 100 if state.is_final else None
        job.driver, job.host = "ended" if state.is_final else "started", f"{host}.example.org"
    return job


def put_phases(job: LocalJob, **done: int) -> LocalJob:
    job.put_phases([PhaseStatus(name, number, 250, "events") for name, number in done.items()], 2000)
    return job


def end(job: LocalJob, exit_code: int, cpu_time: float, signal: str | None = None) -> LocalJob:
    job.exit_code, job.signal = exit_code, signal
    job.element.set("cpu-time", f"{cpu_time:.2f}")
    return job


def make_done_and_failed() -> list[LocalJob]:
    jobs = [
        end(make_local_job(1, "4711", State.DONE, "wn101"), 0, 3600),
        end(make_local_job(2, "4711", State.DONE, "wn102"), 0, 1800),
        end(make_local_job(3, "4711", State.DONE, "wn102"), 152, 900.5, "XCPU"),
        end(make_local_job(4, "4711", State.DONE, "wn107"), 1, 0),
    ]
    put_phases(jobs[0], d0gstar=250, d0reco=250)
    put_phases(jobs[1], d0gstar=250, d0reco=150)
    etree.SubElement(jobs[1].element, "attempt", {"number": "1", "state": "failed", "cpu-time": "100"})
    jobs[2].put_evidence(Evidence("log", "failed 152", 2000, "failed"))
    return jobs


def make_under_way() -> list[LocalJob]:
    now = int(time.time())
    waiting = make_local_job(3, "4712", State.PENDING)
    waiting.wait_reason = "Priority"
    return [
        put_phases(make_local_job(1, "4712", State.ACTIVE, "wn101", now - 7 * 3600), d0gstar=117),
        put_phases(make_local_job(2, "4712", State.ACTIVE, "wn103", now - 3600), d0gstar=10),
        waiting,
    ]


def put(database: Database, job: GridJob, request: str, local_jobs: list[LocalJob]) -> None:
    job.put_request([("runjob_requestid", (request,))], Path("/"))
    job.put_slices(len(local_jobs), None, 1)
    with database.transaction():
        database.grid_jobs.put(job)
        for local_job in local_jobs:
            put_outcome(local_job)
        database.local_jobs.put(job.job_id, local_jobs)


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Samgrid:
    """An account with four grid jobs, of which two have ended."""
    folder = tmp_path_factory.mktemp("questions")
    make_state_folder(folder / "state")
    database = Database(folder / "state" / "jobs.db")
    failed = GridJob.new("k3f9zq2m", "dzero_monte_carlo", "maria", "slurm", 1000)
    failed.reason = "2 of 4 local jobs failed"
    failed.end(State.FAILED, 3000)
    put(database, failed, "13669", make_done_and_failed())
    active = GridJob.new("m4x2bb7d", "dzero_monte_carlo", "maria", "slurm", 1001)
    active.state = State.ACTIVE
    put(database, active, "13670", make_under_way())
    done = GridJob.new("p7q8rs9t", "command", "jan", "slurm", 1002)
    done.end(State.DONE, 3000)
    put(database, done, "1", [end(make_local_job(1, "4713", State.DONE, "wn201"), 0, 1800)])
    stuck = GridJob.new("t1u2v3w4", "pythia", "jan", "slurm", 1003)
    stuck.put_problem("slurm does not answer", 2000)
    put(database, stuck, "2", [LocalJob.new(1, "slurm", None)])
    database.close()
    return ForkedSamgrid(folder / "state", folder, {})


SITE = """
[handlers]
modules = ["{handlers}"]
[type.dzero_monte_carlo]
datasets = "{folder}"
[batch.cluster]
based_on = "fork"
# Why one waits: the embedded batch system has no reasons.
jobs = '(?P<id>(?P<token>[a-z][a-z0-9-]*)\\.\\d+) (?P<state>(?P<reason>queued)|\\w+) (?:-|(?P<exit>\\d+)).*'
[batch.silent]
based_on = "fork"
submit.argv = ["/bin/false"]
"""
PRODUCTION = """&(samgrid_type = dzero_monte_carlo)(runjob_requestid = 13669)(runjob_numevts = 4)
 (events_per_local_job = 2)(d0_release_version = p14.07.00)(jobfiles_dataset = jms_set14)"""
LOSSY = "&(samgrid_type = generator)(events = 6)(events_per_local_job = 2)(request_id = 1)(marks = {marks})"
HELD = """&(samgrid_type = command)(executable = /bin/sh)(count = 3)(environment = (GATE "{gate}"))
 (arguments = -c "samgrid-report phase d0gstar 117/250 events; : <$GATE")"""


@pytest.fixture
def real(samgrid: Samgrid, tmp_path: Path, gate: Gate) -> tuple[Samgrid, str, str]:
    """An account whose grid jobs are done, failed, cancelled, under way and kept from going on; which failed, where."""
    folder = tmp_path
    (folder / "samgrid.toml").write_text(SITE.format(handlers=HANDLERS, folder=folder))
    (folder / "jms_set14").mkdir()
    with tarfile.open(folder / "jms_set14" / "mc_runjob.tar", "w") as tar:
        tar.add(STAND_IN, "mc_runjob/mc_runjob")
    settings = {"SAMGRID_CONFIG": str(folder / "samgrid.toml"), "SAMGRID_FORK_SLOTS": "2"}
    samgrid = replace(samgrid, settings={**settings, "SAMGRID_SITE_BATCH_SYSTEM": "cluster"})
    (folder / "fail3").touch()
    assert samgrid("run", "-", stdin=PRODUCTION).returncode == 0
    failed = samgrid.submit(LOSSY.format(marks=folder))
    assert samgrid("watch", failed).returncode == 1
    held = HELD.format(gate=gate.path)
    cancelled = samgrid.submit(held)
    samgrid("cancel", cancelled)
    assert samgrid("watch", cancelled).returncode == 1
    samgrid.submit(held)
    replace(samgrid, settings={**settings, "SAMGRID_SITE_BATCH_SYSTEM": "silent"}).submit(held)
    reached = "boolean(//problem and //phase[@done=117] and //local-job/@wait-reason)"
    wait_until(lambda: samgrid("query", reached).stdout == "true\n")
    return samgrid, failed, samgrid("query", "string(//local-job/@host)").stdout.strip()


# One test for all: with one for each, every worker would make such an account.
def test_every_question_has_an_answer_in_an_account_where_much_has_happened(real: tuple[Samgrid, str, str]) -> None:
    need("saxonche")
    samgrid, failed, host = real
    own = {
        "maria": getpass.getuser(), "wn102.example.org": host, "^wn10[0-9]\\.": f"^{host}", "k3f": failed,
        "slurm": "cluster", "4711_3": f"{failed}-1.3", "PT6H": "PT0S",
    }  # fmt: skip
    unanswered = {}
    for number, question in QUESTIONS.items():
        _, *words = shlex.split(question)
        for name, ours in own.items():
            words = [word.replace(name, ours) for word in words]
        done = samgrid(*words)
        rows = done.stdout.splitlines()[1 if "table" in words else 0 :]
        if (done.returncode, done.stderr) != (0, "") or rows in ([], ["0"], ["NaN"]):
            unanswered[number] = done
    assert unanswered == {}


def test_there_are_twenty_questions_and_an_answer_for_each() -> None:
    assert list(QUESTIONS) == [str(number) for number in range(1, 21)] == list(ANSWERS)


@pytest.mark.parametrize("number", QUESTIONS)
def test_a_question_has_the_answer_that_it_should(asked: Samgrid, number: str) -> None:
    program, *words = shlex.split(QUESTIONS[number])
    if "--xquery" in words:
        need("saxonche")
    assert program == "samgrid"
    done = asked(*words)
    assert (done.returncode, done.stderr) == (0, "")
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    if number in LONG_ROWS:
        rows = lines[1:]
        assert len(rows) == LONG_ROWS[number]
        assert all(word in "\n".join(rows) for word in ANSWERS[number]), rows
    else:
        assert lines == ANSWERS[number]
