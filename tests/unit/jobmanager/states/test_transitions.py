"""Events and drivers' records change a local job's document, in time's order and once."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Concatenate, ParamSpec, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters import Slice
from batch_adapters.adapter import LocalStatus
from batch_adapters.states import Cause, Event, State
from jobmanager.database.local_job import MOST_EVIDENCE, Evidence, LocalJob, Outcome
from jobmanager.states import transitions
from jobmanager.states.ends import put_outcome
from jobmanager.states.transitions import reopen
from sandbox.status import DriverStatus, PhaseStatus

P = ParamSpec("P")
R = TypeVar("R")


def judged(change: Callable[Concatenate[LocalJob, P], R]) -> Callable[Concatenate[LocalJob, P], R]:
    """What is written is judged first (`jobmanager.states.changes.put_local_jobs`)."""

    def apply(job: LocalJob, /, *args: P.args, **kwargs: P.kwargs) -> R:
        changed = change(job, *args, **kwargs)
        put_outcome(job)
        return changed

    return apply


apply_array_event = judged(transitions.apply_array_event)
apply_driver_status = judged(transitions.apply_driver_status)
apply_event = judged(transitions.apply_event)
apply_status = judged(transitions.apply_status)
mark_lost = judged(transitions.mark_lost)

PENDING, ACTIVE, SUSPENDED, DONE, FAILED = (
    State.PENDING, State.ACTIVE, State.SUSPENDED, State.DONE, State.FAILED,
)  # fmt: skip


def submitted_job() -> LocalJob:
    job = LocalJob.new(3, "fork", Slice(501, 250, 77))
    job.intend("k3f9zq2m-1", 1000)
    job.register("17_3", "17", 1000)
    return job


def after(events: Sequence[tuple[int, State, int]]) -> LocalJob:
    job = submitted_job()
    for timestamp, state, exit_code in events:
        apply_event(job, Event(timestamp, "17_3", state, exit_code))
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
        pytest.param([(3, DONE, 0), (3, PENDING, 0)], PENDING, None, id="queued again in the second of the end"),
        pytest.param(
            [(1, PENDING, 0), (3, ACTIVE, 0), (3, DONE, 0), (1, PENDING, 0)], DONE, 0, id="a replay of the beginning"
        ),
        pytest.param(
            [(3, PENDING, 0), (3, ACTIVE, 0), (3, DONE, 0), (3, PENDING, 0)], DONE, 0, id="a replay within a second"
        ),
        pytest.param([(3, DONE, 0), (3, PENDING, 0), (3, DONE, 0)], PENDING, None, id="the first end again"),
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


EVENTS = st.lists(
    st.tuples(st.integers(1, 20), st.sampled_from([PENDING, ACTIVE, SUSPENDED, DONE, FAILED]), st.integers(0, 3)),
    max_size=12,
)


@given(EVENTS, st.integers(0, 12))
def test_a_replay_from_any_point_changes_nothing_at_all(events: list[tuple[int, State, int]], start: int) -> None:
    job = after(events)
    before = job.to_bytes()
    for time, state, code in events[start:]:
        assert not apply_event(job, Event(time, "17_3", state, code))
    assert job.to_bytes() == before


def test_a_run_starts_with_active_and_ends_with_its_end() -> None:
    job = after([(4, PENDING, 0)])
    assert (job.started_time, job.ended_time) == (None, None)
    apply_event(job, Event(5, "17_3", ACTIVE))
    assert (job.started_time, job.ended_time) == (5, None)
    apply_event(job, Event(8, "17_3", DONE))
    assert (job.started_time, job.ended_time) == (5, 8)


# A failure that comes so long after a signal of ours, given at 100, may be that signal.
@pytest.mark.parametrize(
    ("when", "state"),
    [(97, FAILED), (98, ACTIVE), (100, ACTIVE), (105, ACTIVE), (106, FAILED)],
    ids=["before", "clocks differ", "at once", "a little later", "later"],
)
def test_a_failure_in_the_seconds_of_a_signal_of_ours_is_in_doubt(when: int, state: State) -> None:
    job = after([(5, ACTIVE, 0)])
    job.signalled = 100
    apply_event(job, Event(when, "17_3", FAILED))
    assert job.state is state
    words = "in doubt: a signal of ours may look the same in the log"
    assert job.evidence()[-1].verdict == ("failed" if state is FAILED else words)


def test_what_is_no_failure_is_no_signal() -> None:
    job = after([(5, ACTIVE, 0)])
    job.signalled = 100
    apply_event(job, Event(100, "17_3", DONE))
    assert job.state is DONE


def test_a_second_run_forgets_the_first() -> None:
    job = after([(2, ACTIVE, 0), (3, DONE, 9)])
    apply_driver_status(
        job, DriverStatus(start=2, end=3, exit_code=9, host="n1", phases=(PhaseStatus("generate", 5, 9, ""),)), 9
    )
    apply_event(job, Event(8, "17_3", PENDING))
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
    apply_driver_status(job, status, 9)
    assert (job.state, job.exit_code, job.succeeded) == (state, exit_code, succeeded)


def test_a_local_job_has_what_its_driver_tells_of_the_run() -> None:
    job = after([(1, ACTIVE, 0)])
    assert apply_driver_status(job, DriverStatus(start=1, host="n1", cpu_seconds=2.5, signal="TERM"), 9)
    told = {name: job.element.get(name) for name in ("driver", "host", "cpu-time", "signal", "run")}
    assert told == {
        "driver": "started",
        "host": "n1",
        "cpu-time": "2.50",
        "signal": "TERM",
        "run": "1970-01-01T00:00:01Z",
    }
    assert apply_driver_status(job, DriverStatus(start=1, end=2, exit_code=0), 9)
    assert job.driver == "ended"


def test_phases_of_a_driver_that_has_ended_are_no_younger_than_its_end() -> None:
    job = after([(1, ACTIVE, 0)])
    apply_driver_status(job, DriverStatus(start=1, phases=(PhaseStatus("generate", 1, 2),)), 5)
    ended = DriverStatus(start=1, end=7, exit_code=0, phases=(PhaseStatus("generate", 2, 2),))
    apply_driver_status(job, ended, 900)
    assert [phase.changed for phase in job.phases()] == [7]


def test_a_problem_that_the_driver_tells_is_the_reason_at_once_until_another_run_has_none() -> None:
    job = after([(1, ACTIVE, 0)])
    assert apply_driver_status(job, DriverStatus(start=1, problem="no space"), 9)
    assert (job.state, job.reason) == (ACTIVE, "no space")
    assert not apply_driver_status(job, DriverStatus(start=1, problem="no space"), 9)
    assert apply_driver_status(job, DriverStatus(start=2), 9)
    assert job.reason is None


NO_REASON: str | None = None
ENDED_IT = "it was ended before its driver could write down its end, and nobody says why"
NEVER_RAN = "it ended before it was started: it was cancelled or lost, or could not be started"
NO_RECORD = "exit code 0, but the driver left no record of the end: its outputs did not come back"
NO_STATUS_FILE = "the driver could not even write its status file (is the disk full?)"
TOO_MUCH_CPU = "it took more CPU time than it may"


@pytest.mark.parametrize(
    ("event", "status", "reason"),
    [
        pytest.param((DONE, 0), DriverStatus(start=1, end=2, exit_code=0), NO_REASON, id="success"),
        pytest.param((FAILED, 0), DriverStatus(start=1, end=2, exit_code=0), NO_REASON, id="success after all"),
        pytest.param(
            (DONE, 3), DriverStatus(start=1, end=2, exit_code=3), "the program ended with exit code 3", id="exit code"
        ),
        pytest.param((DONE, 3), DriverStatus(), "the program ended with exit code 3", id="the log's exit code"),
        pytest.param(
            (DONE, 255), DriverStatus(start=1, end=2, exit_code=255), "the program ended with exit code 255", id="255"
        ),
        pytest.param((DONE, 137), DriverStatus(start=1, end=2, exit_code=152, signal="XCPU"), TOO_MUCH_CPU, id="CPU"),
        pytest.param(
            (DONE, 139),
            DriverStatus(start=1, end=2, exit_code=139, signal="SEGV"),
            "the program was ended by signal SEGV",
            id="signal",
        ),
        pytest.param((DONE, 125), DriverStatus(), NO_STATUS_FILE, id="the driver failed and is silent"),
        pytest.param((DONE, 125), DriverStatus(start=1, problem="no space"), "no space", id="the driver failed"),
        pytest.param((FAILED, 9), DriverStatus(problem="no space"), "no space", id="the driver failed before"),
        pytest.param((FAILED, 0), DriverStatus(start=1), ENDED_IT, id="ended by the batch system"),
        pytest.param((FAILED, 0), DriverStatus(), NEVER_RAN, id="ended before it started"),
        pytest.param((FAILED, 137), DriverStatus(start=1), "it was ended by signal KILL", id="killed"),
        pytest.param((FAILED, 265), DriverStatus(start=1), "it was ended by signal KILL", id="killed by PBS"),
        pytest.param((FAILED, 3), DriverStatus(start=1), "the program ended with exit code 3", id="a failure"),
    ],
)
def test_the_reason_of_an_end_is_told_by_who_knows_it_best(
    event: tuple[State, int], status: DriverStatus, reason: str | None
) -> None:
    job = after([(1, ACTIVE, 0), (3, *event)])
    apply_driver_status(job, status, 9)
    assert (job.reason, job.succeeded) == (reason, reason is None)


@pytest.mark.parametrize(
    "status",
    [DriverStatus(), DriverStatus(start=1), DriverStatus(start=1, end=2), DriverStatus(start=1, exit_code=0)],
    ids=["nothing", "no end", "an end without exit code", "an exit code without end"],
)
def test_a_record_of_a_clean_end_may_be_on_its_way_until_nobody_waits_any_more(status: DriverStatus) -> None:
    job = after([(1, ACTIVE, 0), (3, DONE, 0)])
    apply_driver_status(job, status, 9)
    assert (job.outcome, job.reason) == (None, None)
    job.driver = "missing"
    put_outcome(job)
    assert (job.outcome, job.cause, job.reason) == (Outcome.FAILED, Cause.OUTPUTS_MISSING, NO_RECORD)


# --- what the queue and the history say


def status(native: str, state: State | None, code: int | None = None, reason: str = "") -> LocalStatus:
    return LocalStatus("17_3", native, state, code, reason)


@pytest.mark.parametrize(
    ("events", "seen", "asked", "state", "exit_code"),
    [
        pytest.param([(5, ACTIVE, 0)], status("CD", DONE, 3), 9, DONE, 3, id="an end that no event told"),
        pytest.param([(5, ACTIVE, 0)], status("CD", DONE), 9, DONE, 0, id="an end without exit code"),
        pytest.param([(5, ACTIVE, 0)], status("F", FAILED, 9), 9, FAILED, 9, id="a failure"),
        pytest.param([], status("R", ACTIVE), 9, ACTIVE, None, id="a start that no event told"),
        pytest.param([(5, ACTIVE, 0)], status("PD", PENDING), 9, PENDING, None, id="queued again"),
        pytest.param([(5, ACTIVE, 0)], status("S", SUSPENDED), 9, SUSPENDED, None, id="suspended"),
        pytest.param([(9, ACTIVE, 0)], status("PD", PENDING), 8, ACTIVE, None, id="the log knows more"),
        pytest.param([(9, ACTIVE, 0)], status("PD", PENDING), 9, PENDING, None, id="the log knows as much"),
        pytest.param([(9, DONE, 0)], status("R", ACTIVE), 20, DONE, 0, id="an end stays"),
        pytest.param([(5, ACTIVE, 0)], status("??", None), 9, ACTIVE, None, id="an unknown word"),
        pytest.param([(5, ACTIVE, 0)], status("R", ACTIVE, None, "None"), 9, ACTIVE, None, id="nothing new"),
    ],
)
def test_an_answer_counts_for_the_second_in_which_it_was_asked_for(
    events: list[tuple[int, State, int]], seen: LocalStatus, asked: int, state: State, exit_code: int | None
) -> None:
    job = after(events)
    before = job.to_bytes()
    was, changed = job.state, apply_status(job, seen, asked, "queue")
    assert (job.state, job.exit_code) == (state, exit_code)
    assert changed is (job.state is not was) is (job.to_bytes() != before)
    job.to_bytes()
    assert [piece.source for piece in job.evidence()] == ["log"] * len(events) + ["queue"] * changed


@pytest.mark.parametrize(
    ("asked", "event", "state", "verdict"),
    [
        pytest.param(10, (8, ACTIVE, 0), ACTIVE, "nothing new: active already", id="the same, later"),
        pytest.param(
            10, (8, PENDING, 0), ACTIVE, "late: the queue has told of a later second", id="backwards and late"
        ),
        pytest.param(10, (10, PENDING, 0), PENDING, "pending", id="backwards in the same second"),
        pytest.param(10, (12, PENDING, 0), PENDING, "pending", id="backwards and new"),
        pytest.param(10, (8, DONE, 0), DONE, "done", id="an end is never late"),
        pytest.param(10, (8, FAILED, 0), FAILED, "failed", id="nor is a failure"),
        pytest.param(10, (8, SUSPENDED, 0), SUSPENDED, "suspended", id="forward is never late"),
    ],
)
def test_a_late_event_takes_nothing_back_that_the_queue_has_told(
    asked: int, event: tuple[int, State, int], state: State, verdict: str
) -> None:
    job = submitted_job()
    apply_status(job, status("R", ACTIVE), asked, "queue")
    assert apply_event(job, Event(event[0], "17_3", event[1], event[2]))
    assert (job.state, job.evidence()[-1].verdict) == (state, verdict)


@pytest.mark.parametrize(
    ("event", "state"),
    [((8, ACTIVE, 0), SUSPENDED), ((12, ACTIVE, 0), ACTIVE), ((8, PENDING, 0), SUSPENDED), ((8, FAILED, 0), FAILED)],
    ids=["a late start", "resumed", "late and queued", "an end"],
)
def test_what_the_queue_shows_suspended_is_resumed_by_later_news_only(
    event: tuple[int, State, int], state: State
) -> None:
    job = submitted_job()
    apply_status(job, status("S", SUSPENDED), 10, "queue")
    apply_event(job, Event(event[0], "17_3", event[1], event[2]))
    assert job.state is state


def test_a_queue_that_answers_late_makes_no_run_of_before_of_the_only_one() -> None:
    job = submitted_job()
    # Asked in the second of the submission, it answered when all was over; the log tells of all of it after that.
    apply_status(job, status("ended", DONE, 0), 10, "queue")
    record = DriverStatus(start=11, pid=4711, exit_code=0, end=11)
    apply_driver_status(job, record, 12)
    for second, state in ((10, PENDING), (11, ACTIVE), (11, DONE)):
        apply_event(job, Event(second, "17_3", state))
    apply_driver_status(job, record, 12)
    assert (job.state, job.driver, job.outcome) == (DONE, "ended", Outcome.SUCCEEDED)
    apply_event(job, Event(12, "17_3", PENDING))
    assert job.state is PENDING, "what is queued again later is"


@pytest.mark.parametrize(("told", "state"), [(9, DONE), (10, DONE), (11, PENDING)], ids=["before", "then", "after"])
def test_the_driver_says_to_which_second_its_run_goes_unless_the_log_told_of_the_end(told: int, state: State) -> None:
    job = after([(told, ACTIVE, 0), (told, DONE, 0)] if told > 10 else [(told, ACTIVE, 0)])
    apply_status(job, status("CD", DONE, 0), 10, "queue")
    apply_driver_status(job, DriverStatus(start=9, pid=4711, exit_code=0, end=11), 12)
    apply_event(job, Event(11, "17_3", PENDING))
    assert job.state is state


@pytest.mark.parametrize(
    ("requeued", "state"), [(8, DONE), (10, PENDING), (12, PENDING)], ids=["before", "in the same second", "after"]
)
def test_an_end_that_the_queue_told_is_left_by_a_later_requeue_only(requeued: int, state: State) -> None:
    job = after([(5, ACTIVE, 0)])
    apply_status(job, status("CD", DONE), 10, "queue")
    apply_event(job, Event(requeued, "17_3", PENDING))
    assert job.state is state


def test_why_a_job_waits_is_kept_until_it_does_not() -> None:
    job = submitted_job()
    assert apply_status(job, status("PD", PENDING, None, "Resources"), 5, "queue")
    assert not apply_status(job, status("PD", PENDING, None, "Resources"), 6, "queue")
    assert job.wait_reason == "Resources"
    assert apply_status(job, status("PD", PENDING, None, "JobHeldUser"), 7, "queue")
    assert job.wait_reason == "JobHeldUser"
    assert apply_status(job, status("PD", PENDING), 8, "queue")
    assert job.wait_reason is None
    assert job.evidence() == []


@pytest.mark.parametrize("end", [(9, ACTIVE, 0), (9, DONE, 0), (9, FAILED, 1)], ids=["runs", "done", "failed"])
def test_a_job_that_waits_no_longer_has_no_reason_to_wait(end: tuple[int, State, int]) -> None:
    job = submitted_job()
    apply_status(job, status("PD", PENDING, None, "JobHeldUser"), 5, "queue")
    apply_event(job, Event(end[0], "17_3", end[1], end[2]))
    assert job.wait_reason is None


BLOCKED = replace(status("PD", PENDING, None, "JobHeldUser"), helps="scontrol release 17_3")


def test_what_blocks_a_job_is_evidence_with_the_command_that_helps() -> None:
    job = submitted_job()
    assert apply_status(job, BLOCKED, 5, "queue")
    helps = "scontrol release 17_3"
    assert job.evidence() == [Evidence("queue", "JobHeldUser", 5, f"blocked: {helps}", helps=helps)]


@pytest.mark.parametrize(
    "end",
    [
        lambda job: mark_lost(job, 9, "nobody knows it"),
        lambda job: apply_driver_status(job, DriverStatus(start=6, end=9, exit_code=0), 9),
    ],
    ids=["lost", "its driver says so"],
)
def test_what_has_ended_is_blocked_by_nothing(end: Callable[[LocalJob], object]) -> None:
    job = submitted_job()
    apply_status(job, BLOCKED, 5, "queue")
    end(job)
    assert (job.state.is_final, job.wait_reason, job.helps) == (True, None, None)


def test_why_a_job_is_suspended_is_kept() -> None:
    job = after([(5, ACTIVE, 0)])
    apply_status(job, status("S", SUSPENDED, None, "preempted"), 9, "queue")
    assert job.wait_reason == "preempted"


def test_what_blocks_a_job_is_evidence_also_where_its_state_says_no_more() -> None:
    job = after([(5, ACTIVE, 0)])
    apply_status(job, replace(status("s", SUSPENDED), helps="qmod -usj 17"), 9, "queue")
    assert [(seen.said, seen.helps) for seen in job.evidence()[-2:]] == [("s", ""), ("s", "qmod -usj 17")]


def test_an_answer_is_evidence_in_its_own_words_and_an_end_in_its_second() -> None:
    job = after([(5, ACTIVE, 0)])
    apply_status(job, status("CD", DONE, 3), 9, "queue")
    assert job.evidence()[-1] == Evidence("queue", "CD 3", 9, "done", DONE)
    assert (job.started_time, job.ended_time) == (5, 9)


def test_the_words_of_the_batch_system_are_kept() -> None:
    job = after([(5, ACTIVE, 0)])
    apply_status(job, status("F", FAILED, None, "NodeFail"), 9, "history")
    assert (job.batch_words, job.reason) == ("F NodeFail", NEVER_RAN)
    assert job.evidence()[-1] == Evidence("history", "F NodeFail", 9, "failed", FAILED)


@pytest.mark.parametrize(("source", "words"), [("queue", None), ("history", "F")])
def test_only_the_history_is_believed_that_a_job_never_started(source: str, words: str | None) -> None:
    job = after([])
    apply_status(job, replace(status("F", FAILED), cause=Cause.NEVER_STARTED), 9, source)
    assert job.batch_words == words


def test_the_words_about_an_end_that_was_told_before_are_news_once() -> None:
    job = after([(5, ACTIVE, 0), (8, DONE, 0)])
    said = status("CD", DONE, 3)
    assert [apply_status(job, said, asked, "history") for asked in (9, 10)] == [True, False]
    assert (job.exit_code, job.batch_words) == (3, "CD")


def test_the_exit_code_of_the_driver_is_better_than_the_batch_systems() -> None:
    job = after([(5, ACTIVE, 0)])
    apply_driver_status(job, DriverStatus(start=5, end=8, exit_code=3), 8)
    assert apply_status(job, status("CD", DONE, 1), 9, "history")
    assert job.exit_code == 3


# --- ends without the batch system, and ends that were none


def test_an_end_that_the_queue_denies_is_taken_back() -> None:
    job = after([(5, ACTIVE, 0), (8, DONE, 3)])
    apply_driver_status(job, DriverStatus(start=5, host="n1"), 9)
    reopen(job, status("R", ACTIVE), 20)
    assert (job.state, job.exit_code, job.driver, job.ended_time, job.queue_time) == (ACTIVE, None, None, None, 20)
    assert job.started_time == 20
    assert job.evidence()[-1] == Evidence("queue", "R", 20, "not over: active", ACTIVE)
    apply_event(job, Event(15, "17_3", PENDING))
    assert job.state is ACTIVE, "news from before the question"
    apply_event(job, Event(30, "17_3", DONE, 0))
    assert (job.state, job.exit_code) == (DONE, 0)


def test_what_has_no_end_has_none_taken_back() -> None:
    job = after([(5, ACTIVE, 0)])
    before = job.to_bytes()
    assert not reopen(job, status("PD", PENDING), 20)
    assert job.to_bytes() == before
    apply_event(job, Event(8, "17_3", DONE))
    assert reopen(job, status("PD", PENDING), 20)


@pytest.mark.parametrize("cause", [None, Cause.MEMORY_LIMIT])
def test_what_is_held_for_its_memory_since_its_driver_saw_an_end_is_over(cause: Cause | None) -> None:
    job = after([(5, ACTIVE, 0)])
    apply_driver_status(job, DriverStatus(start=5, end=8, exit_code=0), 9)
    assert reopen(job, replace(status("H", SUSPENDED), cause=cause), 20) is (cause is None)


@pytest.mark.parametrize("seen", [status("CD", DONE), status("??", None)], ids=["ended", "unknown"])
def test_what_is_not_alive_revives_nothing(seen: LocalStatus) -> None:
    with pytest.raises(ValueError, match="is not alive"):
        reopen(after([(8, DONE, 3)]), seen, 20)


@pytest.mark.parametrize("events", [[], [(5, PENDING, 0)], [(5, ACTIVE, 0), (6, DONE, 0), (7, PENDING, 0)]])
def test_what_a_batch_system_lost_before_its_start_never_started(events: list[tuple[int, State, int]]) -> None:
    job = after(events)
    mark_lost(job, 100, "slurm does not know it any more")
    assert (job.cause, job.reason) == (
        Cause.NEVER_STARTED,
        f"{NEVER_RAN} (fork: it is gone, and its driver never began)",
    )


@pytest.mark.parametrize("events", [[(5, ACTIVE, 0)], [(5, ACTIVE, 0), (6, SUSPENDED, 0)]], ids=["runs", "suspended"])
def test_an_end_without_news_is_a_failure_with_a_reason(events: list[tuple[int, State, int]]) -> None:
    job = after(events)
    mark_lost(job, 100, "slurm does not know it any more")
    job.to_bytes()
    words = "its host or the batch system there was lost (fork: it is gone, and its driver left no record of an end)"
    assert (job.state, job.exit_code, job.cause, job.reason) == (FAILED, None, Cause.NODE_LOST, words)
    assert job.ended_time == 100
    verdict = "failed: slurm does not know it any more"
    assert job.evidence()[-1] == Evidence("us", "nowhere to be found", 100, verdict, FAILED)
    apply_event(job, Event(50, "17_3", PENDING))
    assert job.state is FAILED, "news from before"
    apply_event(job, Event(150, "17_3", PENDING))
    assert job.state is PENDING


@pytest.mark.parametrize("code", [0, 3])
def test_a_driver_is_a_witness_of_the_end(code: int) -> None:
    job = after([(5, ACTIVE, 0)])
    apply_driver_status(job, DriverStatus(start=5, end=9, exit_code=code), 9)
    assert (job.state, job.exit_code, job.succeeded) == (DONE, code, code == 0)
    assert job.evidence() == [
        Evidence("log", "active", 5, "active", ACTIVE),
        Evidence("driver", f"end, exit code {code}", 9, "done", DONE),
    ]
    assert job.ended_time == 9
    apply_event(job, Event(9, "17_3", PENDING))
    assert job.state is DONE, "what the log has yet to tell of this run"
    apply_event(job, Event(10, "17_3", PENDING))
    assert job.state is PENDING


@pytest.mark.parametrize(("events", "started"), [([], 6), ([(5, ACTIVE, 0)], 5)], ids=["driver", "log"])
def test_a_run_has_started_when_the_log_said_so_or_else_its_driver(
    events: list[tuple[int, State, int]], started: int
) -> None:
    job = after(events)
    apply_driver_status(job, DriverStatus(start=6, end=9, exit_code=0), 9)
    assert (job.started_time, job.ended_time) == (started, 9)


def test_a_run_that_is_over_says_nothing_of_the_next_unless_that_was_not_run() -> None:
    job = after([(5, ACTIVE, 0)])
    first = DriverStatus(start=5, pid=77, end=9, exit_code=143, signal="TERM")
    apply_driver_status(job, first, 9)
    apply_event(job, Event(20, "17_3", PENDING))
    apply_event(job, Event(21, "17_3", ACTIVE))
    assert not apply_driver_status(job, first, 21)
    assert job.state is ACTIVE
    apply_driver_status(job, replace(first, again=22), 22)
    assert (job.state, job.exit_code) == (DONE, 143)


@pytest.mark.parametrize(("code", "counts"), [(0, True), (7, False)], ids=["the run's", "another"])
def test_the_end_of_a_run_counts_again_where_the_batch_system_tells_of_its_exit_code(code: int, counts: bool) -> None:
    # HTCondor queues a job again whose shadow failed, and the next shadow may find that it has ended.
    job = after([(5, ACTIVE, 0)])
    ended = DriverStatus(start=5, pid=77, end=9, exit_code=0)
    apply_driver_status(job, ended, 9)
    for stamp, state in ((20, PENDING), (22, ACTIVE), (30, DONE)):
        apply_event(job, Event(stamp, "17_3", state, code))
    apply_driver_status(job, ended, 31)
    assert (job.state, job.exit_code, job.succeeded) == (DONE, code, counts)


def test_an_end_that_was_taken_back_is_an_end_once_its_driver_says_so() -> None:
    job = after([(5, ACTIVE, 0)])
    apply_driver_status(job, DriverStatus(start=5, pid=77), 6)
    apply_event(job, Event(8, "17_3", DONE))
    reopen(job, status("R", ACTIVE), 20)
    apply_driver_status(job, DriverStatus(start=5, pid=77, end=30, exit_code=0), 30)
    assert (job.state, job.succeeded) == (DONE, True)


@pytest.mark.parametrize("found", [DriverStatus(start=5), DriverStatus(start=5, end=9), DriverStatus()], ids=str)
def test_a_driver_without_end_is_no_witness(found: DriverStatus) -> None:
    job = submitted_job()
    apply_driver_status(job, found, 9)
    assert job.state is PENDING


@pytest.mark.parametrize(
    "found", [DriverStatus(), DriverStatus(start=5, problem="it is damaged")], ids=["gone", "torn"]
)
def test_what_was_read_of_an_end_holds_whatever_becomes_of_the_file(found: DriverStatus) -> None:
    job = after([(5, ACTIVE, 0)])
    apply_driver_status(job, DriverStatus(start=5, end=9, exit_code=3), 9)
    before = job.to_bytes()
    assert not apply_driver_status(job, found, 10)
    assert job.to_bytes() == before


def test_a_record_that_beats_the_batch_systems_end_is_evidence_once() -> None:
    job = after([(5, ACTIVE, 0), (8, FAILED, 255)])
    found = DriverStatus(start=5, end=8, exit_code=0)
    assert apply_driver_status(job, found, 9)
    assert not apply_driver_status(job, found, 9)
    assert [piece.verdict for piece in job.evidence() if piece.source == "driver"] == [
        "done: the driver's record beats the batch system's"
    ]


# --- whole arrays


@pytest.mark.parametrize(
    ("before", "event", "state"),
    [
        pytest.param([], (9, FAILED, 0), FAILED, id="an element that has not started"),
        pytest.param([(5, ACTIVE, 0)], (9, FAILED, 0), ACTIVE, id="one that runs"),
        pytest.param([(5, SUSPENDED, 0)], (9, FAILED, 0), SUSPENDED, id="one that is suspended"),
        pytest.param([(5, DONE, 0)], (9, FAILED, 0), DONE, id="one that has ended"),
        pytest.param([], (9, DONE, 0), PENDING, id="an end that is no failure"),
        pytest.param([], (9, ACTIVE, 0), PENDING, id="the start of the first"),
        pytest.param([(5, ACTIVE, 0)], (9, PENDING, 0), ACTIVE, id="queued"),
    ],
)
def test_the_end_of_an_array_is_that_of_its_waiting_elements(
    before: list[tuple[int, State, int]], event: tuple[int, State, int], state: State
) -> None:
    job = after(before)
    changed = apply_array_event(job, Event(event[0], "17", event[1], event[2]))
    assert (job.state, changed) == (state, state is not after(before).state)


# --- evidence


def test_evidence_says_what_was_seen_and_what_came_of_it() -> None:
    job = after([(1, PENDING, 0), (2, ACTIVE, 0), (3, DONE, 7), (2, SUSPENDED, 0), (9, ACTIVE, 0)])
    assert [(seen.said, seen.when, seen.verdict) for seen in job.evidence()] == [
        ("pending", 1, "nothing new: pending already"),
        ("active", 2, "active"),
        ("done 7", 3, "done"),
        ("suspended", 2, "late: the log had told of a later second"),
        ("active", 9, "nothing: done is the end, unless queued again"),
    ]
    assert [seen.state for seen in job.evidence()][-3:] == [DONE, None, None], "what changed nothing brought it nowhere"


def test_the_same_evidence_is_kept_once() -> None:
    job = submitted_job()
    for _ in range(2):
        job.put_evidence(Evidence("queue", "R", 5, "active"))
    job.put_evidence(Evidence("queue", "R", 5, "another verdict"))
    job.put_evidence(Evidence("history", "R", 5, "active"))
    assert job.evidence() == [Evidence("queue", "R", 5, "active"), Evidence("history", "R", 5, "active")]


def test_evidence_is_bounded_and_the_oldest_goes_first() -> None:
    job = after([(time, ACTIVE if time % 2 else PENDING, 0) for time in range(1, 3 * MOST_EVIDENCE)])
    kept = [seen.when for seen in job.evidence()]
    assert kept == list(range(2 * MOST_EVIDENCE, 3 * MOST_EVIDENCE))


def test_evidence_holds_whatever_a_batch_system_says() -> None:
    job = submitted_job()
    apply_status(job, status("F", FAILED, 1, "\x1b[31m<&\0\udcff"), 9, "queue")
    job.to_bytes()
    assert "<&" in job.evidence()[-1].said


def test_what_experiments_added_stays() -> None:
    job = submitted_job()
    job.element.append(job.element.makeelement("{urn:d0}run", {"number": "169000"}))
    apply_event(job, Event(5, "17_3", ACTIVE))
    apply_driver_status(job, DriverStatus(start=5, phases=(PhaseStatus("generate", 1, 2, "event"),)), 9)
    assert b'number="169000"' in job.to_bytes()


def shown(native_state: str, state: State) -> LocalStatus:
    return LocalStatus("17_3", native_state, state)


@pytest.mark.parametrize(("start", "end"), [(1005, 1060), (1000, 1000)], ids=["later", "in the second of submission"])
def test_a_run_begins_and_ends_when_its_driver_did_where_only_the_queue_told_of_it(start: int, end: int) -> None:
    job = submitted_job()
    apply_status(job, shown("R", ACTIVE), 1040, "queue")
    apply_driver_status(job, DriverStatus(start=start), 1041)
    assert (job.started_time, job.ended_time) == (start, None)
    apply_status(job, shown("X deleted", FAILED), 1080, "queue")
    apply_driver_status(job, DriverStatus(start=start, end=end, exit_code=0), 1081)
    assert (job.started_time, job.ended_time) == (start, end)


def test_a_host_whose_clock_is_slow_moves_no_times() -> None:
    job = after([(1001, PENDING, 0), (1002, ACTIVE, 0), (1030, DONE, 0)])
    apply_driver_status(job, DriverStatus(start=902, end=930, exit_code=0), 1031)
    assert (job.started_time, job.ended_time) == (1002, 1030)


def test_a_second_run_that_the_log_told_of_like_the_first_begins_when_its_driver_did() -> None:
    job = after([(1001, PENDING, 0), (1002, ACTIVE, 0)])
    apply_driver_status(job, DriverStatus(start=1002), 1003)
    apply_event(job, Event(1020, "17_3", ACTIVE, 0))
    apply_driver_status(job, DriverStatus(start=1021), 1022)
    assert job.started_time == 1021


def test_what_goes_on_after_it_was_suspended_began_before() -> None:
    assert after([(1002, ACTIVE, 0), (1010, SUSPENDED, 0), (1020, ACTIVE, 0)]).started_time == 1002
    assert after([(1010, SUSPENDED, 0), (1020, ACTIVE, 0)]).started_time == 1020


def test_a_job_that_was_only_signalled_keeps_what_its_driver_recorded() -> None:
    # To Slurm's log a signal looks like a cancel, until the job ends by itself.
    job = after([(1, ACTIVE, 0), (5, FAILED, 0)])
    ended = DriverStatus(start=1, end=9, exit_code=0, pid=7)
    apply_driver_status(job, ended, 10)
    for state in (PENDING, DONE):
        apply_event(job, Event(10, "17_3", state))
    apply_driver_status(job, ended, 11)
    assert (job.state, job.driver, job.outcome) == (DONE, "ended", Outcome.SUCCEEDED)
