"""The embedded batch system as a whole: its commands, its processes, and what their deaths may not change."""

import os
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from batch_adapters.fork.processes import Process, read_boot, read_process
from batch_adapters.fork.records import render_claim
from batch_adapters.fork.spool import HISTORY_SECONDS, lock_file, starter_lock
from batch_adapters.fork.submission import Submission, render_submission
from batch_adapters.launch import command_line
from batch_adapters.states import Event, State, read_event
from tests.conformance.spool import Job, query_spool, run_forked, wait_for_ends
from tests.waiting import Gate, wait_until

SECONDS = 60.0
CANCELLED = f"cancelled-outside by {os.geteuid()}"


@dataclass(frozen=True)
class Answer:
    """What a query says of one job."""

    native: str
    code: str
    why: str = ""
    """Where the queue ended it."""


class System:
    """One spool and its commands."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.spool = folder / "fork"
        self.slots = 4
        self.grace = 0.3
        self.gate = Gate(folder / "go")

    def call(self, *words: str, given: str = "") -> subprocess.CompletedProcess[str]:
        options = ["--spool", str(self.spool), "--slots", str(self.slots), "--grace", str(self.grace)]
        # Reading to the end of output would not return before a process did that had inherited it.
        return run_forked([*options, *words], given)

    def run(self, *words: str, given: str = "") -> str:
        done = self.call(*words, given=given)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    def submit(self, token: str, last: int, script: str, *options: str) -> str:
        where = ["--token", token, "--array", f"1-{last}", "--directory", str(self.folder), *options]
        return self.run("submit", *where, "--", "/bin/sh", "-c", script)

    def query(self, *words: str) -> dict[str, Answer]:
        lines = [line.split(" ", 3) for line in self.run("query", *words).splitlines()]
        return {local_id: Answer(*said) for local_id, *said in lines}

    def jobs(self) -> list[Job]:
        """What a query says, for those who wait for something."""
        return query_spool(self.spool, self.slots, self.grace)

    def wait_for_end(self) -> dict[str, Answer]:
        wait_for_ends(self.spool, self.slots, self.grace)
        return self.query()

    def events(self) -> list[Event]:
        lines = (self.spool / "events").read_text().splitlines(keepends=True)
        events = [read_event(line) for line in lines]
        assert None not in events
        return [event for event in events if event is not None]

    def ends(self) -> dict[str, set[tuple[State, int]]]:
        ends: dict[str, set[tuple[State, int]]] = {}
        for event in self.events():
            if event.state.is_final:
                ends.setdefault(event.local_id, set()).add((event.state, event.exit_code))
        return ends

    def pids_of(self, word: str) -> list[int]:
        """The processes of this spool with that word in their command line, not their children before exec."""
        found = []
        for folder in Path("/proc").iterdir():
            words = _read_command(folder) if folder.name.isdigit() else []
            if word in words and any(part.startswith(str(self.spool)) for part in words):
                found.append(int(folder.name))
        return [pid for pid in found if _read_parent(pid) not in found]

    def kill(self, *names: str) -> None:
        for name in names:
            for pid in self.pids_of(name):
                _kill(pid)


QUEUE, STARTER = "serve", "samgrid-fork-starter"


def _read_command(folder: Path) -> list[str]:
    try:
        return (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
    except (FileNotFoundError, ProcessLookupError):
        return []


def _read_parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return 0


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


@pytest.fixture
def system(tmp_path: Path) -> Iterator[System]:
    system = System(tmp_path)
    yield system
    system.gate.close()
    if system.spool.is_dir():
        (system.spool / "jobs").rename(system.spool / "no-jobs")
    system.kill(QUEUE, STARTER)
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and _is_below(folder / "cwd", tmp_path):
            _kill(int(folder.name))


@pytest.fixture
def stranger() -> Iterator[subprocess.Popen[bytes]]:
    """A process that no queue has started."""
    with subprocess.Popen(["/bin/sleep", "3600"], start_new_session=True) as process:
        yield process
        process.kill()


def _is_below(cwd: Path, folder: Path) -> bool:
    try:
        return cwd.readlink().is_relative_to(folder)
    except OSError:
        return False


# --- submitting and asking


def test_every_job_of_an_array_runs_once_with_its_index_and_its_files(system: System) -> None:
    script = "echo $SAMGRID_FORK_ID $SAMGRID_FORK_INDEX; echo err >&2; exit $SAMGRID_FORK_INDEX"
    files = ["--stdout", "out.%i", "--stderr", "err.%i"]
    assert system.submit("k3f9zq2m-1", 6, script, *files) == "k3f9zq2m-1 1-6\n"
    ids = {index: f"k3f9zq2m-1.{index}" for index in range(1, 7)}
    assert system.wait_for_end() == {ids[index]: Answer("ended", str(index)) for index in ids}
    for index, local_id in ids.items():
        assert (system.folder / f"out.{index}").read_text() == f"{local_id} {index}\n"
        assert (system.folder / f"err.{index}").read_text() == "err\n"
    for index, local_id in ids.items():
        events = [(event.state, event.exit_code) for event in system.events() if event.local_id == local_id]
        assert events == [(State.PENDING, 0), (State.ACTIVE, 0), (State.DONE, index)]


def test_a_job_gets_nothing_of_its_submitters_environment_but_who_and_where(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", "1")
    options = [
        "--directory",
        str(system.folder),
        "--stdout",
        "out",
        "--environment",
        "A=b=c",
        "--environment",
        "LANG=C",
    ]
    system.run("submit", "--token", "a", "--array", "1-1", *options, "--", "/usr/bin/env")
    system.wait_for_end()
    variables = dict(line.split("=", 1) for line in (system.folder / "out").read_text().splitlines())
    assert variables.keys() == {
        *("HOME", "USER", "LOGNAME", "PATH", "LANG", "A"),
        *("SAMGRID_FORK_ID", "SAMGRID_FORK_INDEX"),
    }
    assert (variables["A"], variables["LANG"], variables["SAMGRID_FORK_ID"]) == ("b=c", "C", "a.1")


def test_a_token_submitted_again_changes_nothing(system: System) -> None:
    first = system.submit("a", 2, "echo x >> ran")
    system.wait_for_end()
    assert system.submit("a", 2, "echo y >> ran") == first == "a 1-2\n"
    assert system.submit("a", 5, "echo z >> ran") == first
    assert system.wait_for_end() == {"a.1": Answer("ended", "0"), "a.2": Answer("ended", "0")}
    assert (system.folder / "ran").read_text() == "x\nx\n"
    assert [path.name for path in (system.spool / "aside").iterdir()] == []


def test_of_submissions_of_one_token_at_once_one_is_made(system: System) -> None:
    words = [*command_line("samgrid-fork"), "--spool", str(system.spool), "submit", "--token", "a", "--array"]
    script = ["--directory", str(system.folder), "--", "/bin/sh", "-c", "echo x >> ran"]
    racers = [
        subprocess.Popen([*words, f"1-{last}", *script], stdout=subprocess.PIPE, text=True) for last in (1, 2, 3, 4)
    ]
    printed = {racer.communicate(timeout=SECONDS)[0] for racer in racers}
    assert len(printed) == 1
    answers = system.wait_for_end()
    assert printed == {f"a 1-{len(answers)}\n"}
    assert (system.folder / "ran").read_text() == "x\n" * len(answers)


def test_jobs_are_served_in_the_order_of_their_submission(system: System) -> None:
    system.slots = 1
    for token in ("c", "a", "b"):
        system.submit(token, 2, "echo $SAMGRID_FORK_ID >> order")
    system.wait_for_end()
    assert (system.folder / "order").read_text().split() == ["c.1", "c.2", "a.1", "a.2", "b.1", "b.2"]


def test_queries_tell_of_what_they_are_asked(system: System) -> None:
    system.slots = 1
    system.submit("a", 3, "sleep 3600")
    system.submit("b", 1, "exit")
    wait_until(lambda: system.jobs()[0].native == "running")
    assert system.query("--token", "a") == {
        "a.1": Answer("running", "-"),
        "a.2": Answer("queued", "-"),
        "a.3": Answer("queued", "-"),
    }
    assert system.query("--token", "none") == {}
    assert system.query("b.1", "a.4", "none.1", "nonsense", "a.3").keys() == {"b.1", "a.3"}
    assert system.query().keys() == {"a.1", "a.2", "a.3", "b.1"}


def test_jobs_that_ended_long_ago_are_told_of_only_to_who_names_them(system: System) -> None:
    system.submit("old-1", 1, "true")
    system.submit("new-1", 1, "true")
    system.wait_for_end()
    ended = system.spool / "jobs" / "old-1" / "ended"
    wait_until(ended.exists)
    os.utime(ended, (0, time.time() - HISTORY_SECONDS - 60))
    assert set(system.query()) == {"new-1.1"}
    assert set(system.query("--token", "old-1")) == set(system.query("old-1.1")) == {"old-1.1"}


def test_a_program_that_is_not_there_fails_its_job_and_the_next_runs(system: System) -> None:
    system.run("submit", "--token", "a", "--array", "1-1", "--", "/no/such")
    system.submit("b", 1, "exit 3")
    assert system.wait_for_end() == {"a.1": Answer("killed", "127"), "b.1": Answer("ended", "3")}
    assert system.ends() == {"a.1": {(State.FAILED, 127)}, "b.1": {(State.DONE, 3)}}


def test_a_spool_that_cannot_be_used_is_no_answer(system: System) -> None:
    for spool in (system.folder / "none" / "fork", system.folder / "file"):
        (system.folder / "file").touch()
        system.spool = spool
        for words in (["query"], ["query", "a.1"], ["cancel", "a.1"]):
            done = system.call(*words)
            assert (done.returncode, done.stdout) == (1, "")
            assert len(done.stderr.splitlines()) == 1
            assert str(spool) in done.stderr
    system.spool = system.folder / "file"
    system.spool.unlink()


def test_a_submission_that_cannot_be_read_is_no_answer_and_stops_no_other(system: System) -> None:
    system.submit("a", 1, "exit")
    system.wait_for_end()
    (system.spool / "jobs" / "b").mkdir()
    (system.spool / "jobs" / "b" / "submission.json").write_text("{")
    system.submit("c", 1, "touch ran")
    wait_until((system.folder / "ran").exists)
    for words in ([], ["--token", "b"], ["b.1"]):
        done = system.call("query", *words)
        assert (done.returncode, done.stdout) == (1, "")
        assert "b/submission.json" in done.stderr
    assert system.query("--token", "a") == {"a.1": Answer("ended", "0")}
    wait_until(lambda: not system.pids_of(QUEUE))


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(["submit", "--token", "a", "--array", "1-2"], id="no program"),
        pytest.param(["submit", "--token", "A", "--array", "1-2", "--", "x"], id="no token"),
        pytest.param(["submit", "--token", "a", "--array", "2-1", "--", "x"], id="falling array"),
        pytest.param(["submit", "--token", "a", "--array", "0-1", "--", "x"], id="index 0"),
        pytest.param(["submit", "--token", "a", "--array", "1-1000001", "--", "x"], id="large array"),
        pytest.param(["submit", "--token", "a", "--array", "1", "--", "x"], id="no range"),
        pytest.param(["submit", "--token", "a", "--array", "1-1", "--environment", "A", "--", "x"], id="no value"),
        pytest.param(["submit", "--token", "a", "--array", "1-1", "--memory", "-1", "--", "x"], id="negative memory"),
        pytest.param(["query", "--", "x"], id="query with a program"),
        pytest.param(["cancel"], id="cancel nothing"),
        pytest.param([], id="no command"),
    ],
)
def test_wrong_arguments_are_refused_and_leave_nothing(system: System, words: list[str]) -> None:
    assert system.call(*words).returncode == 2
    assert not system.spool.exists()


def test_any_bytes_of_arguments_reach_the_program(system: System) -> None:
    arguments = [b"--", b"\xff\n;,=\\", b"", b"-x"]
    argv = [*command_line("samgrid-fork"), "--spool", str(system.spool), "submit", "--token", "a", "--array", "1-1"]
    script = ["--directory", str(system.folder), "--stdout", "out", "--", "/usr/bin/printf", "%s|"]
    subprocess.run([*argv, *script, *arguments], check=True, stdout=subprocess.DEVNULL)
    system.wait_for_end()
    assert (system.folder / "out").read_bytes().split(b"|")[:-1] == arguments


def test_the_queue_ends_by_itself_and_the_spool_is_the_accounts_alone(system: System) -> None:
    system.submit("a", 1, "exit")
    system.wait_for_end()
    wait_until(lambda: not system.pids_of(QUEUE) and not system.pids_of(STARTER))
    modes = {path: path.lstat().st_mode & 0o777 for path in [system.spool, *system.spool.rglob("*")]}
    assert all(mode == (0o700 if path.is_dir() else 0o600) for path, mode in modes.items()), modes
    system.submit("b", 1, "exit")
    assert system.wait_for_end().keys() == {"a.1", "b.1"}


def test_two_thousand_jobs_are_one_submission(system: System) -> None:
    system.submit("a", 2_000, "sleep 3600")
    wait_until(lambda: [job.native for job in system.jobs()].count("running") == system.slots)
    answers = system.query()
    assert len(answers) == 2_000
    assert len(list((system.spool / "jobs" / "a").iterdir())) < 10
    printed = system.run("cancel", "-", given="\n".join(answers))
    assert len(printed.splitlines()) == 2_000
    wait_until(lambda: (system.spool / "jobs" / "a" / "ended").exists())
    counts = Counter(answer.native for answer in system.wait_for_end().values())
    assert counts == {"cancelled": 2_000 - system.slots, "killed": system.slots}
    assert {event.local_id for event in system.events() if event.state is State.FAILED} == answers.keys()
    assert list((system.spool / "cancel").iterdir()) == []


# --- cancelling and limits


def test_a_queued_job_that_is_cancelled_never_starts(system: System) -> None:
    system.slots = 1
    system.submit("a", 2, "echo $SAMGRID_FORK_ID >> ran; : <go")
    wait_until((system.folder / "ran").exists)
    assert system.run("cancel", "a.2") == "a.2 cancelled\n"
    assert system.query("a.2") == {"a.2": Answer("cancelled", "-", CANCELLED)}
    wait_until(lambda: "a.2" in system.ends())
    system.gate.open()
    system.wait_for_end()
    assert (system.folder / "ran").read_text() == "a.1\n"
    assert system.ends() == {"a.1": {(State.DONE, 0)}, "a.2": {(State.FAILED, 0)}}
    assert system.run("cancel", "a.1", "a.2", "a.3", "b.1", "x") == (
        "a.1 ended\na.2 cancelled\na.3 unknown\nb.1 unknown\nx unknown\n"
    )


def test_a_running_job_that_is_cancelled_gets_sigterm(system: System) -> None:
    system.grace = 3600
    system.submit("a", 1, "trap 'echo term > got; exit 9' TERM; touch up; while :; do sleep 0.1; done")
    wait_until((system.folder / "up").exists)
    assert system.run("cancel", "a.1") == "a.1 signalled\n"
    assert system.wait_for_end() == {"a.1": Answer("ended", "9", CANCELLED)}
    assert (system.folder / "got").read_text() == "term\n"
    assert list((system.spool / "cancel").iterdir()) == []


def test_a_job_that_ignores_sigterm_is_killed_with_its_grandchildren(system: System) -> None:
    script = "trap '' TERM; sh -c 'sleep 3600 & echo $! > grandchild; wait' & wait; wait; sleep 3600"
    system.submit("a", 1, script)
    wait_until(lambda: bool(_read(system.folder / "grandchild")))
    system.run("cancel", "a.1")
    assert system.wait_for_end() == {"a.1": Answer("killed", "137", CANCELLED)}
    grandchild = int(_read(system.folder / "grandchild"))
    wait_until(lambda: read_process(grandchild) is None)


def test_a_cancel_whose_queue_is_killed_in_the_grace_time_is_carried_on(system: System) -> None:
    system.grace = 3600
    system.submit("a", 1, "trap 'touch got' TERM; touch up; while :; do sleep 0.1; done")
    wait_until((system.folder / "up").exists)
    system.run("cancel", "a.1")
    wait_until((system.folder / "got").exists)
    system.kill(QUEUE)
    system.grace = 0.1
    assert system.wait_for_end() == {"a.1": Answer("killed", "137", CANCELLED)}


def test_a_job_is_stopped_at_its_wall_time(system: System) -> None:
    (system.folder / "fork").mkdir(mode=0o700)
    limited = _store(system, "a", ("/bin/sleep", "3600"))
    limited.write_text(limited.read_text().replace('"wall_minutes": 0', '"wall_minutes": 0.002'))
    assert system.wait_for_end() == {"a.1": Answer("killed", "143", "time-limit")}


def test_a_job_that_ends_well_although_it_was_stopped_at_its_wall_time_says_so(system: System) -> None:
    (system.folder / "fork").mkdir(mode=0o700)
    limited = _store(system, "a", ("/bin/sh", "-c", "trap 'exit 0' TERM; while :; do sleep 0.1; done"))
    limited.write_text(limited.read_text().replace('"wall_minutes": 0', '"wall_minutes": 0.02'))
    assert system.wait_for_end() == {"a.1": Answer("ended", "0", "time-limit")}


def test_cpu_and_memory_limits_reach_the_program(system: System) -> None:
    system.submit("a", 1, "ulimit -S -t; ulimit -v", "--cpu-time", "3", "--memory", "500", "--stdout", "out")
    assert system.wait_for_end() == {"a.1": Answer("ended", "0")}
    assert (system.folder / "out").read_text() == "180\n512000\n"


# --- deaths


COUNTING = """
mkdir running/$SAMGRID_FORK_INDEX; ls running | wc -l >> concurrency
echo $SAMGRID_FORK_INDEX >> ran; [ $SAMGRID_FORK_INDEX -gt 6 ] || : <go; sleep 0.$((SAMGRID_FORK_INDEX % 3 + 1))
rmdir running/$SAMGRID_FORK_INDEX; exit $((SAMGRID_FORK_INDEX % 5))
"""


@pytest.mark.parametrize(
    ("victims", "may_lose"),
    [
        pytest.param((), False, id="nobody"),
        pytest.param((STARTER,), False, id="starter"),
        pytest.param((QUEUE,), False, id="queue"),
        pytest.param((QUEUE, STARTER), True, id="queue and starter"),
        pytest.param((STARTER, QUEUE), True, id="starter and queue"),
    ],
)
def test_whoever_is_killed_every_job_runs_once_in_its_slot_and_ends(
    system: System, victims: tuple[str, ...], may_lose: bool
) -> None:
    system.slots = 6
    (system.folder / "running").mkdir()
    system.submit("a", 40, COUNTING)
    wait_until(lambda: len(_read(system.folder / "ran").split()) == system.slots)
    system.gate.open()
    moments = random.Random(4711)
    for _ in range(8 if victims else 0):
        time.sleep(moments.uniform(0.05, 0.3))
        system.kill(*victims)
        system.jobs()
    answers = system.wait_for_end()
    assert sorted(_read(system.folder / "ran").split(), key=int) == [str(index) for index in range(1, 41)]
    assert max(map(int, _read(system.folder / "concurrency").split())) == 6
    ends = system.ends()
    for index in range(1, 41):
        lost = answers[f"a.{index}"].native == "lost"
        assert answers[f"a.{index}"] == (Answer("lost", "-") if lost else Answer("ended", str(index % 5)))
        assert ends[f"a.{index}"] == {(State.FAILED, 255) if lost else (State.DONE, index % 5)}
        assert may_lose or not lost
    orphans = [local_id for local_id, answer in answers.items() if answer.native == "lost"]
    # At each of the 8 deaths no more than the jobs that then ran can have lost their parents.
    assert len(orphans) <= 8 * system.slots


def test_a_job_whose_queue_and_starter_were_killed_keeps_its_slot_until_it_ends(system: System) -> None:
    system.slots = 1
    system.submit("a", 2, "echo $SAMGRID_FORK_ID >> ran; : <go; exit 3")
    wait_until((system.folder / "ran").exists)
    system.kill(QUEUE, STARTER)
    assert system.query() == {"a.1": Answer("running", "-"), "a.2": Answer("queued", "-")}
    wait_until(lambda: bool(system.pids_of(QUEUE)))
    assert system.query()["a.1"].native == "running"
    assert _read(system.folder / "ran") == "a.1\n"
    system.gate.open()
    assert system.wait_for_end() == {"a.1": Answer("lost", "-"), "a.2": Answer("ended", "3")}
    assert system.ends() == {"a.1": {(State.FAILED, 255)}, "a.2": {(State.DONE, 3)}}


def test_a_new_queue_waits_for_what_an_earlier_starter_is_starting(
    system: System, stranger: subprocess.Popen[bytes]
) -> None:
    system.slots = 1
    system.spool.mkdir(mode=0o700)
    stored = _store(system, "a", ("/bin/true",), last=2)
    found = read_process(stranger.pid)
    assert found is not None
    with lock_file(starter_lock(system.spool / "jobs"), wait=True):
        system.query()
        wait_until(lambda: bool(system.pids_of(QUEUE)))
        # Long enough for a queue that would not wait to go wrong; one that waits gives no sign to wait for.
        time.sleep(0.5)
        (stored.parent / "2").write_text(render_claim(found, Process(2**22 + 1, 1, read_boot())))
    wait_until(lambda: bool(_read(system.spool / "events")))
    time.sleep(0.2)
    assert system.query() == {"a.1": Answer("queued", "-"), "a.2": Answer("running", "-")}
    stranger.kill()
    stranger.wait()
    assert system.wait_for_end() == {"a.1": Answer("ended", "0"), "a.2": Answer("lost", "-")}


def _read(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def _store(system: System, token: str, command: tuple[str, ...], last: int = 1) -> Path:
    """A submission, as the submit command stores it, which nobody serves yet."""
    folder = system.spool / "jobs" / token
    folder.mkdir(parents=True, mode=0o700)
    submission = Submission(token, 1, last, time.time_ns(), command, str(system.folder), ())
    (folder / "submission.json").write_text(render_submission(submission))
    return folder / "submission.json"


@pytest.mark.parametrize("change", ["start", "boot"])
def test_a_reused_pid_is_not_our_job(system: System, stranger: subprocess.Popen[bytes], change: str) -> None:
    system.spool.mkdir(mode=0o700)
    stored = _store(system, "a", ("/bin/true",))
    found = read_process(stranger.pid)
    assert found is not None
    claimed = Process(
        found.pid,
        found.started - 1 if change == "start" else found.started,
        "another-boot" if change == "boot" else found.boot,
    )
    (stored.parent / "1").write_text(render_claim(claimed, Process(2**22 + 1, 1, claimed.boot)))
    assert system.wait_for_end() == {"a.1": Answer("lost", "-")}
    assert system.ends() == {"a.1": {(State.FAILED, 255)}}
    assert system.run("cancel", "a.1") == "a.1 ended\n"
    assert stranger.poll() is None


def test_a_zombie_is_dead(system: System, stranger: subprocess.Popen[bytes]) -> None:
    system.spool.mkdir(mode=0o700)
    stored = _store(system, "a", ("/bin/true",))
    found = read_process(stranger.pid)
    assert found is not None
    stranger.kill()
    os.waitid(os.P_PID, stranger.pid, os.WEXITED | os.WNOWAIT)
    (stored.parent / "1").write_text(render_claim(found, Process(2**22 + 1, 1, read_boot())))
    assert system.wait_for_end() == {"a.1": Answer("lost", "-")}


def test_a_record_that_a_power_failure_garbled_is_a_claim_all_the_same(system: System) -> None:
    system.spool.mkdir(mode=0o700)
    stored = _store(system, "a", ("/bin/sh", "-c", "touch ran"))
    (stored.parent / "1").write_bytes(b"\0" * 60 + b"\n")
    assert system.wait_for_end() == {"a.1": Answer("lost", "-")}
    assert not (system.folder / "ran").exists()
