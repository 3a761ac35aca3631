"""Globus' own job manager script runs our Perl module, which runs grid jobs."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from batch_adapters.states import State
from jobmanager.database.database import Database
from jobmanager.database.grid_job import GridJob
from jobmanager.gram.answers import gram_id, read_gram_id
from jobmanager.monitor.client import is_listening, wake_monitor
from jobmanager.requests.rsl import read_rsl
from jobmanager.site.account import open_account
from tests.clients_of_gram import REQUESTS, render_globus_rsl, write_files
from tests.conftest import end_processes_of, processes_of
from tests.gram_interpreter import CONTACT, MODULE, Answer, GramSite, Interpreter, Words, render_request
from tests.samgrid import LAUNCH
from tests.unit.gram_shims.argument_files import render_argument_file
from tests.waiting import SECONDS, wait_until

pytestmark = pytest.mark.usefixtures("gram_packages")


NOISY = """
import os, subprocess, sys
from handlers.command import CommandAdapter

class Noisy(CommandAdapter):
    jobType = "noisy"

    def checkErrors(self):
        if "samgrid-worker" in sys.argv[0]:
            return []
        print("GRAM_SCRIPT_ERROR:99\\n\\n", flush=True)
        sys.stderr.write("noise on stderr\\n")
        os.write(1, b"GRAM_SCRIPT_JOB_STATE:8\\n\\n")
        subprocess.run("echo GRAM_SCRIPT_ERROR:98; echo; cat; echo more >&2", shell=True, close_fds=False)
        subprocess.Popen(["/bin/sh", "-c", "sleep 300; echo GRAM_SCRIPT_ERROR:97", __file__], close_fds=False)
        if os.fork() == 0:
            os.system("sleep 60")
            os._exit(0)
        return super().checkErrors()
"""


@pytest.fixture
def site(tmp_path: Path) -> Iterator[GramSite]:
    """A host of its own; whatever works on it is ended after the test."""
    (tmp_path / "noisy.py").write_text(NOISY)
    site = GramSite(
        tmp_path,
        {
            "SAMGRID_SANDBOX_SCRATCH_FOLDER": str(tmp_path / "scratch"),
            "SAMGRID_HANDLERS_MODULES": str(tmp_path / "noisy.py"),
            "SAMGRID_FORK_CANCEL_GRACE": "1",
        },
    )
    site.install()
    yield site
    end_processes_of(tmp_path)


@pytest.fixture
def interpreter(site: GramSite) -> Iterator[Interpreter]:
    """One interpreter, which answers everything in turn."""
    with site.start() as interpreter:
        yield interpreter


def submit(interpreter: Interpreter, site: GramSite, uniqid: str, **attributes: Words) -> str:
    """The id that GRAM is told of a grid job that was accepted."""
    answer = dict(interpreter.ask("submit", **site.describe(uniqid, **attributes)))
    assert answer.pop("JOB_STATE") == "1"
    job_id = answer.pop("JOB_ID")
    assert answer == {}
    return job_id


def poll_until(interpreter: Interpreter, site: GramSite, job_id: str, *states: str) -> Answer:
    """The first answer that tells one of these states."""
    answer: Answer = []

    def is_there() -> bool:
        nonlocal answer
        answer = interpreter.ask("poll", **site.describe("", jobid=[job_id]))
        return dict(answer).get("JOB_STATE") in states

    wait_until(is_there)
    return answer


def kill_monitor(site: GramSite) -> None:
    """Kill it, and wait until nobody listens any more: that takes a moment longer."""
    for pid in processes_of(site.folder, "samgrid-monitor"):
        os.kill(pid, signal.SIGKILL)
    account = open_account(str(site.state), create=False)
    wait_until(lambda: not is_listening(account))


def grid_jobs(site: GramSite) -> list[GridJob]:
    database = Database(site.state / "jobs.db")
    found = [database.grid_jobs.get(row.id) for row in database.grid_jobs.overview()]
    database.close()
    return found


def test_two_jobs_live_and_end_one_after_the_other_in_one_interpreter(interpreter: Interpreter, site: GramSite) -> None:
    first = submit(interpreter, site, "1.1")
    assert poll_until(interpreter, site, first, "8") == [("JOB_STATE", "8")]
    second = submit(interpreter, site, "1.2", executable=["/bin/false"], samgridtype=["command"])
    answer = dict(poll_until(interpreter, site, second, "4"))
    assert (answer["JOB_STATE"], answer["ERROR"]) == ("4", "17")
    assert f"{read_gram_id(second)}.tar" in answer["GT3_FAILURE_MESSAGE"]
    # Where GRAM reads events, it knows no id then.
    assert interpreter.ask("stage_out", **site.describe("1.1", jobid=[""])) == []
    failure = interpreter.ask("stage_out", **site.describe("1.2", jobid=[""]))
    assert failure == [("GT3_FAILURE_MESSAGE", answer["GT3_FAILURE_MESSAGE"]), ("ERROR", "17")]
    assert first != second
    nothing = {"filestageout": [["/dev/null", "file:///dev/null"]]}
    assert interpreter.ask("stage_out", **site.describe("1.2", jobid=[""], **nothing)) == failure
    staged = [("STAGED_OUT", "/dev/null file:///dev/null")]
    assert interpreter.ask("stage_out", **site.describe("1.1", jobid=[""], **nothing)) == staged


def test_no_interpreter_of_python_starts_on_a_poll(interpreter: Interpreter, site: GramSite) -> None:
    job_id = submit(interpreter, site, "1.1", executable=["/bin/sleep"], arguments=["999"])
    poll_until(interpreter, site, job_id, "2")
    with site.start() as other:
        assert other.ask("poll", **site.describe("", jobid=[job_id])) == [("JOB_STATE", "2")]
        assert children_of(other.process.pid) == []


def children_of(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(word) for word in text.split()]


def test_a_poll_of_what_has_ended_starts_nothing(interpreter: Interpreter, site: GramSite) -> None:
    job_id = submit(interpreter, site, "1.1")
    poll_until(interpreter, site, job_id, "8")
    kill_monitor(site)
    with site.start() as other:
        assert other.ask("poll", **site.describe("", jobid=[job_id])) == [("JOB_STATE", "8")]
        assert children_of(other.process.pid) == []


HOSTILE: dict[str, list[bytes]] = {
    "quotes": [b"it's", b'say "hi"', b"\\", b"\\\\'", b"'\\''"],
    "dollars": [b"$HOME", b"@ENV", b"$(id)", b"`id`", b"%s"],
    "blanks": [b"", b" ", b"a  b", b"\t", b"a\nb", b"\r", b"trailing\n"],
    "bytes": [b"\xff\xfe", b"\x01\x7f", "ä€😀".encode(), b"\xc3", b"\xe2\x80\xa8"],
    "json": [b'"}', b"\\u0041", b"[1]", b"null"],
    "long": [b"x" * 30_000],
}


@pytest.mark.parametrize("words", HOSTILE.values(), ids=HOSTILE.keys())
def test_every_word_arrives_byte_for_byte(interpreter: Interpreter, site: GramSite, words: list[bytes]) -> None:
    pairs: list[Words] = [[f"V{number}", word] for number, word in enumerate(words)]
    job_id = submit(interpreter, site, "1.1", arguments=words, environment=pairs)
    (job,) = grid_jobs(site)
    request = dict(job.request())
    assert gram_id(job.job_id) == job_id
    assert [os.fsencode(str(word)) for word in request["arguments"]] == words
    # Globus adds a PATH of its own where there is none.
    variables = tuple((f"V{number}", os.fsdecode(word)) for number, word in enumerate(words))
    assert request["environment"] == (*variables, ("PATH", "/bin:/usr/bin"))


@pytest.mark.parametrize(
    ("attributes", "error"),
    [
        ({"executable": ["/no\nwhere\n"]}, "5"),
        ({"environment": [["A", ["b", ["c"]]]]}, "54"),
        ({"samgridtype": ["command"], "frobnicate": ["a\nGRAM_SCRIPT_JOB_ID:1\n"]}, "134"),
        ({"directory": ["/nowhere"]}, "4"),
        ({"count": ["0"]}, "14"),
    ],
    ids=["executable", "nested", "own attribute", "directory", "count"],
)
def test_a_refusal_is_a_message_and_then_an_error(
    interpreter: Interpreter, site: GramSite, attributes: dict[str, Words], error: str
) -> None:
    answer = interpreter.ask("submit", **site.describe("1.1", **attributes))
    assert [key for key, _ in answer] == ["GT3_FAILURE_MESSAGE", "ERROR"]
    assert answer[1][1] == error
    submit(interpreter, site, "1.2")


def test_nothing_but_answers_gets_through_whatever_a_handler_prints(interpreter: Interpreter, site: GramSite) -> None:
    first = submit(interpreter, site, "1.1", samgridtype=["noisy"])
    second = submit(interpreter, site, "1.2", samgridtype=["noisy"])
    # Nobody waited for the handlers' children.
    assert len(processes_of(site.folder, "sleep 300")) == 2
    assert first != second
    poll_until(interpreter, site, first, "8")
    log = (site.state / "gram.log").read_text()
    assert "noise on stderr" in log
    assert "GRAM_SCRIPT_ERROR:98" in log


def test_what_stays_running_holds_no_descriptor_of_grams(site: GramSite) -> None:
    reading, writing = os.pipe()
    os.set_inheritable(writing, True)
    with site.start() as interpreter:
        submit(interpreter, site, "1.1", executable=["/bin/sleep"], arguments=["999"], samgridtype=["noisy"])
        wait_until(lambda: bool(processes_of(site.folder, "samgrid-fork", "serve")))
        theirs = {str(Path(f"/proc/{interpreter.process.pid}/fd/{number}").readlink()) for number in (0, 1)}
        theirs.add(str(Path(f"/proc/self/fd/{writing}").readlink()))
        ours = [pid for pid in processes_of(site.folder) if pid not in (interpreter.process.pid, os.getpid())]
        assert len(ours) >= 3
        for pid in ours:
            assert not theirs & descriptors_of(pid), Path(f"/proc/{pid}/cmdline").read_bytes()
    os.close(reading)
    os.close(writing)


def descriptors_of(pid: int) -> set[str]:
    folder = Path(f"/proc/{pid}/fd")
    try:
        return {str(path.readlink()) for path in folder.iterdir()}
    except FileNotFoundError:  # it has ended, or closed one, meanwhile
        return set()


def test_the_program_ends_with_its_interpreter(site: GramSite) -> None:
    with site.start() as interpreter:
        submit(interpreter, site, "1.1")
        assert processes_of(site.folder, "samgrid-gram", "serve")
    wait_until(lambda: not processes_of(site.folder, "samgrid-gram", "serve"))


def test_one_request_is_one_grid_job_however_often_it_comes(site: GramSite) -> None:
    interpreters = [site.start() for _ in range(3)]
    request = site.describe("1.1", executable=["/bin/sleep"], arguments=["999"])
    for _ in range(2):
        for interpreter in interpreters:
            interpreter.send(render_request("submit", request))
    job_ids = {dict(interpreter.read())["JOB_ID"] for _ in range(2) for interpreter in interpreters}
    for interpreter in interpreters:
        interpreter.__exit__(None, None, None)
    assert [gram_id(job.job_id) for job in grid_jobs(site)] == list(job_ids)


@pytest.mark.parametrize("delay", [0.0, 0.03, 0.1, 0.2, 0.3], ids=lambda delay: f"after {delay:g} s")
def test_a_submit_that_is_killed_and_comes_again_is_one_grid_job(site: GramSite, delay: float) -> None:
    request = site.describe("1.1")
    with site.start() as killed:
        killed.send(render_request("submit", request))
        time.sleep(delay)
    for pid in processes_of(site.folder, "samgrid-gram"):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    with site.start() as interpreter:
        job_id = dict(interpreter.ask("submit", **request))["JOB_ID"]
        poll_until(interpreter, site, job_id, "8")
    assert [gram_id(job.job_id) for job in grid_jobs(site)] == [job_id]


PUBLISHES = """
import os, sys
def at_publication(act, link=os.link):
    return lambda source, target: link(source, target) if str(target).endswith("/active-host") else act()
"""
"""What is linked is the first answer; but for the note of the active host, which is made before."""


def test_a_request_whose_answer_was_lost_twice_is_cancelled_as_gram_was_told(tmp_path: Path) -> None:
    # The first answer is published after the request was accepted, and before GRAM's is given.
    (tmp_path / "sitecustomize.py").write_text(
        f"{PUBLISHES}if 'samgrid-gram' in sys.orig_argv: os.link = at_publication(lambda: os.kill(os.getpid(), 9))\n"
    )
    site = GramSite(tmp_path, {"PYTHONPATH": str(tmp_path)})
    site.install()
    ran = tmp_path / "ran"
    try:
        with site.start() as interpreter:
            answer = interpreter.ask("submit", **site.describe("17.1", executable=["/bin/touch"], arguments=[str(ran)]))
            assert [key for key, _ in answer] == ["GT3_FAILURE_MESSAGE", "ERROR"]
        (job,) = grid_jobs(site)
        assert not job.state.is_final
        account = open_account(str(site.state), create=False)
        wake_monitor(account)
        wait_until(lambda: account.database.grid_jobs.get(job.job_id).state is State.FAILED)
        assert "no answer to it came" in str(account.database.grid_jobs.get(job.job_id).reason)
        assert not ran.exists()
        assert list((site.state / "withdrawn").iterdir()) == []
    finally:
        end_processes_of(tmp_path)


KILLS_ITS_INTERPRETER = f"""{PUBLISHES}
def kill():
    interpreter = open(f"/proc/{{os.getppid()}}/stat").read().rpartition(")")[2].split()[1]
    os.kill(int(interpreter), 9)
if "samgrid-gram" in sys.orig_argv:
    os.link = at_publication(kill)
"""
"""When the request has been accepted, and before GRAM has its answer."""


def test_of_an_interpreter_that_was_killed_after_it_asked_nothing_runs(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(KILLS_ITS_INTERPRETER)
    site = GramSite(tmp_path, {"PYTHONPATH": str(tmp_path)})
    site.install()
    ran, mark = tmp_path / "ran", site.state / "withdrawn" / "1.1"
    try:
        with site.start() as interpreter:
            request = site.describe("1.1", executable=["/bin/touch"], arguments=[str(ran)])
            interpreter.send(render_request("submit", request))
            interpreter.process.wait()
        wait_until(lambda: not processes_of(tmp_path, "samgrid-gram"))
        (job,) = grid_jobs(site)
        account = open_account(str(site.state), create=False)
        wake_monitor(account)
        wait_until(lambda: is_listening(account))
        assert account.database.local_jobs.all_of(job.job_id) == []
        os.utime(mark)  # its time has come
        wait_until(lambda: account.database.grid_jobs.get(job.job_id).state is State.FAILED)
        assert "no answer to it came" in str(account.database.grid_jobs.get(job.job_id).reason)
        assert not ran.exists()
        assert not mark.exists()
    finally:
        end_processes_of(tmp_path)


def test_a_program_that_was_killed_between_two_calls_is_started_again(interpreter: Interpreter, site: GramSite) -> None:
    submit(interpreter, site, "1.1")
    for pid in processes_of(site.folder, "samgrid-gram", "serve"):
        os.kill(pid, signal.SIGKILL)
    submit(interpreter, site, "1.2")
    assert len(grid_jobs(site)) == 2


def test_a_poll_starts_a_monitor_where_it_was_killed(interpreter: Interpreter, site: GramSite) -> None:
    job_id = submit(interpreter, site, "1.1", executable=["/bin/sleep"], arguments=["3"])
    poll_until(interpreter, site, job_id, "2")
    kill_monitor(site)
    assert interpreter.ask("poll", **site.describe("", jobid=[job_id])) == [("JOB_STATE", "2")]
    wait_until(lambda: bool(processes_of(site.folder, "samgrid-monitor")))
    poll_until(interpreter, site, job_id, "8")


def test_a_poll_does_not_wait_for_who_writes_the_database(interpreter: Interpreter, site: GramSite) -> None:
    job_id = submit(interpreter, site, "1.1", executable=["/bin/sleep"], arguments=["999"])
    poll_until(interpreter, site, job_id, "2")
    for pid in processes_of(site.folder, "samgrid-monitor"):
        os.kill(pid, signal.SIGSTOP)
    (site.state / "gram" / read_gram_id(job_id)).unlink()
    database = Database(site.state / "jobs.db")
    with database.transaction():
        assert interpreter.ask("poll", **site.describe("", jobid=[job_id])) == [("JOB_STATE", "2")]
    database.close()


@pytest.mark.parametrize("job_id", ["zzzzzzzz", "", "../state", "a;b", "a\nb"])
def test_of_an_unknown_grid_job_nothing_changes(interpreter: Interpreter, site: GramSite, job_id: str) -> None:
    submit(interpreter, site, "1.1")
    assert interpreter.ask("poll", **site.describe("", jobid=[job_id], cachetag=[""], environment=[])) == []
    assert interpreter.ask("cancel", **site.describe("9.9", jobid=[job_id or "zzzzzzzz"])) == [("ERROR", "31")]


def test_where_the_state_folder_has_gone_nothing_changes_and_nothing_is_made(
    interpreter: Interpreter, site: GramSite
) -> None:
    job_id = submit(interpreter, site, "1.1", executable=["/bin/sleep"], arguments=["999"])
    poll_until(interpreter, site, job_id, "2")
    site.state.rename(site.folder / "elsewhere")
    try:
        assert interpreter.ask("poll", **site.describe("", jobid=[job_id])) == []
        assert interpreter.ask("cancel", **site.describe("", jobid=[job_id])) == [("ERROR", "31")]
        assert not site.state.exists()
    finally:
        (site.folder / "elsewhere").rename(site.state)
    assert interpreter.ask("poll", **site.describe("", jobid=[job_id])) == [("JOB_STATE", "2")]


@pytest.mark.parametrize("command", ["cancel", "signal"])
def test_a_cancelled_grid_job_is_failed_and_its_local_jobs_end(
    interpreter: Interpreter, site: GramSite, command: str
) -> None:
    mark = str(site.folder / "the program")
    job_id = submit(interpreter, site, "1.1", executable=["/bin/sh"], arguments=["-c", "sleep 999; :", mark])
    poll_until(interpreter, site, job_id, "2")
    wish = site.describe("", jobid=[job_id], signal=["1"], signalarg=["x"])
    assert interpreter.ask(command, **wish) == [("JOB_STATE", "4")]
    wait_until(lambda: dict(interpreter.ask("poll", **wish)).get("ERROR") == "8")
    assert not processes_of(Path("/bin/sh"), mark)
    assert interpreter.ask(command, **wish) == [("JOB_STATE", "4")]


def test_a_signal_suspends_and_another_resumes(interpreter: Interpreter, site: GramSite) -> None:
    beats = site.folder / "beats"
    script = f"touch '{beats}'$SAMGRID_INDEX; while :; do echo beat >>'{beats}'; sleep 0.1; done"
    job_id = submit(interpreter, site, "1.1", executable=["/bin/sh"], arguments=["-c", script], count=["2"])
    poll_until(interpreter, site, job_id, "2")
    # What has not begun cannot be suspended.
    wait_until(lambda: len(list(site.folder.glob("beats[12]"))) == 2)
    suspend, resume = (site.describe("", jobid=[job_id], signal=[number], signalarg=["x"]) for number in "23")
    assert interpreter.ask("signal", **suspend) == [("JOB_STATE", "16")]
    poll_until(interpreter, site, job_id, "16")
    size = beats.stat().st_size
    time.sleep(0.5)
    assert beats.stat().st_size == size
    assert interpreter.ask("signal", **suspend) == [("JOB_STATE", "16")]
    assert interpreter.ask("signal", **resume) == [("JOB_STATE", "2")]
    poll_until(interpreter, site, job_id, "2")
    wait_until(lambda: beats.stat().st_size > size)
    assert interpreter.ask("signal", **suspend) == [("JOB_STATE", "16")]
    # What is suspended can be cancelled.
    assert interpreter.ask("cancel", **suspend) == [("JOB_STATE", "4")]
    poll_until(interpreter, site, job_id, "4")


@pytest.mark.parametrize(("number", "error"), [("2", "107"), ("3", "107"), ("4", "107"), ("77", "108")])
def test_signals_that_cannot_be_passed_on_are_refused_with_nothing_but_a_number(
    interpreter: Interpreter, site: GramSite, number: str, error: str
) -> None:
    job_id = submit(interpreter, site, "1.1")
    poll_until(interpreter, site, job_id, "8")
    wish = site.describe("", jobid=[job_id], signal=[number], signalarg=["x"])
    assert interpreter.ask("signal", **wish) == [("ERROR", error)]


def test_without_a_program_each_call_has_its_answer(tmp_path: Path) -> None:
    site = GramSite(tmp_path, {})
    site.install(python="/nonexistent/python")
    with site.start() as interpreter:
        refusal = interpreter.ask("submit", **site.describe("1.1"))
        assert [key for key, _ in refusal] == ["GT3_FAILURE_MESSAGE", "ERROR"]
        assert refusal[1][1] == "17"
        assert interpreter.ask("poll", **site.describe("", jobid=["aaaaaaaa"])) == []
        assert interpreter.ask("cancel", **site.describe("", jobid=["aaaaaaaa"])) == [("ERROR", "31")]
        assert interpreter.ask("signal", **site.describe("", jobid=["aaaaaaaa"])) == [("ERROR", "107")]
    assert "/nonexistent/python cannot be started" in (site.state / "gram.log").read_text()


def test_the_one_shot_form_submits_polls_and_cancels(site: GramSite) -> None:
    answer = dict(site.run_once("submit", **site.describe("1.1", executable=["/bin/sleep"], arguments=["999"])))
    assert answer.pop("JOB_STATE") == "1"
    job = site.describe("1.1", jobid=[answer["JOB_ID"]])
    wait_until(lambda: site.run_once("poll", **job) == [("JOB_STATE", "2")])
    assert site.run_once("cancel", **job) == [("JOB_STATE", "4")]
    assert len(grid_jobs(site)) == 1


def test_each_call_is_one_line_of_the_log(interpreter: Interpreter, site: GramSite) -> None:
    job_id = submit(interpreter, site, "1.1")
    poll_until(interpreter, site, job_id, "8")
    interpreter.ask("cancel", **site.describe("1.1", jobid=[job_id]))
    lines = [line for line in (site.state / "gram.log").read_text().splitlines() if f"contact={CONTACT}" in line]
    calls = [line.split()[2] for line in lines]
    assert calls[0] == "submit"
    assert calls[-1] == "cancel"
    assert set(calls[1:-1]) == {"poll"}
    for line in lines:
        assert re.search(rf" job={job_id} seconds=\d+\.\d+ ", line)
        assert " answer=JOB_" in line
    assert (site.state / "gram.log").stat().st_mode & 0o777 == 0o600


# the scripts of GRAM 1.5


def run_script(site: GramSite, script: str, *files: Path) -> list[str]:
    """What a script prints; whatever it leaves running must not hold its standard output."""
    command = [sys.executable, "-P", str(LAUNCH), f"globus-script-samgrid-{script}"]
    done = subprocess.run(
        [*command, "--state-dir", str(site.state), *map(str, files)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**site.environment(), **site.settings},
        timeout=SECONDS,
        check=False,
    )
    return done.stdout.splitlines()


def write_argument_file(site: GramSite, program: str, *words: str) -> Path:
    file = site.folder / "gramiX1"
    file.write_text(
        render_argument_file(
            {"directory": str(site.home), "program": program, "stdin": "/dev/null"},
            {"args": words, "env": ["HOME", str(site.home)]},
            {"grami_count": "1", "grami_job_type": "2", "grami_max_time": "0", "grami_uniq_id": "77"},
        )
    )
    return file


def test_the_old_scripts_submit_poll_and_remove(site: GramSite) -> None:
    file = write_argument_file(site, "/bin/sleep", "999")
    said = run_script(site, "submit", file)
    assert said[-1] == "GRAM_SCRIPT_SUCCESS:1"
    job_id = said[0].removeprefix("GRAM_SCRIPT_JOB_ID:")
    assert f"grami_job_id='{job_id}'\n" in file.read_text()
    assert run_script(site, "submit", file)[0] == said[0]
    wait_until(lambda: run_script(site, "poll", file) == ["GRAM_SCRIPT_SUCCESS:2"])
    # "No change" is the state that was told last.
    site.state.rename(site.folder / "elsewhere")
    assert run_script(site, "poll", file) == ["GRAM_SCRIPT_SUCCESS:2"]
    shutil.move(site.folder / "elsewhere", site.state)
    wish = site.folder / "grami_signalX2"
    wish.write_text("grami_signal_arg='now'\ngrami_signal='2'\n")
    assert run_script(site, "signal", file, wish) == ["GRAM_SCRIPT_SUCCESS:16"]
    assert run_script(site, "rm", file) == ["GRAM_SCRIPT_SUCCESS:4"]
    assert [gram_id(job.job_id) for job in grid_jobs(site)] == [job_id]


@pytest.mark.parametrize("job_type", REQUESTS)
def test_the_old_scripts_reach_every_type(site: GramSite, job_type: str) -> None:
    write_files(site.folder / "files")
    file = write_argument_file(site, "/nowhere/of/the/client", "-v")
    rsl = "&" + render_globus_rsl(job_type, site.folder / "files")
    relations = read_rsl(rsl)
    words = {relation.name: [word for word in relation.values if isinstance(word, str)] for relation in relations}
    # What has parentheses is one word, and so may be the rest.
    has_parentheses = any(words[relation.name] != list(relation.values) for relation in relations)
    lists = {"samgrid_rsl": [rsl]} if has_parentheses else words
    with file.open("a") as sink:
        sink.write(render_argument_file(lists={f"scheduler_specific_{name}": said for name, said in lists.items()}))
    said = run_script(site, "submit", file)
    assert said[-1] == "GRAM_SCRIPT_SUCCESS:1", (site.state / "gram.log").read_text()
    (job,) = grid_jobs(site)
    assert job.job_type == job_type
    assert job.origin is not None
    assert job.origin.unused == ("executable", "arguments")
    # On a busy machine it may be done by then.
    assert run_script(site, "rm", file)[0] in ("GRAM_SCRIPT_SUCCESS:4", "GRAM_SCRIPT_SUCCESS:8")


def test_a_poll_without_an_id_is_an_error(site: GramSite) -> None:
    file = write_argument_file(site, "/bin/true")
    assert run_script(site, "submit", file)[-1] == "GRAM_SCRIPT_SUCCESS:1"
    file.write_text(file.read_text().replace("grami_job_id=", "grami_job_id='' #"))
    assert run_script(site, "poll", file) == ["GRAM_SCRIPT_ERROR:21"]


def test_another_job_of_the_same_pid_is_another_grid_job(site: GramSite) -> None:
    first = write_argument_file(site, "/bin/true")
    second = first.with_name("gramiX2")
    second.write_text(first.read_text())
    assert run_script(site, "submit", first) != run_script(site, "submit", second)


@pytest.mark.parametrize("text", ["", "grami_program='/bin/x"], ids=["empty", "cut off"])
def test_the_old_scripts_refuse_what_is_no_argument_file(site: GramSite, text: str) -> None:
    file = site.folder / "gramiX1"
    file.write_text(text)
    assert run_script(site, "submit", file) == ["GRAM_SCRIPT_ERROR:21"]
    assert run_script(site, "submit", file.with_name("missing")) == ["GRAM_SCRIPT_ERROR:21"]


# the module as a file


def test_the_module_compiles_and_has_no_faults() -> None:
    done = subprocess.run(["perl", "-c", str(MODULE)], capture_output=True, text=True, check=False)
    assert done.stderr.strip() == f"{MODULE} syntax OK"
    lines = MODULE.read_text().splitlines()
    assert lines.index("use Globus::GRAM::JobManager;") < next(
        number for number, line in enumerate(lines) if line.startswith("package ")
    )
    assert lines[-1] == "1;"


def test_the_module_loads_no_other_modules_than_its_base_class() -> None:
    code = "print join ' ', sort keys %INC"
    base = ["-MGetopt::Long", "-MGlobus::GRAM::JobDescription", "-MGlobus::GRAM::JobManager", "-MGlobus::Core::Config"]
    loaded = [
        subprocess.run(["perl", *modules, "-e", code], capture_output=True, text=True, check=True).stdout.split()
        for modules in (base, [*base, f"-Mlib={MODULE.parent}", "-Msamgrid"])
    ]
    assert set(loaded[1]) - set(loaded[0]) == {"samgrid.pm", "lib.pm"}


@pytest.mark.skipif(shutil.which("perlcritic") is None, reason="libperl-critic-perl is not installed")
def test_perlcritic_finds_nothing() -> None:
    done = subprocess.run(["perlcritic", "--severity", "4", str(MODULE)], capture_output=True, text=True, check=False)
    assert done.stdout.endswith("source OK\n"), done.stdout
