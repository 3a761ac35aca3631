"""The module that asks a batch system at intervals, with a program that answers as told, and with `samgrid-fork`."""

import dataclasses
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from batch_adapters.adapter import LocalStatus
from batch_adapters.fork.adapter import FORK
from batch_adapters.fork.processes import read_process
from batch_adapters.generator.module import FeedSettings, LogNotKnown
from batch_adapters.generator.poll import POLL, JobStates, PollFeed, read_polling
from batch_adapters.registry import ADAPTERS
from batch_adapters.running.batch_system import BatchSystem
from batch_adapters.running.rate_limiter import RateLimiter
from batch_adapters.states import Event, State
from tests.samgrid import LAUNCH
from tests.unit.batch_adapters.generator.generator_process import (
    Start,
    close_input,
    read,
    read_errors,
    starting,
)
from tests.waiting import SECONDS, wait_until

# Written for a program that must be seen to die: it would outlive every test.
HANG = 'echo $$ >"${0%/*}/pid"; exec sleep 1000'
ASKED = 1795219187

Answer = list[tuple[str, str, int | None]]


class FakeSystem:
    """A batch system of one program, which answers as it was last told."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.program = folder / "query"
        self.program.write_text('#!/bin/sh\necho x >>"${0%/*}/asked"\n. "${0%/*}/answer"\n')
        self.program.chmod(0o700)

    def tell(self, script: str) -> None:
        """Give the shell lines that are the answer to all questions from now on."""
        (self.folder / "new").write_text(script + "\n")
        (self.folder / "new").rename(self.folder / "answer")

    @property
    def questions(self) -> int:
        return len((self.folder / "asked").read_text().split())

    def read_pid(self) -> int:
        """The process that hangs, once it does."""
        path = self.folder / "pid"
        wait_until(lambda: path.exists() and path.read_text().endswith("\n"))
        return int(path.read_text())

    def feed(self, interval: float = 0.01, timeout: float = 60.0) -> PollFeed:
        queue = dataclasses.replace(FORK.queue, argv=(str(self.program),), timeout=timeout)
        adapter = dataclasses.replace(FORK, name="fake", queue=queue)
        return PollFeed(BatchSystem(adapter, {}, RateLimiter(self.folder / "limiter.json", 0)), interval)

    def write_description(self) -> Path:
        """What ``-l`` takes: the embedded batch system, with our program in the place of its own."""
        return write_description(self.folder, describe_fork(0.01, python=str(self.program)))


def describe_fork(interval: float, **variables: str) -> dict[str, object]:
    others = {"batch_system": "fork", "tables": {}, "limiter": "/nonexistent/batch-fork.json"}
    defaults = {"python": "x", "launch": "x", "fork_spool": "x", "fork_slots": "1", "fork_grace": "1"}
    return {**others, "variables": {**defaults, **variables}, "interval": interval}


def write_description(folder: Path, description: object) -> Path:
    path = folder / "poll.json"
    path.write_text(json.dumps(description))
    return path


@pytest.fixture
def system(tmp_path: Path) -> FakeSystem:
    return FakeSystem(tmp_path)


def read_answer(feed: PollFeed) -> bytes:
    """The events of the answer to the next question."""
    blocks: list[bytes] = []

    def look() -> bool:
        blocks.extend(feed.read_events(True))
        return bool(blocks)

    wait_until(look)
    return b"".join(blocks)


def read_cores(lines: bytes) -> list[str]:
    """Id, state and exit code of each event."""
    return [line.split(";", 2)[2] for line in lines.decode().splitlines()]


RUNNING: Answer = [("a", "running", None)]
QUEUED: Answer = [("a", "queued", None)]
ODD: Answer = [("a", "odd", None)]
GONE: Answer = []


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        pytest.param([QUEUED, RUNNING, [("a", "ended", 7)]], ["a;1;0", "a;2;0", "a;8;7"], id="a-life"),
        pytest.param([[("a", "killed", 137)]], ["a;4;137"], id="failed-with-its-code"),
        pytest.param([RUNNING, [("a", "held", None)], RUNNING], ["a;2;0", "a;16;0", "a;2;0"], id="suspended"),
        pytest.param([RUNNING, RUNNING, RUNNING], ["a;2;0"], id="nothing-new"),
        pytest.param([RUNNING, QUEUED], ["a;2;0", "a;1;0"], id="queued-again"),
        pytest.param([GONE], [], id="no-jobs"),
        pytest.param([RUNNING, GONE, GONE, RUNNING], ["a;2;0"], id="missing-for-a-while"),
        pytest.param([RUNNING, ODD, QUEUED], ["a;2;0", "a;1;0"], id="unknown-keeps-the-last"),
        pytest.param([RUNNING, *[ODD] * JobStates.FORGET_AFTER, RUNNING], ["a;2;0"], id="unknown-is-not-forgotten"),
        pytest.param([ODD, RUNNING], ["a;2;0"], id="unknown-at-first"),
        pytest.param([RUNNING + QUEUED] * 2, ["a;1;0"], id="twice-in-one-answer"),
        pytest.param([[*RUNNING, ("b", "queued", None)]], ["a;2;0", "b;1;0"], id="two-jobs"),
        pytest.param([RUNNING, *[GONE] * JobStates.FORGET_AFTER, RUNNING], ["a;2;0"] * 2, id="forgotten"),
        pytest.param([RUNNING, *[GONE] * (JobStates.FORGET_AFTER - 1), RUNNING], ["a;2;0"], id="not-yet-forgotten"),
    ],
)
def test_an_event_is_a_state_that_is_not_the_one_last_seen(answers: list[Answer], expected: list[str]) -> None:
    states = JobStates()
    known = {**FORK.states, "held": State.SUSPENDED}
    statuses = [
        [LocalStatus(local_id, native, known.get(native), code) for local_id, native, code in answer]
        for answer in answers
    ]
    events = [event for answer in statuses for event in states.read_changes(answer, ASKED)]
    assert [f"{event.local_id};{event.state.value};{event.exit_code}" for event in events] == expected
    assert {event.timestamp for event in events} <= {ASKED}


def test_a_job_on_its_way_out_stays_what_it_was() -> None:
    states = JobStates()
    held = LocalStatus("a.1", "held", State.SUSPENDED)
    going = LocalStatus("a.1", "removing", State.ACTIVE, is_leaving=True)
    gone = LocalStatus("a.1", "removed", State.FAILED, is_leaving=True)
    events = [states.read_changes([status], 7) for status in (held, going, gone)]
    assert events == [[Event(7, "a.1", State.SUSPENDED)], [], [Event(7, "a.1", State.FAILED)]]


def test_the_memory_for_jobs_is_bounded() -> None:
    states = JobStates()
    for number in range(500):
        assert states.read_changes([LocalStatus(f"a.{number}", "queued", State.PENDING)], number) == [
            Event(number, f"a.{number}", State.PENDING)
        ]
        assert len(states) <= JobStates.FORGET_AFTER


def test_answers_become_event_lines_of_the_time_of_the_question(system: FakeSystem) -> None:
    feed = system.feed()
    system.tell("echo a.1 queued -; echo a.2 running -")
    before = int(time.time())
    first, second = read_answer(feed).splitlines()
    assert before <= int(first.split(b";")[1]) <= time.time()
    assert (first[14:], second[14:]) == (b";a.1;1;0", b";a.2;2;0")
    assert read_answer(feed) == b""
    system.tell("echo a.1 queued -; echo a.2 ended 3")
    wait_until(lambda: read_cores(read_answer(feed)) == ["a.2;8;3"])


@pytest.mark.parametrize(
    ("script", "words"),
    [
        pytest.param("echo no daemon >&2; echo at all >&2; exit 1", "no daemon at all", id="exit-1"),
        pytest.param("exit 3", "exit code 3", id="refused"),
        pytest.param("echo a.1 ended 0; echo '<html>'", "'<html>", id="garbage-behind-a-good-line"),
        pytest.param("kill -9 $$", "killed", id="killed"),
        pytest.param("exec sleep 1000", "within 0.3 s", id="hanging"),
    ],
)
def test_where_nobody_answers_nothing_changes_and_it_is_told(system: FakeSystem, script: str, words: str) -> None:
    feed = system.feed(timeout=0.3 if "sleep" in script else 60)
    system.tell("echo a.1 running -")
    wait_until(lambda: read_cores(read_answer(feed)) == ["a.1;2;0"])
    system.tell(script)
    wait_until(lambda: read_answer(feed) == b"" and feed.render_warnings() != ())
    (warning,) = feed.render_warnings()
    assert warning.startswith("fake does not answer")
    assert words in warning
    assert "\n" not in warning
    system.tell("echo a.1 running -; echo a.2 running -")
    wait_until(lambda: read_cores(read_answer(feed)) == ["a.2;2;0"])
    assert feed.render_warnings() == ()


def test_a_program_that_is_missing_is_no_answer(system: FakeSystem) -> None:
    system.program.unlink()
    feed = system.feed()
    assert read_answer(feed) == b""
    assert "no such program" in feed.render_warnings()[0]


def test_a_silence_is_told_in_the_words_of_its_first_failure(system: FakeSystem) -> None:
    feed = system.feed()
    system.tell("exit 1")
    read_answer(feed)
    told = feed.render_warnings()
    system.tell("echo another reason; exit 2")
    read_answer(feed)
    read_answer(feed)
    assert feed.render_warnings() == told


def test_an_unknown_native_state_is_told_until_it_is_gone(system: FakeSystem) -> None:
    feed = system.feed()
    system.tell("echo a.1 stopped -; echo a.2 stopped -")
    assert read_answer(feed) == b""
    assert feed.render_warnings() == ("jobs in unknown native states keep the state they had: 'stopped'",)
    system.tell("echo a.1 running -")
    wait_until(lambda: read_cores(read_answer(feed)) == ["a.1;2;0"])
    assert feed.render_warnings() == ()


class AtOnce:
    """A question that is answered before it has been asked."""

    number = 0
    asked = ASKED
    is_over = True

    def __init__(self, system: BatchSystem) -> None:
        AtOnce.number += 1

    def read_answer(self) -> list[LocalStatus]:
        return []


@pytest.mark.parametrize(("interval", "questions"), [(1000.0, 1), (0.0, 9)], ids=["long", "none"])
def test_the_next_question_waits_for_the_interval(
    system: FakeSystem, monkeypatch: pytest.MonkeyPatch, interval: float, questions: int
) -> None:
    monkeypatch.setattr("batch_adapters.generator.poll._Question", AtOnce)
    monkeypatch.setattr(AtOnce, "number", 0)
    feed = system.feed(interval)
    assert b"".join(block for _ in range(9) for block in feed.read_events(True)) == b""
    assert AtOnce.number == questions


def test_a_question_without_an_answer_is_not_asked_again_and_ends_with_its_feed(system: FakeSystem) -> None:
    system.tell(HANG)
    feed = system.feed()
    assert list(feed.read_events(True)) == []
    pid = system.read_pid()
    assert [list(feed.read_events(True)) for _ in range(9)] == [[]] * 9
    assert system.questions == 1
    del feed
    wait_until(lambda: read_process(pid) is None)


def test_an_answer_that_comes_after_midnight_is_of_the_new_day(
    system: FakeSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    midnight = ASKED // 86_400 * 86_400 + 86_400
    system.tell("echo a.1 running -")
    feed = system.feed()
    with monkeypatch.context() as patch:
        patch.setattr("time.time", lambda: midnight - 3.0)
        list(feed.read_events(True))
        patch.setattr("time.time", lambda: midnight + 5.0)
        assert read_answer(feed) == b"001;%d;a.1;2;0\n" % midnight


GOOD = describe_fork(30)


def test_a_description_says_whom_to_ask_and_how_often(tmp_path: Path) -> None:
    system, interval = read_polling(write_description(tmp_path, GOOD))
    assert (system.adapter, interval) == (FORK, 30)
    assert system.event_log == "x/events"


@pytest.mark.parametrize("name", ADAPTERS)
def test_every_batch_system_can_be_asked(tmp_path: Path, name: str) -> None:
    description = {**GOOD, "batch_system": name}
    assert read_polling(write_description(tmp_path, description))[0].adapter.name == name


def test_a_description_brings_the_sites_tables(tmp_path: Path) -> None:
    toy = {"based_on": "fork", "queue": {"argv": ["toy-queue"]}, "commands_per_minute": 7}
    (tmp_path / "limiter.json").write_text(json.dumps({"tries": 1, "words": "down"}))
    described = {**GOOD, "batch_system": "toy", "tables": {"toy": toy}, "limiter": str(tmp_path / "limiter.json")}
    system, _ = read_polling(write_description(tmp_path, described))
    assert (system.adapter.name, system.adapter.queue.argv) == ("toy", ("toy-queue",))
    outage = system.limiter.outage()
    assert outage is not None
    assert outage.words == "down"


@pytest.mark.parametrize(
    ("description", "message"),
    [
        pytest.param({**GOOD, "intervall": 3}, "has no key 'intervall'", id="unknown-key"),
        pytest.param(
            {key: value for key, value in GOOD.items() if key != "interval"},
            "interval is missing",
            id="missing-key",
        ),
        pytest.param([], "no JSON object", id="no-object"),
        pytest.param(
            {**GOOD, "batch_system": "fax"}, 'unknown batch system "fax": known are .*fork', id="unknown-system"
        ),
        pytest.param({**GOOD, "batch_system": ["fork"]}, "batch_system must be", id="system-no-name"),
        pytest.param({**GOOD, "variables": "x"}, "variables must be an object", id="variables-no-object"),
        pytest.param({**GOOD, "tables": []}, "tables must be an object", id="tables-no-object"),
        pytest.param({**GOOD, "limiter": 7}, "limiter must be", id="limiter-no-path"),
        pytest.param({**GOOD, "tables": {"fork": {"qeue": 1}}}, "has no key 'qeue'", id="faulty-table"),
        pytest.param({**GOOD, "variables": {"python": "x"}}, "'launch' is undefined", id="missing-variable"),
        pytest.param({**GOOD, "interval": 0}, "interval must be", id="interval-0"),
        pytest.param({**GOOD, "interval": "30"}, "interval must be", id="interval-text"),
        pytest.param({**GOOD, "interval": True}, "interval must be", id="interval-true"),
        pytest.param({**GOOD, "interval": float("nan")}, "interval must be", id="interval-nan"),
    ],
)
def test_a_wrong_description_is_refused_in_one_line(tmp_path: Path, description: object, message: str) -> None:
    with pytest.raises(LogNotKnown, match=message) as refused:
        read_polling(write_description(tmp_path, description))
    assert "\n" not in str(refused.value)


def test_without_a_description_there_is_nobody_to_ask(tmp_path: Path) -> None:
    with pytest.raises(LogNotKnown, match="--log FILE"):
        POLL.open_feed(FeedSettings(None, None, {}))
    (tmp_path / "x").write_text("{")
    with pytest.raises(LogNotKnown, match="is no JSON"):
        POLL.open_feed(FeedSettings(tmp_path / "x", None, {}))


@pytest.fixture
def start() -> Iterator[Start]:
    with starting() as start:
        yield lambda log, *arguments: start("-s", "poll", "--interval", "0.02", "-l", log, *arguments)


def read_lines(process: "subprocess.Popen[bytes]", number: int) -> list[str]:
    return read_cores(read(process, lambda data: data.count(b"\n") >= number))


@pytest.mark.parametrize("way", ["input ends", "SIGTERM"])
def test_the_program_ends_at_once_with_its_hanging_question(system: FakeSystem, start: Start, way: str) -> None:
    system.tell(HANG)
    process = start(system.write_description())
    pid = system.read_pid()
    if way == "SIGTERM":
        process.terminate()
        assert process.wait(SECONDS) == 128 + signal.SIGTERM
    else:
        assert close_input(process) == 0
    wait_until(lambda: read_process(pid) is None)
    assert read_errors(process) == ""


def test_the_program_tells_of_a_silence_once(system: FakeSystem, start: Start) -> None:
    system.tell("echo a.1 running -")
    process = start(system.write_description(), "-t", "1")
    assert read_lines(process, 1) == ["a.1;2;0"]
    system.tell("exit 1")
    asked = system.questions
    wait_until(lambda: system.questions > asked + 2)
    system.tell("echo a.1 ended 0")
    assert read_lines(process, 1) == ["a.1;8;0"]
    assert close_input(process) == 0
    errors = read_errors(process)
    assert errors.count("\n") == errors.count("fork does not answer") == 1


def test_jobs_of_the_embedded_batch_system_are_seen_to_their_ends(tmp_path: Path, start: Start) -> None:
    go = tmp_path / "go"
    variables = {"python": sys.executable, "launch": str(LAUNCH), "fork_spool": str(tmp_path / "fork")}
    queue = [sys.executable, "-P", str(LAUNCH), "samgrid-fork", "--spool", str(tmp_path / "fork"), "--slots", "1"]
    script = f"until [ -e '{go}' ]; do sleep 0.02; done; exit 3"
    job = ["--token", "t-1", "--count", "2", "--directory", str(tmp_path), "--", "/bin/sh", "-c", script]
    subprocess.run([*queue, "submit", *job], check=True, capture_output=True, timeout=SECONDS)
    process = start(write_description(tmp_path, describe_fork(0.05, **variables)), "-t", "1")
    seen: list[str] = []
    while "t-1.1;2;0" not in seen:
        seen += read_lines(process, 1)
    assert "t-1.2;1;0" in seen
    go.touch()
    while not {"t-1.1;8;3", "t-1.2;8;3"} <= set(seen):
        seen += read_lines(process, 1)
    assert len(seen) == len(set(seen))
