"""What ``samgrid explain`` says of a local job: facts, evidence, answers, and the verdict drawn from them."""

import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

from batch_adapters.states import Event, State
from jobmanager.database.database import UnknownJob
from jobmanager.database.grid_job import CredentialEntry
from jobmanager.database.local_job import Evidence, LocalJob
from jobmanager.site.account import Account
from jobmanager.states.changes import put_local_jobs
from jobmanager.states.driver_status import status_file
from jobmanager.states.transitions import apply_event
from jobmanager.views.explaining import explain
from jobmanager.views.text import render_moment
from tests.unit.batch_program import NO, SILENT, BatchProgram, use
from tests.unit.grid_jobs import make_grid_job, make_whole, put

GRID_JOB = "abcdefgh"
TOKEN = f"{GRID_JOB}-1"
T = 1_700_000_000


def add(account: Account, *jobs: LocalJob, grid_job: str = GRID_JOB) -> None:
    """A grid job with these local jobs."""
    job = make_grid_job(grid_job, len(jobs), batch="fake", submitted=T)
    with account.database.transaction():
        account.database.grid_jobs.put(job)
        put_local_jobs(account.database, grid_job, jobs)
    account.places.results(grid_job).mkdir(parents=True)


def submitted(index: int = 1, local_id: str = "17.1", when: int = T, token: str = TOKEN) -> LocalJob:
    job = LocalJob.new(index, "fake", None)
    job.intend(token, when)
    job.register(local_id, "", when)
    return job


def running() -> LocalJob:
    job = submitted()
    apply_event(job, Event(T + 5, "17.1", State.ACTIVE))
    return job


@pytest.fixture
def program(room: Path) -> BatchProgram:
    return BatchProgram(room)


@pytest.fixture
def fake(account: Account, program: BatchProgram) -> Account:
    return use(account, program)


def sections(text: str) -> dict[str, list[str]]:
    """By heading: its lines."""
    found: dict[str, list[str]] = {"": []}
    heading = ""
    for line in text.splitlines():
        if line.endswith(":") and not line.startswith(" "):
            heading = line[:-1]
            found[heading] = []
        else:
            found[heading].append(line.strip())
    return found


# --- what is printed


def test_facts_evidence_and_the_drivers_words_are_printed_in_order(fake: Account) -> None:
    job = submitted(2)
    apply_event(job, Event(T + 5, "17.1", State.ACTIVE))
    apply_event(job, Event(T + 3, "17.1", State.PENDING))
    apply_event(job, Event(T + 9, "17.1", State.DONE, 3))
    add(fake, LocalJob.new(1, "fake", None), job)
    status_file(fake, GRID_JOB, "17.1").write_text(
        f"start {T + 4}\nhost n12\nphase make 117 250 events\nexit 3\ncpu 1.5\nend {T + 8}\n"
    )
    found = sections(explain(fake, "17.1", ask=False))
    facts = dict(re.split("  +", line) for line in found[""])
    assert facts == {
        **{"grid job": GRID_JOB, "number": "2", "batch system": "fake", "token": TOKEN, "local id": "17.1"},
        **{
            "state": "done",
            "exit code": "3",
            "outcome": "failed",
            "cause": "exit-code",
            "reason": "the program ended with exit code 3",
        },
        **{"intended": render_moment(T), "submitted": render_moment(T)},
        **{"started": render_moment(T + 5), "ended": render_moment(T + 9)},
    }
    assert [re.split("  +", line) for line in found["seen"]] == [
        [render_moment(T + 5), "log", "active", "→ active"],
        [render_moment(T + 3), "log", "pending", "→ late: the log had told of a later second"],
        [render_moment(T + 9), "log", "done 3", "→ done"],
    ]
    assert found["driver"] == [
        f"{render_moment(T + 4)} start on n12",
        "phase make: 117 of 250 events",
        "the program's exit code: 3, 1.50 s of CPU time",
        f"{render_moment(T + 8)} end: the outputs are back",
    ]
    assert "fake now" not in found


@pytest.mark.parametrize(
    ("expires", "exit_code", "is_told"),
    [
        pytest.param(T + 8, 3, True, id="expired before it failed"),
        pytest.param(T + 8, 0, False, id="it succeeded"),
        pytest.param(T + 10, 3, False, id="valid until then"),
        pytest.param(None, 3, False, id="nobody knows"),
    ],
)
def test_a_credential_that_had_expired_before_a_failure_is_told(
    fake: Account, expires: float | None, exit_code: int, is_told: bool
) -> None:
    job = running()
    apply_event(job, Event(T + 9, "17.1", State.DONE, exit_code))
    add(fake, job)
    entry = CredentialEntry("x509_user_proxy", "/x", expires=expires)
    fake.database.grid_jobs.change(GRID_JOB, lambda grid_job: grid_job.put_credentials([entry]))
    facts = dict(re.split("  +", line) for line in sections(explain(fake, "17.1", ask=False))[""])
    told = f"had expired at {render_moment(T + 8)}, before it failed"
    assert facts.get("x509_user_proxy") == (told if is_told else None)


def test_without_asking_no_command_is_run(fake: Account, program: BatchProgram) -> None:
    add(fake, running())
    explain(fake, "17.1", ask=False)
    assert program.calls() == []


@pytest.mark.parametrize(
    ("text", "code", "answer", "verdict"),
    [
        pytest.param(f"17.1 RUNS {TOKEN}\n", 0, "17.1 RUNS (active), named", "says so now, too", id="state"),
        pytest.param("", 0, "does not know it", "nor is there a second witness", id="absent"),
        pytest.param("cannot connect", SILENT, "no answer since 20", "nothing changes but by its log", id="silent"),
        pytest.param("what?", 1, "no answer that can be understood", "nothing changes", id="garbled"),
        pytest.param("not you", NO, "no answer that can be understood", "nothing changes", id="refused"),
        pytest.param("17.1 RUNS stranger-1\n", 0, "named stranger-1", "given its id to another job", id="reused"),
        pytest.param("17.1 RUNS stranger\n", 0, "named stranger", "renamed: as long as it does", id="renamed"),
    ],
)
def test_what_the_batch_system_says_now_is_one_of_three_answers(
    fake: Account, program: BatchProgram, text: str, code: int, answer: str, verdict: str
) -> None:
    add(fake, running())
    program.answer("status", text, code)
    found = sections(explain(fake, "17.1", ask=True))
    assert len(found["fake now"]) == 1
    assert answer in found["fake now"][0]
    assert verdict in found["verdict"][0]
    assert program.calls("status") == ["status 17.1"]


def test_one_that_has_ended_has_its_history_record(fake: Account, program: BatchProgram) -> None:
    job = running()
    apply_event(job, Event(T + 9, "17.1", State.FAILED, 4))
    add(fake, job)
    program.answer("history", f"17.2 ENDED {TOKEN} 0\n17.1 BROKE {TOKEN} 4 (node is gone)\n")
    found = sections(explain(fake, "17.1", ask=True))
    assert found["fake's history"] == [f"17.1 BROKE (failed), exit code 4, named {TOKEN}: node is gone"]
    assert found["fake now"] == ["does not know it"]


def test_one_that_lives_costs_one_command(fake: Account, program: BatchProgram) -> None:
    add(fake, running())
    program.answer("status", f"17.1 RUNS {TOKEN}\n")
    explain(fake, "17.1", ask=True)
    assert program.calls() == ["status 17.1"]


@pytest.mark.parametrize(
    ("text", "code", "reason", "way_out"),
    [
        ("queue closed\nnode down\n", 0, ": queue closed; node down", "too."),
        ("", SILENT, "", 'too; it does not say why: "samgrid doctor fake" may.'),
    ],
    ids=["it says why", "no answer"],
)
def test_why_one_waits_is_asked_where_the_queue_does_not_say(
    fake: Account, program: BatchProgram, text: str, code: int, reason: str, way_out: str
) -> None:
    add(fake, submitted())
    program.answer("status", f"17.1 WAITS {TOKEN}\n")
    program.answer("analyze", text, code)
    found = sections(explain(fake, "17.1", ask=True))
    assert found["fake now"] == [f"17.1 WAITS (pending), named {TOKEN}{reason}"]
    assert found["verdict"][0].endswith(way_out)


def test_a_submission_in_doubt_is_looked_for_by_its_token(fake: Account, program: BatchProgram) -> None:
    job = LocalJob.new(1, "fake", None)
    job.intend(TOKEN, T)
    add(fake, job)
    program.answer("find", "".join(f"17.{n} WAITS @\n" for n in range(1, 8)))
    found = sections(explain(fake, f"{GRID_JOB}/1", ask=True))
    assert program.calls() == [f"find {TOKEN}"]
    assert found["fake now"][0] == f"17.1 WAITS (pending), named {TOKEN}"
    assert found["fake now"][-1] == "… and 2 others of that token"
    assert "fake has 7 local jobs of that name, which will be adopted" in found["verdict"][0]


def test_a_batch_system_that_is_not_configured_any_more_is_said_to_be_so(account: Account) -> None:
    add(account, running())
    assert 'unknown batch system "fake"' in explain(account, "17.1", ask=True)


def test_hostile_text_is_printed_as_text(fake: Account, program: BatchProgram) -> None:
    job = running()
    job.put_evidence(Evidence("queue", "RUNS \u202e(x)", T, "active"))
    job.reason = "a\nb\u009b31m"
    add(fake, job)
    program.answer("status", f"17.1 WAITS {TOKEN} (\x1b[2Jgone\x9b)\n")
    status_file(fake, GRID_JOB, "17.1").write_bytes(b"start 1\nproblem \xe2\x80\xae\x1b[2J\n")
    printed = explain(fake, "17.1", ask=True)
    assert all(line.isprintable() for line in printed.splitlines())
    assert "[2Jgone" in printed


def test_a_program_that_is_stopped_on_this_host_is_said_to_be_so(fake: Account, tmp_path: Path) -> None:
    add(fake, running())
    scratch = tmp_path / f"samgrid.{GRID_JOB}.x"
    (scratch / ".samgrid").mkdir(parents=True)

    def say_host(host: str) -> None:
        status_file(fake, GRID_JOB, "17.1").write_text(f"start {T}\nhost {host}\nscratch {scratch}\n")

    say_host(os.uname().nodename)
    program = subprocess.Popen(["/bin/sleep", "600"])
    try:
        (scratch / ".samgrid" / "pid").write_text(f"{program.pid}\n")
        assert "stopped" not in explain(fake, "17.1", ask=False)
        program.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, program.pid, os.WSTOPPED | os.WNOWAIT)
        told = f"the program, process {program.pid}, is stopped: kill -CONT {program.pid} makes it go on"
        assert sections(explain(fake, "17.1", ask=False))["driver"][-1] == told
        say_host("elsewhere")
        assert "stopped" not in explain(fake, "17.1", ask=False), "the number is that of a process there"
        say_host(os.uname().nodename)
        suspended = running()
        apply_event(suspended, Event(T + 6, "17.1", State.SUSPENDED))
        with fake.database.transaction():
            put_local_jobs(fake.database, GRID_JOB, [suspended])
        assert "stopped" not in explain(fake, "17.1", ask=False), "by the batch system"
    finally:
        program.kill()
        program.wait()


def test_a_status_file_that_cannot_be_read_is_said_to_be_so(fake: Account) -> None:
    add(fake, running())
    status_file(fake, GRID_JOB, "17.1").symlink_to("/etc/passwd")
    assert "no regular file" in "\n".join(sections(explain(fake, "17.1", ask=False))["driver"])


# --- which local job is meant


def test_of_an_id_that_was_used_again_all_are_shown_the_newest_first(fake: Account) -> None:
    add(fake, submitted(when=T))
    add(fake, submitted(when=T + 500, token="bbbbbbbb-1"), grid_job="bbbbbbbb")
    assert re.findall("^grid job +(.*)$", explain(fake, "17.1", ask=False), re.MULTILINE) == ["bbbbbbbb", GRID_JOB]


def test_a_local_job_is_named_by_grid_job_and_number_too(fake: Account) -> None:
    add(fake, submitted(1, "17.1"), submitted(2, "17.2"))
    assert sections(explain(fake, "abc/2", ask=False))[""] == sections(explain(fake, "17.2", ask=False))[""]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        pytest.param("99.1", "ID/NUMBER", id="no such id"),
        pytest.param("", "ID/NUMBER", id="empty"),
        pytest.param(f"{GRID_JOB}/2", "it has 1", id="number too high"),
        pytest.param(f"{GRID_JOB}/0", "no local job 0", id="numbers start from 1"),
        pytest.param("zzz/1", "no grid job", id="no such grid job"),
        pytest.param("/1", "no grid job", id="no grid job"),
        pytest.param(f"{GRID_JOB}/²", f"say {GRID_JOB}/NUMBER", id="no number"),
        pytest.param(GRID_JOB, f"say {GRID_JOB}/NUMBER", id="a grid job"),
    ],
)
def test_a_name_that_fits_nothing_is_a_clear_error(fake: Account, name: str, words: str) -> None:
    add(fake, submitted())
    with pytest.raises(UnknownJob, match=re.escape(words)):
        explain(fake, name, ask=False)


def test_the_local_jobs_of_a_sequence_are_those_of_its_steps(fake: Account) -> None:
    add(fake, submitted())
    put(fake.database, make_whole("bbbbbbbb", "one", "two", one=GRID_JOB))
    with pytest.raises(UnknownJob, match=f"such as {GRID_JOB}/1$"):
        explain(fake, "bbbbbbbb", ask=False)
