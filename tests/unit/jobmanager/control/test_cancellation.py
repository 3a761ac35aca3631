"""What a cancelled grid job asks of the batch system, and what it may believe."""

from dataclasses import replace

import pytest

from batch_adapters.adapter import Unreachable
from batch_adapters.states import Cause, State
from jobmanager.control.cancel_requests import request_cancel
from jobmanager.control.cancellation import cancel_local_jobs, choose_ids
from jobmanager.database.local_job import Outcome
from jobmanager.submission.adoption import Unsettled
from tests.unit.toy_system import GRID_JOB, NOW, SETTLE, TOKEN, ToySystem


def end(toy: ToySystem, index: int, state: State = State.DONE) -> None:
    with toy.database.transaction():
        job = toy.job(index)
        job.state = state
        toy.database.local_jobs.put(GRID_JOB, [job])


@pytest.mark.parametrize(
    ("ids", "ended", "asked"),
    [
        pytest.param(["17_1", "17_2", "17_3"], [], ["17"], id="a whole array"),
        pytest.param(["17_1", "17_2", "18_1", "18_2"], [], ["17 18"], id="two whole arrays"),
        pytest.param(["17_1", "17_2", "17_3"], [2], ["17_1 17_3"], id="an array of which one has ended"),
        pytest.param(["17_1", "17_2", "18_1", "18_2"], [1], ["17_2 18"], id="one in part and one as a whole"),
        pytest.param(["17", "18"], [], ["17 18"], id="in no arrays"),
        pytest.param(["17_1", "17_2"], [1, 2], [], id="all have ended"),
    ],
)
def test_an_array_is_cancelled_as_a_whole_where_nothing_of_it_has_ended(
    toy: ToySystem, ids: list[str], ended: list[int], asked: list[str]
) -> None:
    toy.add(ids)
    for index in ended:
        end(toy, index)
    before = toy.states()
    cancel_local_jobs(toy.account, GRID_JOB)
    assert toy.calls("cancel") == asked
    assert toy.states() == before, "that they ended, the batch system must say"


def test_what_lives_again_while_ids_are_chosen_is_named_by_its_own(toy: ToySystem) -> None:
    toy.add(["17_1", "18_1", "18_2"])
    first, *others = toy.database.local_jobs.live(GRID_JOB)
    looks = iter([[first], [first, *others]])
    assert list(choose_ids(toy.database, "toy", lambda: next(looks))) == ["17", "18_1", "18_2"]


@pytest.mark.parametrize("state", [State.PENDING, State.ACTIVE, State.SUSPENDED], ids=lambda state: state.word)
def test_whatever_lives_is_cancelled(toy: ToySystem, state: State) -> None:
    toy.add(["17"], state)
    # The second is for systems where ids begin anew.
    toy.change_adapter(cancel=replace(toy.adapter.cancel, argv=(*toy.adapter.cancel.argv, "{{ prefixes* }}")))
    cancel_local_jobs(toy.account, GRID_JOB)
    toy.now += 1
    cancel_local_jobs(toy.account, GRID_JOB)
    assert toy.calls("cancel") == [f"17 {GRID_JOB}"] * 2
    assert toy.job().cancel_asked == NOW, "it may have obeyed from then on"


def test_an_array_of_the_same_id_of_earlier_days_does_not_count(toy: ToySystem) -> None:
    toy.add(["17_1", "17_2", "17_1"])
    end(toy, 1, State.FAILED)
    cancel_local_jobs(toy.account, GRID_JOB)
    assert toy.calls("cancel") == ["17_2 17_1"]


def test_only_what_was_asked_counts_as_asked(toy: ToySystem, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    toy.add(["17_1", "17_2", "18_1", "18_2", "19"])
    end(toy, 3)
    toy.answers("queue", f"17_1 R {TOKEN} -", "18_2 R renamed -", "19 R other -")
    cancel_local_jobs(toy.account, GRID_JOB)
    assert toy.calls("cancel") == ["17"]
    assert f"{GRID_JOB} cancel: 0 never submitted, 2 asked to end" in caplog.messages
    assert "toy: not changed, as others have these ids now, or they were renamed: 18 19" in caplog.messages


def test_what_was_never_submitted_fails(
    toy: ToySystem, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("jobmanager.database.local_jobs.AT_ONCE", 1)
    caplog.set_level("INFO")
    toy.add([None, None], token=None)
    toy.database.grid_jobs.change(GRID_JOB, lambda job: job.cancel(NOW, "cancelled by ada"))
    cancel_local_jobs(toy.account, GRID_JOB)
    assert toy.states() == [State.FAILED] * 2
    assert (toy.job().outcome, toy.job().cause) == (Outcome.CANCELLED, Cause.CANCELLED_BY_US)
    assert toy.job().reason == "never submitted: the grid job was cancelled before"
    assert f"{GRID_JOB} cancel: 2 never submitted, 0 asked to end" in caplog.messages
    assert toy.calls("find") == toy.calls("cancel") == []
    assert toy.database.grid_jobs.get(GRID_JOB).state is State.STAGE_OUT


def test_what_was_never_submitted_because_it_was_refused_has_failed_for_that(toy: ToySystem) -> None:
    toy.add([None], token=None)
    toy.database.grid_jobs.change(GRID_JOB, lambda job: job.cancel(NOW, "cannot be run: no such queue", "us"))
    cancel_local_jobs(toy.account, GRID_JOB)
    assert (toy.job().outcome, toy.job().cause) == (Outcome.FAILED, Cause.REFUSED)
    assert toy.job().reason == "never submitted: cannot be run: no such queue"


def test_what_is_cancelled_because_others_failed_says_so(toy: ToySystem) -> None:
    toy.add([None, "7"], token=None)
    toy.database.grid_jobs.change(GRID_JOB, lambda job: job.cancel(NOW, "1 of 3 failed", "fail-fast"))
    cancel_local_jobs(toy.account, GRID_JOB)
    assert (toy.job(1).outcome, toy.job(1).cause) == (Outcome.CANCELLED, Cause.FAIL_FAST)
    assert toy.job(1).reason == "never submitted: 1 of 3 failed"
    assert toy.job(2).cancel_cause is Cause.FAIL_FAST


def test_what_is_in_doubt_is_looked_up_and_then_cancelled(toy: ToySystem) -> None:
    toy.add([None, None])
    toy.answers("find", f"17_1 R {TOKEN} -", f"17_2 R {TOKEN} -")
    cancel_local_jobs(toy.account, GRID_JOB)
    assert toy.ids() == ["17_1", "17_2"]
    assert toy.calls("cancel") == ["17"]


def test_what_is_known_does_not_wait_for_what_is_in_doubt(toy: ToySystem) -> None:
    toy.add(["16", None])
    toy.does("find", "exit 1")
    with pytest.raises(Unreachable):
        cancel_local_jobs(toy.account, GRID_JOB)
    assert toy.calls("cancel") == ["16"]
    assert toy.states() == [State.PENDING, State.UNSUBMITTED]


def test_what_may_still_turn_up_is_not_given_up_before_it_is_certain(toy: ToySystem) -> None:
    toy.add([None])
    with pytest.raises(Unsettled):
        cancel_local_jobs(toy.account, GRID_JOB)
    assert toy.states() == [State.UNSUBMITTED]
    toy.now += SETTLE
    cancel_local_jobs(toy.account, GRID_JOB)
    assert toy.states() == [State.FAILED]


def test_a_cancel_during_an_outage_is_tried_at_once_and_once(toy: ToySystem, monkeypatch: pytest.MonkeyPatch) -> None:
    toy.add(["17"])
    toy.does("queue", "exit 1")
    toy.does("cancel", "exit 1")
    toy.falls_silent(monkeypatch)
    toy.now += 5
    request_cancel(toy.database, GRID_JOB, "enough")
    for _ in range(3):
        toy.now += 1
        with pytest.raises(Unreachable):
            cancel_local_jobs(toy.account, GRID_JOB)
    assert toy.calls("cancel") == ["17"]


def test_where_nobody_takes_the_order_nothing_is_believed(toy: ToySystem) -> None:
    toy.add(["17"])
    toy.does("cancel", "exit 1")
    with pytest.raises(Unreachable):
        cancel_local_jobs(toy.account, GRID_JOB)
    assert toy.states() == [State.PENDING]
