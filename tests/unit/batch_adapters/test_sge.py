"""The batch adapter of Grid Engine, on what its commands (8.1.9) really printed."""

import os
import re
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import pytest

from batch_adapters.adapter import Answer, Garbled, Job, Submission
from batch_adapters.running.batch_system import read_answer
from batch_adapters.running.commands import render_argv
from batch_adapters.running.diagnosis import PARALLEL_ENVIRONMENT, Finding, Level, Printed
from batch_adapters.sge import SGE, events
from batch_adapters.sge.answers import GOES_ON, diagnose, order_letters, read_history, read_queue
from batch_adapters.states import State
from tests.unit.batch_adapters.recordings import RECORDED, by_scene, judge, read_recordings
from tests.waiting import SECONDS

RECORDINGS = by_scene(read_recordings("sge", "sge-commands.txt"))


def test_a_torn_queue_is_never_a_good_answer() -> None:
    printed = RECORDINGS["queue"].stdout
    for end in range(len(printed.rstrip())):
        if judge(SGE.queue, 0, printed[:end]) is not Answer.UNKNOWN:
            with pytest.raises(Garbled):
                read_answer(read_queue, printed[:end])


SUBMISSION = Submission(
    token="k3f9zq2m-1",
    count=200,
    driver="/home/d0/.samgrid/jobs/k3f9zq2m/sandbox/driver.sh",
    results="/home/d0/.samgrid/jobs/k3f9zq2m/results",
)


def render(**changes: object) -> list[str]:
    return render_argv(SGE.submit, {**asdict(SUBMISSION), **changes})


@pytest.mark.parametrize("character", [":", ",", "$"])
def test_a_folder_that_qsub_cannot_spell_gets_no_output_of_the_driver(character: str) -> None:
    argv = render(results=f"/home/d0{character}x/results")
    assert argv[argv.index("-o") + 1] == "/dev/null"


@pytest.mark.parametrize(("code", "seen"), [(0, 0), (3, 3), (98, 98), (99, 98), (100, 98), (101, 101), (125, 125)])
def test_no_program_can_have_its_job_run_again_by_an_exit_code(tmp_path: Path, code: int, seen: int) -> None:
    driver = tmp_path / "driver.sh"
    driver.write_text(f'[ "$*" = k3f9zq2m-1 ] && exit {code}\n')
    argv = render(driver=str(driver))
    assert subprocess.run(argv[argv.index("/bin/sh") :], check=False).returncode == seen


@pytest.mark.parametrize("number", [signal.SIGXCPU, signal.SIGUSR1, signal.SIGUSR2], ids=lambda number: number.name)
def test_a_signal_to_all_of_a_job_leaves_the_driver_the_last_word(tmp_path: Path, number: signal.Signals) -> None:
    driver = tmp_path / "driver.sh"
    name = number.name.removeprefix("SIG")
    driver.write_text(f"trap 'echo caught; exit 5' {name}\necho ready\nwhile :; do sleep 0.05; done\n")
    argv = render(driver=str(driver))
    with subprocess.Popen(
        argv[argv.index("/bin/sh") :], stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as job:
        assert job.stdout is not None
        assert job.stdout.readline() == "ready\n"
        os.killpg(job.pid, number)
        assert job.stdout.read() == "caught\n"
        assert job.wait(SECONDS) == 5


def test_the_ids_of_submission_queue_history_and_event_log_are_the_same() -> None:
    submitted = SGE.naming.read_submitted(RECORDINGS["submit an array"].stdout, 4)
    assert submitted is not None
    queued = {job.local_id for job in read_queue(RECORDINGS["queue"].stdout) if job.token == "array-1"}
    ended = {job.local_id for job in read_history(RECORDINGS["history of an array that was deleted"].stdout)}
    assert queued == ended == set(submitted.values())
    assert events._render_id(b"2", b"4").decode() == submitted[4]


def read_states(title: str) -> dict[str, str]:
    return {job.local_id: job.native_state for job in read_queue(RECORDINGS[title].stdout)}


QUEUES = {
    "an empty queue": {},
    "queue": {
        **{"2.1": "dr", "2.2": "r", "2.3": "r", "2.4": "r"},
        **dict.fromkeys(("3.1", "3.5", "3.6", "3.8", "3.10", "3.11", "3.12"), "hqw"),
    },
    "queue with steps": {"17.1": "qw", **dict.fromkeys(("18.1", "18.3", "18.5", "18.7", "18.9", "18.11"), "hqw")},
    "queue with suspended jobs in a suspended queue": {
        **{"17.1": "qw", "22.1": "Rq", "22.2": "hsS"},
        **dict.fromkeys(("18.1", "18.3", "18.5", "18.7", "18.9", "18.11"), "hqw"),
    },
}


@pytest.mark.parametrize(("title", "states"), QUEUES.items(), ids=QUEUES)
def test_a_recorded_queue_gives_every_task(title: str, states: dict[str, str]) -> None:
    found = read_states(title)
    # Tasks 2 and 3 were just starting or had just ended.
    assert {local_id: state for local_id, state in found.items() if local_id not in ("3.2", "3.3")} == states


def test_a_job_tells_its_token_and_why_it_waits() -> None:
    jobs = {job.local_id: job for job in read_queue(RECORDINGS["queue after a while"].stdout)}
    assert jobs["16.2"] == Job("16.2", "Eqw", token="error-1")
    assert jobs["3.1"] == Job("3.1", "hqw", reason="held", token="held-1")
    assert jobs["2.3"] == Job("2.3", "s", token="array-1")


def test_a_plain_job_of_the_same_account_has_its_number_as_id() -> None:
    plain = re.sub("<tasks>.*</tasks>", "", RECORDINGS["queue with steps"].stdout)
    assert {job.local_id for job in read_queue(plain)} == {"17", "18"}


def test_history_tells_exit_codes_and_signals() -> None:
    ended = read_history(RECORDINGS["history of exits, signals and kills"].stdout)
    # Task 5 chose its exit code itself.
    assert sorted(ended, key=lambda job: job.local_id) == [
        Job("5.1", "failed 0", 0, token="codes-1", owner="griduser"),
        Job("5.2", "failed 0", 3, token="codes-1", owner="griduser"),
        Job("5.3", "failed 100", 137, "assumedly after job", "codes-1", "griduser"),
        Job("5.4", "failed 100", 137, "assumedly after job", "codes-1", "griduser"),
        Job("5.5", "failed 0", 137, token="codes-1", owner="griduser"),
    ]


def test_history_says_whose_each_job_was_as_others_may_use_a_token_of_ours_as_a_name() -> None:
    printed = RECORDINGS["history of one"].stdout
    theirs = re.sub(r"(?m)^owner .*", "owner        mallory", printed).replace("jobnumber    1", "jobnumber    2")
    assert [job.owner for job in read_history(printed + theirs)] == ["griduser", "mallory"]


def test_a_job_that_went_back_to_the_queue_has_not_ended() -> None:
    printed = RECORDINGS["history of jobs in error state"].stdout
    assert re.findall(r"(?m)^failed +(\d+)", printed) == ["26", "26", "26"]
    assert list(read_history(printed)) == []


def test_of_several_runs_of_a_job_the_last_counts() -> None:
    ended = RECORDINGS["history of one"].stdout
    first = re.sub(r"(?m)^failed .*", "failed       25  : rescheduling", ended)
    assert [job.exit_code for job in read_history(first + ended)] == [3]
    assert list(read_history(ended + first)) == []


def test_a_plain_job_has_its_number_as_id_in_history_too() -> None:
    printed = re.sub(r"(?m)^taskid .*", "taskid       undefined", RECORDINGS["history of one"].stdout)
    assert [job.local_id for job in read_history(printed)] == ["1"]


def test_a_record_that_is_torn_before_its_exit_code_is_garbled() -> None:
    printed = RECORDINGS["history of one"].stdout
    end = printed.index("\n", printed.index("exit_status"))
    for torn in range(printed.index("qname"), end + 1):
        with pytest.raises(Garbled):
            read_answer(read_history, printed[:torn])


# sge_status(5) of 8.1.9, JOB STATE.
MANUAL = {
    State.PENDING: "qw Rq hqw hRwq Eqw Ehqw EhRqw",
    State.ACTIVE: "r hr t Rr Rt dr dt dRr dRt",
    State.SUSPENDED: "s ts S tS T tT Rs Rts RS RtS RT RtT ds dS dT dRs dRS dRT",
    State.DONE: "z",
}
STATES = [(letters, state) for state, words in MANUAL.items() for letters in words.split()]


@pytest.mark.parametrize(("letters", "state"), STATES, ids=[letters for letters, _ in STATES])
def test_every_state_of_the_manual_is_known(letters: str, state: State) -> None:
    native = order_letters(letters)
    assert SGE.states[native] is state
    assert (native in SGE.leaving) is ("d" in letters)


def test_every_recorded_state_is_known() -> None:
    letters = re.findall("<state>(.*)</state>", (RECORDED / "sge" / "sge-commands.txt").read_text())
    assert {"Shs", "hr", "Rq", "Eqw", "ds"} <= set(letters)
    assert all(order_letters(state) in SGE.states for state in letters)


def test_a_letter_that_nobody_knows_makes_a_state_unknown() -> None:
    assert order_letters("rY") not in SGE.states


# sge_status(5) of 8.1.9, "FAILED" STATES. 2, 5, 22 and 23 have no meaning.
MANUAL_FAILED = {0, 1, *range(3, 22), *range(24, 39), 100} - {5}


def test_every_failed_code_of_the_manual_is_an_end_or_goes_on() -> None:
    ended = {int(state.split()[1]) for state in SGE.states if state.startswith("failed ")}
    going_on = {int(code) for code in GOES_ON}
    assert ended | going_on >= MANUAL_FAILED
    assert not ended & going_on


def test_the_array_limit_is_read_and_no_limit_has_no_number() -> None:
    found = re.search(SGE.read_array_limit, RECORDINGS["configuration"].stdout)
    assert found is not None
    assert found[1] == "75000"
    none = re.search(SGE.read_array_limit, RECORDINGS["no limit of arrays"].stdout)
    assert none is not None
    assert none[1] is None


CONFIGURATION = RECORDINGS["configuration"].stdout
QUEUE = "qname                 all.q\nhostlist              @allhosts\nrerun                 FALSE\n"


def find(answers_of: Mapping[str, str]) -> list[Finding]:
    """The findings where programs print these texts, by the end of their command line."""

    def ask(argv: Sequence[str]) -> Printed:
        text = answers_of.get(" ".join(argv))
        return Printed(1, "", "no") if text is None else Printed(0, text, "")

    return list(diagnose(ask, {"SGE_ROOT": "/opt/sge", "HOME": "/home/d0"}))


def find_bad(answers_of: Mapping[str, str]) -> list[tuple[Level, str]]:
    found = [finding for finding in find(answers_of) if finding.level is not Level.GOOD]
    assert all(finding.remedy for finding in found)
    return [(finding.level, finding.text) for finding in found]


def configure(**changes: str) -> dict[str, str]:
    changed = CONFIGURATION
    for name, value in changes.items():
        changed = re.sub(rf"(?m)^{name} (?:.*\\\n)*.*$", f"{name} {value}", changed)
    return {"qconf -sconf": changed, "qconf -sq *": QUEUE}


def test_a_well_configured_cluster_has_nothing_to_mend() -> None:
    assert [finding.level for finding in find(configure())] == [Level.GOOD, Level.GOOD]


DEFAULTS = "accounting=true reporting=false flush_time=00:00:15 joblog=false sharelog=00:00:00"
FAULTS = {
    "as installed": (configure(reporting_params=DEFAULTS), Level.FAULT, "reporting and joblog off"),
    "no job log": (configure(reporting_params="reporting=true joblog=false"), Level.FAULT, "joblog off"),
    "late": (configure(reporting_params="reporting=true joblog=true"), Level.WARNING, "15 s"),
    "late by the minute": (
        configure(reporting_params="reporting=true joblog=true flush_time=0"),
        *(Level.WARNING, "a minute"),
    ),
    "no accounting": (
        configure(reporting_params="accounting=false reporting=1 joblog=1 flush_time=1"),
        *(Level.FAULT, "no accounting"),
    ),
    "started elsewhere": (configure(reschedule_unknown="00:10:00"), Level.WARNING, "silent for 00:10:00"),
    "queue that reruns": (
        {**configure(), "qconf -sq *": QUEUE + "\n" + QUEUE.replace("FALSE", "TRUE").replace("all.q", "long.q")},
        *(Level.WARNING, "queues long.q are"),
    ),
    "site's -V": ({**configure(), "cat /opt/sge/default/common/sge_request": "# -q x\n-w w -V\n"}, Level.WARNING, "-V"),
    "own -V": ({**configure(), "cat /home/d0/.sge_request": "-V\n"}, Level.WARNING, "/home/d0/.sge_request"),
}


@pytest.mark.parametrize(("printed", "level", "words"), FAULTS.values(), ids=FAULTS)
def test_each_fault_of_a_configuration_is_found(printed: dict[str, str], level: Level, words: str) -> None:
    found = find_bad(printed)
    assert [level for level, _ in found] == [level]
    assert words in found[0][1]


PARALLEL = by_scene(read_recordings("sge", "parallel-environments.txt"))


def find_cores(environment: str, queue: str) -> list[Finding]:
    """The findings about several cores, where the answers are these recordings."""

    def ask(argv: Sequence[str]) -> Printed:
        answers = {"-sconf": CONFIGURATION, "-sq": PARALLEL[queue].stdout}
        if "-sp" in argv:
            assert argv[-1] == PARALLEL_ENVIRONMENT
            found = PARALLEL[environment]
            return Printed(found.exit_code, found.stdout, found.stderr)
        return Printed(0, next((text for word, text in answers.items() if word in argv), ""), "")

    return [finding for finding in diagnose(ask, {}) if "core" in finding.text]


def test_it_is_said_whether_requests_can_have_several_cores() -> None:
    (good,) = find_cores("a parallel environment", "a queue with it")
    assert (good.level, good.text) == (Level.GOOD, "Local jobs may have several cores: queues have smp.")
    (without,) = find_cores("a parallel environment", "a queue without it")
    assert (without.level, without.text) == (
        Level.WARNING,
        "No queue has the parallel environment smp: local jobs with more than one core wait for ever.",
    )
    (none,) = find_cores("no such parallel environment", "a queue with it")
    assert (none.level, none.text) == (
        Level.WARNING,
        "There is no parallel environment nosuch: Grid Engine refuses requests with more than one core.",
    )
    assert all("pe_list" in finding.remedy for finding in (without, none))


@pytest.mark.parametrize(
    ("all_q", "is_bad"),
    [
        ("0      0      0    100      0    100", True),
        ("3      0      0    100      0    100", True),
        ("0      0      0    100      0      0", True),
        ("3      0      0    100      0      3", False),
        ("0      0    100    100      0      0", False),
    ],
    ids=["disabled", "disabled, and jobs run on", "suspended", "some disabled, the others full", "open"],
)
def test_it_is_said_that_no_queue_starts_jobs(all_q: str, is_bad: bool) -> None:
    printed = RECORDINGS["queues, all disabled"].stdout.replace("0      0      0    100      0    100", all_q)
    found = [text for _, text in find_bad({**configure(), "qstat -g c": printed})]
    assert [text.partition(":")[0] for text in found] == ["No queue of Grid Engine starts jobs"] * is_bad


def test_options_that_are_commented_out_are_no_fault() -> None:
    assert find_bad({**configure(), "cat /home/d0/.sge_request": "# -V\n-l arch=lx-amd64\n"}) == []


def test_where_nobody_answers_there_is_nothing_to_say_of_the_configuration() -> None:
    assert find({}) == []
