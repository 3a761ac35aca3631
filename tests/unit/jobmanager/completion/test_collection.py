"""A grid job is over when its local jobs are, for certain, and their outputs had time to come back."""

import json
import os
import tarfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from lxml import etree

from batch_adapters.adapter import BatchError, Garbled, LocalStatus, Unreachable
from batch_adapters.running.batch_system import BatchSystem
from batch_adapters.states import Cause, Event, State
from handlers.command import CommandAdapter
from jobmanager.completion import collection
from jobmanager.completion.collection import _render_document, collect_grid_job, keep_summary, output_limits
from jobmanager.completion.proof import prove_ends
from jobmanager.completion.retries import judge_failures
from jobmanager.control.cancel_requests import request_cancel
from jobmanager.control.cancellation import cancel_local_jobs
from jobmanager.database.grid_job import GridJob
from jobmanager.database.local_job import LocalJob
from jobmanager.database.local_jobs import LocalJobs
from jobmanager.database.times import render_time
from jobmanager.monitor.worker import do_task
from jobmanager.requests.job_types import TooLong
from jobmanager.site.account import Account
from jobmanager.states.aggregation import Task
from jobmanager.states.driver_status import reconcile_with_drivers, status_file
from jobmanager.states.reconciliation import reconcile_batch_system
from jobmanager.states.registration import apply_events
from jobmanager.views.outputs import render_output
from sandbox.files import TarLimits, remove_folder
from tests.unit.grid_jobs import make_grid_job, put, put_local_jobs
from tests.unit.toy_system import GRID_JOB, LAG, NOW, TOKEN, ToySystem
from tests.unit.traps import TRAPS


def add_ended(toy: ToySystem, *ids: str, state: State = State.DONE, exit_code: int = 0, ended: int = NOW - LAG) -> None:
    """A grid job whose local jobs have ended, as far as the log says."""
    toy.add(list(ids), state)
    with toy.database.transaction():
        jobs = toy.database.local_jobs.all_of(GRID_JOB)
        for job in jobs:
            job.exit_code = exit_code
            job.ended_time = ended
        toy.database.local_jobs.put(GRID_JOB, jobs)


def state_of(toy: ToySystem) -> State:
    return toy.database.grid_jobs.get(GRID_JOB).state


@pytest.mark.parametrize(
    ("line", "alive"),
    [
        pytest.param(f"17 R {TOKEN} -", State.ACTIVE, id="runs"),
        pytest.param(f"17 PD {TOKEN} - JobHeldUser", State.PENDING, id="waits"),
        pytest.param(f"17 S {TOKEN} -", State.SUSPENDED, id="suspended"),
        pytest.param("", None, id="not shown"),
        pytest.param(f"17 CD {TOKEN} 0", None, id="shown as ended"),
        pytest.param(f"17 CG {TOKEN} -", None, id="on its way out"),
        pytest.param(f"17 ?? {TOKEN} -", None, id="in an unknown state"),
        pytest.param("17 R otherjob-1 -", None, id="an id that was used again"),
        pytest.param(f"18 R {TOKEN} -", None, id="another job"),
    ],
)
def test_what_the_queue_shows_alive_is_revived_and_not_collected(
    toy: ToySystem, line: str, alive: State | None
) -> None:
    add_ended(toy, "17", exit_code=3)
    toy.answers("queue", *filter(None, [line]))
    collect_grid_job(toy.account, GRID_JOB)
    assert toy.states() == [alive or State.DONE]
    assert toy.account.places.output(GRID_JOB).exists() is (alive is None)
    assert state_of(toy) is (alive or State.FAILED)


CLEAN, TOLD = ["exit 0", f"end {NOW}"], [f"caught TERM {NOW}", "exit 143", f"end {NOW}"]


@pytest.mark.parametrize(
    ("driver", "events", "later_run", "is_over"),
    [
        pytest.param(CLEAN, [State.SUSPENDED], [], True, id="a clean end"),
        pytest.param(TOLD, [State.SUSPENDED], [], True, id="told to end"),
        pytest.param(CLEAN, [State.PENDING, State.SUSPENDED], [], True, id="a clean end, then queued again"),
        pytest.param(TOLD, [State.PENDING, State.SUSPENDED], [], True, id="told to end, then queued again"),
        pytest.param(TOLD, [State.PENDING, State.SUSPENDED], [f"start {NOW + 2}"], False, id="then run again"),
    ],
)
def test_what_is_held_for_its_memory_is_over_if_its_driver_saw_the_end(
    toy: ToySystem, driver: list[str], events: list[State], later_run: list[str], is_over: bool
) -> None:
    toy.change_adapter(causes={"S": Cause.MEMORY_LIMIT}, blocks={"S": "toy release {id}"})
    toy.add(["17"], State.ACTIVE)
    toy.drives("17", f"start {NOW}", *driver)
    reconcile_with_drivers(toy.account, GRID_JOB, [toy.job()])
    toy.now += 5
    apply_events(toy.database, "toy", [Event(toy.now, "17", state) for state in events])
    toy.drives("17", *(later_run or [f"start {NOW}", *driver]))
    toy.answers("queue", f"17 S {TOKEN} -")
    toy.answers("find", f"17 S {TOKEN} -")
    for _ in range(2):
        toy.now += LAG
        reconcile_batch_system(toy.account, "toy")
        if toy.job().state.is_final:
            toy.now += LAG
            collect_grid_job(toy.account, GRID_JOB)
    expected = (State.FAILED, Cause.MEMORY_LIMIT, None) if is_over else (State.SUSPENDED, None, "toy release 17")
    assert (state_of(toy), toy.job().cause, toy.job().helps) == expected


def test_what_its_owner_has_renamed_is_known_for_ours(toy: ToySystem) -> None:
    add_ended(toy, "17", "18")
    toy.answers("queue", "17 R mine -", f"18 R {TOKEN} -")
    toy.answers("tokens", f"17 {TOKEN}")
    collect_grid_job(toy.account, GRID_JOB)
    assert (toy.states(), toy.calls("tokens")) == ([State.ACTIVE] * 2, ["17"])


def test_the_drivers_record_needs_no_second_witness(toy: ToySystem) -> None:
    add_ended(toy, "17", ended=NOW)
    toy.drives("17", "start 1000", "exit 0", "end 2000")
    toy.answers("queue", f"17 R {TOKEN} -")
    collect_grid_job(toy.account, GRID_JOB)
    assert state_of(toy) is State.DONE
    assert toy.calls("queue") == []


def test_local_jobs_that_were_never_submitted_are_not_asked_for(toy: ToySystem) -> None:
    toy.add([None], token=None)
    with toy.database.transaction():
        job = toy.job()
        job.state = State.FAILED
        toy.database.local_jobs.put(GRID_JOB, [job])
    collect_grid_job(toy.account, GRID_JOB)
    assert state_of(toy) is State.FAILED
    assert toy.calls("queue") == []


@pytest.mark.parametrize(
    ("state", "driver", "awaited"),
    [
        pytest.param(State.DONE, [], "bring back their outputs", id="done without a record"),
        pytest.param(State.DONE, ["start 1000"], "bring back their outputs", id="done and started"),
        pytest.param(State.FAILED, ["start 1000"], "bring back their outputs", id="failed and started"),
        pytest.param(State.FAILED, [], "come into the history", id="failed before it started"),
        pytest.param(State.DONE, ["start 1000", "exit 0", "end 2000"], None, id="all is back"),
    ],
)
def test_outputs_that_may_be_on_their_way_are_waited_for(
    toy: ToySystem, state: State, driver: list[str], awaited: str | None
) -> None:
    add_ended(toy, "17", state=state, ended=NOW)
    toy.drives("17", *driver)
    toy.now = NOW + LAG - 1
    if awaited is not None:
        # The batch system's, or the worker node's, clock may be fast.
        for toy.now in (NOW - LAG + 1, NOW + LAG - 1):
            with pytest.raises(Unreachable, match=f"20 s for 1 local job to {awaited}, first 17"):
                collect_grid_job(toy.account, GRID_JOB)
            assert not state_of(toy).is_final
        toy.now = NOW + LAG
    collect_grid_job(toy.account, GRID_JOB)
    assert state_of(toy).is_final


@pytest.mark.parametrize("state", [State.DONE, State.FAILED])
def test_an_end_before_the_clock_was_set_back_is_not_waited_for_until_it_has_caught_up(
    toy: ToySystem, state: State
) -> None:
    add_ended(toy, "17", state=state, ended=NOW + 3600)
    collect_grid_job(toy.account, GRID_JOB)
    assert state_of(toy).is_final


@pytest.mark.parametrize(("index", "owner"), [("index 1", 1), ("index 2", 2), ("host vm", 2)])
def test_what_lies_under_an_id_that_was_used_again_is_one_local_jobs(toy: ToySystem, index: str, owner: int) -> None:
    add_ended(toy, "17", "17", "18")
    toy.drives("17", "start 1000", index, "exit 0", "end 2000")
    toy.drives("18", "start 1000", "index 3", "exit 0", "end 2000")
    collect_grid_job(toy.account, GRID_JOB)
    with tarfile.open(toy.account.places.output(GRID_JOB)) as tar:
        names = tar.getnames()
    assert len(set(names)) == len(names)
    assert f"{GRID_JOB}/{GRID_JOB}.17.status" in names
    manifest = read_manifest(toy)
    assert [job["index"] for job in manifest["local_jobs"]] == [1, 2, 3]
    missing = [one["what"] for one in manifest["missing"] if one["local_id"] == "17"]
    assert ["status" in what for what in missing] == [owner != 1, owner != 2]


def test_it_is_told_how_many_local_jobs_outputs_are_waited_for(toy: ToySystem) -> None:
    add_ended(toy, "17", "18", "19", ended=NOW)
    with pytest.raises(Unreachable, match="20 s for 3 local jobs to bring back their outputs, first 17"):
        collect_grid_job(toy.account, GRID_JOB)


def test_what_is_shown_running_and_was_not_told_to_end_runs_on_at_once(toy: ToySystem) -> None:
    add_ended(toy, "17", state=State.FAILED, ended=NOW)
    toy.answers("queue", f"17 R {TOKEN} -")
    collect_grid_job(toy.account, GRID_JOB)
    assert toy.states() == [State.ACTIVE]


def test_what_leaves_the_batch_system_has_time_to_turn_out_to_be_queued_again(toy: ToySystem) -> None:
    add_ended(toy, "17", state=State.FAILED, ended=NOW)
    toy.answers("queue", f"17 CG {TOKEN} -")
    with pytest.raises(Unreachable, match="20 s for 1 local job to leave the batch system, first 17"):
        collect_grid_job(toy.account, GRID_JOB)
    toy.answers("queue", f"17 PD {TOKEN} -")
    collect_grid_job(toy.account, GRID_JOB)
    assert toy.states() == [State.PENDING]


def test_what_was_told_to_end_may_be_shown_running_for_a_while(toy: ToySystem) -> None:
    add_ended(toy, "17", ended=NOW)
    toy.drives("17", "start 1000", f"caught TERM {NOW}", "exit 143", f"end {NOW}")
    toy.answers("queue", f"17 R {TOKEN} -")
    with pytest.raises(Unreachable, match="20 s for 1 local job to leave the batch system, first 17"):
        collect_grid_job(toy.account, GRID_JOB)
    assert (toy.job().state, toy.job().driver) == (State.DONE, "ended")
    toy.now = NOW + LAG
    collect_grid_job(toy.account, GRID_JOB)
    assert toy.states() == [State.ACTIVE]


@pytest.mark.parametrize(
    ("again", "line", "grid_job"),
    [
        pytest.param(["exit 0", "end 2000"], "", State.DONE, id="and has ended"),
        pytest.param([], f"17 R {TOKEN} -", State.ACTIVE, id="and runs"),
    ],
)
def test_what_was_killed_and_has_been_started_anew_is_another_run(
    toy: ToySystem, again: list[str], line: str, grid_job: State
) -> None:
    run = ("start 1000", "pid 5", "signal KILL", "exit 137", "end 1003")
    add_ended(toy, "17")
    toy.drives("17", *run)
    reconcile_with_drivers(toy.account, GRID_JOB, [toy.job()])
    toy.drives("17", *run, "", "start 1004", "pid 6", *again)
    toy.answers("queue", *filter(None, [line]))
    collect_grid_job(toy.account, GRID_JOB)
    assert state_of(toy) is grid_job


def test_outputs_that_come_back_meanwhile_make_a_success(toy: ToySystem) -> None:
    add_ended(toy, "17", ended=NOW)
    toy.drives("17", "start 1000")
    with pytest.raises(Unreachable):
        collect_grid_job(toy.account, GRID_JOB)
    toy.drives("17", "start 1000", "exit 0", "end 2000")
    collect_grid_job(toy.account, GRID_JOB)
    assert state_of(toy) is State.DONE


@pytest.mark.parametrize(
    ("script", "error"), [("exit 1", Unreachable), ("echo what", Garbled)], ids=["nobody", "garbled"]
)
def test_where_nobody_answers_nothing_ends(toy: ToySystem, script: str, error: type[BatchError]) -> None:
    add_ended(toy, "17")
    toy.does("queue", script)
    with pytest.raises(error):
        collect_grid_job(toy.account, GRID_JOB)
    assert not state_of(toy).is_final
    assert not toy.account.places.output(GRID_JOB).exists()


def test_a_queue_longer_than_anybody_reads_is_asked_about_our_tokens(
    toy: ToySystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_ended(toy, "17")
    monkeypatch.setattr("batch_adapters.running.commands.MAX_OUTPUT", 200)
    toy.answers("queue", *(f"{n}_1 R otherjob-1 -" for n in range(99)))
    toy.answers("find", f"17 R {TOKEN} -")
    collect_grid_job(toy.account, GRID_JOB)
    assert (toy.calls("find"), toy.states()) == ([TOKEN], [State.ACTIVE])


@pytest.mark.parametrize(
    ("state", "lines", "driver"),
    [
        pytest.param(State.DONE, [], "missing", id="no record"),
        pytest.param(State.DONE, ["start 1000"], "missing", id="no end"),
        pytest.param(State.DONE, ["start 1000", "caught TERM 1", "exit 0", "end 2000"], "ended", id="told to end"),
        pytest.param(State.FAILED, ["start 1000"], "started", id="a failure"),
    ],
)
def test_nobody_waits_any_more_for_the_record_of_an_end_that_the_log_told(
    toy: ToySystem, state: State, lines: list[str], driver: str
) -> None:
    add_ended(toy, "17", state=state)
    toy.drives("17", *lines)
    collect_grid_job(toy.account, GRID_JOB)
    assert (toy.job().driver, state_of(toy)) == (driver, State.FAILED)


def test_the_batch_system_is_asked_why_each_ended(toy: ToySystem) -> None:
    add_ended(toy, "17", "18", "19", state=State.FAILED)
    with toy.database.transaction():
        job = toy.job(2)
        job.token = f"{GRID_JOB}-2"
        toy.database.local_jobs.put(GRID_JOB, [job])
    toy.answers("history", f"17 CA {TOKEN} -", f"18 F {GRID_JOB}-2 9")
    collect_grid_job(toy.account, GRID_JOB)
    assert toy.calls("history") == [TOKEN, f"{GRID_JOB}-2"]
    assert [toy.job(number).batch_words for number in (1, 2, 3)] == ["CA", "F", None]


def test_a_run_that_begins_while_it_is_asked_why_the_last_one_ended_goes_on(
    toy: ToySystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_ended(toy, "17", state=State.FAILED)
    toy.answers("history", f"17 CA {TOKEN} -")
    ask = BatchSystem.find_ended

    def queue_again(system: BatchSystem, token: str) -> list[LocalStatus]:
        apply_events(toy.database, "toy", [Event(int(time.time()), "17", State.PENDING)])
        return ask(system, token)

    monkeypatch.setattr(BatchSystem, "find_ended", queue_again)
    collect_grid_job(toy.account, GRID_JOB)
    assert toy.states() == [State.PENDING]
    assert not state_of(toy).is_final


def test_of_what_the_history_has_told_of_nobody_waits_for_more(toy: ToySystem) -> None:
    add_ended(toy, "17", state=State.FAILED, ended=NOW)
    toy.answers("history", f"17 CA {TOKEN} -")
    collect_grid_job(toy.account, GRID_JOB)
    assert state_of(toy) is State.FAILED


def test_each_submissions_outputs_are_waited_for(toy: ToySystem) -> None:
    add_ended(toy, "17", "18")
    with toy.database.transaction():
        second = toy.job(2)
        second.token = f"{GRID_JOB}-2"
        second.ended_time = NOW
        toy.database.local_jobs.put(GRID_JOB, [second])
    with pytest.raises(Unreachable, match="20 s for 1 local job to bring back their outputs, first 18"):
        collect_grid_job(toy.account, GRID_JOB)


@pytest.mark.parametrize(
    ("queue", "warned", "ago", "waits"),
    [
        pytest.param(f"echo 17 CA {TOKEN} -", "", 60, "", id="the queue says it"),
        pytest.param(":", "", 60, f" until {render_time(NOW + 3540)} for news", id="nobody says it"),
        pytest.param("exit 1", "", 60, f" until {render_time(NOW + 3540)} for news", id="nobody answers"),
        pytest.param(":", "", 3700, "", id="for an hour nobody says it"),
        pytest.param(":", "caught USR1 1001", 3700, " for news", id="it would have succeeded"),
    ],
)
def test_a_history_without_an_answer_is_waited_for_as_long_as_it_may_matter(
    toy: ToySystem, queue: str, warned: str, ago: int, waits: str
) -> None:
    add_ended(toy, "17", ended=NOW - ago)
    end = ("exit 0",) if warned else ("caught TERM 1001", "exit 143")
    toy.drives("17", "start 1000", *filter(None, [warned]), *end, f"end {NOW - ago}")
    toy.does("find", queue)
    toy.does("history", "exit 1")
    with pytest.raises(Unreachable, match=f"^waits{waits} of why 17 ended") if waits else nullcontext():
        collect_grid_job(toy.account, GRID_JOB)
    assert state_of(toy).is_final is not bool(waits)


def test_without_a_history_nobody_waits_for_it(toy: ToySystem) -> None:
    toy.change_adapter(history=None)
    add_ended(toy, "17", ended=NOW)
    toy.drives("17", "start 1000", "exit 143", f"end {NOW}")
    collect_grid_job(toy.account, GRID_JOB)
    assert state_of(toy).is_final


def test_a_cancel_ends_by_the_drivers_word_alone(toy: ToySystem) -> None:
    """Told to end by somebody else, before we had asked for it, with nobody who could say who."""
    add_ended(toy, "17", "18")
    toy.drives("17", "start 1000", "caught TERM 1001", "exit 143", "end 1002")
    toy.drives("18", "start 1000", "exit 3", "end 1002")
    request_cancel(toy.database, GRID_JOB, "enough")
    for kind in ("queue", "find", "history"):
        toy.does(kind, "exit 1")
    collect_grid_job(toy.account, GRID_JOB)
    assert state_of(toy).is_final
    assert toy.calls("queue") == []


def test_a_cancel_waits_for_the_answer_about_one_without_a_drivers_end(toy: ToySystem) -> None:
    add_ended(toy, "17", state=State.FAILED)
    request_cancel(toy.database, GRID_JOB, "enough")
    toy.does("queue", "exit 1")
    with pytest.raises(Unreachable):
        collect_grid_job(toy.account, GRID_JOB)
    assert not state_of(toy).is_final
    toy.answers("queue")
    collect_grid_job(toy.account, GRID_JOB)
    assert state_of(toy).is_final


def test_when_all_have_ended_by_their_drivers_word_it_is_asked_at_once_and_once(
    toy: ToySystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    toy.add(["17"], State.ACTIVE)
    toy.falls_silent(monkeypatch)
    toy.drives("17", f"start {NOW}", "exit 143", f"end {NOW + 5}")
    reconcile_with_drivers(toy.account, GRID_JOB, [toy.job()])
    toy.does("find", "exit 1")
    for _ in range(3):
        toy.now += 6
        with pytest.raises(Unreachable):
            collect_grid_job(toy.account, GRID_JOB)
    assert len(toy.calls("find")) == 1


def test_the_records_that_were_read_before_are_needed_no_more(toy: ToySystem) -> None:
    add_ended(toy, "17")
    toy.drives("17", "start 1000", "exit 0", "end 2000")
    reconcile_with_drivers(toy.account, GRID_JOB, [toy.job()])
    status_file(toy.account, GRID_JOB, "17").unlink()
    collect_grid_job(toy.account, GRID_JOB)
    assert (state_of(toy), toy.job().reason) == (State.DONE, None)


def test_an_end_that_is_proven_is_told_otherwise_by_nobody(toy: ToySystem) -> None:
    add_ended(toy, "17")
    toy.drives("17", "start 1000", "exit 0", "end 2000")
    reconcile_with_drivers(toy.account, GRID_JOB, [toy.job()])
    toy.drives("17", "start 1000", "exit 3", "end 2000")
    collect_grid_job(toy.account, GRID_JOB)
    assert (state_of(toy), toy.job().exit_code) == (State.DONE, 0)


def test_local_jobs_whose_ends_are_proven_are_read_once(toy: ToySystem) -> None:
    looks: list[int] = []

    def select() -> list[LocalJob]:
        looks.append(1)
        return toy.database.local_jobs.all_of(GRID_JOB)

    add_ended(toy, "17")
    toy.drives("17", "start 1000", "exit 0", "end 2000")
    reconcile_with_drivers(toy.account, GRID_JOB, [toy.job()])
    assert prove_ends(toy.account, GRID_JOB, select)
    assert len(looks) == 1


# --- the verdict


def fail(toy: ToySystem, *ids: str) -> None:
    """A grid job whose local jobs ended with exit code 3, and have the drivers' word for it."""
    add_ended(toy, *ids, exit_code=3)
    for local_id in ids:
        toy.drives(local_id, "start 1000", "exit 3", "end 2000")


def file_of(toy: ToySystem, local_id: str, what: str) -> Path:
    return toy.account.places.results(GRID_JOB) / f"{GRID_JOB}.{local_id}.{what}"


def reason_of(toy: ToySystem) -> str | None:
    collect_grid_job(toy.account, GRID_JOB)
    return toy.database.grid_jobs.get(GRID_JOB).reason


FAILED = "1 of 1 local jobs failed, first number 1: the program ended with exit code 3"


@pytest.mark.parametrize(
    ("stderr", "words"),
    [
        pytest.param(b"", "", id="nothing"),
        pytest.param(b" \n\t\n", "", id="only blanks"),
        pytest.param(b"first\n  no such file \n\n", " (no such file)", id="its last line with words"),
        pytest.param(b"no line break\nat the end", " (at the end)", id="a torn line"),
        pytest.param(b"raw \xff\n", " (raw \N{REPLACEMENT CHARACTER})", id="no text"),
        pytest.param(b"x" * 300, f" ({'x' * 200})", id="shortened"),
        pytest.param(b"y".ljust(4097), "", id="so many blanks that nobody looks before them"),
        pytest.param(b"y".ljust(4096), " (y)", id="as many blanks as are looked through"),
    ],
)
def test_the_reason_has_the_last_words_of_the_program(toy: ToySystem, stderr: bytes, words: str) -> None:
    fail(toy, "17")
    file_of(toy, "17", "stderr").write_bytes(stderr)
    assert reason_of(toy) == FAILED + words


def test_last_words_behind_a_link_are_not_read(toy: ToySystem) -> None:
    fail(toy, "17")
    file_of(toy, "17", "stderr").symlink_to("/etc/passwd")
    assert reason_of(toy) == FAILED


def test_the_reason_names_the_first_that_failed_and_how_many(toy: ToySystem) -> None:
    fail(toy, "17", "18", "19")
    toy.drives("17", "start 1000", "exit 0", "end 2000")
    file_of(toy, "18", "stderr").write_text("no more files")
    assert reason_of(toy) == (
        "2 of 3 local jobs failed, first number 2: the program ended with exit code 3 (no more files)"
    )


@pytest.mark.parametrize(("attempts", "words"), [(1, ""), (2, " (attempt 2)"), (3, " (attempt 3)")])
def test_the_reason_says_which_attempt_failed(toy: ToySystem, attempts: int, words: str) -> None:
    fail(toy, "17")
    with toy.database.transaction():
        job = toy.job()
        for _ in range(attempts - 1):
            job.begin_attempt()
        job.state = State.FAILED
        toy.database.local_jobs.put(GRID_JOB, [job])
    assert reason_of(toy) == f"1 of 1 local jobs failed, first number 1{words}: " + (
        "no reason known" if attempts > 1 else "the program ended with exit code 3"
    )


def test_what_could_not_be_delivered_is_told_beside_the_verdict(toy: ToySystem, tmp_path: Path) -> None:
    def want(job: GridJob) -> None:
        words = [("samgrid_type", "command"), ("executable", "/bin/true"), ("samgrid_output", "no/such/out.tar")]
        job.put_request([(name, (word,)) for name, word in words], tmp_path)

    fail(toy, "17")
    toy.database.grid_jobs.change(GRID_JOB, want)
    reason = reason_of(toy) or ""
    assert reason.startswith(f"{FAILED}; ")
    assert "no/such/out.tar" in reason


# --- what is in the tar is on the disk once


def test_outputs_that_are_in_the_tar_are_removed_and_texts_stay(toy: ToySystem) -> None:
    fail(toy, "17", "18")
    for local_id in ("17", "18"):
        (file_of(toy, local_id, "output") / "closed").mkdir(parents=True)
        (file_of(toy, local_id, "output") / "file").write_text("x")
        (file_of(toy, local_id, "output") / "closed").chmod(0o500)
        file_of(toy, local_id, "stdout").write_text("out")
    (file_of(toy, "18", "output") / "open").mkdir()
    os.mkfifo(file_of(toy, "18", "output") / "open" / "pipe")
    file_of(toy, "16", "output").mkdir()
    collect_grid_job(toy.account, GRID_JOB)
    left = {path.name.removeprefix(f"{GRID_JOB}.") for path in toy.account.places.results(GRID_JOB).iterdir()}
    kept = {"18.output", "16.output"}  # what the tar does not hold whole, and what is of an earlier attempt
    assert left == {"17.status", "17.stdout", "18.status", "18.stdout", *kept}
    assert (file_of(toy, "18", "output") / "file").exists()
    with tarfile.open(toy.account.places.output(GRID_JOB), "r:") as archive:
        assert f"{GRID_JOB}/{GRID_JOB}.17.output/file" in archive.getnames()


def test_outputs_stay_until_the_end_is_written_down(toy: ToySystem, monkeypatch: pytest.MonkeyPatch) -> None:
    fail(toy, "17")
    file_of(toy, "17", "output").mkdir()
    (file_of(toy, "17", "output") / "file").touch()

    def end(*arguments: object) -> None:
        assert toy.account.places.output(GRID_JOB).exists()
        raise OSError("no room")

    with monkeypatch.context() as patch:
        patch.setattr(collection, "_end", end)
        with pytest.raises(OSError, match="no room"):
            collect_grid_job(toy.account, GRID_JOB)
    assert file_of(toy, "17", "output").exists()
    collect_grid_job(toy.account, GRID_JOB)
    assert not file_of(toy, "17", "output").exists()


def test_outputs_that_come_back_while_the_others_are_gathered_stay(
    toy: ToySystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail(toy, "17")
    end = collection._end

    def come_back(*arguments: Any) -> None:
        file_of(toy, "17", "output").mkdir()
        (file_of(toy, "17", "output") / "file").write_text("late")
        end(*arguments)

    monkeypatch.setattr(collection, "_end", come_back)
    collect_grid_job(toy.account, GRID_JOB)
    assert (file_of(toy, "17", "output") / "file").read_text() == "late"


def test_outputs_that_cannot_be_removed_undo_no_end(toy: ToySystem, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(folder: Path, parent: int | None = None) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(collection, "remove_folder", refuse)
    fail(toy, "17")
    assert reason_of(toy) == FAILED


def test_a_link_in_place_of_an_output_is_not_followed(toy: ToySystem, tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").touch()
    fail(toy, "17")
    file_of(toy, "17", "output").symlink_to(tmp_path / "precious")
    collect_grid_job(toy.account, GRID_JOB)
    assert (tmp_path / "precious" / "file").exists()


def test_a_link_that_takes_the_place_of_the_results_while_outputs_are_removed_is_not_followed(
    toy: ToySystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail(toy, "17", "18")
    for local_id in ("17", "18"):
        file_of(toy, local_id, "output").mkdir()
        (tmp_path / file_of(toy, local_id, "output").name).mkdir()
    results = toy.account.places.results(GRID_JOB)

    def exchange_and_remove(folder: Path, parent: int | None = None) -> int:
        if parent is not None and not results.is_symlink():
            results.rename(results.with_name("elsewhere"))
            results.symlink_to(tmp_path)
        return remove_folder(folder, parent)

    monkeypatch.setattr(collection, "remove_folder", exchange_and_remove)
    collect_grid_job(toy.account, GRID_JOB)
    assert results.is_symlink()
    assert len(list(tmp_path.glob("*.output"))) == 2
    assert not list(results.with_name("elsewhere").glob("*.output"))


# --- what programs may make of the folder of results


def replace_by_link(results: Path) -> None:
    results.rename(results.with_name("elsewhere"))
    results.symlink_to("elsewhere")


def replace_by_dangling_link(results: Path) -> None:
    results.rename(results.with_name("elsewhere"))
    results.symlink_to("nowhere")


def replace_by_file(results: Path) -> None:
    results.rename(results.with_name("elsewhere"))
    results.touch()


def read_manifest(toy: ToySystem) -> Any:
    with tarfile.open(toy.account.places.output(GRID_JOB), "r:") as archive:
        member = archive.extractfile(f"{GRID_JOB}/manifest.json")
        assert member is not None
        return json.load(member)


@pytest.mark.parametrize("exchange", [replace_by_link, replace_by_dangling_link, replace_by_file])
def test_a_grid_job_whose_results_have_lost_their_folder_ends_and_says_so(
    toy: ToySystem, exchange: Callable[[Path], None]
) -> None:
    add_ended(toy, "17")
    toy.drives("17", "start 1000", "exit 0", "end 2000")
    reconcile_with_drivers(toy.account, GRID_JOB, [toy.job()])
    exchange(toy.account.places.results(GRID_JOB))
    assert do_task(toy.account, Task.COLLECT, GRID_JOB) == 0
    assert state_of(toy) is State.FAILED
    lost = "the results folder has become a link or a file: nothing of it was gathered"
    assert toy.job().cause is Cause.OUTPUTS_MISSING
    assert lost in str(toy.database.grid_jobs.get(GRID_JOB).reason)
    manifest = read_manifest(toy)
    assert manifest["refused"] == [{"path": "results", "reason": lost}]
    assert manifest["missing"] == [{"local_id": "17", "what": ["stdout", "stderr", "status"]}]


def test_a_folder_of_results_that_was_closed_is_opened_again(toy: ToySystem) -> None:
    fail(toy, "17")
    results = toy.account.places.results(GRID_JOB)
    results.chmod(0)
    assert do_task(toy.account, Task.COLLECT, GRID_JOB) == 0
    assert results.stat().st_mode & 0o777 == 0o700
    assert state_of(toy) is State.FAILED


def test_what_did_not_come_back_makes_no_success(toy: ToySystem) -> None:
    add_ended(toy, "17")
    toy.drives("17", "start 1000", "lost output/a: Permission denied", "exit 0", "end 2000")
    words = "exit code 0, but not all of its outputs came back: output/a: Permission denied"
    assert reason_of(toy) == f"1 of 1 local jobs failed, first number 1: {words}"
    assert read_manifest(toy)["missing"] == [
        {"local_id": "17", "what": ["stdout", "stderr", "output/a: Permission denied"]}
    ]
    assert read_manifest(toy)["local_jobs"] == [
        {"index": 1, "local_id": "17", "outcome": "failed", "cause": "outputs-missing"}
    ]
    job = toy.database.grid_jobs.get(GRID_JOB)
    shown = render_output(job, toy.account.places.output(GRID_JOB))
    assert "missing: 17: stdout, stderr, output/a: Permission denied\n" in shown


# --- what the tar has of the job manager's own


def read_own(toy: ToySystem, name: str) -> bytes:
    with tarfile.open(toy.account.places.output(GRID_JOB), "r:") as archive:
        member = archive.extractfile(f"{GRID_JOB}/{GRID_JOB}.{name}")
        assert member is not None
        return member.read()


def test_the_tar_has_the_log_and_the_document_as_it_will_be(toy: ToySystem, monkeypatch: pytest.MonkeyPatch) -> None:
    fail(toy, "17")
    put(toy.database, make_grid_job("aaaaaaaa", batch="toy", submitted=NOW))
    toy.database.grid_jobs.change(GRID_JOB, lambda job: job.put_problem("the disk was full", NOW))
    toy.account.places.log(GRID_JOB).write_bytes(b"what happened\nand more than fits\n")
    monkeypatch.setattr(collection, "_LONGEST_LOG", 14)
    collect_grid_job(toy.account, GRID_JOB)
    assert read_own(toy, "log") == b"what happened\n"
    document = etree.fromstring(read_own(toy, "xml"))
    assert (document.get("id"), document.get("state"), document.get("reason")) == (GRID_JOB, "failed", FAILED)
    assert b"the disk was full" not in etree.tostring(document)
    assert read_own(toy, "xml").count(b"\n") > 5, "people can read it"


def test_the_manifest_has_the_name_that_people_gave_the_grid_job(toy: ToySystem) -> None:
    fail(toy, "17")
    toy.database.grid_jobs.change(GRID_JOB, lambda job: setattr(job, "name", "tune 7"))
    collect_grid_job(toy.account, GRID_JOB)
    assert read_manifest(toy)["name"] == "tune 7"


def test_a_grid_job_without_a_log_has_an_empty_one_in_its_tar(toy: ToySystem) -> None:
    fail(toy, "17")
    collect_grid_job(toy.account, GRID_JOB)
    assert read_own(toy, "log") == b""


@pytest.mark.parametrize("make", TRAPS)
def test_what_a_program_puts_in_place_of_the_log_is_not_waited_for(
    toy: ToySystem, make: Callable[[Path], object]
) -> None:
    fail(toy, "17")
    make(toy.account.places.log(GRID_JOB))
    collect_grid_job(toy.account, GRID_JOB)
    assert read_own(toy, "log") == b""


def test_outputs_may_measure_what_the_site_says(toy: ToySystem) -> None:
    configuration = toy.account.configuration
    sandbox = replace(configuration.sandbox, max_output_files=7, max_output_size=3)
    account = Account(toy.account.places, replace(configuration, sandbox=sandbox))
    assert output_limits(account) == TarLimits(7, 3_000_000)


# --- the handler's summary


def test_a_handler_that_sums_nothing_up_costs_no_look_at_the_outputs(
    toy: ToySystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collection, "_find_outputs", None)
    fail(toy, "17")
    collect_grid_job(toy.account, GRID_JOB)
    job = toy.database.grid_jobs.get(GRID_JOB)
    assert (job.summary(), job.no_summary) == ({}, None)


def test_the_handler_sums_up_the_outputs_of_those_that_succeeded(
    toy: ToySystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sum_up(self: CommandAdapter, outputs: Sequence[Path]) -> Mapping[str, str]:
        return {"folders": " ".join(sorted(folder.name for folder in outputs))}

    monkeypatch.setattr(CommandAdapter, "getSummary", sum_up)
    fail(toy, "17", "18", "19", "20", "21")
    for local_id in ("18", "19", "20", "21"):
        toy.drives(local_id, "start 1000", "exit 0", "end 2000")
    for local_id in ("17", "18", "20"):
        file_of(toy, local_id, "output").mkdir()
    file_of(toy, "21", "output").symlink_to("/etc")
    collect_grid_job(toy.account, GRID_JOB)
    job = toy.database.grid_jobs.get(GRID_JOB)
    assert job.summary() == {"folders": f"{GRID_JOB}.18.output {GRID_JOB}.20.output"}
    assert job.no_summary is None


def test_a_summary_may_be_kept_in_place_of_the_problem_with_it(toy: ToySystem) -> None:
    toy.add(["17"])
    job = toy.database.grid_jobs.get(GRID_JOB)
    keep_summary(toy.database, job, {}, "no")
    keep_summary(toy.database, job, {"events": "7"})
    job = toy.database.grid_jobs.get(GRID_JOB)
    assert (job.summary(), job.no_summary) == ({"events": "7"}, None)


@pytest.mark.parametrize(
    ("harm", "record", "told"),
    [
        pytest.param("hung", "first\nthen\nlast\n", "HandlerHung: last", id="hung"),
        pytest.param("died", "." * 20, "HandlerError: the process that asked it has ended 20 times", id="died"),
        pytest.param("died", "." * 19, None, id="died less often"),
    ],
)
def test_a_handler_that_harms_its_process_is_not_asked_again(
    toy: ToySystem, harm: str, record: str, told: str | None
) -> None:
    fail(toy, "17")
    toy.account.places.of_handler(GRID_JOB, "summary", harm).write_text(record)
    assert reason_of(toy) == FAILED
    assert toy.database.grid_jobs.get(GRID_JOB).no_summary == told


@pytest.mark.parametrize(
    ("summary", "is_kept"),
    [
        pytest.param({str(number): "" for number in range(1000)}, True, id="as many as may be"),
        pytest.param({str(number): "" for number in range(1001)}, False, id="one more"),
        pytest.param({"long": "x" * 999_996}, True, id="as long as may be"),
        pytest.param({"long": "x" * 999_997}, False, id="longer"),
    ],
)
def test_a_summary_that_would_swell_the_document_is_left_out(
    toy: ToySystem, monkeypatch: pytest.MonkeyPatch, summary: Mapping[str, str], is_kept: bool
) -> None:
    monkeypatch.setattr(CommandAdapter, "getSummary", lambda self, outputs: summary)
    fail(toy, "17")
    assert reason_of(toy) == FAILED
    job = toy.database.grid_jobs.get(GRID_JOB)
    refusal = "HandlerError: getSummary gave more than 1000 items or 1,000,000 letters"
    assert (job.summary(), job.no_summary) == ((summary, None) if is_kept else ({}, refusal))


@pytest.mark.parametrize(
    ("error", "told"),
    [(ValueError("no"), "ValueError: no"), (SystemExit(3), "SystemExit: 3"), (TooLong(), "HandlerHung")],
    ids=["error", "exit", "no end"],
)
def test_a_handler_that_fails_costs_its_summary_only(
    toy: ToySystem, monkeypatch: pytest.MonkeyPatch, error: BaseException, told: str
) -> None:
    def sum_up(self: CommandAdapter, outputs: Sequence[Path]) -> Mapping[str, str]:
        raise error

    monkeypatch.setattr(CommandAdapter, "getSummary", sum_up)
    fail(toy, "17")
    assert reason_of(toy) == FAILED
    job = toy.database.grid_jobs.get(GRID_JOB)
    assert job.summary() == {}
    assert job.no_summary == told


@pytest.fixture
def few_at_once(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Two documents at once; how many were read together, each time."""
    read: list[int] = []
    of_store = LocalJobs._read

    def _read(self: LocalJobs, sql: str, *values: object) -> list[tuple[str, LocalJob]]:
        found = of_store(self, sql, *values)
        read.append(len(found))
        return found

    monkeypatch.setattr(LocalJobs, "_read", _read)
    for room in ("database.local_jobs", "states.changes"):
        monkeypatch.setattr(f"jobmanager.{room}.AT_ONCE", 2)
    return read


def test_the_end_of_a_large_grid_job_is_not_read_at_once(toy: ToySystem, few_at_once: list[int]) -> None:
    add_ended(toy, *(f"17_{number}" for number in range(1, 6)), exit_code=3)
    few_at_once.clear()
    collect_grid_job(toy.account, GRID_JOB)
    assert (state_of(toy), max(few_at_once)) == (State.FAILED, 2)
    assert {job.reason for job in toy.database.local_jobs.all_of(GRID_JOB)} == {"the program ended with exit code 3"}


def test_a_large_grid_job_is_tried_again_some_local_jobs_at_a_time(toy: ToySystem, few_at_once: list[int]) -> None:
    add_ended(toy, *(f"17_{number}" for number in range(1, 6)), exit_code=3)
    toy.database.grid_jobs.change(GRID_JOB, lambda job: setattr(job, "retries", 1))
    few_at_once.clear()
    collect_grid_job(toy.account, GRID_JOB)
    assert toy.states() == [State.DONE] * 5, "what failed is tried again by who submits"
    judge_failures(toy.account, GRID_JOB)
    assert max(few_at_once) == 2
    assert toy.states() == [State.UNSUBMITTED] * 5
    assert state_of(toy) is State.ACTIVE


def test_a_large_grid_job_is_cancelled_some_local_jobs_at_a_time(toy: ToySystem, few_at_once: list[int]) -> None:
    toy.add([*(f"17_{number}" for number in range(1, 6))])
    put_local_jobs(toy.database, GRID_JOB, *[LocalJob.new(number, "toy", None) for number in range(6, 11)])
    few_at_once.clear()
    cancel_local_jobs(toy.account, GRID_JOB)
    assert max(few_at_once) == 2
    assert toy.states() == [State.PENDING] * 5 + [State.FAILED] * 5
    assert all(toy.job(number).cancel_asked for number in range(1, 6))
    assert toy.calls("cancel") == ["17"]


def test_the_document_in_the_tar_is_the_whole_one(toy: ToySystem, few_at_once: list[int]) -> None:
    add_ended(toy, *(f"17_{number}" for number in range(1, 6)))
    whole = GridJob(toy.database.to_xml(GRID_JOB)[0])
    whole.put_final_state(State.DONE)
    parts = list(_render_document(toy.account, GRID_JOB, lambda job: (State.DONE, None)))
    assert (b"".join(parts), len(parts)) == (etree.tostring(whole.element, pretty_print=True), 7)
