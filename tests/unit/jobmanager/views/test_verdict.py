"""The verdict about a local job follows from all evidence, in one sentence."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from batch_adapters.adapter import LocalStatus
from batch_adapters.states import Cause, Event, State
from jobmanager.database.local_job import LocalJob
from jobmanager.states.ends import put_outcome
from jobmanager.states.transitions import apply_driver_status, apply_event, apply_status, mark_lost
from jobmanager.views.text import render_moment
from jobmanager.views.verdict import BatchAnswer, Context, render_verdict
from sandbox.status import CaughtSignal, DriverStatus
from tests.unit.jobmanager.views.test_explaining import TOKEN, T, running, submitted

ALIVE = LocalStatus("17.1", "RUNS", State.ACTIVE, token=TOKEN)
ENDED = LocalStatus("17.1", "ENDED", State.DONE, exit_code=0, token=TOKEN)
QUIET = Context(grid_job_has_ended=False, reconcile_interval=30, missing=None, driver=DriverStatus())
SHOWN = replace(QUIET, now=BatchAnswer((ALIVE,)))
UNANSWERED = replace(QUIET, now=BatchAnswer(problem="dead"))


def failed_by_log() -> LocalJob:
    job = running()
    apply_event(job, Event(T + 9, "17.1", State.FAILED))
    return job


def failed_in_a_second_run() -> LocalJob:
    job = failed_by_log()
    job.earlier_run = "1 7"
    return job


def proven() -> LocalJob:
    job = running()
    apply_event(job, Event(T + 9, "17.1", State.DONE))
    apply_driver_status(job, DriverStatus(start=T, end=T + 8, exit_code=0), 9)
    return job


def told_to_end() -> LocalJob:
    job = running()
    told = CaughtSignal("TERM", T + 7)
    apply_driver_status(job, DriverStatus(start=T, end=T + 8, exit_code=143, caught=(told,)), T + 9)
    return job


def requeued_by_queue() -> LocalJob:
    job = running()
    apply_status(job, LocalStatus("17.1", "WAITS", State.PENDING), T + 20, "queue")
    return job


def cancelled_before_its_start() -> LocalJob:
    job = submitted()
    apply_event(job, Event(T + 20, "17.1", State.FAILED))
    job.put_batch_end("F without a start", State.FAILED, Cause.CANCELLED_OUTSIDE, "root")
    put_outcome(job)
    return job


def run_twice() -> LocalJob:
    job = running()
    apply_event(job, Event(T + 20, "17.1", State.PENDING))
    apply_event(job, Event(T + 30, "17.1", State.ACTIVE))
    apply_event(job, Event(T + 25, "17.1", State.DONE))
    return job


def lost() -> LocalJob:
    job = running()
    mark_lost(job, T + 900, "nobody knows it")
    return job


def never_submitted() -> LocalJob:
    job = LocalJob.new(1, "fake", None)
    job.state = State.FAILED
    job.reason = "never submitted: the grid job was cancelled before"
    return job


def intended() -> LocalJob:
    job = LocalJob.new(1, "fake", None)
    job.intend(TOKEN, T)
    return job


@pytest.mark.parametrize(
    ("make", "context", "words"),
    [
        pytest.param(submitted, QUIET, ["Pending", "nobody has told more"], id="nothing but submitted"),
        pytest.param(running, QUIET, ["Active", "log", "active", render_moment(T + 5)], id="by the log"),
        pytest.param(run_twice, QUIET, ["Active", "log", render_moment(T + 30)], id="by the last that counts"),
        pytest.param(requeued_by_queue, QUIET, ["Pending", "queue", "WAITS", render_moment(T + 20)], id="by queue"),
        pytest.param(
            requeued_by_queue,
            SHOWN,
            ["Pending", "RUNS", "will be active", "every 30 s"],
            id="the queue knows better",
        ),
        pytest.param(
            running,
            replace(QUIET, now=BatchAnswer((replace(ALIVE, native_state="ODD", state=None),))),
            ["Active", "ODD", "nothing changes"],
            id="unknown native state",
        ),
        pytest.param(
            running,
            replace(QUIET, now=BatchAnswer(), missing=(2, T + 60)),
            ["Active", "does not know it", "3 answers", "so far 2", render_moment(T + 60)],
            id="missing",
        ),
        pytest.param(
            running,
            replace(QUIET, now=BatchAnswer(), history=BatchAnswer((ENDED,))),
            ["Active", "its history says ENDED", "ends it"],
            id="missing, with history",
        ),
        pytest.param(
            running,
            replace(QUIET, now=BatchAnswer(), driver=DriverStatus(start=T, end=T + 8, exit_code=0)),
            ["Active", "its driver wrote down the end", "ends it"],
            id="missing, with the driver's end",
        ),
        pytest.param(
            proven,
            replace(QUIET, now=BatchAnswer((ALIVE,))),
            ["Succeeded", "only when the outputs are back"],
            id="driver",
        ),
        pytest.param(failed_by_log, QUIET, ["Failed", "cancelled", "log", "failed 0", "no end"], id="failed"),
        pytest.param(
            cancelled_before_its_start, QUIET, ["Cancelled, as it was", "by root"], id="cancelled before its start"
        ),
        pytest.param(
            failed_by_log,
            SHOWN,
            ["Failed", "but fake shows it RUNS", "taken back"],
            id="failed, but alive",
        ),
        pytest.param(
            failed_by_log,
            replace(QUIET, now=BatchAnswer((ALIVE,)), grid_job_has_ended=True),
            ["Failed", "but fake shows it RUNS", "samgrid orphans"],
            id="failed, but alive, too late",
        ),
        pytest.param(
            failed_by_log,
            replace(QUIET, now=BatchAnswer((replace(ALIVE, token="stranger"),))),
            ["Failed", "wrote down no end."],
            id="failed, and its id is used again",
        ),
        pytest.param(
            failed_by_log,
            replace(QUIET, driver=DriverStatus(start=1, end=2, exit_code=143)),
            ["Failed", "wrote down an end, which counts when the outputs are gathered."],
            id="failed, and its driver's end is not read yet",
        ),
        pytest.param(
            failed_in_a_second_run,
            replace(QUIET, driver=DriverStatus(start=1, pid=7, end=2, exit_code=143)),
            ["Failed", "wrote down the end of an earlier run only."],
            id="failed, when it was queued again",
        ),
        pytest.param(
            told_to_end,
            QUIET,
            ["Failed", "nobody says who sent it", "so far: fake is asked why", "its outputs are back"],
            id="told to end by somebody",
        ),
        pytest.param(
            told_to_end,
            replace(QUIET, grid_job_has_ended=True),
            ["Failed", "nobody says who sent it; its outputs are back"],
            id="told to end by somebody that nobody knows",
        ),
        pytest.param(lost, QUIET, ["Failed", "was lost", "the job manager"], id="lost"),
        pytest.param(never_submitted, QUIET, ["failed", "never submitted"], id="never submitted"),
        pytest.param(
            lambda: LocalJob.new(1, "fake", None), QUIET, ["Not submitted: no submission of it"], id="not submitted"
        ),
        pytest.param(
            lambda: LocalJob.new(1, "fake", None),
            replace(QUIET, problem="submit: AssocMaxSubmitJobLimit"),
            ["Not submitted: submit: AssocMaxSubmitJobLimit."],
            id="what keeps it from being submitted",
        ),
        pytest.param(
            intended,
            replace(QUIET, problem="submit: nowhere"),
            ["In doubt", "(submit: nowhere)"],
            id="in doubt, and why",
        ),
        pytest.param(intended, QUIET, ["In doubt", TOKEN, "adopted"], id="in doubt"),
        pytest.param(
            intended, replace(QUIET, now=BatchAnswer()), ["In doubt", "submitted again only"], id="in doubt, absent"
        ),
        pytest.param(
            intended,
            UNANSWERED,
            ["In doubt", "until fake answers"],
            id="doubt, silent",
        ),
    ],
)
def test_the_verdict_is_one_sentence_that_says_from_what(
    make: Callable[[], LocalJob], context: Context, words: list[str]
) -> None:
    job = make()
    put_outcome(job)
    verdict = render_verdict(job, context)
    positions = [verdict.find(word) for word in words]
    assert -1 not in positions, verdict
    assert positions == sorted(positions), verdict
    assert verdict.endswith(".")
    assert "\n" not in verdict
