"""Why local jobs ended, as each batch system says it: by native states, exit statuses, reasons and figures."""

import json
import os
import pwd
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path

import pytest

from batch_adapters.adapter import BatchAdapter, Garbled, Job, Lines
from batch_adapters.fork.adapter import FORK
from batch_adapters.pbs.answers import read_json_jobs
from batch_adapters.registry import ADAPTERS, BadAdapter
from batch_adapters.running.batch_system import BatchSystem
from batch_adapters.running.rate_limiter import RateLimiter
from batch_adapters.sge.answers import read_history
from batch_adapters.site_adapter import find_adapter
from batch_adapters.states import Cause, State
from tests.unit.batch_adapters.recordings import RECORDED, read_recordings

EXAMPLES = tomllib.loads((Path(__file__).parents[3] / "examples" / "oar.toml").read_text())["batch"]

OWN_ENDS: Mapping[str, set[str]] = {
    # After the program's end: what the site adds to it failed.
    "sge": {f"failed {code}" for code in range(12, 17)},
    # HTCondor's manual has the number, and no word about it.
    "condor": {"FAILED"},
    # OAR says no more.
    "oar": {"E"},
}
"""FAILED native states that say nothing of a cause: there the driver's record decides."""


@pytest.mark.parametrize("system", [*ADAPTERS, *EXAMPLES])
def test_every_failure_that_a_batch_system_tells_has_a_cause(system: str) -> None:
    adapter = find_adapter(system, EXAMPLES)
    failures = {native for native, state in adapter.states.items() if state is State.FAILED}
    assert failures - adapter.causes.keys() == OWN_ENDS.get(system, set())
    assert adapter.causes.keys() <= adapter.states.keys()
    assert all(adapter.states[native].is_final for native in adapter.causes)


def read_one(adapter: BatchAdapter, reader: str, printed: str) -> tuple[str, int | None, Cause | None, str]:
    """What an answer says of its one job; the cause is that of the job, else that of its native state."""
    (job,) = getattr(adapter, f"read_{reader}")(printed)
    return job.native_state, job.exit_code, job.cause or adapter.causes.get(job.native_state), job.by


# --- Slurm


@pytest.mark.parametrize(
    ("state", "end"),
    [
        ("COMPLETED|0:0", ("COMPLETED", 0, None, "")),
        ("FAILED|3:0", ("FAILED", 3, None, "")),
        ("FAILED|0:9", ("FAILED", 137, Cause.SIGNAL, "")),
        ("FAILED|0:53", ("FAILED to start", None, Cause.NEVER_STARTED, "")),
        ("TIMEOUT|0:0", ("TIMEOUT", None, Cause.TIME_LIMIT, "")),
        ("DEADLINE|0:0", ("DEADLINE", None, Cause.TIME_LIMIT, "")),
        ("CANCELLED|0:0", ("CANCELLED", None, Cause.CANCELLED_OUTSIDE, "")),
        ("CANCELLED by 1001|0:15", ("CANCELLED", None, Cause.CANCELLED_OUTSIDE, "1001")),
        ("OUT_OF_MEMORY|0:125", ("OUT_OF_MEMORY", None, Cause.MEMORY_LIMIT, "")),
        ("NODE_FAIL|0:0", ("NODE_FAIL", None, Cause.NODE_LOST, "")),
        ("BOOT_FAIL|0:0", ("BOOT_FAIL", None, Cause.NEVER_STARTED, "")),
        ("PREEMPTED|0:0", ("PREEMPTED", None, Cause.CANCELLED_OUTSIDE, "")),
    ],
)
def test_slurm(state: str, end: tuple[str, int | None, Cause | None, str]) -> None:
    adapter = find_adapter("slurm", {})
    assert read_one(adapter, "history", f"7_1|{state}\n") == end
    # squeue gives wait(2)'s status, and no name.
    code, signal = map(int, state.rpartition("|")[2].split(":"))
    native = state.partition("|")[0].partition(" ")[0]
    reason = {"FAILED": "NonZeroExitCode" if code else "RaisedSignal:9(Killed)"}.get(native, "None")
    queued = f"7_1|{native}|{code << 8 | signal}|{reason}|t-1|7_1\n"
    assert read_one(adapter, "jobs", queued) == (*end[:3], "")


# --- PBS and Torque


def render_json(local_id: str = "7.vm", **attributes: object) -> str:
    return json.dumps({"Jobs": {local_id: {"Job_Name": "k3f9zq2m-1", "job_state": "F", **attributes}}})


@pytest.mark.parametrize(
    ("exit_status", "cause"),
    [
        (0, None),
        (3, None),
        (143, None),
        (256, None),
        (265, Cause.SIGNAL),
        (271, Cause.SIGNAL),
        *((number, Cause.NEVER_STARTED) for number in (-1, -2, -3, -7, -10, -13, -17, -22, -30)),
        *((number, Cause.NODE_LOST) for number in (-4, -14, -20, -32)),
        *((number, Cause.CANCELLED_OUTSIDE) for number in (-11, -19)),
        *((number, Cause.CPU_LIMIT) for number in (-24, -25, -28)),
        *((number, Cause.MEMORY_LIMIT) for number in (-26, -27, -31)),
        (-29, Cause.TIME_LIMIT),
        # Nobody has said what that is: the program did not run to its end, for certain.
        (-99, Cause.NEVER_STARTED),
    ],
)
def test_an_exit_status_of_pbs(exit_status: int, cause: Cause | None) -> None:
    adapter = find_adapter("pbs", {})
    native, _, found, by = read_one(adapter, "jobs", render_json(Exit_status=exit_status, substate=93))
    assert (native, found, by) == ("F" if exit_status >= 0 else "F failed", cause, "")


def test_whoever_deletes_a_job_of_pbs_is_named() -> None:
    jobs = {job.local_id: job for job in read_json_jobs((RECORDED / "pbs" / "pbs-qstat-x-history-on.json").read_text())}
    adapter = find_adapter("pbs", {})
    found = {
        local_id: (job.cause or adapter.causes.get(job.native_state), job.by)
        for local_id, job in jobs.items()
        if adapter.states[job.native_state] is State.FAILED
    }
    assert found == {
        "13[1].pbs1": (Cause.CANCELLED_OUTSIDE, "hpbs"),
        "41[14].pbs1": (Cause.CANCELLED_OUTSIDE, "hpbs"),
        "41[36].pbs1": (Cause.CANCELLED_OUTSIDE, ""),
        "16[1].pbs1": (Cause.TIME_LIMIT, ""),
    }


def test_a_dependency_that_fails_is_no_cancellation() -> None:
    printed = (RECORDED / "pbs" / "pbs-qstat-x-dependencies.json").read_text()
    adapter = find_adapter("pbs", {})
    found = {job.local_id: (adapter.causes[job.native_state], job.reason) for job in read_json_jobs(printed)}
    assert found == {
        # Somebody deleted them while they waited.
        "20[1].pbs1": (Cause.CANCELLED_OUTSIDE, ""),
        "21.pbs1": (Cause.CANCELLED_OUTSIDE, ""),
        # What they depend on is unknown, or failed.
        "24[1].pbs1": (Cause.REFUSED, "depend=afterok:9999.pbs1@pbs1"),
        "25.pbs1": (Cause.REFUSED, "depend=afterok:9999.pbs1@pbs1"),
        "28[1].pbs1": (Cause.REFUSED, "depend=afterok:19.pbs1@pbs1"),
        "29.pbs1": (Cause.REFUSED, "depend=afterok:19.pbs1@pbs1"),
    }


@pytest.mark.parametrize(
    ("attributes", "end"),
    [
        pytest.param({"substate": 91}, ("F deleted", None, Cause.CANCELLED_OUTSIDE, ""), id="deleted while it waited"),
        pytest.param(
            {"substate": 93, "Exit_status": 271, "comment": "Job run at Sun on (n1) and terminated by ann@vm"},
            ("F deleted", 271, Cause.CANCELLED_OUTSIDE, "ann"),
            id="deleted, as its comment says",
        ),
        pytest.param(
            {"substate": 92, "Exit_status": 0, "comment": "Job run at Sun on (n1) and terminated by ann@vm"},
            ("F", 0, None, ""),
            id="ended before its deletion reached it",
        ),
        pytest.param({"substate": 92}, ("F failed", None, Cause.NEVER_STARTED, ""), id="given up by the server"),
        pytest.param(
            {"job_state": "X", "local_id": "7[2].vm"},
            # It may be one that ended well on a server without history: the driver's record is to decide.
            ("X without a start", None, Cause.NEVER_STARTED, ""),
            id="an element without a start while its array goes on",
        ),
        pytest.param(
            {"job_state": "R", "Exit_status": -29}, ("R", None, None, ""), id="a running one has no cause of an end"
        ),
    ],
)
def test_an_end_of_pbs_with_other_attributes(attributes: dict[str, str], end: tuple[object, ...]) -> None:
    assert read_one(find_adapter("pbs", {}), "jobs", render_json(**attributes)) == end


@pytest.mark.parametrize(
    ("exit_status", "cause"),
    [(0, None), (271, Cause.SIGNAL), (-1, Cause.NEVER_STARTED), (-4, Cause.NODE_LOST), (-10, Cause.MEMORY_LIMIT),
     (-11, Cause.TIME_LIMIT), (-12, Cause.CPU_LIMIT), (-13, Cause.NEVER_STARTED)],
)  # fmt: skip
def test_an_exit_status_of_torque(exit_status: int, cause: Cause | None) -> None:
    printed = (
        "<Data><Job><Job_Id>7.vm</Job_Id><Job_Name>k3f9zq2m-1</Job_Name><job_state>C</job_state>"
        f"<exit_status>{exit_status}</exit_status></Job></Data>"
    )
    assert read_one(find_adapter("torque", {}), "jobs", printed)[2] is cause


# --- Grid Engine


def edit_record(printed: str, **words: str) -> str:
    """A record of qacct with other words in it."""
    for name, value in words.items():
        line = f"{name:<12} {value}\n"
        printed = re.sub(rf"(?m)^{name} .*\n", "", printed) + line
    return printed


KILLED = next(
    "=" * 62 + recording.stdout.partition("=" * 62)[2]
    for recording in read_recordings("sge", "sge-scenarios.txt")
    if "enforced h_rt" in recording.stdout and "qacct" in recording.command
)


@pytest.mark.parametrize(
    ("words", "cause", "by"),
    [
        pytest.param({}, Cause.TIME_LIMIT, "", id="as it was recorded"),
        pytest.param({"category": "NONE"}, Cause.TIME_LIMIT, "", id="the queue's own limit"),
        pytest.param({"category": "-l h_rt=0:1:40,h_cpu=10", "cpu": "10.2s"}, Cause.CPU_LIMIT, "", id="h_cpu"),
        pytest.param({"category": "-l h_vmem=3M -q a", "maxvmem": "3.344MB"}, Cause.MEMORY_LIMIT, "", id="h_vmem"),
        pytest.param({"category": "-l h_rt=INFINITY,h_vmem=1K"}, Cause.MEMORY_LIMIT, "", id="an infinite one"),
        pytest.param({"category": "-l h_rt=0:0:10"}, Cause.TIME_LIMIT, "", id="h:m:s"),
        pytest.param({"failed": "100 : assumedly after job"}, Cause.TIME_LIMIT, "", id="100, beyond its limit"),
        pytest.param(
            {"failed": "100 : assumedly after job", "category": "NONE"}, Cause.SIGNAL, "", id="100, nobody says why"
        ),
        pytest.param(
            {"failed": "100 : assumedly after job", "deleted_by": "ann@vm"}, Cause.CANCELLED_OUTSIDE, "ann", id="qdel"
        ),
        pytest.param({"failed": "0", "deleted_by": "NONE", "exit_status": "0"}, None, "", id="ended by itself"),
        # Only the program died: its driver brought the outputs back, and ended with its exit status.
        *(
            pytest.param(
                {"failed": "0", "category": f"-l {limit}", "exit_status": exit_status, use: used}, cause, "", id=name
            )
            for limit, use, used, exit_status, cause, name in (
                ("s_rt=15", "ru_wallclock", "19s", "138 (User defined signal 1)", Cause.TIME_LIMIT, "s_rt"),
                ("s_rt=15", "ru_wallclock", "19s", "3", None, "an exit code of its own after s_rt"),
                ("s_rt=15", "ru_wallclock", "9s", "138 (User defined signal 1)", None, "USR1 before s_rt"),
                ("s_cpu=4", "cpu", "4.542s", "152 (CPU time limit exceeded)", Cause.CPU_LIMIT, "s_cpu"),
                ("s_vmem=1G", "maxvmem", "1.1GB", "152 (CPU time limit exceeded)", Cause.MEMORY_LIMIT, "s_vmem"),
                ("h_cpu=4", "cpu", "4.540s", "137 (Killed)", Cause.CPU_LIMIT, "h_cpu, by the kernel"),
                ("h_cpu=4", "cpu", "4.540s", "0", None, "succeeded beyond h_cpu"),
            )
        ),
        pytest.param({"failed": "19 : before writing exit_status"}, Cause.NODE_LOST, "", id="its shepherd died"),
        pytest.param({"failed": "15 : in epilog"}, None, "", id="after its end"),
    ],
)
def test_grid_engine(words: dict[str, str], cause: Cause | None, by: str) -> None:
    assert read_one(find_adapter("sge", {}), "history", edit_record(KILLED, **words))[2:] == (cause, by)


def test_grid_engine_names_the_limit_where_it_gives_no_reason_itself() -> None:
    words = {"failed": "0", "exit_status": "138", "category": "-l s_rt=1", "ru_wallclock": "19s"}
    assert [job.reason for job in read_history(edit_record(KILLED, **words))] == ["s_rt=1"]


# --- HTCondor

TRUE = "expression 'x' evaluated to TRUE"
RAN_TOO_LONG = (
    "The job attribute PeriodicRemove expression"
    " '(JobStatus == 2 && time() - JobCurrentStartExecutingDate > 60) =?= true' evaluated to TRUE"
)
HELD_BEFORE = {"JobStatus": 3, "LastJobStatus": 5, "LastHoldReasonCode": 21, "LastHoldReasonSubCode": 102}


@pytest.mark.parametrize(
    ("ad", "cause", "by"),
    [
        ({"JobStatus": 3, "RemoveReason": "via condor_rm (by user ann)"}, Cause.CANCELLED_OUTSIDE, "ann"),
        ({"JobStatus": 3, "RemoveReason": "enough! (by user bob) (by user ann@x)"}, Cause.CANCELLED_OUTSIDE, "ann"),
        ({"JobStatus": 3, "RemoveReason": None}, Cause.CANCELLED_OUTSIDE, ""),
        ({"JobStatus": 3, "RemoveReason": RAN_TOO_LONG}, Cause.TIME_LIMIT, ""),
        # As an administrator's condor_qedit, or a job transform of the pool, had it.
        ({"JobStatus": 3, "RemoveReason": f"The job attribute PeriodicRemove {TRUE}"}, Cause.CANCELLED_OUTSIDE, ""),
        ({"JobStatus": 3, "RemoveReason": f"The system macro PERIODIC_REMOVE {TRUE}"}, Cause.CANCELLED_OUTSIDE, ""),
        ({"JobStatus": 5, "HoldReasonCode": 34, "HoldReason": "(by user ann)"}, Cause.MEMORY_LIMIT, ""),
        ({"JobStatus": 5, "HoldReasonCode": 21, "HoldReasonSubCode": 102}, Cause.MEMORY_LIMIT, ""),
        ({"JobStatus": 5, "HoldReasonCode": 21, "HoldReasonSubCode": 104}, None, ""),
        # Held for its memory, and then removed by the pool, or by a person.
        ({**HELD_BEFORE, "RemoveReason": f"The system macro PERIODIC_REMOVE {TRUE}"}, Cause.MEMORY_LIMIT, ""),
        ({**HELD_BEFORE, "RemoveReason": f"The job attribute PeriodicRemove {TRUE}"}, Cause.MEMORY_LIMIT, ""),
        ({**HELD_BEFORE, "RemoveReason": "via condor_rm (by user ann)"}, Cause.MEMORY_LIMIT, ""),
        (
            {
                "JobStatus": 3,
                "LastJobStatus": 5,
                "LastHoldReasonCode": 1,
                "RemoveReason": "via condor_rm (by user ann)",
            },
            *(Cause.CANCELLED_OUTSIDE, "ann"),
        ),
        ({**HELD_BEFORE, "LastJobStatus": 2}, Cause.CANCELLED_OUTSIDE, ""),
        ({"JobStatus": 5, "HoldReasonCode": 46}, Cause.TIME_LIMIT, ""),
        ({"JobStatus": 5, "HoldReasonCode": 47}, Cause.TIME_LIMIT, ""),
        ({"JobStatus": 5, "HoldReasonCode": 6}, Cause.NEVER_STARTED, ""),
        ({"JobStatus": 5, "HoldReasonCode": 1}, None, ""),
        ({"JobStatus": 4, "ExitBySignal": True}, Cause.SIGNAL, ""),
        ({"JobStatus": 4, "ExitCode": 3}, None, ""),
    ],
)
def test_htcondor(ad: Mapping[str, object], cause: Cause | None, by: str) -> None:
    printed = json.dumps([{"ClusterId": 1, "ProcId": 0, **ad}])
    assert read_one(find_adapter("condor", {}), "history", printed)[2:] == (cause, by)


# --- LSF


@pytest.mark.parametrize(
    ("code", "reason", "cause"),
    [
        ("3", "-", None),
        ("139", "TERM_EXTERNAL_SIGNAL: job killed by a signal external to LSF", Cause.SIGNAL),
        ("140", "TERM_RUNLIMIT: job killed after reaching LSF run time limit", Cause.TIME_LIMIT),
        ("152", "TERM_CPULIMIT: job killed after reaching LSF CPU usage limit", Cause.CPU_LIMIT),
        ("130", "TERM_MEMLIMIT: job killed after reaching LSF memory usage limit", Cause.MEMORY_LIMIT),
        ("130", "TERM_SWAP: job killed after reaching LSF swap usage limit", Cause.MEMORY_LIMIT),
        ("130", "TERM_OWNER: job killed by owner", Cause.CANCELLED_OUTSIDE),
        ("-", "TERM_OWNER: job killed by owner", Cause.CANCELLED_OUTSIDE),
        ("130", "TERM_ADMIN: job killed by root or LSF administrator", Cause.CANCELLED_OUTSIDE),
        ("9", "TERM_FORCE_OWNER: job killed by owner without time for cleanup", Cause.CANCELLED_OUTSIDE),
        ("9", "TERM_PREEMPT: job killed after preemption", Cause.CANCELLED_OUTSIDE),
        ("9", "TERM_REMOVE_HUNG_JOB: job removed from LSF", Cause.NODE_LOST),
        ("1", "TERM_CWD_NOTEXIST: current working directory is not accessible", Cause.NEVER_STARTED),
        ("-", "-", Cause.CANCELLED_OUTSIDE),
    ],
)
def test_lsf(code: str, reason: str, cause: Cause | None) -> None:
    assert read_one(find_adapter("lsf", {}), "jobs", f"7|0|EXIT|{code}|k3f9zq2m-1|{reason}|-\n")[2] is cause


# --- the embedded batch system, and sites


@pytest.mark.parametrize(
    ("line", "end"),
    [
        ("ended 3", ("ended", 3, None, "")),
        ("ended 0 time-limit", ("ended", 0, Cause.TIME_LIMIT, "")),
        ("killed 143 cancelled-outside by 1001", ("killed", 143, Cause.CANCELLED_OUTSIDE, "1001")),
        ("killed 137", ("killed", 137, Cause.SIGNAL, "")),
        ("cancelled - cancelled-outside by 0", ("cancelled", None, Cause.CANCELLED_OUTSIDE, "0")),
        # An account whose queue was started by an earlier version.
        ("cancelled -", ("cancelled", None, Cause.CANCELLED_OUTSIDE, "")),
        ("lost -", ("lost", None, Cause.NODE_LOST, "")),
    ],
)
def test_the_embedded_batch_system(line: str, end: tuple[object, ...]) -> None:
    assert read_one(FORK, "jobs", f"a-1.1 {line}\n") == end


def test_a_site_says_which_causes_its_native_states_have() -> None:
    adapter = find_adapter("slurm", {"slurm": {"states": {"EVICTED": "failed"}, "causes": {"EVICTED": "node-lost"}}})
    assert adapter.causes["EVICTED"] is Cause.NODE_LOST
    assert adapter.causes["TIMEOUT"] is Cause.TIME_LIMIT


@pytest.mark.parametrize("table", [{"EVICTED": "gone"}, {"EVICTED": ["node-lost"]}, "node-lost"])
def test_a_cause_that_there_is_not_is_a_fault_of_the_sites_table(table: object) -> None:
    with pytest.raises(BadAdapter, match=r"causes must give each native state one of exit-code, signal, .*"):
        find_adapter("slurm", {"slurm": {"causes": table}})


def test_a_line_may_say_why_and_by_whom() -> None:
    read = Lines(r"(?P<id>\d+) (?P<state>\w) (?P<cause>\S+) (?P<by>\S+)")
    assert list(read("7 X node-lost ann\n")) == [Job("7", "X", cause=Cause.NODE_LOST, by="ann")]
    with pytest.raises(Garbled, match="a cause that there is not: 'sorrow'"):
        list(read("7 X sorrow ann\n"))


@pytest.mark.parametrize(
    ("by", "name"), [(str(os.geteuid()), pwd.getpwuid(os.geteuid()).pw_name), ("987654321", "987654321")]
)
def test_whoever_ended_a_job_is_named_where_this_machine_knows_the_number(tmp_path: Path, by: str, name: str) -> None:
    program = tmp_path / "qstat"
    program.write_text(f"#!/bin/sh\necho 'a-1.1 killed 143 cancelled-outside by {by}'\n")
    program.chmod(0o700)
    adapter = find_adapter("toy", {"toy": {"based_on": "fork", "queue": {"argv": [str(program)]}}})
    (status,) = BatchSystem(adapter, {}, RateLimiter(tmp_path / "limiter", 0)).query()
    said = (status.state, status.exit_code, status.cause, status.by)
    assert said == (State.FAILED, 143, Cause.CANCELLED_OUTSIDE, name)
