"""The adapters pbs and torque on what real commands printed; Torque by its source; Slurm's wrappers, too."""

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import pytest

from batch_adapters.adapter import Answer, BatchAdapter, Garbled, Job, Submission
from batch_adapters.diagnosis import Level, Printed
from batch_adapters.pbs import PBS, TORQUE
from batch_adapters.pbs.queries import read_json_jobs, read_xml_jobs
from batch_adapters.registry import find_adapter
from batch_adapters.running import render_argv, render_text
from batch_adapters.states import State
from tests.unit.recordings import judge

RECORDED = Path(__file__).parents[1] / "recorded"
OVERRIDE = Path(__file__).parents[1] / "integration" / "systems" / "pbs.toml"
ENTRY = re.compile(r"^(?:griduser|root)[$#] (.*)\n((?:(?!\[exit ).*\n)*?)\[exit (\d+)\]$", re.MULTILINE)
WRAPPER_ENTRY = re.compile(r"^\$ (.*)\n((?:[12]> .*\n|[12]>\n)*)\[rc=(\d+)", re.MULTILINE)
DOWN = (RECORDED / "pbs" / "pbs-serverdown.txt").read_text(errors="replace")


def recording(name: str) -> list[tuple[str, str, str, int]]:
    """Commands of an OpenPBS transcript with stdout, stderr and exit code."""
    text = (RECORDED / "pbs" / name).read_text(errors="replace")
    found = []
    for command, printed, code in ENTRY.findall(text):
        lines = printed.splitlines(keepends=True)
        stderr = "".join(line.removeprefix("[stderr] ") for line in lines if line.startswith("[stderr] "))
        found.append((command, "".join(line for line in lines if not line.startswith("[stderr] ")), stderr, int(code)))
    return found


def wrapper_recording(name: str) -> list[tuple[str, str, str, int]]:
    """The same of a transcript of slurm-wlm-torque."""
    text = (RECORDED / "pbs" / name).read_text()
    found = []
    for command, printed, code in WRAPPER_ENTRY.findall(text):
        lines = [(line[0], line[3:]) for line in printed.splitlines()]
        out, err = ("".join(text + "\n" for number, text in lines if number == wanted) for wanted in "12")
        found.append((command.removeprefix("runuser -u griduser -- "), out, err, int(code)))
    return found


def printed_by(command: str, name: str = "pbs-history.txt", number: int = 0) -> str:
    return [stdout for line, stdout, _, _ in recording(name) if line == command][number]


def native_states(jobs: Sequence[Job]) -> dict[str, tuple[str, int | None]]:
    return {job.local_id: (job.native_state, job.exit_code) for job in jobs}


def read_named(printed: str) -> list[Job]:
    """The jobs of a recording, whose people gave them other names than we do."""
    return list(read_json_jobs(re.sub(r'("Job_Name":\t)"\w+"', r'\1"k3f9zq2m-1"', printed)))


# --- what the commands' answers mean


PBS_ANSWERS = {
    # command → by what is asked, what its recorded answers mean
    "qsub -N ok ok.sh": ("submit", Answer.OK),
    "qsub -J 7-9 -N arr arr.sh": ("submit", Answer.OK),
    "qsub -q nosuchq ok.sh": ("submit", Answer.PERMANENT),
    "qsub -l nosuchres=5 ok.sh": ("submit", Answer.PERMANENT),
    "qsub -Z ok.sh": ("submit", Answer.PERMANENT),
    "qsub -N 'a;b' ok.sh": ("submit", Answer.PERMANENT),
    "qsub /home/griduser/pbswork/ok.sh": ("submit", Answer.PERMANENT),
    "qstat -f -F json 46.vm": ("queue", Answer.OK),
    "qstat -f -F json 45.vm": ("status", Answer.ABSENT),
    "qstat 45.vm": ("status", Answer.ABSENT),
    "qstat -x -f -F json 46.vm": ("history", Answer.OK),
    "qstat 999999": ("status", Answer.ABSENT),
    "qstat 1.otherserver": ("status", Answer.UNKNOWN),
    "qdel 46.vm": ("cancel", Answer.OK),
    "qdel 45.vm": ("cancel", Answer.ABSENT),
    "qdel 10.vm": ("cancel", None),
    "qdel 54.vm 999999": ("cancel", Answer.OK),
    # The server had crashed.
    "qdel 999999": ("cancel", Answer.TRANSIENT),
    "qdel bogus": ("cancel", Answer.UNKNOWN),
}


@pytest.mark.parametrize("name", ["pbs-history.txt", "pbs-transcript.txt"])
def test_what_a_real_openpbs_answered_is_understood(name: str) -> None:
    seen = set()
    for command, stdout, stderr, code in recording(name):
        asked, expected = PBS_ANSWERS.get(command, ("", None))
        if expected is not None:
            seen.add(command)
            assert judge(getattr(PBS, asked), code, stdout, stderr) is expected, (command, stdout, stderr)
    assert len(seen) >= 6


def test_a_job_that_is_deleted_twice_is_absent_the_second_time() -> None:
    first, second = [entry for entry in recording("pbs-transcript.txt") if entry[0] == "qdel 10.vm"]
    assert judge(PBS.cancel, first[3], first[1], first[2]) is Answer.OK
    assert judge(PBS.cancel, second[3], second[1], second[2]) is Answer.ABSENT


def test_a_server_without_history_says_so_with_exit_code_0() -> None:
    (entry,) = [entry for entry in recording("pbs-transcript.txt") if entry[0] == "qstat -x 1.vm"]
    assert PBS.history is not None
    assert judge(PBS.history, entry[3], entry[1], entry[2]) is Answer.ABSENT
    skeleton = '{\n\t"timestamp":\t1795217603,\n\t"pbs_version":\t"23.06.06",\n\t"pbs_server":\t"vm"\n}\n'
    assert judge(PBS.history, 0, skeleton, entry[2]) is Answer.ABSENT


def test_a_dead_or_unreachable_server_gives_no_answer() -> None:
    programs = {"qsub": "submit", "qstat": "queue", "qdel": "cancel"}
    pattern = r"^(?:griduser)?\$ (?:PBS_\w+=\S+ )?(q\w+).*\n((?:(?!\[exit).*\n)*)\[exit (\d+)\]"
    seen = []
    for program, printed, code in re.findall(pattern, DOWN, re.MULTILINE):
        if program in programs and code != "124":
            seen.append(program)
            text = printed.replace("[stderr] ", "")
            is_not_sent = program == "qsub" and "cannot connect to server" in text
            answer = judge(getattr(PBS, programs[program]), int(code), text, "")
            assert answer is (Answer.LATER if is_not_sent else Answer.TRANSIENT), printed
    assert len(seen) == 12


def test_an_empty_server_answers_and_a_silent_one_does_not() -> None:
    skeleton = '{\n\t"timestamp":\t1795217603,\n\t"pbs_version":\t"23.06.06",\n\t"pbs_server":\t"vm"\n}\n'
    assert skeleton in DOWN
    assert judge(PBS.queue, 0, skeleton, "") is Answer.OK
    assert list(read_json_jobs(skeleton)) == []
    down = "Connection refused\nqstat: cannot connect to server vm (errno=15010)\n"
    assert judge(PBS.queue, 255, skeleton, down) is Answer.TRANSIENT
    assert judge(PBS.queue, 0, "", "") is Answer.UNKNOWN
    assert judge(PBS.queue, 0, skeleton, down) is Answer.UNKNOWN


@pytest.mark.parametrize("adapter", [PBS, TORQUE], ids=["pbs", "torque"])
@pytest.mark.parametrize(
    ("stderr", "answer"),
    [
        pytest.param("qsub: Queue is not enabled\n", Answer.LATER, id="a closed queue opens again"),
        pytest.param(
            "qsub: would exceed queue generic's per-user limit of jobs in 'Q' state\n",
            Answer.LATER,
            id="too many jobs become fewer",
        ),
        pytest.param("qsub: Array job exceeds server or queue size limit\n", Answer.PERMANENT, id="too large an array"),
        pytest.param(
            "qsub: submit error (Unknown queue MSG=cannot locate queue)\n", Answer.PERMANENT, id="Torque's words"
        ),
        pytest.param("qsub: something that nobody foresaw\n", Answer.UNKNOWN, id="anything else"),
    ],
)
def test_refusals_are_told_from_what_passes(adapter: BatchAdapter, stderr: str, answer: Answer) -> None:
    assert judge(adapter.submit, 170, "", stderr) is answer


def test_what_a_user_wrote_is_no_answer_of_the_server() -> None:
    forged = (
        '{\n\t"Jobs":\t{\n\t\t"1.vm":\t{\n\t\t\t"comment":\t"x\\nqstat: cannot connect to server vm"\n\t\t}\n\t}\n}\n'
    )
    assert judge(PBS.queue, 0, forged, "") is Answer.OK


# --- jobs


def test_a_running_job_has_its_native_state_and_name() -> None:
    assert read_named(printed_by("qstat -f -F json 46.vm")) == [Job("46.vm", "R", token="k3f9zq2m-1", owner="griduser")]


@pytest.mark.parametrize(
    ("command", "jobs"),
    [
        pytest.param("qstat -x -f -F json 45.vm", {"45.vm": ("F", 0)}, id="exit 0"),
        pytest.param("qstat -x -f -F json 46.vm", {"46.vm": ("F deleted", 271)}, id="deleted while it ran"),
        pytest.param("qstat -x -f -F json '49[9].vm'", {"49[9].vm": ("F", 137)}, id="an element that was killed"),
        pytest.param(
            "qstat -xtf -F json '49[].vm'",
            {"49[7].vm": ("F", 7), "49[8].vm": ("F", 0), "49[9].vm": ("F", 137)},
            id="an array in the history, without its parent",
        ),
        pytest.param(
            "qstat -t -f -F json '49[].vm'",
            {"49[7].vm": ("X", 7), "49[8].vm": ("R", None), "49[9].vm": ("X", 137)},
            id="an array that runs",
        ),
    ],
)
def test_recorded_jobs(command: str, jobs: Mapping[str, tuple[str, int | None]]) -> None:
    number = -1 if command == "qstat -x -f -F json 46.vm" else 0
    assert native_states(read_named(printed_by(command, number=number))) == jobs


def ended(**attributes: object) -> str:
    return json.dumps({"Jobs": {"51.vm": {"Job_Name": "k3f9zq2m-1", "job_state": "F", **attributes}}})


@pytest.mark.parametrize(
    ("attributes", "native", "code"),
    [
        # `qstat -x -f` of the jobs 47, 48, 51 and 53 in pbs-history.txt
        pytest.param({"substate": 91}, "F deleted", None, id="deleted before it ran"),
        pytest.param({"substate": 93, "Exit_status": 3}, "F", 3, id="exit 3"),
        pytest.param({"substate": 92}, "F failed", None, id="its dependency failed"),
        pytest.param({"substate": 93, "Exit_status": -29}, "F failed", None, id="walltime exceeded"),
    ],
)
def test_an_end_that_pbs_made_is_no_end_of_the_program(
    attributes: Mapping[str, object], native: str, code: int | None
) -> None:
    (job,) = read_json_jobs(ended(**attributes))
    assert (job.native_state, job.exit_code) == (native, code)
    assert PBS.states[native] is (State.DONE if native == "F" else State.FAILED)


def test_jobs_of_other_names_are_not_ours() -> None:
    printed = printed_by("qstat -f -F json ", "pbs-qstat-json.txt")
    assert [job.local_id for job in read_named(printed)] == ["3001.vm", "3002.vm", "3003.vm"]
    assert list(read_json_jobs(printed)) == []
    assert read_named(printed)[0].reason == "held (u)"


def test_broken_bytes_in_a_users_environment_do_not_break_the_answer() -> None:
    printed = printed_by("qstat -f -F json 3004.vm", "pbs-qstat-json.txt")
    assert "\N{REPLACEMENT CHARACTER}" in printed
    assert native_states(read_named(printed.replace("line1", "line\x011"))) == {"3004.vm": ("H", None)}


def test_elements_of_a_held_array_say_why_they_wait() -> None:
    held = {"Job_Name": "k3f9zq2m-1", "job_state": "H", "Hold_Types": "u", "array": "True"}
    waiting = {"Job_Name": "k3f9zq2m-1", "job_state": "Q"}
    running = {"Job_Name": "k3f9zq2m-1", "job_state": "R", "comment": "Job run at …"}
    printed = json.dumps({"Jobs": {"20[].vm": held, "20[1].vm": waiting, "20[2].vm": running}})
    assert [(job.local_id, job.reason) for job in read_json_jobs(printed)] == [
        ("20[1].vm", "held (u)"),
        ("20[2].vm", ""),
    ]


@pytest.mark.parametrize(
    "printed",
    ["Welcome to vm!\n{}", '{"Jobs": {"1.vm": {', "[]", '{"Jobs": []}', '{"Jobs": {"1.vm": 1}}'],
    ids=["a banner", "cut short", "a list", "no jobs in it", "a job that is none"],
)
def test_an_answer_that_is_no_list_of_jobs_is_garbled(printed: str) -> None:
    with pytest.raises(Garbled):
        list(read_json_jobs(printed))


# --- names


@pytest.mark.parametrize("adapter", [PBS, TORQUE], ids=["pbs", "torque"])
def test_what_qsub_prints_names_every_local_job(adapter: BatchAdapter) -> None:
    naming = adapter.naming
    assert naming.read_submitted(printed_by("qsub -N ok ok.sh"), 1) == {1: "45.vm"}
    elements = {1: "49[1].vm", 2: "49[2].vm", 3: "49[3].vm"}
    assert naming.read_submitted(printed_by("qsub -J 7-9 -N arr arr.sh"), 3) == elements
    assert naming.read_submitted("Welcome to vm!\n45.vm\n", 1) is None
    assert naming.position_of("49[3].vm.example.org") == 3
    assert naming.array_of("49[3].vm.example.org") == "49[].vm.example.org"
    assert (naming.position_of("45.vm"), naming.array_of("45.vm")) == (1, "45.vm")


# --- submission


SINGLE = Submission("k3f9zq2m-1", 1, 0, "/s/driver.sh", "/s/results")
ARRAY = Submission(
    *("k3f9zq2m-2", 200, 7, "/s/my driver.sh", "/s/results"),
    queue="short",
    project="d0",
    max_cpu_minutes=90,
    max_wall_minutes=120,
    max_memory_mb=2000,
    options=("-l", "host=n1"),
)


@pytest.mark.parametrize(
    ("adapter", "submission", "line", "stdin"),
    [
        pytest.param(
            PBS,
            SINGLE,
            "qsub -f -N k3f9zq2m-1 -m n -j oe -o /s/results/k3f9zq2m-1.1.driver -- /bin/sh /s/driver.sh 0 k3f9zq2m-1",
            "",
            id="pbs, one",
        ),
        pytest.param(
            PBS,
            ARRAY,
            "qsub -f -N k3f9zq2m-2 -m n -j oe -q short -l cput=5400 -l walltime=7200 -l mem=2000mb"
            " -o /s/results/k3f9zq2m-2.^array_index^.driver -P d0 -J 1-200 -l host=n1"
            " -- /bin/sh /s/my|driver.sh 7 k3f9zq2m-2",
            "",
            id="pbs, an array with everything",
        ),
        pytest.param(
            TORQUE,
            SINGLE,
            "qsub -N k3f9zq2m-1 -m n -j oe -o /s/results/k3f9zq2m-1.1.driver",
            "exec /bin/sh /s/driver.sh 0 k3f9zq2m-1\n",
            id="torque, one",
        ),
        pytest.param(
            TORQUE,
            ARRAY,
            "qsub -N k3f9zq2m-2 -m n -j oe -q short -l cput=5400 -l walltime=7200 -l mem=2000mb"
            " -o /s/results/k3f9zq2m-2.driver -A d0 -t 1-200 -l host=n1",
            "exec /bin/sh '/s/my driver.sh' 7 k3f9zq2m-2\n",
            id="torque, an array with everything",
        ),
    ],
)
def test_submission(adapter: BatchAdapter, submission: Submission, line: str, stdin: str) -> None:
    argv = [word.replace("|", " ") for word in line.split(" ")]
    assert render_argv(adapter.submit, asdict(submission)) == argv
    assert render_text(adapter.submit.stdin, asdict(submission)) == stdin


def test_ids_are_deleted_one_by_one() -> None:
    assert PBS.cancel_at_once == TORQUE.cancel_at_once == 1
    assert render_argv(PBS.cancel, {"ids": ["49[].vm"]}) == ["qdel", "49[].vm"]


# --- states


def test_every_state_of_the_manual_is_known() -> None:
    # qstat(1B) of OpenPBS, "Job Status in Default Format", column S
    assert set(PBS.states) >= set("BEFHMQRSTUWX")
    # qstat(1B) of Torque 6, "STANDARD OUTPUT"
    assert set(TORQUE.states) >= set("CEHQRTWS")
    assert {native[0] for native in TORQUE.states} == set("CEHQRTWS")


# --- Torque, by its source


def test_torques_xml() -> None:
    printed = (RECORDED / "torque" / "qstat.xml").read_text()
    jobs = list(read_xml_jobs(printed))
    assert native_states(jobs) == {
        "12.head": ("R", None),
        "13[1].head": ("C", 0),
        "13[2].head": ("C", 3),
        "13[3].head": ("E", None),
        "13[4].head": ("H", None),
        "14.head": ("C failed", None),
        "15.head": ("C failed", None),
        "17.head": ("C", 271),
    }
    assert [job.token for job in jobs][:5] == ["k3f9zq2m-1", *["k3f9zq2m-2"] * 4]
    assert jobs[4].reason == "held (u): held by its user"
    assert judge(TORQUE.queue, 0, printed, "") is Answer.OK


@pytest.mark.parametrize("printed", ["", (RECORDED / "torque" / "empty.xml").read_text()], ids=["older", "later"])
def test_a_torque_without_jobs(printed: str) -> None:
    assert judge(TORQUE.queue, 0, printed, "") is Answer.OK
    assert list(read_xml_jobs(printed)) == []


@pytest.mark.parametrize("printed", ["<Data><Job>", "<html/>"], ids=["cut short", "something else"])
def test_xml_that_is_no_list_of_jobs_is_garbled(printed: str) -> None:
    with pytest.raises(Garbled):
        list(read_xml_jobs(printed))


# --- slurm-wlm-torque, an override in a site's configuration


@pytest.fixture(scope="module")
def wrappers() -> BatchAdapter:
    return find_adapter("torque", tomllib.loads(OVERRIDE.read_text())["batch"])


def asked_of(command: str) -> str:
    program, *arguments = command.split()
    return {"qsub": "submit", "qdel": "cancel", "qstat": "status" if arguments else "queue"}.get(program, "")


WRAPPER_ANSWERS = {
    "qsub -o /dev/null -j oe s.sh": Answer.OK,
    "qsub -q nosuch s.sh": Answer.PERMANENT,
    "qsub -bogus s.sh": Answer.PERMANENT,
    "qstat 1533": Answer.OK,
    "qstat 999999": Answer.ABSENT,
    "qdel 999999": Answer.ABSENT,
    "qdel 8": Answer.PERMANENT,
    "qdel 1": Answer.TRANSIENT,
    "qsub s.sh": Answer.TRANSIENT,
    "qstat 1": Answer.TRANSIENT,
}


def test_what_the_wrappers_answered_is_understood(wrappers: BatchAdapter) -> None:
    entries = wrapper_recording("torque-scenarios.txt") + wrapper_recording("slurm-wlm-torque.txt")
    seen = set()
    for command, stdout, stderr, code in entries:
        if command in WRAPPER_ANSWERS:
            seen.add(command)
            answer = judge(getattr(wrappers, asked_of(command)), code, stdout, stderr)
            assert answer is WRAPPER_ANSWERS[command], (command, stdout, stderr)
        if asked_of(command) and re.search("Socket timed out|Unable to contact|Problem loading", stdout + stderr):
            answer = judge(getattr(wrappers, asked_of(command)), code, stdout, stderr)
            assert answer is Answer.TRANSIENT, (command, stdout, stderr)
    assert seen == set(WRAPPER_ANSWERS)


def test_the_wrappers_queue(wrappers: BatchAdapter) -> None:
    queues = [entry for entry in wrapper_recording("slurm-wlm-torque.txt") if entry[0] == "qstat"]
    answers = [judge(wrappers.queue, code, stdout, stderr) for _, stdout, stderr, code in queues]
    assert answers == [Answer.OK, Answer.TRANSIENT, Answer.OK, Answer.TRANSIENT, Answer.ABSENT]
    jobs = {job.local_id: (job.token, job.native_state) for job in wrappers.read_jobs(queues[2][1])}
    assert jobs["7"] == ("k3f9zq2m-7", "C")
    # Its submission had timed out.
    assert jobs["8"] == ("k3f9zq2m-8", "R")
    (others,) = [entry for entry in wrapper_recording("torque-scenarios.txt") if entry[0] == "qstat 1542 999999"]
    assert list(wrappers.read_jobs(others[1])) == []
    assert {native for _, native in jobs.values()} | {"Q", "S", "U"} <= set(wrappers.states)


def test_the_wrappers_submit_single_jobs(wrappers: BatchAdapter) -> None:
    assert wrappers.max_array == 1
    assert wrappers.naming.read_submitted("1533\n", 1) == {1: "1533"}
    assert (wrappers.naming.position_of("1533"), wrappers.naming.array_of("1533")) == (1, "1533")
    line = "qsub -N k3f9zq2m-1 -o /s/results/k3f9zq2m-1.1.driver -j oe -v HOME -l nodes=1 /s/driver.sh 0 k3f9zq2m-1"
    assert render_argv(wrappers.submit, asdict(SINGLE)) == line.split(" ")


# --- doctor


def diagnose(adapter: BatchAdapter, settings: str) -> list[tuple[Level, str]]:
    lines = "".join(f"    {line}\n" for line in settings.splitlines())
    printed = Printed(0, f"Server: vm\n    server_state = Active\n{lines}", "")
    return [(finding.level, finding.remedy) for finding in adapter.diagnose(lambda _: printed, {})]


GOOD = (Level.GOOD, "")


@pytest.mark.parametrize(
    ("adapter", "settings", "findings"),
    [
        pytest.param(
            PBS,
            "log_events = 511\njob_history_enable = True\njob_history_duration = 336:00:00\nnode_fail_requeue = 310",
            [GOOD, GOOD, GOOD],
            id="pbs, all is well",
        ),
        pytest.param(
            PBS,
            "log_events = 503",
            [
                (Level.FAULT, 'qmgr -c "set server log_events = 511"'),
                (Level.WARNING, 'qmgr -c "set server job_history_enable = True"'),
            ],
            id="pbs, neither log nor history",
        ),
        pytest.param(
            PBS,
            "log_events = 26\njob_history_enable = True\njob_history_duration = 00:05:00",
            [GOOD, (Level.WARNING, 'qmgr -c "set server job_history_duration = 24:00:00"')],
            id="pbs, a short history",
        ),
        pytest.param(TORQUE, "log_events = 511\nkeep_completed = 3600", [GOOD, GOOD], id="torque, all is well"),
        pytest.param(
            TORQUE,
            "log_events = 511",
            [GOOD, (Level.WARNING, 'qmgr -c "set server keep_completed = 3600"')],
            id="torque, ended jobs are gone at once",
        ),
    ],
)
def test_the_doctor(adapter: BatchAdapter, settings: str, findings: list[tuple[Level, str]]) -> None:
    assert diagnose(adapter, settings) == findings


@pytest.mark.parametrize("adapter", [PBS, TORQUE], ids=["pbs", "torque"])
def test_the_doctor_has_no_findings_of_a_server_that_is_down(adapter: BatchAdapter) -> None:
    assert list(adapter.diagnose(lambda _: Printed(255, "", "qstat: cannot connect to server vm\n"), {})) == []
