"""Callers of the monitor, and monitors that are not there, do not answer, or are killed while they do."""

import contextlib
import fcntl
import os
import selectors
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from jobmanager.monitor import client as monitor_client
from jobmanager.monitor.client import ask_monitor, is_listening, socket_address, start_monitor, wake_monitor
from jobmanager.site.account import Account
from jobmanager.site.places import StatePlaces, make_state_folder
from tests.unit.traps import TRAPS
from tests.waiting import wait_until

Serve = Callable[[Callable[[socket.socket], None]], int]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Account]:
    """The accounts for which a monitor would have been started."""
    started: list[Account] = []
    monkeypatch.setattr(monitor_client, "start_monitor", started.append)
    return started


@pytest.fixture
def serve(account: Account) -> Iterator[Serve]:
    """Be a monitor: a process that owns the account's socket and does with its listener what it is told; its pid."""
    children: list[int] = []

    def start(behave: Callable[[socket.socket], None]) -> int:
        with socket_address(account) as address, socket.socket(socket.AF_UNIX) as listener:
            listener.bind(address)
            listener.listen(8)
            child = os.fork()
            if child == 0:
                try:
                    behave(listener)
                finally:
                    os._exit(0)
            children.append(child)
            return child

    yield start
    for child in children:
        os.kill(child, 9)
        os.waitpid(child, 0)


def answer(*parts: bytes) -> Callable[[socket.socket], None]:
    """Answer every caller so."""

    def behave(listener: socket.socket) -> None:
        while True:
            # Who only wakes us does not wait for our answer.
            with listener.accept()[0] as connection, contextlib.suppress(OSError):
                for part in parts:
                    connection.sendall(part)

    return behave


def stay_silent(listener: socket.socket) -> None:
    """Take every caller, and tell none of them anything."""
    connections = []
    while True:
        connections.append(listener.accept()[0])


def wait_for_a_caller(listener: socket.socket) -> None:
    """Return, and so end, when somebody has connected whom nobody has taken yet."""
    with selectors.DefaultSelector() as selector:
        selector.register(listener, selectors.EVENT_READ)
        selector.select()


@pytest.mark.parametrize("call", [wake_monitor, ask_monitor])
def test_a_monitor_of_another_version_is_ended_and_ours_takes_its_place(
    account: Account, serve: Serve, started: list[Account], call: Callable[[Account], object]
) -> None:
    def listen(listener: socket.socket) -> None:
        listener.listen(8)  # whoever calls it last is the peer that callers see
        account.places.monitor_configuration.write_text("layout 4\nConfiguration()")
        stay_silent(listener)

    pid = serve(listen)
    written = account.places.monitor_configuration
    wait_until(lambda: written.exists() and written.read_text() != "")
    call(account)
    assert started == [account]
    assert os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT).si_status == signal.SIGTERM  # type: ignore[union-attr]


def test_a_monitor_tells_its_problems(account: Account, serve: Serve, started: list[Account]) -> None:
    serve(answer(b"aaaaaaaa: submit: the disk ", "is füll\n".encode()))
    wake_monitor(account)
    assert ask_monitor(account) == "aaaaaaaa: submit: the disk is füll\n"
    assert not started


def test_a_monitor_without_problems_says_nothing(account: Account, serve: Serve, started: list[Account]) -> None:
    serve(answer())
    assert ask_monitor(account) == ""
    assert not started


@pytest.mark.parametrize("call", [wake_monitor, ask_monitor])
def test_where_none_is_there_one_is_started(
    account: Account, started: list[Account], call: Callable[[Account], object]
) -> None:
    assert not call(account)
    assert started == [account]


@pytest.mark.parametrize("call", [wake_monitor, ask_monitor])
def test_the_socket_of_a_dead_monitor_is_no_monitor(
    account: Account, serve: Serve, started: list[Account], call: Callable[[Account], object]
) -> None:
    dead = serve(lambda listener: None)
    os.waitid(os.P_PID, dead, os.WEXITED | os.WNOWAIT)
    assert account.places.monitor_socket.is_socket()
    assert not call(account)
    assert started == [account]


def test_a_monitor_that_does_not_answer_is_told_and_not_waited_for(
    account: Account, serve: Serve, started: list[Account], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(monitor_client, "_ANSWER_TIME", 0.1)
    serve(stay_silent)
    assert ask_monitor(account) == f"monitor: no answer within 0.1 s, see {account.places.monitor_log}\n"
    wake_monitor(account)
    assert not started, "the one that hangs holds the lock: another would be of no use"


def test_of_a_monitor_that_a_signal_has_stopped_it_is_said_how_it_goes_on(
    account: Account, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(listener: socket.socket) -> None:
        listener.listen(8)  # whoever calls it last is the peer that callers see
        os.kill(os.getpid(), signal.SIGSTOP)

    monkeypatch.setattr(monitor_client, "_ANSWER_TIME", 0.1)
    pid = serve(stop)
    os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOWAIT)
    words = f"no answer within 0.1 s, a signal has stopped it: kill -CONT {pid} lets it go on"
    assert ask_monitor(account) == f"monitor: {words}\n"


def test_a_monitor_that_is_killed_before_it_answers_is_replaced(
    account: Account, serve: Serve, started: list[Account]
) -> None:
    serve(wait_for_a_caller)
    assert ask_monitor(account) == ""
    assert started == [account]


def test_a_monitor_that_is_killed_while_it_answers_has_said_what_it_said(
    account: Account, serve: Serve, started: list[Account]
) -> None:
    def die(listener: socket.socket) -> None:
        listener.accept()[0].sendall(b"aaaaaaaa: submit: the di")

    serve(die)
    assert ask_monitor(account) == "aaaaaaaa: submit: the di"


def test_an_endless_answer_ends(account: Account, serve: Serve, started: list[Account]) -> None:
    serve(answer(*[b"\xff" * 1000] * 1000))
    assert 65536 <= len(ask_monitor(account)) < 200_000


@pytest.mark.parametrize("length", [107, 108, 300])
def test_the_path_of_the_state_folder_may_be_long(
    account: Account, tmp_path: Path, started: list[Account], length: int
) -> None:
    root = tmp_path
    while len(str(root)) < length:
        root /= "x" * min(50, length - len(str(root)))
    make_state_folder(root)
    far = Account(StatePlaces(root), account.configuration)
    with socket_address(far) as address, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        assert far.places.monitor_socket.is_socket()
        listener.listen(8)
        wake_monitor(far)
        listener.accept()[0].close()
    assert not started


# --- starting one


def test_a_monitor_is_started_with_nothing_of_its_callers(
    account: Account, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = tmp_path / "told"
    # What the shell knows of itself is kept in variables until the end: writing it down takes descriptors.
    script = f"""for n in 0 1 2; do places="$places $(readlink /proc/$$/fd/$n)"; done
for path in /proc/$$/fd/*; do open="$open ${{path##*/}}"; done
echo $places $PWD $$ $(cut -d' ' -f6 /proc/self/stat) $open >{told}.new
mv {told}.new {told}"""
    monkeypatch.setattr(Account, "program", lambda account, *words: ["/bin/sh", "-c", script])
    held = os.dup2(os.open(tmp_path, os.O_RDONLY), 42, inheritable=True)
    start_monitor(account)
    os.close(held)
    wait_until(told.exists)
    stdin, stdout, stderr, folder, pid, session, *descriptors = told.read_text().split()
    log = str(account.places.monitor_log)
    assert (stdin, stdout, stderr, folder) == ("/dev/null", log, log, "/")
    assert pid == session
    assert set(descriptors) - {"3"} == {"0", "1", "2"}, "3 is the shell's own, while it looks"
    assert account.places.monitor_log.stat().st_mode & 0o777 == 0o600


def test_a_log_that_is_a_link_is_not_written_to(account: Account, tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("precious")
    account.places.monitor_log.symlink_to(tmp_path / "precious")
    with pytest.raises(OSError, match=str(account.places.monitor_log)):
        start_monitor(account)
    assert (tmp_path / "precious").read_text() == "precious"


@pytest.mark.parametrize("make", TRAPS)
@pytest.mark.parametrize("name", ["configuration", "lock"])
def test_what_no_monitor_could_start_with_is_told_to_whoever_wants_one(
    account: Account, make: Callable[[Path], object], name: str
) -> None:
    make(account.places.root / f"monitor.{name}")
    with pytest.raises(OSError, match=rf"no regular file.*monitor\.{name}"):
        start_monitor(account)


def test_a_folder_in_place_of_the_socket_is_told_to_whoever_wants_a_monitor(account: Account) -> None:
    account.places.monitor_socket.mkdir()
    with pytest.raises(OSError, match="a folder in the place of the monitor's socket"):
        wake_monitor(account)


def test_ten_callers_at_once_start_one_monitor(
    account: Account, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pids = tmp_path / "pids"
    with monkeypatch.context() as patch:
        patch.setattr(Account, "program", lambda *_: ["/bin/sh", "-c", f"echo $$ >>{pids}; exec sleep 600"])
        for _ in range(10):
            wake_monitor(account)
        wait_until(lambda: pids.exists() and pids.read_text().endswith("\n"))
        (pid,) = map(int, pids.read_text().split())
        # One that dies before it listens is in nobody's way.
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        wake_monitor(account)
        wait_until(lambda: pids.read_text().count("\n") == 2)
        pid = int(pids.read_text().split()[1])
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def test_a_monitor_that_listens_is_not_just_starting_any_more(account: Account) -> None:
    start_monitor(account)
    wait_until(lambda: is_listening(account))
    with account.places.monitor_log.open() as log:
        wait_until(lambda: can_be_locked(log.fileno()))
    with socket_address(account) as address, socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address)
        monitor_client._end_peer(connection)


def can_be_locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
