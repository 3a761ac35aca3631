"""What a signal for a grid job asks of the batch system, and what is believed of it."""

from collections.abc import Iterable

import pytest

from batch_adapters.adapter import Refused, Unreachable
from batch_adapters.states import Event, State
from jobmanager.control.suspension import prioritize_grid_job, resume_grid_job, suspend_grid_job
from jobmanager.states.registration import apply_events
from tests.unit.toy_system import GRID_JOB, NOW, TOKEN, ToySystem

KINDS = ("suspend", "resume", "hold", "release", "priority")


def queue(toy: ToySystem, states: Iterable[str]) -> None:
    """Let the batch system show the local jobs 17_1, 17_2, … in these native states."""
    toy.answers("queue", *(f"17_{n} {state} {TOKEN} -" for n, state in enumerate(states, 1)))


def asked(toy: ToySystem) -> dict[str, list[str]]:
    return {kind: calls for kind in KINDS if (calls := toy.calls(kind))}


@pytest.mark.parametrize(
    ("native", "expected", "is_stopped"),
    [
        pytest.param(["R", "R"], {"suspend": ["17"]}, True, id="all run"),
        pytest.param(["R", "PD"], {"hold": ["17_2"], "suspend": ["17_1"]}, True, id="one runs and one waits"),
        pytest.param(["PD", "PD"], {"hold": ["17"]}, False, id="all wait"),
        pytest.param(["R", "S"], {"suspend": ["17_1"]}, True, id="one is suspended already"),
        pytest.param(["S", "S"], {}, True, id="all are suspended already"),
    ],
)
def test_suspend_stops_what_runs_and_holds_what_waits_as_the_batch_system_shows_it_now(
    toy: ToySystem, native: list[str], expected: dict[str, list[str]], is_stopped: bool
) -> None:
    toy.add(["17_1", "17_2"])
    queue(toy, native)
    assert suspend_grid_job(toy.account, GRID_JOB) is is_stopped
    assert asked(toy) == expected
    assert len(toy.calls("queue")) == 2 + len(expected)


@pytest.mark.parametrize(
    ("native", "expected"),
    [
        pytest.param(["S", "S"], {"resume": ["17"], "release": ["17"]}, id="all are suspended"),
        pytest.param(["S", "PD"], {"resume": ["17_1"], "release": ["17"]}, id="one is held"),
        pytest.param(["R", "PD"], {"release": ["17_2"]}, id="one runs and one is held"),
    ],
)
def test_resume_lets_go_on_what_is_suspended_and_releases_what_waits(
    toy: ToySystem, native: list[str], expected: dict[str, list[str]]
) -> None:
    toy.add(["17_1", "17_2"])
    queue(toy, native)
    resume_grid_job(toy.account, GRID_JOB)
    assert asked(toy) == expected


def test_priority_is_that_of_whole_arrays(toy: ToySystem) -> None:
    toy.add(["17_1", "17_2", "18_1", "19"], State.PENDING)
    prioritize_grid_job(toy.account, GRID_JOB, -5)
    assert asked(toy) == {"priority": ["-5 17 18 19"]}


def test_what_the_batch_system_shows_after_a_signal_is_in_the_database(toy: ToySystem) -> None:
    toy.add(["17_1", "17_2"], State.ACTIVE)
    queue(toy, ["R", "R"])
    toy.does("suspend", f"printf '17_1 S {TOKEN} -\\n17_2 S {TOKEN} -\\n' >\"${{0%/*}}/queue.now\"")
    toy.does("queue", f"cat \"${{0%/*}}/queue.now\" 2>/dev/null || printf '17_1 R {TOKEN} -\\n17_2 R {TOKEN} -\\n'")
    suspend_grid_job(toy.account, GRID_JOB)
    assert toy.states() == [State.SUSPENDED] * 2
    assert toy.database.grid_jobs.get(GRID_JOB).state is State.SUSPENDED


def test_a_grid_job_of_which_some_are_suspended_and_the_rest_waits_is_suspended(toy: ToySystem) -> None:
    toy.add(["17_1", "17_2"], State.ACTIVE)
    queue(toy, ["S", "PD"])
    resume_grid_job(toy.account, GRID_JOB)
    assert toy.database.grid_jobs.get(GRID_JOB).state is State.SUSPENDED


@pytest.mark.parametrize(
    ("missing", "native", "words"),
    [
        pytest.param("suspend", ["R", "PD"], "toy has no command .* suspend", id="suspend"),
        pytest.param("hold", ["PD", "PD"], "toy has no command .* hold", id="hold, and nothing runs"),
    ],
)
def test_what_the_batch_system_does_not_do_is_refused_with_its_name(
    toy: ToySystem, missing: str, native: list[str], words: str
) -> None:
    toy.change_adapter(**{missing: None})
    toy.add(["17_1", "17_2"])
    queue(toy, native)
    with pytest.raises(Refused, match=words):
        suspend_grid_job(toy.account, GRID_JOB)


def test_without_a_hold_command_what_runs_is_suspended_all_the_same(toy: ToySystem) -> None:
    toy.change_adapter(hold=None, release=None)
    toy.add(["17_1", "17_2"])
    queue(toy, ["R", "PD"])
    suspend_grid_job(toy.account, GRID_JOB)
    queue(toy, ["S", "PD"])
    resume_grid_job(toy.account, GRID_JOB)
    assert asked(toy) == {"suspend": ["17_1"], "resume": ["17_1"]}


def test_a_grid_job_of_which_nothing_is_submitted_cannot_be_signalled(toy: ToySystem) -> None:
    toy.add([None, None], token=None)
    for signal in (suspend_grid_job, resume_grid_job, lambda account, job: prioritize_grid_job(account, job, 1)):
        with pytest.raises(Refused, match="none of its local jobs"):
            signal(toy.account, GRID_JOB)
    assert asked(toy) == {}


def test_where_nobody_answers_nothing_is_signalled(toy: ToySystem) -> None:
    toy.add(["17_1"])
    toy.does("queue", "exit 1")
    with pytest.raises(Unreachable):
        suspend_grid_job(toy.account, GRID_JOB)
    assert asked(toy) == {}


def test_a_look_that_fails_after_the_signal_does_not_take_it_back(toy: ToySystem) -> None:
    toy.add(["17_1"], State.ACTIVE)
    queue(toy, ["R"])
    toy.does("suspend", 'echo "exit 1" >"${0%/*}/queue.answer"')
    assert suspend_grid_job(toy.account, GRID_JOB)


@pytest.mark.parametrize(
    ("seconds", "state"),
    [
        pytest.param(0, State.ACTIVE, id="in the second of the signal"),
        pytest.param(5, State.ACTIVE, id="just after it"),
        pytest.param(6, State.FAILED, id="later"),
        pytest.param(-3, State.FAILED, id="before it"),
    ],
)
def test_what_a_log_calls_a_cancel_just_when_we_sent_a_signal_is_not_believed(
    toy: ToySystem, seconds: int, state: State
) -> None:
    toy.add(["17_1", "17_2"], State.ACTIVE)
    queue(toy, ["R", "R"])
    suspend_grid_job(toy.account, GRID_JOB)
    apply_events(toy.database, "toy", [Event(NOW + seconds, "17_1", State.FAILED)])
    assert toy.job(1).state is state


def test_the_end_of_a_signalled_local_job_is_believed_when_it_comes(toy: ToySystem) -> None:
    toy.add(["17_1"], State.ACTIVE)
    queue(toy, ["R"])
    suspend_grid_job(toy.account, GRID_JOB)
    # What the generator makes of Slurm's log: the signal looks like a cancel, which the end takes back.
    told = [(NOW + 1, State.FAILED, 0), (NOW + 9, State.PENDING, 0), (NOW + 9, State.DONE, 3)]
    apply_events(toy.database, "toy", [Event(when, "17_1", state, code) for when, state, code in told])
    assert (toy.job(1).state, toy.job(1).exit_code) == (State.DONE, 3)
