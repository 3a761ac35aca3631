"""Which local jobs that failed are tried again, and when a grid job is lost."""

from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batch_adapters.states import Cause, State
from jobmanager.database.grid_job import GridJob
from jobmanager.database.local_jobs import FailedJob
from jobmanager.states.aggregation import Due, Task, judge, next_task
from jobmanager.states.failures import choose_due, count_refusals, find_refusal, is_due, is_lost

NOW = 1_795_219_187
RETRIABLE = [cause.value for cause in Cause if cause.is_retriable]


def make(
    retries: int = 1,
    retry_on: Sequence[str] | None = None,
    min_success: float = 1.0,
    fail_fast: bool | None = None,
    count: int = 10,
) -> GridJob:
    job = GridJob.new("abcdefgh", "command", "physicist", "toy", NOW)
    job.put_slices(count, None, 1)
    job.retries, job.min_success, job.fail_fast = retries, min_success, fail_fast
    job.retry_on = tuple(retry_on) if retry_on else None
    return job


def ended(index: int, attempt: int = 1, cause: Cause | None = Cause.EXIT_CODE, ago: int = 1000) -> FailedJob:
    return FailedJob(index, attempt, cause and cause.value, NOW - ago)


@pytest.mark.parametrize(
    ("job", "failed", "refusal"),
    [
        pytest.param(make(), ended(1), "", id="its first retry"),
        pytest.param(make(3), ended(1, 3), "", id="its last retry"),
        pytest.param(make(3), ended(1, 4), "all attempts are used up (4)", id="used up"),
        pytest.param(make(0), ended(1), "no retries are asked for", id="no retries"),
        pytest.param(make(), ended(1, cause=None), "", id="no cause known"),
        pytest.param(make(retry_on=["node-lost"]), ended(1, cause=Cause.NODE_LOST), "", id="a cause that is named"),
        pytest.param(
            make(retry_on=["node-lost"]), ended(1), "retry_on does not name exit code", id="a cause that is not named"
        ),
        pytest.param(
            make(),
            ended(1, cause=Cause.CANCELLED_OUTSIDE),
            "somebody cancelled it outside, and retry_on does not name that",
            id="cancelled outside",
        ),
        pytest.param(make(retry_on=["cancelled-outside"]), ended(1, cause=Cause.CANCELLED_OUTSIDE), "", id="named"),
        pytest.param(
            make(2), ended(1, 2, Cause.REFUSED), "nothing is tried again after refused", id="its retry was refused"
        ),
        pytest.param(make(), ended(1, cause=Cause.PENDING_LIMIT), "", id="it waited too long"),
    ],
)
def test_a_local_job_is_tried_again_as_the_request_says(job: GridJob, failed: FailedJob, refusal: str) -> None:
    assert find_refusal(job, failed) == refusal


@pytest.mark.parametrize(
    ("attempt", "ago", "expected"),
    [(1, 0, True), (2, 0, False), (2, 1, True), (5, 7, False), (5, 8, True), (50, 299, False), (50, 300, True)],
    ids=str,
)
def test_the_second_attempt_comes_at_once_and_each_other_one_later(attempt: int, ago: int, expected: bool) -> None:
    assert is_due(ended(1, attempt, ago=ago), NOW) is expected


def test_refusals_are_counted_by_reason_the_most_frequent_first() -> None:
    failed = [ended(1), *(ended(index, 2) for index in (2, 3)), replace(ended(4, cause=Cause.REFUSED), count=3)]
    used_up, refused = "all attempts are used up (2)", "nothing is tried again after refused"
    assert list(count_refusals(make(), failed).items()) == [(refused, 3), (used_up, 2)]
    assert count_refusals(make(0), failed) == {}


def test_an_end_that_is_still_to_come_delays_nothing() -> None:
    assert is_due(ended(1, 50, ago=-3600), NOW)


@pytest.mark.parametrize(
    ("fail_fast", "min_success", "given_up", "expected"),
    [
        pytest.param(True, 1.0, 1, True, id="all must succeed"),
        pytest.param(True, 1.0, 0, False, id="none has failed"),
        pytest.param(True, 0.8, 2, False, id="enough are left"),
        pytest.param(True, 0.8, 3, True, id="one more than may fail"),
        pytest.param(True, 0.0, 10, False, id="none need succeed"),
        pytest.param(None, 1.0, 10, False, id="nobody wants it stopped"),
    ],
)
def test_a_grid_job_is_lost_when_it_cannot_succeed(
    fail_fast: bool | None, min_success: float, given_up: int, expected: bool
) -> None:
    assert is_lost(make(min_success=min_success, fail_fast=fail_fast), given_up) is expected


failures = st.lists(
    st.builds(
        ended,
        st.integers(1, 20),
        st.integers(1, 5),
        st.sampled_from([*Cause, None]),
        st.integers(0, 400),
    ),
    unique_by=lambda failed: failed.index,
    max_size=20,
)


def grid_jobs(count: int) -> st.SearchStrategy[GridJob]:
    return st.builds(
        make,
        st.integers(0, 3),
        st.lists(st.sampled_from(RETRIABLE), unique=True, max_size=3),
        st.sampled_from([0.0, 0.5, 0.9, 1.0]),
        st.sampled_from([None, True]),
        st.just(count),
    )


@given(grid_jobs(20), failures)
def test_a_grid_job_that_can_still_succeed_is_never_stopped(job: GridJob, failed: list[FailedJob]) -> None:
    given_up = [each for each in failed if find_refusal(job, each)]
    chosen = {each.index for each in choose_due(job, failed, NOW)}
    can_succeed = judge(20 - len(given_up), 20, job.min_success, False) is State.DONE
    assert not (can_succeed and chosen & {each.index for each in given_up})
    assert chosen - {each.index for each in given_up} == {
        each.index for each in failed if not find_refusal(job, each) and is_due(each, NOW)
    }


@given(grid_jobs(5), st.randoms(use_true_random=False))
def test_in_any_order_of_ends_all_comes_to_an_end_and_nothing_is_tried_too_often(job: GridJob, chance: Random) -> None:
    """A model: what runs ends in any order, any way; workers come whenever there is something to be done."""
    attempts = dict.fromkeys(range(1, 6), 1)
    running, failed, now = set(attempts), dict[int, FailedJob](), NOW
    for _ in range(200):
        again = [each for each in failed.values() if not find_refusal(job, each)]
        due = Due.NOW if choose_due(job, failed.values(), now) else Due.LATER if again else Due.NEVER
        counts = {State.ACTIVE: len(running), State.DONE: 5 - len(running)}
        task = next_task(counts, False, due)
        if task is Task.COLLECT:
            assert not running
            assert not again
            break
        if task is Task.SUBMIT and chance.random() < 0.7:
            chosen = choose_due(job, failed.values(), now)
            if is_lost(job, sum(bool(find_refusal(job, each)) for each in chosen)):
                assert job.fail_fast
                break
            for each in chosen:
                if not find_refusal(job, each):
                    attempts[each.index] += 1
                    running.add(each.index)
                    del failed[each.index]
        elif running:
            index = chance.choice(sorted(running))
            running.remove(index)
            if chance.random() < 0.7:
                failed[index] = FailedJob(index, attempts[index], chance.choice(RETRIABLE), now)
        else:
            now += 100
    else:
        raise AssertionError("it does not come to an end")
    assert max(attempts.values()) <= job.retries + 1
