"""Repetitions: which slices and steps they have, and what is missing of a request."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters import EVENTS, SLICING, Attribute, JobAdapter, PlannedJob, Value
from adapters.job_adapter import cut_slice
from batch_adapters.states import State
from jobmanager.commands import cli
from jobmanager.control import resubmission as recovery
from jobmanager.control.removal import NotRemovable, remove_grid_job
from jobmanager.control.resubmission import (
    Gap,
    NotRepeatable,
    Recovery,
    UnknownRequest,
    recover_request,
    repeat_grid_job,
)
from jobmanager.database.database import UnknownJob
from jobmanager.database.documents import read_ranges, render_ranges
from jobmanager.database.grid_job import GridJob
from jobmanager.database.local_job import Outcome
from jobmanager.requests.acceptance import accept_grid_job, prepare_grid_job
from jobmanager.requests.attributes import BadRequest
from jobmanager.requests.job_types import HandlerError
from jobmanager.requests.rsl import read_rsl
from jobmanager.run_grid_job import cut_grid_job
from jobmanager.site.account import Account
from jobmanager.states.registration import create_local_jobs

Given = list[tuple[str, tuple[Value, ...]]]


class Generator(JobAdapter):
    """A job type whose requests have ids of the experiment's."""

    jobType = "generator"
    requestIdAttribute = "request_id"
    attributes = (EVENTS, *SLICING, Attribute("request_id", "The experiment's own id."))

    def prepareWorkArea(self, workArea: Path) -> None:
        """Nothing is needed."""

    def getCommandAndArguments(self, localJob: PlannedJob) -> Sequence[str]:
        """Nothing is run."""
        return ["true"]


@pytest.fixture(autouse=True)
def _known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobmanager.requests.request_handler.find_job_type", lambda name, modules: types()[name])
    monkeypatch.setattr("jobmanager.control.resubmission.load_job_types", lambda modules: types())


def types() -> dict[str, type[JobAdapter]]:
    from jobmanager.requests.job_types import load_job_types

    return {**load_job_types(()), "generator": Generator}


def accept(account: Account, text: str) -> str:
    relations = read_rsl(text, {})
    return accept_grid_job(account, [(relation.name, relation.values) for relation in relations], Path("/"))


def accept_slices(account: Account, seed: str = "", request: str = "13669") -> str:
    """A grid job of four slices of ten events."""
    return accept(
        account,
        f"&(samgrid_type = generator)(events = 40)(events_per_local_job = 10)(request_id = {request}){seed}",
    )


def finish(account: Account, job_id: str, failed: Sequence[int] = ()) -> None:
    """Let a grid job end with these local jobs failed, all others done."""
    database = account.database
    job = database.grid_jobs.get(job_id)
    create_local_jobs(database, job, [part for part in cut_grid_job(job) if part.index in job.indexes])
    with database.transaction():
        local_jobs = database.local_jobs.all_of(job_id)
        for local_job in local_jobs:
            local_job.state = State.FAILED if local_job.index in failed else State.DONE
            local_job.outcome = Outcome.FAILED if local_job.index in failed else Outcome.SUCCEEDED
            if local_job.index not in failed:
                local_job.exit_code = 0
                local_job.driver, local_job.host, local_job.cpu_seconds = "ended", "node", 1.0
        database.local_jobs.put(job_id, local_jobs)
    end(account, job_id, State.FAILED if failed else State.DONE)


def end(account: Account, job_id: str, state: State) -> None:
    account.database.grid_jobs.change(job_id, lambda job: job.end(state, 1_795_219_187))


def slices(account: Account, job: GridJob) -> list[PlannedJob]:
    """The local jobs that a grid job has, once it is run."""
    return [part for part in cut_grid_job(job) if part.index in job.indexes]


@given(st.sets(st.integers(1, 300)))
def test_ranges_are_read_as_they_were_written(numbers: set[int]) -> None:
    assert read_ranges(render_ranges(numbers)) == sorted(numbers)


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        pytest.param([7], "7", id="one"),
        pytest.param([1, 2, 3], "1-3", id="a range"),
        pytest.param([9, 1, 5, 4], "1 4-5 9", id="both, in no order"),
    ],
)
def test_ranges_are_short(numbers: list[int], text: str) -> None:
    assert render_ranges(numbers) == text


def test_what_failed_keeps_its_numbers_events_and_seeds(account: Account) -> None:
    first = accept_slices(account)
    finish(account, first, failed=[2, 4])
    job = repeat_grid_job(account, first, only_failed=True)
    size, seed = account.database.grid_jobs.get(first).size_and_seed or (0, 0)
    assert (size, job.repeats, job.count, job.slice_count) == (40, first, 2, 4)
    assert slices(account, job) == [PlannedJob(index, 4, cut_slice(index, 4, 40, seed)) for index in (2, 4)]


def test_what_failed_again_is_repeated_again(account: Account) -> None:
    first = accept_slices(account)
    finish(account, first, failed=[2, 4])
    second = repeat_grid_job(account, first, only_failed=True).job_id
    finish(account, second, failed=[4])
    third = repeat_grid_job(account, second, only_failed=True)
    assert (third.indexes, third.repeats) == ([4], second)
    assert slices(account, third) == [cut_grid_job(account.database.grid_jobs.get(first))[3]]


def test_what_failed_is_made_again_by_one_repetition_at_a_time(account: Account) -> None:
    first = accept_slices(account)
    finish(account, first, failed=[1, 2, 4])
    second = repeat_grid_job(account, first, only_failed=True).job_id
    with pytest.raises(NotRepeatable, match=f"what failed in {first} is made again by {second}, which is unsubmitted"):
        repeat_grid_job(account, first, only_failed=True)
    finish(account, second, failed=[2, 4])
    third = repeat_grid_job(account, second, only_failed=True)
    with pytest.raises(NotRepeatable, match=f"made again by {third.job_id}"):
        repeat_grid_job(account, first, only_failed=True)
    finish(account, third.job_id, failed=[4])
    fourth = repeat_grid_job(account, first, only_failed=True)
    assert (fourth.indexes, fourth.repeats) == ([4], first)
    finish(account, fourth.job_id)
    with pytest.raises(NotRepeatable, match=f"has succeeded in .*{fourth.job_id}.*: nothing is missing"):
        repeat_grid_job(account, first, only_failed=True)
    with pytest.raises(NotRepeatable, match=f"has succeeded in .*{fourth.job_id}.*: nothing is missing"):
        repeat_grid_job(account, third.job_id, only_failed=True)
    assert list(repeat_grid_job(account, first, only_failed=False).indexes) == [1, 2, 3, 4]


def test_a_repetition_that_was_cancelled_leaves_it_to_the_next(account: Account) -> None:
    first = accept_slices(account)
    finish(account, first, failed=[2])
    end(account, repeat_grid_job(account, first, only_failed=True).job_id, State.FAILED)
    assert repeat_grid_job(account, first, only_failed=True).indexes == [2]


def test_two_who_repeat_at_once_make_one_repetition(account: Account, monkeypatch: pytest.MonkeyPatch) -> None:
    first = accept_slices(account)
    finish(account, first, failed=[2])
    others: list[GridJob] = []

    def prepare_late(account: Account, given: Given, folder: Path, repeated: GridJob) -> GridJob:
        if not others:
            others.append(prepare_grid_job(account, given, folder, repeated))
            others.append(repeat_grid_job(account, first, only_failed=True))
        return prepare_grid_job(account, given, folder, repeated)

    monkeypatch.setattr("jobmanager.control.resubmission.prepare_grid_job", prepare_late)
    with pytest.raises(NotRepeatable, match=f"made again by {others[1].job_id if others else ''}"):
        repeat_grid_job(account, first, only_failed=True)
    assert len(account.database.grid_jobs.overview()) == 2


def test_a_repetition_of_all_is_a_new_grid_job_of_its_own(account: Account) -> None:
    first = accept_slices(account)
    finish(account, first, failed=[2])
    job = repeat_grid_job(account, first, only_failed=False)
    assert (list(job.indexes), job.repeats) == ([1, 2, 3, 4], first)
    assert job.size_and_seed != account.database.grid_jobs.get(first).size_and_seed


def test_a_repetition_of_a_part_repeated_as_a_whole_is_that_part(account: Account) -> None:
    first = accept_slices(account)
    finish(account, first, failed=[2])
    second = repeat_grid_job(account, first, only_failed=True).job_id
    finish(account, second)
    assert repeat_grid_job(account, second, only_failed=False).indexes == [2]


@pytest.mark.parametrize("only_failed", [True, False])
def test_local_jobs_get_the_files_that_they_had_or_are_not_repeated(
    account: Account, tmp_path: Path, only_failed: bool
) -> None:
    for name in "bcd":
        (tmp_path / f"{name}.root").touch()
    given = f'(split_files = "{tmp_path}/*.root")(files_per_local_job = 2)(arguments = "{{files}}")'
    first = accept(account, f"&(samgrid_type = command)(executable = /bin/echo){given}")
    finish(account, first, failed=[2])
    again = repeat_grid_job(account, first, only_failed)
    finish(account, again.job_id, failed=[2])
    (tmp_path / "a.root").touch()
    for job_id in (first, again.job_id):
        with pytest.raises(BadRequest, match=r"split_files '/.*/\*\.root': .* has changed .*: put it back, or submit"):
            repeat_grid_job(account, job_id, only_failed)
    assert len(account.database.grid_jobs.overview()) == 2, "nothing was submitted"


def test_what_was_never_submitted_has_not_succeeded(account: Account) -> None:
    first = accept_slices(account)
    end(account, first, State.FAILED)
    assert repeat_grid_job(account, first, only_failed=True).indexes == [1, 2, 3, 4]


def test_there_must_be_something_to_repeat(account: Account) -> None:
    first = accept_slices(account)
    with pytest.raises(NotRepeatable, match="is unsubmitted: wait until it has ended, or cancel it"):
        repeat_grid_job(account, first, only_failed=False)
    finish(account, first)
    with pytest.raises(NotRepeatable, match=r"no local job of .* failed"):
        repeat_grid_job(account, first, only_failed=True)
    assert len(account.database.grid_jobs.overview()) == 1


STEPS = "&(samgrid_type = structured)(steps = (a {step}) (b {step}) (c {step}))".format(
    step="(samgrid_type generator) (events 5) (request_id 13669)"
)


def accept_steps(account: Account, *states: State) -> str:
    """A structured grid job of three steps that has failed; those that have begun are in these states."""
    job_id = accept(account, STEPS)
    for name, state in zip("abc", states, strict=False):
        part = accept(account, "&(samgrid_type = command)(executable = /bin/true)")
        end(account, part, state)
        account.database.grid_jobs.change(part, lambda job, name=name: job.put_parent(job_id, name))  # type: ignore[misc]
        account.database.grid_jobs.change(job_id, lambda job, name=name, part=part: job.begin_step(name, part))  # type: ignore[misc]
    end(account, job_id, State.DONE if states == (State.DONE,) * 3 else State.FAILED)
    return job_id


def test_steps_that_are_done_are_taken_over(account: Account) -> None:
    first = accept_steps(account, State.DONE, State.FAILED)
    job = repeat_grid_job(account, first, only_failed=True)
    before = account.database.grid_jobs.get(first).steps
    assert [step.grid_job for step in job.steps] == [before[0].grid_job, None, None]
    with pytest.raises(NotRemovable, match="is a step of"):
        remove_grid_job(account, str(before[0].grid_job))


def test_steps_that_are_done_are_taken_over_from_behind_one_that_is_not(account: Account) -> None:
    first = accept_steps(account, State.DONE, State.FAILED, State.DONE)
    job = repeat_grid_job(account, first, only_failed=True)
    before = account.database.grid_jobs.get(first).steps
    assert [step.grid_job for step in job.steps] == [before[0].grid_job, None, before[2].grid_job]


def test_steps_go_on_where_the_last_repetition_came_to(account: Account) -> None:
    first = accept_steps(account, State.DONE, State.FAILED)
    second = repeat_grid_job(account, first, only_failed=True).job_id
    with pytest.raises(NotRepeatable, match=f"made again by {second}"):
        repeat_grid_job(account, first, only_failed=True)
    part = accept(account, "&(samgrid_type = command)(executable = /bin/true)")
    end(account, part, State.DONE)
    account.database.grid_jobs.change(second, lambda job: job.begin_step("b", part))
    end(account, second, State.FAILED)
    third = repeat_grid_job(account, first, only_failed=True)
    assert (third.steps[1].grid_job, third.repeats) == (part, second)
    end(account, third.job_id, State.DONE)
    with pytest.raises(NotRepeatable, match=f"all steps of {third.job_id} are done"):
        repeat_grid_job(account, first, only_failed=True)


def test_a_repetition_of_all_steps_takes_nothing_over(account: Account) -> None:
    first = accept_steps(account, State.DONE, State.FAILED)
    job = repeat_grid_job(account, first, only_failed=False)
    assert [step.grid_job for step in job.steps] == [None, None, None]


def test_where_all_steps_are_done_there_is_nothing_to_repeat(account: Account) -> None:
    first = accept_steps(account, State.DONE, State.DONE, State.DONE)
    with pytest.raises(NotRepeatable, match=r"all steps of .* are done"):
        repeat_grid_job(account, first, only_failed=True)


def test_what_is_removed_meanwhile_is_not_repeated(account: Account, monkeypatch: pytest.MonkeyPatch) -> None:
    first = accept_steps(account, State.DONE, State.FAILED)

    def prepare_late(account: Account, given: Given, folder: Path, repeated: GridJob) -> GridJob:
        remove_grid_job(account, first)
        return prepare_grid_job(account, given, folder, repeated)

    monkeypatch.setattr("jobmanager.control.resubmission.prepare_grid_job", prepare_late)
    with pytest.raises(UnknownJob, match=first):
        repeat_grid_job(account, first, only_failed=True)
    assert account.database.grid_jobs.overview() == []


def recover(account: Account) -> tuple[Recovery, list[GridJob]]:
    return recover_request(account, "13669")


def test_a_request_that_nobody_knows_is_told_with_the_types_that_have_ids(account: Account) -> None:
    accept_slices(account, request="13670")
    with pytest.raises(UnknownRequest, match=r"no grid job belongs to request 13669; .*: .*generator"):
        recover(account)


def test_nothing_is_recovered_while_something_runs(account: Account) -> None:
    first, second = accept_slices(account), accept_slices(account)
    finish(account, first, failed=[1])
    found, jobs = recover(account)
    assert (found.running, jobs) == ((second,), [])


def test_what_is_missing_is_submitted_once(account: Account) -> None:
    first = accept_slices(account)
    finish(account, first, failed=[1, 3])
    found, (job,) = recover(account)
    assert found.gaps == (Gap(first, (1, 3)),)
    assert (job.indexes, job.repeats) == ([1, 3], first)
    assert recover(account)[0].running == (job.job_id,)
    assert len(account.database.grid_jobs.overview()) == 2


def test_what_a_repetition_has_made_is_not_missing(account: Account) -> None:
    first = accept_slices(account)
    finish(account, first, failed=[1, 2, 3])
    second = repeat_grid_job(account, first, only_failed=True).job_id
    finish(account, second, failed=[2, 3])
    third = repeat_grid_job(account, second, only_failed=True).job_id
    finish(account, third, failed=[3])
    found, (job,) = recover(account)
    assert found.gaps == (Gap(first, (3,)),)
    finish(account, job.job_id)
    assert recover(account) == (Recovery((), ()), [])


def test_a_repetition_of_the_whole_takes_the_place_of_the_first(account: Account) -> None:
    first = accept_slices(account)
    finish(account, first, failed=[1, 2])
    second = repeat_grid_job(account, first, only_failed=False).job_id
    finish(account, second, failed=[4])
    assert recover(account)[0].gaps == (Gap(second, (4,)),)


def test_slices_with_the_same_seeds_count_whoever_made_them(account: Account) -> None:
    first = accept_slices(account, seed="(seed = 7)")
    finish(account, first, failed=[1, 2])
    second = repeat_grid_job(account, first, only_failed=False).job_id
    finish(account, second, failed=[2, 4])
    assert recover(account)[0].gaps == (Gap(second, (2,)),)


def test_independent_grid_jobs_of_a_request_are_recovered_each(account: Account) -> None:
    first, second = accept_slices(account), accept_slices(account)
    finish(account, first, failed=[1])
    finish(account, second, failed=[2])
    assert set(recover(account)[0].gaps) == {Gap(first, (1,)), Gap(second, (2,))}


def test_a_repetition_that_cannot_be_read_holds_up_only_its_own_family(account: Account) -> None:
    first, second = accept_slices(account), accept_slices(account)
    finish(account, first, failed=[1])
    finish(account, second, failed=[2])
    again = repeat_grid_job(account, first, only_failed=True).job_id
    finish(account, again, failed=[1])
    finish(account, repeat_grid_job(account, again, only_failed=True).job_id, failed=[1])
    finish(account, repeat_grid_job(account, first, only_failed=True).job_id)
    with account.database.transaction():
        sql = "UPDATE grid_job SET document = substr(document, 1, length(document) - 5) WHERE id = ?"
        account.database._store.write(sql, [(again,)])
    found, (job,) = recover(account)
    assert (found.gaps, found.unknown) == ((Gap(second, (2,)),), (again,))
    assert job.repeats == second


@pytest.mark.parametrize("how", ["removed", "made anew"])
def test_what_a_repetition_has_made_counts_even_if_what_it_repeats_is_not_known_any_more(
    account: Account, how: str
) -> None:
    first = accept_slices(account)
    finish(account, first, failed=[1, 2, 3])
    second = repeat_grid_job(account, first, only_failed=True).job_id
    finish(account, second, failed=[2, 3])
    third = repeat_grid_job(account, second, only_failed=True).job_id
    finish(account, third, failed=[3])
    if how == "removed":
        remove_grid_job(account, second)
    else:
        account.database.grid_jobs.change(third, lambda job: setattr(job, "repeats", None))
    assert recover(account)[0].gaps == (Gap(first, (1, 3) if how == "removed" else (3,)),)


@pytest.mark.parametrize("left", ["substr(document, 1, 30)", "substr(document, 2)", "zeroblob(3000)"])
def test_nothing_is_made_again_while_it_is_not_known_what_a_repetition_repeats(account: Account, left: str) -> None:
    first = accept_slices(account)
    finish(account, first, failed=[1])
    again = repeat_grid_job(account, first, only_failed=True).job_id
    finish(account, again)
    with account.database.transaction():
        account.database._store.write(f"UPDATE grid_job SET document = {left} WHERE id = ?", [(again,)])
    assert recover(account) == (Recovery((), (), (again,)), [])
    with pytest.raises(NotRepeatable, match=f'failed in {first} .* {again} cannot be read .* "samgrid remove {again}"'):
        repeat_grid_job(account, first, only_failed=True)


def test_a_grid_job_that_cannot_be_read_keeps_no_other_from_being_submitted_again(
    account: Account, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = accept_slices(account), accept_slices(account)
    for job_id in (first, second):
        finish(account, job_id, failed=[1])
    with account.database.transaction():
        sql = "UPDATE grid_job SET document = substr(document, 1, length(document) - 5) WHERE id = ?"
        account.database._store.write(sql, [(first,)])
    monkeypatch.setattr("jobmanager.commands.control.wake_for", lambda *_: None)
    assert cli.main(["resubmit", first, second, "--failed", "--state-dir", str(account.places.root)]) == 1
    said = capsys.readouterr()
    assert account.database.grid_jobs.get(said.out.strip()).repeats == second
    assert said.err.startswith("samgrid resubmit: ")
    assert first in said.err


def test_what_cannot_be_recovered_is_named_with_the_way_out(
    account: Account, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(recovery, "recover_request", lambda *_: (Recovery((), (), ("aaaaaaaa",)), []))
    assert cli.main(["recover", "--request", "13669", "--state-dir", str(account.places.root)]) == 1
    error = capsys.readouterr().err
    assert all(words in error for words in ("aaaaaaaa cannot", '"samgrid repair"', '"samgrid remove aaaaaaaa"'))


def test_a_structured_grid_job_is_recovered_from_its_first_step_that_is_not_done(account: Account) -> None:
    first = accept_steps(account, State.DONE, State.FAILED)
    found, (job,) = recover(account)
    assert found.gaps == (Gap(first, ()),)
    assert [step.name for step in job.steps if step.grid_job] == ["a"]
    end(account, job.job_id, State.DONE)
    assert recover(account) == (Recovery((), ()), [])


def test_a_type_that_is_gone_keeps_no_other_request_from_being_recovered(
    account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish(account, accept_slices(account), failed=[1])
    accept_steps(account, State.DONE, State.FAILED)
    known = {name: handler for name, handler in types().items() if name != "structured"}

    def find(name: str, modules: Sequence[str]) -> type[JobAdapter]:
        if name not in known:
            raise HandlerError(f"no job type {name}")
        return known[name]

    monkeypatch.setattr("jobmanager.requests.request_handler.find_job_type", find)
    assert [gap.indexes for gap in recover(account)[0].gaps] == [(1,)]


def test_a_recovery_that_comes_in_between_leaves_nothing_to_do(
    account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = accept_slices(account)
    finish(account, first, failed=[1])
    prepare = recovery._prepare_gap
    made: list[str] = []

    def prepare_late(account: Account, gap: Gap) -> GridJob:
        if not made:
            made.append(first)
            recover(account)
        return prepare(account, gap)

    monkeypatch.setattr(recovery, "_prepare_gap", prepare_late)
    found, jobs = recover(account)
    assert (len(found.running), jobs) == (1, [])
    assert len(account.database.grid_jobs.overview()) == 2
