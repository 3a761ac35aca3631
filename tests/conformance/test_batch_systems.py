"""What every batch adapter does: the same cases for all of them, each on a fake batch system that speaks its dialect.

A new adapter is tested by being in the registry: all it needs is a dialect, fakes/NAME.py.
"""

from collections import Counter
from operator import attrgetter
from pathlib import Path

import pytest

from batch_adapters.adapter import Unreachable
from batch_adapters.states import Cause, State
from jobmanager.monitor.workers import POSTPONED, TRY_LATER
from jobmanager.site.account import find_batch_system
from jobmanager.site.settings import Transfer
from jobmanager.states.reconciliation import MISSING_ANSWERS, MOST_HISTORIES
from tests.conformance.fakes.book import CANCELLED, ENDED, LOST, RUNNING
from tests.conformance.fakes.program import LATE
from tests.conformance.fakes.site import SETTLE, SYSTEMS, Site, has_dialect

COUNT = 3
"""Local jobs of a grid job: an array of two, and one alone."""


@pytest.mark.parametrize("name", SYSTEMS)
def test_every_batch_system_has_a_dialect(name: str) -> None:
    assert has_dialect(name), f"write tests/conformance/fakes/{name}.py: what the commands of {name} are told and say"


of_all_alike = pytest.mark.parametrize("site", ["slurm"], indirect=True)
"""For what no adapter has a part in."""


def check_each_was_submitted_once(site: Site, grid_job: str, count: int = COUNT) -> None:
    """The batch system has taken each local job once, and the database knows all that it has taken."""
    taken = site.taken(grid_job)
    assert Counter(job.number_in_grid_job for job in taken) == dict.fromkeys(range(1, count + 1), 1), site.calls()
    ids = [job.local_id for job in site.local_jobs(grid_job)]
    assert sorted(map(str, ids)) == sorted(map(site.dialect.local_id, taken))


def check_all_end_well(site: Site, grid_job: str, count: int = COUNT) -> None:
    """Each local job is submitted once, runs once, and its outputs are gathered."""
    check_each_was_submitted_once(site, grid_job, count)
    assert site.finish(grid_job).state is State.DONE
    assert site.counts(grid_job) == {State.DONE: count}
    assert [job.runs for job in site.taken(grid_job)] == [1] * count
    assert site.account.places.output(grid_job).exists()


def check_all_is_cancelled(site: Site, grid_job: str) -> None:
    """Nothing of a cancelled grid job is left or comes back."""
    taken = site.taken(grid_job)
    assert not [job for job in taken if job.is_live]
    ids = [str(job.local_id) for job in site.local_jobs(grid_job) if job.local_id]
    assert sorted(ids) == sorted(map(site.dialect.local_id, taken)), "what was taken is known"
    assert site.work("collect", grid_job) == 0
    assert site.database.grid_jobs.get(grid_job).state is State.FAILED
    submitted = len(site.calls("submit"))
    site.work("submit", grid_job)
    assert len(site.calls("submit")) == submitted


# --- the life of a grid job


def test_a_grid_job_runs_to_its_end(site: Site) -> None:
    site.has_programs = True
    grid_job = site.accept(COUNT, 'exit "$((SAMGRID_INDEX == 2 ? 3 : 0))"')
    assert site.submit(grid_job) == 1
    check_each_was_submitted_once(site, grid_job)
    assert site.counts(grid_job) == {State.PENDING: COUNT}
    site.run_drivers()
    assert site.reconcile() == 0
    assert site.counts(grid_job) == {State.DONE: COUNT}
    assert [job.exit_code for job in site.local_jobs(grid_job)] == [0, 3, 0]
    assert [job.driver for job in site.local_jobs(grid_job)] == ["ended"] * COUNT
    assert site.work("collect", grid_job) == 0
    grid = site.database.grid_jobs.get(grid_job)
    assert grid.state is State.FAILED
    assert str(grid.reason).startswith("1 of 3 local jobs failed, first number 2")


def test_what_failed_here_and_there_is_tried_again_in_one_submission(site: Site) -> None:
    grid_job = site.accept(COUNT, 'echo "$SAMGRID_INDEX"; [ "$SAMGRID_INDEX" = 2 ]')
    site.database.grid_jobs.change(grid_job, lambda job: setattr(job, "retries", 1))
    site.submit(grid_job)
    site.run_drivers()
    assert site.reconcile() == 0
    first = site.taken(grid_job)
    # Its answer is lost: what is found must be told apart by the same table.
    site.plan("submit", "fail-after")
    site.submit(grid_job)
    again = sorted(set(site.taken(grid_job)) - set(first), key=attrgetter("number_in_grid_job"))
    assert [(job.number_in_grid_job, job.position) for job in again] == [(1, 1), (3, 2 if site.array > 1 else 1)]
    assert len({job.token for job in again}) == (1 if site.array > 1 else 2)
    assert [str(site.local_jobs(grid_job)[index].local_id) for index in (0, 2)] == list(
        map(site.dialect.local_id, again)
    )
    site.run_drivers()
    assert [site.result(job, "stdout").read_text() for job in again] == ["1\n", "3\n"]


@pytest.mark.parametrize("site", ["condor"], indirect=True)
def test_where_files_are_carried_each_local_job_gets_what_it_needs_and_no_more(site: Site) -> None:
    site.configure(transfer=Transfer.BATCH_SYSTEM)
    grid_job = site.accept(COUNT, 'pwd; echo "$SAMGRID_INDEX" >output/file')
    assert site.submit(grid_job) == 1
    (first, *_) = taken = site.taken(grid_job)
    assert [Path(path).name for path in first.brings] == ["driver.sh", "sandbox.tar", f"{first.token}.0"]
    site.run_drivers()
    assert not [job for job in taken if str(site.folder) in site.result(job, "stdout").read_text()]
    assert [(site.result(job, "output") / "file").read_text() for job in taken] == ["1\n", "2\n", "3\n"]
    assert site.reconcile() == 0
    assert site.counts(grid_job) == {State.DONE: COUNT}


def test_local_jobs_are_seen_to_wait_to_be_held_to_run_and_to_end(site: Site) -> None:
    grid_job = site.accept(COUNT)
    site.submit(grid_job)
    assert site.reconcile() == 0
    assert site.counts(grid_job) == {State.PENDING: COUNT}
    site.hold()
    for _ in range(MISSING_ANSWERS + 1):
        site.advance(SETTLE + 1)
        assert site.reconcile() == 0
        assert site.counts(grid_job).keys() <= {State.PENDING, State.SUSPENDED}
    site.release()
    site.start()
    assert site.reconcile() == 0
    assert site.counts(grid_job) == {State.ACTIVE: COUNT}
    check_all_end_well(site, grid_job)


def test_what_is_queued_again_runs_again(site: Site) -> None:
    grid_job = site.accept(site.array)
    site.submit(grid_job)
    site.start()
    site.reconcile()
    site.advance(1)
    site.requeue()
    assert site.reconcile() == 0
    assert site.counts(grid_job) == {State.PENDING: site.array}
    assert site.finish(grid_job).state is State.DONE
    check_each_was_submitted_once(site, grid_job, site.array)
    assert [job.runs for job in site.taken(grid_job)] == [2] * site.array


def test_what_is_queued_again_after_its_end_was_told_is_not_gathered_before_it_has_run(site: Site) -> None:
    grid_job = site.accept(site.array)
    site.submit(grid_job)
    site.start()
    site.break_down()
    assert site.reconcile() == 0
    assert not site.are_open(grid_job)
    site.advance(1)
    site.requeue()
    assert site.work("collect", grid_job) == 0
    assert site.counts(grid_job) == {State.PENDING: site.array}
    assert not site.account.places.output(grid_job).exists()
    assert site.finish(grid_job).state is State.DONE


def test_the_number_of_commands_does_not_grow_with_the_number_of_local_jobs(site: Site) -> None:
    count = 10
    if site.array > 1:
        site.configure(max_array=count)
    grid_job = site.accept(count)
    site.submit(grid_job)
    submissions = len(site.calls("submit"))
    assert submissions == (1 if site.array > 1 else count)
    site.start()
    site.reconcile()
    # One question for the limit, one look.
    commands = 1 if site.adapter.queue.listing is None and not site.adapter.queue.waiting else 2
    assert len(site.calls()) <= submissions + 1 + commands
    site.end()
    site.forget()
    assert site.finish(grid_job).state is State.DONE
    # Another look, and one at the history of each of the first submissions.
    assert len(site.calls()) <= submissions + 1 + commands * (2 + min(submissions, MOST_HISTORIES))


def test_a_question_about_one_local_job_has_three_answers(site: Site) -> None:
    system = find_batch_system(site.account, site.name)
    grid_job = site.accept(site.array)
    site.submit(grid_job)
    site.start()
    for job in site.local_jobs(grid_job):
        status = system.status(str(job.local_id))
        assert status is not None
        assert status.state is State.ACTIVE
    unknown = site.taken(grid_job)[0]._replace(number=999_999, token="k3f9zq2m-1")
    assert system.status(site.dialect.local_id(unknown)) is None
    assert system.max_array() >= 1
    assert system.version() or site.adapter.version is None
    site.book.is_down = True
    with pytest.raises(Unreachable):
        system.status(str(site.local_jobs(grid_job)[0].local_id))


# --- submissions of which nobody knows what became


@pytest.mark.parametrize(
    "ways",
    [
        pytest.param(("fail-after", "cut-after", "die-after", "garbage-after", "silent-after"), id="done, not said"),
        pytest.param(("fail-before", "down-before", "silent-before"), id="not done"),
        pytest.param(("banner", "torn"), id="said badly"),
        pytest.param(("half", "half"), id="half done"),
    ],
)
def test_whatever_the_submit_command_says_each_local_job_is_submitted_once(site: Site, ways: tuple[str, ...]) -> None:
    count = site.array * len(ways)
    grid_job = site.accept(count)
    site.plan("submit", *ways)
    site.submit(grid_job)
    check_all_end_well(site, grid_job, count)


NO_ANSWERS = ("fail-after", "down-before", "die-after", "garbage-after", "torn", "banner")
FALSE_ANSWERS = ("silent-after", "stale")


@pytest.mark.parametrize(
    ("ways", "is_answer"), [(NO_ANSWERS, False), (FALSE_ANSWERS, True)], ids=["no answer", "a false one"]
)
def test_what_is_said_wrongly_of_a_submission_in_doubt_submits_nothing_again(
    site: Site, ways: tuple[str, ...], is_answer: bool
) -> None:
    grid_job = site.accept(site.array)
    site.plan("submit", "fail-after")
    site.plan(site.find_kind, *ways)
    for way in ways:
        assert site.work("submit", grid_job) == TRY_LATER or is_answer, way
        assert site.counts(grid_job) == {State.UNSUBMITTED: site.array} or is_answer, way
    site.submit(grid_job)
    assert len(site.calls("submit")) == 1
    check_all_end_well(site, grid_job, site.array)


def test_commands_that_hang_are_given_up(site: Site) -> None:
    grid_job = site.accept(site.array)
    site.plan("submit", "hang-after")
    site.plan(site.find_kind, "hang-before")
    assert site.work("submit", grid_job) == TRY_LATER
    assert "did not answer within" in site.said[-1]
    site.submit(grid_job)
    check_all_end_well(site, grid_job, site.array)


def test_a_submission_that_turns_up_late_is_found(site: Site) -> None:
    grid_job = site.accept(site.array)
    site.plan("submit", "late")
    assert site.work("submit", grid_job) == TRY_LATER
    assert site.work("submit", grid_job) == TRY_LATER
    assert "may still turn up" in site.said[-1]
    site.advance(LATE + 1)
    assert site.work("submit", grid_job) == 0
    check_all_end_well(site, grid_job, site.array)


def test_a_submission_that_turns_up_too_late_is_cancelled(site: Site) -> None:
    if site.name == "fork":
        pytest.skip("it takes a name once only, and the other submission is the same")
    site.configure(settle_time=LATE / 2)
    grid_job = site.accept(site.array)
    site.plan("submit", "late")
    assert site.work("submit", grid_job) == TRY_LATER
    site.advance(LATE / 2 + 1)
    assert site.work("submit", grid_job) == 0
    assert len(site.calls("submit")) == 2
    site.advance(LATE)
    assert site.reconcile() == 0
    assert Counter(job.state for job in site.taken(grid_job))[CANCELLED] == site.array
    assert site.finish(grid_job).state is State.DONE
    assert Counter(job.number_in_grid_job for job in site.taken(grid_job) if job.runs) == dict.fromkeys(
        range(1, site.array + 1), 1
    )


def test_a_local_job_whose_id_was_printed_but_that_is_not_there_fails_in_the_end(site: Site) -> None:
    grid_job = site.accept(site.array)
    site.plan("submit", "lost")
    site.submit(grid_job)
    for _ in range(MISSING_ANSWERS - 1):
        assert site.reconcile() == 0
        assert site.counts(grid_job) == {State.PENDING: site.array}
        site.advance(SETTLE + 1)
    assert site.reconcile() == 0
    assert site.counts(grid_job) == {State.FAILED: site.array}
    assert {job.state for job in site.book.jobs()} == {LOST}
    assert "its driver never began" in str(site.finish(grid_job).reason)


# --- looking at the batch system


def test_bad_answers_of_the_queue_end_nothing(site: Site) -> None:
    grid_job = site.accept(site.array)
    site.submit(grid_job)
    site.start()
    assert site.reconcile() == 0
    site.plan("queue", *NO_ANSWERS, *FALSE_ANSWERS)
    for way in (*NO_ANSWERS, *FALSE_ANSWERS):
        site.advance(10)
        site.reconcile()
        assert not {State.DONE, State.FAILED} & site.counts(grid_job).keys(), way
    assert site.reconcile() == 0
    assert site.counts(grid_job) == {State.ACTIVE: site.array}
    check_all_end_well(site, grid_job, site.array)


def test_bad_answers_to_the_second_question_of_two_end_nothing_and_submit_nothing_again(site: Site) -> None:
    if site.adapter.queue.listing is None:
        pytest.skip("it is asked one question at a time")
    grid_job = site.accept(site.array)
    site.plan("submit", "fail-after")
    ways = (*NO_ANSWERS, "silent-after")
    site.plan("details", *ways)
    for way in ways:
        assert site.work("submit", grid_job) == TRY_LATER, way
    site.submit(grid_job)
    assert len(site.calls("submit")) == 1
    site.start()
    assert site.reconcile() == 0
    site.plan("details", *ways)
    for way in ways:
        site.advance(SETTLE + 1)
        assert site.reconcile() == TRY_LATER, way
        assert site.counts(grid_job) == {State.ACTIVE: site.array}, way
    check_all_end_well(site, grid_job, site.array)


def test_while_nobody_answers_nothing_changes(site: Site) -> None:
    grid_job, other = site.accept(site.array), site.accept(site.array)
    site.submit(grid_job)
    site.start()
    site.book.is_down = True
    # One whose submit command finds no server knows for certain that nothing was submitted.
    assert site.work("submit", other) in (TRY_LATER, POSTPONED)
    before = [site.counts(grid_job), site.counts(other)]
    for step, subject, expected in (
        ("reconcile", site.name, {TRY_LATER}),
        ("submit", other, {TRY_LATER, POSTPONED}),
    ):
        assert site.work(step, subject) in expected
        (line,) = site.said[-1].splitlines()
        assert not line.startswith("Traceback")
        assert [site.counts(grid_job), site.counts(other)] == before
    site.advance(10 * SETTLE)
    assert site.reconcile() == TRY_LATER
    assert [site.counts(grid_job), site.counts(other)] == before
    site.book.is_down = False
    site.submit(other)
    assert site.reconcile() == 0
    assert site.counts(grid_job) == {State.ACTIVE: site.array}
    check_all_end_well(site, grid_job, site.array)
    check_all_end_well(site, other, site.array)


@of_all_alike
def test_a_silent_batch_system_is_left_alone(site: Site) -> None:
    site.configure(commands_per_minute=30)
    grid_job = site.accept(COUNT)
    site.submit(grid_job)
    asked = len(site.calls())
    site.book.is_down = True
    for _ in range(10):
        assert site.reconcile() == TRY_LATER
    assert len(site.calls()) <= asked + 3
    assert "no answer since" in site.said[-1]
    site.book.is_down = False
    site.advance(SETTLE)
    assert site.reconcile() == 0
    check_all_end_well(site, grid_job)


@of_all_alike
def test_an_account_asks_so_often_a_minute_and_no_more(site: Site) -> None:
    site.configure(commands_per_minute=5)
    grid_job = site.accept(COUNT)
    site.submit(grid_job)
    asked = len(site.calls())
    statuses = [site.reconcile() for _ in range(10)]
    assert statuses == [0] * (5 - asked) + [TRY_LATER] * (5 + asked)
    assert len(site.calls()) == 5
    assert "held back" in site.said[-1]


def test_local_jobs_that_ended_and_were_purged_before_anybody_looked_are_done(site: Site) -> None:
    grid_job = site.accept(site.array)
    site.submit(grid_job)
    site.run()
    site.forget(history_too=True)
    assert site.reconcile() == 0
    assert site.counts(grid_job) == {State.DONE: site.array}
    assert site.finish(grid_job).state is State.DONE


def test_local_jobs_that_broke_down_and_were_purged_before_anybody_looked_fail(site: Site) -> None:
    grid_job = site.accept(site.array)
    site.submit(grid_job)
    site.start()
    site.break_down()
    site.forget()
    assert site.reconcile() == 0
    # Where there is a history, it is asked at once; elsewhere patience has to do.
    assert site.are_open(grid_job) == (not site.dialect.HAS_HISTORY)
    assert site.finish(grid_job).state is State.FAILED
    assert not any(job.succeeded for job in site.local_jobs(grid_job))


def test_ids_that_are_used_again_are_other_local_jobs(site: Site) -> None:
    first = site.accept(site.array)
    site.submit(first)
    assert site.finish(first).state is State.DONE
    before = site.database.to_xml(first)
    site.advance(1000)
    site.forget()
    site.book.reuse_numbers()
    second = site.accept(site.array)
    site.submit(second)
    same = {job.local_id for job in site.local_jobs(first)} == {job.local_id for job in site.local_jobs(second)}
    # Its ids have names in them.
    assert same or site.name == "fork"
    assert site.reconcile() == 0
    assert site.counts(second) == {State.PENDING: site.array}
    check_all_end_well(site, second, site.array)
    assert [job.runs for job in site.taken(first)] == [1] * site.array
    assert site.database.to_xml(first).xpath("count(//seen)") == before.xpath("count(//seen)")


# --- cancelling


def test_a_cancelled_grid_job_leaves_nothing_of_what_waits_and_what_runs(site: Site) -> None:
    grid_job = site.accept(COUNT)
    site.submit(grid_job)
    site.start(1)
    site.reconcile()
    site.cancel(grid_job)
    assert site.work("cancel", grid_job) == 0
    assert len(site.calls("cancel")) <= COUNT
    site.settle_cancel(grid_job)
    assert not any(job.succeeded for job in site.local_jobs(grid_job))
    assert {job.state for job in site.taken(grid_job)} == {CANCELLED}
    check_all_is_cancelled(site, grid_job)


ENDED_BY_A_SIGNAL = ("sge", "torque")
"""Their records say no more of a local job that somebody cancelled; Torque's say it of one that waited, too."""


@pytest.mark.parametrize("is_running", [True, False], ids=["running", "waiting"])
def test_a_local_job_that_somebody_ends_in_the_batch_system_has_that_cause(site: Site, is_running: bool) -> None:
    system = find_batch_system(site.account, site.name)
    grid_job = site.accept(site.array)
    site.submit(grid_job)
    if is_running:
        site.start()
    ids = [str(job.local_id) for job in site.local_jobs(grid_job)]
    token = str(site.local_jobs(grid_job)[0].token)
    system.cancel(ids, token)
    site.advance(2)
    told = {status.local_id: status for status in [*system.find(token), *system.find_ended(token)]}
    ended = [status for status in told.values() if status.state is not None and status.state.is_final]
    if site.name == "oar" or (site.name == "sge" and not is_running):
        pytest.skip("it does not say")
    assert len(ended) == len(ids)
    cause = Cause.SIGNAL if site.name in ENDED_BY_A_SIGNAL else Cause.CANCELLED_OUTSIDE
    assert {status.cause for status in ended} == {cause}


def test_what_is_left_of_an_array_is_cancelled_by_few_commands(site: Site) -> None:
    count = 7
    if site.array > 1:
        site.configure(max_array=count)
    grid_job = site.accept(count)
    site.submit(grid_job)
    site.start()
    site.end(0, 3)
    site.reconcile()
    site.cancel(grid_job)
    assert site.work("cancel", grid_job) == 0
    is_one_by_one = site.adapter.cancel_at_once == 1 and not site.adapter.naming.span
    assert len(site.calls("cancel")) <= (count - 1 if is_one_by_one else 2)
    site.settle_cancel(grid_job)
    assert Counter(job.state for job in site.taken(grid_job)) == {CANCELLED: count - 1, ENDED: 1}
    check_all_is_cancelled(site, grid_job)


def test_what_has_ended_before_a_cancel_stays_as_it_ended(site: Site) -> None:
    grid_job = site.accept(COUNT)
    site.submit(grid_job)
    site.start()
    site.end(0, 1)
    site.reconcile()
    site.cancel(grid_job)
    site.settle_cancel(grid_job)
    assert [job.succeeded for job in site.local_jobs(grid_job)] == [True, False, False]
    check_all_is_cancelled(site, grid_job)


def test_a_cancel_leaves_those_alone_who_have_its_ids_since_they_began_anew(site: Site) -> None:
    first = site.accept(site.array)
    site.submit(first)
    site.start()
    site.reconcile()
    site.book.change(lambda job: job._replace(state=LOST))
    site.advance(1)
    site.book.reuse_numbers()
    second = site.accept(site.array)
    site.submit(second)
    site.start()
    site.cancel(first)
    site.settle_cancel(first)
    assert {job.state for job in site.taken(second)} == {RUNNING}
    check_all_end_well(site, second, site.array)


def test_a_cancel_command_that_misbehaves_cancels_in_the_end(site: Site) -> None:
    grid_job = site.accept(site.array)
    site.submit(grid_job)
    site.cancel(grid_job)
    site.plan("cancel", "fail-before", "down-before", "die-after", "garbage-before", "silent-before", "fail-after")
    assert site.work("cancel", grid_job) == TRY_LATER
    assert site.work("cancel", grid_job) == TRY_LATER
    site.settle_cancel(grid_job)
    check_all_is_cancelled(site, grid_job)


@pytest.mark.parametrize("way", ["half", "late"])
def test_a_cancel_while_a_submission_is_in_doubt_leaves_nothing(site: Site, way: str) -> None:
    grid_job = site.accept(site.array)
    site.plan("submit", way)
    site.plan(site.find_kind, "down-before")
    assert site.work("submit", grid_job) == TRY_LATER
    site.cancel(grid_job)
    site.settle_cancel(grid_job)
    site.advance(LATE)
    assert site.reconcile() == 0
    assert all(job.runs == 0 for job in site.taken(grid_job))
    check_all_is_cancelled(site, grid_job)
