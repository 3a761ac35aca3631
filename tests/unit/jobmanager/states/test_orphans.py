"""Which local jobs nobody wants, of all that a batch system has."""

import pytest

from batch_adapters.adapter import LocalStatus
from batch_adapters.states import State
from jobmanager.states.changes import put_local_jobs
from jobmanager.states.driver_status import reconcile_with_drivers
from jobmanager.states.reconciliation import Orphan, find_orphans
from tests.unit.grid_jobs import make_grid_job, put
from tests.unit.toy_system import GRID_JOB, TOKEN, ToySystem


def shown(toy: ToySystem, local_id: str, token: str, native: str = "R") -> LocalStatus:
    leaving = native in toy.adapter.leaving
    return LocalStatus(local_id, native, toy.adapter.states.get(native), token=token, is_leaving=leaving)


def find(toy: ToySystem, local_id: str, token: str, native: str = "R") -> list[Orphan]:
    return list(find_orphans(toy.database, toy.system, [shown(toy, local_id, token, native)]))


@pytest.mark.parametrize(
    ("local_id", "token", "native", "reason"),
    [
        pytest.param("17_1", TOKEN, "R", "", id="registered"),
        pytest.param("17_9", TOKEN, "R", "", id="of a registered array"),
        pytest.param("18_1", TOKEN, "R", f"grid job {GRID_JOB} does not know of it", id="submitted twice"),
        pytest.param("18_1", f"{GRID_JOB}-z", "PD", f"grid job {GRID_JOB} does not know of it", id="a token of nobody"),
        pytest.param("18_1", TOKEN, "CG", "", id="on its way out"),
        pytest.param("18_1", TOKEN, "CD", "", id="ended"),
        pytest.param("18_1", TOKEN, "??", "", id="in an unknown state"),
        pytest.param("18_1", "zzzzzzzz-1", "R", "no grid job zzzzzzzz in this job database", id="of nobody we know"),
        pytest.param("18_1", "", "R", "", id="without name"),
        pytest.param("18_1", "fits.sh", "R", "", id="of another name"),
        pytest.param("18_1", "ABCDEFGH-1", "R", "", id="of a name that is no token"),
        pytest.param("18_1", f"{GRID_JOB}-1-1", "R", "", id="of a name like a token"),
    ],
)
def test_an_orphan_has_our_token_and_no_owner(
    toy: ToySystem, local_id: str, token: str, native: str, reason: str
) -> None:
    toy.add(["17_1", "17_2"], State.ACTIVE)
    is_ours = token.startswith(GRID_JOB)
    expected = [Orphan(local_id, token, native, is_ours, reason)] if reason else []
    assert find(toy, local_id, token, native) == expected


def test_what_is_wanted_of_the_same_batch_system_by_another_name_is_no_orphan(toy: ToySystem) -> None:
    toy.add(["17_1"], State.ACTIVE)
    put(toy.database, make_grid_job("otherjob", batch="other"))
    seen = [shown(toy, "18_1", "otherjob-1"), shown(toy, "19_1", TOKEN)]
    assert [orphan.local_id for orphan in find_orphans(toy.database, toy.system, seen)] == ["19_1"]


def test_a_submission_that_is_under_way_makes_no_orphans(toy: ToySystem) -> None:
    toy.add(["17_1", None])
    assert find(toy, "18_1", TOKEN) == []


def test_what_a_grid_job_leaves_behind_is_an_orphan(toy: ToySystem) -> None:
    toy.add(["17_1"], State.FAILED)
    toy.database.grid_jobs.change(GRID_JOB, lambda job: job.end(State.FAILED, toy.now))
    (orphan,) = find(toy, "17_1", TOKEN)
    assert (orphan.is_ours, orphan.reason) == (True, f"grid job {GRID_JOB} has ended")


@pytest.mark.parametrize(
    ("written", "native", "is_orphan"),
    [
        pytest.param((), "R", False, id="in its epilogue"),
        pytest.param(("caught TERM 1050",), "R", True, id="told to end"),
        *(
            pytest.param((f"signal {name}", "exit 143"), "R", True, id=f"only its program, by {name}")
            for name in ("TERM", "INT", "HUP", "XCPU", "KILL")
        ),
        pytest.param(("signal SEGV", "exit 139"), "R", False, id="a crash"),
        pytest.param((), "PD", True, id="queued again"),
    ],
)
def test_what_has_run_is_left_to_end_when_its_grid_job_has_ended(
    toy: ToySystem, written: tuple[str, ...], native: str, is_orphan: bool
) -> None:
    toy.add(["17_1"], State.ACTIVE)
    toy.drives("17_1", "start 1000", "exit 0", *written, "end 1060")
    reconcile_with_drivers(toy.account, GRID_JOB, [toy.job()])
    toy.database.grid_jobs.change(GRID_JOB, lambda job: job.end(State.DONE, toy.now))
    assert bool(find(toy, "17_1", TOKEN, native)) is is_orphan


def test_a_local_job_in_no_array_is_known_by_its_own_id(toy: ToySystem) -> None:
    toy.add(["17"], State.ACTIVE)
    assert find(toy, "17", TOKEN) == []
    assert len(find(toy, "18", TOKEN)) == 1


def test_orphans_are_found_among_all_others(toy: ToySystem) -> None:
    toy.add(["17_1"], State.ACTIVE)
    answer = [shown(toy, "16", "fits.sh"), shown(toy, "17_1", TOKEN), shown(toy, "18", TOKEN), shown(toy, "19", "")]
    assert [orphan.local_id for orphan in find_orphans(toy.database, toy.system, answer)] == ["18"]


def test_an_earlier_attempt_is_an_orphan_though_its_grid_job_has_the_token_still(toy: ToySystem) -> None:
    toy.add(["17_1", "17_2"], State.FAILED)
    job = toy.job()
    job.begin_attempt()
    with toy.database.transaction():
        put_local_jobs(toy.database, GRID_JOB, [job])
    (orphan,) = find(toy, "17_1", TOKEN)
    assert orphan.reason == f"an earlier attempt of grid job {GRID_JOB}, which has tried again"
    assert [found.reason for found in find(toy, "17_2", TOKEN)] == []
