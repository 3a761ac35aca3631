"""A submission of which nobody knows what became of it: looked for everywhere, adopted, or never made."""

from dataclasses import replace

import pytest

from batch_adapters.adapter import BatchError, Garbled, Unreachable
from batch_adapters.states import State
from jobmanager.database.local_job import Evidence, LocalJob
from jobmanager.states.changes import change_local_jobs, of_token
from jobmanager.submission.adoption import Unsettled, adopt
from jobmanager.submission.submit import open_intents as find_intents
from jobmanager.submission.submit import renew_intent, write_intent
from tests.unit.toy_system import GRID_JOB, NOW, SETTLE, TOKEN, ToySystem


def look(toy: ToySystem, token: str = TOKEN) -> bool:
    return adopt(toy.account, toy.system, GRID_JOB, token)


# --- where it is found


@pytest.mark.parametrize(
    ("where", "questions"),
    [("find", ["find"]), ("history", ["find", "history"]), ("drivers", ["find", "history"])],
    ids=["queue", "history", "drivers"],
)
def test_it_is_found_the_way_that_a_local_job_goes(toy: ToySystem, where: str, questions: list[str]) -> None:
    toy.add([None, None])
    if where == "drivers":
        for index in (1, 2):
            toy.drives(f"17_{index}", "start 1000", f"index {index}", f"token {TOKEN}")
    else:
        toy.answers(where, f"17_1 R {TOKEN} -", f"17_2 CD {TOKEN} 0")
    assert look(toy)
    assert toy.ids() == ["17_1", "17_2"]
    assert toy.states() == [State.PENDING] * 2, "events and reconciliation say more"
    assert {job.array for job in toy.database.local_jobs.all_of(GRID_JOB)} == {"17"}
    assert [name for name in ("find", "history") if toy.calls(name)] == questions


def test_it_is_found_under_the_name_that_the_batch_system_gave_it(toy: ToySystem) -> None:
    toy.add([None, None])
    toy.answers("queue", "16_1 R theirs -", "17_1 PD site-name -", "17_2 PD site-name -", "18_1 R otherjob-1 -")
    toy.answers("tokens", "16 theirs", f"17 {TOKEN}")
    assert look(toy)
    assert toy.ids() == ["17_1", "17_2"]
    assert toy.calls("tokens") == ["16 17"], "another token of ours is no new name"


def test_what_is_not_found_by_its_name_is_looked_for_in_the_whole_queue(toy: ToySystem) -> None:
    toy.change_adapter(tokens=None)
    toy.add([None])
    toy.answers("queue", f"17_1 PD {TOKEN} -")
    assert look(toy)
    assert toy.ids() == ["17_1"]


def test_what_all_drivers_prove_needs_no_answer(toy: ToySystem) -> None:
    toy.add([None, None])
    toy.does("find", "echo connection refused >&2; exit 1")
    toy.drives("17_1", "start 1000", "index 1", f"token {TOKEN}")
    with pytest.raises(Unreachable):
        look(toy)
    toy.drives("17_2", "start 1000", "index 2", f"token {TOKEN}")
    assert look(toy)
    assert toy.ids() == ["17_1", "17_2"]


def test_its_parts_may_be_in_different_places(toy: ToySystem) -> None:
    toy.add([None, None, None])
    toy.answers("find", f"17_3 PD {TOKEN} -")
    toy.answers("history", f"17_1 CD {TOKEN} 0")
    toy.drives("17_2", "start 1000", "index 2", f"token {TOKEN}")
    assert look(toy)
    assert toy.ids() == ["17_1", "17_2", "17_3"]


def test_positions_count_from_the_first_local_job_of_the_token(toy: ToySystem) -> None:
    toy.add(["16_1", "16_2", None, None])
    with toy.database.transaction():
        jobs = toy.database.local_jobs.all_of(GRID_JOB)[2:]
        for job in jobs:
            job.intend(f"{GRID_JOB}-2", NOW)
        toy.database.local_jobs.put(GRID_JOB, jobs)
    toy.answers("find", f"17_1 R {GRID_JOB}-2 -", f"17_2 R {GRID_JOB}-2 -")
    assert look(toy, f"{GRID_JOB}-2")
    assert toy.ids() == ["16_1", "16_2", "17_1", "17_2"]


def test_positions_count_over_the_gaps_between_the_local_jobs_of_a_token(toy: ToySystem) -> None:
    toy.add([None] * 6, token=None)
    toy.database.grid_jobs.change(GRID_JOB, lambda job: setattr(job, "last_token", f"{GRID_JOB}-1"))
    with toy.database.transaction():
        jobs = [toy.job(index) for index in (2, 4, 5)]
        for job in jobs:
            job.intend(f"{GRID_JOB}-2", NOW)
        toy.database.local_jobs.put(GRID_JOB, jobs)
    toy.answers("find", f"17_3 R {GRID_JOB}-2 -")
    with pytest.raises(Garbled, match="2 of its local jobs are not in the answer"):
        look(toy, f"{GRID_JOB}-2")
    toy.answers("find", f"17_1 R {GRID_JOB}-2 -", f"17_3 R {GRID_JOB}-2 -")
    toy.drives("17_2", "start 1000", "index 4", f"token {GRID_JOB}-2")
    assert look(toy, f"{GRID_JOB}-2")
    assert toy.ids() == [None, "17_1", None, "17_2", "17_3", None]


@pytest.mark.parametrize("local_id", ["17_4", "17_0"])
def test_a_position_that_the_array_has_not_makes_an_answer_worthless(toy: ToySystem, local_id: str) -> None:
    toy.add([None, None, None])
    toy.answers("find", f"17_1 R {TOKEN} -", f"{local_id} R {TOKEN} -")
    with pytest.raises(Garbled, match=f"{local_id} is at position [04] of an array of 3"):
        look(toy)
    assert toy.ids() == [None] * 3


@pytest.mark.parametrize(
    ("file", "lines"),
    [
        pytest.param("17_1", ["start 1000", "index 1", f"token {GRID_JOB}-9"], id="another token"),
        pytest.param("17_1", ["start 1000", "index 1"], id="no token"),
        pytest.param("17_1", ["start 1000", f"token {TOKEN}"], id="no index"),
        pytest.param("17_1", ["start 1000", "index 7", f"token {TOKEN}"], id="another local job"),
    ],
)
def test_a_driver_that_does_not_say_so_is_no_witness(toy: ToySystem, file: str, lines: list[str]) -> None:
    toy.add([None])
    toy.drives(file, *lines)
    with pytest.raises(Unsettled):
        look(toy)
    assert toy.ids() == [None]


# --- where it is not found


def test_what_is_nowhere_may_still_turn_up_and_then_was_never_made(toy: ToySystem) -> None:
    toy.add([None, None])
    for toy.now in (NOW, NOW + SETTLE - 1):
        with pytest.raises(Unsettled, match=f"{TOKEN} is nowhere in toy; .* until 60 s after it was sent"):
            look(toy)
    toy.now = NOW + SETTLE
    assert not look(toy)
    assert {job.token for job in toy.database.local_jobs.all_of(GRID_JOB)} == {TOKEN}, (
        "it is submitted again under its name"
    )


@pytest.mark.parametrize(
    ("known", "quoted"),
    [
        pytest.param([], "", id="no answer"),
        pytest.param([Evidence("us", "odd", NOW, "")], "odd", id="an answer"),
        pytest.param([Evidence("us", "odd", NOW, ""), Evidence("us", "odder", NOW + 1, "")], "odder", id="two answers"),
        pytest.param([Evidence("us", "given up", NOW - 1, "")], "", id="what we did before it was sent"),
        pytest.param([Evidence("log", "failed", NOW, "")], "", id="what others say"),
    ],
)
def test_the_answer_to_what_is_nowhere_is_quoted(toy: ToySystem, known: list[Evidence], quoted: str) -> None:
    toy.add(["17_1", None])

    def note(job: LocalJob) -> bool:
        # What is known of another local job of its token says nothing about the rest of the array.
        for seen in known if job.local_id is None else [Evidence("us", "submitted twice", NOW, "cancelled")]:
            job.put_evidence(seen)
        return True

    change_local_jobs(toy.database, GRID_JOB, of_token(GRID_JOB, TOKEN), note)
    with pytest.raises(Unsettled) as raised:
        look(toy)
    way_out = f', and then sent again. If this refuses it, "samgrid cancel {GRID_JOB}" ends it: {quoted}'
    assert str(raised.value).partition(" after it was sent")[2] == (way_out if quoted else "")


def test_a_clock_that_was_set_back_makes_it_settle_not_much_later(toy: ToySystem) -> None:
    toy.add([None])
    back = NOW - 200
    for toy.now in (back, back + SETTLE - 1):
        with pytest.raises(Unsettled):
            look(toy)
    toy.now = back + SETTLE
    assert not look(toy)


@pytest.mark.parametrize(("passed", "intended"), [(5, NOW), (-10, NOW), (-11, NOW - 11)])
def test_a_clock_that_is_a_little_behind_was_not_set_back(toy: ToySystem, passed: int, intended: int) -> None:
    toy.add([None])
    toy.now = NOW + passed
    with pytest.raises(Unsettled):
        look(toy)
    assert toy.job().intended == intended


def test_what_is_tried_again_may_turn_up_again(toy: ToySystem) -> None:
    toy.add([None])
    toy.now = NOW + SETTLE
    assert not look(toy)
    (intent,) = find_intents(toy.database, GRID_JOB)
    renew_intent(toy.database, GRID_JOB, intent)
    with pytest.raises(Unsettled):
        look(toy)


@pytest.mark.parametrize("kind", ["find", "history"])
@pytest.mark.parametrize(
    ("script", "error"),
    [
        pytest.param("exit 1", Unreachable, id="nobody"),
        pytest.param("kill -9 $$", Unreachable, id="killed"),
        pytest.param("echo '*** Maintenance! ***'", Garbled, id="garbled"),
        pytest.param(f"printf '17_1 R {TOKEN} '", Garbled, id="torn"),
    ],
)
def test_without_an_answer_nothing_is_known(toy: ToySystem, kind: str, script: str, error: type[BatchError]) -> None:
    toy.add([None, None])
    before = toy.documents()
    toy.does(kind, script)
    toy.now = NOW + 10 * SETTLE
    with pytest.raises(error):
        look(toy)
    assert toy.documents() == before


def test_that_there_is_no_such_name_is_an_answer(toy: ToySystem) -> None:
    toy.add([None])
    toy.does("find", "echo no such job >&2; exit 4")
    toy.now = NOW + SETTLE
    assert not look(toy)


# --- a part of it


def test_of_an_array_that_is_only_partly_there_the_rest_is_looked_for_again_and_then_given_up(toy: ToySystem) -> None:
    toy.add([None, None, None])
    toy.answers("find", f"17_1 R {TOKEN} -", f"17_3 R {TOKEN} -")
    with pytest.raises(Garbled, match=f"{TOKEN}: 1 of its local jobs are not in the answer"):
        look(toy)
    assert toy.ids() == ["17_1", None, "17_3"]
    with pytest.raises(Unsettled):
        look(toy)
    toy.now = NOW + SETTLE
    assert look(toy)
    assert [job.token for job in toy.database.local_jobs.all_of(GRID_JOB)] == [TOKEN, None, TOKEN]
    intent = write_intent(toy.database, GRID_JOB, 10)
    assert intent is not None
    assert (intent.token, intent.indexes) == (f"{GRID_JOB}-2", [2])


# --- more than one of it


def test_of_a_submission_that_was_made_twice_the_eldest_stays(toy: ToySystem) -> None:
    toy.add([None, None])
    toy.change_adapter(cancel=replace(toy.adapter.cancel, argv=(*toy.adapter.cancel.argv, "{{ prefixes* }}")))
    toy.answers("find", *(f"{array}_{index} R {TOKEN} -" for array in (10, 9) for index in (1, 2)))
    assert look(toy)
    assert toy.ids() == ["9_1", "9_2"]
    assert toy.calls("cancel") == [f"10_1 10_2 {GRID_JOB}"]
    assert toy.job(2).evidence() == [Evidence("us", "submitted twice: 10_2", NOW, "cancelled; 9_2 stays")]


def test_all_but_the_eldest_are_cancelled_however_often_it_was_made(toy: ToySystem) -> None:
    toy.add([None])
    toy.answers("find", *(f"{local_id} R {TOKEN} -" for local_id in (100, 10, 9, 11)))
    assert look(toy)
    assert toy.ids() == ["9"]
    assert toy.calls("cancel") == ["10 11 100"]
    assert toy.job().evidence()[-1].said == "submitted twice: 10, 11, 100"


def test_what_is_registered_stays_although_it_is_younger(toy: ToySystem) -> None:
    toy.add(["17_1", None])
    toy.answers("find", f"17_1 R {TOKEN} -", f"9_1 R {TOKEN} -", f"9_2 R {TOKEN} -")
    assert look(toy)
    assert toy.ids() == ["17_1", "9_2"]
    assert toy.calls("cancel") == ["9_1"]
    assert toy.job(1).evidence()[-1].verdict == "cancelled; 17_1 stays"


def test_what_is_found_once_is_not_cancelled(toy: ToySystem) -> None:
    toy.add([None])
    toy.answers("find", f"17 R {TOKEN} -", f"17 R {TOKEN} -")
    assert look(toy)
    assert toy.calls("cancel") == []
    assert toy.job().evidence() == []
