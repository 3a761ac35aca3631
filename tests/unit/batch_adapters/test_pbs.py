"""The adapters pbs and torque on what real commands printed; Torque by its source; Slurm's wrappers, too."""

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from batch_adapters.adapter import Answer, BatchAdapter, Command, Garbled, Job, Submission
from batch_adapters.naming import TOKEN
from batch_adapters.pbs import PBS, TORQUE
from batch_adapters.pbs.answers import read_json_jobs, read_xml_jobs
from batch_adapters.running.batch_system import BatchSystem
from batch_adapters.running.commands import judge_answer, render_argv
from batch_adapters.running.diagnosis import Level, Printed
from batch_adapters.running.rate_limiter import RateLimiter
from batch_adapters.site_adapter import find_adapter
from batch_adapters.states import State
from tests.unit.batch_adapters.recordings import RECORDED, Recording, by_scene, judge, read_recordings

OVERRIDE = Path(__file__).parents[2] / "integration" / "systems" / "pbs.toml"


def printed_by(command: str, name: str = "pbs-history.txt", number: int = 0) -> str:
    return [entry.stdout for entry in read_recordings("pbs", name) if entry.command == command][number]


def native_states(jobs: Sequence[Job]) -> dict[str, tuple[str, int | None]]:
    return {job.local_id: (job.native_state, job.exit_code) for job in jobs}


def read_named(printed: str) -> list[Job]:
    """The jobs of a recording, whose people gave them other names than we do."""
    return list(read_json_jobs(re.sub(r'("Job_Name":\t)"\w+"', r'\1"k3f9zq2m-1"', printed)))


# --- what the commands' answers mean


PBS_ANSWERS = {
    # command → by what is asked, what its recorded answers mean: always, or each in turn
    "qsub -N ok ok.sh": "submit: ok",
    "qsub -J 7-9 -N arr arr.sh": "submit: ok",
    "qsub -q nosuchq ok.sh": "submit: permanent",
    "qsub -l nosuchres=5 ok.sh": "submit: permanent",
    "qsub -Z ok.sh": "submit: permanent",
    "qsub -N 'a;b' ok.sh": "submit: permanent",
    "qsub /home/griduser/pbswork/ok.sh": "submit: permanent",
    "qstat -f -F json 46.vm": "queue: ok",
    "qstat -f -F json 45.vm": "status: absent",
    "qstat 45.vm": "status: absent",
    "qstat -x -f -F json 46.vm": "history: ok",
    # A server without history says so with exit code 0.
    "qstat -x 1.vm": "history: permanent",
    "qstat 999999": "status: absent",
    "qstat 1.otherserver": "status: unknown",
    "qdel 46.vm": "cancel: ok",
    "qdel 45.vm": "cancel: absent",
    "qdel 10.vm": "cancel: ok absent",
    "qdel 54.vm 999999": "cancel: ok",
    # The server had crashed.
    "qdel 999999": "cancel: transient",
    "qdel bogus": "cancel: unknown",
}
OPENPBS = read_recordings("pbs", "pbs-transcript.txt") + read_recordings("pbs", "pbs-history.txt")


@pytest.mark.parametrize("command", PBS_ANSWERS)
def test_what_a_real_openpbs_answered_is_understood(command: str) -> None:
    asked, _, words = PBS_ANSWERS[command].partition(": ")
    found = [entry.judge(getattr(PBS, asked)).value for entry in OPENPBS if entry.command == command]
    assert found == (words.split() if " " in words else [words] * len(found))
    assert found


def test_a_server_without_history_refuses_to_tell_of_ended_jobs() -> None:
    (entry,) = (entry for entry in OPENPBS if entry.command == "qstat -x 1.vm")
    skeleton = '{\n\t"timestamp":\t1795217603,\n\t"pbs_version":\t"23.06.06",\n\t"pbs_server":\t"vm"\n}\n'
    assert judge(PBS.history, 0, skeleton, entry.stderr) is Answer.PERMANENT
    assert list(read_json_jobs(skeleton)) == []


def test_a_dead_or_unreachable_server_gives_no_answer() -> None:
    programs = {"qsub": PBS.submit, "qstat": PBS.queue, "qdel": PBS.cancel}
    judged = 0
    for entry in read_recordings("pbs", "pbs-serverdown.txt"):
        program = re.sub(r"^PBS_\w+=\S+ ", "", entry.command).split()[0]
        if program in programs and entry.exit_code != 124:
            is_not_sent = program == "qsub" and "cannot connect to server" in entry.stderr
            assert entry.judge(programs[program]) is (Answer.LATER if is_not_sent else Answer.TRANSIENT), entry
            judged += 1
    assert judged == 12


@pytest.mark.parametrize("entry", read_recordings("pbs", "pbs-refusals.txt"), ids=lambda entry: entry.scene)
def test_a_hook_may_let_it_pass_later_and_a_refusal_is_for_good(entry: Recording) -> None:
    is_hook = entry.scene.startswith("a hook")
    assert entry.judge(PBS.submit) is (Answer.LATER if is_hook else Answer.PERMANENT)
    assert entry.judge(TORQUE.submit) is (Answer.UNKNOWN if is_hook else Answer.PERMANENT), "it has no such hooks"


@pytest.mark.parametrize("entry", read_recordings("pbs", "pbs-limits.txt"), ids=lambda entry: entry.scene)
def test_a_part_of_an_array_that_is_too_large_may_be_taken(entry: Recording) -> None:
    assert entry.judge(PBS.submit) is Answer.TOO_MANY


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


@pytest.mark.parametrize(
    ("attributes", "native", "code"),
    [
        # `qstat -x -f` of the jobs 47, 48 and 53 in pbs-history.txt
        pytest.param({"substate": 91}, "F deleted", None, id="deleted before it ran"),
        pytest.param({"substate": 93, "Exit_status": 3}, "F", 3, id="exit 3"),
        pytest.param({"substate": 92}, "F failed", None, id="given up by the server"),
        pytest.param({"substate": 93, "Exit_status": -29}, "F failed", None, id="walltime exceeded"),
    ],
)
def test_an_end_that_pbs_made_is_no_end_of_the_program(
    attributes: Mapping[str, object], native: str, code: int | None
) -> None:
    ended = {"Job_Name": "k3f9zq2m-1", "job_state": "F", **attributes}
    (job,) = read_json_jobs(json.dumps({"Jobs": {"51.vm": ended}}))
    assert (job.native_state, job.exit_code) == (native, code)
    assert PBS.states[native] is (State.DONE if native == "F" else State.FAILED)


def test_an_element_that_never_started_does_not_end_as_its_array_did() -> None:
    printed = (RECORDED / "pbs" / "pbs-qstat-x-history-on.json").read_text()
    never = json.loads(printed, strict=False)["Jobs"]["41[36].pbs1"]
    assert (never["job_state"], never["Exit_status"], never["substate"], "stime" in never) == ("F", 1, 91, True)
    jobs = {job.local_id: job for job in read_json_jobs(printed)}
    assert (jobs["41[36].pbs1"].native_state, jobs["41[36].pbs1"].exit_code) == ("F without a start", None)
    assert PBS.states["F without a start"] is PBS.states["X without a start"] is State.FAILED
    assert native_states(list(jobs.values())) == {
        "0.pbs1": ("F", 0),
        "1022.pbs1": ("R", None),
        "13[1].pbs1": ("F deleted", 143),
        "16[1].pbs1": ("F failed", None),
        "3[1].pbs1": ("F", 3),
        "4[1].pbs1": ("F", 137),
        "41[14].pbs1": ("F deleted", 0),
        "41[31].pbs1": ("F", 143),
        "41[36].pbs1": ("F without a start", None),
        "5[1].pbs1": ("F", 139),
    }


def test_what_became_of_an_array_is_not_told_of_an_element_that_never_started() -> None:
    printed = (RECORDED / "pbs" / "pbs-qstat-x-waiting-deleted.json").read_text()
    assert [(job.local_id, job.native_state, job.reason) for job in read_json_jobs(printed)] == [
        ("46[1].pbsnode", "F", "Job run at Thu Nov 26 at 05:12 on (pbsnode:ncpus=1) and finished"),
        ("46[2].pbsnode", "F without a start", ""),
    ]


@pytest.mark.parametrize("letter", ["X", "F"])
@pytest.mark.parametrize("substate", [91, 92, 93])
@pytest.mark.parametrize("exit_status", [0, 1, -29])
def test_nothing_that_an_element_has_of_its_array_is_its_own_end(letter: str, substate: int, exit_status: int) -> None:
    of_array = {"Job_Name": "k3f9zq2m-1", "substate": substate, "Exit_status": exit_status, "stime": "Sun Nov 22"}
    waiting = {**of_array, "job_state": "Q", "comment": "not yet"}
    ended = {**of_array, "job_state": letter, "comment": "Subjob finished"}
    first, second = read_json_jobs(json.dumps({"Jobs": {"41[1].vm": waiting, "41[2].vm": ended}}))
    assert (first.native_state, first.reason) == ("Q", "not yet")
    assert (second.native_state, second.exit_code) == (f"{letter} without a start", None)


def test_jobs_of_other_names_keep_them() -> None:
    printed = printed_by("qstat -f -F json ", "pbs-qstat-json.txt")
    assert [job.local_id for job in read_named(printed)] == ["3001.vm", "3002.vm", "3003.vm"]
    assert not any(TOKEN.fullmatch(job.token) for job in read_json_jobs(printed))
    assert read_named(printed)[0].reason == "held (u)"


def test_what_was_renamed_has_the_name_that_it_was_submitted_with() -> None:
    printed = (RECORDED / "pbs" / "pbs-qstat-renamed.json").read_text()
    assert printed.count('"Job_Name":"site_mofp426z-"') == 4
    assert {(job.local_id, job.token) for job in read_json_jobs(printed)} == {
        (f"31[{n}].pbsx", "mofp426z-1") for n in (1, 2, 3)
    }


def test_broken_bytes_in_a_users_environment_do_not_break_the_answer() -> None:
    printed = printed_by("qstat -f -F json 3004.vm", "pbs-qstat-json.txt")
    assert "\N{REPLACEMENT CHARACTER}" in printed
    assert native_states(read_named(printed.replace("line1", "line\x011"))) == {"3004.vm": ("H", None)}


@pytest.mark.parametrize(
    ("scene", "reasons"),
    [
        (
            "a waiting array is held",
            {f"31[{n}].vm": "held (u): Job held by griduser on Mon Nov 23 09:19:53 2026" for n in (1, 2, 3)},
        ),
        (
            "an array is held that runs in part",
            {"32[1].vm": "", "32[12].vm": "held (u): Job held by griduser on Mon Nov 23 09:20:06 2026"},
        ),
        (
            "one of it is suspended",
            {"32[1].vm": "", "32[2].vm": "", "32[12].vm": "held (u): Job held by griduser on Mon Nov 23 09:20:06 2026"},
        ),
        ("waits for another", {"36.vm": "held (s)"}),
        ("waits for a time", {"34.vm": ""}),
        (
            "can never run",
            {"35.vm": "Can Never Run: Insufficient amount of resource: ncpus (R: 4000 A: 400 T: 400)"},
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_held_or_blocked_says_why(scene: str, reasons: dict[str, str]) -> None:
    recorded = by_scene(read_recordings("pbs", "pbs-blocked.txt"))[scene]
    assert {job.local_id: job.reason for job in read_json_jobs(recorded.stdout)} == reasons


@pytest.mark.parametrize("comment", ["Job Array Began at Mon Nov 23 at 09:23", "Subjob finished"])
def test_what_became_of_other_elements_is_no_reason_why_one_waits(comment: str) -> None:
    array = {"Job_Name": "k3f9zq2m-1", "job_state": "B", "comment": comment}
    waiting = {"Job_Name": "k3f9zq2m-1", "job_state": "Q"}
    again = {**waiting, "comment": "Job run at Mon Nov 23 at 09:23 on (vm:ncpus=1)", "run_count": 1}
    printed = json.dumps({"Jobs": {"40[].vm": array, "40[1].vm": waiting, "40[2].vm": again}})
    assert [job.reason for job in read_json_jobs(printed)] == ["", ""]


def test_what_an_element_does_not_say_its_array_may() -> None:
    held = {"Job_Name": "k3f9zq2m-1", "job_state": "H", "Hold_Types": "u", "array": "True"}
    waiting = {"Job_Name": "k3f9zq2m-1", "job_state": "Q"}
    printed = json.dumps({"Jobs": {"20[].vm": held, "20[1].vm": waiting}})
    assert [job.reason for job in read_json_jobs(printed)] == ["held (u)"]


# --- submission


SINGLE = Submission("k3f9zq2m-1", 1, "/s/driver.sh", "/s/results")


@pytest.mark.parametrize(
    ("command", "listed", "asked"),
    [
        (PBS.queue, "qselect -u ann", "qstat -E -t -f -F json 49[].vm 50.vm"),
        (PBS.find, "qselect -u ann -N t-1", "qstat -E -t -f -F json 49[].vm 50.vm"),
        (PBS.history, "qselect -x -u ann -N t-1", "qstat -E -x -t -f -F json 49[].vm 50.vm"),
    ],
    ids=["queue", "find", "history"],
)
def test_only_what_is_ours_is_asked_for(command: Command, listed: str, asked: str) -> None:
    assert command.listing is not None
    variables = {"user": "ann", "token": "t-1", "ids": ["49[].vm", "50.vm"]}
    assert render_argv(replace(command, argv=command.listing.argv), variables) == listed.split()
    assert render_argv(command, variables) == asked.split()


NO_HISTORY = "qselect: PBS is not configured to maintain job history\n"


@pytest.mark.parametrize(
    ("exit_code", "printed", "answer"),
    [
        (0, "", Answer.OK),
        (0, "49[].vm\n", Answer.OK),
        (0, NO_HISTORY, Answer.PERMANENT),
        (0, "qselect: something new\n", Answer.UNKNOWN),
        (162, "Connection refused\nqselect: cannot connect to server vm (errno=15010)\n", Answer.TRANSIENT),
        (1, "", Answer.UNKNOWN),
    ],
)
def test_what_a_list_of_ids_means(exit_code: int, printed: str, answer: Answer) -> None:
    assert PBS.history is not None
    assert PBS.history.listing is not None
    assert judge(replace(PBS.history, outcomes=PBS.history.listing.outcomes), exit_code, printed) is answer


SOME = '{\n\t"timestamp":\t1,\n\t"Jobs":\t{\n\t\t"50.vm":\t{\n\t\t}\n\t}\n}\n'
GONE = "qstat: Unknown Job Id 49[].vm\n"


@pytest.mark.parametrize(
    ("exit_code", "printed", "answer"),
    [
        (0, SOME, Answer.OK),
        (153, SOME + GONE, Answer.OK),
        (153, '{\n\t"timestamp":\t1\n}\n' + GONE, Answer.ABSENT),
        (
            35,
            "{\n}\nqstat: 49[].vm Job has finished, use -x or -H to obtain historical job information\n",
            Answer.ABSENT,
        ),
        (255, SOME + GONE + "qstat: cannot connect to server vm (errno=15010)\n", Answer.ABSENT),
        (255, SOME + "qstat: cannot connect to server vm (errno=15010)\n", Answer.TRANSIENT),
        (1, SOME[:-4], Answer.UNKNOWN),
    ],
)
def test_what_an_answer_about_several_ids_means(exit_code: int, printed: str, answer: Answer) -> None:
    assert judge(PBS.queue, exit_code, printed) is answer


@pytest.mark.parametrize(("adapter", "printed"), [(PBS, SOME), (TORQUE, "<Data></Data>\n")], ids=["pbs", "torque"])
def test_complaints_are_matched_in_one_way_only(adapter: BatchAdapter, printed: str) -> None:
    # In two ways each, they would take 2**200 steps.
    twice = "qstat: Unknown Job Id Unknown Job Id\n" * 200
    assert judge(adapter.queue, 153, printed + twice) is Answer.OK
    assert judge(adapter.queue, 153, f"{printed}{twice}and nothing more\n") is Answer.ABSENT


def test_json_may_end_without_a_line_break_before_a_complaint() -> None:
    # As one build of OpenPBS 23.06.06 prints it.
    finished = "qstat: 10[2].pbsx Job has finished, use -x or -H to obtain historical job information\n"
    nothing = '{\n    "timestamp":1795709776,\n    "pbs_version":"23.06.06",\n    "pbs_server":"pbsx"\n}'
    assert judge_answer(PBS.status, ["qstat"], 35, nothing, finished) == ""
    some = '{\n    "timestamp":1,\n    "Jobs":{\n        "9.pbsx":{\n        }\n    }\n}'
    assert judge_answer(PBS.queue, ["qstat"], 35, some, finished) == some


@pytest.mark.parametrize("program", ["qhold", "qrls"])
def test_a_part_of_an_array_that_runs_in_part_is_refused(program: str) -> None:
    command = PBS.hold if program == "qhold" else PBS.release
    assert judge(command, 156, "", f"{program}: Invalid request 49[3].vm\n") is Answer.PERMANENT
    assert judge(command, 153, "", f"{program}: Unknown Job Id 49[].vm\n") is Answer.OK


def test_ids_are_deleted_one_by_one() -> None:
    assert PBS.cancel_at_once == TORQUE.cancel_at_once == 1
    assert render_argv(PBS.cancel, {"ids": ["49[].vm"]}) == ["qdel", "49[].vm"]


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
        "16.head": ("R", None),
        "17.head": ("C", 271),
    }
    assert [job.token for job in jobs][:5] == ["k3f9zq2m-1", *["k3f9zq2m-2"] * 4]
    assert jobs[4].reason == "held (u): held by its user"
    assert judge(TORQUE.queue, 0, printed, "") is Answer.OK


def test_a_torque_without_jobs() -> None:
    printed = (RECORDED / "torque" / "empty.xml").read_text()
    assert judge(TORQUE.queue, 0, printed, "") is Answer.OK
    assert list(read_xml_jobs(printed)) == list(read_xml_jobs("")) == []


def test_torque_answers_of_each_id_by_itself() -> None:
    printed = (RECORDED / "torque" / "qstat.xml").read_text()
    assert list(read_xml_jobs(f"{printed}\n{printed.replace('12.head', '99.head')}"))[-1].local_id == "99.head"
    with pytest.raises(Garbled):
        list(read_xml_jobs(f"{printed}<html/>"))


def test_torque_is_asked_about_whole_arrays_of_ours_only(tmp_path: Path) -> None:
    element = "<Job><Job_Id>13[%d].head</Job_Id><Job_Name>k3f9zq2m-2-%d</Job_Name><job_state>R</job_state></Job>"
    printed = "".join(f"<Data>{element % (n, n)}</Data>" for n in (1, 2))
    for name, script in (
        ("qselect", "printf '%s\\n' '13[1].head' '13[2].head' 14.head"),
        ("qstat", f"echo '{printed}'; echo 'qstat: Unknown Job Id Error 14.head' >&2; exit 153"),
    ):
        (tmp_path / name).write_text(f'#!/bin/sh\necho "${{0##*/}} $*" >>{tmp_path}/calls\n{script}\n')
        (tmp_path / name).chmod(0o700)
    queue = TORQUE.queue
    assert queue.listing is not None
    own = replace(queue.listing, argv=(str(tmp_path / "qselect"), *queue.listing.argv[1:]))
    adapter = replace(TORQUE, queue=replace(queue, argv=(str(tmp_path / "qstat"), *queue.argv[1:]), listing=own))
    found = BatchSystem(adapter, {"user": "griduser"}, RateLimiter(tmp_path / "limiter", 0)).query()
    assert {status.local_id for status in found} == {"13[1].head", "13[2].head"}
    calls = (tmp_path / "calls").read_text().splitlines()
    assert calls[:2] == ["qselect -u griduser", "qstat -t -f -x 13[].head 14.head"]
    assert calls[2:] == ["qstat -t -f -x 14.head"]


# --- slurm-wlm-torque, an override in a site's configuration


@pytest.fixture(scope="module")
def wrappers() -> BatchAdapter:
    return find_adapter("torque", tomllib.loads(OVERRIDE.read_text())["batch"])


def asked_of(command: str) -> str:
    program, *arguments = command.split()
    return {"qsub": "submit", "qdel": "cancel", "qstat": "status" if arguments else "queue"}.get(program, "")


WRAPPERS = read_recordings("pbs", "torque-scenarios.txt") + read_recordings("pbs", "slurm-wlm-torque.txt")
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
    seen = set()
    for entry in WRAPPERS:
        command = entry.command.removeprefix("runuser -u griduser -- ")
        is_down = re.search("Socket timed out|Unable to contact|Problem loading", entry.stdout + entry.stderr)
        expected = WRAPPER_ANSWERS.get(command, Answer.TRANSIENT if is_down else None)
        if asked_of(command) and expected:
            seen.add(command)
            assert entry.judge(getattr(wrappers, asked_of(command))) is expected, entry
    assert seen > set(WRAPPER_ANSWERS)


def test_the_wrappers_queue(wrappers: BatchAdapter) -> None:
    queues = [entry for entry in read_recordings("pbs", "slurm-wlm-torque.txt") if entry.command.split()[-1] == "qstat"]
    answers = [entry.judge(wrappers.queue) for entry in queues]
    assert answers == [Answer.OK, Answer.TRANSIENT, Answer.OK, Answer.TRANSIENT, Answer.ABSENT]
    jobs = {job.local_id: (job.token, job.native_state) for job in wrappers.read_jobs(queues[2].stdout)}
    assert jobs["7"] == ("k3f9zq2m-7", "C")
    # Its submission had timed out.
    assert jobs["8"] == ("k3f9zq2m-8", "R")
    (others,) = (entry for entry in WRAPPERS if entry.command == "qstat 1542 999999")
    assert list(wrappers.read_jobs(others.stdout)) == []
    assert {native for _, native in jobs.values()} | {"Q", "S", "U"} <= set(wrappers.states)


def test_the_wrappers_submit_single_jobs(wrappers: BatchAdapter) -> None:
    assert wrappers.max_array == 1
    assert wrappers.naming.read_submitted("1533\n", 1) == {1: "1533"}
    assert (wrappers.naming.position_of("1533"), wrappers.naming.array_of("1533")) == (1, "1533")
    line = "qsub -N k3f9zq2m-1 -o /s/results/k3f9zq2m-1.1.driver -j oe -v HOME -l nodes=1 /s/driver.sh k3f9zq2m-1"
    submission = Submission("k3f9zq2m-1", 1, "/s/driver.sh", "/s/results")
    assert render_argv(wrappers.submit, asdict(submission)) == line.split(" ")


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
        pytest.param(
            PBS,
            "log_events = 511\njob_history_enable = True\nscheduling = False",
            [GOOD, GOOD, (Level.FAULT, 'qmgr -c "set server scheduling = True"')],
            id="pbs, nothing is started",
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


@pytest.mark.parametrize(
    ("switches", "remedies"),
    [
        pytest.param("True True", [], id="open"),
        pytest.param("False True", ['qmgr -c "set queue workq enabled = True"'], id="takes none"),
        pytest.param("True False", ['qmgr -c "set queue workq started = True"'], id="starts none"),
    ],
)
def test_the_doctor_looks_at_the_default_queue(switches: str, remedies: list[str]) -> None:
    enabled, started = switches.split()
    answers = {
        ("qstat", "-f", "-B"): "Server: vm\n    default_queue = workq\n",
        ("qmgr", "-c", "list sched"): "",
        ("qstat", "-f", "-Q", "workq"): f"Queue: workq\n    enabled = {enabled}\n    started = {started}\n",
    }
    findings = PBS.diagnose(lambda argv: Printed(0, answers[tuple(argv)], ""), {})
    assert [found.remedy for found in findings if "queue" in found.text] == remedies


def test_the_doctor_names_a_scheduler_that_does_not_run() -> None:
    runs, is_dead = read_recordings("pbs", "pbs-schedulers.txt")

    def find_dead(schedulers: str) -> list[str]:
        answers: dict[tuple[str, ...], str] = {
            ("qstat", "-f", "-B"): "Server: vm\n    scheduling = True\n",
            ("qmgr", "-c", "list sched"): schedulers,
        }
        findings = PBS.diagnose(lambda argv: Printed(0, answers[tuple(argv)], ""), {})
        return [found.text for found in findings if "scheduler" in found.text]

    dead = "its scheduler default does not run, so jobs wait"
    assert (find_dead(runs.stdout), find_dead(is_dead.stdout)) == ([], [dead])
    assert find_dead(runs.stdout + is_dead.stdout) == [dead]


@pytest.mark.parametrize("adapter", [PBS, TORQUE], ids=["pbs", "torque"])
def test_the_doctor_has_no_findings_of_a_server_that_is_down(adapter: BatchAdapter) -> None:
    assert list(adapter.diagnose(lambda _: Printed(255, "", "qstat: cannot connect to server vm\n"), {})) == []
