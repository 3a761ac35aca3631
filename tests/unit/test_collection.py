"""A grid job is over when its local jobs are, for certain, and their outputs had time to come back."""

import pytest

from batch_adapters.adapter import BatchError, Garbled, Unreachable
from batch_adapters.states import State
from jobmanager.collection import collect_grid_job
from tests.unit.toy_system import GRID_JOB, LAG, NOW, TOKEN, ToySystem


def add_ended(toy: ToySystem, *ids: str, state: State = State.DONE, exit_code: int = 0, ended: int = NOW - LAG) -> None:
    """A grid job whose local jobs have ended, as far as the log says."""
    toy.add(list(ids), state)
    with toy.database.transaction():
        jobs = toy.database.local_jobs(GRID_JOB)
        for job in jobs:
            job.exit_code = exit_code
            job.put_times(ended=ended)
        toy.database.put_local_jobs(GRID_JOB, jobs)


def state_of(toy: ToySystem) -> State:
    return toy.database.grid_job(GRID_JOB).state


@pytest.mark.parametrize(
    ("line", "alive"),
    [
        pytest.param(f"17 R {TOKEN} -", State.ACTIVE, id="runs"),
        pytest.param(f"17 PD {TOKEN} - JobHeldUser", State.PENDING, id="waits"),
        pytest.param(f"17 S {TOKEN} -", State.SUSPENDED, id="suspended"),
        pytest.param("", None, id="not shown"),
        pytest.param(f"17 CD {TOKEN} 0", None, id="shown as ended"),
        pytest.param(f"17 CG {TOKEN} -", None, id="on its way out"),
        pytest.param(f"17 ?? {TOKEN} -", None, id="in an unknown state"),
        pytest.param("17 R otherjob-1 -", None, id="an id that was used again"),
        pytest.param(f"18 R {TOKEN} -", None, id="another job"),
    ],
)
def test_what_the_queue_shows_alive_is_revived_and_not_collected(
    toy: ToySystem, line: str, alive: State | None
) -> None:
    add_ended(toy, "17", exit_code=3)
    toy.answers("queue", *filter(None, [line]))
    collect_grid_job(toy.account, GRID_JOB)
    assert toy.states() == [alive or State.DONE]
    assert toy.account.places.output(GRID_JOB).exists() is (alive is None)
    assert state_of(toy) is (alive or State.FAILED)


def test_the_drivers_record_needs_no_second_witness(toy: ToySystem) -> None:
    add_ended(toy, "17", ended=NOW)
    toy.drives("17", "start 1000", "exit 0", "end 2000")
    toy.answers("queue", f"17 R {TOKEN} -")
    collect_grid_job(toy.account, GRID_JOB)
    assert state_of(toy) is State.DONE
    assert toy.calls("queue") == []


def test_local_jobs_that_were_never_submitted_are_not_asked_for(toy: ToySystem) -> None:
    toy.add([None], token=None)
    with toy.database.transaction():
        job = toy.job()
        job.state = State.FAILED
        toy.database.put_local_jobs(GRID_JOB, [job])
    collect_grid_job(toy.account, GRID_JOB)
    assert state_of(toy) is State.FAILED
    assert toy.calls("queue") == []


@pytest.mark.parametrize(
    ("state", "driver", "waits"),
    [
        pytest.param(State.DONE, [], True, id="done without a record"),
        pytest.param(State.DONE, ["start 1000"], True, id="done and started"),
        pytest.param(State.FAILED, ["start 1000"], True, id="failed and started"),
        pytest.param(State.FAILED, [], False, id="failed before it started"),
        pytest.param(State.DONE, ["start 1000", "exit 0", "end 2000"], False, id="all is back"),
    ],
)
def test_outputs_that_may_be_on_their_way_are_waited_for(
    toy: ToySystem, state: State, driver: list[str], waits: bool
) -> None:
    add_ended(toy, "17", state=state, ended=NOW)
    toy.drives("17", *driver)
    toy.now = NOW + LAG - 1
    if waits:
        with pytest.raises(Unreachable, match="20 s for 1 local jobs to bring back their outputs, first 17"):
            collect_grid_job(toy.account, GRID_JOB)
        assert not state_of(toy).is_final
        toy.now = NOW + LAG
    collect_grid_job(toy.account, GRID_JOB)
    assert state_of(toy).is_final


def test_what_leaves_the_batch_system_has_time_to_turn_out_to_be_queued_again(toy: ToySystem) -> None:
    add_ended(toy, "17", state=State.FAILED, ended=NOW)
    toy.answers("queue", f"17 CG {TOKEN} -")
    with pytest.raises(Unreachable, match="20 s for 1 local jobs to leave the batch system, first 17"):
        collect_grid_job(toy.account, GRID_JOB)
    toy.answers("queue", f"17 PD {TOKEN} -")
    collect_grid_job(toy.account, GRID_JOB)
    assert toy.states() == [State.PENDING]


def test_outputs_that_come_back_meanwhile_make_a_success(toy: ToySystem) -> None:
    add_ended(toy, "17", ended=NOW)
    toy.drives("17", "start 1000")
    with pytest.raises(Unreachable):
        collect_grid_job(toy.account, GRID_JOB)
    toy.drives("17", "start 1000", "exit 0", "end 2000")
    collect_grid_job(toy.account, GRID_JOB)
    assert state_of(toy) is State.DONE


@pytest.mark.parametrize(
    ("script", "error"), [("exit 1", Unreachable), ("echo what", Garbled)], ids=["nobody", "garbled"]
)
def test_where_nobody_answers_nothing_ends(toy: ToySystem, script: str, error: type[BatchError]) -> None:
    add_ended(toy, "17")
    toy.does("queue", script)
    with pytest.raises(error):
        collect_grid_job(toy.account, GRID_JOB)
    assert not state_of(toy).is_final
    assert not toy.account.places.output(GRID_JOB).exists()
