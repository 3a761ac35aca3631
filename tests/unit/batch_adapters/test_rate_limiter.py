"""The limiter of an account, against a clock that only goes when it is told to."""

import json
import os
import stat
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from batch_adapters.running import rate_limiter
from batch_adapters.running.rate_limiter import FIRST_PAUSE, PATIENCE, RateLimited, RateLimiter
from tests.unit.traps import TRAPS

START = 1_795_219_187.0


class Clock:
    """What the module takes for ``time``."""

    strftime = staticmethod(time.strftime)
    gmtime = staticmethod(time.gmtime)

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
    monkeypatch.setattr(rate_limiter, "time", clock)
    return clock


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "batch-toy.json"


def is_rate_limited(limiter: RateLimiter) -> bool:
    try:
        limiter.acquire()
    except RateLimited:
        return True
    return False


def fall_silent(limiter: RateLimiter, times: int) -> None:
    for _ in range(times):
        limiter.note_outage("connection refused")


@pytest.mark.parametrize("make", TRAPS)
def test_what_is_put_in_place_of_the_file_is_not_read_and_not_waited_for(
    file: Path, make: Callable[[Path], object]
) -> None:
    make(file)
    limiter = RateLimiter(file, 10)
    assert (limiter.outage(), limiter.count_commands(START)) == (None, 0)
    with pytest.raises(OSError, match=r"symbolic links|no regular file|Is a directory"):
        limiter.acquire()


# --- so many a minute


def test_a_minute_has_so_many_turns_and_no_more(clock: Clock, file: Path) -> None:
    limiter = RateLimiter(file, 3)
    assert [is_rate_limited(limiter) for _ in range(5)] == [False] * 3 + [True] * 2
    assert clock.slept == 0
    clock.now += 60
    assert [is_rate_limited(limiter) for _ in range(4)] == [False] * 3 + [True]


def test_who_waits_for_a_turn_gets_it_when_the_minute_is_over(clock: Clock, file: Path) -> None:
    limiter = RateLimiter(file, 2)
    limiter.acquire()
    clock.now += 50
    limiter.acquire()
    limiter.acquire()
    assert (clock.slept, clock.now) == (10, START + 60)


def test_who_would_have_to_wait_for_too_long_does_not_wait(clock: Clock, file: Path) -> None:
    limiter = RateLimiter(file, 1)
    limiter.acquire()
    clock.now += 60 - PATIENCE - 1
    with pytest.raises(RateLimited, match=r"held back: 1 commands a minute \(commands_per_minute\) are used up"):
        limiter.acquire()
    assert clock.slept == 0


def test_any_minute_of_an_hour_has_its_share_only(clock: Clock, file: Path) -> None:
    limiter = RateLimiter(file, 5)
    turns = []
    while clock.now < START + 3600:
        if not is_rate_limited(limiter):
            turns.append(clock.now)
        clock.now += 7
    assert max(sum(1 for turn in turns if start <= turn < start + 60) for start in turns) == 5
    assert len(turns) > 250, "and is used"


def test_all_processes_of_an_account_share_the_turns(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rate_limiter, "PATIENCE", 0)
    children = []
    for _ in range(4):
        child = os.fork()
        if child == 0:
            try:
                os._exit(sum(not is_rate_limited(RateLimiter(file, 10)) for _ in range(6)))
            finally:
                os._exit(99)
        children.append(child)
    turns = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    assert sum(turns) == 10, turns


def test_without_a_limit_nothing_is_counted_or_written(clock: Clock, file: Path) -> None:
    limiter = RateLimiter(file, 0)
    fall_silent(limiter, 9)
    assert not any(is_rate_limited(limiter) for _ in range(1000))
    assert not file.exists()


# --- pauses


def test_a_few_questions_without_an_answer_are_no_reason_to_pause(clock: Clock, file: Path) -> None:
    limiter = RateLimiter(file, 100)
    fall_silent(limiter, 2)
    assert not is_rate_limited(limiter)
    fall_silent(limiter, 1)
    assert is_rate_limited(limiter)


def test_pauses_double_up_to_the_longest(clock: Clock, file: Path) -> None:
    limiter = RateLimiter(file, 100)
    fall_silent(limiter, 3)
    pauses = []
    for _ in range(9):
        outage = limiter.outage()
        assert outage is not None
        pauses.append(outage.next_try - clock.now)
        clock.now = outage.next_try - 0.5
        assert is_rate_limited(limiter)
        clock.now = outage.next_try
        limiter.acquire()
        fall_silent(limiter, 1)
    assert pauses == [5, 10, 20, 40, 80, 160, 300, 300, 300]
    assert FIRST_PAUSE == 5


def test_the_longest_pause_is_a_setting(clock: Clock, file: Path) -> None:
    limiter = RateLimiter(file, 100, longest_pause=30)
    fall_silent(limiter, 2000)
    outage = limiter.outage()
    assert outage is not None
    assert outage.next_try - clock.now == 30
    clock.now += 30
    assert not is_rate_limited(limiter)


def test_news_are_asked_about_once_at_once(clock: Clock, file: Path) -> None:
    fall_silent(RateLimiter(file, 100), 9)
    clock.now += 10
    asked = []
    for _ in range(3):
        limiter = RateLimiter(file, 100)
        limiter.hurry(clock.now - 5)
        asked.append(not is_rate_limited(limiter))
        clock.now += 1
    assert asked == [True, False, False]
    assert is_rate_limited(RateLimiter(file, 100))


def test_what_was_asked_about_since_is_no_news(clock: Clock, file: Path) -> None:
    limiter = RateLimiter(file, 100)
    limiter.hurry(clock.now - 5)
    fall_silent(limiter, 9)
    assert is_rate_limited(limiter)


def test_after_a_pause_one_asks_and_all_others_wait_for_what_comes_of_it(clock: Clock, file: Path) -> None:
    one, other = RateLimiter(file, 100), RateLimiter(file, 100)
    fall_silent(one, 3)
    clock.now += FIRST_PAUSE
    assert not is_rate_limited(one)
    assert is_rate_limited(other)
    assert is_rate_limited(one)
    one.note_answer()
    assert not is_rate_limited(other)


def test_one_that_asked_and_never_came_back_does_not_keep_the_others_for_ever(clock: Clock, file: Path) -> None:
    fall_silent(RateLimiter(file, 100), 3)
    clock.now += FIRST_PAUSE
    RateLimiter(file, 100).acquire()
    clock.now += FIRST_PAUSE
    assert not is_rate_limited(RateLimiter(file, 100))


def test_an_answer_ends_the_silence_and_forgets_the_pauses(clock: Clock, file: Path) -> None:
    limiter = RateLimiter(file, 100)
    fall_silent(limiter, 8)
    limiter.note_answer()
    assert limiter.outage() is None
    fall_silent(limiter, 2)
    assert not is_rate_limited(limiter)


def test_a_silence_is_told_with_its_beginning_and_its_last_words(clock: Clock, file: Path) -> None:
    limiter = RateLimiter(file, 100)
    assert limiter.outage() is None
    limiter.note_outage("first words")
    clock.now += 100
    fall_silent(limiter, 2)
    outage = RateLimiter(file, 100).outage()
    assert outage is not None
    assert (outage.since, outage.words) == (START, "connection refused")
    since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(START))
    with pytest.raises(RateLimited, match=f"no answer since {since}, asked again at .*: connection refused"):
        limiter.acquire()


def test_an_answer_writes_nothing_where_there_was_no_outage(clock: Clock, file: Path) -> None:
    RateLimiter(file, 100).note_answer()
    assert not file.exists()


# --- what may happen to the clock and the file


def test_a_clock_that_was_set_back_does_not_block_us(clock: Clock, file: Path) -> None:
    busy, silent = RateLimiter(file, 1), RateLimiter(file.with_name("other.json"), 100)
    busy.acquire()
    fall_silent(silent, 3)
    clock.now -= 86_400
    assert not is_rate_limited(busy)
    assert not is_rate_limited(silent)
    assert is_rate_limited(silent), "it is still silent"


@pytest.mark.parametrize("content", [b"", b"{", b"null", b"[1]", b'{"asked": [1.0], "unknown": 2}', b"\xff"], ids=repr)
def test_what_is_torn_is_unknown(clock: Clock, file: Path, content: bytes) -> None:
    file.write_bytes(content)
    limiter = RateLimiter(file, 1)
    assert limiter.outage() is None
    assert [is_rate_limited(limiter) for _ in range(2)] == [False, True]


def test_what_is_lost_is_unknown(clock: Clock, file: Path) -> None:
    limiter = RateLimiter(file, 1)
    limiter.acquire()
    file.unlink()
    assert not is_rate_limited(limiter)


def test_the_file_is_for_its_owner_alone_and_shrinks_with_what_is_known(clock: Clock, file: Path) -> None:
    limiter = RateLimiter(file, 100)
    for _ in range(50):
        limiter.acquire()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    clock.now += 60
    limiter.acquire()
    assert json.loads(file.read_text())["asked"] == [clock.now]


def test_a_link_in_its_place_is_not_followed(clock: Clock, file: Path, tmp_path: Path) -> None:
    file.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic links"):
        RateLimiter(file, 1).acquire()
    assert not (tmp_path / "elsewhere").exists()
