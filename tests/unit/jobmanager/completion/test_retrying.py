"""Failed local jobs are tried again: which ones, and that nothing of an earlier attempt reaches the next."""

import time
from pathlib import Path

import pytest
from lxml import etree

from batch_adapters.adapter import LocalStatus, Unreachable
from batch_adapters.states import Cause, Event, State
from jobmanager.completion.collection import collect_grid_job
from jobmanager.completion.retries import judge_failures
from jobmanager.database.grid_job import GridJob
from jobmanager.database.local_job import Outcome
from jobmanager.monitor.worker import main as run_worker
from jobmanager.site.account import Account
from jobmanager.states.aggregation import Due
from jobmanager.states.changes import change_local_jobs, same_runs
from jobmanager.states.driver_status import reconcile_with_drivers
from jobmanager.states.failures import find_due
from jobmanager.states.program_reports import read_foreign_xml, read_reports
from jobmanager.states.reconciliation import find_orphans
from jobmanager.states.registration import apply_events, register_local_jobs
from jobmanager.states.transitions import note_batch_end
from jobmanager.submission.adoption import adopt
from jobmanager.submission.submit import write_intent
from jobmanager.views.explaining import explain
from jobmanager.views.grid_jobs import find_details, render_details
from jobmanager.views.logs import read_history
from tests.unit.toy_system import GRID_JOB, LAG, NOW, ToySystem


@pytest.fixture
def toy(account: Account, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ToySystem:
    return ToySystem(account, tmp_path / "toy", monkeypatch)


def judge(toy: ToySystem) -> int:
    """How many local jobs are tried again."""
    before = sum(job.attempt for job in toy.database.local_jobs.all_of(GRID_JOB))
    judge_failures(toy.account, GRID_JOB)
    return sum(job.attempt for job in toy.database.local_jobs.all_of(GRID_JOB)) - before


def prepare(toy: ToySystem, retries: int = 1) -> None:
    """A grid job of an array of two local jobs, of which the second failed."""
    toy.add(["7_0", "7_1"])
    toy.database.grid_jobs.change(GRID_JOB, lambda job: setattr(job, "retries", retries))
    toy.drives("7_0", f"start {NOW}", "host node1", "exit 0", f"end {NOW + 5}")
    toy.drives("7_1", f"start {NOW}", "host node2", "exit 3", f"end {NOW + 5}")
    events = [Event(NOW + 5, "7_0", State.DONE, 0), Event(NOW + 5, "7_1", State.DONE, 3)]
    for grid_job, jobs in apply_events(toy.database, "toy", events).items():
        reconcile_with_drivers(toy.account, grid_job, jobs)


def test_the_next_attempt_is_new_and_the_last_one_is_remembered(toy: ToySystem) -> None:
    prepare(toy)
    assert judge(toy) == 1
    first, second = toy.job(1), toy.job(2)
    assert (first.state, first.succeeded, first.earlier_attempts()) == (State.DONE, True, [])
    (attempt,) = second.earlier_attempts()
    assert (attempt.local_id, attempt.token, attempt.exit_code) == ("7_1", f"{GRID_JOB}-1", 3)
    assert (attempt.state, attempt.host) == (State.DONE, "node2")
    assert attempt.reason == "the program ended with exit code 3"
    assert (second.state, second.attempt, second.index) == (State.UNSUBMITTED, 2, 2)
    names = ("id", "token", "array", "exit-code", "started", "ended", "event-time", "host", "driver", "reason")
    assert [name for name in names if second.element.get(name) is not None] == []
    assert second.evidence() == []


def test_a_request_without_retries_tries_nothing_again(toy: ToySystem) -> None:
    prepare(toy, retries=0)
    before = toy.documents()
    assert judge(toy) == 0
    assert toy.documents() == before


def test_a_grid_job_that_tries_again_never_looks_as_if_it_had_not_begun(toy: ToySystem) -> None:
    prepare(toy)
    assert judge(toy) == 1
    assert toy.database.grid_jobs.get(GRID_JOB).state is State.ACTIVE


def test_a_grid_job_all_of_whose_local_jobs_are_tried_again_stays_active(toy: ToySystem) -> None:
    toy.add(["7_0"])
    toy.database.grid_jobs.change(GRID_JOB, lambda job: setattr(job, "retries", 1))
    apply_events(toy.database, "toy", [Event(NOW + 5, "7_0", State.FAILED, 1)])
    toy.now += 5 + LAG
    assert judge(toy) == 1
    assert toy.states() == [State.UNSUBMITTED]
    assert toy.database.grid_jobs.get(GRID_JOB).state is State.ACTIVE


def test_no_token_is_used_again_though_nobody_has_it_any_more(toy: ToySystem) -> None:
    toy.add(["7_0"])
    toy.database.grid_jobs.change(GRID_JOB, lambda job: setattr(job, "retries", 3))
    tokens = []
    for local_id in ("7_0", "8_0", "9_0"):
        apply_events(toy.database, "toy", [Event(toy.now, local_id, State.FAILED, 1)])
        toy.now += LAG
        assert judge(toy) == 1
        intent = write_intent(toy.database, GRID_JOB, 10)
        assert intent is not None
        tokens.append(intent.token)
        following = f"{int(local_id[0]) + 1}_0"
        register_local_jobs(toy.database, GRID_JOB, {1: following}, toy.adapter.naming)
    assert tokens == [f"{GRID_JOB}-2", f"{GRID_JOB}-3", f"{GRID_JOB}-4"]
    assert [attempt.token for attempt in toy.job().earlier_attempts()] == [f"{GRID_JOB}-{n}" for n in (1, 2, 3)]


@pytest.mark.parametrize(
    "event",
    [
        pytest.param(Event(NOW + 9, "7_1", State.PENDING, 0), id="queued again"),
        pytest.param(Event(NOW + 9, "7_1", State.ACTIVE, 0), id="started again"),
        pytest.param(Event(NOW + 5, "7_1", State.DONE, 0), id="its end, told again"),
        pytest.param(Event(NOW + 9, "7", State.FAILED, 0), id="the end of the whole array"),
    ],
)
def test_late_news_of_an_earlier_attempt_changes_nothing(toy: ToySystem, event: Event) -> None:
    prepare(toy)
    judge(toy)
    write_intent(toy.database, GRID_JOB, 10)
    register_local_jobs(toy.database, GRID_JOB, {2: "8_0"}, toy.adapter.naming)
    before = toy.job(2).to_bytes()
    apply_events(toy.database, "toy", [event])
    assert toy.job(2).to_bytes() == before


def test_what_was_read_of_an_earlier_driver_does_not_reach_the_next_attempt(toy: ToySystem) -> None:
    prepare(toy)
    read_before = toy.database.local_jobs.all_of(GRID_JOB)
    judge(toy)
    before = toy.job(2).to_bytes()
    reconcile_with_drivers(toy.account, GRID_JOB, read_before)
    assert toy.job(2).to_bytes() == before


def test_an_answer_that_was_asked_before_does_not_reach_the_next_attempt(
    toy: ToySystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The queue is asked, then all ends, and the grid job tries again while the answer is on its way."""
    toy.add(["7_0"])
    toy.database.grid_jobs.change(GRID_JOB, lambda job: setattr(job, "retries", 1))
    known = toy.database.local_jobs.list_open("toy")
    apply_events(toy.database, "toy", [Event(NOW + 5, "7_0", State.FAILED, 1)])
    judge(toy)
    before = toy.job().to_bytes()
    toy.answers("queue", f"7_0 R {GRID_JOB}-1 -")
    monkeypatch.setattr(type(toy.database.local_jobs), "list_open", lambda database, batch: known)
    assert run_worker(["--state-dir", str(toy.account.places.root), "reconcile", "toy"]) == 0
    assert toy.job().to_bytes() == before


def test_an_earlier_attempt_that_lives_again_is_an_orphan(toy: ToySystem) -> None:
    prepare(toy)
    alive = LocalStatus("7_1", "R", State.ACTIVE, token=f"{GRID_JOB}-1")
    assert list(find_orphans(toy.database, toy.system, [alive])) == []
    judge(toy)
    (orphan,) = find_orphans(toy.database, toy.system, [alive])
    assert (orphan.local_id, orphan.is_ours) == ("7_1", True)
    assert "earlier attempt" in orphan.reason


def test_a_cancelled_grid_job_tries_nothing_again(toy: ToySystem) -> None:
    prepare(toy)
    toy.database.grid_jobs.change(GRID_JOB, lambda job: job.cancel(time.time(), "cancelled by a test"))
    assert find_due(toy.database, GRID_JOB) is Due.NEVER
    assert judge(toy) == 0
    assert toy.job(2).earlier_attempts() == []


def test_a_local_job_that_was_queued_again_meanwhile_is_left_alone(toy: ToySystem) -> None:
    prepare(toy)
    apply_events(toy.database, "toy", [Event(NOW + 6, "7_1", State.PENDING, 0)])
    assert judge(toy) == 0


def test_what_is_explained_of_a_local_job_names_its_earlier_attempts(toy: ToySystem) -> None:
    prepare(toy)
    judge(toy)
    text = explain(toy.account, f"{GRID_JOB}/2", ask=False)
    assert "7_1 on node2: the program ended with exit code 3" in text


def test_what_an_earlier_attempt_reported_does_not_reach_the_next(
    toy: ToySystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The grid job tries again while the report is read."""
    prepare(toy)
    folder = toy.account.places.reports(GRID_JOB)
    folder.mkdir()
    (folder / f"{GRID_JOB}.7_1.1.xml").write_text('<note xmlns="urn:experiment"/>')

    def read(data: bytes) -> etree._Element:
        judge(toy)
        return read_foreign_xml(data)

    monkeypatch.setattr("jobmanager.states.program_reports.read_foreign_xml", read)
    read_reports(toy.account, GRID_JOB)
    assert toy.job(2).attempt == 2
    assert [child.tag for child in toy.job(2).element] == ["attempt"]


# --- while others run


def run_three(toy: ToySystem, **wishes: object) -> None:
    """A grid job of an array of three local jobs that run."""
    toy.add(["7_0", "7_1", "7_2"], State.ACTIVE)

    def put(job: GridJob) -> None:
        for name, value in {"retries": 1, **wishes}.items():
            setattr(job, name, value)

    toy.database.grid_jobs.change(GRID_JOB, put)


def end(toy: ToySystem, local_id: str, exit_code: int = 3) -> None:
    """Its driver wrote down an end, and the log tells of it."""
    toy.drives(local_id, f"start {NOW}", "host node1", f"exit {exit_code}", f"end {toy.now}")
    for grid_job, jobs in apply_events(toy.database, "toy", [Event(toy.now, local_id, State.DONE, exit_code)]).items():
        reconcile_with_drivers(toy.account, grid_job, jobs)


def test_a_local_job_is_tried_again_while_the_others_run(toy: ToySystem) -> None:
    run_three(toy)
    end(toy, "7_1")
    assert judge(toy) == 1
    assert toy.states() == [State.ACTIVE, State.UNSUBMITTED, State.ACTIVE]
    assert toy.calls("queue") + toy.calls("history") == [], "its driver's record says all"
    intent = write_intent(toy.database, GRID_JOB, 10)
    assert intent is not None
    assert (intent.token, intent.indexes) == (f"{GRID_JOB}-2", [2])


def test_an_end_that_only_the_log_told_is_proven_first(toy: ToySystem) -> None:
    run_three(toy)
    apply_events(toy.database, "toy", [Event(toy.now, "7_1", State.FAILED, 1)])
    assert judge(toy) == 0
    toy.now += LAG
    toy.answers("queue", f"7_1 R {GRID_JOB}-1 -")
    assert judge(toy) == 0
    assert toy.states() == [State.ACTIVE] * 3, "the batch system shows it alive"


def test_one_of_which_word_is_on_its_way_keeps_no_other_waiting(toy: ToySystem) -> None:
    run_three(toy)
    apply_events(toy.database, "toy", [Event(toy.now, "7_0", State.FAILED, 1)])
    end(toy, "7_1")
    assert judge(toy) == 1
    assert toy.states() == [State.FAILED, State.UNSUBMITTED, State.ACTIVE]


def test_what_a_signal_ended_is_not_tried_again_before_the_history_may_tell_why(toy: ToySystem) -> None:
    run_three(toy)
    end(toy, "7_1", 137)
    toy.now += LAG - 1
    assert judge(toy) == 0
    assert toy.calls("history") == [], "nobody would wait for the answer"
    toy.now += 1
    assert judge(toy) == 1


def test_while_nobody_says_why_it_ended_it_is_not_tried_again(toy: ToySystem) -> None:
    run_three(toy, retry_on=("memory-limit",))
    apply_events(toy.database, "toy", [Event(toy.now, "7_1", State.FAILED, 1)])
    toy.database.grid_jobs.change(GRID_JOB, lambda job: setattr(job, "retry_on", None))
    toy.now += LAG
    toy.does("history", "exit 1")
    with pytest.raises(Unreachable):
        judge_failures(toy.account, GRID_JOB)
    assert toy.job(2).attempt == 1


def test_what_the_history_says_counts_for_retry_on(toy: ToySystem) -> None:
    run_three(toy, retry_on=("signal", "never-started"))
    apply_events(toy.database, "toy", [Event(toy.now, "7_1", State.FAILED, 137)])
    toy.now += LAG
    toy.change_adapter(causes={"F": Cause.MEMORY_LIMIT})
    toy.answers("history", f"7_1 F {GRID_JOB}-1 137")
    assert judge(toy) == 0
    assert toy.job(2).cause is Cause.MEMORY_LIMIT
    assert find_due(toy.database, GRID_JOB) is Due.NEVER


def test_nothing_is_tried_again_by_whose_place_another_is_to_be_found(toy: ToySystem) -> None:
    """Of an array a part is registered: the ids of the others follow from the order of all its local jobs."""
    toy.add(["7_1", None, "7_3"], State.ACTIVE)
    toy.database.grid_jobs.change(GRID_JOB, lambda job: setattr(job, "retries", 1))
    end(toy, "7_1")
    before = toy.database.grid_jobs.get(GRID_JOB).to_bytes()
    assert judge(toy) == 0
    assert toy.database.grid_jobs.get(GRID_JOB).to_bytes() == before
    toy.answers("find", *(f"7_{number} R {GRID_JOB}-1 -" for number in (1, 2, 3)))
    assert adopt(toy.account, toy.system, GRID_JOB, f"{GRID_JOB}-1")
    assert toy.ids() == ["7_1", "7_2", "7_3"]
    assert judge(toy) == 1


def test_a_pause_before_another_attempt_ends_no_grid_job(toy: ToySystem) -> None:
    run_three(toy, retries=5)
    for index in (1, 3):
        end(toy, f"7_{index - 1}", 0)
    for attempt in range(1, 4):
        end(toy, str(toy.job(2).local_id))
        if attempt > 1:
            assert find_due(toy.database, GRID_JOB) is Due.LATER
            assert toy.database.grid_jobs.get(GRID_JOB).state is State.ACTIVE
            collect_grid_job(toy.account, GRID_JOB)
            assert judge(toy) == 0
            toy.now += 2 ** (attempt - 2)
        assert judge(toy) == 1
        write_intent(toy.database, GRID_JOB, 10)
        register_local_jobs(toy.database, GRID_JOB, {2: f"{attempt + 20}_0"}, toy.adapter.naming)


def test_a_grid_job_is_stopped_when_it_cannot_succeed_any_more(toy: ToySystem) -> None:
    run_three(toy, retries=1, fail_fast=True)
    end(toy, "7_1")
    assert judge(toy) == 1
    write_intent(toy.database, GRID_JOB, 10)
    register_local_jobs(toy.database, GRID_JOB, {2: "8"}, toy.adapter.naming)
    assert not toy.database.grid_jobs.get(GRID_JOB).cancelled
    end(toy, "8")
    assert judge(toy) == 0
    stopped = toy.database.grid_jobs.get(GRID_JOB)
    assert (stopped.cancelled, stopped.cancelled_by, stopped.was_cancelled) == (True, "fail-fast", False)
    assert stopped.reason == "1 of 3 local jobs failed, first number 2 (attempt 2): the program ended with exit code 3"
    stopped.to_bytes()


def test_a_grid_job_is_not_stopped_by_an_end_that_is_not_proven(toy: ToySystem) -> None:
    run_three(toy, retries=0, fail_fast=True)
    apply_events(toy.database, "toy", [Event(toy.now, "7_1", State.FAILED, 1)])
    judge_failures(toy.account, GRID_JOB)
    assert not toy.database.grid_jobs.get(GRID_JOB).cancelled
    toy.now += LAG
    judge_failures(toy.account, GRID_JOB)
    assert toy.database.grid_jobs.get(GRID_JOB).cancelled


def test_those_of_all_parts_are_counted_together(
    toy: ToySystem, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("jobmanager.states.changes.AT_ONCE", 2)
    caplog.set_level("INFO")
    run_three(toy, retries=1, fail_fast=True)
    for number in range(3):
        end(toy, f"7_{number}")
    assert judge(toy) == 3
    assert f"{GRID_JOB} tried again: 3 local jobs" in caplog.messages
    write_intent(toy.database, GRID_JOB, 10)
    ids = {index: f"8_{index}" for index in (1, 2, 3)}
    register_local_jobs(toy.database, GRID_JOB, ids, toy.adapter.naming)
    for local_id in ids.values():
        end(toy, local_id)
    judge_failures(toy.account, GRID_JOB)
    words = "3 of 3 local jobs failed, first number 1 (attempt 2): the program ended with exit code 3"
    assert toy.database.grid_jobs.get(GRID_JOB).reason == words


def test_a_grid_job_that_can_still_succeed_goes_on(toy: ToySystem) -> None:
    run_three(toy, retries=0, fail_fast=True, min_success=0.5)
    end(toy, "7_1")
    assert find_due(toy.database, GRID_JOB) is Due.NEVER
    end(toy, "7_2")
    assert find_due(toy.database, GRID_JOB) is Due.NOW
    judge_failures(toy.account, GRID_JOB)
    assert toy.database.grid_jobs.get(GRID_JOB).cancelled


@pytest.mark.parametrize("other", [0, 3], ids=["the other succeeded", "the other failed"])
def test_a_cancel_outside_is_tried_again_where_the_request_names_it(toy: ToySystem, other: int) -> None:
    toy.add(["7_0", "7_1"], State.ACTIVE)
    toy.database.grid_jobs.change(GRID_JOB, lambda job: setattr(job, "retries", 1))
    toy.database.grid_jobs.change(GRID_JOB, lambda job: setattr(job, "retry_on", ("cancelled-outside",)))
    end(toy, "7_0", other)
    apply_events(toy.database, "toy", [Event(toy.now, "7_1", State.FAILED, 1)])
    cancelled = LocalStatus("7_1", "CA", State.FAILED, cause=Cause.CANCELLED_OUTSIDE)
    select = same_runs(GRID_JOB, [toy.job(2)])
    change_local_jobs(toy.database, GRID_JOB, select, lambda job: note_batch_end(job, cancelled))
    assert toy.job(2).outcome is Outcome.CANCELLED
    assert find_due(toy.database, GRID_JOB) is Due.NOW


def test_it_is_told_why_a_local_job_is_not_tried_again(toy: ToySystem) -> None:
    run_three(toy, retry_on=("node-lost",))
    end(toy, "7_1")
    assert "tried again   no: retry_on does not name exit code" in explain(toy.account, f"{GRID_JOB}/2", ask=False)
    (row,) = toy.database.grid_jobs.overview(GRID_JOB)
    text = render_details(toy.account, row, toy.now)
    assert "0 made; not again: 1 (retry_on does not name exit code)" in text
    details = find_details(toy.account, GRID_JOB, toy.now)
    assert (details["retries"], details["not_tried_again"]) == (0, {"retry_on does not name exit code": 1})
    told = [words for _, words in read_history(toy.database, GRID_JOB)]
    assert "not tried again: 1 (retry_on does not name exit code)" in told
    toy.database.grid_jobs.change(GRID_JOB, lambda job: setattr(job, "retry_on", None))
    assert "tried again   soon" in explain(toy.account, f"{GRID_JOB}/2", ask=False)
