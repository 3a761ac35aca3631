"""What a batch system's log says of who deleted local jobs, or of a limit, where its history does not say it."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from batch_adapters.generator.module import LogModule
from batch_adapters.pbs.queries import PBS_CAUSES
from batch_adapters.registry import find_event_module
from batch_adapters.states import Cause, read_event
from jobmanager.completion.collection import collect_grid_job
from jobmanager.completion.retries import judge_failures
from jobmanager.states.driver_status import reconcile_with_drivers
from jobmanager.states.reconciliation import reconcile_batch_system
from jobmanager.states.registration import apply_events
from tests.unit.toy_system import GRID_JOB, TOKEN, ToySystem

RECORDED = Path(__file__).parents[3] / "recorded"
LOG = RECORDED / "pbs" / "pbs-server_log.deletions"
CAUGHT = ("start 1795644620", "caught TERM 1795644690", "exit 143", "end 1795644690")
A_WEEK_LATER = 1_796_249_000


@pytest.fixture
def toy(toy: ToySystem) -> ToySystem:
    """Without a history; its log is a recording of OpenPBS."""
    toy.now = A_WEEK_LATER
    toy.change_adapter(event_module="pbs", event_log=str(LOG), log_causes=PBS_CAUSES, causes={"F": Cause.NEVER_STARTED})
    return toy


def follow_log(toy: ToySystem, ids: Mapping[str, Sequence[str]]) -> None:
    """Apply all that the log tells of a grid job's local jobs with these ids, whose drivers wrote these lines."""
    toy.add(ids)
    for local_id, written in ids.items():
        if written:
            toy.drives(local_id, *written)
    module = find_event_module(toy.adapter.event_module)
    assert isinstance(module, LogModule)
    log = LOG if module.name == "pbs" else Path(toy.adapter.event_log)
    lines = module.new_parser().read_events(log.read_bytes()).decode().splitlines()
    apply_events(toy.database, "toy", [event for event in map(read_event, lines) if event])
    reconcile_with_drivers(toy.account, GRID_JOB, toy.database.local_jobs.all_of(GRID_JOB))


def test_without_a_history_the_log_says_why_and_by_whom(toy: ToySystem) -> None:
    well = ("start 1795644636", "exit 0", "end 1795644662")
    follow_log(toy, {"1[1].pbs1": CAUGHT, "2[1].pbs1": CAUGHT, "3[1].pbs1": well})
    collect_grid_job(toy.account, GRID_JOB)
    assert [(job.cause, job.ended_by) for job in toy.database.local_jobs.all_of(GRID_JOB)] == [
        (Cause.TIME_LIMIT, None),
        (Cause.CANCELLED_OUTSIDE, "root"),
        (None, None),
    ]


def test_where_the_log_cannot_be_read_its_exit_codes_say_it(toy: ToySystem, tmp_path: Path) -> None:
    toy.change_adapter(event_log=str(tmp_path / "none"))
    follow_log(toy, {"1[1].pbs1": CAUGHT, "2[1].pbs1": CAUGHT})
    collect_grid_job(toy.account, GRID_JOB)
    assert [(toy.job(n).cause, toy.job(n).ended_by) for n in (1, 2)] == [
        (Cause.TIME_LIMIT, None),
        (Cause.CANCELLED_OUTSIDE, None),
    ]


@pytest.mark.parametrize(
    ("local_id", "written", "code"),
    [
        pytest.param("3.1", ("start 1795657262", "caught USR2 1795657315", "signal USR2"), 140, id="killed by it"),
        pytest.param("11.1", ("start 1795658234", "caught USR2 1795658251"), 0, id="obeyed it"),
    ],
)
def test_what_ended_at_its_warning_before_it_was_deleted_has_not_ended_by_itself(
    toy: ToySystem, local_id: str, written: tuple[str, ...], code: int
) -> None:
    toy.change_adapter(event_module="sge", event_log=str(RECORDED / "sge" / "sge-reporting.warned"), log_causes={})
    toy.answers("history", f"{local_id} CD {TOKEN} {code}")
    follow_log(toy, {local_id: (*written, f"exit {code}", "end 1795658251")})
    collect_grid_job(toy.account, GRID_JOB)
    assert (toy.job().cause, toy.job().ended_by) == (Cause.CANCELLED_OUTSIDE, "root")


@pytest.mark.parametrize("history", [(), (f"3[9].pbs1 CA {TOKEN} -",)], ids=["the log", "the history"])
def test_what_was_deleted_while_it_waited_is_not_tried_again(toy: ToySystem, history: tuple[str, ...]) -> None:
    if history:
        toy.change_adapter(event_log="/dev/null", causes={"F": Cause.NEVER_STARTED, "CA": Cause.CANCELLED_OUTSIDE})
    toy.answers("history", *history)
    follow_log(toy, {"3[9].pbs1": ()})
    toy.database.grid_jobs.change(GRID_JOB, lambda job: setattr(job, "retries", 1))
    # What PBS shows of such an element while its array goes on.
    toy.answers("queue", f"3[9].pbs1 F {TOKEN} -")
    reconcile_batch_system(toy.account, "toy")
    assert toy.job().cause is Cause.NEVER_STARTED
    toy.now += 100
    judge_failures(toy.account, GRID_JOB)
    assert (toy.job().attempt, toy.job().cause) == (1, Cause.CANCELLED_OUTSIDE)
