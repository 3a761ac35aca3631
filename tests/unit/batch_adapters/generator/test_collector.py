"""The collector: whose lines it takes, and that nobody's keep it from taking the others'."""

import os
import select
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from batch_adapters.generator import collector as allowances_module
from batch_adapters.generator import collector as collector_module
from batch_adapters.generator.collector import Allowances, Collector, listening, main, only_collector
from batch_adapters.generator.collector_protocol import LONGEST_PACKET, MOST_EVENTS, Receipt, hand_in, read_lines
from batch_adapters.states import Event, State
from tests.conftest import file_size_limit
from tests.waiting import SECONDS

ME, ALICE, BOB = os.getuid(), 30_001, 30_002
A, B = f"{ME}.aaaaaaaa", f"{ME}.bbbbbbbb"
TAKEN, LATER, REFUSED = Receipt.TAKEN, Receipt.LATER, Receipt.REFUSED
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two accounts")


class Host:
    """A collector, and accounts that speak to it."""

    def __init__(self, place: Path, listener: socket.socket) -> None:
        self.folder = place / "events"
        self.folder.mkdir(exist_ok=True)
        self.socket = place / "socket"
        self.collector = Collector(listener, self.folder)

    def connect(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        connection.settimeout(SECONDS)
        connection.connect(str(self.socket))
        return connection

    def serve(self) -> None:
        """As long as there is anything to do."""
        for _ in range(5):
            self.collector.serve(0)

    def say(self, packet: bytes, uid: int | None = None) -> list[Receipt]:
        """What an account says in one packet, and the answer."""
        if uid is None:
            with self.connect() as connection:
                return self._ask(connection, packet)
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            self._say_in_child(packet, uid, writer)
        os.close(writer)
        while not select.select([reader], [], [], 0)[0]:
            self.collector.serve(0.01)
        with open(reader, "rb") as answer:
            words = answer.read().decode()
        assert os.waitpid(child, 0)[1] == 0
        return [Receipt(word) for word in words.split()]

    def _ask(self, connection: socket.socket, packet: bytes) -> list[Receipt]:
        connection.send(packet)
        self.serve()
        return [Receipt(word) for word in connection.recv(LONGEST_PACKET).decode().split()]

    def _say_in_child(self, packet: bytes, uid: int, writer: int) -> None:
        status = 1
        try:
            os.setresuid(uid, uid, uid)
            with self.connect() as connection:
                connection.send(packet)
                os.write(writer, connection.recv(LONGEST_PACKET))
            status = 0
        finally:
            os._exit(status)

    def lines(self) -> list[str]:
        return [line.split(";", 2)[2] for path in sorted(self.folder.iterdir()) for line in path.read_text().split()]


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that every account may enter, as it may not enter pytest's."""
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        place.chmod(0o711)
        yield place


@pytest.fixture
def host(place: Path) -> Iterator[Host]:
    with listening(place / "socket") as listener:
        yield Host(place, listener)


def line(identity: str = A, state: int = 2, code: str = "0", stamp: str = "1") -> bytes:
    return f"001;{stamp};{identity};{state};{code}\n".encode()


def test_a_line_is_written_with_the_time_of_now_whatever_it_says(host: Host) -> None:
    before = int(time.time())
    assert host.say(line(stamp="1") + line(state=8, code="3", stamp="999999999999")) == [TAKEN, TAKEN]
    (path,) = host.folder.iterdir()
    found = [text.split(";") for text in path.read_text().splitlines()]
    assert [fields[2:] for fields in found] == [[A, "2", "0"], [A, "8", "3"]]
    assert all(before <= int(fields[1]) <= time.time() for fields in found)
    assert path.stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize(
    "bad",
    [
        pytest.param(b"# a comment\n", id="text"),
        pytest.param(b"\n", id="empty"),
        pytest.param(b"001;1;ME.aaaaaaaa;2\n", id="four fields"),
        pytest.param(b"001;1;ME.aaaaaaaa;2;0;\n", id="six fields"),
        pytest.param(b"002;1;aaaaaaaa;2;0\n", id="type"),
        pytest.param(b"001;;aaaaaaaa;2;0\n", id="no time"),
        pytest.param(b"001;1;ME.aaa;aaaaa;2;0\n", id="semicolon in the id"),
        pytest.param(b"001;1;ME." + b"a" * 200 + b";2;0\n", id="long id"),
        pytest.param(b"001;1;ME.aaaaaaa;2;0\n", id="short id"),
        pytest.param(b"001;1;%s%n%s%n;2;0\n", id="format"),
        pytest.param(b"001;1;ME.aaaaaaaa\r;2;0\n", id="control character"),
        pytest.param("001;1;ME.aaaaaaä;2;0\n".encode(), id="UTF-8"),
        pytest.param(b"001;1;ME.aaaaaaaa;16;0\n", id="suspended"),
        pytest.param(b"001;1;ME.aaaaaaaa;32;0\n", id="unsubmitted"),
        pytest.param(b"001;1;ME.aaaaaaaa;2;-1\n", id="negative exit code"),
        pytest.param(b"001;1;ME.aaaaaaaa;2;65536\n", id="large exit code"),
        pytest.param("001;1;ME.aaaaaaaa;2;٣\n".encode(), id="other digits"),
        pytest.param(b"001;1;ME.aaaaaaaa;2;0\0\n", id="NUL"),
    ],
)
def test_a_malformed_line_is_refused_and_the_good_ones_beside_it_are_not(host: Host, bad: bytes) -> None:
    assert host.say(line() + bad.replace(b"ME.", f"{ME}.".encode()) + line(B)) == [TAKEN, REFUSED, TAKEN]
    assert host.lines() == [f"{A};2;0", f"{B};2;0"]


def test_a_torn_line_at_the_end_is_refused(host: Host) -> None:
    assert host.say(line() + line(B, 8, "12").rstrip(b"2\n")) == [TAKEN, REFUSED]
    assert host.lines() == [f"{A};2;0"]


def test_a_packet_that_is_too_long_is_not_answered(host: Host) -> None:
    with host.connect() as connection:
        connection.send(line() * 2000)
        host.serve()
        assert connection.recv(100) == b""
    assert host.lines() == []


@needs_root
@pytest.mark.parametrize(
    ("identity", "answer"),
    [
        pytest.param(f"{BOB}.aaaaaaaa", TAKEN, id="its own"),
        pytest.param(f"{ALICE}.aaaaaaaa", REFUSED, id="another account's"),
        pytest.param(f"0{BOB}.aaaaaaaa", REFUSED, id="its own, written otherwise"),
        pytest.param(f"{str(BOB)[:-1]}.aaaaaaaa", REFUSED, id="the beginning of its own"),
        pytest.param(".aaaaaaaa", REFUSED, id="nobody's"),
        pytest.param("aaaaaaaa", REFUSED, id="without uid"),
    ],
)
def test_an_account_tells_of_ids_with_its_uid_only(host: Host, identity: str, answer: Receipt) -> None:
    assert host.say(line(identity, 8), BOB) == [answer]
    assert host.lines() == ([f"{identity};8;0"] if answer is TAKEN else [])


@needs_root
def test_an_account_that_says_too_much_delays_nobody_else(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allowances_module, "MOST_LINES", 3)
    monkeypatch.setattr(allowances_module, "LINES_PER_SECOND", 0.0)
    of_alice = line(f"{ALICE}.aaaaaaaa")
    assert host.say(of_alice * 5, ALICE) == [TAKEN] * 3 + [LATER] * 2
    assert host.say(of_alice, ALICE) == [LATER]
    assert host.say(line(f"{BOB}.aaaaaaaa"), BOB) == [TAKEN]


@needs_root
def test_an_account_that_holds_connections_keeps_nobody_else_out(host: Host) -> None:
    held = [host.connect() for _ in range(50)]
    host.serve()
    assert len(host.collector._callers) == collector_module._MOST_CALLERS
    assert host.say(line(f"{BOB}.aaaaaaaa"), BOB) == [TAKEN]
    for connection in held:
        connection.close()
    host.serve()
    assert host.collector._callers == {}
    assert host.say(line(A)) == [TAKEN]


def test_a_caller_that_says_nothing_is_dropped(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    with host.connect() as connection:
        host.serve()
        monkeypatch.setattr(collector_module, "_PATIENCE", 0.0)
        host.serve()
        assert connection.recv(100) == b""


def test_a_caller_that_does_not_wait_for_its_answer_is_no_problem(host: Host) -> None:
    with host.connect() as connection:
        connection.send(line(A))
    host.serve()
    assert host.say(line(B)) == [TAKEN]
    assert host.lines() == [f"{A};2;0", f"{B};2;0"]


def test_a_full_disk_tears_no_line_and_says_later(host: Host) -> None:
    host.say(line(A, 1) + line(B, 1))
    length = 28 + len(f"{ME}.")
    with file_size_limit(3 * length + 9):
        assert host.say(line(A) + line(B) + b"bad\n") == [LATER, LATER, REFUSED]
    assert host.lines() == [f"{A};1;0", f"{B};1;0", f"{A};2;0"]
    (path,) = host.folder.iterdir()
    assert path.read_bytes().endswith(b";2;0\n")
    assert host.say(line(A) + line(B)) == [TAKEN, TAKEN]


def test_a_folder_that_was_made_anew_is_written_again(host: Host) -> None:
    host.say(line(A))
    for path in host.folder.iterdir():
        path.unlink()
    assert host.say(line(B)) == [TAKEN]
    assert host.lines() == [f"{B};2;0"]


def test_each_utc_day_has_its_file_when_it_begins(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    for now in (1795305599, 1795305600, 1795305600 + 2 * 86_400):
        monkeypatch.setattr(time, "time", lambda now=now: now)
        host.collector._next_day_check = 0.0
        host.serve()
    assert sorted(path.name for path in host.folder.iterdir()) == ["20261121", "20261122", "20261123", "20261124"]


def test_an_allowance_comes_back_with_time() -> None:
    allowances = Allowances()
    most, rate = allowances_module.MOST_LINES, allowances_module.LINES_PER_SECOND
    assert [allowances.take(1, most + 5, 0), allowances.take(1, 5, 0)] == [most, 0]
    assert allowances.take(1, 5, 1 / rate) == 1
    assert allowances.take(1, 2 * most, 1e6) == most


def test_a_second_collector_takes_nothing_from_the_first(
    host: Host, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Its signal handlers would stay those of all further tests.
    monkeypatch.setattr(signal, "signal", lambda number, handler: None)
    with only_collector(host.folder):
        assert main(["-d", str(host.folder), "-s", str(host.socket)]) == 1
    assert f"another collector writes into {host.folder} already" in capsys.readouterr().err
    assert host.say(line(A)) == [TAKEN]


def answer_callers(listener: socket.socket, callers: int, answer: Callable[[bytes], bytes]) -> threading.Thread:
    """Stands in for a collector."""
    listener.setblocking(True)

    def serve() -> None:
        for _ in range(callers):
            connection, _ = listener.accept()
            with connection:
                connection.send(answer(connection.recv(LONGEST_PACKET + 1)))

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    return thread


def test_hand_in_cuts_what_is_more_than_a_packet(place: Path) -> None:
    packets: list[int] = []

    def take(packet: bytes) -> bytes:
        packets.append(len(packet))
        return b"taken\n" * len(read_lines(packet, ME))

    events = [Event(1795219200, A, State.DONE, 65_535)] * (2 * MOST_EVENTS + 1)
    with listening(place / "socket") as listener:
        thread = answer_callers(listener, 3, take)
        assert hand_in(place / "socket", events) == [TAKEN] * len(events)
        thread.join()
    assert max(packets) <= LONGEST_PACKET


@pytest.mark.parametrize("words", [b"taken\n", b"taken\ntaken\ntaken\n", b"taken\nno\n", b"\xff\n"])
def test_an_answer_that_no_collector_gives_is_no_answer(place: Path, words: bytes) -> None:
    with listening(place / "socket") as listener:
        thread = answer_callers(listener, 1, lambda packet: words)
        with pytest.raises(OSError, match="answer"):
            hand_in(place / "socket", [Event(1, A, State.ACTIVE)] * 2)
        thread.join()
