"""Which event lines leave the generator."""

import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from batch_adapters.generator.emit import LineFilter, render_at_least
from batch_adapters.states import read_event

GOOD = b"001;1795219187;12.vm;8;3\n"
NUMBERS = st.integers(0, 9_999_999_999)


@settings(max_examples=300)
@given(NUMBERS, NUMBERS)
@example(1, 0)
@example(10, 9_999_999_999)
@example(1_000_000_000, 2_000_000_000)
def test_the_pattern_takes_exactly_the_numbers_from_the_least_one_on(least: int, number: int) -> None:
    pattern = re.compile(render_at_least(least))
    for value in (number, least, least + 1, max(0, least - 1)):
        expected = value >= least and value < 10**10
        assert bool(pattern.fullmatch(str(value))) == expected


def test_a_start_time_is_inclusive() -> None:
    block = b"".join(b"001;%d;a;2;0\n" % second for second in (9, 99, 100, 101, 1000))
    assert LineFilter(100).read_good(block) == b"001;100;a;2;0\n001;101;a;2;0\n001;1000;a;2;0\n"


def test_old_events_are_no_malformed_ones() -> None:
    lines = LineFilter(100)
    assert lines.read_good(b"001;9;a;2;0\n001;100;a;2;0\n") == b"001;100;a;2;0\n"
    assert lines.malformed == 0


@pytest.mark.parametrize(
    "line",
    [
        pytest.param(b"\n", id="empty"),
        pytest.param(b"# comment\n", id="comment"),
        pytest.param(b"001;1795219187;12;8\n", id="four-fields"),
        pytest.param(b"001;1795219187;12;8;0;0\n", id="six-fields"),
        pytest.param(b"001;1795219187;1;2;8;0\n", id="semicolon-in-id"),
        pytest.param(b"001;1795219187;;8;0\n", id="no-id"),
        pytest.param(b"001;;12;8;0\n", id="no-time"),
        pytest.param(b"001;01;12;8;0\n", id="leading-zero"),
        pytest.param(b"001;17952191870;12;8;0\n", id="eleven-digits"),
        pytest.param(b"001;-1;12;8;0\n", id="negative-time"),
        pytest.param(b"001;1795219187;" + b"x" * 129 + b";8;0\n", id="129-characters"),
        pytest.param(b"001;1795219187;1\r2;8;0\n", id="carriage-return"),
        pytest.param("001;1795219187;ä;8;0\n".encode(), id="not-ascii"),
        pytest.param(b"001;1795219187;12;3;0\n", id="no-state"),
        pytest.param(b"001;1795219187;12;8;1e3\n", id="no-exit-code"),
        pytest.param(b"002;1795219187;12;8;0\n", id="other-type"),
        pytest.param(b" 001;1795219187;12;8;0\n", id="indented"),
        pytest.param(b"001;1795219187;12;8;0 \n", id="trailing-blank"),
    ],
)
def test_a_malformed_line_is_dropped_and_counted_and_its_neighbours_stay(line: bytes) -> None:
    lines = LineFilter(None)
    assert lines.read_good(GOOD + line + GOOD) == GOOD + GOOD
    assert lines.malformed == 1


@pytest.mark.parametrize(
    "line",
    [
        GOOD,
        b"001;1;a;1;0\n",
        b"001;9999999999;" + b"x" * 128 + b";16;-29\n",
        b"001;5;18[3].vm with blanks, and: more;4;271\n",
    ],
)
def test_a_well_formed_line_stays_as_it_is(line: bytes) -> None:
    lines = LineFilter(0)
    assert lines.read_good(line * 3) == line * 3
    assert lines.malformed == 0


def test_a_line_without_its_end_is_malformed() -> None:
    lines = LineFilter(None)
    assert lines.read_good(GOOD + GOOD[:-1]) == GOOD
    assert lines.malformed == 1


@given(st.lists(st.one_of(st.just(GOOD), st.binary(max_size=30), st.from_regex(rb"001;\d*;[^\n]*;\d*;\d*\n"))))
def test_only_events_that_the_monitor_understands_leave_the_filter(pieces: list[bytes]) -> None:
    for line in LineFilter(None).read_good(b"".join(pieces)).splitlines(keepends=True):
        assert read_event(line.decode("ascii")) is not None


@pytest.mark.parametrize(("since", "others"), [(100, b""), (None, b"001;90;001;2;0\n")])
def test_the_second_0_is_now(since: int | None, others: bytes) -> None:
    block = b"001;0;a;2;0\n001;90;001;2;0\n001;0;b;8;3\n"
    told = LineFilter(since, now=lambda: 1234.5).read_good(block)
    assert told == b"001;1234;a;2;0\n" + others + b"001;1234;b;8;3\n"
