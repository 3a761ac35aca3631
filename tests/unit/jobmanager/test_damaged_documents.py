"""A document that cannot be read holds up its own grid job only, which says so; every other goes on."""

import json
import socket
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from lxml import etree

from batch_adapters.adapter import LocalStatus
from batch_adapters.running.backoff import Backoff
from batch_adapters.running.batch_system import BatchSystem
from batch_adapters.states import Event, State
from handlers.command import CommandAdapter
from jobmanager.commands import cli
from jobmanager.control.cancel_requests import cancel_withdrawn, hold_back, request_cancel
from jobmanager.control.cancellation import cancel_local_jobs
from jobmanager.control.removal import find_ended_before
from jobmanager.control.resubmission import UnknownRequest, plan_recovery
from jobmanager.database.database import DamagedDocument, Database, OpenGridJob
from jobmanager.database.documents import InvalidDocument
from jobmanager.database.grid_job import GramOrigin
from jobmanager.database.local_job import LocalJob
from jobmanager.gram.answers import answer_file
from jobmanager.gram.reports import GramEvents
from jobmanager.monitor import client
from jobmanager.monitor.client import socket_address
from jobmanager.monitor.monitor import Monitor
from jobmanager.monitor.worker import do_task
from jobmanager.monitor.workers import TRY_LATER, Workers
from jobmanager.site.account import Account, find_batch_system
from jobmanager.states.aggregation import Task
from jobmanager.states.changes import change_local_jobs, same_runs
from jobmanager.states.program_reports import read_reports
from jobmanager.states.reconciliation import find_orphans
from jobmanager.states.registration import apply_events
from jobmanager.states.transitions import apply_status
from tests.unit.grid_jobs import make_grid_job, put, put_local_jobs
from tests.waiting import SECONDS

SICK, WELL = "aaaaaaaa", "bbbbbbbb"
DAMAGED = pytest.mark.parametrize("table", ["grid_job", "local_job"])
DETECTOR = "<détecteur xmlns='https://experiment.org/' größe='ü'>é</détecteur>"


def put_grid_job(account: Account, job_id: str, state: State = State.ACTIVE, origin: bool = False) -> None:
    """A grid job of two local jobs in that state, on fork."""
    job = make_grid_job(job_id, 2, owner="ada", submitted=time.time() - 100)
    job.state = state
    if origin:
        job.put_origin(GramOrigin(job_id, "https://h/", "/dev/null", "/dev/null", False))
    local_jobs = [LocalJob.new(number, "fork", None) for number in (1, 2)]
    for local_job in local_jobs:
        local_job.intend(f"{job_id}-1", time.time())
        local_job.register(f"{job_id}-1.{local_job.index}", "", time.time())
        local_job.state = state
    put(account.database, job, local_jobs)
    account.places.reports(job_id).mkdir(parents=True)


def damage(database: Database, table: str, job_id: str = SICK) -> None:
    """Cut a document short: of a grid job, or of its second local job."""
    which = "id = ?" if table == "grid_job" else "grid_job = ? AND number = 2"
    with database.transaction():
        database._store.write(f"UPDATE {table} SET document = substr(document, 1, 60) WHERE {which}", [(job_id,)])


@pytest.fixture
def account(account: Account, monkeypatch: pytest.MonkeyPatch) -> Account:
    """An account with two grid jobs whose local jobs run, for which no process is started."""
    monkeypatch.setattr(client, "start_monitor", lambda account: None)
    for job_id in (SICK, WELL):
        put_grid_job(account, job_id)
    return account


@pytest.fixture
def monitor(account: Account, monkeypatch: pytest.MonkeyPatch) -> Iterator[Monitor]:
    """Its monitor, which starts nothing."""
    with socket_address(account) as address, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        monitor = Monitor(account, listener)
        monkeypatch.setattr(monitor._generators, "start", lambda batch: None)
        yield monitor


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """The tasks that the monitor would start."""
    found: list[tuple[str, str]] = []
    monkeypatch.setattr(Workers, "start", lambda self, task, name, cancelled=False: found.append((task, name)))
    return found


def run(account: Account, *words: str) -> int:
    command, *rest = words
    return cli.main([command, "--state-dir", str(account.places.root), *rest])


def test_what_a_program_names_in_letters_of_its_own_can_be_read_again(account: Account) -> None:
    report = account.places.reports(SICK) / f"{SICK}.{SICK}-1.1.1.xml"
    report.write_text(DETECTOR, encoding="utf-8")
    read_reports(account, SICK)
    told = account.database.local_jobs.get(SICK, 1).element.find("{https://experiment.org/}détecteur")
    assert told is not None
    assert (told.text, told.get("größe")) == ("é", "ü")
    assert account.database.to_xml().xpath("count(//*[local-name()='détecteur'])") == 1


def test_no_document_is_written_that_could_not_be_read_back(account: Account, monkeypatch: pytest.MonkeyPatch) -> None:
    job = account.database.local_jobs.get(SICK, 1)
    job.put_foreign(etree.fromstring(DETECTOR))
    write = etree.tostring
    monkeypatch.setattr(etree, "tostring", lambda element, encoding="": write(element))
    with pytest.raises(InvalidDocument, match="read back"), account.database.transaction():
        account.database.local_jobs.put(SICK, [job])
    assert not list(account.database.find_damages())


@DAMAGED
def test_the_monitor_leaves_it_alone_and_goes_on_with_the_others(
    account: Account, monitor: Monitor, started: list[tuple[str, str]], table: str
) -> None:
    damage(account.database, table)
    ends = [Event(int(time.time()), f"{job}-1.{n}", State.FAILED, 1) for job in (SICK, WELL) for n in (1, 2)]
    monitor._apply("fork", ends)
    for _ in range(3):
        monitor._due.clear()
        monitor._work()
    assert account.database.grid_jobs.overview(WELL)[0].counts == {"failed": 2}
    assert (Task.COLLECT, WELL) in started
    assert [name for _, name in started].count(SICK) == 0
    (why,) = account.database.quarantine.list().values()
    assert why.grid_job == SICK
    assert account.places.log(SICK).read_text().count("samgrid remove") == 1


def test_a_document_that_was_mended_ends_the_quarantine(
    account: Account, monitor: Monitor, started: list[tuple[str, str]]
) -> None:
    job = account.database.local_jobs.get(SICK, 2)
    damage(account.database, "local_job")
    monitor._apply("fork", [Event(int(time.time()), f"{SICK}-1.2", State.FAILED, 1)])
    assert SICK in account.database.quarantine.list()
    put_local_jobs(account.database, SICK, job)
    monitor._due.clear()
    monitor._work()
    assert not account.database.quarantine.list()


def test_whatever_one_grid_job_raises_is_its_own_problem_told_once(
    account: Account,
    monitor: Monitor,
    started: list[tuple[str, str]],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    asked: list[str] = []

    def start_task(job: OpenGridJob, steps: object) -> None:
        asked.append(job.id)
        if job.id == SICK:
            raise KeyError("a fault")

    monkeypatch.setattr(monitor, "_start_task", start_task)
    # Longer than anything takes here.
    monkeypatch.setattr(Backoff, "SHORTEST", SECONDS)
    monkeypatch.setattr(Backoff, "LONGEST", SECONDS)
    monitor._work()
    monitor._work()
    assert (asked.count(SICK), asked.count(WELL)) == (1, 2), "it is not asked again at once"
    for fault in monitor._faults.values():
        fault.backoff = type(fault.backoff)()
    monitor._work()
    assert caplog.text.count("Traceback") == 1
    assert [f"{name}: {fault.sentence}" for (_, name), fault in monitor._faults.items()] == [
        f"{SICK}: a fault of the job manager's own, 2 times: KeyError: 'a fault' (monitor.log has more)"
    ]


def test_an_event_that_cannot_be_applied_costs_no_other(account: Account, monkeypatch: pytest.MonkeyPatch) -> None:
    now = int(time.time())
    with account.database.transaction():
        sql = (
            "UPDATE local_job SET document = replace(document, 'state=\"active\"', 'state=\"odd\"') WHERE grid_job = ?"
        )
        account.database._store.write(sql, [(SICK,)])
    apply_events(account.database, "fork", [Event(now, f"{job}-1.1", State.FAILED, 1) for job in (SICK, WELL)])
    assert account.database.local_jobs.get(WELL, 1).state is State.FAILED
    with account.database.transaction():
        account.database._store.write("UPDATE local_job SET document = replace(document, '\"odd\"', '\"active\"')")
    assert account.database.events.take("fork", [f"{SICK}-1.1"]) == {}  # only those of unknown ids are kept


def test_events_that_cannot_be_written_down_cost_no_others(account: Account) -> None:
    sql = "UPDATE local_job SET document = replace(document, ?, ?) WHERE grid_job = ?"
    with account.database.transaction():
        account.database._store.write(sql, [("<local-job ", '<local-job odd="1" ', SICK)])
    now = int(time.time())
    changed = apply_events(
        account.database, "fork", [Event(now, f"{job}-1.{n}", State.FAILED, 1) for job in (SICK, WELL) for n in (1, 2)]
    )
    assert list(changed) == [WELL]
    assert [account.database.local_jobs.get(SICK, n).state for n in (1, 2)] == [State.ACTIVE] * 2
    assert account.database.grid_jobs.overview(WELL)[0].counts == {"failed": 2}
    with account.database.transaction():
        account.database._store.write(sql, [(' odd="1"', "", SICK)])


@DAMAGED
def test_a_worker_says_what_it_cannot_read(account: Account, capsys: pytest.CaptureFixture[str], table: str) -> None:
    damage(account.database, table)
    assert do_task(account, Task.COLLECT, SICK) == TRY_LATER
    assert "cannot be read" in capsys.readouterr().err
    assert SICK in account.database.quarantine.list()


@DAMAGED
def test_every_command_tells_of_it_and_shows_the_others(
    account: Account, capsys: pytest.CaptureFixture[str], tmp_path: Path, table: str
) -> None:
    damage(account.database, table)
    do_task(account, Task.COLLECT, SICK)
    capsys.readouterr()
    assert run(account, "status") == 0
    assert f"{SICK}: in quarantine since" in capsys.readouterr().out
    assert run(account, "status", SICK) == 0
    assert "samgrid remove" in capsys.readouterr().out
    assert run(account, "status", "--format", "json") == 0
    told = {job["id"]: job.get("quarantined") for job in json.loads(capsys.readouterr().out)}
    assert "cannot be read" in told[SICK]
    assert told[WELL] is None
    assert run(account, "query", "//grid-job/@id") == 0
    out, err = capsys.readouterr()
    assert (out.split(), SICK in err) == ([WELL], True)
    assert run(account, "export", str(tmp_path / "out")) == 1
    assert SICK in capsys.readouterr().err
    assert {path.name for path in (tmp_path / "out").glob("*.xml")} == {"index.xml", f"{WELL}.xml"}
    assert run(account, "explain", f"{SICK}/2") == 1
    captured = capsys.readouterr()
    assert "cannot be read" in captured.out + captured.err
    if table == "local_job":
        assert run(account, "explain", f"{SICK}/1") == 0
        assert f"grid job {SICK}:\n  in quarantine since" in capsys.readouterr().out
    assert run(account, "usage") == 0


@pytest.fixture
def cancelled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What a batch system that cancels nothing is asked to cancel."""
    cancelled: list[str] = []

    def cancel(system: BatchSystem, ids: Iterable[str], *prefixes: str) -> set[str]:
        cancelled.extend([*ids, *prefixes])
        return set()

    monkeypatch.setattr(BatchSystem, "cancel", cancel)
    return cancelled


@DAMAGED
def test_it_can_be_removed_with_what_runs_of_it(account: Account, cancelled: list[str], table: str) -> None:
    damage(account.database, table)
    do_task(account, Task.COLLECT, SICK)
    assert run(account, "remove", SICK) == 0
    assert cancelled == [f"{SICK}-1.1", f"{SICK}-1.2", SICK]
    assert [row.id for row in account.database.grid_jobs.overview()] == [WELL]
    assert not account.database.quarantine.list()


def test_others_can_be_removed_and_cancelled(account: Account) -> None:
    with account.database.transaction():
        for local_job in (jobs := account.database.local_jobs.all_of(WELL)):
            local_job.state = State.DONE
        account.database.local_jobs.put(WELL, jobs)
    account.database.grid_jobs.change(WELL, lambda job: job.end(State.DONE, time.time() - 10))
    damage(account.database, "grid_job")
    assert find_ended_before(account.database, time.time()) == [WELL]
    assert run(account, "remove", WELL) == 0


def test_a_cancel_ends_what_the_index_knows(account: Account, cancelled: list[str]) -> None:
    request_cancel(account.database, SICK, "cancelled by ada")
    damage(account.database, "local_job")
    cancel_local_jobs(account, SICK)
    assert cancelled == [f"{SICK}-1.1", f"{SICK}-1.2", SICK]
    assert list(account.database.quarantine.list()) == [SICK]
    damage(account.database, "grid_job")
    with pytest.raises(DamagedDocument):
        cancel_local_jobs(account, SICK)
    assert cancelled == 2 * [f"{SICK}-1.1", f"{SICK}-1.2", SICK]


def test_who_waits_for_it_hears_why(account: Account, monitor: Monitor, started: object) -> None:
    damage(account.database, "local_job")
    do_task(account, Task.COLLECT, SICK)
    monitor._work()
    with socket_address(account) as address, socket.socket(socket.AF_UNIX) as caller:
        monitor._listener.listen(1)
        caller.connect(address)
        monitor._answer()
        assert caller.recv(65536).decode().startswith(f"{SICK}: in quarantine since")


def test_a_fault_in_telling_gram_keeps_no_grid_job_from_going_on(
    account: Account, monitor: Monitor, started: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise KeyError("a fault")

    with account.database.transaction():
        account.database._store.write("UPDATE local_job SET state = 'done'")
        account.database.local_jobs.count_anew()
    monkeypatch.setattr(monitor._reports, "report", fail)
    monitor._work()
    assert (Task.COLLECT, WELL) in started
    assert ("reports to GRAM", "monitor") in monitor._faults


def test_gram_hears_of_the_others(account: Account, monitor: Monitor, started: object) -> None:
    put_grid_job(account, "cccccccc", origin=True)
    put_grid_job(account, "dddddddd", origin=True)
    damage(account.database, "grid_job", "cccccccc")
    monitor._reports.report()
    assert answer_file(account, "dddddddd").exists()
    assert not answer_file(account, "cccccccc").exists()


def test_gram_is_told_again_of_the_others(account: Account, tmp_path: Path) -> None:
    put_grid_job(account, "cccccccc", State.DONE, origin=True)
    with account.database.transaction():
        job = account.database.grid_jobs.get("cccccccc")
        job.reported, job.reported_time = State.DONE, int(time.time())
        account.database.grid_jobs.put(job)
    damage(account.database, "grid_job", "cccccccc")
    gram = replace(account.configuration.gram, event_folder=tmp_path)
    events = GramEvents(replace(account, configuration=replace(account.configuration, gram=gram)))
    assert events.report([]) == set()
    assert not events.dues


def test_a_recovery_looks_at_the_others(account: Account) -> None:
    class WithId(CommandAdapter):
        requestIdAttribute = "executable"

    damage(account.database, "grid_job")
    with pytest.raises(UnknownRequest):
        plan_recovery(account, {"command": WithId}, "4711")
    assert plan_recovery(account, {"command": WithId}, "/bin/true").running == (WELL,)


def test_what_is_heard_of_its_other_local_jobs_counts(account: Account) -> None:
    known = account.database.local_jobs.all_of(SICK)
    damage(account.database, "local_job")
    status = LocalStatus(f"{SICK}-1.1", "DONE", State.DONE, 0)
    change = partial(apply_status, status=status, asked=int(time.time()), source="queue")
    assert len(change_local_jobs(account.database, SICK, same_runs(SICK, known), change)) == 1
    assert account.database.local_jobs.get(SICK, 1).state is State.DONE
    assert SICK in account.database.quarantine.list()


def test_a_request_that_gram_gave_up_is_cancelled_beside_it(account: Account) -> None:
    for job_id in ("cccccccc", "dddddddd"):
        put_grid_job(account, job_id, origin=True)
    for job_id in ("cccccccc", "dddddddd"):
        hold_back(account, job_id, -60)
    damage(account.database, "grid_job", "cccccccc")
    cancel_withdrawn(account)
    assert account.database.grid_jobs.get("dddddddd").cancelled
    assert [mark.name for mark in account.places.withdrawn.iterdir()] == ["cccccccc"]


def test_nobody_takes_a_local_job_of_it_for_an_orphan(account: Account) -> None:
    with account.database.transaction():
        torn = b'<local-job><attempt id="x"'
        account.database._store.write("UPDATE local_job SET document = ? WHERE grid_job = ?", [(torn, SICK)])
    system = find_batch_system(account, "fork")
    running = LocalStatus(f"{SICK}-1.1", "R", State.ACTIVE, token=f"{SICK}-1")
    assert list(find_orphans(account.database, system, [running])) == []
