"""The supervision of generators: what they print, how they end, and what they say again."""

import logging
import os
import re
import selectors
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from batch_adapters.running.backoff import Backoff
from batch_adapters.states import Event, State, render_event
from jobmanager.monitor import generators
from jobmanager.monitor.generators import OVERLAP, EventLines, Generator, Generators, Replays
from jobmanager.site.account import Account
from tests.waiting import SECONDS, is_gone, turn_until, wait_until

EVENT_FILES = Path(__file__).parents[4] / "docs" / "event-files.md"
PENDING = Event(1000, "7", State.PENDING)
ACTIVE = Event(1000, "7", State.ACTIVE)
SUSPENDED = Event(1000, "7", State.SUSPENDED)
DONE = Event(1010, "7", State.DONE, 3)
PRINT_PENDING = "printf '001;1000;7;1;0\\n'"
FOR_EVER = "exec cat"


def shell(script: str) -> Sequence[str]:
    """A generator that is a shell script."""
    return ["/bin/sh", "-c", script, "generator"]


@pytest.fixture(autouse=True)
def _short_back_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Backoff, "SHORTEST", 0.01)


@pytest.fixture
def selector() -> Iterator[selectors.BaseSelector]:
    with selectors.DefaultSelector() as selector:
        yield selector


def run_until(
    selector: selectors.BaseSelector, generator: Generator | Generators, done: Callable[[], bool], batch: str = ""
) -> None:
    """Do what the monitor's loop does."""

    def supervise() -> None:
        generator.supervise()
        if isinstance(generator, Generators):
            generator.start(batch)
        else:
            generator.keep_running()

    turn_until(selector, done, supervise)


class Runs:
    """A generator that is another script each time; the last one again and again."""

    def __init__(self, *scripts: str) -> None:
        self._scripts = scripts
        self.count = 0

    def __call__(self) -> Sequence[str]:
        self.count += 1
        return shell(self._scripts[min(self.count, len(self._scripts)) - 1])


# what it prints


@pytest.mark.parametrize("size", [1, 2, 5, 17, 1000])
def test_lines_are_read_whole_however_they_are_torn(size: int) -> None:
    text = "".join(map(render_event, [PENDING, ACTIVE, DONE])).encode() + b"001;1011;7"
    lines = EventLines("x")
    blocks = [text[begin : begin + size] for begin in range(0, len(text), size)]
    assert [event for block in blocks for event in lines.read_events(block)] == [PENDING, ACTIVE, DONE]
    assert not lines.malformed


def test_of_malformed_lines_the_first_is_logged_and_all_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    lines = EventLines("pbs")
    good = render_event(ACTIVE).encode()
    assert lines.read_events(b"Segmentation fault\n" + good + b"001;1;2\n\n" + good) == [ACTIVE, ACTIVE]
    assert (lines.malformed, lines.is_garbage) == (3, False)
    assert [record.getMessage() for record in caplog.records] == [
        "generator pbs printed b'Segmentation fault', which is no event"
    ]


@pytest.mark.parametrize(
    ("text", "events"),
    [
        pytest.param(b"nonsense\n" * 99 + b"001;1000;7;2;0\n" + b"nonsense\n" * 98, [ACTIVE], id="99 in a row"),
        pytest.param(b"nonsense\n" * 100 + b"001;1000;7;2;0\n", None, id="100 in a row"),
        pytest.param(b"x" * 4096, [], id="a long line that may end"),
        pytest.param(b"x" * 4097, None, id="a line without an end"),
    ],
)
def test_too_much_that_is_malformed_is_garbage(text: bytes, events: list[Event] | None) -> None:
    lines = EventLines("x")
    assert lines.read_events(text) == (events or [])
    assert lines.is_garbage is (events is None)
    assert lines.read_events(b"\n" + render_event(DONE).encode()) == ([] if events is None else [DONE])


# what it says again


def read_news(replays: Replays, *events: Event, now: int = 10**6) -> list[Event]:
    return replays.read_news(events, now)


def test_a_restarted_generator_s_replay_is_no_news() -> None:
    replays = Replays(1000)
    assert replays.restart() == 1000
    assert read_news(replays, PENDING, ACTIVE) == [PENDING, ACTIVE]
    assert replays.restart() == 1000
    assert read_news(replays, PENDING, ACTIVE, DONE) == [DONE]


def test_equal_events_of_one_second_are_told_as_often_as_they_happened() -> None:
    replays = Replays(1000)
    replays.restart()
    assert read_news(replays, ACTIVE, SUSPENDED, ACTIVE) == [ACTIVE, SUSPENDED, ACTIVE]
    replays.restart()
    assert read_news(replays, ACTIVE, SUSPENDED) == []
    assert read_news(replays, ACTIVE, SUSPENDED, ACTIVE) == [SUSPENDED, ACTIVE]


def test_a_late_event_is_told_in_its_place_in_the_log() -> None:
    replays = Replays(0)
    replays.restart()
    early = Event(1, "8", State.PENDING)
    assert read_news(replays, DONE, early) == [DONE, early]


def test_the_start_time_is_a_minute_before_the_newest_event_and_not_before_the_first_start() -> None:
    replays = Replays(1000)
    assert replays.start_time == 1000
    read_news(replays, Event(1030, "7", State.ACTIVE))
    assert replays.start_time == 1000
    read_news(replays, Event(5000, "7", State.DONE), Event(2000, "8", State.DONE))
    assert replays.start_time == 5000 - OVERLAP


def test_a_stamp_from_the_future_does_not_make_the_next_run_start_there() -> None:
    replays = Replays(1000)
    future = Event(9_000_000, "7", State.ACTIVE)
    assert read_news(replays, future, now=2000) == [future]
    assert replays.start_time == 2000 - OVERLAP
    replays.restart()
    assert read_news(replays, future, now=2001) == []


def test_a_restarted_generator_that_ignores_its_start_time_tells_nothing_twice() -> None:
    replays = Replays(1000)
    replays.restart()
    told = [Event(1000 + 50 * n, "7", State.ACTIVE) for n in range(100)]
    for event in told:
        assert read_news(replays, event) == [event]
    replays.restart()
    assert read_news(replays, *told) == []


def test_what_is_too_old_to_be_said_again_is_not_remembered() -> None:
    replays = Replays(0)
    replays.restart()
    for second in range(0, 100_000, 10):
        read_news(replays, Event(second, "7", State.ACTIVE))
    assert len(replays._known) + len(replays._run) < 60


# how it is supervised


def test_a_generator_that_dies_is_started_again_and_its_last_words_are_logged(
    selector: selectors.BaseSelector, caplog: pytest.LogCaptureFixture
) -> None:
    events: list[Event] = []
    runs = Runs(f"{PRINT_PENDING}; printf '001;10'; echo no licence >&2; exit 3", f"{PRINT_PENDING}; {FOR_EVER}")
    generator = Generator("lsf", selector, runs, events.extend)
    run_until(selector, generator, lambda: len(events) == 2)
    generator.stop()
    assert events == [PENDING, PENDING]
    assert [record.getMessage() for record in caplog.records] == [
        "generator lsf ended with status 3 after 0 malformed lines: no licence"
    ]


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        pytest.param("echo one >&2; echo no licence >&2; exit 3", "ended with status 3: no licence", id="dies"),
        pytest.param("exit 0", "ended with status 0", id="has nothing to say"),
        pytest.param("yes nonsense", "prints garbage (100 malformed lines)", id="prints garbage"),
    ],
)
def test_a_generator_that_does_not_run_is_known_until_it_is_started_again(
    selector: selectors.BaseSelector, script: str, reason: str
) -> None:
    generator = Generator("lsf", selector, Runs(script, FOR_EVER), lambda events: None)
    generator.start()
    assert generator.death == ""
    turn_until(selector, lambda: generator.death != "", generator.supervise)
    assert generator.death == f"generator lsf {reason}"
    # No reason to stop watching a grid job, which goes on.
    assert generator.problem == ""
    generator.start()
    assert generator.death == ""
    generator.stop()


def test_what_a_generator_printed_before_its_death_is_not_lost(
    selector: selectors.BaseSelector, tmp_path: Path
) -> None:
    events: list[Event] = []
    generator = Generator("x", selector, Runs(f"echo $$ >{tmp_path}/pid; {PRINT_PENDING}"), events.extend)
    generator.start()

    def has_ended() -> bool:
        pid = (tmp_path / "pid").read_text() if (tmp_path / "pid").exists() else ""
        return pid != "" and is_gone(int(pid))

    wait_until(has_ended)
    generator.supervise()
    assert events == [PENDING]


def test_a_generator_that_dies_at_once_is_started_later_each_time(selector: selectors.BaseSelector) -> None:
    starts: list[float] = []

    def find_command() -> Sequence[str]:
        starts.append(time.monotonic())
        return ["/bin/false"]

    generator = Generator("x", selector, find_command, lambda events: None)
    run_until(selector, generator, lambda: len(starts) == 6)
    generator.stop()
    assert starts[5] - starts[0] >= 0.01 * (1 + 2 + 4 + 8 + 16)


@pytest.mark.parametrize(
    ("garbage", "reason"),
    [
        pytest.param("yes nonsense", "prints garbage (100 malformed lines)", id="lines"),
        pytest.param("tr '\\0' x </dev/zero", "prints garbage (1 malformed lines)", id="one line without an end"),
        pytest.param("head -c 1000000 /dev/zero; exec cat", "prints garbage (1 malformed lines)", id="then silence"),
    ],
)
def test_a_generator_that_prints_garbage_is_started_again_and_logged_once(
    selector: selectors.BaseSelector, caplog: pytest.LogCaptureFixture, garbage: str, reason: str
) -> None:
    events: list[Event] = []
    runs = Runs(f"{PRINT_PENDING}; {garbage}", f"{PRINT_PENDING}; {FOR_EVER}")
    generator = Generator("sge", selector, runs, events.extend)
    run_until(selector, generator, lambda: len(events) == 2)
    generator.stop()
    printed, anew = [record.getMessage() for record in caplog.records]
    assert printed.endswith("which is no event")
    assert anew.strip() == f"generator sge is restarted: it {reason}"


def test_a_generator_that_closes_its_output_and_stays_is_started_again(
    selector: selectors.BaseSelector, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generators, "_DYING_TIME", 0.05)
    events: list[Event] = []
    runs = Runs("exec >&-; sleep 1000", f"{PRINT_PENDING}; {FOR_EVER}")
    generator = Generator("x", selector, runs, events.extend)
    run_until(selector, generator, lambda: events == [PENDING])
    generator.stop()
    assert "has closed its output" in caplog.text


def test_a_generator_that_ends_soon_after_its_output_has_died(
    selector: selectors.BaseSelector, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generators, "_DYING_TIME", 60.0)
    runs = Runs("exec >&-; sleep 0.1; exit 3", FOR_EVER)
    generator = Generator("x", selector, runs, lambda events: None)
    run_until(selector, generator, lambda: runs.count == 2)
    generator.stop()
    assert [record.getMessage() for record in caplog.records] == [
        "generator x ended with status 3 after 0 malformed lines: "
    ]


def test_a_generator_that_a_signal_has_stopped_goes_on(selector: selectors.BaseSelector) -> None:
    events: list[Event] = []
    runs = Runs(f"kill -STOP $$; {PRINT_PENDING}; {FOR_EVER}")
    generator = Generator("x", selector, runs, events.extend)
    run_until(selector, generator, lambda: events == [PENDING])
    generator.stop()
    assert runs.count == 1


def test_a_generator_that_hangs_is_ended_with_all_it_started_and_started_again(
    selector: selectors.BaseSelector, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(generators, "_LONGEST_SILENCE", 0.2)
    caplog.set_level(logging.INFO)
    events: list[Event] = []
    pid = tmp_path / "pid"
    # On a busy machine, it may be ended before it has come to its hanging: then it is started as it was.
    hanging = f"[ -s {pid} ] || {{ sleep 1000 & echo $! >{pid}; wait; }}"
    generator = Generator("x", selector, Runs(f"{hanging}; {PRINT_PENDING}; {FOR_EVER}"), events.extend)
    run_until(selector, generator, lambda: bool(events))
    generator.stop()
    record, *_ = [record for record in caplog.records if "hangs" in record.getMessage()]
    assert record.levelno == logging.INFO
    started = int(pid.read_text())
    run_until(selector, generator, lambda: is_gone(started))
    generator.stop()


class Clock:
    """Seconds that pass only where the test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(time, "monotonic", clock)
    return clock


def test_only_a_generator_that_was_silent_for_too_long_is_started_anew(
    selector: selectors.BaseSelector, clock: Clock, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "speech")
    speech = os.open(tmp_path / "speech", os.O_RDWR)
    runs = Runs(f"exec cat <{tmp_path}/speech")
    events: list[Event] = []
    generator = Generator("x", selector, runs, events.extend)
    generator.start()
    for _ in range(3):
        clock.now += 0.9 * generators._LONGEST_SILENCE
        os.write(speech, render_event(PENDING).encode())
        for key, _ in selector.select(SECONDS):
            key.data()
        generator.supervise()
        generator.keep_running()
    assert (len(events), runs.count) == (3, 1)
    clock.now += 1.1 * generators._LONGEST_SILENCE
    generator.supervise()
    generator.keep_running()
    assert runs.count == 2
    generator.stop()
    os.close(speech)


def test_a_generator_s_successor_may_be_silent(selector: selectors.BaseSelector, clock: Clock) -> None:
    runs = Runs("exit 1", FOR_EVER)
    generator = Generator("x", selector, runs, lambda events: None)
    generator.start()
    while runs.count < 2:
        for key, _ in selector.select(SECONDS):
            key.data()
        clock.now += 1
        generator.supervise()
        generator.keep_running()
    clock.now += 0.9 * generators._LONGEST_SILENCE
    generator.supervise()
    generator.keep_running()
    assert runs.count == 2
    generator.stop()


def test_the_time_that_applying_takes_is_not_the_generator_s_silence(
    selector: selectors.BaseSelector, clock: Clock
) -> None:
    applied: list[Event] = []

    def apply(events: list[Event]) -> None:
        clock.now += 2 * generators._LONGEST_SILENCE
        applied.extend(events)

    runs = Runs(f"{PRINT_PENDING}; {FOR_EVER}")
    generator = Generator("x", selector, runs, apply)
    generator.start()
    while not applied:
        for key, _ in selector.select(SECONDS):
            key.data()
    generator.supervise()
    generator.keep_running()
    generator.stop()
    assert runs.count == 1


def test_a_program_that_is_not_there_yet_is_tried_again(
    selector: selectors.BaseSelector, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    events: list[Event] = []
    program = tmp_path / "generator"
    generator = Generator("x", selector, lambda: [str(program)], events.extend)
    with pytest.raises(FileNotFoundError):
        generator.start()
    run_until(selector, generator, lambda: "cannot be started" in caplog.text)
    (tmp_path / "new").write_text(f"#!/bin/sh\n{PRINT_PENDING}\n{FOR_EVER}\n")
    (tmp_path / "new").chmod(0o700)
    (tmp_path / "new").rename(program)
    run_until(selector, generator, lambda: events == [PENDING])
    generator.stop()


def test_stopping_ends_the_process_and_leaves_nothing_registered(
    selector: selectors.BaseSelector, tmp_path: Path
) -> None:
    events: list[Event] = []
    generator = Generator(
        "x", selector, lambda: shell(f"echo $$ >{tmp_path}/pid; {PRINT_PENDING}; {FOR_EVER}"), events.extend
    )
    run_until(selector, generator, lambda: events == [PENDING])
    generator.stop()
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
    assert not selector.get_map()


# the monitor's generators


class Failing:
    """Fails to apply the first batch of events, as when the disk is full."""

    def __init__(self) -> None:
        self.applied: list[tuple[str, Event]] = []
        self.failures = 0

    def __call__(self, batch: str, events: list[Event]) -> None:
        if not self.failures:
            self.failures += 1
            raise OSError("disk full")
        self.applied += [(batch, event) for event in events]


def launch_fake(name: str, *arguments: str) -> list[str]:
    """A generator whose one event tells the time from which it was started."""
    return [*shell(f'printf "001;$4;$2;1;0\\n"; {FOR_EVER}'), *arguments]


@pytest.mark.parametrize(
    ("kept", "since"),
    [pytest.param(None, 1, id="never ran"), pytest.param(30, 1, id="just begun"), pytest.param(5000, 4940, id="ran")],
)
def test_the_monitor_s_generators_start_a_minute_before_the_persistent_time(
    account: Account, selector: selectors.BaseSelector, monkeypatch: pytest.MonkeyPatch, kept: int | None, since: int
) -> None:
    monkeypatch.setattr(generators, "command_line", launch_fake)
    if kept is not None:
        with account.database.transaction():
            account.database.events.put_generator_time("fork", kept)
    told: list[tuple[str, list[Event]]] = []
    ours = Generators(account, selector, lambda batch, events: told.append((batch, events)))
    run_until(selector, ours, lambda: bool(told), "fork")
    ours.stop()
    assert told == [("fork", [Event(since, "fork", State.PENDING)])]


def test_a_generator_starts_before_now_where_the_clock_was_set_back(
    account: Account, monkeypatch: pytest.MonkeyPatch, selector: selectors.BaseSelector
) -> None:
    monkeypatch.setattr(generators, "command_line", launch_fake)
    now = int(time.time())
    with account.database.transaction():
        account.database.events.put_generator_time("fork", now + 10_000)
    told: list[Event] = []
    ours = Generators(account, selector, lambda batch, events: told.extend(events))
    run_until(selector, ours, lambda: bool(told), "fork")
    ours.stop()
    assert now - OVERLAP <= told[0].timestamp <= time.time() - OVERLAP


def test_a_generator_says_again_what_could_not_be_applied(
    account: Account, selector: selectors.BaseSelector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generators, "command_line", launch_fake)
    apply = Failing()
    ours = Generators(account, selector, apply)
    with pytest.raises(OSError, match="disk full"):
        run_until(selector, ours, lambda: False, "fork")
    ours.stop()
    run_until(selector, ours, lambda: bool(apply.applied), "fork")
    ours.stop()
    assert apply.applied == [("fork", Event(1, "fork", State.PENDING))]


def test_a_generator_may_be_run_through_a_sites_prefix(
    account: Account, selector: selectors.BaseSelector, tmp_path: Path
) -> None:
    prefix = tmp_path / "through"
    prefix.write_text(f'#!/bin/sh\necho "$@" >{tmp_path}/words\n{PRINT_PENDING}\n{FOR_EVER}\n')
    prefix.chmod(0o700)
    configuration = replace(account.configuration, events_of={"fork": {"prefix": (str(prefix), "-u", "reader")}})
    told: list[Event] = []
    ours = Generators(replace(account, configuration=configuration), selector, lambda _, events: told.extend(events))
    run_until(selector, ours, lambda: told == [PENDING], "fork")
    ours.stop()
    words = (tmp_path / "words").read_text().split()
    assert words[:2] == ["-u", "reader"]
    assert "samgrid-scheduler-event-generator -s fork" in " ".join(words)


@pytest.mark.parametrize("prefix", [(), ("sudo", "-u", "reader")], ids=["no prefix", "a prefix"])
def test_a_log_that_we_may_not_see_is_looked_for_by_whoever_reads_it(
    account: Account, selector: selectors.BaseSelector, tmp_path: Path, prefix: tuple[str, ...]
) -> None:
    hidden = tmp_path / "not seen"
    configuration = replace(account.configuration, events_of={"slurm": {"prefix": prefix, "path": hidden}})
    ours = Generators(replace(account, configuration=configuration), selector, lambda _, events: None)
    if prefix:
        command = ours._find_command("slurm")
        assert (command[: len(prefix)], command[-2:]) == ([*prefix], ["-l", str(hidden)])
    else:
        with pytest.raises(FileNotFoundError, match=f"there is no {hidden}"):
            ours._find_command("slurm")


def test_the_recipe_for_sudo_fits_what_is_run_through_it(account: Account, selector: selectors.BaseSelector) -> None:
    log = Path("/var/log/slurm/slurmctld.log")
    # pip writes python3 into the first lines of programs, and each starts the others by that name.
    recipe = re.search(r"NOPASSWD: /opt/samgrid/bin/python3 (\^.*\$)$", EVENT_FILES.read_text(), re.MULTILINE)
    assert recipe
    configuration = replace(account.configuration, events_of={"slurm": {"prefix": ("sudo",), "path": log}})
    ours = Generators(replace(account, configuration=configuration), selector, lambda _, events: None)
    arguments = " ".join(ours._find_command("slurm")[2:])
    installed = "/opt/samgrid/lib/python3.11/site-packages/samgrid_jobmanager/batch_adapters/launch.py"
    line = re.sub(r"\S*/batch_adapters/launch\.py", installed, arguments)
    assert re.fullmatch(recipe[1], line)
    assert re.fullmatch(recipe[1], re.sub(" -t [0-9]+", "", line)), "as doctor asks"
    for more in (" -d /home/reader", " -p /home/reader/x", " -b"):
        assert not re.fullmatch(recipe[1], line + more)
