"""Outcome and cause of a local job: one judgement, whatever the order in which its evidence comes."""

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batch_adapters.adapter import LocalStatus
from batch_adapters.states import Cause, Event, State
from jobmanager.database.local_job import LocalJob, Outcome
from jobmanager.states.ends import may_have_been_deleted, needs_batch_cause, put_outcome, was_asked_to_end
from jobmanager.states.transitions import apply_driver_status, apply_event, apply_status, note_batch_end
from sandbox.status import CaughtSignal, DriverStatus

CLEAN = DriverStatus(start=5, end=9, exit_code=0)
TERM = (CaughtSignal("TERM", 8),)
TOLD = DriverStatus(start=5, end=9, exit_code=0, caught=TERM)
"""It ended well, but was told to end before: a shell whose child was killed."""
KILLED = DriverStatus(start=5, end=9, exit_code=143, signal="TERM", caught=TERM)
CRASHED = DriverStatus(start=5, end=9, exit_code=139, signal="SEGV")
WARNED = DriverStatus(start=5, end=9, exit_code=0, caught=(CaughtSignal("USR2", 8),))
"""Its program was sent a warning, and ended well."""
GONE = DriverStatus(start=5)
LOST = DriverStatus(start=5, end=9, exit_code=0, lost=("output/a: Permission denied", "output/b: no", "and 7 more"))
NOTHING = DriverStatus()


def says(word: str, state: State, cause: Cause | None = None, by: str = "", code: int | None = None) -> LocalStatus:
    return LocalStatus("17", word, state, code, cause=cause, by=by)


COMPLETED = says("COMPLETED", State.DONE, code=0)
TIMEOUT = says("TIMEOUT", State.FAILED, Cause.TIME_LIMIT)
CANCELLED = says("CANCELLED", State.FAILED, Cause.CANCELLED_OUTSIDE, by="ada")
NODE_FAIL = says("NODE_FAIL", State.FAILED, Cause.NODE_LOST)
OUT_OF_MEMORY = says("OUT_OF_MEMORY", State.FAILED, Cause.MEMORY_LIMIT)
NEVER = says("FAILED to start", State.FAILED, Cause.NEVER_STARTED)
FAILED = says("FAILED", State.FAILED, code=1)


def judged(driver: DriverStatus, said: LocalStatus | None, asked: bool = False) -> LocalJob:
    job = LocalJob.new(1, "slurm", None)
    job.intend("aaaaaaaa-1", 1)
    job.register("17", "", 2)
    if asked:
        job.cancel_asked = 7
    apply_event(job, Event(3, "17", State.ACTIVE))
    apply_event(job, Event(10, "17", State.DONE if said is None or said.state is State.DONE else State.FAILED))
    apply_driver_status(job, driver, 20)
    if said is not None:
        apply_status(job, said, 20, "history")
    put_outcome(job)
    job.to_bytes()
    return job


@pytest.mark.parametrize(
    ("driver", "said", "asked", "cause"),
    [
        pytest.param(CLEAN, None, False, None, id="a clean end"),
        pytest.param(CLEAN, COMPLETED, False, None, id="a clean end, confirmed"),
        pytest.param(CLEAN, NODE_FAIL, False, None, id="a node lost after a clean end"),
        pytest.param(CLEAN, TIMEOUT, False, None, id="a limit reached after a clean end"),
        pytest.param(CLEAN, CANCELLED, False, None, id="cancelled after a clean end"),
        pytest.param(CLEAN, None, True, None, id="cancelled by us too late"),
        pytest.param(CLEAN, OUT_OF_MEMORY, False, Cause.MEMORY_LIMIT, id="a child was killed for its memory"),
        pytest.param(TOLD, COMPLETED, False, None, id="told to end by nobody that the batch system knows"),
        pytest.param(TOLD, None, False, Cause.SIGNAL, id="told to end, and nobody knows"),
        pytest.param(TOLD, FAILED, False, Cause.SIGNAL, id="told to end, and the batch system calls it no good end"),
        pytest.param(TOLD, TIMEOUT, False, Cause.TIME_LIMIT, id="a shell outlived its time limit"),
        pytest.param(TOLD, CANCELLED, False, Cause.CANCELLED_OUTSIDE, id="a shell outlived somebody's cancel"),
        pytest.param(TOLD, CANCELLED, True, Cause.CANCELLED_BY_US, id="a shell outlived our cancel"),
        pytest.param(TOLD, COMPLETED, True, Cause.CANCELLED_BY_US, id="our cancel, which the batch system forgot"),
        pytest.param(TOLD, NODE_FAIL, False, Cause.NODE_LOST, id="told to end on a node that was taken for lost"),
        pytest.param(WARNED, COMPLETED, False, None, id="warned, and ended well"),
        pytest.param(WARNED, None, False, None, id="warned, and nobody knows of what"),
        pytest.param(WARNED, TIMEOUT, False, None, id="warned of its time limit, and ended well before"),
        pytest.param(WARNED, CANCELLED, False, Cause.CANCELLED_OUTSIDE, id="warned of somebody's cancel"),
        pytest.param(WARNED, COMPLETED, True, Cause.CANCELLED_BY_US, id="warned of our cancel"),
        pytest.param(replace(WARNED, exit_code=3), FAILED, False, Cause.EXIT_CODE, id="warned, and failed"),
        pytest.param(
            replace(WARNED, exit_code=3), CANCELLED, False, Cause.CANCELLED_OUTSIDE, id="warned of a cancel, and failed"
        ),
        pytest.param(
            replace(WARNED, caught=(CaughtSignal("USR2", 12, 3),)),
            *(CANCELLED, False, None),
            id="a warning after a clean end",
        ),
        pytest.param(KILLED, None, False, Cause.SIGNAL, id="killed by somebody"),
        pytest.param(KILLED, TIMEOUT, False, Cause.TIME_LIMIT, id="killed at the limit"),
        pytest.param(KILLED, TIMEOUT, True, Cause.TIME_LIMIT, id="killed at the limit, and cancelled"),
        pytest.param(KILLED, None, True, Cause.CANCELLED_BY_US, id="killed by us"),
        pytest.param(KILLED, NODE_FAIL, False, Cause.NODE_LOST, id="killed on a node that was taken for lost"),
        pytest.param(CRASHED, NODE_FAIL, False, Cause.SIGNAL, id="crashed, on a node that was lost later"),
        pytest.param(DriverStatus(start=5, end=9, exit_code=3), None, True, Cause.EXIT_CODE, id="failed by itself"),
        pytest.param(DriverStatus(start=5, end=9, exit_code=3), FAILED, False, Cause.EXIT_CODE, id="both agree"),
        pytest.param(LOST, COMPLETED, False, Cause.OUTPUTS_MISSING, id="not all of its outputs came back"),
        pytest.param(LOST, None, True, Cause.OUTPUTS_MISSING, id="not all came back, and cancelled too late"),
        pytest.param(LOST, TIMEOUT, False, Cause.OUTPUTS_MISSING, id="not all came back, and a limit after that"),
        pytest.param(
            DriverStatus(start=5, end=9, exit_code=3, lost=("output/a: no",)),
            *(None, False, Cause.EXIT_CODE),
            id="it failed, and not all came back",
        ),
        pytest.param(
            DriverStatus(start=5, end=9, exit_code=152, signal="XCPU"), None, False, Cause.CPU_LIMIT, id="CPU limit"
        ),
        pytest.param(GONE, TIMEOUT, False, Cause.TIME_LIMIT, id="killed with its driver at the limit"),
        pytest.param(GONE, CANCELLED, True, Cause.CANCELLED_BY_US, id="killed with its driver by us"),
        pytest.param(GONE, NODE_FAIL, False, Cause.NODE_LOST, id="killed with its node"),
        pytest.param(NOTHING, NEVER, False, Cause.NEVER_STARTED, id="never started"),
        pytest.param(NOTHING, CANCELLED, False, Cause.CANCELLED_OUTSIDE, id="cancelled while it waited"),
        pytest.param(NOTHING, CANCELLED, True, Cause.CANCELLED_BY_US, id="cancelled by us while it waited"),
        pytest.param(
            DriverStatus(start=5, problem="no space"), FAILED, False, Cause.DRIVER_FAILED, id="the driver failed"
        ),
        pytest.param(
            DriverStatus(start=5, problem="no space"), TIMEOUT, False, Cause.TIME_LIMIT, id="no space until the limit"
        ),
    ],
)
def test_the_first_rule_that_fits_says_the_cause(
    driver: DriverStatus, said: LocalStatus | None, asked: bool, cause: Cause | None
) -> None:
    job = judged(driver, said, asked)
    assert job.cause is cause
    wanted = {True: Outcome.SUCCEEDED, False: Outcome.CANCELLED if cause and cause.is_cancellation else Outcome.FAILED}
    assert job.outcome is wanted[cause is None]
    assert (job.reason is None) is (cause is None)


def test_the_reason_says_what_did_not_come_back_first() -> None:
    words = "exit code 0, but not all of its outputs came back: output/a: Permission denied"
    reasons = [judged(replace(LOST, lost=LOST.lost[:number]), None).reason for number in (1, 2, 3)]
    assert reasons == [words, f"{words} (and 1 more)", f"{words} (and 2 more)"]


def test_what_did_not_come_back_is_of_one_run_only() -> None:
    job = judged(LOST, None)
    assert job.lost() == LOST.lost
    apply_event(job, Event(30, "17", State.PENDING))
    assert (job.state, job.lost()) == (State.PENDING, ())


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (128, "the program ended with exit code 128"),
        (129, "it was ended by signal HUP"),
        (160, "it was ended by signal 32"),
        (192, "it was ended by signal RTMAX"),
        (193, "the program ended with exit code 193"),
        (256, "the program ended with exit code 256"),
        (257, "it was ended by signal HUP"),
    ],
)
def test_a_signal_is_found_in_the_exit_codes_of_shells_and_of_pbs(code: int, reason: str) -> None:
    assert judged(NOTHING, says("F", State.FAILED, code=code)).reason == reason


def test_a_limit_of_cpu_time_is_told_whoever_set_it() -> None:
    xcpu = DriverStatus(start=5, end=9, exit_code=152, signal="XCPU")
    assert judged(xcpu, None).reason == "it took more CPU time than it may"
    assert judged(xcpu, TIMEOUT).reason == "it ran longer than it may (slurm: TIMEOUT)"
    of_batch_system = says("CPU", State.FAILED, Cause.CPU_LIMIT)
    for status in (GONE, xcpu):
        assert judged(status, of_batch_system).reason == "it took more CPU time than it may (slurm: CPU)"


def test_who_cancelled_and_what_the_batch_system_calls_it_stand_in_the_reason() -> None:
    assert judged(KILLED, CANCELLED).reason == "it was cancelled in the batch system by ada (slurm: CANCELLED)"
    assert judged(GONE, TIMEOUT).reason == "it ran longer than it may (slurm: TIMEOUT)"
    assert judged(TOLD, None).reason == (
        "signal TERM told it to end while its program ran, and nobody says who sent it"
    )


@pytest.mark.parametrize(
    ("driver", "wants"),
    [
        pytest.param(CLEAN, False, id="a clean end"),
        pytest.param(DriverStatus(start=5, end=9, exit_code=3), False, id="an exit code"),
        pytest.param(TOLD, True, id="told to end"),
        pytest.param(WARNED, True, id="warned"),
        pytest.param(KILLED, True, id="killed"),
        pytest.param(GONE, True, id="no end"),
    ],
)
def test_the_batch_system_is_asked_about_what_did_not_end_by_itself(driver: DriverStatus, wants: bool) -> None:
    assert needs_batch_cause(judged(driver, None)) is wants
    assert not needs_batch_cause(judged(driver, CANCELLED))
    assert not needs_batch_cause(judged(driver, None, asked=True))


@pytest.mark.parametrize(
    ("driver", "asked", "may_run_again"),
    [
        pytest.param(CLEAN, False, False, id="a clean end"),
        pytest.param(CRASHED, False, False, id="a crash"),
        pytest.param(KILLED, False, True, id="told to end"),
        *(
            pytest.param(replace(KILLED, signal=name, caught=()), False, True, id=f"only its program, by {name}")
            for name in ("TERM", "INT", "HUP")
        ),
        pytest.param(KILLED, True, False, id="told by us"),
    ],
)
def test_what_others_told_to_end_may_be_queued_again(driver: DriverStatus, asked: bool, may_run_again: bool) -> None:
    assert was_asked_to_end(judged(driver, None, asked)) is may_run_again


@pytest.mark.parametrize(
    ("state", "is_submitted", "asked", "is_asked_about"),
    [
        pytest.param(State.FAILED, True, None, True, id="no end is recorded"),
        pytest.param(State.ACTIVE, True, None, False, id="queued again"),
        pytest.param(State.FAILED, False, None, False, id="never submitted"),
        pytest.param(State.FAILED, True, 7, False, id="told by us"),
    ],
)
def test_only_ends_of_what_was_submitted_and_not_cancelled_by_us_are_asked_about(
    state: State, is_submitted: bool, asked: int | None, is_asked_about: bool
) -> None:
    job = LocalJob.new(1, "slurm", None)
    if is_submitted:
        job.register("17", "", 2)
    job.state, job.cancel_asked = state, asked
    assert (needs_batch_cause(job), may_have_been_deleted(job)) == (is_asked_about, is_asked_about)


@pytest.mark.parametrize("driver_is_first", [False, True])
def test_a_clean_end_that_the_log_calls_a_failure_is_asked_about(driver_is_first: bool) -> None:
    job = LocalJob.new(1, "slurm", None)
    job.register("17", "", 2)
    if driver_is_first:
        apply_driver_status(job, CLEAN, 20)
        assert not needs_batch_cause(job)
        assert not may_have_been_deleted(job)
    apply_event(job, Event(10, "17", State.FAILED, 1))
    apply_driver_status(job, CLEAN, 20)
    assert needs_batch_cause(job)
    assert may_have_been_deleted(job)


@pytest.mark.parametrize("driver_is_first", [False, True])
@pytest.mark.parametrize(
    ("held", "cause"),
    [(says("HELD", State.SUSPENDED, Cause.MEMORY_LIMIT), Cause.MEMORY_LIMIT), (says("HELD", State.SUSPENDED), None)],
    ids=["for its memory", "by somebody"],
)
def test_a_clean_end_of_what_the_log_calls_held_is_asked_about(
    driver_is_first: bool, held: LocalStatus, cause: Cause | None
) -> None:
    job = LocalJob.new(1, "condor", None)
    job.register("17", "", 2)
    if driver_is_first:
        apply_driver_status(job, CLEAN, 20)
    for state in (State.PENDING, State.SUSPENDED):
        apply_event(job, Event(9, "17", state))
    apply_driver_status(job, CLEAN, 20)
    assert needs_batch_cause(job)
    assert note_batch_end(job, held) is (cause is not None)
    put_outcome(job)
    assert (job.state, job.cause) == (State.DONE, cause)
    job.to_bytes()


def test_what_is_held_for_its_memory_after_an_end_does_not_wait_for_anybody() -> None:
    job = LocalJob.new(1, "condor", None)
    job.register("17", "", 2)
    apply_driver_status(job, CLEAN, 20)
    for state in (State.PENDING, State.SUSPENDED):
        apply_event(job, Event(12, "17", state))
    apply_driver_status(job, CLEAN, 20)
    assert job.state is State.SUSPENDED
    held = replace(says("HELD", State.SUSPENDED, Cause.MEMORY_LIMIT), reason="too much", helps="condor_release 17")
    apply_status(job, held, 20, "queue")
    put_outcome(job)
    assert (job.state, job.cause, job.helps) == (State.FAILED, Cause.MEMORY_LIMIT, None)
    job.to_bytes()


DRIVERS = st.sampled_from([CLEAN, TOLD, WARNED, KILLED, GONE, LOST, DriverStatus(start=5, end=9, exit_code=3)])
WORDS = st.sampled_from([COMPLETED, TIMEOUT, CANCELLED, NODE_FAIL, OUT_OF_MEMORY, FAILED])


@given(driver=DRIVERS, said=WORDS, asked=st.booleans())
def test_the_order_of_the_evidence_changes_nothing(driver: DriverStatus, said: LocalStatus, asked: bool) -> None:
    state = State.DONE if said.state is State.DONE else State.FAILED
    steps = {
        "log": lambda job: apply_event(job, Event(10, "17", state)),
        "driver": lambda job: apply_driver_status(job, driver, 20),
        "history": lambda job: apply_status(job, said, 20, "history"),
    }
    ends = set()
    for order in itertools.permutations(steps):
        job = LocalJob.new(1, "slurm", None)
        job.register("17", "", 2)
        apply_event(job, Event(3, "17", State.ACTIVE))
        if asked:
            job.cancel_asked = 7
        for name in order:
            steps[name](job)
            put_outcome(job)
        ends.add((job.outcome, job.cause, job.reason))
    assert len(ends) == 1


@pytest.mark.parametrize(
    ("driver", "why", "cause", "outcome"),
    [
        pytest.param(TOLD, None, Cause.CANCELLED_BY_US, Outcome.CANCELLED, id="its grid job was cancelled"),
        pytest.param(TOLD, Cause.FAIL_FAST, Cause.FAIL_FAST, Outcome.CANCELLED, id="its grid job was lost"),
        pytest.param(NOTHING, Cause.PENDING_LIMIT, Cause.PENDING_LIMIT, Outcome.FAILED, id="it waited too long"),
        pytest.param(
            DriverStatus(start=5, end=9, exit_code=3),
            Cause.PENDING_LIMIT,
            Cause.EXIT_CODE,
            Outcome.FAILED,
            id="it ended by itself before",
        ),
    ],
)
def test_why_we_asked_for_its_end_is_its_cause(
    driver: DriverStatus, why: Cause | None, cause: Cause, outcome: Outcome
) -> None:
    job = judged(driver, CANCELLED, asked=True)
    job.cancel_cause = why
    put_outcome(job)
    assert (job.cause, job.outcome) == (cause, outcome)
    assert job.reason
    job.to_bytes()
