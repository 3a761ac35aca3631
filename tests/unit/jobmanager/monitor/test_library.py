"""The job state monitor as a library: registration, replay, the persistent time, and generators that come and go."""

import logging
import os
import queue
import signal
import stat
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from batch_adapters.launch import command_line
from batch_adapters.running.backoff import Backoff
from batch_adapters.states import Event, State, render_event
from jobmanager.monitor import generators
from jobmanager.monitor import library as job_state_monitor
from jobmanager.monitor.library import AlreadyRegistered, JobStateMonitor, NotRegistered, Registry
from tests.descriptors import open_descriptors
from tests.waiting import SECONDS, wait_until

T = 1_700_000_000

Told = tuple[str, int, State, int]


@pytest.fixture(autouse=True)
def _in_a_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Backoff, "SHORTEST", 0.01)
    monkeypatch.setattr(job_state_monitor, "_LOOK", 0.02)
    monkeypatch.setattr(job_state_monitor, "_UPKEEP", 0.02)


class Listener:
    """Keeps what it was told, in a queue that can be waited for."""

    def __init__(self) -> None:
        self.told: queue.Queue[Told] = queue.Queue()

    def job_state_changed(self, key: str, timestamp: int, state: State, exit_code: int) -> None:
        self.told.put((key, timestamp, state, exit_code))

    def take(self, count: int) -> list[Told]:
        """The next so many calls."""
        return [self.told.get(timeout=SECONDS) for _ in range(count)]


class Speech:
    """A generator that prints what the test says, through a named pipe; it notes its start time and its pid."""

    def __init__(self, folder: Path) -> None:
        self._pipe = folder / "speech"
        self._starts = folder / "starts"
        self._starts.touch()
        os.mkfifo(self._pipe)
        self._fd = os.open(self._pipe, os.O_RDWR)

    @property
    def command(self) -> Sequence[str]:
        script = f'echo $$ "$2" >>{self._starts}; exec cat <{self._pipe}'
        return ["/bin/sh", "-c", script, "generator"]

    def say(self, *events: Event) -> None:
        os.write(self._fd, "".join(map(render_event, events)).encode())

    def starts(self) -> list[tuple[int, int]]:
        """Pid and start time of each start."""
        lines = self._starts.read_text().splitlines()
        return [(int(pid), int(since)) for pid, since in map(str.split, lines)]


@pytest.fixture
def speech(tmp_path: Path) -> Speech:
    return Speech(tmp_path)


@pytest.fixture
def state_file(tmp_path: Path) -> Path:
    path = tmp_path / "time"
    path.write_text(f"{T}\n")
    return path


def event(second: int, local_id: str, state: State, exit_code: int = 0) -> Event:
    return Event(T + second, local_id, state, exit_code)


def says(*events: Event, then: str = "exec cat") -> list[str]:
    """A generator that prints these events."""
    lines = "".join(map(render_event, events))
    return ["/bin/sh", "-c", f"printf '%s' '{lines}'; {then}", "generator"]


# the seed design's list


def test_events_reach_the_listener_under_the_key_of_their_job(speech: Speech) -> None:
    listener = Listener()
    with JobStateMonitor(speech.command, listener) as monitor:
        monitor.register("7.server", "red")
        monitor.register("8.server", "blue")
        speech.say(event(0, "7.server", State.PENDING), event(1, "8.server", State.ACTIVE))
        speech.say(event(2, "9.server", State.DONE), event(3, "7.server", State.DONE, 42))
        assert listener.take(3) == [
            ("red", T, State.PENDING, 0),
            ("blue", T + 1, State.ACTIVE, 0),
            ("red", T + 3, State.DONE, 42),
        ]
    assert listener.told.empty()


def test_events_from_before_a_registration_are_replayed_in_order_and_before_later_ones(speech: Speech) -> None:
    listener = Listener()
    with JobStateMonitor(speech.command, listener) as monitor:
        monitor.register("marker", "marker")
        states = [State.PENDING, State.ACTIVE, State.SUSPENDED, State.ACTIVE]
        speech.say(*(event(0, "7", state) for state in states), event(1, "marker", State.ACTIVE))
        assert listener.take(1) == [("marker", T + 1, State.ACTIVE, 0)]
        monitor.register("7", "red")
        speech.say(event(2, "7", State.DONE))
        assert [state for _, _, state, _ in listener.take(5)] == [*states, State.DONE]


def test_the_persistent_time_is_recovered_and_replays_what_was_not_delivered(speech: Speech, state_file: Path) -> None:
    listener = Listener()
    with JobStateMonitor(speech.command, listener, state_file=state_file) as monitor:
        monitor.register("8", "blue")
        speech.say(event(100, "7", State.PENDING), event(5000, "8", State.DONE))
        listener.take(1)
    assert state_file.read_text() == f"{T + 100}\n"
    with JobStateMonitor(speech.command, listener, state_file=state_file) as monitor:
        speech.say(event(100, "7", State.PENDING), event(5000, "8", State.DONE))
        monitor.register("7", "red")
        monitor.register("8", "green")
        assert sorted(listener.take(2)) == [("green", T + 5000, State.DONE, 0), ("red", T + 100, State.PENDING, 0)]
    assert [since for _, since in speech.starts()] == [T, T + 100]
    assert state_file.read_text() == f"{T + 5000 - 60}\n"


# registration


def test_an_id_has_one_key_at_a_time(speech: Speech) -> None:
    with JobStateMonitor(speech.command, Listener()) as monitor:
        monitor.register("7", "red")
        with pytest.raises(AlreadyRegistered, match="7 is registered already"):
            monitor.register("7", "red")
        monitor.unregister("7")
        with pytest.raises(NotRegistered, match="7 is not registered"):
            monitor.unregister("7")
        monitor.register("7", "blue")


def test_events_of_an_unregistered_id_are_kept_for_its_next_key(speech: Speech) -> None:
    listener = Listener()
    with JobStateMonitor(speech.command, listener) as monitor:
        monitor.register("7", "red")
        monitor.register("marker", "marker")
        speech.say(event(0, "7", State.PENDING))
        assert listener.take(1) == [("red", T, State.PENDING, 0)]
        monitor.unregister("7")
        speech.say(event(1, "7", State.ACTIVE), event(2, "marker", State.ACTIVE))
        assert listener.take(1) == [("marker", T + 2, State.ACTIVE, 0)]
        monitor.register("7", "blue")
        assert listener.take(1) == [("blue", T + 1, State.ACTIVE, 0)]


def test_registering_with_a_closed_monitor_is_refused(speech: Speech) -> None:
    monitor = JobStateMonitor(speech.command, Listener())
    monitor.close()
    monitor.close()
    with pytest.raises(RuntimeError, match="closed"):
        monitor.register("7", "red")


@pytest.mark.parametrize(
    ("age", "events"),
    [pytest.param(99.0, [event(0, "7", State.PENDING)], id="fresh"), pytest.param(100.0, [], id="expired")],
)
@pytest.mark.parametrize("is_swept", [True, False])
def test_kept_events_expire(age: float, events: list[Event], is_swept: bool) -> None:
    registry = Registry[str](cache_time=100.0)
    registry.put([event(0, "7", State.PENDING)])
    assert registry.take(now=1000.0) is None
    if is_swept:
        assert registry.forget_old(now=1000.0 + age) == (T if events else None)
    registry.register("7", "red", now=1000.0 + age)
    assert registry.take(now=1000.0 + age) == (("red", events[0]) if events else None)


def test_the_oldest_event_that_is_still_needed_is_a_kept_or_an_undelivered_one() -> None:
    registry = Registry[str](cache_time=100.0)
    assert registry.forget_old(now=0.0) is None
    registry.register("7", "red", now=0.0)
    registry.put([event(5, "7", State.PENDING), event(9, "8", State.PENDING), event(3, "7", State.ACTIVE)])
    assert registry.forget_old(now=0.0) == T + 3
    assert registry.take(now=0.0)
    assert registry.take(now=0.0)
    assert registry.take(now=0.0) is None
    assert registry.forget_old(now=0.0) == T + 9


def test_expired_events_do_not_hold_the_persistent_time_back(speech: Speech, state_file: Path) -> None:
    listener = Listener()
    with JobStateMonitor(speech.command, listener, state_file=state_file, cache_time=0.05) as monitor:
        monitor.register("8", "blue")
        speech.say(event(100, "7", State.PENDING), event(5000, "8", State.DONE))
        wait_until(lambda: state_file.read_text() == f"{T + 5000 - 60}\n")


# generators that come and go


def test_a_generator_s_restart_neither_loses_nor_doubles_an_event(state_file: Path) -> None:
    """Run after run the log is longer, and each run dies; the job goes to and fro within one second."""
    log = [event(0, "7", State.PENDING)]
    log += [event(1, "7", state) for state in (State.ACTIVE, State.SUSPENDED) * 3]
    log += [event(2, "7", State.ACTIVE), event(100, "7", State.DONE, 1)]
    asked: list[int] = []

    def find_command(since: int) -> Sequence[str]:
        asked.append(since)
        told = [event for event in log[: 2 * len(asked)] if event.timestamp >= since]
        return says(*told, then="exec cat" if len(asked) > 6 else "printf '001;17000'; exit 1")

    listener = Listener()
    with JobStateMonitor(find_command, listener, state_file=state_file) as monitor:
        monitor.register("7", "red")
        assert [(second, state) for _, second, state, _ in listener.take(len(log))] == [
            (event.timestamp, event.state) for event in log
        ]
        wait_until(lambda: len(asked) > 6)
    assert listener.told.empty()
    assert asked[0] == T
    assert asked[-1] == T + 100 - 60


def test_kept_events_are_not_doubled_by_a_restart(speech: Speech, state_file: Path) -> None:
    listener = Listener()
    seven, marker = event(0, "7", State.PENDING), event(0, "marker", State.ACTIVE)
    with JobStateMonitor(speech.command, listener, state_file=state_file) as monitor:
        monitor.register("marker", "marker")
        speech.say(seven, marker)
        listener.take(1)
        os.kill(speech.starts()[0][0], signal.SIGKILL)
        wait_until(lambda: len(speech.starts()) == 2)
        speech.say(seven, marker, event(1, "marker", State.DONE))
        listener.take(1)
        monitor.register("7", "red")
        monitor.unregister("marker")
        monitor.register("marker", "last")
        assert listener.take(1) == [("red", T, State.PENDING, 0)]
    assert listener.told.empty()


def test_the_generator_that_cannot_be_started_is_told_to_the_caller(tmp_path: Path) -> None:
    threads, descriptors = {*threading.enumerate()}, open_descriptors()
    with pytest.raises(FileNotFoundError, match="no-such"):
        JobStateMonitor([str(tmp_path / "no-such")], Listener())
    # What an earlier test has left may end meanwhile.
    assert {*threading.enumerate()} <= threads
    assert open_descriptors() <= descriptors


def test_closing_ends_the_generator_and_the_thread(speech: Speech) -> None:
    threads, descriptors = {*threading.enumerate()}, open_descriptors()
    monitor = JobStateMonitor(speech.command, Listener())
    wait_until(lambda: bool(speech.starts()))
    monitor.close()
    with pytest.raises(ProcessLookupError):
        os.kill(speech.starts()[0][0], signal.SIGKILL)
    # What an earlier test has left may end meanwhile.
    assert {*threading.enumerate()} <= threads
    assert open_descriptors() <= descriptors


# the listener


class Failing(Listener):
    """Fails after each call."""

    def job_state_changed(self, key: str, timestamp: int, state: State, exit_code: int) -> None:
        super().job_state_changed(key, timestamp, state, exit_code)
        raise KeyError("no such resource")


def test_an_exception_in_the_listener_is_logged_and_does_not_end_the_monitor(
    speech: Speech, caplog: pytest.LogCaptureFixture
) -> None:
    listener = Failing()
    with JobStateMonitor(speech.command, listener) as monitor:
        monitor.register("7", "red")
        speech.say(event(0, "7", State.PENDING), event(1, "7", State.ACTIVE))
        speech.say(event(2, "7", State.DONE))
        assert len(listener.take(3)) == 3
    failures = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert [record.getMessage() for record in failures] == [
        f"7: the listener failed on {word}" for word in ("pending", "active", "done")
    ]
    assert failures[0].exc_info


class Busy(Listener):
    """Changes the registration, and ends the monitor, from within a call."""

    monitor: JobStateMonitor[str]

    def job_state_changed(self, key: str, timestamp: int, state: State, exit_code: int) -> None:
        super().job_state_changed(key, timestamp, state, exit_code)
        if key == "last":
            self.monitor.close()
        else:
            self.monitor.unregister("7")
            self.monitor.register("8", "last")


def test_the_listener_may_register_unregister_and_close(
    speech: Speech, state_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    listener = Busy()
    with JobStateMonitor(speech.command, listener, state_file=state_file) as monitor:
        listener.monitor = monitor
        monitor.register("7", "first")
        events = [event(0, "8", State.PENDING), event(1, "7", State.PENDING), event(2, "7", State.ACTIVE)]
        speech.say(*events, event(3, "8", State.ACTIVE))
        assert [key for key, *_ in listener.take(2)] == ["first", "last"]
    assert listener.told.empty()
    assert not caplog.records
    # What comes after the end was not delivered: it is the next one's.
    assert int(state_file.read_text()) <= T + 2


class Slow(Listener):
    """Takes its time for each call."""

    now = 0.0

    def clock(self) -> float:
        return self.now

    def job_state_changed(self, key: str, timestamp: int, state: State, exit_code: int) -> None:
        self.now += 2 * generators._LONGEST_SILENCE
        super().job_state_changed(key, timestamp, state, exit_code)


def test_a_slow_listener_is_no_reason_to_start_the_generator_anew(
    speech: Speech, monkeypatch: pytest.MonkeyPatch
) -> None:
    listener = Slow()
    monkeypatch.setattr(time, "monotonic", listener.clock)
    with JobStateMonitor(speech.command, listener) as monitor:
        monitor.register("7", "red")
        for second in range(5):
            speech.say(event(second, "7", State.ACTIVE))
            listener.take(1)
    assert len(speech.starts()) == 1


class Locked(Listener):
    """Needs a lock that its owner holds while it registers."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()
        self.is_called = threading.Event()

    def job_state_changed(self, key: str, timestamp: int, state: State, exit_code: int) -> None:
        self.is_called.set()
        with self.lock:
            super().job_state_changed(key, timestamp, state, exit_code)


def test_registering_does_not_wait_for_the_listener(speech: Speech) -> None:
    listener = Locked()
    with JobStateMonitor(speech.command, listener) as monitor:
        monitor.register("7", "red")
        with listener.lock:
            speech.say(event(0, "7", State.PENDING))
            assert listener.is_called.wait(SECONDS)
            monitor.register("8", "blue")
            monitor.unregister("7")
        assert listener.take(1) == [("red", T, State.PENDING, 0)]


def test_jobs_that_are_registered_from_many_threads_get_each_event_once_and_in_order(speech: Speech) -> None:
    listener = Listener()
    states = [State.PENDING, State.ACTIVE, State.SUSPENDED, State.ACTIVE, State.DONE]
    jobs = [str(number) for number in range(200)]
    with JobStateMonitor(speech.command, listener) as monitor:

        def register(part: int) -> None:
            for job in jobs[part::4]:
                monitor.register(job, job)

        threads = [threading.Thread(target=register, args=[part]) for part in range(4)]
        for place, state in enumerate(states):
            for begin in range(0, len(jobs), 50):
                speech.say(*(event(place, job, state) for job in jobs[begin : begin + 50]))
            if place < 4:
                threads[place].start()
        told = listener.take(len(jobs) * len(states))
        for thread in threads:
            thread.join()
    assert listener.told.empty()
    for job in jobs:
        assert [state for key, _, state, _ in told if key == job] == states


# the state file


def test_without_a_state_file_the_generator_starts_from_now_and_the_first_time_is_kept_at_once(
    speech: Speech, tmp_path: Path
) -> None:
    before = int(time.time())
    with JobStateMonitor(speech.command, Listener(), state_file=tmp_path / "new"):
        kept = int((tmp_path / "new").read_text())
        wait_until(lambda: bool(speech.starts()))
    assert before <= kept <= time.time()
    assert [since for _, since in speech.starts()] == [kept]
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o600


def test_a_time_in_the_future_starts_the_generator_now(speech: Speech, state_file: Path) -> None:
    state_file.write_text("99999999999\n")
    with JobStateMonitor(speech.command, Listener(), state_file=state_file):
        assert int(state_file.read_text()) <= time.time()


@pytest.mark.parametrize("text", ["", "yesterday\n", "-5\n", "1.5\n", "1700000000\n1700000001\n", "9" * 5000])
def test_a_state_file_without_a_time_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "time").write_text(text)
    with pytest.raises(ValueError, match="holds no time in seconds since 1970: remove it to start from now"):
        JobStateMonitor(["/bin/false"], Listener(), state_file=tmp_path / "time")


def test_a_state_file_that_cannot_be_written_ends_nothing(
    speech: Speech, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "time").write_text(f"{T}\n")
    listener = Listener()
    with JobStateMonitor(speech.command, listener, state_file=folder / "time") as monitor:
        # At once: the monitor may be writing in it.
        folder.rename(tmp_path / "elsewhere")
        monitor.register("7", "red")
        speech.say(event(5000, "7", State.PENDING))
        wait_until(lambda: "stays as it was written" in caplog.text)
        speech.say(event(5001, "7", State.ACTIVE))
        assert len(listener.take(2)) == 2


# with a real generator


def test_our_own_generator_is_followed_over_its_violent_death(tmp_path: Path, state_file: Path) -> None:
    log = tmp_path / "events"
    events = [event(0, "7.1", State.PENDING), event(1, "7.1", State.ACTIVE), event(9, "7.1", State.DONE, 5)]
    log.write_text("".join(map(render_event, events[:2])))
    pids: list[int] = []
    command = command_line(
        "samgrid-scheduler-event-generator", "-s", "fork", "-l", str(log), "-p", str(tmp_path / "pid")
    )
    listener = Listener()
    with JobStateMonitor(command, listener, state_file=state_file) as monitor:
        monitor.register("7.1", "red")
        assert len(listener.take(2)) == 2
        pids.append(int((tmp_path / "pid").read_text()))
        os.kill(pids[0], signal.SIGKILL)
        with log.open("a") as file:
            file.write(render_event(events[2]))
        assert listener.take(1) == [("red", T + 9, State.DONE, 5)]
    assert listener.told.empty()
