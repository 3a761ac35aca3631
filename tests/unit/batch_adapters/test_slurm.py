"""The Slurm adapter on what Slurm 22.05.8 printed: commands, down, history and show-config.txt of recorded/slurm.

commands-24.11.txt is from Slurm 24.11.5, commands-26.05.txt from Slurm 26.05.5.
"""

import re
from collections.abc import Sequence
from dataclasses import asdict

import pytest

from batch_adapters.adapter import Answer, Command, Job, Submission
from batch_adapters.running.batch_system import read_max_array
from batch_adapters.running.commands import render_argv, render_text
from batch_adapters.running.diagnosis import Level, Printed
from batch_adapters.slurm import SLURM
from batch_adapters.slurm.answers import NEVER_STARTED, diagnose
from batch_adapters.states import State
from tests.unit.batch_adapters.recordings import RECORDED, Recording, by_scene, judge, read_recordings

CONFIGURATION = (RECORDED / "slurm" / "show-config.txt").read_text()


RUN = read_recordings("slurm", "commands.txt")
NEWER = read_recordings("slurm", "commands-24.11.txt")
NEWEST = read_recordings("slurm", "commands-26.05.txt")
HISTORY = read_recordings("slurm", "history.txt")


def of_scene(recordings: list[Recording], scene: str, program: str) -> list[Recording]:
    found = [r for r in recordings if r.scene.startswith(scene) and program in r.command.split()]
    assert found
    return found


def read_queue(recording: Recording) -> list[Job]:
    assert recording.judge(SLURM.queue) is Answer.OK
    return list(SLURM.read_jobs(recording.stdout))


def submission(**changes: object) -> dict[str, object]:
    fields = asdict(Submission("k3f9zq2m-1", 1, driver="/s/driver.sh", results="/home/griduser/results"))
    return {**fields, **changes}


def test_what_is_submitted_is_what_was_recorded() -> None:
    assert " ".join(render_argv(SLURM.submit, submission())) == RUN[0].command
    wishes = {"token": "k3f9zq2m-2", "count": 3, "queue": "batch", "project": "acc", "max_wall_minutes": 90}
    argv = render_argv(SLURM.submit, submission(**wishes, max_memory_mb=500, options=("--nice=10",)))
    assert " ".join(argv) == of_scene(RUN, "an array", "sbatch")[0].command


def test_a_submission_whose_command_had_given_up_is_there_in_the_end() -> None:
    after = of_scene(read_recordings("slurm", "down.txt"), "slurmctld stopped", "squeue")[-1]
    assert ("427", "PENDING") in [(job.local_id, job.native_state) for job in read_queue(after)]


def test_folders_may_have_any_name() -> None:
    script = render_text(SLURM.submit.stdin, submission(driver="/it's/driver.sh"))
    assert script == """#!/bin/sh\nexec /bin/sh '/it'"'"'s/driver.sh' k3f9zq2m-1\n"""


def test_questions_and_cancellations_are_asked_as_they_were_recorded() -> None:
    questions = [(SLURM.queue, {}), (SLURM.find, {"token": "k3f9zq2m-7"}), (SLURM.status, {"id": "7_1"})]
    asked = [" ".join(render_argv(command, variables)) for command, variables in questions]
    assert asked == [recording.command for recording in of_scene(RUN, "renamed", "squeue")]
    assert (
        " ".join(render_argv(SLURM.cancel, {"ids": ["3_0", "999999_3"]}))
        == of_scene(RUN, "absent", "scancel")[1].command
    )
    assert SLURM.history is not None
    assert " ".join(render_argv(SLURM.history, {"token": "k3f9zq2m-1"})) == of_scene(RUN, "absent", "sacct")[0].command


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


@pytest.mark.parametrize(("recordings", "array"), [(NEWER, "44"), (NEWEST, "1")], ids=["24.11", "26.05"])
def test_the_queue_of_a_newer_slurm_is_read(recordings: list[Recording], array: str) -> None:
    answers = [
        read_queue(recording) for recording in of_scene(recordings, "exit 7", "squeue") if "--name" in recording.command
    ]
    ended = [("2", State.DONE, 0, ""), ("0", State.DONE, 7, "NonZeroExitCode")]
    ended += [("1", State.DONE, 137, "RaisedSignal:9(Killed)")]
    running = [("3", State.ACTIVE, None, ""), ("4", State.ACTIVE, None, "")]
    held = ("4", State.ACTIVE, None, "JobHeldUser")
    read = [
        [
            (job.local_id.removeprefix(f"{array}_"), SLURM.states[job.native_state], job.exit_code, job.reason)
            for job in jobs
        ]
        for jobs in answers
    ]
    assert read == [[*ended, *running], [("3", State.FAILED, None, ""), *ended, held]]


@pytest.mark.parametrize(
    ("words", "command", "answers"),
    [
        ("sbatch .*--array=0-5000", SLURM.submit, {Answer.TOO_MANY}),
        ("sbatch (?!.*--array=0-5000)", SLURM.submit, {Answer.PERMANENT}),
        ("scancel ", SLURM.cancel, {Answer.OK}),
        ("scancel --full ", SLURM.suspend, {Answer.OK}),
        ("scontrol hold ", SLURM.hold, {Answer.OK}),
        ("squeue ", SLURM.status, {Answer.OK, Answer.ABSENT}),
        ("sacct ", SLURM.history, {Answer.PERMANENT}),
    ],
)
def test_the_answers_of_a_newer_slurm_are_understood(words: str, command: Command, answers: set[Answer]) -> None:
    # Of --cpus-per-task, --account and --qos, Slurm 26.05 refuses none on this cluster.
    taken = rf"{words}(?!--full|--parsable .*(?:--array=0-[34]|--cpus-per-task|--account|--qos))"
    of_command = [
        answer for answer in NEWER + NEWEST if re.match(taken, answer.command) and answer.scene != "slurmctld killed"
    ]
    assert {answer.judge(command) for answer in of_command} == answers


@pytest.mark.parametrize(
    ("words", "command"),
    [
        ("squeue --noheader --me", SLURM.queue),
        ("scontrol hold", SLURM.hold),
        ("scontrol release", SLURM.release),
        ("scontrol update", SLURM.priority),
        ("scontrol show", SLURM.version),
        ("scancel 77", SLURM.cancel),
        ("scancel --full", SLURM.suspend),
        ("squeue --noheader --jobs", SLURM.analyze),
        ("sinfo", SLURM.slots),
    ],
)
def test_a_newer_slurm_whose_controller_was_killed_has_no_answer(words: str, command: Command | None) -> None:
    (answer,) = (one for one in of_scene(NEWEST, "slurmctld killed", words.split()[0]) if one.command.startswith(words))
    assert answer.judge(command) is Answer.TRANSIENT


def test_a_job_that_is_completing_may_run_again() -> None:
    jobs = [read_queue(recording)[0] for recording in of_scene(RUN, "requeued", "squeue")]
    assert [job.native_state for job in jobs] == ["COMPLETING", "PENDING"]
    assert SLURM.leaving == {"COMPLETING"}


def test_a_name_with_line_breaks_forges_no_job() -> None:
    jobs = read_queue(of_scene(RUN, "a name", "squeue")[0])
    assert "15" in {job.local_id for job in jobs}
    assert not {"1", "aaaaaaaa-1"} & {word for job in jobs for word in (job.local_id, job.token)}
    assert len(jobs) == 12


def test_what_was_renamed_has_the_token_it_was_submitted_with() -> None:
    everything, of_its_name, _ = (read_queue(recording) for recording in of_scene(RUN, "renamed", "squeue"))
    alive = {job.local_id: job.token for job in everything if job.native_state in ("PENDING", "RUNNING")}
    elements = {**dict.fromkeys(("7_0", "7_1"), "k3f9zq2m-8"), **dict.fromkeys(("8_0", "8_1"), "k3f9zq2m-9")}
    assert alive == {"6": "k3f9zq2m-7", **elements, "11": "k3f9zq2m-10"}
    assert {job.token for job in of_its_name} == {"k3f9zq2m-9"}, "squeue --name knows new names only"


def test_a_refused_job_that_is_shown_all_the_same_has_never_started() -> None:
    (job,) = (job for job in read_queue(of_scene(RUN, "a name", "squeue")[0]) if job.local_id == "11")
    assert job == Job("11", NEVER_STARTED, None, "BadConstraints", "k3f9zq2m-6")
    assert SLURM.states[NEVER_STARTED] is State.FAILED


def test_a_failure_to_launch_is_no_end_of_a_program() -> None:
    # 0:53: its output file could not be written.
    (job,) = SLURM.read_jobs("416|FAILED|4021|JobLaunchFailure|tok-1|416\n")
    assert (job.native_state, job.exit_code) == (NEVER_STARTED, None)


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
    assert recording.judge(SLURM.history) is Answer.OK
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


def test_an_array_may_have_fewer_tasks_than_the_highest_number_permits() -> None:
    (limited,) = of_scene(RUN, "SchedulerParameters", "scontrol")
    assert read_max_array(SLURM, limited.stdout) == 10
    assert read_max_array(SLURM, CONFIGURATION.replace("(null)", "max_array_tasks_of_others=5")) == 1001


def test_a_configuration_is_whole_even_if_the_ping_after_it_is_refused() -> None:
    pinged = CONFIGURATION + "\nSlurmctld(primary) at n1 is DOWN\n"
    assert judge(SLURM.array_limit, 1, pinged) is Answer.OK
    assert list(diagnose(lambda argv: Printed(1, pinged, ""), {}))


DISKS = by_scene(read_recordings("slurm", "tmp-disk.txt"))
NODES = by_scene(read_recordings("slurm", "nodes-26.05.txt"))
IDLE = NODES["all idle"].stdout


def find(configuration: str, level: Level, nodes: str = IDLE) -> str:
    """The remedies of the findings of that level."""

    def ask(argv: Sequence[str]) -> Printed:
        command = " ".join(argv)
        assert command in ("scontrol show config", NODES["all idle"].command)
        return Printed(0, nodes if argv[0] == "sinfo" else configuration, "")

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


@pytest.mark.parametrize(
    ("disks", "level", "words"),
    [
        pytest.param(IDLE, Level.GOOD, "max_disk up to 1000 MB", id="there is a disk"),
        pytest.param(
            "a|up|idle|0\na|up|mix|500+\nb|up|idle|200\n", Level.GOOD, "max_disk up to 500 MB", id="the largest counts"
        ),
        pytest.param(IDLE.replace("|1000", "|0"), Level.WARNING, "TmpDisk=MEGABYTES", id="there is none"),
    ],
)
def test_it_is_said_whether_requests_can_have_a_disk(disks: str, level: Level, words: str) -> None:
    assert words in find(CONFIGURATION, level, disks)
    others = {Level.GOOD, Level.WARNING} - {level}
    assert not any("max_disk" in find(CONFIGURATION, other, disks) for other in others)


def test_where_nobody_tells_the_disks_nothing_is_said_of_them() -> None:
    for disks in ("", "N/A\n", "slurm_load_partitions: No error\n"):
        assert "max_disk" not in find(CONFIGURATION, Level.GOOD, disks)
        assert "TmpDisk" not in find(CONFIGURATION, Level.WARNING, disks)


@pytest.mark.parametrize(
    ("nodes", "level", "remedy"),
    [
        pytest.param(NODES["default partition down"].stdout, Level.WARNING, "PartitionName=NAME", id="default closed"),
        pytest.param(NODES["all partitions closed"].stdout, Level.FAULT, "PartitionName=NAME", id="all closed"),
        pytest.param(NODES["no node"].stdout, Level.FAULT, "NodeName=NAME State=RESUME", id="no node"),
        pytest.param("a|up|idle*|0\nb|down|idle|0\nc|up|n/a|0\n", Level.FAULT, "NodeName=NAME", id="no answer"),
    ],
)
def test_it_is_said_that_nothing_can_start(nodes: str, level: Level, remedy: str) -> None:
    assert remedy in find(CONFIGURATION, level, nodes)
    assert "NAME State=" not in find(CONFIGURATION, level)


def test_a_disk_that_no_node_has_is_refused() -> None:
    for scene in ("more than TmpDisk", "any disk where there is no TmpDisk"):
        assert DISKS[scene].judge(SLURM.submit) is Answer.PERMANENT
    assert DISKS["less than TmpDisk"].judge(SLURM.submit) is Answer.OK


def test_of_a_controller_that_does_not_answer_nothing_is_said() -> None:
    assert list(diagnose(lambda argv: Printed(1, "", "slurm_load_ctl_conf error: ..."), {})) == []
    assert SLURM.diagnose(lambda argv: Printed(0, CONFIGURATION, ""), {})


def test_a_closed_partition_may_be_open_later() -> None:
    (closed,) = (answer for answer in of_scene(RUN, "refused", "sbatch") if "inactive or drain" in answer.stderr)
    assert closed.judge(SLURM.submit) is Answer.LATER
