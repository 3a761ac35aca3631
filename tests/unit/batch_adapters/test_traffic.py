"""The restraint of an account, against a clock that only goes when it is told to."""

import json
import os
import stat
import time
from pathlib import Path

import pytest

from batch_adapters.running import traffic
from batch_adapters.running.traffic import FIRST_PAUSE, PATIENCE, HeldBack, Traffic

START = 1_795_219_187.0


class Clock:
    """What the module takes for ``time``."""

    strftime = staticmethod(time.strftime)
    localtime = staticmethod(time.localtime)

    def __init__(self) -> None:
        self.now = START
        self.slept = 0.0

    def time(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.slept += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(traffic, "time", clock)
    return clock


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "batch-toy.json"


def is_held_back(restraint: Traffic) -> bool:
    try:
        restraint.wait_for_turn()
    except HeldBack:
        return True
    return False


def fall_silent(restraint: Traffic, times: int) -> None:
    for _ in range(times):
        restraint.note_outage("connection refused")


# --- so many a minute


def test_a_minute_has_so_many_turns_and_no_more(clock: Clock, file: Path) -> None:
    restraint = Traffic(file, 3)
    assert [is_held_back(restraint) for _ in range(5)] == [False] * 3 + [True] * 2
    assert clock.slept == 0
    clock.now += 60
    assert [is_held_back(restraint) for _ in range(4)] == [False] * 3 + [True]


def test_who_waits_for_a_turn_gets_it_when_the_minute_is_over(clock: Clock, file: Path) -> None:
    restraint = Traffic(file, 2)
    restraint.wait_for_turn()
    clock.now += 50
    restraint.wait_for_turn()
    restraint.wait_for_turn()
    assert (clock.slept, clock.now) == (10, START + 60)


def test_who_would_have_to_wait_for_too_long_does_not_wait(clock: Clock, file: Path) -> None:
    restraint = Traffic(file, 1)
    restraint.wait_for_turn()
    clock.now += 60 - PATIENCE - 1
    with pytest.raises(HeldBack, match=r"held back: 1 commands a minute \(commands_per_minute\) are used up"):
        restraint.wait_for_turn()
    assert clock.slept == 0


def test_any_minute_of_an_hour_has_its_share_only(clock: Clock, file: Path) -> None:
    restraint = Traffic(file, 5)
    turns = []
    while clock.now < START + 3600:
        if not is_held_back(restraint):
            turns.append(clock.now)
        clock.now += 7
    assert max(sum(1 for turn in turns if start <= turn < start + 60) for start in turns) == 5
    assert len(turns) > 250, "and is used"


def test_all_processes_of_an_account_share_the_turns(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traffic, "PATIENCE", 0)
    children = []
    for _ in range(4):
        child = os.fork()
        if child == 0:
            try:
                os._exit(sum(not is_held_back(Traffic(file, 10)) for _ in range(6)))
            finally:
                os._exit(99)
        children.append(child)
    turns = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    assert sum(turns) == 10, turns


def test_without_restraint_nothing_is_counted_or_written(clock: Clock, file: Path) -> None:
    restraint = Traffic(file, 0)
    fall_silent(restraint, 9)
    assert not any(is_held_back(restraint) for _ in range(1000))
    assert not file.exists()


# --- pauses


def test_a_few_questions_without_an_answer_are_no_reason_to_pause(clock: Clock, file: Path) -> None:
    restraint = Traffic(file, 100)
    fall_silent(restraint, 2)
    assert not is_held_back(restraint)
    fall_silent(restraint, 1)
    assert is_held_back(restraint)


def test_pauses_double_up_to_the_longest(clock: Clock, file: Path) -> None:
    restraint = Traffic(file, 100)
    fall_silent(restraint, 3)
    pauses = []
    for _ in range(9):
        outage = restraint.outage()
        assert outage is not None
        pauses.append(outage.next_try - clock.now)
        clock.now = outage.next_try - 0.5
        assert is_held_back(restraint)
        clock.now = outage.next_try
        restraint.wait_for_turn()
        fall_silent(restraint, 1)
    assert pauses == [5, 10, 20, 40, 80, 160, 300, 300, 300]
    assert FIRST_PAUSE == 5


def test_the_longest_pause_is_a_setting(clock: Clock, file: Path) -> None:
    restraint = Traffic(file, 100, longest_pause=30)
    fall_silent(restraint, 2000)
    outage = restraint.outage()
    assert outage is not None
    assert outage.next_try - clock.now == 30
    clock.now += 30
    assert not is_held_back(restraint)


def test_news_are_asked_about_once_at_once(clock: Clock, file: Path) -> None:
    fall_silent(Traffic(file, 100), 9)
    clock.now += 10
    asked = []
    for _ in range(3):
        restraint = Traffic(file, 100)
        restraint.hurry(clock.now - 5)
        asked.append(not is_held_back(restraint))
        clock.now += 1
    assert asked == [True, False, False]
    assert is_held_back(Traffic(file, 100))


def test_what_was_asked_about_since_is_no_news(clock: Clock, file: Path) -> None:
    restraint = Traffic(file, 100)
    restraint.hurry(clock.now - 5)
    fall_silent(restraint, 9)
    assert is_held_back(restraint)


def test_after_a_pause_one_asks_and_all_others_wait_for_what_comes_of_it(clock: Clock, file: Path) -> None:
    one, other = Traffic(file, 100), Traffic(file, 100)
    fall_silent(one, 3)
    clock.now += FIRST_PAUSE
    assert not is_held_back(one)
    assert is_held_back(other)
    assert is_held_back(one)
    one.note_answer()
    assert not is_held_back(other)


def test_one_that_asked_and_never_came_back_does_not_keep_the_others_for_ever(clock: Clock, file: Path) -> None:
    fall_silent(Traffic(file, 100), 3)
    clock.now += FIRST_PAUSE
    Traffic(file, 100).wait_for_turn()
    clock.now += FIRST_PAUSE
    assert not is_held_back(Traffic(file, 100))


def test_an_answer_ends_the_silence_and_forgets_the_pauses(clock: Clock, file: Path) -> None:
    restraint = Traffic(file, 100)
    fall_silent(restraint, 8)
    restraint.note_answer()
    assert restraint.outage() is None
    fall_silent(restraint, 2)
    assert not is_held_back(restraint)


def test_a_silence_is_told_with_its_beginning_and_its_last_words(clock: Clock, file: Path) -> None:
    restraint = Traffic(file, 100)
    assert restraint.outage() is None
    restraint.note_outage("first words")
    clock.now += 100
    fall_silent(restraint, 2)
    outage = Traffic(file, 100).outage()
    assert outage is not None
    assert (outage.since, outage.words) == (START, "connection refused")
    since = time.strftime("%H:%M:%S", time.localtime(START))
    with pytest.raises(HeldBack, match=f"no answer since {since}, asked again at .*: connection refused"):
        restraint.wait_for_turn()


def test_an_answer_writes_nothing_where_there_was_no_outage(clock: Clock, file: Path) -> None:
    Traffic(file, 100).note_answer()
    assert not file.exists()


# --- what may happen to the clock and the file


def test_a_clock_that_was_set_back_does_not_block_us(clock: Clock, file: Path) -> None:
    busy, silent = Traffic(file, 1), Traffic(file.with_name("other.json"), 100)
    busy.wait_for_turn()
    fall_silent(silent, 3)
    clock.now -= 86_400
    assert not is_held_back(busy)
    assert not is_held_back(silent)
    assert is_held_back(silent), "it is still silent"


@pytest.mark.parametrize("content", [b"", b"{", b"null", b"[1]", b'{"asked": [1.0], "unknown": 2}', b"\xff"], ids=repr)
def test_what_is_torn_is_unknown(clock: Clock, file: Path, content: bytes) -> None:
    file.write_bytes(content)
    restraint = Traffic(file, 1)
    assert restraint.outage() is None
    assert [is_held_back(restraint) for _ in range(2)] == [False, True]


def test_what_is_lost_is_unknown(clock: Clock, file: Path) -> None:
    restraint = Traffic(file, 1)
    restraint.wait_for_turn()
    file.unlink()
    assert not is_held_back(restraint)


def test_the_file_is_for_its_owner_alone_and_shrinks_with_what_is_known(clock: Clock, file: Path) -> None:
    restraint = Traffic(file, 100)
    for _ in range(50):
        restraint.wait_for_turn()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    clock.now += 60
    restraint.wait_for_turn()
    assert json.loads(file.read_text())["asked"] == [clock.now]


def test_a_link_in_its_place_is_not_followed(clock: Clock, file: Path, tmp_path: Path) -> None:
    file.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic links"):
        Traffic(file, 1).wait_for_turn()
    assert not (tmp_path / "elsewhere").exists()
