"""The Slurm adapter on what Slurm 22.05.8 printed: commands, down, history and show-config.txt of recorded/slurm."""

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest

from batch_adapters.adapter import Answer, Command, Garbled, Job, Submission
from batch_adapters.diagnosis import Level, Printed
from batch_adapters.running import render_argv, render_text
from batch_adapters.slurm import SLURM
from batch_adapters.slurm.answers import NEVER_STARTED
from batch_adapters.slurm.diagnosis import diagnose
from batch_adapters.states import State
from tests.unit.recordings import judge

RECORDED = Path(__file__).parent.parent / "recorded" / "slurm"
CONFIGURATION = (RECORDED / "show-config.txt").read_text()
COMMANDS = {
    "sbatch": SLURM.submit,
    "squeue": SLURM.queue,
    "scancel": SLURM.cancel,
    "sacct": SLURM.history,
    "scontrol": SLURM.array_limit,
}

# squeue(1) of Slurm 22.05, "JOB STATE CODES"; sacct(1)'s are among them.
MANUAL = """
    BOOT_FAIL CANCELLED COMPLETED CONFIGURING COMPLETING DEADLINE FAILED NODE_FAIL OUT_OF_MEMORY PENDING PREEMPTED
    RUNNING RESV_DEL_HOLD REQUEUE_FED REQUEUE_HOLD REQUEUED RESIZING REVOKED SIGNALING SPECIAL_EXIT STAGE_OUT STOPPED
    SUSPENDED TIMEOUT
"""


@dataclass(frozen=True)
class Recording:
    """One command and its answer."""

    scene: str
    argv: str
    stdout: str
    stderr: str
    exit_code: int

    @property
    def program(self) -> str:
        words = self.argv.split()
        return next(word for word in words if word in (*COMMANDS, "sinfo"))

    def judge(self, command: Command | None = None) -> Answer:
        """What the adapter makes of it."""
        return judge(command or COMMANDS[self.program], self.exit_code, self.stdout, self.stderr)


def read_recordings(name: str) -> list[Recording]:
    recordings = []
    for scene in (RECORDED / name).read_text().split("\n=== ")[1:]:
        title, _, rest = scene.partition("\n")
        for text in re.split(r"^\$ ", rest, flags=re.MULTILINE)[1:]:
            argv, body, code = re.split(r"\n((?:[12]> .*\n)*)\[rc=(\d+) ", text)[:3]
            out, err = ("".join(f"{line}\n" for line in re.findall(f"^{n}> (.*)$", body, re.M)) for n in "12")
            recordings.append(Recording(title, argv, out, err, int(code)))
    return recordings


RUN = read_recordings("commands.txt")
DOWN = read_recordings("down.txt")
HISTORY = read_recordings("history.txt")


def of_scene(recordings: list[Recording], scene: str, program: str) -> list[Recording]:
    found = [r for r in recordings if r.scene.startswith(scene) and r.program == program]
    assert found
    return found


def read_queue(recording: Recording) -> list[Job]:
    assert recording.judge() is Answer.OK
    return list(SLURM.read_jobs(recording.stdout))


def submission(count: int = 1, **more: object) -> dict[str, object]:
    fields = asdict(Submission("k3f9zq2m-1", count, 1000, driver="/s/driver.sh", results="/home/griduser/results"))
    return {**fields, **more}


def test_one_local_job_is_submitted_as_a_plain_job() -> None:
    argv = render_argv(SLURM.submit, submission())
    assert argv == [
        "sbatch",
        "--parsable",
        "--job-name=k3f9zq2m-1",
        "--output=/home/griduser/results/k3f9zq2m-1.0.driver",
        "--chdir=/",
        "--export=NONE",
    ]
    assert " ".join(argv) == RUN[0].argv


def test_an_array_is_submitted_with_all_that_the_request_and_the_site_say() -> None:
    wishes = {
        "queue": "batch",
        "project": "acc",
        "max_wall_minutes": 90,
        "max_memory_mb": 500,
        "options": ("--nice=10",),
    }
    argv = render_argv(SLURM.submit, submission(3, token="k3f9zq2m-2", **wishes))
    assert argv == [
        "sbatch",
        "--parsable",
        "--job-name=k3f9zq2m-2",
        "--array=0-2",
        "--output=/home/griduser/results/k3f9zq2m-2.%a.driver",
        "--chdir=/",
        "--export=NONE",
        "--partition=batch",
        "--account=acc",
        "--time=90",
        "--mem=500M",
        "--nice=10",
    ]
    assert " ".join(argv) == of_scene(RUN, "an array", "sbatch")[0].argv


def test_folders_may_have_any_name() -> None:
    argv = render_argv(SLURM.submit, submission(results="/100%a"))
    assert "--output=/100%%a/k3f9zq2m-1.0.driver" in argv
    script = render_text(SLURM.submit.stdin, submission(driver="/it's/driver.sh"))
    assert script == """#!/bin/sh\nexec /bin/sh '/it'"'"'s/driver.sh' 1000 k3f9zq2m-1\n"""


def test_questions_and_cancellations_are_asked_as_they_were_recorded() -> None:
    assert " ".join(render_argv(SLURM.find, {"token": "k3f9zq2m-1"})) == RUN[1].argv
    assert " ".join(render_argv(SLURM.status, {"id": "3_0"})) == of_scene(RUN, "an array", "squeue")[1].argv
    assert " ".join(render_argv(SLURM.queue, {})) == of_scene(RUN, "a name", "squeue")[0].argv
    assert (
        " ".join(render_argv(SLURM.cancel, {"ids": ["3_0", "999999_3"]})) == of_scene(RUN, "absent", "scancel")[1].argv
    )
    assert SLURM.history is not None
    assert " ".join(render_argv(SLURM.history, {"token": "k3f9zq2m-1"})) == of_scene(RUN, "absent", "sacct")[0].argv


@pytest.mark.parametrize(
    ("printed", "count", "ids"),
    [
        pytest.param("2\n", 1, {1: "2"}, id="alone"),
        pytest.param("10\n", 3, {1: "10_0", 2: "10_1", 3: "10_2"}, id="array"),
        pytest.param("2;cluster-1\n", 1, {1: "2"}, id="of a federation"),
        pytest.param("", 1, None, id="nothing"),
        pytest.param("Submitted batch job 2\n", 1, None, id="for people"),
        pytest.param("Welcome!\n2\n", 1, None, id="with a banner"),
    ],
)
def test_what_sbatch_prints_names_the_local_jobs(printed: str, count: int, ids: dict[int, str] | None) -> None:
    assert SLURM.naming.read_submitted(printed, count) == ids


def test_an_element_leads_back_to_its_array_and_its_position() -> None:
    naming = SLURM.naming
    assert (naming.array_of("10_3"), naming.position_of("10_3")) == ("10", 4)
    assert (naming.array_of("10"), naming.position_of("10")) == ("10", 1)


def test_the_state_map_has_every_state_of_the_manual() -> None:
    assert set(SLURM.states) == {*MANUAL.split(), NEVER_STARTED}


@pytest.mark.parametrize(
    ("scene", "nth", "expected"),
    [
        ("one alone", 0, [("2", State.PENDING, None, "")]),
        ("one alone", 1, [("2", State.DONE, 7, "NonZeroExitCode")]),
        (
            "an array",
            0,
            [
                ("3_2", State.DONE, 0, ""),
                ("3_0", State.DONE, 3, "NonZeroExitCode"),
                ("3_1", State.DONE, 137, "JobLaunchFailure"),
            ],
        ),
        ("held", 0, [(f"6_{n}", State.PENDING, None, "JobHeldUser") for n in (0, 1, 2)]),
        ("held", 1, [(f"6_{n}", State.PENDING, None, "JobHeldUser") for n in (0, 2)]),
        ("held", 2, [(f"6_{n}", State.FAILED, None, "JobHeldUser") for n in (0, 2)]),
        (
            "running",
            0,
            [("7_1", State.ACTIVE, None, ""), ("7_2", State.ACTIVE, None, ""), ("7_0", State.SUSPENDED, None, "")],
        ),
        ("running", 1, [(f"7_{n}", State.ACTIVE, None, "") for n in (1, 2, 0)]),
        (
            "running",
            2,
            [("7_1", State.FAILED, None, ""), ("7_2", State.FAILED, None, ""), ("7_0", State.ACTIVE, None, "")],
        ),
        ("requeued", 0, [("10", State.ACTIVE, None, "")]),
        ("requeued", 1, [("10", State.PENDING, None, "BeginTime")]),
        ("absent", 0, []),
        ("absent", 3, []),
    ],
)
def test_the_queue_is_read(scene: str, nth: int, expected: list[tuple[str, State, int | None, str]]) -> None:
    jobs = read_queue(of_scene(RUN, scene, "squeue")[nth])
    assert [(job.local_id, SLURM.states[job.native_state], job.exit_code, job.reason) for job in jobs] == expected


def test_a_job_that_is_completing_may_run_again() -> None:
    jobs = [read_queue(recording)[0] for recording in of_scene(RUN, "requeued", "squeue")]
    assert [job.native_state for job in jobs] == ["COMPLETING", "PENDING"]
    assert SLURM.leaving == {"COMPLETING"}


def test_a_name_with_line_breaks_forges_no_job() -> None:
    jobs = read_queue(of_scene(RUN, "a name", "squeue")[0])
    names = {job.local_id: job.token for job in jobs}
    assert names["15"] == "two\n1|RUNNING|0|None|aaaaaaaa-1|1\nx|y"
    assert "1" not in names
    assert len(jobs) == 12


def test_a_refused_job_that_is_shown_all_the_same_has_never_started() -> None:
    (job,) = (job for job in read_queue(of_scene(RUN, "a name", "squeue")[0]) if job.local_id == "11")
    assert job == Job("11", NEVER_STARTED, None, "BadConstraints", "k3f9zq2m-6")
    assert SLURM.states[NEVER_STARTED] is State.FAILED


def test_a_failure_to_launch_is_no_end_of_a_program() -> None:
    # 0:53: its output file could not be written.
    (job,) = SLURM.read_jobs("416|FAILED|4021|JobLaunchFailure|tok-1|416\n")
    assert (job.native_state, job.exit_code) == (NEVER_STARTED, None)


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda text: text[:-1], id="torn before the last newline"),
        pytest.param(lambda text: text[:-4], id="torn in the last record"),
        pytest.param(lambda text: "Welcome to vm!\n" + text, id="banner first"),
        pytest.param(lambda text: text + "Have a nice day\n", id="banner last"),
        pytest.param(lambda text: text.replace("3_0|FAILED", "hello\n3_0|FAILED"), id="banner between"),
    ],
)
def test_a_damaged_answer_is_garbled(damage: object) -> None:
    assert callable(damage)
    answer = of_scene(RUN, "an array", "squeue")[0].stdout
    with pytest.raises(Garbled):
        list(SLURM.read_jobs(damage(answer)))
    with pytest.raises(Garbled):
        list(SLURM.read_history(damage("3_1|COMPLETED|0:0\n3_0|FAILED|3:0\n")))


@pytest.mark.parametrize("recording", DOWN, ids=lambda r: f"{r.scene}: {r.argv[:40]}")
def test_when_nobody_answers_it_is_no_answer(recording: Recording) -> None:
    if recording.exit_code == 0:
        # After kill -CONT: the submission whose sbatch had given up.
        assert ("427", "PENDING") in [(job.local_id, job.native_state) for job in read_queue(recording)]
    else:
        is_not_sent = recording.program == "sbatch" and "(connect failure)" in recording.stderr
        answer = recording.judge(SLURM.version if recording.program == "sinfo" else None)
        assert answer is (Answer.LATER if is_not_sent else Answer.TRANSIENT)


@pytest.mark.parametrize("recording", of_scene(RUN, "refused", "sbatch"), ids=lambda r: r.argv[-40:])
def test_a_submission_that_is_refused_is_a_no(recording: Recording) -> None:
    assert recording.judge() is Answer.PERMANENT


def test_a_cancellation_that_is_not_permitted_is_a_no() -> None:
    assert {r.judge() for r in of_scene(RUN, "refused", "scancel")} == {Answer.PERMANENT}


def test_a_full_quota_is_no_refusal_for_ever() -> None:
    limit, account, accepted = of_scene(HISTORY, "submit limit", "sbatch")
    assert [limit.judge(), account.judge(), accepted.judge()] == [Answer.LATER, Answer.PERMANENT, Answer.OK]


def test_an_exit_code_alone_is_no_refusal() -> None:
    for code in (1, 2, 126, 127, 255):
        assert Recording("", "sbatch", "", "sbatch: error: what is this\n", code).judge() is Answer.UNKNOWN


def test_what_is_not_there_is_absent() -> None:
    absent = [r.judge() for r in of_scene(RUN, "absent", "squeue")]
    assert absent == [Answer.OK, Answer.ABSENT, Answer.ABSENT, Answer.OK]
    assert {r.judge() for r in of_scene(RUN, "absent", "scancel")} == {Answer.OK}


def test_an_empty_answer_with_a_complaint_is_not_believed() -> None:
    assert Recording("", "squeue", "", "", 0).judge() is Answer.OK
    assert Recording("", "squeue", "", "squeue: error: something new\n", 0).judge() is Answer.UNKNOWN


def test_without_accounting_there_is_no_history() -> None:
    assert of_scene(RUN, "absent", "sacct")[0].judge() is Answer.ABSENT


def test_without_its_database_the_history_does_not_answer() -> None:
    for scene in ("slurmdbd stopped", "slurmdbd killed"):
        assert of_scene(HISTORY, scene, "sacct")[0].judge() is Answer.TRANSIENT


@pytest.mark.parametrize(
    ("scene", "nth", "expected"),
    [
        (
            "some ended",
            0,
            [
                ("1_0", State.DONE, 3),
                ("1_1", State.DONE, 137),
                ("1_2", State.ACTIVE, None),
                ("1_3", State.DONE, 0),
                ("1_4", State.DONE, 0),
            ],
        ),
        ("some ended", 3, []),
        ("requeued", 0, [("11", State.PENDING, None)]),
        ("slurmctld killed", 0, [("3", State.DONE, 7)]),
        ("arrays of", 0, [(f"16_{n}", State.PENDING, None) for n in range(0, 19, 2)]),
        ("arrays of", 1, [(f"16_{n}", State.FAILED, None) for n in range(0, 19, 2)]),
    ],
)
def test_the_history_is_read(scene: str, nth: int, expected: list[tuple[str, State, int | None]]) -> None:
    recording = of_scene(HISTORY, scene, "sacct")[nth]
    assert recording.judge() is Answer.OK
    jobs = list(SLURM.read_history(recording.stdout))
    assert [(job.local_id, SLURM.states[job.native_state], job.exit_code) for job in jobs] == expected


@pytest.mark.parametrize(
    ("tasks", "numbers"),
    [
        ("1,3", [1, 3]),
        ("0-2,7-8", [0, 1, 2, 7, 8]),
        ("1-7:3,9%2", [1, 4, 7, 9]),
        pytest.param("0,2,4,1...", [0, 2, 4], id="cut short in a number"),
        pytest.param("0,2,...", [0, 2], id="cut short"),
    ],
)
def test_an_array_in_one_record_is_expanded(tasks: str, numbers: list[int]) -> None:
    jobs = SLURM.read_history(f"422_[{tasks}]|CANCELLED by 1001|0:0\n")
    assert [job.local_id for job in jobs] == [f"422_{number}" for number in numbers]


def test_the_array_limit_and_the_version_are_read() -> None:
    found = [re.search(p, CONFIGURATION) for p in (SLURM.read_array_limit, SLURM.read_version)]
    assert [match[1] for match in found if match] == ["1001", "22.05.8"]


@pytest.mark.parametrize(
    "name", ["SBATCH_PARTITION", "SQUEUE_FORMAT", "SLURM_ARRAY_TASK_ID", "SLURM_JOB_ID", "SLURM_CLUSTERS"]
)
def test_what_would_change_a_command_is_ignored(name: str) -> None:
    assert name.startswith(SLURM.ignored_variables)


def test_where_the_cluster_is_is_not_ignored() -> None:
    assert not any(
        name.startswith(SLURM.ignored_variables) for name in ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT")
    )


def find(configuration: str, level: Level) -> str:
    """The remedies of the findings of that level."""

    def ask(argv: Sequence[str]) -> Printed:
        assert list(argv) == ["scontrol", "show", "config"]
        return Printed(0, configuration, "")

    return "\n".join(finding.remedy or finding.text for finding in diagnose(ask, {}) if finding.level is level)


def change(name: str, value: str) -> str:
    changed, count = re.subn(rf"(?m)^({name}\s+= ).*$", rf"\g<1>{value}", CONFIGURATION)
    assert count == 1
    return changed


@pytest.mark.parametrize(
    ("name", "value", "level", "remedy"),
    [
        ("SlurmctldDebug", "error", Level.FAULT, "SlurmctldDebug=info"),
        ("SlurmctldLogFile", "(null)", Level.FAULT, "SlurmctldLogFile="),
        ("LogTimeFormat", "clock", Level.FAULT, "LogTimeFormat=rfc5424_ms"),
        ("LogTimeFormat", "iso8601_ms", Level.WARNING, "LogTimeFormat=rfc5424_ms"),
        ("MinJobAge", "60 sec", Level.FAULT, "MinJobAge=300"),
        ("RequeueExit", "99", Level.WARNING, "--no-requeue"),
        ("JobRequeue", "0", Level.WARNING, "--requeue"),
    ],
)
def test_what_is_wrong_in_the_configuration_is_found_and_mended(
    name: str, value: str, level: Level, remedy: str
) -> None:
    assert remedy not in find(CONFIGURATION, level)
    assert remedy in find(change(name, value), level)


def test_a_good_configuration_has_no_faults() -> None:
    assert find(CONFIGURATION, Level.FAULT) == ""
    assert find(CONFIGURATION, Level.WARNING) == "AccountingStorageType=accounting_storage/slurmdbd in slurm.conf"
    assert find(change("AccountingStorageType", "accounting_storage/slurmdbd"), Level.WARNING) == ""


def test_of_a_controller_that_does_not_answer_nothing_is_said() -> None:
    assert list(diagnose(lambda argv: Printed(1, "", "slurm_load_ctl_conf error: ..."), {})) == []
    assert SLURM.diagnose(lambda argv: Printed(0, CONFIGURATION, ""), {})
