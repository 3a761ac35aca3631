"""The workers' server: how its workers end is told, nothing of them stays, and none outlives it."""

import os
import resource
import select
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from jobmanager.monitor.workers import LOST, TRY_LATER, ForkedWorker, WorkerClient
from jobmanager.site.account import Account
from jobmanager.site.configuration import Configuration, read_configuration
from jobmanager.site.places import StatePlaces
from jobmanager.states.aggregation import Task
from tests.descriptors import open_descriptors
from tests.waiting import SECONDS, turn_until, wait_until

ROOT = Path(__file__).resolve().parents[4]
SERVER = f"""
import os, signal, subprocess, sys, time
sys.path.insert(0, {str(ROOT)!r})
from jobmanager.monitor.worker_server import serve

def work(task, subject):
    if task == "wake" and "WOKEN" in os.environ:
        open(os.environ["WOKEN"], "w").close()
    names = {{**globals(), "status": 0}}
    exec(subject, names)
    return names["status"]

serve(work)
"""
"""A server whose workers do what the subject of their task says, in Python; one that is to wake writes a file."""


class Loop:
    """What the monitor has: its loop, and a server in it."""

    def __init__(self, account: Account, folder: Path) -> None:
        self.selector = selectors.DefaultSelector()
        self.client = WorkerClient(account, self.selector)
        self.folder = folder

    def start(self, script: str) -> ForkedWorker:
        """A worker that does that."""
        return self.client.start(Task.SUBMIT, script)

    def start_and_wait(self, script: str) -> ForkedWorker:
        """A worker that does that and then waits until it is killed."""
        begun = self.folder / f"begun-{time.monotonic_ns()}"
        worker = self.start(f"{script}\nopen({str(begun)!r}, 'w')\ntime.sleep(3600)")
        self.turn_until(begun.exists)
        return worker

    def turn_until(self, is_so: Callable[[], bool]) -> None:
        turn_until(self.selector, is_so, self.client.supervise)

    def see_end(self, worker: ForkedWorker) -> tuple[int | None, str]:
        """Exit status and last words."""
        self.turn_until(lambda: worker.exit_status() is not None)
        return worker.exit_status(), worker.last_output

    def run(self, script: str) -> tuple[int | None, str]:
        """Exit status and last words of a worker that does that."""
        return self.see_end(self.start(script))

    @property
    def server(self) -> int:
        """The server's pid."""
        assert self.client._server is not None
        return self.client._server._process.pid


@contextmanager
def looping(account: Account, folder: Path) -> Iterator[Loop]:
    """A loop, until the end of the block."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Account, "program", lambda account, *words: [sys.executable, "-P", "-c", SERVER])
        loop = Loop(account, folder)
        yield loop
        loop.client.stop()
    assert not loop.selector.get_map()
    loop.selector.close()


@pytest.fixture
def new_loop(account: Account, tmp_path: Path) -> Iterator[Loop]:
    """A loop that has no server yet."""
    with looping(account, tmp_path) as loop:
        yield loop


@pytest.fixture(scope="module")
def loop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loop]:
    """A loop that tests leave with a server that works, or with none."""
    folder = tmp_path_factory.mktemp("loop")
    configuration = read_configuration({}, site_file=Path("/nonexistent"))
    assert isinstance(configuration, Configuration)
    with looping(Account(StatePlaces(folder), configuration), folder) as loop:
        yield loop


def is_alive(pid: int) -> bool:
    """False also of one that has died, and that nobody has waited for yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def children_of(pid: int) -> list[int]:
    """The dead ones included that nobody has waited for."""
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.parametrize(
    ("script", "status", "words"),
    [
        ("pass", 0, ""),
        ("status = 75; print('the disk is full', file=sys.stderr)", 75, "the disk is full"),
        ("print('for nobody'); os.system('echo for nobody')", 0, ""),
        ("os.write(2, b'last words'); os.kill(os.getpid(), 9)", -9, "last words"),
        ("os.write(2, b'caf\\351'); os.kill(os.getpid(), 9)", -9, "caf\ufffd"),
        ("os._exit(76)", 76, ""),
    ],
    ids=["good", "later", "stdout", "killed", "no text", "exit"],
)
def test_how_a_worker_ended_is_told(loop: Loop, script: str, status: int, words: str) -> None:
    assert loop.run(script) == (status, words)


@pytest.mark.parametrize("script", ["raise ValueError('a fault of ours')", "sys.exit('a fault of ours')"])
def test_what_a_worker_did_not_foresee_is_told_and_hurts_nobody_else(loop: Loop, script: str) -> None:
    status, words = loop.run(script)
    assert status == 1
    assert words.endswith("a fault of ours")
    assert loop.run("pass") == (0, "")


def test_of_many_words_the_last_are_told(loop: Loop) -> None:
    status, words = loop.run("print('x' * 500_000, 'the end', file=sys.stderr)")
    assert (status, words[-10:]) == (0, "xx the end")
    assert len(words) <= 2000


def test_workers_are_forked_from_one_server_each_in_a_session_of_its_own(loop: Loop) -> None:
    script = "print(os.getppid(), os.getpid() == os.getsid(0), file=sys.stderr)"
    said = {loop.run(script)[1] for _ in range(3)}
    assert said == {f"{loop.server} True"}


def test_a_worker_finds_loaded_what_takes_long_to_load(loop: Loop) -> None:
    script = "from sandbox.driver import load_template; compiled = load_template.cache_info().currsize\n"
    script += "print(compiled, {'jinja2', 'lxml.etree', 'sh', 'tenacity'} <= {*sys.modules}, file=sys.stderr)"
    assert loop.run(script)[1] == "1 True"


def test_a_worker_holds_nothing_of_the_servers(loop: Loop) -> None:
    others = [loop.start_and_wait("pass") for _ in range(2)]
    _, words = loop.run(
        "print([os.readlink(f'/proc/self/fd/{n}').split(':')[0] for n in range(50)"
        " if os.path.lexists(f'/proc/self/fd/{n}')], file=sys.stderr)"
    )
    assert words == "['/dev/null', '/dev/null', 'pipe']"
    for other in others:
        other.kill()


def test_the_server_keeps_nothing_of_workers_that_ended(loop: Loop) -> None:
    loop.run("pass")
    before = os.listdir(f"/proc/{loop.server}/fd")  # noqa: PTH208
    for script in ("pass", "os.kill(os.getpid(), 9)", "print('x' * 100_000, file=sys.stderr)"):
        loop.run(script)
    loop.start_and_wait("pass").kill()
    loop.run("pass")
    assert os.listdir(f"/proc/{loop.server}/fd") == before  # noqa: PTH208
    assert children_of(loop.server) == []


def test_a_program_that_a_worker_leaves_does_not_hide_its_end(loop: Loop) -> None:
    script = "print(subprocess.Popen(['sleep', '3600']).pid, file=sys.stderr)"
    status, words = loop.run(script)
    assert status == 0
    os.kill(int(words), signal.SIGKILL)


def test_a_worker_is_killed_with_what_it_has_started_before_the_next_one_starts(loop: Loop, tmp_path: Path) -> None:
    pid, lock = tmp_path / "pid", tmp_path / "lock"
    take = f"import fcntl; lock = open({str(lock)!r}, 'w'); fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)"
    worker = loop.start_and_wait(f"{take}; open({str(pid)!r}, 'w').write(str(subprocess.Popen(['sleep', '99']).pid))")
    worker.kill()
    assert loop.run(take) == (0, "")
    loop.turn_until(lambda: not is_alive(int(pid.read_text())))
    assert worker.exit_status() is None, "nobody waits for it any more"


def test_a_worker_that_has_ended_can_be_killed(loop: Loop) -> None:
    worker = loop.start("pass")
    loop.turn_until(lambda: loop.client._server is not None and bool(loop.selector.select(SECONDS)))
    worker.kill()
    assert loop.run("pass") == (0, "")


def test_a_server_that_is_killed_takes_its_workers_along_and_another_takes_its_place(
    loop: Loop, tmp_path: Path
) -> None:
    pid = tmp_path / "pid"
    worker = loop.start_and_wait(f"open({str(pid)!r}, 'w').write(str(os.getpid()))")
    first = loop.server
    os.kill(first, signal.SIGKILL)
    status, words = loop.see_end(worker)
    assert (status, words) == (LOST, "the workers' server ended with status -9")
    loop.turn_until(lambda: not is_alive(int(pid.read_text())))
    assert loop.run("pass") == (0, "")
    assert not Path(f"/proc/{first}").exists()
    assert loop.server != first


@pytest.mark.parametrize("whom", ["os.getpid()", "os.getppid()"], ids=["itself", "the server"])
def test_a_worker_that_stops_somebody_holds_up_nobody(loop: Loop, whom: str) -> None:
    assert loop.run(f"os.kill({whom}, signal.SIGSTOP)") == (0, "")


@pytest.mark.parametrize("left", [0, 2], ids=["no pipe", "a pipe, but no pidfd"])
def test_a_server_without_descriptors_says_so_and_goes_on(loop: Loop, left: int) -> None:
    loop.run("pass")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = {int(path.name) for path in Path(f"/proc/{loop.server}/fd").iterdir()}
    limit = [number for number in range(len(used) + left + 1) if number not in used][left]
    resource.prlimit(loop.server, resource.RLIMIT_NOFILE, (limit, hard))
    assert loop.run("pass") == (TRY_LATER, "Too many open files")
    resource.prlimit(loop.server, resource.RLIMIT_NOFILE, (soft, hard))
    assert loop.run("pass") == (0, "")


def test_a_server_whose_death_was_not_seen_yet_is_replaced_when_it_is_needed(loop: Loop) -> None:
    loop.run("pass")
    first = loop.server
    os.kill(first, signal.SIGKILL)
    os.waitid(os.P_PID, first, os.WEXITED | os.WNOWAIT)
    assert loop.run("pass") == (0, "")
    assert loop.server != first


def test_servers_that_come_and_go_leave_no_descriptor(loop: Loop) -> None:
    loop.run("pass")
    before = len(open_descriptors())
    for _ in range(2):
        os.kill(loop.server, signal.SIGKILL)
        loop.turn_until(lambda: loop.client._server is None)
        loop.run("pass")
    assert len(open_descriptors()) <= before


def test_a_server_that_cannot_work_says_why(new_loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = [sys.executable, "-c", "raise ImportError('no module of that name')"]
    monkeypatch.setattr(Account, "program", lambda account, *words: broken)
    status, words = new_loop.run("pass")
    assert status == LOST
    assert words.endswith("ImportError: no module of that name")


def test_a_server_that_has_died_before_it_is_asked_says_why(new_loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = [sys.executable, "-c", "raise ImportError('no module of that name')"]
    monkeypatch.setattr(Account, "program", lambda account, *words: broken)
    connect = new_loop.client._connect

    def connect_and_wait() -> socket.socket:
        connection = connect()
        poll = select.poll()
        poll.register(connection, select.POLLHUP)
        poll.poll()
        return connection

    monkeypatch.setattr(new_loop.client, "_connect", connect_and_wait)
    status, words = new_loop.run("pass")
    assert status == LOST
    assert words.endswith("ImportError: no module of that name")


@dataclass(frozen=True)
class Orphan:
    """A server with a worker, the other end of whose connection is the test's."""

    server: subprocess.Popen[bytes]
    connection: socket.socket
    go: Path
    """Lets the worker end."""
    done: Path

    def worker_is_dead(self) -> bool:
        return not any(map(is_alive, children_of(self.server.pid)))


@pytest.fixture
def orphan(tmp_path: Path) -> Iterator[Orphan]:
    begun, go, done = tmp_path / "begun", tmp_path / "go", tmp_path / "done"
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    environment = {**os.environ, "WOKEN": str(tmp_path / "woken")}
    server = subprocess.Popen([sys.executable, "-P", "-c", SERVER], stdin=theirs.fileno(), env=environment)
    theirs.close()
    wait = f"while not os.path.exists({str(go)!r}): time.sleep(0.01)"
    ours.send(f"start 1 collect open({str(begun)!r}, 'w')\n{wait}\nopen({str(done)!r}, 'w')".encode())
    wait_until(begun.exists)
    yield Orphan(server, ours, go, done)
    server.kill()
    server.wait()
    ours.close()


def test_a_server_without_a_monitor_ends_after_its_last_worker(orphan: Orphan) -> None:
    orphan.connection.close()
    wait_until(lambda: len(children_of(orphan.server.pid)) == 1)  # another, of no monitor's, ends at once
    orphan.go.touch()
    assert orphan.server.wait(SECONDS) == 0
    assert orphan.done.exists()


@pytest.mark.parametrize("task", ["submit", "advance"])
def test_a_worker_that_may_hang_in_a_handler_does_not_outlive_the_monitor(orphan: Orphan, task: str) -> None:
    begun = orphan.go.with_name("hanging")
    orphan.connection.send(f"start 2 {task} open({str(begun)!r}, 'w'); time.sleep(3600)".encode())
    wait_until(begun.exists)
    orphan.connection.close()
    wait_until(lambda: len(children_of(orphan.server.pid)) == 1)
    orphan.go.touch()
    assert orphan.server.wait(SECONDS) == 0
    assert orphan.done.exists()


def test_a_submission_on_its_way_is_heard_to_its_end_and_no_other_begins(orphan: Orphan) -> None:
    begun, heard = orphan.go.with_name("sent"), orphan.go.with_name("heard")
    script = f"""
from jobmanager.submission.submit import uninterrupted
for number in range(3):
    with uninterrupted():
        open({str(begun)!r} + str(number), "w")
        while not os.path.exists({str(orphan.go)!r}): time.sleep(0.01)
        open({str(heard)!r} + str(number), "w")
"""
    orphan.connection.send(f"start 2 submit {script}".encode())
    first, second = (heard.with_name(f"{heard.name}{number}") for number in (0, 1))
    wait_until(begun.with_name(f"{begun.name}0").exists)
    orphan.connection.close()
    # A worker of no monitor's begins when all others were told.
    wait_until(orphan.go.with_name("woken").exists)
    assert not first.exists()
    orphan.go.touch()
    assert orphan.server.wait(SECONDS) == 0
    assert (first.exists(), second.exists()) == (True, False)
    assert not begun.with_name(f"{begun.name}1").exists()


def test_what_a_handler_has_started_does_not_outlive_the_monitor(orphan: Orphan) -> None:
    pid = orphan.go.with_name("pid")
    script = f"open({str(pid)!r}, 'w').write(str(subprocess.Popen(['sleep', '3600']).pid) + '\\n'); time.sleep(3600)"
    orphan.connection.send(f"start 2 submit {script}".encode())
    wait_until(lambda: pid.exists() and pid.read_text().endswith("\n"))
    orphan.connection.close()
    wait_until(lambda: not is_alive(int(pid.read_text())))


def test_a_server_outlives_a_monitor_that_has_not_heard_all_it_said(orphan: Orphan) -> None:
    orphan.connection.send(b"start 2 submit pass")
    select.select([orphan.connection], [], [], SECONDS)
    # It is to find that the worker has ended before it finds that the monitor has.
    os.kill(orphan.server.pid, signal.SIGSTOP)
    orphan.go.touch()
    wait_until(orphan.worker_is_dead)
    orphan.connection.close()
    os.kill(orphan.server.pid, signal.SIGCONT)
    assert orphan.server.wait(SECONDS) == 0
