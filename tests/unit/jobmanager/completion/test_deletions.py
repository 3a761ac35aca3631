"""What a batch system's log says of who deleted local jobs, or of a limit, where its history does not say it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from io import BufferedReader
from pathlib import Path
from typing import Any

import pytest

from batch_adapters.generator.module import LogModule
from batch_adapters.pbs import PBS
from batch_adapters.pbs.answers import PBS_CAUSES
from batch_adapters.pbs.events import ServerLog
from batch_adapters.registry import find_event_module
from batch_adapters.slurm import SLURM
from batch_adapters.states import Cause, Event, State, read_event
from jobmanager.completion.collection import collect_grid_job
from jobmanager.completion.retries import judge_failures
from jobmanager.site.account import Account
from jobmanager.site.settings import EventSource
from jobmanager.states.driver_status import reconcile_with_drivers
from jobmanager.states.reconciliation import reconcile_batch_system
from jobmanager.states.registration import apply_events
from sandbox.files import open_unlinked
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
    assert toy.job(2).reason == "it was cancelled in the batch system by root (toy: deleted)"


def test_where_the_log_cannot_be_read_its_exit_codes_say_it(toy: ToySystem, tmp_path: Path) -> None:
    toy.change_adapter(event_log=str(tmp_path / "none"))
    follow_log(toy, {"1[1].pbs1": CAUGHT, "2[1].pbs1": CAUGHT})
    collect_grid_job(toy.account, GRID_JOB)
    assert [(toy.job(n).cause, toy.job(n).ended_by) for n in (1, 2)] == [
        (Cause.TIME_LIMIT, None),
        (Cause.CANCELLED_OUTSIDE, None),
    ]


@pytest.mark.parametrize(
    ("settings", "log", "ends"),
    [
        pytest.param(
            {"path": LOG}, "/dev/null", [(Cause.TIME_LIMIT, None), (Cause.CANCELLED_OUTSIDE, "root")], id="configured"
        ),
        pytest.param(
            {"prefix": ("true",)}, LOG, [(Cause.TIME_LIMIT, None), (Cause.CANCELLED_OUTSIDE, None)], id="another's"
        ),
        pytest.param({}, "", [(Cause.TIME_LIMIT, None), (Cause.CANCELLED_OUTSIDE, "root")], id="where PBS keeps it"),
        pytest.param({"source": EventSource.POLL}, LOG, [(Cause.SIGNAL, None)] * 2, id="not followed"),
    ],
)
def test_only_a_log_that_we_read_is_asked(
    toy: ToySystem,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    settings: dict[str, Any],
    log: Path | str,
    ends: list[tuple[Cause, str | None]],
) -> None:
    monkeypatch.setenv("PBS_HOME", str(tmp_path))
    (tmp_path / "server_logs").mkdir()
    (tmp_path / "server_logs" / "20261125").write_bytes(LOG.read_bytes())
    (tmp_path / "server_logs" / "20261126").write_text("11/26/2026 00:00:01;0002;Server@pbs1;Svr;Log;Log opened\n")
    follow_log(toy, {"1[1].pbs1": CAUGHT, "2[1].pbs1": CAUGHT})
    toy.change_adapter(event_log=str(log))
    events = replace(toy.account.configuration.events, **settings)
    account = Account(toy.account.places, replace(toy.account.configuration, events=events))
    collect_grid_job(account, GRID_JOB)
    assert [(toy.job(n).cause, toy.job(n).ended_by) for n in (1, 2)] == ends


def test_the_deletion_of_an_array_is_that_of_its_elements_that_waited(toy: ToySystem, tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("11/25/2026 22:10:46;0008;Server@pbs1;Job;2[].pbs1;Job to be deleted at request of root@pbs1\n")
    toy.change_adapter(event_log=str(log), naming=PBS.naming)
    toy.add(["2[1].pbs1", "2[2].pbs1", "2[3].pbs1"])
    for number in (1, 3):
        toy.drives(f"2[{number}].pbs1", "start 1795644620")
    for number, code in ((1, 143), (2, 143), (3, 0)):
        apply_events(toy.database, "toy", [Event(1_795_644_700, f"2[{number}].pbs1", State.FAILED, code)])
    collect_grid_job(toy.account, GRID_JOB)
    jobs = toy.database.local_jobs.all_of(GRID_JOB)
    assert [(job.cause, job.ended_by) for job in jobs] == [(Cause.CANCELLED_OUTSIDE, by) for by in (None, "root", None)]


UNMET = """\
11/26/2026 22:55:22;0080;Server@pbss;Job;9[2].pbss;delete job request received
11/26/2026 22:55:22;0008;Server@pbss;Job;9[2].pbss;Job to be deleted at request of griduser@pbss
11/26/2026 22:55:22;0100;Server@pbss;Req;;Type 100 request received from root@pbss, sock=15
11/26/2026 22:55:22;0080;Server@pbss;Job;9[4-5].pbss;delete job request received
11/26/2026 22:55:59;0008;Server@pbss;Job;9[].pbss;Job deleted as result of dependency on job 7.pbss
11/26/2026 22:55:59;0100;Server@pbss;Job;9[].pbss;dequeuing from workq, state H
11/26/2026 22:56:05;0008;Server@pbss;Job;31.pbss@pbss;Dependency request for job rejected by 28.pbss
11/26/2026 22:56:06;0008;Server@pbss;Job;52.pbss;50.pbss Finished job did not satisfy dependency
"""
"""An array, of which elements were deleted before, and two jobs."""


@pytest.mark.parametrize("has_history", [False, True])
def test_an_unmet_dependency_is_told_from_a_deletion(toy: ToySystem, tmp_path: Path, has_history: bool) -> None:
    log = tmp_path / "log"
    log.write_text(UNMET)
    toy.change_adapter(event_log=str(log), naming=PBS.naming, causes={"F": Cause.REFUSED})
    ids = [*(f"9[{n}].pbss" for n in (1, 2, 4, 5)), "31.pbss", "52.pbss"]
    if has_history:
        # Of elements that never started, the server tells the array's end.
        toy.answers("history", *(f"{local_id} F {TOKEN} - depend=afterok:7" for local_id in ids))
    toy.add(ids)
    events = map(read_event, ServerLog().read_events(UNMET.encode()).decode().splitlines())
    apply_events(toy.database, "toy", [event for event in events if event])
    collect_grid_job(toy.account, GRID_JOB)
    assert [(job.cause, job.ended_by) for job in toy.database.local_jobs.all_of(GRID_JOB)] == [
        (Cause.REFUSED, None),
        (Cause.CANCELLED_OUTSIDE, "griduser"),
        *[(Cause.CANCELLED_OUTSIDE, "root")] * 2,
        *[(Cause.REFUSED, None)] * 2,
    ]
    said = "F depend=afterok:7" if has_history else "its dependency could not be met"
    assert toy.job(1).reason == f"the batch system refused it (toy: {said})"


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


def test_to_condor_without_a_history_its_log_says_that_the_time_was_over(toy: ToySystem) -> None:
    log = RECORDED / "condor" / "condor-EventLog-time-limit.log"
    toy.change_adapter(event_module="condor", event_log=str(log), log_causes={})
    follow_log(toy, {"1.0": ("start 1795685841", "caught TERM 1795685902", "exit 143", "end 1795685902")})
    collect_grid_job(toy.account, GRID_JOB)
    assert toy.job().reason == "it ran longer than it may (toy: in its log)"


def test_to_slurm_without_accounting_its_log_says_who_cancelled(toy: ToySystem) -> None:
    log = RECORDED / "slurm" / "deletions-slurmctld.log"
    toy.change_adapter(
        event_module="slurm", event_log=str(log), log_causes={}, states=SLURM.states, causes=SLURM.causes
    )
    # The queue never shows 129_1, an element that was cancelled before its start.
    ended = ("130 COMPLETED", "131 CANCELLED", "132_0 CANCELLED", "132_1 FAILED", "135 CANCELLED")
    toy.answers("find", *(f"{words} {TOKEN} -" for words in ended))
    well = ("start 1795669928", "caught USR1 1795669930", "exit 0", "end 1795669932")
    failed = ("start 1795669928", "exit 3", "end 1795669928")
    caught = ("start 1795669928", "caught TERM 1795669930", "signal TERM", "exit 143", "end 1795669931")
    follow_log(toy, {"129_1": (), "130": well, "131": caught, "132_0": caught, "132_1": failed, "135": caught})
    collect_grid_job(toy.account, GRID_JOB)
    assert [(job.local_id, job.cause, job.ended_by) for job in toy.database.local_jobs.all_of(GRID_JOB)] == [
        ("129_1", Cause.CANCELLED_OUTSIDE, "root"),
        ("130", None, None),
        ("131", Cause.CANCELLED_OUTSIDE, "root"),
        ("132_0", Cause.CANCELLED_OUTSIDE, "root"),
        ("132_1", Cause.EXIT_CODE, None),
        ("135", Cause.CANCELLED_OUTSIDE, "root"),
    ]
    assert "cancelled in the batch system by root" in str(toy.job(1).reason)


def test_what_slurm_has_forgotten_its_log_tells(toy: ToySystem) -> None:
    log = RECORDED / "slurm" / "slurmctld-24.11.log"
    toy.change_adapter(
        event_module="slurm", event_log=str(log), log_causes={}, states=SLURM.states, causes=SLURM.causes
    )
    killed = ("start 1795695204",)
    # A child was killed, which the program did not notice.
    well = ("start 1795695381", "exit 0", "end 1795695385")
    caught = ("start 1795695204", "caught TERM 1795695217", "signal TERM", "exit 143", "end 1795695217")
    follow_log(toy, {"69_0": killed, "79_0": well, "68_0": caught, "44_1": ("start 1795694621",)})
    collect_grid_job(toy.account, GRID_JOB)
    assert [(job.cause, job.ended_by is not None) for job in toy.database.local_jobs.all_of(GRID_JOB)] == [
        (Cause.TIME_LIMIT, False),
        (Cause.MEMORY_LIMIT, False),
        (Cause.CANCELLED_OUTSIDE, True),
        (Cause.SIGNAL, False),
    ]


KILLED_BY_SLURM = """\
slurmstepd-n1: error: StepId=4.batch exceeded memory limit (82382848 > 62914560), being killed
slurmstepd-n1: error: Exceeded job memory limit
slurmstepd-n1: error: *** JOB 4 ON n1 CANCELLED AT 2026-11-26T05:21:30 ***
slurmstepd-n1: error: StepId=4.batch exceeded memory limit (82382848 > 62914560), being killed
slurmstepd-n1: error: Exceeded job memory limit
"""
"""What 22.05 printed with OverMemoryKill, when it called the job FAILED, 0:9, JobLaunchFailure."""


def test_what_slurm_killed_for_its_memory_has_failed_for_that(toy: ToySystem, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = []

    def open_noted(path: Path) -> BufferedReader:
        assert not toy.database._store._connection.in_transaction
        opened.append(path.name)
        return open_unlinked(path)

    monkeypatch.setattr("jobmanager.completion.proof.open_unlinked", open_noted)
    toy.change_adapter(event_module="", log_causes={}, printed_causes=SLURM.printed_causes, causes={"F": Cause.SIGNAL})
    toy.add({"17_1": (), "17_2": (), "17_3": ()})
    toy.answers("find", *(f"17_{n} F {TOKEN} 137 JobLaunchFailure" for n in (1, 2, 3)))
    apply_events(toy.database, "toy", [Event(A_WEEK_LATER - 100, "17_3", State.FAILED, 137)])
    for n in (1, 2):
        toy.drives(f"17_{n}", "start 1795670488")
        apply_events(toy.database, "toy", [Event(A_WEEK_LATER - 100, f"17_{n}", State.DONE, 137)])
    (toy.account.places.results(GRID_JOB) / f"{TOKEN}.1.driver").write_bytes(b"\xff" + KILLED_BY_SLURM.encode())
    collect_grid_job(toy.account, GRID_JOB)
    causes = [job.cause for job in toy.database.local_jobs.all_of(GRID_JOB)]
    assert causes == [Cause.MEMORY_LIMIT, Cause.SIGNAL, Cause.SIGNAL]
    # The driver of the third never ran.
    assert opened == [f"{TOKEN}.1.driver", f"{TOKEN}.2.driver"]
    assert "exceeded memory limit (82382848 > 62914560)" in str(toy.job(1).reason)


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


def test_the_log_says_who_deleted_what_the_history_only_knows_to_be_deleted(toy: ToySystem) -> None:
    toy.change_adapter(causes={"CA": Cause.CANCELLED_OUTSIDE})
    toy.answers("history", f"2[1].pbs1 CA {TOKEN} 265")
    follow_log(toy, {"2[1].pbs1": CAUGHT})
    collect_grid_job(toy.account, GRID_JOB)
    assert (toy.job().cause, toy.job().ended_by) == (Cause.CANCELLED_OUTSIDE, "root")


def test_a_log_that_does_not_say_who_deleted_it_leaves_what_the_history_said(toy: ToySystem) -> None:
    toy.change_adapter(event_log="/dev/null", causes={"CA": Cause.CANCELLED_OUTSIDE})
    toy.answers("history", f"2[1].pbs1 CA {TOKEN} 265")
    follow_log(toy, {"2[1].pbs1": CAUGHT})
    collect_grid_job(toy.account, GRID_JOB)
    assert toy.job().reason == "it was cancelled in the batch system (toy: CA)"


@pytest.mark.parametrize(("said", "by"), [("CANCELLED by 0|0:0", "root"), ("FAILED|15:0", None)])
def test_the_history_only_says_who_cancelled_what_the_queue_showed_to_be_cancelled(
    toy: ToySystem, said: str, by: str | None
) -> None:
    toy.change_adapter(event_log="/dev/null", states=SLURM.states, causes=SLURM.causes, read_history=SLURM.read_history)
    follow_log(toy, {"131": CAUGHT})
    toy.answers("queue", f"131 CANCELLED {TOKEN} -")
    # Another local job keeps the grid job from being gathered: by then the queue has forgotten this one.
    reconcile_batch_system(toy.account, "toy")
    assert (toy.job().cause, toy.job().ended_by) == (Cause.CANCELLED_OUTSIDE, None)
    toy.answers("queue")
    toy.answers("history", f"131|{said}")
    collect_grid_job(toy.account, GRID_JOB)
    assert (toy.job().cause, toy.job().ended_by) == (Cause.CANCELLED_OUTSIDE, by)
