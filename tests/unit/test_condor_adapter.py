"""The batch adapter of HTCondor, on what its commands (23.9.6) really printed."""

import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import pytest

from batch_adapters.adapter import Answer, Command, Garbled, Job, Submission
from batch_adapters.condor import CONDOR
from batch_adapters.condor.answers import read_history, read_queue
from batch_adapters.condor.diagnosis import diagnose
from batch_adapters.diagnosis import Finding, Level, Printed
from batch_adapters.running import render_argv, render_text
from batch_adapters.states import State
from tests.unit.recordings import Recording, judge, read_recordings

RECORDED = Path(__file__).parents[1] / "recorded" / "condor"
ROOT = Path(__file__).parents[2]
RECORDINGS = read_recordings("condor", "condor-commands.txt")
COMMANDS: Mapping[str, Command | None] = {
    "condor_submit": CONDOR.submit,
    "condor_q -constraint 'SamgridToken isnt": CONDOR.queue,
    "condor_q -constraint 'SamgridToken ==": CONDOR.find,
    "condor_q": CONDOR.status,
    "condor_history": CONDOR.history,
    "condor_rm": CONDOR.cancel,
    "condor_config_val -schedd CONDOR_VERSION": CONDOR.version,
    "condor_config_val -schedd MAX_JOBS": CONDOR.array_limit,
}
"""What a recorded command line begins with."""


def judge_recording(recording: Recording) -> Answer:
    command = next(command for begin, command in COMMANDS.items() if recording.command.startswith(begin))
    return judge(command, recording.exit_code, recording.stdout, recording.stderr)


NOT_OK = {
    "submit, no such folder": Answer.PERMANENT,
    "submit, no spelling": Answer.PERMANENT,
    "submit, line break": Answer.PERMANENT,
    "submit, comma": Answer.PERMANENT,
    "submit, bad accounting group": Answer.PERMANENT,
    "submit, unknown option": Answer.PERMANENT,
    "submit, bad option value": Answer.PERMANENT,
    "submit, array too large": Answer.PERMANENT,
    "submit, refused by the pool's rule": Answer.PERMANENT,
    "submit, too many of one account": Answer.LATER,
    "submit, as root": Answer.UNKNOWN,
    "cancel, somebody else's": Answer.PERMANENT,
    "cancel, somebody else's and ours": Answer.PERMANENT,
    "schedd killed: submit": Answer.LATER,
    "pool gone: submit": Answer.LATER,
}


@pytest.mark.parametrize("title", RECORDINGS)
def test_every_recorded_answer_is_understood(title: str) -> None:
    is_down = title.startswith(("schedd ", "pool ")) and not title.endswith(": history")
    assert judge_recording(RECORDINGS[title]) is NOT_OK.get(title, Answer.TRANSIENT if is_down else Answer.OK)


@pytest.mark.parametrize(
    ("title", "answer"),
    [
        ("schedd killed -9 while a job runs", Answer.TRANSIENT),
        ("whole pool stopped", Answer.TRANSIENT),
        ("schedd SIGSTOP", Answer.TRANSIENT),
    ],
)
def test_an_older_recording_of_a_dead_daemon_is_no_answer(title: str, answer: Answer) -> None:
    section = next(
        part for part in (RECORDED / "condor-down.txt").read_text().split("\n=== ") if part.startswith(title)
    )
    runs = re.findall(r"(?m)^\$ (.*(?:condor_q|condor_rm) .*)\n((?:[12]> .*\n)+)\[rc=(\d+) ", section)
    assert runs
    for command, printed, code in runs:
        asked = CONDOR.cancel if "condor_rm" in command else CONDOR.queue
        assert judge(asked, int(code), re.sub(r"(?m)^[12]> ", "", printed)) is answer, command


@pytest.mark.parametrize(
    ("command", "exit_code", "printed"),
    [
        pytest.param(CONDOR.queue, 0, "Error: (null)\n", id="an error with exit code 0"),
        pytest.param(CONDOR.queue, 0, '[\n{\n  "ClusterId": 1,\n', id="a torn answer"),
        pytest.param(CONDOR.queue, 0, "[\n]\nERROR: something new\n", id="an answer and an error"),
        pytest.param(CONDOR.queue, 1, "", id="nothing but an exit code"),
        pytest.param(CONDOR.history, 0, "", id="a history that says nothing at all"),
        pytest.param(CONDOR.history, 1, "[\nError: No passed search file", id="no history kept"),
        pytest.param(CONDOR.submit, 0, "", id="no id"),
        pytest.param(CONDOR.submit, 1, "", id="a submission with nothing but an exit code"),
        pytest.param(CONDOR.submit, 1, "ERROR: Failed to commit job submission into the queue.\n", id="commit unknown"),
        pytest.param(CONDOR.submit, 1, "4.0 - 4.1\nERROR: Failed to spool job files.\n", id="an id and an error"),
        pytest.param(CONDOR.version, 1, "Not defined: CONDOR_VERSION\n", id="a name that is not known"),
    ],
)
def test_what_proves_nothing_is_neither_a_yes_nor_a_no(command: Command, exit_code: int, printed: str) -> None:
    assert judge(command, exit_code, printed) in (Answer.UNKNOWN, Answer.TRANSIENT)


def test_warnings_do_not_spoil_an_answer() -> None:
    assert judge(CONDOR.queue, 0, "[\n]\nWARNING: a site's own remark\n") is Answer.OK
    assert judge(CONDOR.queue, 0, "WARNING: a site's own remark\n") is Answer.OK
    assert judge(CONDOR.submit, 0, "4.0 - 4.1\nWARNING: the line 'x = 1' was unused\n") is Answer.OK


def read_recorded(title: str) -> list[Job]:
    recording = RECORDINGS[title]
    reader = CONDOR.read_history if recording.command.startswith("condor_history") else CONDOR.read_jobs
    return list(reader(recording.stdout))


def states(title: str) -> list[tuple[str, str]]:
    return [(job.local_id, job.native_state) for job in read_recorded(title)]


def test_waiting_and_running_jobs_are_read() -> None:
    assert read_recorded("find, waiting") == [Job(f"13.{proc}", "IDLE", token="exit-5") for proc in range(3)]
    assert states("status, running") == [("15.2", "RUNNING")]
    assert states("find, held and suspended") == [
        ("15.0", "HELD"),
        ("15.1", "SUSPENDED"),
        ("15.2", "RUNNING"),
        ("15.3", "RUNNING"),
    ]


def test_a_removed_job_that_is_still_in_the_queue_has_not_gone_yet() -> None:
    assert ("15.2", "REMOVING") in states("find, just cancelled")
    assert states("history, cancelled") == [(f"15.{proc}", "REMOVED") for proc in (1, 3, 0, 2)]
    assert read_recorded("history, cancelled")[0].reason == "via condor_rm (by user griduser)"


def test_exit_codes_come_from_the_history_and_a_signal_has_none() -> None:
    codes = {job.local_id: job.exit_code for job in read_recorded("history, exit codes")}
    assert codes == {"13.0": 3, "13.1": 4, "13.2": 5}
    assert read_recorded("history, signal") == [Job("14.0", "COMPLETED", token="sig-2")]


def test_the_code_of_an_earlier_run_is_not_that_of_a_held_job() -> None:
    assert '"ExitCode": 9' in RECORDINGS["find, held, reason not to be read"].stdout
    assert read_recorded("find, held, reason not to be read") == [Job("28.0", "HELD", token="slow-5")]


def test_a_hold_reason_is_told_and_its_words_mean_nothing_else() -> None:
    (missing,) = read_recorded("find, held for a missing file")
    assert missing.reason.startswith("Transfer input files failure at access point")
    (awkward,) = read_recorded("find, held with an awkward reason")
    assert awkward.reason == "it is ] [ {} é SECMAN: (null) \\ ] (by user griduser)"


@pytest.mark.parametrize("title", ["find, nothing there", "history, nothing there", "queue, empty", "status, unknown"])
def test_nothing_there_is_an_empty_answer(title: str) -> None:
    assert read_recorded(title) == []


@pytest.mark.parametrize(
    "printed",
    [
        pytest.param("Error: (null)\n", id="no JSON"),
        pytest.param('[\n{\n  "ClusterId": 1,', id="torn"),
        pytest.param('{"ClusterId": 1}', id="no list"),
        pytest.param('[{"ClusterId": 1, "JobStatus": 2}]', id="no process"),
        pytest.param('[{"ClusterId": 1, "ProcId": null, "JobStatus": 2}]', id="null"),
        pytest.param('[{"ClusterId": 1, "ProcId": 0, "JobStatus": "x"}]', id="no number"),
        pytest.param('["1.0"]', id="no ClassAd"),
    ],
)
def test_an_answer_that_is_no_list_of_jobs_is_garbled(printed: str) -> None:
    for read in (read_queue, read_history):
        with pytest.raises(Garbled, match="no list of jobs"):
            list(read(printed))


def test_a_state_with_an_unknown_number_keeps_its_number() -> None:
    assert list(read_queue('[{"ClusterId": 1, "ProcId": 2, "JobStatus": 77}]')) == [Job("1.2", "77")]


# "condor_q -help State" of 23.9.6.
JOB_STATES = """\
 1 I IDLE
 2 R RUNNING
 3 X REMOVED
 4 C COMPLETED
 5 H HELD
 6 > TRANSFERRING_OUTPUT
 7 S SUSPENDED
 8 F FAILED
 9 B BLOCKED
"""


def test_every_state_of_the_manual_is_known() -> None:
    for line in JOB_STATES.splitlines():
        number, _, name = line.split()
        printed = f'[{{"ClusterId": 1, "ProcId": 0, "JobStatus": {number}}}]'
        assert [job.native_state for job in read_history(printed)] == [name]
        assert name in CONDOR.states
        assert [job.native_state in CONDOR.states for job in read_queue(printed)] == [True]
    assert set(CONDOR.states) == {line.split()[2] for line in JOB_STATES.splitlines()} | {"REMOVING"}
    assert CONDOR.leaving == {"REMOVING"}
    assert not CONDOR.states["REMOVING"].is_final
    assert CONDOR.states["HELD"] is State.SUSPENDED


@pytest.mark.parametrize(
    ("printed", "count", "ids"),
    [
        pytest.param("12.0 - 12.0\n", 1, {1: "12.0"}, id="one"),
        pytest.param("13.0 - 13.2\n", 3, {1: "13.0", 2: "13.1", 3: "13.2"}, id="an array"),
        pytest.param("13.0 - 13.1\n", 3, None, id="too few"),
        pytest.param("13.0 - 14.2\n", 3, None, id="two clusters"),
        pytest.param("13.1 - 13.3\n", 3, None, id="not from 0"),
        pytest.param("12.0 - 12.0\n13.0 - 13.0\n", 1, None, id="two answers"),
    ],
)
def test_the_answer_to_a_submission_names_its_local_jobs(
    printed: str, count: int, ids: Mapping[int, str] | None
) -> None:
    assert CONDOR.naming.read_submitted(printed, count) == ids


def test_a_local_id_knows_its_place_and_its_array() -> None:
    assert CONDOR.naming.position_of("13.199") == 200
    assert CONDOR.naming.array_of("13.199") == "13"


SINGLE = Submission("k3f9zq2m-1", 1, 0, "/s/sandbox/driver.sh", "/s/results", sandbox="/s/sandbox")
ARRAY = Submission(
    token="k3f9zq2m-2",
    count=200,
    offset=1000,
    driver="/s/sandbox/driver.sh",
    results="/s/results",
    sandbox="/s/sandbox",
    queue="long",
    project="dzero.mc",
    max_cpu_minutes=50,
    max_wall_minutes=60,
    max_memory_mb=2000,
    options=("-append", "request_disk = 1GB"),
)


def describe(submission: Submission) -> list[str]:
    """The lines of the description that condor_submit reads."""
    return [line for line in render_text(CONDOR.submit.stdin, asdict(submission)).splitlines() if line.strip()]


def test_one_local_job_is_described() -> None:
    assert render_argv(CONDOR.submit, asdict(SINGLE)) == ["condor_submit", "-terse", "-"]
    assert describe(SINGLE) == [
        "universe = vanilla",
        "executable = /bin/sh",
        "transfer_executable = false",
        "arguments = \"'/s/sandbox/driver.sh' 0 k3f9zq2m-1\"",
        "should_transfer_files = NO",
        "initialdir = /s/results",
        "samgrid_position = $(Process) + 1",
        "output = k3f9zq2m-1.$INT(samgrid_position).driver",
        "error = k3f9zq2m-1.$INT(samgrid_position).driver",
        "getenv = HOME, USER, LOGNAME, PATH",
        'environment = "SAMGRID_CONDOR_ID=$(Cluster).$(Process) SAMGRID_CONDOR_POSITION=$INT(samgrid_position)"',
        "batch_name = k3f9zq2m-1",
        'My.SamgridToken = "k3f9zq2m-1"',
        "queue 1",
    ]


def test_an_array_is_described_with_all_that_the_request_wants() -> None:
    argv = render_argv(CONDOR.submit, asdict(ARRAY))
    assert argv == ["condor_submit", "-terse", "-append", "request_disk = 1GB", "-"]
    lines = describe(ARRAY)
    assert lines[3] == "arguments = \"'/s/sandbox/driver.sh' 1000 k3f9zq2m-2\""
    assert lines[-5:] == [
        'My.BatchQueue = "long"',
        "accounting_group = dzero.mc",
        "request_memory = 2000",
        "periodic_remove = (JobStatus == 2 && time() - JobCurrentStartExecutingDate > 3600) =?= true",
        "queue 200",
    ]


def test_where_files_are_carried_the_sandbox_goes_and_the_results_come_back() -> None:
    lines = describe(Submission(**{**asdict(SINGLE), "carried": True}))
    assert lines[3:7] == [
        "arguments = \"'driver.sh' 0 k3f9zq2m-1\"",
        "should_transfer_files = YES",
        "transfer_input_files = /s/sandbox/driver.sh, /s/sandbox/sandbox.tar, /s/sandbox/local-jobs",
        "transfer_output_files = results/",
    ]
    assert CONDOR.carries_files


def test_a_path_with_quotes_blanks_and_dollars_is_spelt_as_the_submit_language_wants() -> None:
    place = '/it\'s "q" $(x) $ENV(HOME) $ %s \\ a,b;#'
    lines = describe(Submission("t-1", 1, 0, f"{place}/driver.sh", f"{place}/results", queue='a"b\\$(c)'))
    spelt = '/it\'\'s ""q"" $(DOLLAR)(x) $(DOLLAR)ENV(HOME) $(DOLLAR) %s \\ a,b;#'
    assert lines[3] == f"arguments = \"'{spelt}/driver.sh' 0 t-1\""
    assert lines[5] == 'initialdir = /it\'s "q" $(DOLLAR)(x) $(DOLLAR)ENV(HOME) $(DOLLAR) %s \\ a,b;#/results'
    assert 'My.BatchQueue = "a\\"b\\\\$(DOLLAR)(c)"' in lines


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"driver": "/a$$(b)/driver.sh"}, id="$$"),
        pytest.param({"results": "/a\nqueue 9/results"}, id="a line break in a path"),
        pytest.param({"project": "a\nexecutable = /bin/evil"}, id="a line break in the project"),
        pytest.param({"queue": "a\nqueue 9"}, id="a line break in the queue"),
        pytest.param({"sandbox": "/a,b/sandbox", "carried": True}, id="a comma among files to be carried"),
    ],
)
def test_what_the_submit_language_cannot_spell_ends_the_description_with_an_error(changes: dict[str, object]) -> None:
    assert describe(Submission(**{**asdict(SINGLE), **changes}))[0].startswith("error : HTCondor ")


def test_a_comma_does_no_harm_where_nothing_is_carried() -> None:
    assert not describe(Submission(**{**asdict(SINGLE), "sandbox": "/a,b"}))[0].startswith("error")


def test_questions_and_cancellations_are_rendered() -> None:
    assert render_argv(CONDOR.find, {"token": "t-1"})[:3] == ["condor_q", "-constraint", 'SamgridToken == "t-1"']
    assert render_argv(CONDOR.status, {"id": "7.3"})[:2] == ["condor_q", "7.3"]
    assert render_argv(CONDOR.cancel, {"ids": ["7.3", "8"]}) == ["condor_rm", "7.3", "8"]
    assert CONDOR.history is not None
    assert render_argv(CONDOR.history, {"token": "t-1"})[:3] == [
        "condor_history",
        "-constraint",
        'SamgridToken == "t-1"',
    ]


SOUND = {
    "EVENT_LOG": "/var/log/condor/EventLog",
    "EVENT_LOG_MAX_SIZE": "50000000",
    "EVENT_LOG_MAX_ROTATIONS": "3",
    "EVENT_LOG_FORMAT_OPTIONS": "ISO_DATE UTC SUB_SECOND",
    "HISTORY": "/var/spool/condor/history",
    "ENABLE_HISTORY_ROTATION": "true",
    "MAX_HISTORY_LOG": "50000000",
}


def find_faults(account: str = "1001", **changes: str | None) -> list[Finding]:
    settings = {name: value for name, value in {**SOUND, **changes}.items() if value is not None}

    def ask(argv: Sequence[str]) -> Printed:
        if list(argv) == ["id", "-u"]:
            return Printed(0, account + "\n", "")
        assert argv[0] == "condor_config_val"
        if argv[1] in settings:
            return Printed(0, settings[argv[1]] + "\n", "")
        return Printed(1, "", f"Not defined: {argv[1]}\n")

    return [finding for finding in diagnose(ask, {}) if finding.level is not Level.GOOD]


def test_a_sound_configuration_has_no_faults() -> None:
    assert find_faults() == []
    assert find_faults(EVENT_LOG_FORMAT_OPTIONS="JSON,UTC") == []
    assert find_faults(MAX_HISTORY_LOG="1000", ENABLE_HISTORY_ROTATION="false") == []


@pytest.mark.parametrize(
    ("changes", "level", "remedy"),
    [
        pytest.param({"EVENT_LOG": None}, Level.FAULT, "EVENT_LOG = $(LOG)/EventLog", id="no event log"),
        pytest.param({"EVENT_LOG": ""}, Level.FAULT, "EVENT_LOG = $(LOG)/EventLog", id="an empty name"),
        pytest.param(
            {"EVENT_LOG_MAX_SIZE": None, "EVENT_LOG_MAX_ROTATIONS": None},
            Level.WARNING,
            "EVENT_LOG_MAX_SIZE = 50000000",
            id="HTCondor's own rotation",
        ),
        pytest.param({"EVENT_LOG_FORMAT_OPTIONS": None}, Level.WARNING, "ISO_DATE UTC", id="times without a zone"),
        pytest.param({"HISTORY": None}, Level.FAULT, "HISTORY = $(SPOOL)/history", id="no history"),
        pytest.param({"MAX_HISTORY_LOG": "100000"}, Level.WARNING, "MAX_HISTORY_LOG = 50000000", id="short history"),
        pytest.param({"account": "0"}, Level.FAULT, "ordinary account", id="root"),
    ],
)
def test_a_fault_is_named_with_its_remedy(changes: dict[str, str], level: Level, remedy: str) -> None:
    (finding,) = find_faults(**changes)
    assert finding.level is level
    assert remedy in finding.remedy


def test_the_generator_imports_the_adapter_without_a_parser() -> None:
    code = "import sys, batch_adapters.condor; print(sorted({'json', 'lxml', 'jinja2', 'sh'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
