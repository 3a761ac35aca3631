"""Cells and pictures of the status page: what is drawn is what the documents say."""

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batch_adapters.states import State
from jobmanager.database.details import EarlierAttempt
from jobmanager.database.local_jobs import LocalJobLine
from jobmanager.web.charts import (
    HEIGHT,
    KINDS,
    MOST_CELLS,
    WIDTH,
    Span,
    count_kinds,
    draw_history,
    draw_timeline,
    find_span,
    kind_of,
    kind_of_state,
    render_cells,
)

PENDING = LocalJobLine(1, State.PENDING, None, None, "7", 1000, None, None, None, None)
ACTIVE = replace(PENDING, state=State.ACTIVE, started=1100)
DONE = replace(ACTIVE, state=State.DONE, outcome="succeeded", ended=1200)
CANCELLED = replace(DONE, outcome="cancelled", reason="its grid job was cancelled")
FAILED = replace(DONE, outcome="failed")
UNSUBMITTED = replace(PENDING, state=State.UNSUBMITTED, submitted=None)


def test_every_state_has_a_kind() -> None:
    names = {state: kind_of_state(state).name for state in State}
    assert (names.pop(State.STAGE_IN), names.pop(State.STAGE_OUT)) == ("pending", "active")
    assert all(name == state.word for state, name in names.items())


def numbered(*lines: LocalJobLine) -> list[LocalJobLine]:
    return [replace(line, index=index) for index, line in enumerate(lines, 1)]


def numbers(path: str) -> list[float]:
    return [float(number) for number in re.findall(r"-?\d+(?:\.\d+)?", path)]


# --- cells


def test_cells_are_runs_of_kinds() -> None:
    cells = render_cells(numbered(DONE, DONE, ACTIVE, PENDING, PENDING, DONE))
    assert (cells.runs, cells.count, cells.each) == ("d2a1p2d1", 6, 1)


@pytest.mark.parametrize(
    ("line", "letter"),
    [
        pytest.param(UNSUBMITTED, "u", id="unsubmitted"),
        pytest.param(PENDING, "p", id="pending"),
        pytest.param(ACTIVE, "a", id="active"),
        pytest.param(replace(ACTIVE, state=State.SUSPENDED), "s", id="suspended"),
        pytest.param(DONE, "d", id="done"),
        pytest.param(CANCELLED, "c", id="cancelled"),
        pytest.param(FAILED, "f", id="failed"),
    ],
)
def test_every_state_has_a_kind_of_its_own(line: LocalJobLine, letter: str) -> None:
    assert kind_of(line).letter == letter
    assert [number for kind, number in count_kinds([line, DONE]) if kind.letter == letter] == [1 + (letter == "d")]


def test_kinds_are_told_apart_without_colours() -> None:
    for field in ("letter", "name", "mark"):
        assert len({getattr(kind, field) for kind in KINDS}) == len(KINDS)
    assert all(re.fullmatch(r"M[\d.]+ [\d.]+[a-z0-9. -]+z", kind.mark) for kind in KINDS)


def test_where_there_are_too_many_a_cell_shows_what_needs_a_look_first() -> None:
    lines = numbered(*[DONE] * (2 * MOST_CELLS), FAILED, DONE, ACTIVE)
    cells = render_cells(lines)
    assert (cells.runs, cells.count, cells.each) == ("d6666f1a1", 6668, 3)


def test_no_local_jobs_are_no_cells() -> None:
    assert (render_cells([]).runs, render_cells([]).count) == ("", 0)


# --- over time


def test_the_span_goes_from_the_first_submission_to_now_while_one_is_under_way() -> None:
    span = find_span(numbered(DONE, replace(PENDING, submitted=900)), 5000, {})
    assert span is not None
    assert (span.start, span.end) == (900, 5000)


def test_the_span_ends_with_the_last_end() -> None:
    span = find_span(numbered(DONE, FAILED), 5000, {})
    assert span is not None
    assert (span.start, span.end) == (1000, 1200)


def test_nothing_submitted_has_no_span() -> None:
    assert find_span([UNSUBMITTED], 5000, {}) is None


def test_what_was_over_at_once_has_no_span() -> None:
    assert find_span([replace(DONE, submitted=1000, started=1000, ended=1002)], 5000, {}) is None


@pytest.mark.parametrize(
    ("runs", "most"),
    [
        pytest.param([(7, 7), (7, 7), (8, 8)], 1, id="short ones"),
        pytest.param([(5, 7), (7, 9), (9, 9)], 1, id="one after the other"),
        pytest.param([(5, 8), (5, 7), (7, 9)], 2, id="two slots"),
    ],
)
def test_what_began_in_the_second_of_another_end_did_not_run_at_once_with_it(
    runs: list[tuple[int, int]], most: int
) -> None:
    lines = numbered(*(replace(DONE, submitted=0, started=start, ended=end) for start, end in runs))
    assert draw_history(lines, Span(0, 100), {}).most_active == most


def test_the_history_counts_each_local_job_once_at_any_time() -> None:
    lines = numbered(DONE, DONE, CANCELLED, FAILED)
    span = find_span(lines, 5000, {})
    assert span is not None
    history = draw_history(lines, span, {})
    assert [shape.kind.name for shape in history.shapes] == ["done", "cancelled", "failed", "active", "pending"]
    assert (history.count, history.most_active) == (4, 4)
    tops = [min(numbers(shape.path)[1::2]) for shape in history.shapes]
    assert tops == [100, 50, 0, 0, 0]  # 2 of 4, 3 of 4, 4 of 4 at the end; all ran, and all waited before


def test_a_bar_is_thin_while_it_waits_and_thick_while_it_runs() -> None:
    lines = numbered(DONE)
    span = find_span(lines, 5000, {})
    assert span is not None
    timeline = draw_timeline(lines, span, 5000, {})
    assert {shape.kind.name: shape.path for shape in timeline.shapes} == {
        "pending": "M0 5h500v2h-500z",
        "done": "M500 2h500v8h-500z",
    }


def test_many_local_jobs_have_few_bars() -> None:
    lines = numbered(*[DONE] * 10_000)
    span = find_span(lines, 5000, {})
    assert span is not None
    timeline = draw_timeline(lines, span, 5000, {})
    assert (timeline.each, timeline.bars) == (84, 120)


_TIMES = st.none() | st.integers(0, 2**33)
_OUTCOMES = st.sampled_from([None, "succeeded", "failed", "cancelled"])
_LINES = st.builds(
    LocalJobLine, st.integers(1, 10**6), st.sampled_from(State), _OUTCOMES, st.none(), st.none(),
    _TIMES, _TIMES, _TIMES, st.none(), st.none(),
)  # fmt: skip


@given(st.lists(_LINES, max_size=6), st.integers(0, 2**33))
def test_whatever_the_times_are_pictures_stay_in_their_frame(lines: list[LocalJobLine], now: int) -> None:
    span = find_span(lines, now, {})
    if span is None:
        return
    for shape in draw_history(lines, span, {}).shapes:
        points = numbers(shape.path)
        assert all(0 <= x <= WIDTH for x in points[::2])
        assert all(0 <= y <= HEIGHT for y in points[1::2])
    for shape in draw_timeline(lines, span, now, {}).shapes:
        for bar in shape.path.split("z")[:-1]:
            left, _, width, *_ = numbers(bar)
            assert 0 <= left <= WIDTH
            assert 0 < width <= WIDTH + 1


# --- earlier attempts


EARLIER = {1: [EarlierAttempt(1, 400, 600, "exit-code", "wn1")]}


def test_what_is_shown_begins_with_the_first_attempt() -> None:
    assert find_span([DONE], 1200, EARLIER) == Span(400, 1200)


def test_an_earlier_attempt_ran_and_then_its_local_job_waited() -> None:
    shapes = {shape.kind.name: numbers(shape.path) for shape in draw_history([DONE], Span(400, 1200), EARLIER).shapes}
    top = dict(zip(shapes["active"][:402:2], shapes["active"][1:402:2], strict=True))
    waits = dict(zip(shapes["pending"][:402:2], shapes["pending"][1:402:2], strict=True))
    # The whole height is the one local job: it runs from 400 to 600, then waits until 1100.
    assert [top[x] for x in (0, 200, 300, 800)] == [0, 0, 200, 200]
    assert [waits[x] - top[x] for x in (200, 300, 800)] == [0, -200, -200]


def test_earlier_attempts_count_among_what_ran_at_once() -> None:
    lines = numbered(replace(DONE, started=1000), replace(DONE, started=500, submitted=450, ended=550))
    assert draw_history(lines, Span(400, 1200), {}).most_active == 1
    assert draw_history(lines, Span(400, 1200), EARLIER).most_active == 2


def test_a_timeline_has_a_bar_for_each_earlier_attempt() -> None:
    shapes = {shape.kind.name: shape.path for shape in draw_timeline([DONE], Span(400, 1200), 1200, EARLIER).shapes}
    assert numbers(shapes["failed"])[:3] == [0, 2, 250]
