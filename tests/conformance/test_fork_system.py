"""The embedded batch system as a whole: its commands, its processes, and what their deaths may not change."""

import dataclasses
import os
import random
import re
import resource
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from batch_adapters.fork.commands import HISTORY_SECONDS
from batch_adapters.fork.processes import Process, read_boot, read_process
from batch_adapters.fork.spool import (
    EVENTS_BYTES,
    KEEP_SECONDS,
    JobEnd,
    JobRun,
    Spool,
    StoredSubmission,
    open_spool,
    read_run_file,
    render_end,
    render_process,
    write_submission,
)
from batch_adapters.launch import command_line
from batch_adapters.states import Event, State, read_event
from sandbox.files import locked
from tests.conformance.spool import Job, query_spool, run_forked, wait_for_ends
from tests.conftest import Moment, processes_of
from tests.waiting import SECONDS, Gate, wait_until

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
        self.start = Moment()
        self.folder = folder
        self.spool = folder / "fork"
        self.slots = 4
        self.grace = 0.3
        self.gate = Gate(folder / "go")

    def call(self, *words: str) -> subprocess.CompletedProcess[str]:
        options = ["--spool", str(self.spool), "--slots", str(self.slots), "--grace", str(self.grace)]
        # Reading to the end of output would not return before a process did that had inherited it.
        return run_forked([*options, *words])

    def run(self, *words: str) -> str:
        done = self.call(*words)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    def submit(self, token: str, last: int, script: str, *options: str) -> str:
        where = ["--token", token, "--count", str(last), "--directory", str(self.folder), *options]
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

    def pids_of(self, name: str) -> list[int]:
        """The processes of this spool that bear the name, not their children before exec."""
        found = []
        for pid in processes_of(self.spool, "serve", since=self.start):
            folder = Path("/proc", str(pid))
            # Its name first: a job's process has the queue's name and command line until its exec.
            is_named = (_read_name(folder) == QUEUE) == (name == QUEUE)
            words = _read_command(folder) if is_named else []
            if "serve" in words and str(self.spool) in words:
                found.append(pid)
        # One whose queue was killed leads a session already: to kill it were to kill a job.
        return [pid for pid in found if _read_parent(pid) not in found and (name == KEEPER or not _is_leader(pid))]

    def kill(self, *names: str) -> None:
        """Kill them; of several none has the time to see the others die."""
        victims: set[int] = set()
        # The keeper first: it lets a queue go on that is stopped.
        while found := [pid for name in sorted(names) for pid in self.pids_of(name) if pid not in victims]:
            for pid in found:
                _kill(pid, signal.SIGSTOP)
            victims.update(found)
        for pid in victims:
            _kill(pid)
        # Until then they hold their locks.
        wait_until(lambda: not any(map(read_process, victims)))

    def change(self, statement: str, *values: object) -> None:
        """Change what the spool says, behind the back of its commands."""
        with closing(open_spool(self.spool)) as spool, spool.transaction() as database:
            database.execute(statement, values)


QUEUE, KEEPER = "samgrid-queue", "samgrid-keeper"


def _read_name(folder: Path) -> str:
    try:
        return (folder / "comm").read_text().strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""


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


def _is_leader(pid: int) -> bool:
    try:
        return os.getsid(pid) == pid
    except ProcessLookupError:
        return True


def _kill(pid: int, number: signal.Signals = signal.SIGKILL) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


@pytest.fixture
def system(tmp_path: Path) -> Iterator[System]:
    system = System(tmp_path)
    yield system
    system.gate.close()
    if system.spool.is_dir():
        system.change("DELETE FROM job")
    system.kill(QUEUE, KEEPER)
    among = system.start.pids_since()
    for name in os.listdir("/proc"):  # noqa: PTH208 - as in processes_of
        if name.isdigit() and int(name) in among and _is_below(f"/proc/{name}/cwd", tmp_path):
            _kill(int(name))


@pytest.fixture
def stranger() -> Iterator[subprocess.Popen[bytes]]:
    """A process that no queue has started."""
    with subprocess.Popen(["/bin/sleep", "3600"], start_new_session=True) as process:
        yield process
        process.kill()


def _is_below(cwd: str, folder: Path) -> bool:
    try:
        return f"{os.readlink(cwd)}/".startswith(f"{folder}/")  # noqa: PTH115
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
    options = ["--directory", str(system.folder), "--stdout", "out"]
    system.run("submit", "--token", "a", "--count", "1", *options, "--", "/usr/bin/env")
    system.wait_for_end()
    variables = dict(line.split("=", 1) for line in (system.folder / "out").read_text().splitlines())
    assert variables.keys() == {
        *("HOME", "USER", "LOGNAME", "PATH", "LANG"),
        *("SAMGRID_FORK_ID", "SAMGRID_FORK_INDEX", "SAMGRID_FORK_CLAIM", "SAMGRID_FORK_STARTED"),
    }
    assert variables["SAMGRID_FORK_ID"] == "a.1"


def test_a_token_submitted_again_changes_nothing(system: System) -> None:
    first = system.submit("a", 2, "echo x >> ran")
    system.wait_for_end()
    assert system.submit("a", 2, "echo y >> ran") == first == "a 1-2\n"
    assert system.submit("a", 5, "echo z >> ran") == first
    assert system.wait_for_end() == {"a.1": Answer("ended", "0"), "a.2": Answer("ended", "0")}
    assert (system.folder / "ran").read_text() == "x\nx\n"


def test_of_submissions_of_one_token_at_once_one_is_made(system: System) -> None:
    words = [*command_line("samgrid-fork"), "--spool", str(system.spool), "submit", "--token", "a", "--count"]
    script = ["--directory", str(system.folder), "--", "/bin/sh", "-c", "echo x >> ran"]
    racers = [subprocess.Popen([*words, last, *script], stdout=subprocess.PIPE, text=True) for last in "1234"]
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
    system.change("UPDATE submission SET ended = ended - ? WHERE token = 'old-1'", HISTORY_SECONDS + 60)
    assert set(system.query()) == {"new-1.1"}
    assert set(system.query("--token", "old-1")) == set(system.query("old-1.1")) == {"old-1.1"}


def test_a_program_that_is_not_there_fails_its_job_and_the_next_runs(system: System) -> None:
    system.run("submit", "--token", "a", "--count", "1", "--", "/no/such")
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


def test_a_spool_that_is_damaged_is_no_answer(system: System) -> None:
    system.submit("a", 1, "exit")
    system.wait_for_end()
    wait_until(lambda: not system.pids_of(QUEUE))
    kept = (system.spool / "spool.db").read_bytes()
    (system.spool / "spool.db").write_bytes(b"{" * 5000)
    for words in (["query"], ["query", "--token", "b"], ["query", "a.1"], ["cancel", "a.1"]):
        done = system.call(*words)
        assert (done.returncode, done.stdout) == (1, "")
        assert re.fullmatch(r"samgrid-fork: cannot use \S+/fork/spool.db: .*\n", done.stderr)
    (system.spool / "spool.db").write_bytes(kept)
    assert system.query("--token", "a") == {"a.1": Answer("ended", "0")}


def test_a_submission_that_cannot_be_read_fails_and_holds_up_no_other(system: System) -> None:
    system.slots = 1
    system.submit("a", 1, ": <go")
    wait_until(lambda: system.query()["a.1"].native == "running")
    system.submit("b", 1, "exit")
    system.submit("c", 1, "exit")
    system.change("UPDATE submission SET text = '{' WHERE token = 'b'")
    system.gate.open()
    assert system.wait_for_end() == {
        "a.1": Answer("ended", "0"), "b.1": Answer("killed", "126"), "c.1": Answer("ended", "0"),
    }  # fmt: skip


def test_many_who_ask_start_one_queue(system: System) -> None:
    system.spool.mkdir(mode=0o700)
    with locked(open_spool(system.spool).starter_lock, wait=True):
        _store(system, "a", ("/bin/true",))
        seen = set()
        for _ in range(5):
            system.query()
            seen |= set(system.pids_of(KEEPER))
    assert len(seen) == 1
    assert system.wait_for_end() == {"a.1": Answer("ended", "0")}
    wait_until(lambda: not system.pids_of(QUEUE))
    assert (system.spool / "queue.log").read_text().count(" a 1-1\n") == 1


def test_what_ended_long_ago_is_forgotten_and_what_runs_is_kept(system: System) -> None:
    for token in ("old", "new"):
        system.submit(token, 2, "true")
    system.wait_for_end()
    wait_until(lambda: not system.pids_of(QUEUE))
    system.change("UPDATE submission SET ended = ended - ? WHERE token = 'old'", KEEP_SECONDS + 60)
    system.submit("next", 1, "true")
    assert system.wait_for_end().keys() == {"new.1", "new.2", "next.1"}
    assert system.query("--token", "old") == {}
    assert list((system.spool / "run").iterdir()) == []


def test_what_is_told_to_be_forgotten_goes_as_far_as_it_has_ended(system: System) -> None:
    for token in ("abc-1", "abc-2", "abd-1"):
        system.submit(token, 2, "true")
    system.wait_for_end()
    system.submit("abc-3", 1, ": <go")
    assert system.run("forget", "abc-", "xyz-") == ""
    assert system.query().keys() == {"abd-1.1", "abd-1.2", "abc-3.1"}
    system.gate.open()
    system.wait_for_end()
    system.run("forget", "abc-")
    assert system.query().keys() == {"abd-1.1", "abd-1.2"}


def test_a_log_of_events_that_has_become_long_is_begun_anew(system: System) -> None:
    system.spool.mkdir(mode=0o700)
    for part, told in (("events", "b"), ("events.1", "c"), ("events.2", "d")):
        with (system.spool / part).open("w") as file:
            file.write(told)
            file.truncate(EVENTS_BYTES + 1)
    system.submit("a", 1, "true")
    system.wait_for_end()
    assert [event.state for event in system.events()] == [State.PENDING, State.ACTIVE, State.DONE]
    parts = {path.name: path.read_bytes()[:1] for path in system.spool.glob("events.*")}
    assert parts == {"events.1": b"b", "events.2": b"c"}


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(["submit", "--token", "a", "--count", "2"], id="no program"),
        pytest.param(["submit", "--token", "A", "--count", "2", "--", "x"], id="no token"),
        pytest.param(["submit", "--token", "a", "--count", "-1", "--", "x"], id="a negative count"),
        pytest.param(["submit", "--token", "a", "--count", "0", "--", "x"], id="no jobs"),
        pytest.param(["submit", "--token", "a", "--count", "1000001", "--", "x"], id="too many jobs"),
        pytest.param(["submit", "--token", "a", "--count", "1-2", "--", "x"], id="no number"),
        pytest.param(["submit", "--token", "a", "--count", "1", "--wall-time", "-1", "--", "x"], id="negative time"),
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
    argv = [*command_line("samgrid-fork"), "--spool", str(system.spool), "submit", "--token", "a", "--count", "1"]
    script = ["--directory", str(system.folder), "--stdout", "out", "--", "/usr/bin/printf", "%s|"]
    subprocess.run([*argv, *script, *arguments], check=True, stdout=subprocess.DEVNULL)
    system.wait_for_end()
    assert (system.folder / "out").read_bytes().split(b"|")[:-1] == arguments


def test_the_queue_ends_by_itself_and_the_spool_is_the_accounts_alone(system: System) -> None:
    system.submit("a", 1, "exit")
    system.wait_for_end()
    wait_until(lambda: not system.pids_of(QUEUE) and not system.pids_of(KEEPER))
    modes = {path: path.lstat().st_mode & 0o777 for path in [system.spool, *system.spool.rglob("*")]}
    assert all(mode == (0o700 if path.is_dir() else 0o600) for path, mode in modes.items()), modes
    system.submit("b", 1, "exit")
    assert system.wait_for_end().keys() == {"a.1", "b.1"}


def test_two_thousand_jobs_are_one_submission(system: System) -> None:
    system.submit("a", 2_000, "sleep 3600")
    wait_until(lambda: [job.native for job in system.jobs()].count("running") == system.slots)
    answers = system.query()
    assert len(answers) == 2_000
    # They are called running a moment before they are started.
    wait_until(lambda: len(list((system.spool / "run").iterdir())) == system.slots)
    printed = system.run("cancel", *answers)
    assert len(printed.splitlines()) == 2_000
    counts = Counter(answer.native for answer in system.wait_for_end().values())
    assert counts == {"cancelled": 2_000 - system.slots, "killed": system.slots}
    assert {event.local_id for event in system.events() if event.state is State.FAILED} == answers.keys()


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


def test_a_job_that_ignores_sigterm_is_killed_with_its_grandchildren(system: System) -> None:
    script = "trap '' TERM; sh -c 'sleep 3600 & echo $! > grandchild; wait' & wait; wait; sleep 3600"
    system.submit("a", 1, script)
    wait_until(lambda: bool(_read(system.folder / "grandchild")))
    system.run("cancel", "a.1")
    assert system.wait_for_end() == {"a.1": Answer("killed", "137", CANCELLED)}
    grandchild = int(_read(system.folder / "grandchild"))
    wait_until(lambda: read_process(grandchild) is None)


@pytest.mark.parametrize("victim", [QUEUE, KEEPER])
def test_a_cancel_in_whose_grace_time_somebody_is_killed_is_carried_on(system: System, victim: str) -> None:
    system.grace = 1
    system.submit("a", 1, "trap 'touch got' TERM; touch up; while :; do sleep 0.1; done", "--wall-time", "9000")
    wait_until((system.folder / "up").exists)
    system.run("cancel", "a.1")
    wait_until((system.folder / "got").exists)
    system.kill(victim)
    assert system.wait_for_end() == {"a.1": Answer("killed", "137", CANCELLED)}


def test_a_job_is_stopped_at_its_wall_time(system: System) -> None:
    _store(system, "a", ("/bin/sh", "-c", "exec sleep 3600"))
    system.change("""UPDATE submission SET text = '{"wall_minutes": 0.02, ' || substr(text, 2)""")
    assert system.wait_for_end() == {"a.1": Answer("killed", "143", "time-limit")}


def test_a_job_that_is_stopped_at_its_wall_time_may_end_well(system: System) -> None:
    system.grace = 3600
    system.submit("a", 1, "trap 'exit 0' TERM; touch up; while :; do sleep 0.1; done", "--wall-time", "9000")
    wait_until((system.folder / "up").exists)
    # The next queue process finds it overdue.
    system.change("""UPDATE submission SET text = replace(text, '"wall_minutes": 9000', '"wall_minutes": 0.0001')""")
    system.kill(QUEUE)
    assert system.wait_for_end() == {"a.1": Answer("ended", "0", "time-limit")}


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
        pytest.param((KEEPER,), False, id="keeper"),
        pytest.param((QUEUE,), False, id="queue"),
        pytest.param((QUEUE, KEEPER), True, id="queue and keeper"),
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


@pytest.mark.parametrize("victims", [(), (QUEUE, KEEPER)], ids=["", "killed"])
def test_a_job_takes_as_many_slots_as_it_wants_cores(system: System, victims: tuple[str, ...]) -> None:
    system.slots = 3
    system.submit("a", 2, "echo $SAMGRID_FORK_ID >> ran; : <go", "--cores", "2")
    system.submit("b", 1, "echo $SAMGRID_FORK_ID >> ran")
    wait_until((system.folder / "ran").exists)
    if victims:
        system.kill(*victims)
        system.jobs()
        wait_until(lambda: bool(system.pids_of(QUEUE)))
    system.submit("c", 1, "echo $SAMGRID_FORK_ID >> ran")
    # What came later would fit, but none starts before one that needs more: and b comes to the queue's notice.
    wait_until(lambda: "b.1;1" in _read(system.spool / "events") and "c.1;1" in _read(system.spool / "events"))
    assert [job.native for job in system.jobs()] == ["running", "queued", "queued", "queued"]
    system.gate.open()
    assert {answer.native for answer in system.wait_for_end().values()} <= {"ended", "lost"}
    # The queue's word: which of two that run at the same time writes first is chance.
    started = [event.local_id for event in system.events() if event.state is State.ACTIVE]
    assert started.index("a.2") < started.index("b.1")


def test_a_job_that_wants_more_cores_than_there_are_slots_is_refused(system: System) -> None:
    system.slots = 3
    done = system.call("submit", "--token", "a", "--count", "1", "--cores", "4", "--", "/bin/true")
    assert done.returncode == 2
    assert "samgrid-fork: error: a job wants 4 cores, and there are 3 slots" in done.stderr


def test_a_job_that_was_to_have_more_slots_than_there_are_now_has_them_all(system: System) -> None:
    system.slots = 2
    system.submit("a", 1, ": <go; exit 3", "--cores", "2")
    system.kill(QUEUE)
    system.slots = 1
    system.gate.open()
    assert system.wait_for_end()["a.1"].native in ("ended", "lost")


def test_an_end_that_was_told_and_not_recorded_stays_what_it_is(system: System) -> None:
    system.submit("a", 1, "touch up; : <go; exit 3")
    wait_until((system.folder / "up").exists)
    system.kill(QUEUE)
    # With that recorded the keeper is the parent of the first.
    system.submit("b", 1, "exit")
    with closing(open_spool(system.spool)) as spool:
        recorded = "SELECT 1 FROM job JOIN submission ON number = submission WHERE token = 'b' AND state = 'ended'"
        wait_until(lambda: spool.database.execute(recorded).fetchone() is not None)
        with spool.transaction():
            system.gate.open()
            wait_until(lambda: "a.1" in system.ends())
            system.kill(QUEUE)
    assert system.wait_for_end() == {"a.1": Answer("ended", "3"), "b.1": Answer("ended", "0")}
    assert system.ends() == {"a.1": {(State.DONE, 3)}, "b.1": {(State.DONE, 0)}}


def test_an_end_that_only_its_claim_knows_is_told(system: System, stranger: subprocess.Popen[bytes]) -> None:
    _store_running(system)
    _claim(system, "a.1", stranger.pid, started=1)
    with (system.spool / "run" / "a.1").open("a") as claim:
        claim.write(render_end(JobEnd(State.DONE, 3, 1_700_000_000)))
    assert system.wait_for_end() == {"a.1": Answer("ended", "3")}
    assert Event(1_700_000_000, "a.1", State.DONE, 3) in system.events()


def test_a_job_whose_queue_and_keeper_were_killed_keeps_its_slot_until_it_ends(system: System) -> None:
    system.slots = 1
    system.submit("a", 2, "echo $SAMGRID_FORK_ID >> ran; : <go; exit 3")
    wait_until((system.folder / "ran").exists)
    system.kill(QUEUE, KEEPER)
    assert system.query() == {"a.1": Answer("running", "-"), "a.2": Answer("queued", "-")}
    wait_until(lambda: bool(system.pids_of(QUEUE)))
    assert system.query()["a.1"].native == "running"
    assert _read(system.folder / "ran") == "a.1\n"
    system.gate.open()
    assert system.wait_for_end() == {"a.1": Answer("lost", "-"), "a.2": Answer("ended", "3")}
    assert system.ends() == {"a.1": {(State.FAILED, 255)}, "a.2": {(State.DONE, 3)}}


@pytest.mark.parametrize("victims", [(QUEUE,), (KEEPER, QUEUE)], ids=["alone", "and its keeper"])
def test_a_signal_that_stops_the_queue_holds_up_no_job(system: System, victims: tuple[str, ...]) -> None:
    system.slots = 1
    system.submit("a", 2, ": <go; exit 3")
    wait_until(lambda: [job.native for job in system.jobs()] == ["running", "queued"])
    for pid in [pid for name in victims for pid in system.pids_of(name)]:
        os.kill(pid, signal.SIGSTOP)
    system.gate.open()
    assert system.wait_for_end() == {"a.1": Answer("ended", "3"), "a.2": Answer("ended", "3")}


def test_a_killed_keeper_gets_a_successor_that_sees_to_later_jobs(system: System) -> None:
    system.submit("a", 1, "touch a; : <go; exit 3")
    wait_until((system.folder / "a").exists)
    first = system.pids_of(KEEPER)
    system.kill(KEEPER)
    wait_until(lambda: system.pids_of(KEEPER) not in ([], first))
    system.submit("b", 1, "touch b; : <go; exit 4")
    wait_until((system.folder / "b").exists)
    for pid in system.pids_of(QUEUE):
        # The queue of before keeps no more than its own job.
        if _read_parent(pid) in system.pids_of(KEEPER):
            _kill(pid)
    system.gate.open()
    assert system.wait_for_end() == {"a.1": Answer("ended", "3"), "b.1": Answer("ended", "4")}


def test_of_several_keepers_killed_each_has_one_successor(system: System) -> None:
    system.submit("a", 1, "touch a; : <go; exit 3")
    wait_until((system.folder / "a").exists)
    for token in ("b", "c", "d"):
        former = system.pids_of(KEEPER)
        system.kill(KEEPER)
        wait_until(lambda former=former: system.pids_of(KEEPER) not in ([], former))  # type: ignore[misc]
        system.submit(token, 1, f"touch {token}; : <go; exit 4")
        wait_until((system.folder / token).exists)
    assert len(system.pids_of(KEEPER)) == 1
    system.gate.open()
    system.wait_for_end()
    assert {answer.native for answer in system.query().values()} == {"ended"}


def test_who_ignores_the_ends_of_children_may_start_the_queue(system: System) -> None:
    words = ["--spool", str(system.spool), "submit", "--token", "a", "--count", "1", "--", "/bin/sh", "-c", "exit 3"]
    subprocess.run(["env", "--ignore-signal=CHLD", *command_line("samgrid-fork", *words)], check=True)
    assert system.wait_for_end() == {"a.1": Answer("ended", "3")}


def test_a_new_queue_waits_for_what_an_earlier_one_is_starting(
    system: System, stranger: subprocess.Popen[bytes]
) -> None:
    system.slots = 1
    spool = _store(system, "a", ("/bin/true",), last=2)
    system.change("UPDATE job SET state = 'running' WHERE job = 2")
    with locked(spool.starter_lock, wait=True):
        system.query()
        wait_until(lambda: _is_waited_for(spool.starter_lock) or bool(_read(system.spool / "events")))
        assert _read(system.spool / "events") == "", "it did not wait"
        _claim(system, "a.2", stranger.pid)
    wait_until(lambda: bool(_read(system.spool / "events")))
    assert system.query() == {"a.1": Answer("queued", "-"), "a.2": Answer("running", "-")}
    stranger.kill()
    stranger.wait()
    assert system.wait_for_end() == {"a.1": Answer("ended", "0"), "a.2": Answer("lost", "-")}


def _is_waited_for(lock: Path) -> bool:
    """True while somebody waits for a lock that another holds, as /proc/locks (proc(5)) tells."""
    waiting = [line for line in Path("/proc/locks").read_text().splitlines() if ": -> " in line]
    return any(f":{lock.stat().st_ino} " in line for line in waiting)


def _read(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def _store(system: System, token: str, command: tuple[str, ...], last: int = 1) -> Spool:
    """A submission, as the submit command stores it, which nobody serves yet."""
    system.spool.mkdir(mode=0o700, exist_ok=True)
    with closing(open_spool(system.spool)) as spool:
        write_submission(spool, token, last, StoredSubmission(command, str(system.folder), ()))
        return spool


def _store_running(system: System, *command: str) -> Spool:
    """A submission whose one job is called running, though no queue process has started it."""
    spool = _store(system, "a", command or ("/bin/true",))
    system.change("UPDATE job SET state = 'running'")
    return spool


def _claim(system: System, local_id: str, pid: int, **changes: Any) -> None:
    """A claim to a job of a process that no queue has started."""
    found = read_process(pid, zombie=True)
    assert found is not None
    claimed = dataclasses.replace(found, **changes)
    (system.spool / "run" / local_id).write_text(render_process(claimed))
    system.change("INSERT INTO boot SELECT ? WHERE NOT EXISTS (SELECT 1 FROM boot)", read_boot())


@pytest.mark.parametrize("change", ["started", "boot"])
def test_a_reused_pid_is_not_our_job(system: System, stranger: subprocess.Popen[bytes], change: str) -> None:
    _store_running(system)
    _claim(system, "a.1", stranger.pid, **{change: 1 if change == "started" else "0" * 36})
    assert system.wait_for_end() == {"a.1": Answer("lost", "-")}
    assert system.ends() == {"a.1": {(State.FAILED, 255)}}
    assert system.run("cancel", "a.1") == "a.1 ended\n"
    assert stranger.poll() is None


def test_a_zombie_is_dead(system: System, stranger: subprocess.Popen[bytes]) -> None:
    _store_running(system)
    stranger.kill()
    os.waitid(os.P_PID, stranger.pid, os.WEXITED | os.WNOWAIT)
    _claim(system, "a.1", stranger.pid)
    assert system.wait_for_end() == {"a.1": Answer("lost", "-")}


@pytest.mark.parametrize(
    ("claimed", "boot", "answer", "ran"),
    [
        pytest.param(True, "same", Answer("lost", "-"), False, id="claimed"),
        pytest.param(False, "same", Answer("ended", "0"), True, id="not claimed"),
        pytest.param(False, "other", Answer("lost", "-"), False, id="a claim that a power failure took"),
    ],
)
def test_what_was_to_be_started_starts_again_only_if_it_certainly_has_not(
    system: System, claimed: bool, boot: str, answer: Answer, ran: bool
) -> None:
    spool = _store_running(system, "/bin/sh", "-c", "touch ran")
    system.change("INSERT INTO boot VALUES (?)", read_boot() if boot == "same" else boot)
    if claimed:
        (spool.run / "a.1").write_bytes(b"\0" * 60 + b"\n")
    assert system.wait_for_end() == {"a.1": answer}
    assert (system.folder / "ran").exists() == ran


def test_a_job_whose_queue_could_not_write_down_its_process_is_found(system: System) -> None:
    system.submit("a", 1, "touch up; : <go; exit 3")
    wait_until((system.folder / "up").exists)
    claim = system.spool / "run" / "a.1"
    # Of who is killed earlier nobody would know which process is to be found again.
    process = _wait_for_process(claim)
    system.kill(QUEUE, KEEPER)
    wait_until(lambda: not system.pids_of(QUEUE) and not system.pids_of(KEEPER))
    claim.write_bytes(b"")
    os.utime(claim, (0, time.time() - 0.1))
    system.query()
    assert _wait_for_process(claim) == process
    assert system.run("cancel", "a.1") == "a.1 signalled\n"
    assert system.wait_for_end() == {"a.1": Answer("lost", "-", CANCELLED)}


def _wait_for_process(claim: Path) -> Process:
    """The process that a claim names, as soon as somebody has written it down."""
    found: list[Process] = []

    def is_written() -> bool:
        run = read_run_file(claim) or JobRun()
        found.extend([run.process] if run.process else [])
        return bool(found)

    wait_until(is_written)
    return found[0]


def test_the_end_that_a_keeper_cannot_write_down_is_waited_for(system: System) -> None:
    system.submit("b", 1, "touch up; : <go; touch over; exit 6")
    wait_until((system.folder / "up").exists)
    (keeper,), first = system.pids_of(KEEPER), system.pids_of(QUEUE)
    system.kill(QUEUE)
    wait_until(lambda: system.pids_of(QUEUE) not in ([], first))
    # As a full disk does: files can be made, and nothing can be written to them.
    resource.prlimit(keeper, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
    system.gate.open()
    wait_until(lambda: (system.folder / "over").exists())
    # What the next queue has started shows that it has looked at what ran before.
    system.submit("c", 1, "exit 7")
    wait_until(lambda: system.query()["c.1"] == Answer("ended", "7"))
    run = read_run_file(system.spool / "run" / "b.1")
    assert run is not None
    assert run.process is not None
    assert run.end is None
    assert read_process(run.process.pid, zombie=True) == run.process
    assert system.query()["b.1"] == Answer("running", "-")
    resource.prlimit(keeper, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    system.wait_for_end()
    assert system.query() == {"b.1": Answer("ended", "6"), "c.1": Answer("ended", "7")}
