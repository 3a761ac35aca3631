"""What keeps local jobs from going on, in each batch system's own words, and the command that helps."""

import string
from dataclasses import replace
from pathlib import Path

import pytest

from batch_adapters.adapter import BatchAdapter, Command, Job, LocalStatus
from batch_adapters.registry import ADAPTERS, find_builtin
from batch_adapters.running.batch_system import BatchSystem
from batch_adapters.running.rate_limiter import RateLimiter
from batch_adapters.sge.answers import read_blocks, read_tokens
from batch_adapters.site_adapter import find_adapter
from batch_adapters.states import State
from tests.unit.batch_adapters.recordings import by_scene, read_recordings


def look(folder: Path, adapter: BatchAdapter, job: Job, prints: str = "") -> LocalStatus:
    """The job as a batch system shows it that gives this answer, and prints this where it is asked why."""
    program = folder / "program"
    program.write_text(f"#!/bin/sh\ncat <<'EOF'\n{prints}EOF\n")
    program.chmod(0o700)
    fields = dict(vars(adapter), queue=Command((str(program),)), read_jobs=lambda printed: [job])
    if adapter.why is not None:
        fields["why"] = Command((str(program), "{{ array }}"), adapter.why.outcomes)
    (status,) = BatchSystem(BatchAdapter(**fields), {}, RateLimiter(folder / "limiter", 0)).query()
    return status


HELD_BY_SLURM = (
    "launch failed requeued held",
    "launch failure limit exceeded requeued held",
    "user env retrieval failed requeued held",
    "job requeued in held state",
    "job requeued in special exit state",
    "JobHoldMaxRequeue",
)
TOO_LONG = ("PartitionTimeLimit", "QOSMaxWallDurationPerJobLimit", "AssocMaxWallDurationPerJobLimit")
TOO_LARGE = (
    "AssocMaxCpuPerJobLimit",
    "QOSMaxMemoryPerJob",
    "QOSMaxCpuPerNode",
    "QOSMinCpuNotSatisfied",
    "MaxMemPerLimit",
    "AssocGrpCPUMinutesLimit",
    "QOSGrpBillingMinutes",
)
FOR_A_WHILE = ("QOSMaxJobsPerUserLimit", "AssocMaxJobsLimit", "AssocGrpCpuLimit", "AssocGrpCPURunMinutesLimit")
QUEUE_DISABLED = "qmod -e QUEUE, by an operator; not where a calendar has disabled it (D in qstat -f)"
NO_NODES = "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions"


@pytest.mark.parametrize(
    ("system", "local_id", "native", "reason", "helps"),
    [
        ("slurm", "6_0", "PENDING", "JobHeldUser", "scontrol release 6_0"),
        ("slurm", "53", "PENDING", "launch failed requeued held", "scontrol release 53"),
        ("slurm", "53", "PENDING", "launch_failed_requeued_held", "scontrol release 53"),
        ("slurm", "53", "SPECIAL_EXIT", "", "scontrol release 53"),
        ("slurm", "53", "RESV_DEL_HOLD", "Reservation r1 was deleted", "scontrol release 53"),
        ("slurm", "53", "RESV_DEL_HOLD", "Resources", ""),
        ("slurm", "53", "PENDING", "PartitionConfig", "scontrol show job 53"),
        ("slurm", "53", "PENDING", "JobHeldAdmin", "scontrol release 53, by an administrator"),
        ("slurm", "53", "PENDING", "DependencyNeverSatisfied", "scontrol update JobId=53 Dependency="),
        *[("slurm", "53", "PENDING", reason, "scontrol release 53") for reason in HELD_BY_SLURM],
        *[("slurm", "53_1", "PENDING", reason, "scontrol update JobId=53 TimeLimit=MINUTES") for reason in TOO_LONG],
        *[("slurm", "53", "PENDING", reason, "scontrol show job 53") for reason in TOO_LARGE],
        ("slurm", "53", "PENDING", NO_NODES, "sinfo -R"),
        *[("slurm", "53", "PENDING", reason, "") for reason in FOR_A_WHILE],
        ("slurm", "53", "PENDING", "ReqNodeNotAvail, UnavailableNodes:n1", "scontrol show job 53"),
        ("slurm", "53", "PENDING", "Resources", ""),
        ("slurm", "53", "PENDING", "Priority", ""),
        ("slurm", "53", "PENDING", "BeginTime", ""),
        ("slurm", "53", "CANCELLED", "JobHeldUser", ""),
        ("condor", "9.0", "HELD", "via condor_hold (by user griduser)", "condor_release 9.0"),
        ("condor", "9.3", "HELD", "not materialized: via condor_hold", "condor_release 9"),
        ("condor", "9.3", "IDLE", "not materialized yet", ""),
        ("condor", "9.0", "HELD", "two\nlines", "condor_release 9.0"),
        ("condor", "9.0", "SUSPENDED", "", "condor_continue 9.0"),
        ("condor", "9.0", "REMOVING", "via condor_rm", "condor_rm -forcex 9.0, if it stays so"),
        ("condor", "9.0", "IDLE", "", ""),
        ("condor", "9.0", "RUNNING", "", ""),
        (
            *("condor", "9.0", "RUNNING", "disconnected from slot1_4@wn7"),
            "condor_hold 9.0, then condor_release 9.0, if its host is lost",
        ),
        ("pbs", "8.vm", "H", "held (u)", "qrls 8.vm"),
        ("pbs", "20[1].vm", "Q", "held (u): held by its user", "qrls 20[].vm"),
        ("pbs", "8.vm", "H", "held (s)", "qalter -W depend= 8.vm"),
        ("pbs", "8.vm", "H", "held (o)", "qrls -h 8.vm, by an operator"),
        ("pbs", "8.vm", "S", "", "qsig -s resume 8.vm, by an operator"),
        ("pbs", "8.vm", "W", "", "qalter -a NOW 8.vm, with a time for NOW"),
        ("pbs", "8.vm", "Q", "Not Running: Not enough free nodes available", ""),
        (
            "pbs",
            "20[1].vm",
            "Q",
            "Can Never Run: Insufficient amount of resource: ncpus (R: 4000 A: 400 T: 400)",
            "qalter -l RESOURCES 20[].vm, with what there is for RESOURCES",
        ),
        ("pbs", "8.vm", "Q", "Not Running: Queue not started.", "qstart QUEUE, by an operator"),
        ("pbs", "8.vm", "F", "held (u)", ""),
        ("torque", "8.vm", "H", "held (u)", "qrls 8.vm"),
        ("sge", "3.1", "hqw", "held", "qrls 3"),
        ("sge", "3.1", "hRwq", "held", "qrls 3"),
        ("sge", "16.2", "Eqw", "", "qmod -cj 16"),
        ("sge", "16.2", "Ehqw", "", "qmod -cj 16"),
        ("sge", "2.3", "s", "", "qmod -usj 2"),
        (
            *("sge", "2.3", "S", ""),
            "qmod -usq QUEUE, by an operator; not where another queue or a calendar has suspended it",
        ),
        ("sge", "2.3", "dr", "", "qdel -f 2.3, by a manager, if it stays so"),
        ("sge", "2.3", "T", "", ""),
        ("sge", "2.3", "Rqw", 'queue instance "a@vm" dropped because it is disabled', QUEUE_DISABLED),
        ("sge", "2.3", "Rq", 'queue instance "a@vm" dropped because it is disabled', QUEUE_DISABLED),
        ("sge", "2.3", "qw", "", ""),
        ("sge", "2.3", "tr", "", ""),
        ("lsf", "7[2]", "PSUSP", "", "bresume 7[2]"),
        ("lsf", "7[2]", "USUSP", "", "bresume 7[2]"),
        ("lsf", "7[2]", "SSUSP", "Load index exceeded threshold: r1m", ""),
        ("lsf", "7[2]", "PEND", "New job is waiting for scheduling", ""),
    ],
)
def test_what_blocks_a_local_job_comes_with_the_command_that_helps(
    tmp_path: Path, system: str, local_id: str, native: str, reason: str, helps: str
) -> None:
    adapter = find_builtin(system)
    ordered = next((state for state in adapter.states if sorted(state) == sorted(native)), native)
    assert look(tmp_path, adapter, Job(local_id, ordered, reason=reason)).helps == helps


@pytest.mark.parametrize("system", ADAPTERS)
def test_a_command_that_helps_names_the_local_job_or_its_array(system: str) -> None:
    for command in find_builtin(system).blocks.values():
        assert {name for _, name, _, _ in string.Formatter().parse(command) if name is not None} <= {"id", "array"}


def test_a_site_has_blocks_of_its_own_which_come_first(tmp_path: Path) -> None:
    table = {"blocks": {"PENDING Licenses": "call 4711 about {id}", "PENDING JobHeldUser": "sitectl free {array}"}}
    adapter = find_adapter("slurm", {"slurm": table})
    for reason, helps in (
        ("Licenses", "call 4711 about 6_0"),
        ("JobHeldUser", "sitectl free 6"),
        ("JobHeldAdmin", "scontrol release 6_0, by an administrator"),
    ):
        assert look(tmp_path, adapter, Job("6_0", "PENDING", reason=reason)).helps == helps


# --- where the queue's answer does not say why


SGE = by_scene(read_recordings("sge", "sge-commands.txt"))
ERRORS = next(entry.stdout for entry in SGE.values() if "error reason" in entry.stdout)
MISSING = 'error: can\'t open output file "/nonexistent/x": No such file or directory'


def test_grid_engines_reasons_are_read_by_task() -> None:
    number = ERRORS.partition("job_number:")[2].split()[0]
    assert read_blocks(ERRORS) == {f"{number}.{task}": MISSING for task in (1, 2, 3)}
    assert read_blocks("") == {}


def test_grid_engine_tells_what_arrays_were_submitted_with_whatever_they_are_called() -> None:
    printed = SGE["what arrays were submitted as, of which one was renamed"].stdout
    assert read_tokens(printed) == {"6": "h5z2k8qa-1", "7": "b7c1d9ef-2"}
    assert read_tokens(ERRORS) == {}


@pytest.mark.parametrize(
    ("prints", "reason"),
    [(ERRORS, MISSING), ("Following jobs do not exist: \n16\n", "")],
    ids=["it says why", "it says nothing of the kind"],
)
def test_what_is_in_error_is_asked_why(tmp_path: Path, prints: str, reason: str) -> None:
    number = ERRORS.partition("job_number:")[2].split()[0]
    status = look(tmp_path, find_builtin("sge"), Job(f"{number}.2", "Eqw"), prints)
    assert (status.reason, status.state, status.helps) == (reason, State.PENDING, f"qmod -cj {number}")


DISABLED = 'queue instance "{}.q@vm" dropped because it is disabled'


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("", "", f"{DISABLED.format('all')}; {DISABLED.format('low')}"),
        (DISABLED.format("low"), 'cannot run in queue "low.q" because it is not contained in its hard queue list (-q)',
         DISABLED.format("all")),
        (DISABLED.format("low"), 'queue instance "low.q@vm" dropped because it is full', ""),
    ],
    ids=["all are disabled", "the one that it wants", "another is only full"],
)  # fmt: skip
def test_what_waits_is_blocked_where_all_its_queues_are_disabled(
    tmp_path: Path, old: str, new: str, reason: str
) -> None:
    printed = SGE["why, all queues disabled"].stdout.replace(old, new)
    status = look(tmp_path, find_builtin("sge"), Job("23.2", "qw"), printed)
    assert (status.reason, status.helps) == (reason, QUEUE_DISABLED if reason else "")
    running = look(tmp_path, find_builtin("sge"), Job("23.1", "r"), printed)
    assert (running.reason, running.helps) == ("", "")


def test_a_job_is_shown_as_blocked_where_nobody_can_read_why(tmp_path: Path) -> None:
    def fail(printed: str) -> dict[str, str]:
        raise KeyError(printed)

    adapter = replace(find_builtin("sge"), read_why=fail)
    status = look(tmp_path, adapter, Job("16.2", "Eqw"), ERRORS)
    assert (status.reason, status.helps) == ("", "qmod -cj 16")


def test_a_reason_is_no_longer_than_anybody_reads(tmp_path: Path) -> None:
    adapter = replace(find_builtin("sge"), read_why=lambda printed: {"16.2": "x" * 10_000})
    assert len(look(tmp_path, adapter, Job("16.2", "Eqw"), ERRORS).reason) == 600


def test_of_many_arrays_only_some_are_asked_about(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def ask(system: BatchSystem, why: Command, array: str) -> dict[str, str]:
        asked.append(array)
        return {}

    monkeypatch.setattr(BatchSystem, "_ask_why", ask)
    waiting = [Job(f"{number}.{task}", "qw", token="theirs") for number in (19, 12, 11) for task in (1, 2)]
    jobs = [Job("10.1", "r"), *waiting, Job("17.1", "qw", token="h5z2k8qa-1"), Job("15.1", "Eqw"), Job("14.1", "Eqw")]
    fields = dict(vars(find_builtin("sge")), queue=Command(("true",)), read_jobs=lambda printed: jobs)
    found = BatchSystem(BatchAdapter(**fields), {}, RateLimiter(tmp_path / "limiter", 0)).query()
    assert [status.local_id for status in found] == [job.local_id for job in jobs]
    assert asked == ["14", "15", "17", "11", "12"], "in error, ours, others'"
