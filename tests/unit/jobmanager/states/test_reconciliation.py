"""What the batch system's answers, the drivers and the history make of local jobs whose events were lost."""

from collections.abc import Sequence
from contextlib import suppress

import pytest

from batch_adapters.adapter import BatchError, Garbled, LocalStatus, Unreachable
from batch_adapters.running.batch_system import BatchSystem
from batch_adapters.running.rate_limiter import RateLimited
from batch_adapters.states import Cause, Event, State
from jobmanager.database.local_job import Evidence
from jobmanager.database.local_jobs import Blocked
from jobmanager.states.changes import change_local_jobs, same_runs
from jobmanager.states.driver_status import reconcile_with_drivers
from jobmanager.states.reconciliation import MOST_HISTORIES, reconcile_batch_system
from jobmanager.states.registration import apply_events, register_local_jobs
from jobmanager.views.grid_jobs import render_details
from tests.unit.toy_system import GRID_JOB, NOW, SETTLE, TOKEN, ToySystem

PENDING, ACTIVE, SUSPENDED, DONE, FAILED = (
    State.PENDING, State.ACTIVE, State.SUSPENDED, State.DONE, State.FAILED,
)  # fmt: skip


def look(toy: ToySystem) -> None:
    reconcile_batch_system(toy.account, "toy")


# --- what the answer shows


@pytest.mark.parametrize(
    ("line", "state", "exit_code", "wait_reason"),
    [
        pytest.param(f"17_1 CD {TOKEN} 3", DONE, 3, None, id="an end that no event told"),
        pytest.param(f"17_1 F {TOKEN} 9 NodeFail", FAILED, 9, None, id="a failure"),
        pytest.param(f"17_1 PD {TOKEN} -", PENDING, None, None, id="queued again"),
        pytest.param(f"17_1 PD {TOKEN} - JobHeldUser", PENDING, None, "JobHeldUser", id="held"),
        pytest.param(f"17_1 S {TOKEN} -", SUSPENDED, None, None, id="suspended"),
        pytest.param(f"17_1 R {TOKEN} -", ACTIVE, None, None, id="nothing new"),
        pytest.param(f"17_1 ?? {TOKEN} -", ACTIVE, None, None, id="an unknown native state"),
    ],
)
def test_what_the_queue_shows_counts(
    toy: ToySystem, line: str, state: State, exit_code: int | None, wait_reason: str | None
) -> None:
    toy.add(["17_1"], ACTIVE)
    toy.answers("queue", line)
    look(toy)
    job = toy.job()
    assert (job.state, job.exit_code, job.wait_reason) == (state, exit_code, wait_reason)
    assert {(seen.source, seen.when) for seen in job.evidence()} == ({("queue", NOW)} if state is not ACTIVE else set())
    assert toy.database.events.missing("toy") == {}


def test_the_grid_jobs_state_goes_along(toy: ToySystem) -> None:
    toy.add(["17_1"], ACTIVE)
    toy.answers("queue", f"17_1 CD {TOKEN} 0")
    look(toy)
    assert toy.database.grid_jobs.get(GRID_JOB).state is State.STAGE_OUT


def test_whose_end_the_queue_shows_its_driver_is_asked(toy: ToySystem) -> None:
    toy.add(["17_1"], ACTIVE)
    toy.answers("queue", f"17_1 F {TOKEN} 9 NodeFail")
    toy.drives("17_1", "start 1000", "exit 0", "end 2000")
    look(toy)
    assert (toy.job().state, toy.job().exit_code, toy.job().succeeded) == (DONE, 0, True)


def test_why_a_job_waits_is_told_until_it_is_over(toy: ToySystem) -> None:
    toy.add(["17_1"])
    wait_reasons = []
    for reason in ("JobHeldUser", "Resources", ""):
        toy.answers("queue", f"17_1 PD {TOKEN} - {reason}".strip())
        look(toy)
        wait_reasons.append(toy.job().wait_reason)
        (row,) = toy.database.grid_jobs.overview(GRID_JOB)
        is_blocked = "waits" not in render_details(toy.account, row, NOW)
        assert is_blocked == (reason == "JobHeldUser"), "who is not blocked is sent to explain"
    assert wait_reasons == ["JobHeldUser", "Resources", None]


def test_what_blocks_a_local_job_is_kept_with_what_helps_until_it_goes_on(toy: ToySystem) -> None:
    toy.add(["17_1", "17_2", "17_3"])
    held = [f"17_{n} PD {TOKEN} - JobHeldUser" for n in (1, 2)]
    toy.answers("queue", *held, f"17_3 PD {TOKEN} - Resources")
    look(toy)
    (blocked,) = toy.database.local_jobs.blocked(GRID_JOB)
    assert blocked == Blocked(2, 1, "JobHeldUser", "toy release 17_1")
    assert toy.database.grid_jobs.overview(GRID_JOB)[0].blocked == 2
    toy.answers("queue", f"17_1 R {TOKEN} -", f"17_2 PD {TOKEN} - Priority", f"17_3 CD {TOKEN} 0")
    look(toy)
    assert toy.database.local_jobs.blocked(GRID_JOB) == []
    assert toy.database.grid_jobs.overview(GRID_JOB)[0].blocked == 0


@pytest.mark.parametrize("before", [PENDING, ACTIVE, SUSPENDED])
def test_what_is_on_its_way_out_stays_what_it_was(toy: ToySystem, before: State) -> None:
    toy.add(["17_1"], before)
    toy.answers("queue", f"17_1 CG {TOKEN} - removed by root")
    look(toy)
    job = toy.job()
    assert (job.state, job.wait_reason, job.helps) == (before, "CG: removed by root", "toy kill 17")


@pytest.mark.parametrize(
    ("line", "caught", "state"),
    [
        pytest.param(f"17_1 S {TOKEN} - held", "caught TERM 1002", SUSPENDED, id="held"),
        pytest.param(f"17_1 PD {TOKEN} - JobHeldUser", "caught TERM 1002", PENDING, id="queued again"),
        pytest.param(f"17_1 R {TOKEN} -", "caught TERM 1002", DONE, id="about to go"),
        pytest.param(f"17_1 R {TOKEN} -", "caught TERM 1002", ACTIVE, id="runs again"),
        pytest.param(f"17_1 R {TOKEN} -", "signal KILL", ACTIVE, id="was killed and runs again"),
        pytest.param(f"17_1 CG {TOKEN} -", "caught TERM 1002", DONE, id="going"),
        pytest.param("17_1 S otherjob-1 - held", "caught TERM 1002", DONE, id="an id that was used again"),
        pytest.param(f"17_1 S {TOKEN} - held", "caught TERM 1003 9", DONE, id="told after its end"),
    ],
)
def test_an_end_that_the_driver_was_told_to_make_is_taken_back_where_it_is_alive_again(
    toy: ToySystem, line: str, caught: str, state: State
) -> None:
    toy.add(["17_1", "17_2", "17_3"], ACTIVE)
    run = ("start 1000", "pid 5", caught, "exit 143", "end 1003")
    for local_id in ("17_1", "17_3"):
        toy.drives(local_id, *run)
    cancelled = same_runs(GRID_JOB, [toy.job(3)])
    change_local_jobs(toy.database, GRID_JOB, cancelled, lambda job: setattr(job, "cancel_asked", NOW))
    reconcile_with_drivers(toy.account, GRID_JOB, [toy.job(), toy.job(3)])
    assert toy.job().state is DONE
    if state is ACTIVE:
        toy.drives("17_1", *run, "", "start 1004", "pid 6")
    # These are shown first.
    others = ("2 CG fits.sh -", "3 R fits.sh -", "4 PD fits.sh -", f"17_3 S {TOKEN} - held")
    toy.answers("queue", *others, line, f"17_2 R {TOKEN} -")
    for _ in range(2):
        look(toy)
        assert toy.states() == [state, ACTIVE, DONE]
    if state is SUSPENDED:
        assert toy.job().wait_reason == "held"
    assert toy.calls("cancel") == []


def test_why_an_end_came_that_a_driver_recorded_is_kept_while_the_queue_still_says_so(toy: ToySystem) -> None:
    toy.change_adapter(causes={"CA": Cause.CANCELLED_OUTSIDE})
    toy.add(["17_1", "17_2", "17_3"], ACTIVE)
    for local_id in ("17_1", "17_3"):
        toy.drives(local_id, "start 1000", "caught TERM 1002", "exit 143", "end 1003")
    reconcile_with_drivers(toy.account, GRID_JOB, [toy.job(), toy.job(3)])
    toy.answers("queue", f"17_1 CA {TOKEN} -", f"17_2 R {TOKEN} -", "17_3 CA otherjob-1 -")
    look(toy)
    toy.answers("queue", f"17_2 R {TOKEN} -")
    look(toy)
    assert [job.cause for job in toy.database.local_jobs.all_of(GRID_JOB)] == [
        Cause.CANCELLED_OUTSIDE, None, Cause.SIGNAL,
    ]  # fmt: skip


def test_where_an_end_is_taken_back_nothing_is_said_of_gathering_any_more(toy: ToySystem) -> None:
    toy.add(["17_1"], ACTIVE)
    toy.drives("17_1", "start 1000", "caught TERM 1002", "exit 143", "end 1003")
    reconcile_with_drivers(toy.account, GRID_JOB, [toy.job()])
    toy.database.grid_jobs.change(GRID_JOB, lambda job: job.put_problem("collect: waits up to 60 s", NOW))
    toy.answers("queue", f"17_1 PD {TOKEN} - JobHeldUser")
    look(toy)
    assert toy.database.grid_jobs.get(GRID_JOB).problem is None


def test_the_end_of_a_grid_job_that_is_over_is_not_taken_back(toy: ToySystem) -> None:
    toy.add(["17_1"], ACTIVE)
    toy.drives("17_1", "start 1000", "caught TERM 1002", "exit 143", "end 1003")
    reconcile_with_drivers(toy.account, GRID_JOB, [toy.job()])
    toy.database.grid_jobs.change(GRID_JOB, lambda job: job.end(FAILED, NOW))
    toy.answers("queue", f"17_1 S {TOKEN} - held")
    look(toy)
    assert toy.states() == [DONE]


def test_what_has_ended_is_blocked_no_more(toy: ToySystem) -> None:
    toy.add(["17_1"])
    toy.answers("queue", f"17_1 PD {TOKEN} - JobHeldUser")
    look(toy)
    apply_events(toy.database, "toy", [Event(NOW + 1, "17_1", FAILED)])
    assert (toy.job().wait_reason, toy.job().helps) == (None, None)


def test_a_queue_longer_than_anybody_reads_is_asked_about_our_tokens(
    toy: ToySystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    toy.add(["17_1", "17_2"])
    monkeypatch.setattr("batch_adapters.running.commands.MAX_OUTPUT", 200)
    toy.answers("queue", *(f"{n}_1 R otherjob-1 -" for n in range(99)))
    toy.answers("find", f"17_1 CD {TOKEN} 0", f"17_2 R {TOKEN} -")
    look(toy)
    assert [toy.job(index).state for index in (1, 2)] == [DONE, ACTIVE]
    assert toy.calls("find") == [TOKEN]


def test_what_says_nothing_new_is_not_even_read(toy: ToySystem, monkeypatch: pytest.MonkeyPatch) -> None:
    toy.add(["17_1", "17_2"])
    toy.answers("queue", f"17_1 PD {TOKEN} - Priority", f"17_2 PD {TOKEN} -")
    look(toy)
    monkeypatch.setattr(type(toy.database.local_jobs), "get", None)
    look(toy)


def test_an_id_that_was_used_again_for_another_token_is_not_ours(toy: ToySystem) -> None:
    toy.add(["17_1"], PENDING)
    toy.answers("queue", "17_1 R otherjob-1 -")
    look(toy)
    assert toy.states() == [PENDING]
    assert toy.database.events.missing("toy") == {"17_1": (1, NOW)}
    toy.answers("history", f"17_1 CD {TOKEN} 0")
    look(toy)
    assert toy.states() == [DONE]


def test_an_end_that_was_told_while_the_question_was_asked_stays(
    toy: ToySystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    def query(system: BatchSystem) -> list[LocalStatus]:
        apply_events(toy.database, "toy", [Event(NOW, "17_1", DONE, 7)])
        return [LocalStatus("17_1", "R", ACTIVE, token=TOKEN)]

    toy.add(["17_1"], ACTIVE)
    monkeypatch.setattr(BatchSystem, "query", query)
    look(toy)
    assert (toy.job().state, toy.job().exit_code) == (DONE, 7)


# --- what it does not show


def test_the_drivers_record_is_a_second_witness(toy: ToySystem) -> None:
    toy.add(["17_1", "17_2"], ACTIVE)
    toy.drives("17_1", "start 1000", "exit 3", "end 2000")
    toy.drives("17_2", "start 1000")
    look(toy)
    assert toy.states() == [DONE, ACTIVE]
    first = toy.job()
    assert (first.exit_code, first.driver, first.evidence()) == (
        3, "ended", [Evidence("driver", "end, exit code 3", 2000, "done", DONE)],
    )  # fmt: skip


def test_a_record_of_an_end_without_exit_code_is_no_witness(toy: ToySystem) -> None:
    toy.add(["17_1"], ACTIVE)
    toy.drives("17_1", "start 1000", "end 2000")
    look(toy)
    assert toy.states() == [ACTIVE]


def test_an_end_that_is_told_while_witnesses_are_asked_for_stays(
    toy: ToySystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    def query(system: BatchSystem) -> list[LocalStatus]:
        apply_events(toy.database, "toy", [Event(NOW, "17_1", FAILED, 9)])
        return []

    toy.add(["17_1"], ACTIVE)
    toy.drives("17_1", "start 1000", "exit 0", "end 2000")
    monkeypatch.setattr(BatchSystem, "query", query)
    look(toy)
    assert (toy.job().state, toy.job().exit_code) == (DONE, 0), "the driver's record beats the log"
    assert [seen.source for seen in toy.job().evidence()] == ["log", "driver"]


def test_an_end_that_is_told_at_the_last_moment_is_not_given_up(
    toy: ToySystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    def find_ended(system: BatchSystem, token: str) -> list[LocalStatus]:
        if toy.now == NOW + SETTLE:
            apply_events(toy.database, "toy", [Event(toy.now, "17_1", DONE, 0)])
        return []

    toy.add(["17_1"], ACTIVE)
    monkeypatch.setattr(BatchSystem, "find_ended", find_ended)
    for toy.now in (NOW, NOW + 1, NOW + SETTLE):
        look(toy)
    assert (toy.job().state, toy.job().exit_code, toy.job().reason) == (DONE, 0, None)


def test_a_witnessed_end_costs_no_question_about_its_history(toy: ToySystem) -> None:
    toy.add(["17_1"], ACTIVE)
    toy.drives("17_1", "start 1000", "exit 0", "end 2000")
    look(toy)
    assert toy.calls("history") == []


@pytest.mark.parametrize(
    ("line", "state", "exit_code"),
    [
        pytest.param(f"17_1 CD {TOKEN} 0", DONE, 0, id="done"),
        pytest.param(f"17_1 F {TOKEN} 9", FAILED, 9, id="failed"),
        pytest.param(f"17_1 CA {TOKEN} -", FAILED, 0, id="cancelled"),
        pytest.param(f"17_1 R {TOKEN} -", PENDING, None, id="alive is no end"),
        pytest.param(f"17_1 ?? {TOKEN} -", PENDING, None, id="an unknown word is no end"),
        pytest.param("17_1 CD otherjob-1 0", PENDING, None, id="of another token"),
        pytest.param(f"17_2 CD {TOKEN} 0", PENDING, None, id="of another job"),
    ],
)
def test_the_history_is_a_second_witness_for_what_was_purged_before_anybody_looked(
    toy: ToySystem, line: str, state: State, exit_code: int | None
) -> None:
    toy.add(["17_1"])
    toy.answers("history", line)
    look(toy)
    assert (toy.job().state, toy.job().exit_code) == (state, exit_code)
    assert [seen.source for seen in toy.job().evidence()] == ["history"] * state.is_final


@pytest.mark.parametrize(
    ("times", "state"),
    [
        pytest.param([0], ACTIVE, id="once"),
        pytest.param([0, 1000], ACTIVE, id="twice"),
        pytest.param([0, 1, SETTLE - 1], ACTIVE, id="too soon"),
        pytest.param([0, 1, SETTLE], FAILED, id="three times and for long enough"),
        pytest.param([0, 1, 2, 3, SETTLE], FAILED, id="more often"),
    ],
)
@pytest.mark.parametrize("has_history", [True, False], ids=["history", "no history"])
def test_absence_is_believed_after_some_answers_and_some_time(
    toy: ToySystem, times: Sequence[int], state: State, has_history: bool
) -> None:
    if not has_history:
        toy.change_adapter(history=None)
    toy.add(["17_1"], ACTIVE)
    for seconds in times:
        toy.now = NOW + seconds
        look(toy)
    assert toy.states() == [state]
    if state is FAILED:
        assert toy.job().cause is Cause.NODE_LOST
        assert toy.job().evidence()[-1].verdict.startswith("failed: toy no longer knows it")
        assert toy.job().evidence()[-1].source == "us"


@pytest.mark.parametrize("token", [pytest.param("", id="none any more"), pytest.param(TOKEN, id="its own")])
def test_what_is_shown_by_its_id_alone_is_not_given_up(toy: ToySystem, token: str) -> None:
    toy.add(["17_1", "17_2", "17_3", "17_4", "17_5"], ACTIVE)
    renamed = ("17_4 R my-favourite -", "17_5 CA my-favourite -")
    toy.answers("status", f"17_1 R {token} -", f"17_2 PD {token} -", "17_3 R otherjob-1 -", *renamed)
    for toy.now in (NOW, NOW + 1, NOW + SETTLE):
        look(toy)
    assert toy.states() == [ACTIVE, PENDING, FAILED, ACTIVE, FAILED]
    assert toy.calls("status") == ["17"], "once for the array, when it would be given up"


def test_what_was_renamed_is_known_by_what_it_was_submitted_with(toy: ToySystem) -> None:
    toy.add(["17_1", "17_2", "18_1"], ACTIVE)
    toy.answers("queue", "17_1 R nightly -", "17_2 PD nightly -", "18_1 R nightly -", "19_1 R theirs -")
    toy.answers("tokens", f"17 {TOKEN}", "18 otherjob-1")
    for toy.now in (NOW, NOW + 1, NOW + SETTLE):
        look(toy)
    assert toy.states() == [ACTIVE, PENDING, FAILED], "the id of the last one was given to another job"
    assert set(toy.calls("tokens")) == {"17 18"}
    assert toy.calls("cancel") == []


def test_outputs_may_be_later_than_submissions(toy: ToySystem) -> None:
    toy.change_adapter(outputs_lag=500)
    toy.add(["17_1"], ACTIVE)
    for toy.now in (NOW, NOW + 1, NOW + 499):
        look(toy)
    assert toy.states() == [ACTIVE]
    toy.now = NOW + 500
    look(toy)
    assert toy.states() == [FAILED]


def test_who_was_missing_before_the_clock_was_set_back_is_not_waited_for_until_it_has_caught_up(toy: ToySystem) -> None:
    toy.add(["17_1"], ACTIVE)
    for toy.now in (NOW + 10**8, NOW, NOW + 1, NOW + 500):
        look(toy)
    assert toy.states() == [FAILED]


def test_who_is_shown_in_between_is_not_missing(toy: ToySystem) -> None:
    toy.add(["17_1"], ACTIVE)
    for seconds, lines in enumerate([[], [], [f"17_1 R {TOKEN} -"], [], []]):
        toy.now = NOW + 100 * seconds
        toy.answers("queue", *lines)
        look(toy)
    assert toy.states() == [ACTIVE]
    assert toy.database.events.missing("toy") == {"17_1": (2, NOW + 300)}


def test_what_is_submitted_while_the_question_is_asked_is_not_missing(
    toy: ToySystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    def query(system: BatchSystem) -> list[LocalStatus]:
        register_local_jobs(toy.database, GRID_JOB, {1: "17"}, toy.adapter.naming)
        return []

    toy.add([None])
    monkeypatch.setattr(BatchSystem, "query", query)
    look(toy)
    assert toy.ids() == ["17"]
    assert toy.database.events.missing("toy") == {}


def add_tokens(toy: ToySystem, number: int) -> None:
    """A grid job of so many local jobs that run, each under a token of its own."""
    toy.add([f"17_{index}" for index in range(1, number + 1)], ACTIVE)
    with toy.database.transaction():
        jobs = toy.database.local_jobs.all_of(GRID_JOB)
        for job in jobs:
            job.intend(f"{GRID_JOB}-{job.index:02}", NOW)
        toy.database.local_jobs.put(GRID_JOB, jobs)


def test_so_many_histories_are_asked_for_at_once(toy: ToySystem) -> None:
    add_tokens(toy, MOST_HISTORIES + 2)
    look(toy)
    assert len(set(toy.calls("history"))) == len(toy.calls("history")) == MOST_HISTORIES


def test_an_array_has_one_history(toy: ToySystem) -> None:
    toy.add(["17_1", "17_2", "17_3"])
    look(toy)
    assert toy.calls("history") == [TOKEN]


def test_nothing_is_given_up_before_its_history_was_asked_for(toy: ToySystem) -> None:
    add_tokens(toy, MOST_HISTORIES + 2)
    for toy.now in (NOW, NOW + 1, NOW + SETTLE):
        look(toy)
    assert toy.states() == [FAILED] * MOST_HISTORIES + [ACTIVE] * 2
    look(toy)
    assert toy.states() == [FAILED] * (MOST_HISTORIES + 2)


# --- no answer


@pytest.mark.parametrize(
    ("script", "error"),
    [
        pytest.param("echo connection refused >&2; exit 1", Unreachable, id="nobody"),
        pytest.param(f"echo 17_1 CD {TOKEN} 0; kill -9 $$", Unreachable, id="killed after an answer"),
        pytest.param(f"echo 17_1 CD {TOKEN} 0; echo '<html>'", Garbled, id="garbled"),
        pytest.param(f"printf '17_1 CD {TOKEN} 0'", Garbled, id="torn"),
        pytest.param("echo strange >&2; exit 77", Garbled, id="a strange exit code"),
    ],
)
def test_where_nobody_answers_drivers_are_believed(toy: ToySystem, script: str, error: type[BatchError]) -> None:
    toy.add(["17_1", "17_2"], ACTIVE)
    toy.drives("17_2", "start 1000", "exit 0", "end 2000")
    before = toy.documents()
    toy.does("queue", script)
    for toy.now in (NOW, NOW + 100, NOW + 200, NOW + 300):
        with pytest.raises(error):
            look(toy)
    assert toy.documents()[0] == before[0]
    assert toy.states() == [ACTIVE, DONE]
    assert toy.database.events.missing("toy") == {}


def test_without_an_answer_of_the_history_nothing_is_given_up_for_an_hour(toy: ToySystem) -> None:
    toy.add(["17_1", "17_2"], ACTIVE)
    before = toy.documents()
    toy.does("history", "exit 1")
    for seconds in (0, 100, 200, 3599, 3600):
        assert toy.documents() == before
        toy.now = NOW + seconds
        toy.answers("status", *[f"17_2 R {TOKEN} -"] * (seconds == 3600))
        with pytest.raises(Unreachable):
            look(toy)
    assert (toy.states(), toy.job().cause) == ([FAILED, ACTIVE], Cause.NODE_LOST)
    assert "its history does not answer" in toy.job().evidence()[-1].verdict


@pytest.mark.parametrize(
    ("script", "states"),
    [
        pytest.param("exit 1", [FAILED, ACTIVE, ACTIVE], id="one silence is that of the whole history"),
        pytest.param(f"[ $2 != {GRID_JOB}-01 ] || echo '<html>'", [FAILED] * 3, id="one strange answer is not"),
    ],
)
def test_only_a_history_that_was_asked_is_silent(toy: ToySystem, script: str, states: list[State]) -> None:
    add_tokens(toy, 3)
    toy.does("history", script)
    for toy.now in (NOW, NOW + 1, NOW + 3600):
        with pytest.raises((Unreachable, Garbled)):
            look(toy)
    assert toy.states() == states


def test_a_question_that_was_not_asked_is_no_silence(toy: ToySystem, monkeypatch: pytest.MonkeyPatch) -> None:
    def limit(system: BatchSystem, token: str) -> list[LocalStatus]:
        raise RateLimited("later")

    toy.add(["17_1"], ACTIVE)
    monkeypatch.setattr(BatchSystem, "find_ended", limit)
    for toy.now in (NOW, NOW + 1, NOW + 7200):
        with pytest.raises(RateLimited):
            look(toy)
    assert toy.states() == [ACTIVE]


# --- what nobody wants


@pytest.mark.parametrize("history", [":", "exit 1"], ids=["answers", "does not answer"])
def test_what_was_submitted_behind_our_back_is_cancelled(toy: ToySystem, history: str) -> None:
    toy.add(["17_1", "17_2", "17_3"], ACTIVE)
    ours = (f"{array}_{index} R {TOKEN} -" for array in (17, 18) for index in (1, 2))
    toy.answers("queue", "3 R fits.sh -", *ours)
    toy.does("history", history)
    with suppress(Unreachable):
        look(toy)
    assert toy.calls("cancel") == ["18_1 18_2"]
    assert toy.states() == [ACTIVE] * 3


def test_what_others_have_submitted_is_left_alone(toy: ToySystem) -> None:
    toy.add(["17_1"], ACTIVE)
    toy.answers("queue", f"17_1 R {TOKEN} -", "18_1 R zzzzzzzz-1 -", "19 R fits.sh -")
    look(toy)
    assert toy.calls("cancel") == []
