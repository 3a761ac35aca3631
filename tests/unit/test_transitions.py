"""Events and drivers' records change a local job's document, in time's order and once."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters import Slice
from batch_adapters.states import Event, State
from jobmanager.local_job import LocalJob
from jobmanager.transitions import apply_driver_status, apply_event
from sandbox.status import DriverStatus, Phase

PENDING, ACTIVE, SUSPENDED, DONE, FAILED = (
    State.PENDING, State.ACTIVE, State.SUSPENDED, State.DONE, State.FAILED,
)  # fmt: skip


def submitted_job() -> LocalJob:
    job = LocalJob.new(3, "fork", Slice(501, 250, 77))
    job.intend("k3f9zq2m-1")
    job.register("k3f9zq2m-1.3", 1000)
    return job


def after(events: Sequence[tuple[int, State, int]]) -> LocalJob:
    job = submitted_job()
    for timestamp, state, exit_code in events:
        apply_event(job, Event(timestamp, "k3f9zq2m-1.3", state, exit_code))
    job.to_bytes()
    return job


@pytest.mark.parametrize(
    ("events", "state", "exit_code"),
    [
        pytest.param([(1, PENDING, 0), (2, ACTIVE, 0), (3, DONE, 0)], DONE, 0, id="a life"),
        pytest.param([(1, PENDING, 0), (1, ACTIVE, 0), (1, DONE, 7)], DONE, 7, id="a life within one second"),
        pytest.param([(1, ACTIVE, 0), (2, DONE, 3), (2, DONE, 3)], DONE, 3, id="the end told twice"),
        pytest.param([(2, ACTIVE, 0), (3, DONE, 0), (2, ACTIVE, 0)], DONE, 0, id="a replay of the start"),
        pytest.param([(3, DONE, 0), (1, PENDING, 0), (2, ACTIVE, 0)], DONE, 0, id="the end comes first"),
        pytest.param([(3, DONE, 0), (5, ACTIVE, 0)], DONE, 0, id="only PENDING leaves a final state"),
        pytest.param([(3, DONE, 0), (3, PENDING, 0)], DONE, 0, id="a replay within the last second"),
        pytest.param([(3, FAILED, 0), (9, PENDING, 0)], PENDING, None, id="queued again after the end"),
        pytest.param([(3, FAILED, 0), (9, PENDING, 0), (10, ACTIVE, 0), (11, DONE, 0)], DONE, 0, id="run again"),
        pytest.param([(2, ACTIVE, 0), (4, PENDING, 0)], PENDING, None, id="queued again while running"),
        pytest.param([(2, ACTIVE, 0), (4, SUSPENDED, 0), (6, ACTIVE, 0)], ACTIVE, None, id="suspended and resumed"),
        pytest.param([(2, ACTIVE, 0), (3, DONE, 0), (4, FAILED, 255)], DONE, 0, id="the first end counts"),
    ],
)
def test_events_make_a_state(events: list[tuple[int, State, int]], state: State, exit_code: int | None) -> None:
    job = after(events)
    assert (job.state, job.exit_code) == (state, exit_code)


@given(
    st.lists(
        st.tuples(st.integers(1, 20), st.sampled_from([PENDING, ACTIVE, SUSPENDED, DONE, FAILED]), st.integers(0, 3)),
        max_size=8,
    ).map(sorted)
)
def test_a_replay_of_everything_changes_nothing(events: list[tuple[int, State, int]]) -> None:
    job = after(events)
    before = job.to_bytes()
    changed = [apply_event(job, Event(time, "k3f9zq2m-1.3", state, code)) for time, state, code in events]
    # A requeue may be seen in the replay of a history that ends before it: it must lead to the same state again.
    assert job.to_bytes() == before or any(changed)
    assert job.state is after(events).state


def test_a_second_run_forgets_the_first() -> None:
    job = after([(2, ACTIVE, 0), (3, DONE, 9)])
    apply_driver_status(
        job, DriverStatus(start=2, end=3, exit_code=9, host="n1", phases=(Phase("generate", 5, 9, ""),))
    )
    apply_event(job, Event(8, "k3f9zq2m-1.3", PENDING))
    assert (job.exit_code, job.driver, job.phases(), job.reason) == (None, None, [], None)


@pytest.mark.parametrize(
    ("event", "status", "state", "exit_code", "succeeded"),
    [
        pytest.param((DONE, 0), DriverStatus(start=1, end=2, exit_code=0), DONE, 0, True, id="both agree"),
        pytest.param(
            (FAILED, 255), DriverStatus(start=1, end=2, exit_code=0), DONE, 0, True, id="the starter was lost"
        ),
        pytest.param((DONE, 0), DriverStatus(start=1), DONE, 0, False, id="exit 0 but no outputs came back"),
        pytest.param((DONE, 0), DriverStatus(), DONE, 0, False, id="the driver never ran"),
        pytest.param((DONE, 3), DriverStatus(start=1, end=2, exit_code=3), DONE, 3, False, id="the program failed"),
        pytest.param((FAILED, 137), DriverStatus(start=1), FAILED, 137, False, id="killed with its driver"),
        pytest.param(
            (DONE, 125), DriverStatus(start=1, problem="no space"), DONE, 125, False, id="the driver had a problem"
        ),
    ],
)
def test_the_drivers_record_and_the_batch_systems_are_reconciled(
    event: tuple[State, int], status: DriverStatus, state: State, exit_code: int, succeeded: bool
) -> None:
    job = after([(1, ACTIVE, 0), (3, *event)])
    apply_driver_status(job, status)
    assert (job.state, job.exit_code, job.succeeded) == (state, exit_code, succeeded)
    assert succeeded or job.reason


def test_a_driver_that_ended_does_not_end_the_job_before_the_batch_system_says_so() -> None:
    job = after([(1, ACTIVE, 0)])
    apply_driver_status(job, DriverStatus(start=1, end=2, exit_code=0))
    assert job.state is ACTIVE


def test_what_experiments_added_stays() -> None:
    job = submitted_job()
    job.element.append(job.element.makeelement("{urn:d0}run", {"number": "169000"}))
    apply_event(job, Event(5, "k3f9zq2m-1.3", ACTIVE))
    apply_driver_status(job, DriverStatus(start=5, phases=(Phase("generate", 1, 2, "event"),)))
    assert b'number="169000"' in job.to_bytes()
