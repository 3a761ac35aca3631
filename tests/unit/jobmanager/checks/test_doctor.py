"""``samgrid doctor``: each thing that can be wrong is a finding with a remedy, and nothing that breaks stops it."""

import errno
import json
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from batch_adapters.adapter import Unreachable
from batch_adapters.pbs.answers import read_json_jobs
from batch_adapters.registry import ADAPTERS, UnknownBatchSystem
from batch_adapters.running.batch_system import BatchSystem
from batch_adapters.running.diagnosis import PARALLEL_ENVIRONMENT, Ask, Finding, Level, Printed
from batch_adapters.running.rate_limiter import TRIES
from jobmanager.checks import doctor, probe
from jobmanager.checks.doctor import choose_batch_systems, examine, render_finding
from jobmanager.checks.event_source import check_event_source
from jobmanager.checks.probe import run_probe
from jobmanager.site.account import Account, find_batch_system
from jobmanager.site.settings import EventSource, EventsSettings, NotificationSettings, SandboxSettings, Transfer
from tests.unit.batch_adapters.generator.generator_process import starting
from tests.unit.batch_program import NO, SILENT, BatchProgram, use
from tests.unit.jobmanager.checks.fake_monitor import monitor_that_says
from tests.waiting import wait_until


@pytest.fixture
def program(room: Path) -> BatchProgram:
    """A batch system that is well."""
    program = BatchProgram(room)
    program.answer("version", "fake 1.2\nall rights reserved\n")
    program.answer("queue", "1.1 RUNS somebody\n")
    return program


@pytest.fixture
def fake(account: Account, program: BatchProgram) -> Account:
    return use(account, program)


@pytest.fixture
def plain(account: Account, program: BatchProgram) -> Account:
    """The same, but it can be asked for no version and has no history: so it is asked once only."""
    return use(account, program, version=None, history=None)


def look(account: Account, probe_time: float | None = None, names: tuple[str, ...] = ("fake",)) -> list[Finding]:
    return list(examine(account, names, probe_time))


def findings_with(findings: list[Finding], words: str) -> list[Finding]:
    return [finding for finding in findings if words in finding.text]


def the_one(findings: list[Finding], words: str) -> Finding:
    (found,) = findings_with(findings, words)
    return found


def configure(account: Account, **sections: object) -> Account:
    return replace(account, configuration=replace(account.configuration, **sections))  # type: ignore[arg-type]


def diagnosed_by(
    monkeypatch: pytest.MonkeyPatch, diagnose: Callable[[Ask, Mapping[str, str]], Iterator[Finding]]
) -> None:
    """Have every batch system's adapter look so."""

    def find(account: Account, name: str) -> BatchSystem:
        system = find_batch_system(account, name)
        system.adapter = replace(system.adapter, diagnose=diagnose)
        return system

    monkeypatch.setattr(doctor, "find_batch_system", find)


# --- the monitor


def test_a_monitor_that_runs_is_asked_what_problems_it(fake: Account) -> None:
    events, disk = "generator fake ended with status 3: no licence", "database or disk is full"
    with monitor_that_says(fake, f"aaaaaaaa: submit: no such queue\nmonitor: {disk}\nevents: {events}\n"):
        findings = look(fake)
    found = findings_with(findings, "its monitor")
    assert [(one.level, one.text) for one in found] == [
        (Level.FAULT, f"its monitor says: {words}") for words in (disk, events)
    ]
    assert str(fake.places.monitor_log) in found[0].remedy
    assert findings_with(findings, "no such queue") == []


def test_a_monitor_without_a_problem_of_its_own_is_good(fake: Account) -> None:
    with monitor_that_says(fake, "aaaaaaaa: submit: no such queue\n"):
        assert the_one(look(fake), "its monitor").level is Level.GOOD


def test_no_monitor_is_started_to_be_asked(fake: Account) -> None:
    assert findings_with(look(fake), "its monitor") == []
    assert not fake.places.monitor_log.exists()


# --- the batch system


def test_where_all_is_well_nothing_is_wrong(fake: Account, program: BatchProgram) -> None:
    findings = look(fake)
    assert {finding.level for finding in findings} == {Level.GOOD}
    assert [finding.remedy for finding in findings if finding.remedy] == []
    assert the_one(findings, "answers: fake 1.2; 1 local job of this account").text.startswith("fake: ")
    assert findings_with(findings, "takes arrays of up to 1,000 local jobs")
    assert findings_with(findings, "its history answers")
    assert program.calls("submit") == [], "without --probe nothing is submitted"


def test_a_command_that_is_not_there_is_named(fake: Account, program: BatchProgram) -> None:
    gone = program.table(cancel={"argv": ["no-such-cancel", "{{ ids* }}"]})
    findings = look(configure(fake, batch={"fake": gone}))
    missing = the_one(findings, "no-such-cancel")
    assert missing.level is Level.FAULT
    assert missing.text == "fake: not all of its commands are on PATH: no-such-cancel missing"
    assert "PATH" in missing.remedy


def test_a_batch_system_that_is_not_here_is_one_fault(
    account: Account, room: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(room))
    (fault,) = findings_with(look(account, names=("lsf",)), "lsf: ")
    assert fault.level is Level.FAULT
    assert fault.text.endswith("so grid jobs for it wait: bsub, bjobs, bkill, bparams, lsid")


def test_what_the_site_gives_to_grid_jobs_is_looked_for(fake: Account, tmp_path: Path) -> None:
    (tmp_path / "there").touch()
    (tmp_path / "link").symlink_to("there")
    files = tuple(tmp_path / name for name in ("there", "link", "gone"))
    site = replace(fake.configuration.site, dataset_command=(str(tmp_path / "list"), "{name}"))
    told = configure(fake, site=site, sandbox=SandboxSettings(site_files=files))
    assert [finding.level for finding in findings_with(look(told), "dataset_command")] == [Level.FAULT]
    texts = [finding.text for finding in findings_with(look(told), "site_files")]
    assert [text.split()[2] for text in texts] == [str(tmp_path / "link"), str(tmp_path / "gone")]


def test_what_no_handler_takes_in_its_section_is_a_fault(fake: Account) -> None:
    types: dict[str, dict[str, object]] = {"pythia": {"nix": 3}, "pytia": {}, "dzero_merge": {"python": "/bin/python3"}}
    found = [(finding.level, finding.text) for finding in findings_with(look(configure(fake, types=types)), "[type.")]
    assert found == [
        (Level.FAULT, "configuration [type.pythia] has no key 'nix'; the keys are python"),
        (Level.WARNING, "[type.pytia]: there is no job type pytia (did you mean pythia?)"),
    ]


def test_the_notification_command_is_looked_for_where_there_is_one(fake: Account, tmp_path: Path) -> None:
    hook = tmp_path / "hook"
    hook.touch()
    told = configure(fake, notification=NotificationSettings(command=(str(hook), "--mail")))
    assert the_one(look(told), f"{hook} is no program that this account can run").level is Level.FAULT
    hook.chmod(0o700)
    assert the_one(look(told), f"{hook} is there").level is Level.GOOD
    assert not findings_with(look(fake), "[notification]")


def test_local_jobs_that_have_ended_are_not_counted(fake: Account, program: BatchProgram) -> None:
    program.answer("queue", "1.1 RUNS a\n1.2 WAITS a\n1.3 ENDED a 0\n1.4 BROKE a\n")
    assert findings_with(look(fake), "2 local jobs of this account in its queue")


@pytest.mark.parametrize("command", ["version", "queue"])
@pytest.mark.parametrize("code", [SILENT, NO, 1], ids=["silent", "refused", "garbled"])
def test_a_daemon_that_does_not_answer_is_one_fault(
    fake: Account, program: BatchProgram, command: str, code: int
) -> None:
    program.answer(command, "connection refused\n", code)
    findings = look(fake, probe_time=1)
    (fault,) = [finding for finding in findings if finding.level is Level.FAULT]
    assert "connection refused" in fault.text
    assert fault.remedy
    assert not program.calls("submit") + program.calls("history"), "nobody is asked who does not answer"


def test_a_history_that_does_not_answer_is_a_warning(fake: Account, program: BatchProgram) -> None:
    program.answer("history", "accounting is disabled", 1)
    warning = the_one(look(fake), "accounting is disabled")
    assert warning.level is Level.WARNING
    assert warning.remedy


def test_a_history_that_is_switched_off_is_none(fake: Account, program: BatchProgram) -> None:
    program.answer("history", "it keeps none", NO)
    findings = look(fake)
    assert "its log" not in the_one(findings, "has no history").text  # this one has none
    assert not findings_with(findings, "its history")


def test_a_batch_system_without_arrays_is_said_to_have_none(account: Account, program: BatchProgram) -> None:
    assert findings_with(look(use(account, program, max_array=1, version=None, history=None)), "has no arrays")


def test_an_array_limit_that_nobody_understands_is_a_fault_beside_the_rest(
    account: Account, program: BatchProgram
) -> None:
    program.answer("version", "no number at all")
    findings = look(use(account, program, array_limit={"argv": [str(program.program), "version"]}))
    assert the_one(findings, "no array limit").level is Level.FAULT
    assert findings_with(findings, "its history answers")


def test_files_that_cannot_be_carried_are_a_fault(account: Account, program: BatchProgram) -> None:
    sandbox = SandboxSettings(transfer=Transfer.BATCH_SYSTEM)
    plain = configure(use(account, program, version=None, history=None), sandbox=sandbox)
    fault = the_one(look(plain), "cannot carry files")
    assert (fault.level, "spool_folder" in fault.remedy) == (Level.FAULT, True)
    carrying = configure(use(account, program, version=None, history=None, carries_files=True), sandbox=sandbox)
    assert the_one(look(carrying), "carries files").level is Level.GOOD


# --- the adapter's own findings


def test_the_adapters_own_findings_are_among_the_others(
    plain: Account, program: BatchProgram, monkeypatch: pytest.MonkeyPatch
) -> None:
    def diagnose(ask: Ask, environment: Mapping[str, str]) -> Iterator[Finding]:
        good = ask([str(program.program), "version"])
        yield Finding(Level.WARNING, f"{good.exit_code} {good.stdout.split()[0]} {environment['PLACE']}", "mend = it")

    monkeypatch.setenv("PLACE", "here")
    diagnosed_by(monkeypatch, diagnose)
    assert the_one(look(plain), "0 fake here") == Finding(Level.WARNING, "fake: 0 fake here", "mend = it")


@pytest.mark.parametrize("when", ["at once", "in the middle"])
def test_an_adapter_that_breaks_does_not_break_the_doctor(
    plain: Account, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    def diagnose(ask: Ask, environment: Mapping[str, str]) -> Iterator[Finding]:
        if when == "in the middle":
            yield Finding(Level.GOOD, "so far so good")
        raise KeyError("log_events")

    diagnosed_by(monkeypatch, diagnose)
    findings = look(plain)
    assert the_one(findings, "KeyError: 'log_events'").level is Level.FAULT
    assert len(findings_with(findings, "so far so good")) == (when == "in the middle")
    assert findings_with(findings, "takes arrays"), "what comes later is looked at"


def test_what_the_system_says_of_a_check_is_told_in_words(plain: Account, monkeypatch: pytest.MonkeyPatch) -> None:
    def diagnose(ask: Ask, environment: Mapping[str, str]) -> Iterator[Finding]:
        raise OSError(errno.EIO, "Input/output error", "/site/list")

    diagnosed_by(monkeypatch, diagnose)
    assert the_one(look(plain), "check failed").text == "fake: this check failed: /site/list: Input/output error"


def test_an_adapter_that_cannot_be_loaded_does_not_break_the_doctor(
    account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ADAPTERS, "odd", "batch_adapters.states:NO_SUCH_ADAPTER")
    (*_, fault) = look(account, names=("odd",))
    assert (fault.level, "NO_SUCH_ADAPTER" in fault.text) == (Level.FAULT, True)


def test_a_question_of_the_adapters_never_raises(
    plain: Account, program: BatchProgram, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: list[Printed] = []
    hangs = program.folder / "hangs"
    hangs.write_text("#!/bin/sh\nexec sleep 60\n")
    hangs.chmod(0o700)

    def diagnose(ask: Ask, environment: Mapping[str, str]) -> Iterator[Finding]:
        answers.extend([ask(["/no/such/program"]), ask(["sh", "-c", "echo no >&2; exit 3"])])
        monkeypatch.setattr(doctor, "ASK_TIME", 0.2)
        answers.append(ask([str(hangs)]))
        yield from ()

    diagnosed_by(monkeypatch, diagnose)
    look(plain)
    assert [answer.exit_code for answer in answers] == [None, 3, None]
    assert answers[1].stderr == "no\n"


def test_the_adapters_questions_are_asked_though_the_daemon_did_not_answer(
    account: Account, program: BatchProgram, monkeypatch: pytest.MonkeyPatch
) -> None:
    def diagnose(ask: Ask, environment: Mapping[str, str]) -> Iterator[Finding]:
        yield Finding(Level.GOOD, f"heard {ask(['echo', 'from another daemon']).stdout}")

    in_outage = use(account, program, version=None)
    for _ in range(TRIES):
        find_batch_system(in_outage, "fake").limiter.note_outage("it was down")
    diagnosed_by(monkeypatch, diagnose)
    program.answer("queue", "connection refused\n", SILENT)
    assert findings_with(look(in_outage), "heard from another daemon")


def test_a_question_names_the_parallel_environment_of_the_site(
    account: Account, program: BatchProgram, monkeypatch: pytest.MonkeyPatch
) -> None:
    def diagnose(ask: Ask, environment: Mapping[str, str]) -> Iterator[Finding]:
        yield Finding(Level.GOOD, f"heard {ask(['echo', '{{', PARALLEL_ENVIRONMENT]).stdout}")

    diagnosed_by(monkeypatch, diagnose)
    findings = look(use(account, program, version=None, history=None, parallel_environment="mpi"))
    assert findings_with(findings, "heard {{ mpi\n")


def test_an_adapters_questions_count_like_all_others(
    account: Account, program: BatchProgram, monkeypatch: pytest.MonkeyPatch
) -> None:
    def diagnose(ask: Ask, environment: Mapping[str, str]) -> Iterator[Finding]:
        printed = ask([str(program.program), "version"])
        yield Finding(Level.GOOD, f"heard {printed.exit_code}: {printed.stderr}")

    diagnosed_by(monkeypatch, diagnose)
    monkeypatch.setattr("batch_adapters.running.rate_limiter.PATIENCE", 0.0)
    findings = look(use(account, program, version=None, history=None, commands_per_minute=1))
    assert findings_with(findings, "heard None: held back")
    assert program.calls() == ["queue"]


# --- which batch systems


def test_the_configured_the_named_or_all_batch_systems_are_looked_at(fake: Account) -> None:
    assert choose_batch_systems(fake, None, False) == ["fake"]
    assert choose_batch_systems(fake, "fork", False) == ["fork"]
    assert choose_batch_systems(fake, None, True) == sorted([*ADAPTERS, "fake"])
    with pytest.raises(UnknownBatchSystem, match="nowhere"):
        choose_batch_systems(fake, "nowhere", False)


def test_of_many_those_that_are_not_here_are_no_fault(
    fake: Account, program: BatchProgram, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = {
        name: {**value, "argv": ["no-such-program"]} if isinstance(value, dict) and "argv" in value else value
        for name, value in program.table().items()
    }
    account = configure(fake, batch={"fake": program.table(version=None, history=None), "absent": table})
    assert the_one(look(account, names=("absent", "fake")), "absent: ").level is Level.GOOD
    assert {finding.level for finding in look(account, names=("absent",))} == {Level.GOOD, Level.FAULT}


# --- the log


def at_source(account: Account, source: EventSource, path: Path | None) -> Finding:
    account = configure(account, events=EventsSettings(source, path))
    (finding,) = check_event_source(account, find_batch_system(account, "fake"))
    return finding


@pytest.fixture
def logging(account: Account, program: BatchProgram) -> Account:
    """A batch system whose log is like Slurm's."""
    return use(account, program, event_module="slurm")


def test_a_log_that_can_be_read_is_good(logging: Account, room: Path) -> None:
    (room / "slurmctld.log").touch()
    finding = at_source(logging, EventSource.LOG, room / "slurmctld.log")
    assert finding.level is Level.GOOD
    assert re.search(r"the last line is \d+ s old", finding.text)
    assert at_source(logging, EventSource.LOG, room).level is Level.GOOD, "its folder will do"


def test_a_log_that_must_not_be_read_has_a_way_out(
    logging: Account, room: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (room / "slurmctld.log").touch()
    monkeypatch.setattr("jobmanager.checks.doctor.os.access", lambda path, mode: Path(path) == room)
    finding = at_source(logging, EventSource.LOG, room / "slurmctld.log")
    assert finding.level is Level.FAULT
    for words in ("docs/event-files.md", 'source = "day-files"', "/var/lib/samgrid/events/fake", 'source = "poll"'):
        assert words in finding.remedy


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every folder")
def test_a_log_in_a_closed_folder_is_a_fault(logging: Account, room: Path) -> None:
    (room / "closed").mkdir(mode=0)
    assert at_source(logging, EventSource.LOG, room / "closed" / "slurmctld.log").level is Level.FAULT


def test_a_log_that_is_not_there_is_a_warning(logging: Account, room: Path) -> None:
    finding = at_source(logging, EventSource.LOG, room / "slurmctld.log")
    assert (finding.level, "[events] path" in finding.remedy) == (Level.WARNING, True)


def test_a_log_whose_times_are_of_another_zone_is_said_to_be_read_so(logging: Account, room: Path) -> None:
    log = room / "slurmctld.log"
    ahead = time.gmtime(time.time() + time.localtime().tm_gmtoff + 7200)
    log.write_text(time.strftime("[%Y-%m-%dT%H:%M:%S.123] slurmctld: here\n", ahead))
    assert "are of another zone than ours" in at_source(logging, EventSource.LOG, log).text


def test_a_log_folder_that_is_not_there_is_no_matter_of_permissions(logging: Account, room: Path) -> None:
    finding = at_source(logging, EventSource.LOG, room / "gone" / "slurmctld.log")
    assert finding.level is Level.FAULT
    assert f"there is no folder {room}/gone" in finding.text
    assert "[events] path" in finding.remedy


def test_a_log_that_nobody_can_tell_the_place_of_is_a_fault(
    logging: Account, room: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_CONF", str(room / "slurm.conf"))
    finding = at_source(logging, EventSource.LOG, None)
    assert (finding.level, "slurm.conf" in finding.text) == (Level.FAULT, True)
    (room / "slurm.conf").write_text(f"SlurmctldLogFile={room}/found.log\n")
    (room / "found.log").touch()
    assert at_source(logging, EventSource.LOG, None).level is Level.GOOD


@pytest.mark.parametrize(
    ("script", "level", "words"),
    [
        ('exec "$@"', Level.GOOD, "its log can be read through "),
        ("echo sudo: a password is required >&2; exit 1", Level.FAULT, ": sudo: a password is required"),
    ],
    ids=["allowed", "refused"],
)
def test_a_prefix_is_tried_with_a_generator_whose_input_ends(
    logging: Account, room: Path, script: str, level: Level, words: str
) -> None:
    (room / "slurmctld.log").touch()
    (room / "through").write_text(f"#!/bin/sh\n{script}\n")
    (room / "through").chmod(0o700)
    events = EventsSettings(path=room / "slurmctld.log", prefix=(str(room / "through"),))
    account = configure(logging, events=events)
    (finding,) = check_event_source(account, find_batch_system(account, "fake"))
    assert (finding.level, words in finding.text) == (level, True)


def test_an_unknown_generator_module_is_a_fault(account: Account, program: BatchProgram) -> None:
    finding = at_source(use(account, program, event_module="nonesuch"), EventSource.LOG, None)
    assert (finding.level, "nonesuch" in finding.text) == (Level.FAULT, True)


@pytest.mark.parametrize(("source", "module"), [(EventSource.POLL, "slurm"), (EventSource.LOG, "")], ids=str)
def test_where_no_log_is_read_none_is_looked_for(
    account: Account, program: BatchProgram, source: EventSource, module: str
) -> None:
    finding = at_source(use(account, program, event_module=module), source, None)
    assert (finding.level, "every 30 s" in finding.text) == (Level.GOOD, True)


def test_day_files_must_go_on_until_today(logging: Account, room: Path) -> None:
    today = room / time.strftime("%Y%m%d", time.gmtime())
    (room / "20200101").touch()
    fault = at_source(logging, EventSource.DAY_FILES, room)
    assert (fault.level, today.name in fault.text) == (Level.FAULT, True)
    assert "samgrid-scheduler-event-generator@fake" in fault.remedy
    today.touch()
    dead = at_source(logging, EventSource.DAY_FILES, room)
    assert (dead.level, "no generator of ours on this host writes there now" in dead.text) == (Level.WARNING, True)


def test_day_files_that_a_generator_writes_are_good_until_it_dies(logging: Account, room: Path, tmp_path: Path) -> None:
    folder = tmp_path / "days"
    folder.mkdir()
    with starting() as start:
        generator = start("-s", "fork", "-l", tmp_path / "events", "-d", folder, "-p", tmp_path / "pid")
        wait_until((tmp_path / "pid").exists)
        assert at_source(logging, EventSource.DAY_FILES, folder).level is Level.GOOD
        generator.kill()
        generator.wait()
    # Whoever looks into /proc at what it has open keeps its lock for a moment.
    wait_until(lambda: at_source(logging, EventSource.DAY_FILES, folder).level is Level.WARNING)


@pytest.mark.parametrize("folder", [None, Path("/no/such/folder")], ids=str)
def test_day_files_without_a_folder_are_a_fault(logging: Account, folder: Path | None) -> None:
    fault = at_source(logging, EventSource.DAY_FILES, folder)
    assert (fault.level, "[events] path" in fault.remedy) == (Level.FAULT, True)


# --- folders


@pytest.mark.parametrize(
    ("free", "level"), [(10**6, Level.FAULT), (10**8, Level.WARNING), (10**10, Level.GOOD)], ids=str
)
def test_the_room_on_the_state_folders_disk_is_looked_at(
    fake: Account, monkeypatch: pytest.MonkeyPatch, free: int, level: Level
) -> None:
    monkeypatch.setattr("jobmanager.checks.doctor.shutil.disk_usage", lambda path: _Usage(free))
    assert the_one(look(fake, names=()), "state folder").level is level


class _Usage:
    def __init__(self, free: int) -> None:
        self.free = free


def test_a_spool_folder_that_takes_no_files_is_a_fault(fake: Account, room: Path) -> None:
    account = replace(fake, places=replace(fake.places, spool=room / "gone"))
    assert the_one(look(account, names=()), "spool folder").level is Level.FAULT
    (room / "gone").mkdir()
    assert the_one(look(account, names=()), "spool folder").level is Level.GOOD


def test_a_batch_system_is_asked_also_in_the_pause_of_an_outage(fake: Account) -> None:
    for _ in range(TRIES):
        find_batch_system(fake, "fake").limiter.note_outage("it was down")
    assert the_one(look(fake), "answers: fake 1.2").level is Level.GOOD


# --- the probe


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_LOOK", "_ASK", "_ENDING"):
        monkeypatch.setattr(probe, name, 0.05)


def left_over(account: Account) -> list[str]:
    return [path.name for path in account.places.jobs.iterdir()]


@pytest.mark.usefixtures("quick")
def test_a_probe_that_writes_shows_that_all_is_well(plain: Account, program: BatchProgram) -> None:
    program.run_what_is_submitted()
    program.answer("submit", "17\n")
    finding = the_one(look(plain, probe_time=1), os.uname().nodename)
    assert finding.level is Level.GOOD
    assert len(program.calls("submit")) == 1
    assert program.calls("cancel") == []
    assert left_over(plain) == []


@pytest.mark.usefixtures("quick")
def test_each_probe_has_a_token_of_its_own_that_is_no_grid_jobs(fake: Account, program: BatchProgram) -> None:
    program.answer("submit", "17\n")
    for _ in range(2):
        run_probe(fake, find_batch_system(fake, "fake"), 0)
    first, second = (call.split()[-1] for call in program.calls("submit"))
    assert first != second
    # By what PBS' adapter, for one, knows what is ours: else the probe would seem to be gone, and stay.
    assert re.fullmatch(r"doctor[0-9a-f]{2}-[0-9a-f]{4}", first)
    queued = {"17.vm": {"Job_Name": first, "job_state": "Q"}}
    assert [job.token for job in read_json_jobs(json.dumps({"Jobs": queued}))] == [first]


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("shown", "level", "words"),
    [
        pytest.param("17.1 WAITS @ (no node is free)\n", Level.WARNING, "WAITS (no node is free)", id="waits"),
        pytest.param("17.1 ENDED @ 0\n", Level.FAULT, "did not come", id="ended"),
        pytest.param("", Level.FAULT, "it is gone", id="gone"),
    ],
)
def test_a_probe_that_does_not_write_says_why_and_goes(
    fake: Account, program: BatchProgram, shown: str, level: Level, words: str
) -> None:
    program.answer("submit", "17\n")
    program.answer("status", shown)
    program.answer("find", shown)
    finding = run_probe(fake, find_batch_system(fake, "fake"), 0.1)
    assert (finding.level, words in finding.text, bool(finding.remedy)) == (level, True, True)
    assert program.calls("cancel") == (["cancel 17.1"] if "WAITS" in shown else [])
    assert left_over(fake) == []


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("code", "words"),
    [
        pytest.param(0, "WAITS: 4 machines reject it; none is left", id="it says"),
        pytest.param(SILENT, "WAITS: why, it does not say: ", id="no answer"),
    ],
)
def test_the_batch_system_is_asked_why_a_probe_waits(
    account: Account, program: BatchProgram, code: int, words: str
) -> None:
    analyze = {"argv": [str(program.program), "analyze", "{{ id }}"], "attempts": 1}
    fake = use(account, program, analyze=analyze, read_analysis=r"(?m)^- (.*)$")
    program.answer("submit", "17\n")
    program.answer("status", "17.1 WAITS @\n")
    program.answer("analyze", "Of 4 machines:\n- 4  machines reject it\n- none is left\n- none is left\n", code)
    finding = run_probe(fake, find_batch_system(fake, "fake"), 0.1)
    assert words in finding.text
    assert program.calls("analyze") == ["analyze 17.1"]


@pytest.mark.usefixtures("quick")
def test_a_probe_of_which_nobody_knows_whether_it_was_submitted_is_looked_for_and_cancelled(
    fake: Account, program: BatchProgram
) -> None:
    program.answer("submit", "connection lost", SILENT)
    program.answer("find", "17.1 WAITS @\n")
    with pytest.raises(Unreachable, match="connection lost"):
        run_probe(fake, find_batch_system(fake, "fake"), 1)
    assert program.calls("cancel") == ["cancel 17.1"]
    assert left_over(fake) == []


@pytest.mark.usefixtures("quick")
def test_a_probe_that_may_be_left_is_named(plain: Account, program: BatchProgram) -> None:
    program.answer("submit", "17\n")
    program.answer("find", "no connection", SILENT)
    fault = the_one(look(plain, probe_time=0), "may be left")
    assert (fault.level, "the local job doctor" in fault.text) == (Level.FAULT, True)


@pytest.mark.usefixtures("quick")
def test_whoever_interrupts_a_probe_leaves_nothing(
    plain: Account, program: BatchProgram, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    program.answer("submit", "17\n")
    program.answer("find", "17.1 WAITS @\n")
    monkeypatch.setattr("jobmanager.checks.probe.time.sleep", interrupt)
    with pytest.raises(KeyboardInterrupt):
        look(plain, probe_time=60)
    assert program.calls("cancel") == ["cancel 17.1"]
    assert left_over(plain) == []


@pytest.mark.usefixtures("quick")
def test_where_the_batch_system_carries_files_the_probe_writes_where_it_is_started(
    account: Account, program: BatchProgram
) -> None:
    program.answer("submit", "17\n")
    # As a batch system does that starts the job elsewhere and carries its folder results to ours.
    script = program.program.read_text().replace(
        '/bin/sh "$2"',
        '{ mkdir node && cd node && /bin/sh "$2" && cp results/probe "$(dirname "$2")/../results" && cd ..; }',
    )
    program.program.write_text(script)
    program.run_what_is_submitted()
    fake = configure(use(account, program, carries_files=True), sandbox=SandboxSettings(transfer=Transfer.BATCH_SYSTEM))
    assert run_probe(fake, find_batch_system(fake, "fake"), 1).level is Level.GOOD


# --- what is printed


@pytest.mark.parametrize(
    ("finding", "lines"),
    [
        pytest.param(Finding(Level.GOOD, "all is well"), ["ok       all is well"], id="good"),
        pytest.param(
            Finding(Level.WARNING, "it\nis late", "a = 1\n[b]\nc = 2"),
            ["warning  it is late", "         remedy: a = 1", "                 [b]", "                 c = 2"],
            id="warning",
        ),
        pytest.param(
            Finding(Level.FAULT, "\x1b[2J", "\x9b"),
            ["FAULT    \ufffd[2J", "         remedy: \ufffd"],
            id="hostile",
        ),
    ],
)
def test_a_finding_is_a_line_with_its_remedy_under_it(finding: Finding, lines: list[str]) -> None:
    assert render_finding(finding).split("\n") == lines


def test_a_handler_that_cannot_be_loaded_is_told_and_the_others_are_not(account: Account, tmp_path: Path) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("jobType = 'a'; jobType = 'b'; import no_such_module")
    handlers = replace(account.configuration.handlers, modules=(str(broken),))
    site = replace(account, configuration=replace(account.configuration, handlers=handlers))
    (finding,) = [finding for finding in examine(site, [], None) if "job type" in finding.text]
    assert (finding.level, finding.remedy) == (Level.FAULT, "mend or remove its module, then samgrid types")
    assert str(broken) in finding.text
    assert "No module named 'no_such_module'" in finding.text
    (finding,) = [finding for finding in examine(account, [], None) if "job type" in finding.text]
    assert finding.level is Level.GOOD
