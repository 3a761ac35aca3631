"""Who is told of ends and stalls: each is told once, by a real command, whatever becomes of the processes."""

import json
import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from batch_adapters.running.rate_limiter import TRIES, RateLimiter
from batch_adapters.states import State
from jobmanager.completion.notified import has_unsent
from jobmanager.database.grid_job import CredentialEntry, GridJob
from jobmanager.database.local_job import LocalJob
from jobmanager.monitor.workers import BUSY, TRY_LATER
from jobmanager.site.account import Account, limiter_file
from jobmanager.site.settings import NotificationSettings
from jobmanager.views.grid_jobs import STATUS_SCHEMA
from jobmanager.views.notification import Notifier
from jobmanager.views.text import render_moment
from sandbox.files import locked
from sandbox.status import PhaseStatus
from tests.forked_samgrid import run_forked
from tests.hanging import give_up_what_hangs
from tests.unit.grid_jobs import make_grid_job, make_whole, put, put_local_jobs
from tests.unit.traps import TRAPS

JOB, OTHER = "aaaaaaaa", "bbbbbbbb"
NOW = 1_800_000_000.0
PATIENCE = 600.0


class Hook:
    """A command that keeps what it was given, and then runs ``then``."""

    def __init__(self, folder: Path) -> None:
        self.then = folder / "then"
        self.then.write_text("")
        self._told = folder / "told"
        self.program = folder / "hook"
        self.program.write_text(f'#!/bin/sh\n{{ cat; echo; }} >>"{self._told}"\nexec sh "{self.then}"\n')
        self.program.chmod(0o700)

    @property
    def told(self) -> list[Any]:
        """What it was given, each time."""
        return [json.loads(line) for line in self._told.read_text().splitlines()] if self._told.exists() else []

    @property
    def keys(self) -> list[str]:
        return [message["key"] for message in self.told]


@pytest.fixture
def hook(tmp_path: Path) -> Hook:
    return Hook(tmp_path)


@pytest.fixture
def site(account: Account, hook: Hook) -> Account:
    """An account with that command, of which nothing was told that ended more than a minute ago."""
    settings = NotificationSettings(command=(str(hook.program),), patience=PATIENCE, time_limit=60)
    account.places.monitor_configuration.touch()
    os.utime(account.places.monitor_configuration, (NOW - 60, NOW - 60))
    return replace(account, configuration=replace(account.configuration, notification=settings))


def add_grid_job(account: Account, job_id: str, given: Mapping[str, str] = {}, **fields: object) -> None:
    request = [(name, tuple(words.split())) for name, words in given.items()]
    job = make_grid_job(job_id, 3, request=request, batch="slurm", submitted=NOW - 1000)
    job.state = State.ACTIVE
    for name, value in fields.items():
        setattr(job, name, value)
    put(account.database, job)
    account.places.grid_job(job_id).mkdir(parents=True)


def change(account: Account, change: Callable[[GridJob], object], job_id: str = JOB) -> None:
    account.database.grid_jobs.change(job_id, change)


def end(account: Account, job_id: str = JOB, state: State = State.DONE, when: float = NOW - 5) -> None:
    change(account, lambda job: job.end(state, when), job_id)


def read_log(account: Account) -> str:
    return account.places.log(JOB).read_text()


# --- ends


def test_an_end_is_told_once_in_the_words_of_status(site: Account, hook: Hook) -> None:
    add_grid_job(site, JOB, {"notify": "maria@example.org bob"}, name="Z to mumu")
    end(site, state=State.FAILED)
    change(site, lambda job: setattr(job, "reason", "2 of 3 failed"))
    assert has_unsent(site, NOW)
    for later in range(3):
        Notifier(site, NOW + later).notify()
        assert not has_unsent(site, NOW)
    (message,) = hook.told
    status = message.pop("grid_job")
    assert message == {
        "event": "failed",
        "key": f"{JOB}/failed",
        "site": "local",
        "notify": ["maria@example.org", "bob"],
        "why": ["2 of 3 failed"],
    }
    assert (status["name"], status["outcome"], status["local_jobs"]) == ("Z to mumu", "failed", 3)
    jsonschema.validate([status], json.loads(STATUS_SCHEMA.read_text()))
    assert read_log(site).endswith(f"INFO {JOB} notified of failed: {hook.program}\n")


def test_every_outcome_is_an_event_and_old_names_count(site: Account, hook: Hook) -> None:
    for job_id, state in (("aaaaaaaa", State.DONE), ("bbbbbbbb", State.FAILED), ("cccccccc", State.FAILED)):
        add_grid_job(site, job_id, {"notify_user": "old@example.org"})
        if job_id == "cccccccc":
            change(site, lambda job: job.cancel(NOW - 9, "enough"), job_id)
        end(site, job_id, state)
    Notifier(site, NOW).notify()
    assert [message["event"] for message in hook.told] == ["done", "failed", "cancelled"]
    assert {*map(tuple, (message["notify"] for message in hook.told))} == {("old@example.org",)}


def test_the_past_and_steps_are_not_told(site: Account, hook: Hook) -> None:
    add_grid_job(site, JOB)
    end(site, when=NOW - 61)  # before the monitor started that has the command
    add_grid_job(site, OTHER, {}, parent="cccccccc", step="one")
    end(site, OTHER)
    put(site.database, make_whole("cccccccc", "one", one=OTHER))
    Notifier(site, NOW).notify()
    assert hook.told == []
    site.places.grid_job("cccccccc").mkdir()
    end(site, "cccccccc", when=NOW)
    Notifier(site, NOW + 2 * 86_400).notify()
    assert hook.told == []


def test_an_end_that_was_told_long_ago_is_forgotten_not_told_again(site: Account, hook: Hook) -> None:
    add_grid_job(site, JOB)
    end(site)
    for days in (0, 0.9, 2.5, 3):
        Notifier(site, NOW + days * 86_400).notify()
    assert hook.keys == [f"{JOB}/done"]
    assert json.loads(site.places.notified.read_bytes())["sent"] == {}


@pytest.mark.parametrize(
    ("then", "words"),
    [
        pytest.param("(yes no | head -c 4998; echo no mail today) >&2; exit 3", "no no no no mail today", id="refuses"),
        pytest.param(": >hangs.$$; exec sleep 1000", "did not answer within 60 s", id="hangs"),
        pytest.param("kill -9 $$", "was killed by SIGKILL", id="is killed"),
        pytest.param("yes x | head -c 100000000", "printed more than", id="floods"),
    ],
)
def test_a_command_that_fails_is_told_in_the_log_and_changes_nothing(
    site: Account, hook: Hook, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, then: str, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    give_up_what_hangs(monkeypatch, tmp_path)
    hook.then.write_text(then)
    add_grid_job(site, JOB)
    end(site)
    before = site.database.read_text(JOB)
    Notifier(site, NOW).notify()
    Notifier(site, NOW + 1).notify()
    assert hook.keys == [f"{JOB}/done"]
    assert words in read_log(site)
    assert f"WARNING {JOB} notification of done failed: {hook.program} " in read_log(site)
    assert len(read_log(site)) < 1000
    assert site.database.read_text(JOB) == before


def test_the_command_gets_few_of_the_monitor_s_variables(
    site: Account, hook: Hook, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("AWS_SECRET_ACCESS_KEY", "X509_USER_PROXY", "https_proxy", "SAMGRID_CONFIG"):
        monkeypatch.setenv(name, "value")
    hook.then.write_text(f"env >{tmp_path}/variables")
    add_grid_job(site, JOB)
    assert Notifier(site, NOW).try_command(JOB) == ""
    names = {line.partition("=")[0] for line in (tmp_path / "variables").read_text().splitlines()}
    assert {"PATH", "HOME", "https_proxy", "SAMGRID_CONFIG", "SAMGRID_STATE"} <= names
    assert not names & {"AWS_SECRET_ACCESS_KEY", "X509_USER_PROXY", "PYTEST_CURRENT_TEST"}


def test_a_command_that_is_not_there_is_told_in_the_log(site: Account, hook: Hook) -> None:
    hook.program.unlink()
    add_grid_job(site, JOB)
    end(site)
    Notifier(site, NOW).notify()
    assert "cannot be run: there is no such program" in read_log(site)


def run_program(account: Account) -> int:
    """The exit status of ``samgrid-notify``."""
    notify = account.configuration.notification
    environment = {"SAMGRID_NOTIFICATION_COMMAND": notify.command[0], "HOME": str(account.places.root)}
    return run_forked(account.program("samgrid-notify"), input=b"", env={**os.environ, **environment}).returncode


def test_whoever_is_killed_while_the_command_runs_has_it_run_again_but_not_for_ever(site: Account, hook: Hook) -> None:
    os.utime(site.places.monitor_configuration)
    add_grid_job(site, JOB)
    end(site, when=time.time())
    # The notifier, its parent.
    hook.then.write_text("kill -9 $PPID; exec sleep 1000")
    statuses = [run_program(site) for _ in range(5)]
    assert statuses == [-signal.SIGKILL] * 3 + [0, 0]
    assert hook.keys == [f"{JOB}/done"] * 3
    assert read_log(site).count("notification of done failed: the process that ran the command was killed 3 times") == 1


def test_one_that_was_killed_before_the_end_tells_what_the_next_does_not_tell_again(site: Account, hook: Hook) -> None:
    os.utime(site.places.monitor_configuration)
    for job_id in (JOB, OTHER):
        add_grid_job(site, job_id)
        end(site, job_id, when=time.time())
    hook.then.write_text(f"[ $(grep -c {OTHER}/done {hook.then.with_name('told')}) != 1 ] || kill -9 $PPID")
    assert [run_program(site) for _ in range(3)] == [-signal.SIGKILL, 0, 0]
    assert hook.keys == [f"{JOB}/done", f"{OTHER}/done", f"{OTHER}/done"]


def test_what_was_told_is_kept_before_anything_else_is_done(
    site: Account, hook: Hook, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_grid_job(site, JOB)
    end(site)
    add_grid_job(site, OTHER)
    with monkeypatch.context() as patch:
        patch.setattr(Notifier, "_check_open", lambda self, job_id: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            Notifier(site, NOW).notify()
    Notifier(site, NOW).notify()
    assert hook.keys == [f"{JOB}/done"]


def test_one_tells_at_a_time_and_says_what_keeps_it(site: Account, hook: Hook) -> None:
    os.utime(site.places.monitor_configuration)
    add_grid_job(site, JOB)
    end(site, when=time.time())
    with locked(site.places.notification_lock):
        assert run_program(site) == BUSY
    site.places.notified.mkdir()
    assert run_program(site) == TRY_LATER
    site.places.notified.rmdir()
    assert run_program(site) == 0
    assert hook.keys == [f"{JOB}/done"]


def test_what_an_earlier_version_sent_is_not_sent_again(site: Account, hook: Hook) -> None:
    add_grid_job(site, JOB)
    end(site)
    record = {"begun": 1.5, "told": {f"{JOB}/done": NOW}, "tries": {}, "troubled": {}}
    site.places.notified.write_text(json.dumps(record))
    Notifier(site, NOW).notify()
    assert hook.keys == []


def test_a_memory_that_nobody_can_read_is_begun_anew(site: Account, hook: Hook) -> None:
    site.places.notified.write_text('{"since": ')
    add_grid_job(site, JOB)
    end(site)
    Notifier(site, NOW).notify()
    assert hook.keys == [f"{JOB}/done"]


# --- stalls


def put_blocked(account: Account, helps: str | None) -> None:
    job = LocalJob.new(2, "slurm", None)
    job.wait_reason, job.helps = "JobHeldUser", helps
    put_local_jobs(account.database, JOB, job)


def put_driver_problem(account: Account, is_there: bool) -> None:
    job = LocalJob.new(2, "slurm", None)
    job.state = State.ACTIVE
    job.reason = "output waits for room: No space left on device" if is_there else "no scratch folder"
    put_local_jobs(account.database, JOB, job)


def be_silent(account: Account, is_silent: bool) -> None:
    limiter = RateLimiter(limiter_file(account, "slurm"), 100)
    for _ in range(TRIES if is_silent else 0):
        limiter.note_outage("no contact")
    if not is_silent:
        limiter.note_answer()


def put_problem(account: Account, is_there: bool) -> None:
    change(account, lambda job: job.put_problem("submit: disk full", NOW) if is_there else job.clear_problem())


STALLS = [
    pytest.param(put_problem, "submit: disk full", id="problem"),
    pytest.param(
        lambda account, is_there: put_blocked(account, "scontrol release" if is_there else None),
        "number 2: JobHeldUser: scontrol release",
        id="blocked",
    ),
    pytest.param(put_driver_problem, "number 2: output waits for room: No space left", id="no room for outputs"),
    pytest.param(be_silent, "slurm has not answered since ", id="silent"),
]


@pytest.mark.parametrize(("put", "words"), STALLS)
def test_a_stall_is_told_once_it_has_lasted_and_again_when_it_comes_again(
    site: Account, hook: Hook, put: Callable[[Account, bool], None], words: str
) -> None:
    add_grid_job(site, JOB)
    Notifier(site, NOW).notify()
    put(site, True)
    Notifier(site, NOW).notify()
    Notifier(site, NOW + PATIENCE - 1).notify()
    assert hook.told == []
    Notifier(site, NOW + PATIENCE).notify()
    Notifier(site, NOW + 3 * PATIENCE).notify()
    (message,) = hook.told
    assert (message["event"], message["key"]) == ("stalled", f"{JOB}/stalled")
    assert message["why"][0].startswith(words)
    put(site, False)
    Notifier(site, NOW + 4 * PATIENCE).notify()
    put(site, True)
    Notifier(site, NOW + 5 * PATIENCE).notify()
    assert len(hook.told) == 1
    Notifier(site, NOW + 6 * PATIENCE).notify()
    assert hook.keys == [f"{JOB}/stalled"] * 2


def test_local_jobs_that_tell_nothing_new_have_been_silent_already(site: Account, hook: Hook) -> None:
    add_grid_job(site, JOB)
    job = LocalJob.new(1, "slurm", None)
    job.state = State.ACTIVE
    job.put_phases([PhaseStatus("d0gstar", 1, 3, "events")], int(NOW))
    put_local_jobs(site.database, JOB, job)
    stall_time = site.configuration.monitor.stall_time
    Notifier(site, NOW + stall_time - 1).notify()
    assert hook.told == []
    Notifier(site, NOW + stall_time + 1).notify()
    (message,) = hook.told
    assert message["why"] == ["1 local job has told nothing new for 30 min, first number 1"]
    assert message["grid_job"]["stalled"] == [1]


def test_a_grid_job_in_quarantine_stalls_too(site: Account, hook: Hook) -> None:
    add_grid_job(site, JOB, {"notify": "a@b"})
    with site.database.transaction():
        site.database._store.write("UPDATE grid_job SET document = substr(document, 1, 60) WHERE id = ?", [(JOB,)])
        site.database.quarantine.put(next(iter(site.database.find_damages())), NOW)
    for later in (0, PATIENCE, 3 * 86_400, 3 * 86_400 + 1):
        Notifier(site, NOW + later).notify()
    (message,) = hook.told
    assert "cannot be read" in message["why"][0]
    assert message["notify"] == []


def test_a_damaged_document_that_nobody_has_noticed_yet_keeps_no_other_from_being_told(
    site: Account, hook: Hook
) -> None:
    for job_id in (JOB, OTHER):
        add_grid_job(site, job_id)
    with site.database.transaction():
        site.database._store.write("UPDATE grid_job SET document = substr(document, 1, 60) WHERE id = ?", [(JOB,)])
    end(site, OTHER)
    Notifier(site, NOW).notify()
    assert hook.keys == [f"{OTHER}/done"]


def test_while_the_log_goes_into_the_tar_nothing_is_added_to_it(
    site: Account, hook: Hook, capsys: pytest.CaptureFixture[str]
) -> None:
    add_grid_job(site, JOB, {}, state=State.STAGE_OUT)
    put_problem(site, True)
    for later in (0, PATIENCE):
        Notifier(site, NOW + later).notify()
    assert hook.keys == [f"{JOB}/stalled"]
    assert not site.places.log(JOB).exists()
    assert f"{JOB} notified of stalled" in capsys.readouterr().err


def test_a_grid_job_that_ends_after_a_stall_is_told_of_as_well(site: Account, hook: Hook) -> None:
    add_grid_job(site, JOB)
    put_problem(site, True)
    for later in (0, PATIENCE):
        Notifier(site, NOW + later).notify()
    end(site, when=NOW + PATIENCE)
    Notifier(site, NOW + PATIENCE + 1).notify()
    assert hook.keys == [f"{JOB}/stalled", f"{JOB}/done"]
    assert json.loads(site.places.notified.read_bytes())["stalled_since"] == {}


@pytest.mark.parametrize(
    "content",
    [
        b"[" * 100_000,
        b'{"since": "x"}',
        b'{"since": 1, "sent": 3}',
        b'{"since": 1, "sent": {"a": "b"}}',
        b"\0\xff",
        b"3",
    ],
    ids=["deep", "no number", "no table", "no times", "no text", "no object"],
)
def test_a_damaged_record_of_what_was_told_stops_nothing(site: Account, hook: Hook, content: bytes) -> None:
    add_grid_job(site, JOB)
    end(site)
    site.places.notified.write_bytes(content)
    assert has_unsent(site, NOW)
    Notifier(site, NOW).notify()
    assert hook.keys == [f"{JOB}/done"]
    assert not has_unsent(site, NOW)


@pytest.mark.parametrize("make", TRAPS)
def test_where_it_cannot_be_known_what_was_told_whoever_tells_says_so(
    site: Account, make: Callable[[Path], object]
) -> None:
    make(site.places.notified)
    assert has_unsent(site, NOW)
    with pytest.raises(OSError, match=r"symbolic links|no regular file"):
        Notifier(site, NOW)


# --- credentials


def put_expiry(account: Account, expires: float | None) -> None:
    entry = CredentialEntry("bearer_token_file", "/run/token", expires=expires)
    change(account, lambda job: job.put_credentials([entry]))


def test_a_credential_that_expires_soon_is_told_once_and_again_after_a_renewal(site: Account, hook: Hook) -> None:
    before = site.configuration.notification.expiry_warning
    add_grid_job(site, JOB)
    for expires, told in [(None, 0), (before + 1, 0), (before, 1), (before - 1, 1), (before + 9, 1), (-1, 2)]:
        put_expiry(site, None if expires is None else NOW + expires)
        Notifier(site, NOW).notify()
        assert hook.keys == [f"{JOB}/expiring"] * told
    soon, late = hook.told
    assert (soon["event"], soon["grid_job"]["state"]) == ("expiring", "active")
    assert soon["why"] == [f"bearer_token_file expires at {render_moment(NOW + before)}, in 4 h"]
    assert late["why"] == [f"bearer_token_file has expired at {render_moment(NOW - 1)}: renew /run/token"]
    jsonschema.validate([soon["grid_job"]], json.loads(STATUS_SCHEMA.read_text()))
    assert [item["name"] for item in soon["grid_job"]["credentials"]] == ["bearer_token_file"]


def test_of_a_grid_job_that_has_ended_no_credential_expires(site: Account, hook: Hook) -> None:
    add_grid_job(site, JOB)
    put_expiry(site, NOW + 1)
    end(site)
    Notifier(site, NOW).notify()
    assert hook.keys == [f"{JOB}/done"]
