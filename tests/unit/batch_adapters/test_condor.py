"""The batch adapter of HTCondor, on what its commands (23.9.6) really printed."""

import json
import os
import re
import shlex
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from batch_adapters.adapter import Answer, Job, Submission
from batch_adapters.condor import CONDOR
from batch_adapters.condor.answers import diagnose, read_history, read_queue
from batch_adapters.running.commands import render_argv, render_text
from batch_adapters.running.diagnosis import Finding, Level, Printed
from batch_adapters.states import Cause, State
from tests.unit.batch_adapters.recordings import Recording, by_scene, read_recordings

RECORDINGS = by_scene(read_recordings("condor", "condor-commands.txt"))


def test_an_older_recording_of_a_dead_daemon_is_no_answer() -> None:
    dead = ("schedd killed -9 while a job runs", "whole pool stopped", "schedd SIGSTOP")
    judged = set()
    for entry in read_recordings("condor", "condor-down.txt"):
        if entry.scene.startswith(dead) and re.search("condor_(q|rm) ", entry.command) and entry.stdout + entry.stderr:
            asked = CONDOR.cancel if "condor_rm" in entry.command else CONDOR.queue
            assert entry.judge(asked) is Answer.TRANSIENT, entry
            judged.add(entry.scene)
    assert len(judged) == len(dead)


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


@pytest.mark.parametrize(
    ("status", "start", "disconnected", "reason"),
    [
        pytest.param(2, 1795746710, 1795746712, "disconnected from slot1_4@wn7", id="disconnected"),
        pytest.param(2, 1795746730, 1795746712, "", id="started again since"),
        pytest.param(1, 1795746710, 1795746712, "", id="queued again"),
        pytest.param(2, 1795746710, None, "", id="connected"),
    ],
)
def test_a_job_whose_host_is_silent_says_so(status: int, start: int, disconnected: int | None, reason: str) -> None:
    ad = {"ClusterId": 14, "ProcId": 0, "JobStatus": status, "RemoteHost": "slot1_4@wn7", "JobCurrentStartDate": start}
    (job,) = read_queue(json.dumps([{**ad, "JobDisconnectedDate": disconnected}]))
    assert job.reason == reason


def test_a_removed_job_that_is_still_in_the_queue_has_not_gone_yet() -> None:
    assert ("15.2", "REMOVING") in states("find, just cancelled")
    assert states("history, cancelled") == [(f"15.{proc}", "REMOVED") for proc in (1, 3, 0, 2)]
    assert read_recorded("history, cancelled")[0].reason == "via condor_rm (by user griduser)"


def test_what_is_not_materialized_yet_waits_or_is_held_with_its_cluster() -> None:
    for title, state, reason in (
        ("waiting, not all materialized", "IDLE", "not materialized yet"),
        ("waiting, held before all are materialized", "HELD", "not materialized: via condor_hold (by user griduser)"),
    ):
        expected = [Job(f"13.{proc}", state, reason=reason, token="late-3") for proc in (1, 2, 3)]
        assert read_recorded(title) == expected


def test_exit_codes_come_from_the_history_and_a_signal_has_none() -> None:
    codes = {job.local_id: job.exit_code for job in read_recorded("history, exit codes")}
    assert codes == {"13.0": 3, "13.1": 4, "13.2": 5}
    assert read_recorded("history, signal") == [Job("14.0", "COMPLETED", token="sig-2", cause=Cause.SIGNAL)]


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


def test_a_state_with_an_unknown_number_keeps_its_number() -> None:
    assert list(read_queue('[{"ClusterId": 1, "ProcId": 2, "JobStatus": 77}]')) == [Job("1.2", "77")]


def test_the_numbers_of_states_are_those_of_the_manual() -> None:
    # "condor_q -help State" of 23.9.6.
    manual = "IDLE RUNNING REMOVED COMPLETED HELD TRANSFERRING_OUTPUT SUSPENDED FAILED BLOCKED"
    for number, name in enumerate(manual.split(), 1):
        printed = f'[{{"ClusterId": 1, "ProcId": 0, "JobStatus": {number}}}]'
        assert [job.native_state for job in read_history(printed)] == [name]
        assert [job.native_state in CONDOR.states for job in read_queue(printed)] == [True]
    assert CONDOR.leaving == {"REMOVING"}
    assert not CONDOR.states["REMOVING"].is_final
    assert CONDOR.states["HELD"] is State.SUSPENDED


SINGLE = Submission("k3f9zq2m-1", 1, "/s/sandbox/driver.sh", "/s/results", sandbox="/s/sandbox")
ARRAY = Submission(
    token="k3f9zq2m-2",
    count=200,
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


def test_what_a_local_job_needs_is_described() -> None:
    lines = describe(replace(SINGLE, cores=4, gpus=1, max_disk_mb=500))
    assert {"request_cpus = 4", "request_gpus = 1", "request_disk = 512000"} <= set(lines)


def test_an_attempt_is_kept_from_a_host() -> None:
    lines = describe(replace(SINGLE, excluded_host="node7"))
    assert 'requirements = split(TARGET.Machine, ".")[0] != "node7"' in lines


def test_one_local_job_is_described() -> None:
    assert render_argv(CONDOR.submit, asdict(SINGLE)) == ["condor_submit", "-terse", "-"]
    assert describe(SINGLE) == [
        "universe = vanilla",
        "executable = /bin/sh",
        "transfer_executable = false",
        "arguments = \"'/s/sandbox/driver.sh' k3f9zq2m-1\"",
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
    assert lines[3] == "arguments = \"'/s/sandbox/driver.sh' k3f9zq2m-2\""
    assert lines[-5:] == [
        'My.BatchQueue = "long"',
        "accounting_group = dzero.mc",
        "request_memory = 2000",
        "periodic_remove = (JobStatus == 2 && time() - JobCurrentStartExecutingDate > 3600) =?= true",
        "queue 200",
    ]


def test_where_files_are_carried_the_sandbox_goes_and_the_results_come_back() -> None:
    lines = describe(Submission(**{**asdict(SINGLE), "carried": True, "table_lines": 100}))
    assert lines[3:9] == [
        "arguments = \"'driver.sh' k3f9zq2m-1\"",
        "should_transfer_files = YES",
        "samgrid_table = $(Process) / 100",
        "transfer_input_files = /s/sandbox/driver.sh, /s/sandbox/sandbox.tar,"
        " /s/sandbox/k3f9zq2m-1.$INT(samgrid_table)",
        "transfer_output_files = results/, last/",
        "My.WantIOProxy = true",
    ]
    assert CONDOR.carries_files


def test_where_files_are_carried_credentials_are_too() -> None:
    credentials = ("/c/x509_user_proxy", "/c/$x/bearer_token_file")
    lines = describe(Submission(**{**asdict(SINGLE), "carried": True, "credentials": credentials}))
    assert lines[6].endswith(".$INT(samgrid_table), /c/x509_user_proxy, /c/$(DOLLAR)x/bearer_token_file")
    assert lines[7] == "transfer_output_files = results/, last/"
    shared = describe(Submission(**{**asdict(SINGLE), "credentials": credentials}))
    assert not [line for line in shared if "x509" in line]


@pytest.mark.parametrize("starts", [1, 2])
@pytest.mark.parametrize("folder", ["libexec/condor", "libexec"])
@pytest.mark.parametrize("is_there", [True, False], ids=["there", "not there"])
def test_a_job_whose_shadow_was_lost_asks_the_next_one_for_what_is_back(
    tmp_path: Path, starts: int, folder: str, is_there: bool
) -> None:
    for name in (folder, "bin"):
        (tmp_path / name).mkdir(parents=True)
    chirp = tmp_path / folder / "condor_chirp"
    chirp.write_text(f'#!/bin/sh\n[ "$1" = fetch ] && [ {int(is_there)} = 1 ] && echo "$2" >"$3"\n')
    chirp.chmod(0o755)
    (tmp_path / "ad").write_text(f'NumJobStarts = 0\nNumShadowStarts = {starts}\nOrigIwd = "/r"\n')
    (tmp_path / "cookie").touch()
    names = {"BIN": "bin", "JOB_AD": "ad", "CHIRP_CONFIG": "cookie"}
    places = {f"_CONDOR_{name}": str(tmp_path / place) for name, place in names.items()}
    words = ["/bin/sh", "-c", CONDOR.fetch_words, "sh", "a.status", str(tmp_path / "b.status")]
    subprocess.run(words, env={**os.environ, **places}, check=True)
    assert (tmp_path / "b.status").exists() is (is_there and starts > 1)
    assert not (tmp_path / "cookie").exists(), "no program is to use it"


def test_a_path_with_quotes_blanks_and_dollars_is_spelt_as_the_submit_language_wants() -> None:
    place = '/it\'s "q" $(x) $ENV(HOME) $ %s \\ a,b;#'
    lines = describe(Submission("t-1", 1, f"{place}/driver.sh", f"{place}/results", queue='a"b\\$(c)'))
    spelt = '/it\'\'s ""q"" $(DOLLAR)(x) $(DOLLAR)ENV(HOME) $(DOLLAR) %s \\ a,b;#'
    assert lines[3] == f"arguments = \"'{spelt}/driver.sh' t-1\""
    assert lines[5] == 'initialdir = /it\'s "q" $(DOLLAR)(x) $(DOLLAR)ENV(HOME) $(DOLLAR) %s \\ a,b;#/results'
    assert 'My.BatchQueue = "a\\"b\\\\$(DOLLAR)(c)"' in lines


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"driver": "/a$$(b)/driver.sh"}, id="$$"),
        pytest.param({"results": "/a\nqueue 9/results"}, id="a line break in a path"),
        pytest.param({"project": "a\nexecutable = /bin/evil"}, id="a line break in the project"),
        pytest.param({"queue": "a\nqueue 9"}, id="a line break in the queue"),
        pytest.param({"options": ("-name", "second@host")}, id="another schedd, which no other command asks"),
        pytest.param({"sandbox": "/a,b/sandbox", "carried": True}, id="a comma among files to be carried"),
    ],
)
def test_what_cannot_be_submitted_ends_the_description_with_an_error(changes: dict[str, object]) -> None:
    assert describe(Submission(**{**asdict(SINGLE), **changes}))[0].startswith("error : ")


def test_a_comma_does_no_harm_where_nothing_is_carried() -> None:
    assert not describe(Submission(**{**asdict(SINGLE), "sandbox": "/a,b"}))[0].startswith("error")


def test_questions_and_cancellations_are_rendered() -> None:
    assert render_argv(CONDOR.find, {"token": "t-1"})[:3] == ["condor_q", "-constraint", 'SamgridToken == "t-1"']
    by_id = 'ClusterId == 7 && (SamgridToken isnt undefined || regexp("driver[.]sh", Arguments))'
    assert render_argv(CONDOR.status, {"id": "7.3"})[:3] == ["condor_q", "-constraint", by_id]
    ids = CONDOR.naming.fold(["7.3", "8", "9.0", "9.1"])
    form = "ClusterId == {} && (ProcId ?: JobMaterializeNextProcId) >= {} && (ProcId ?: TotalSubmitProcs - 1) <= {}"
    wanted = f"ClusterId == 8 || {form.format(7, 3, 3)} || {form.format(9, 0, 1)}"
    token = 'regexp("^(?:t-1|t-2)", SamgridToken)'
    arguments = 'regexp("driver[.]sh\'? (?:t-1|t-2)", Arguments)'
    ours = f"({token} || {arguments}) =?= true && ({wanted})"
    assert render_argv(CONDOR.cancel, {"ids": ids, "prefixes": ["t-1", "t-2"]}) == ["condor_rm", "-constraint", ours]
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


def find_faults(*pool: Recording, account: str = "1001", **changes: str | None) -> list[Finding]:
    settings = {name: value for name, value in {**SOUND, **changes}.items() if value is not None}
    shown = iter(pool)

    def ask(argv: Sequence[str]) -> Printed:
        if list(argv) == ["id", "-u"]:
            return Printed(0, account + "\n", "")
        if argv[0] == "condor_status":
            if not pool:
                return Printed(0, "vm.samgrid.test\n", "")
            recorded = next(shown)
            assert list(argv) == shlex.split(recorded.command)
            return Printed(recorded.exit_code, recorded.stdout, recorded.stderr)
        assert argv[0] == "condor_config_val"
        if argv[1] in settings:
            return Printed(0, settings[argv[1]] + "\n", "")
        return Printed(1, "", f"Not defined: {argv[1]}\n")

    return [finding for finding in diagnose(ask, {}) if finding.level is not Level.GOOD]


@pytest.mark.parametrize(
    "answer",
    [Printed(None, "", "held back: no answer since 12:00:00"), Printed(1, "", "ERROR: cannot read condor_config\n")],
)
def test_where_nobody_tells_how_it_is_set_nothing_is_said_not_to_be_written(answer: Printed) -> None:
    _, finding = diagnose(lambda argv: Printed(0, "1001", "") if argv[0] == "id" else answer, {})
    assert finding.level is Level.WARNING
    assert finding.text.endswith(answer.stderr.strip())


@pytest.mark.parametrize(
    ("shown", "text", "command"),
    [
        pytest.param(["no slot"], "pool has no slots", "condor_on -startd", id="slots"),
        pytest.param(["a slot", "all drained"], "No slot", "condor_drain -cancel HOST, or .*START", id="drained"),
        pytest.param(["a slot", "START is False"], "No slot", "condor_drain .*, or .* START", id="START"),
        pytest.param(
            ["a slot", "a slot that takes jobs", "no negotiator"],
            "knows of no negotiator",
            "condor_on -negotiator",
            id="negotiator",
        ),
        pytest.param(
            ["no collector"], "Error: communication error SECMAN:2011", "condor_on -collector", id="collector"
        ),
    ],
)
def test_what_keeps_every_job_from_being_started_is_told(shown: list[str], text: str, command: str) -> None:
    recorded = by_scene(read_recordings("condor", "slots.txt"))
    (finding,) = find_faults(*(recorded[scene] for scene in shown))
    assert finding.level is Level.FAULT
    assert text in finding.text
    assert re.search(f": {command}$", finding.remedy)


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
