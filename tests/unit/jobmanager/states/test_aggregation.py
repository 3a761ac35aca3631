"""Local jobs' states make a grid job's state."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batch_adapters.states import State
from jobmanager.states.aggregation import Due, Task, aggregate, judge, next_task

P, A, S, D, F, U = (
    State.PENDING, State.ACTIVE, State.SUSPENDED, State.DONE, State.FAILED, State.UNSUBMITTED,
)  # fmt: skip

counts_of_states = st.dictionaries(st.sampled_from([P, A, S, D, F, U]), st.integers(0, 10_000))


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        pytest.param([], U, id="nothing submitted yet"),
        pytest.param([U, U], U, id="being submitted"),
        pytest.param([U, P], P, id="partly submitted, none started"),
        pytest.param([P, P], P, id="none started"),
        pytest.param([P, A], A, id="one runs"),
        pytest.param([P, D], A, id="some ended, others wait"),
        pytest.param([F, P], A, id="some failed, others wait"),
        pytest.param([D, S], S, id="all that remain are suspended"),
        pytest.param([S, S], S, id="all are suspended"),
        pytest.param([S, A], A, id="one of them runs"),
        pytest.param([S, P], S, id="some are suspended, others wait"),
        pytest.param([D, S, P], S, id="some ended, some are suspended, others wait"),
        pytest.param([S, U], A, id="begun, so never back to pending"),
        pytest.param([U, D], A, id="ended before the rest was submitted"),
        pytest.param([D, F], State.STAGE_OUT, id="all ended: outputs are to be collected"),
    ],
)
def test_a_grid_job_is_what_its_local_jobs_are(states: list[State], expected: State) -> None:
    assert aggregate({state: states.count(state) for state in states}) is expected


@pytest.mark.parametrize(
    ("states", "expected"),
    [([U], A), ([P], A), ([U, P], A), ([A], A), ([S], S), ([D], State.STAGE_OUT)],
    ids=["not submitted", "waits", "partly submitted", "runs", "suspended", "ended"],
)
def test_what_has_begun_once_is_never_waiting_to_begin(states: list[State], expected: State) -> None:
    assert aggregate({state: states.count(state) for state in states}, has_begun=True) is expected


@given(counts_of_states)
def test_one_active_local_job_makes_the_grid_job_active(counts: dict[State, int]) -> None:
    assert aggregate({**counts, A: 1}) is A


@given(counts_of_states)
def test_a_grid_job_is_never_over_while_a_local_job_is_not(counts: dict[State, int]) -> None:
    over = aggregate(counts) is State.STAGE_OUT
    assert over == (any(counts.values()) and not any(n for state, n in counts.items() if not state.is_final))
    assert not aggregate(counts).is_final


@given(counts_of_states)
def test_only_the_states_that_occur_count_not_how_often(counts: dict[State, int]) -> None:
    assert aggregate(counts) is aggregate({state: 7 * number for state, number in counts.items()})


@given(counts_of_states, st.booleans())
def test_a_grid_job_without_a_next_task_waits_for_a_local_job(counts: dict[State, int], cancelled: bool) -> None:
    waiting = any(number for state, number in counts.items() if state in (P, A, S))
    assert next_task(counts, cancelled) is not None or waiting


@given(counts_of_states, st.booleans())
def test_outputs_are_collected_only_when_nothing_runs_or_waits(counts: dict[State, int], cancelled: bool) -> None:
    if next_task(counts, cancelled) is Task.COLLECT:
        assert not any(number for state, number in counts.items() if not state.is_final)


@pytest.mark.parametrize(
    ("states", "cancelled", "expected"),
    [
        pytest.param([], False, Task.SUBMIT, id="just accepted"),
        pytest.param([U, P], False, Task.SUBMIT, id="the submitting worker died half-way"),
        pytest.param([P, A], False, None, id="all submitted"),
        pytest.param([D, F], False, Task.COLLECT, id="all ended"),
        pytest.param([], True, Task.COLLECT, id="cancelled before anything was submitted"),
        pytest.param([U, D], True, Task.CANCEL, id="cancelled while being submitted"),
        pytest.param([A], True, Task.CANCEL, id="cancelled while running"),
        pytest.param([F], True, Task.COLLECT, id="cancelled and gone"),
    ],
)
def test_the_next_task_follows_from_the_states(states: list[State], cancelled: bool, expected: Task | None) -> None:
    assert next_task({state: states.count(state) for state in states}, cancelled) is expected


@pytest.mark.parametrize(
    ("states", "due", "expected"),
    [
        pytest.param([A, F], Due.NOW, Task.SUBMIT, id="one is tried again while another runs"),
        pytest.param([D, F], Due.NOW, Task.SUBMIT, id="one is tried again when all have ended"),
        pytest.param([A, F], Due.LATER, None, id="one has a pause while another runs"),
        pytest.param([D, F], Due.LATER, None, id="a pause is no end"),
        pytest.param([U, F], Due.LATER, Task.SUBMIT, id="another is not submitted yet"),
        pytest.param([D, F], Due.NEVER, Task.COLLECT, id="it failed for good"),
    ],
)
def test_what_is_tried_again_is_submitted_before_anything_is_collected(
    states: list[State], due: Due, expected: Task | None
) -> None:
    assert next_task({state: states.count(state) for state in states}, False, due) is expected


@pytest.mark.parametrize(
    ("succeeded", "total", "min_success", "cancelled", "expected"),
    [
        pytest.param(10, 10, 1.0, False, D, id="all succeeded"),
        pytest.param(9, 10, 1.0, False, F, id="by default all must"),
        pytest.param(9, 10, 0.9, False, D, id="as many as asked for"),
        pytest.param(8, 10, 0.9, False, F, id="fewer than asked for"),
        pytest.param(0, 10, 0.0, False, D, id="nobody need succeed"),
        pytest.param(10, 10, 1.0, True, F, id="cancelled at the last moment"),
        pytest.param(7, 10, 0.7, False, D, id="no rounding against the user"),
    ],
)
def test_the_success_rule_judges(
    succeeded: int, total: int, min_success: float, cancelled: bool, expected: State
) -> None:
    assert judge(succeeded, total, min_success, cancelled) is expected
