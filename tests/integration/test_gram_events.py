"""SEG mode from a grid job to GRAM's own reader, which is the judge of what we write."""

import os
import resource
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest

from batch_adapters.generator.collector_protocol import LONGEST_PACKET, Receipt, hand_in
from batch_adapters.generator.emit import keep_days, write_events_now
from batch_adapters.states import Event, State
from jobmanager.database.grid_job import GramOrigin
from jobmanager.gram.answers import gram_id, read_gram_id
from jobmanager.monitor.client import wake_monitor
from jobmanager.requests.acceptance import accept_grid_job
from jobmanager.site.account import Account, open_account
from tests.conftest import end_processes_of, processes_of
from tests.samgrid import LAUNCH
from tests.waiting import Gate, is_gone, wait_until

READER = shutil.which("globus-scheduler-event-generator", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
ALICE, BOB = 30_001, 30_002
A, B = f"{os.getuid()}.aaaaaaaa", f"{os.getuid()}.bbbbbbbb"
OF_ALICE, OF_BOB = f"{ALICE}.aaaaaaaa", f"{BOB}.bbbbbbbb"

pytestmark = pytest.mark.skipif(READER is None, reason="globus-scheduler-event-generator is not installed")
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two accounts")


class Reader:
    """The program with which GRAM's job manager reads the day files."""

    def __init__(self, folder: Path, since: int) -> None:
        self._process = subprocess.Popen(
            [str(READER), "-s", "job_manager", "-t", str(since)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "JOB_MANAGER_SEG_SCHEDULER": "x", "JOB_MANAGER_SEG_LOG_PATH": str(folder)},
        )
        self.text = ""

    def events(self) -> list[str]:
        """Id, state and exit code of every event that it has told so far."""
        assert self._process.stdout is not None
        while select.select([self._process.stdout], [], [], 0)[0]:
            block = os.read(self._process.stdout.fileno(), 65_536)
            assert block, "the reader has ended"
            self.text += block.decode()
        return [line.split(";", 2)[2] for line in self.text.splitlines()]

    def wait_for(self, event: str, times: int = 1) -> list[str]:
        """Everything told until an event was told so often."""
        wait_until(lambda: self.events().count(event) >= times)
        return self.events()

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that every account may enter, as it may not enter pytest's."""
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        place.chmod(0o711)
        (place / "events").mkdir(mode=0o755)
        yield place


def is_listening(path: Path) -> bool:
    """True where a connection is taken: a socket is bound, and its name is there, a moment before it listens."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        return connection.connect_ex(str(path)) == 0


@contextmanager
def collecting(place: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """A collector at work."""
    options = ["-d", place / "events", "-s", place / "socket"]
    process = subprocess.Popen([sys.executable, "-P", str(LAUNCH), "samgrid-event-collector", *map(str, options)])
    try:
        wait_until(lambda: is_listening(place / "socket"))
        yield process
    finally:
        process.terminate()
        assert process.wait() in (143, -signal.SIGTERM)


@contextmanager
def reading(place: Path) -> Iterator[Reader]:
    reader = Reader(place / "events", int(time.time()) - 1)
    try:
        yield reader
    finally:
        reader.end()


@pytest.fixture
def seg(tmp_path: Path, place: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Account]:
    """An account whose monitor hands its events to the collector."""
    monkeypatch.setenv("SAMGRID_GRAM_EVENT_COLLECTOR", str(place / "socket"))
    monkeypatch.setenv("SAMGRID_SANDBOX_SCRATCH_FOLDER", str(tmp_path))
    yield open_account(str(tmp_path / "state"))
    end_processes_of(tmp_path / "state")


def submit(account: Account, script: str, uniqid: str = "1.2.3") -> str:
    """What a submit of GRAM's does; the id that it is told."""
    given = [("samgrid_type", ("command",)), ("executable", ("/bin/sh",)), ("arguments", ("-c", script))]
    folder = account.places.root
    origin = GramOrigin(uniqid, "https://localhost/1/2/", str(folder / "stdout"), str(folder / "stderr"), False)
    job_id = accept_grid_job(account, given, folder, origin)
    wake_monitor(account)
    return gram_id(job_id)


def kill_monitor(account: Account) -> None:
    """Kill the account's monitor, and return when it is gone."""
    for pid in processes_of(account.places.root, "samgrid-monitor"):
        # One that found another there may have ended meanwhile.
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        wait_until(partial(is_gone, pid))


def is_over(account: Account, told: str) -> bool:
    return account.database.grid_jobs.get(read_gram_id(told)).state.is_final


def say(place: Path, packet: bytes, uid: int | None = None) -> list[str]:
    """What an account says to the collector, and its answer."""
    code = (
        "import os, socket, sys; uid = int(sys.argv[2]); uid and os.setresuid(uid, uid, uid);"
        "connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); connection.connect(sys.argv[1]);"
        f"connection.send(sys.stdin.buffer.read()); sys.stdout.write(connection.recv({LONGEST_PACKET}).decode())"
    )
    command = [sys.executable, "-I", "-c", code, str(place / "socket"), str(uid or 0)]
    return subprocess.run(command, input=packet, stdout=subprocess.PIPE, check=True).stdout.decode().split()


def test_gram_reads_the_states_of_a_grid_job_in_their_order(seg: Account, place: Path) -> None:
    with collecting(place), reading(place) as reader:
        good = submit(seg, "true", "1")
        bad = submit(seg, "exit 3", "2")
        reader.wait_for(f"{bad};8;1")
        told = [event for event in reader.wait_for(f"{good};8;0") if event.startswith(good)]
        assert list(dict.fromkeys(told)) == [f"{good};{state};0" for state in (1, 2, 8)]
        reader.wait_for(f"{good};8;0", 2)
    wait_until(lambda: seg.database.grid_jobs.get(read_gram_id(good)).reported is State.DONE)


def test_a_monitor_killed_at_any_moment_loses_no_end(seg: Account, place: Path, gate: Gate) -> None:
    with collecting(place), reading(place) as reader:
        job_id = submit(seg, f": <{gate.path}")
        wait_until(lambda: bool(seg.database.local_jobs.count(read_gram_id(job_id))))
        kill_monitor(seg)
        wake_monitor(seg)
        reader.wait_for(f"{job_id};2;0")
        # Nobody asks for another: the workers' server starts it.
        kill_monitor(seg)
        gate.open()
        wait_until(lambda: is_over(seg, job_id))
        kill_monitor(seg)
        wake_monitor(seg)
        told = reader.wait_for(f"{job_id};8;0")
    assert told.index(f"{job_id};2;0") < told.index(f"{job_id};8;0")


def test_events_wait_for_a_collector_that_comes_late_or_dies(seg: Account, place: Path) -> None:
    job_id = submit(seg, "true")
    wait_until(lambda: is_over(seg, job_id))
    with reading(place) as reader:
        with collecting(place):
            reader.wait_for(f"{job_id};8;0")
        second = submit(seg, "true", "4.5.6")
        wait_until(lambda: is_over(seg, second))
        with collecting(place):
            assert reader.wait_for(f"{second};8;0").index(f"{second};2;0") < reader.events().index(f"{second};8;0")


@needs_root
def test_nothing_that_an_account_says_blocks_the_reader_or_is_taken_for_anothers(place: Path) -> None:
    with collecting(place), reading(place) as reader:
        assert say(place, f"001;1;{OF_ALICE};1;0\n".encode(), ALICE) == ["taken"]
        hostile = [
            f"001;1;{OF_ALICE};8;0\n".encode(),
            b"# comment\n001;1;x;y;2;0\n\n\n",
            b"001;1;" + b"a" * 129 + b";2;0\n",
            f"001;1;%s%s%n%n;2;0\n001;1;{OF_BOB};16;0\n001;1;{OF_BOB};32;0\n002;1;{OF_BOB};8;0\n".encode(),
            b"\xff\xfe\0\n" * 30,
            f"001;1;{OF_BOB};8".encode(),
            f"001;1;{OF_BOB};8;1".encode(),
        ]
        for packet in hostile:
            assert set(say(place, packet, BOB)) == {"refused"}
        assert say(place, f"001;1;{OF_BOB};8;7\n".encode(), BOB) == ["taken"]
        assert say(place, f"001;1;{OF_ALICE};8;9\n".encode(), ALICE) == ["taken"]
        assert reader.wait_for(f"{OF_ALICE};8;9") == [f"{OF_ALICE};1;0", f"{OF_BOB};8;7", f"{OF_ALICE};8;9"]


def test_a_full_disk_tears_no_line_that_the_reader_stumbles_over(place: Path) -> None:
    events = [Event(0, A, State.ACTIVE), Event(0, B, State.ACTIVE)]
    with collecting(place) as collector, reading(place) as reader:
        hand_in(place / "socket", events)
        for room in range(1, 60, 7):
            (day,) = (place / "events").iterdir()
            resource.prlimit(collector.pid, resource.RLIMIT_FSIZE, (day.stat().st_size + room, resource.RLIM_INFINITY))
            assert set(hand_in(place / "socket", events)) <= {Receipt.LATER, Receipt.TAKEN}
        resource.prlimit(collector.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        assert hand_in(place / "socket", [Event(0, A, State.DONE, 5)]) == [Receipt.TAKEN]
        assert set(reader.wait_for(f"{A};8;5")) == {f"{A};2;0", f"{B};2;0", f"{A};8;5"}


def test_the_reader_goes_over_midnight(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    midnight = int(time.time()) // 86_400 * 86_400
    before, after = midnight - 86_400 - 1, midnight - 86_400
    for clock, job_id in ((before, A), (after, B)):
        with monkeypatch.context() as patch:
            patch.setattr(time, "time", lambda clock=clock: clock)
            write_events_now(place / "events", [Event(0, job_id, State.ACTIVE)])
    keep_days(place / "events")
    reader = Reader(place / "events", before)
    try:
        assert reader.wait_for(f"{B};2;0") == [f"{A};2;0", f"{B};2;0"]
        with collecting(place):
            hand_in(place / "socket", [Event(0, A, State.DONE, 5)])
            reader.wait_for(f"{A};8;5")
    finally:
        reader.end()


def test_a_socket_that_is_none_of_ours_costs_a_second_and_no_more(seg: Account, place: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as silent:
        silent.bind(str(place / "socket"))
        silent.listen(10)
        job_id = submit(seg, "true")
        wait_until(lambda: is_over(seg, job_id))
