"""Rates, ends and warnings: what may be concluded from how far the local jobs have come."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobmanager.database.database import Overview
from jobmanager.database.details import PhaseSum
from jobmanager.database.local_jobs import Blocked
from jobmanager.views.progress import (
    Progress,
    estimate_end,
    fraction_done,
    rate,
    render_blocked,
    render_rate,
    render_silent,
)
from jobmanager.views.watching import PlainLines, Snapshot

_TIMES = st.integers(0, 10**10)
_NUMBERS = st.integers(0, 10**16)
_SUMS = st.builds(
    PhaseSum, st.just("generate"), st.just("events"), _NUMBERS, _NUMBERS, st.integers(1, 10**6), _TIMES, _TIMES
)
_COURSES = st.builds(
    Progress,
    local_jobs=st.integers(0, 10**6),
    ended=st.integers(0, 10**6),
    started=st.none() | _TIMES,
    phases=st.lists(_SUMS, max_size=3),
    open_parts=st.floats(0, 10**6),
)


def generate(done: int = 250, total: int = 1000, local_jobs: int = 4, changed: int = 200) -> PhaseSum:
    return PhaseSum("generate", "events", done, total, local_jobs, 100, changed)


HELD = Blocked(2, 7, "held\nby x", "release 7_1")


def test_what_is_blocked_is_told_with_its_reason_and_what_helps() -> None:
    alone = Blocked(1, 9, "", "go 9")
    progress = Progress(9, 0, 50, blocked=[HELD, alone])
    assert render_blocked(progress) == [
        "2 local jobs, first number 7: held by x: release 7_1",
        "number 9: no reason given: go 9",
    ]
    many = render_blocked(replace(progress, blocked=[HELD] * 8))
    assert (len(many), many[-1]) == (6, "and 6 for other reasons")


@given(_COURSES, _TIMES)
def test_any_course_has_a_fraction_and_an_end_after_its_start_or_none(progress: Progress, now: int) -> None:
    assert 0 <= fraction_done(progress) <= 1
    end = estimate_end(progress, now)
    if end is not None:
        assert math.isfinite(end)
        assert end >= now


@given(_COURSES, _TIMES, st.integers(0, 1000), st.floats(0, 1000))
def test_more_done_never_means_a_later_end(progress: Progress, now: int, ended: int, parts: float) -> None:
    further = replace(progress, ended=progress.ended + ended, open_parts=progress.open_parts + parts)
    before, after = estimate_end(progress, now), estimate_end(further, now)
    if before is not None and fraction_done(further) < 1:
        assert after is not None
        assert after <= before


@given(_SUMS)
def test_any_phase_has_a_rate_or_none(phase: PhaseSum) -> None:
    known = rate(phase)
    assert known is None or (known > 0 and math.isfinite(known))
    assert isinstance(render_rate(phase), str)


@pytest.mark.parametrize(
    ("progress", "fraction"),
    [
        pytest.param(Progress(0, 0, None), 0, id="no local jobs"),
        pytest.param(Progress(4, 1, 50), 0.25, id="without phases ended ones count"),
        pytest.param(Progress(4, 1, 50, [generate()], 0.5), 0.375, id="a half-done one counts half"),
        pytest.param(Progress(4, 0, 50, [generate(), generate()], 1), 0.125, id="one phase of two is half of it"),
        pytest.param(Progress(4, 4, 50, [generate()], 0), 1, id="all"),
    ],
)
def test_what_is_done_is_a_fraction_of_all_local_jobs(progress: Progress, fraction: float) -> None:
    assert fraction_done(progress) == fraction


@pytest.mark.parametrize(
    ("progress", "now", "end"),
    [
        pytest.param(Progress(4, 1, 1000), 1100, 1400, id="a quarter in 100 s: 300 s more"),
        pytest.param(Progress(4, 0, 1000, [generate()], 2), 1100, 1200, id="by phases"),
        pytest.param(Progress(4, 1, None), 1100, None, id="none has started"),
        pytest.param(Progress(4, 1, 1000), 1004, None, id="too early"),
        pytest.param(Progress(4, 0, 1000), 1100, None, id="nothing done"),
        pytest.param(Progress(1000, 4, 1000), 1100, None, id="too little done"),
        pytest.param(Progress(4, 1, 2000), 1100, None, id="clocks differ"),
        pytest.param(Progress(4, 4, 1000), 1100, None, id="all done"),
        pytest.param(Progress(4, 1, 1000, blocked=[HELD]), 1100, None, id="one is blocked"),
    ],
)
def test_the_end_follows_from_what_was_done_until_now(progress: Progress, now: int, end: float | None) -> None:
    assert estimate_end(progress, now) == end


@pytest.mark.parametrize(
    ("phase", "words"),
    [
        pytest.param(generate(), "2.5 events/s", id="per second"),
        pytest.param(generate(done=8010), "80.1 events/s", id="three digits"),
        pytest.param(generate(done=1), "36 events/h", id="per hour"),
        pytest.param(generate(done=5), "3 events/min", id="per minute"),
        pytest.param(replace(generate(), unit=""), "2.5/s", id="without unit"),
        pytest.param(generate(done=0), "", id="nothing done"),
        pytest.param(generate(changed=100), "", id="no time passed"),
    ],
)
def test_a_rate_is_told_in_units_that_people_can_read(phase: PhaseSum, words: str) -> None:
    assert render_rate(phase) == words


def test_local_jobs_that_have_not_told_a_phase_count_as_the_average_of_those_that_have() -> None:
    assert generate(total=1000, local_jobs=4).expected_total(10) == 2500


def test_the_stall_warning_names_how_many_how_long_and_the_first() -> None:
    progress = Progress(9, 0, 50, silent=(7, 8, 9), stall_time=1800)
    assert render_silent(progress) == "3 local jobs have told nothing new for 30 min, first number 7"
    alone = replace(progress, silent=(7,), stall_time=60)
    assert render_silent(alone) == "1 local job has told nothing new for 60 s, first number 7"
    assert render_silent(replace(progress, silent=())) == ""


def test_a_plain_line_tells_what_is_blocked_although_the_counts_stay(capsys: pytest.CaptureFixture[str]) -> None:
    row = Overview("k3f9zq2m", "command", "active", None, "physicist", "2026-11-22T08:30:00Z", {"active": 2})
    lines, full = PlainLines(), Blocked(2, 1, "output waits for room", "")
    for blocked in ([], [], [full], [full]):
        lines.show(Snapshot(row, Progress(2, 0, None, blocked=blocked), 100))
    assert capsys.readouterr().out.splitlines() == [
        "active: 2 active of 2",
        "active: 2 active of 2 | 2 local jobs, first number 1: output waits for room",
    ]
