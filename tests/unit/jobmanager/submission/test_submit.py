"""Submissions as the batch system sees them, and what becomes of intents."""

import os
import signal
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest

from batch_adapters.adapter import BatchError, Garbled, Postponed, Refused, Submission, TooMany, Unreachable
from batch_adapters.running.batch_system import BatchSystem
from batch_adapters.running.rate_limiter import RateLimited
from batch_adapters.states import Cause, State
from jobmanager.database.local_job import Outcome
from jobmanager.database.times import render_time
from jobmanager.monitor import worker
from jobmanager.monitor.workers import POSTPONED, TRY_LATER
from jobmanager.site.account import Account
from jobmanager.site.settings import Transfer
from jobmanager.states.aggregation import Task
from jobmanager.states.changes import put_local_jobs
from jobmanager.submission.adoption import Unsettled
from jobmanager.submission.submit import find_last_token, submit_local_jobs, write_intent
from jobmanager.views.logs import read_history
from sandbox.driver import LINES_PER_FILE
from tests.unit.toy_system import GRID_JOB, NOW, SETTLE, TOKEN, ToySystem

COUNTING = 'n=1; until mkdir "${0%/*}/number.$n" 2>/dev/null; do n=$((n + 1)); done; echo $n'
"""Prints 1, 2, 3 ... as the ids of what is submitted, each once whoever else is at it."""


def submit(toy: ToySystem, **request: object) -> None:
    nothing: Mapping[str, Any] = {
        **{"queue": "", "project": "", "max_cpu_time": None, "max_wall_time": None, "max_memory": None},
        **dict.fromkeys(("cores", "gpus", "max_disk")),
        **{"batch_options": (), "retry_memory_factor": 1.0, "retry_time_factor": 1.0, "retry_elsewhere": False},
    }
    submit_local_jobs(toy.account, toy.database.grid_jobs.get(GRID_JOB), {**nothing, **request})


def tokens(toy: ToySystem) -> list[str | None]:
    return [job.token for job in toy.database.local_jobs.all_of(GRID_JOB)]


@pytest.mark.parametrize("log_goes_on", [False, True])
def test_a_batch_system_that_was_silent_is_asked_again_as_soon_as_its_log_goes_on(
    toy: ToySystem, monkeypatch: pytest.MonkeyPatch, log_goes_on: bool
) -> None:
    toy.add([None], token=None)
    toy.does("submit", COUNTING)
    toy.falls_silent(monkeypatch)
    toy.now += 30
    with toy.database.transaction():
        toy.database.events.put_generator_time("toy", toy.now - (1 if log_goes_on else 60))
    with nullcontext() if log_goes_on else pytest.raises(RateLimited):
        submit(toy)
    assert len(toy.calls("submit")) == log_goes_on


def test_local_jobs_go_in_arrays_whose_positions_are_told(toy: ToySystem) -> None:
    toy.change_adapter(max_array=2)
    toy.add([None] * 5, token=None)
    toy.does("submit", COUNTING)
    submit(toy)
    assert toy.calls("submit") == [f"{GRID_JOB}-1 2", f"{GRID_JOB}-2 2", f"{GRID_JOB}-3 1"]
    assert [toy.table(f"{GRID_JOB}-{number}") for number in (1, 2, 3)] == [[1, 2], [3, 4], [5]]
    assert toy.ids() == ["1_1", "1_2", "2_1", "2_2", "3"]
    assert [job.array for job in toy.database.local_jobs.all_of(GRID_JOB)] == ["1", "1", "2", "2", None]


class Ended(BaseException):
    """What ends the process, as far as a test can let it."""


def test_who_is_told_to_end_hears_the_answer_to_what_is_on_its_way(toy: ToySystem) -> None:
    def end(number: int, frame: object) -> None:
        raise Ended

    toy.change_adapter(max_array=2)
    toy.add([None] * 5, token=None)
    toy.does("submit", f"kill -TERM {os.getpid()}\n{COUNTING}")
    before = signal.signal(signal.SIGTERM, end)
    try:
        with pytest.raises(Ended):
            submit(toy)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert toy.ids() == ["1_1", "1_2", None, None, None]
    assert tokens(toy)[2:] == [None] * 3, "nothing else was begun"


def test_local_jobs_between_others_are_one_array(toy: ToySystem, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    toy.add(["7", None, "8", "9", None, None, "10"], token=None)
    toy.does("submit", COUNTING)
    submit(toy)
    assert toy.calls("submit") == [f"{TOKEN} 3"]
    assert toy.table(TOKEN) == [2, 5, 6]
    assert toy.ids() == ["7", "1_1", "8", "9", "1_2", "1_3", "10"]
    assert f"{GRID_JOB} {TOKEN} submitted: 3 local jobs, 2 5-6" in caplog.messages


def test_a_table_that_cannot_be_written_keeps_all_from_being_submitted(toy: ToySystem) -> None:
    toy.change_adapter(max_array=1)
    toy.add([None, None], token=None)
    toy.account.places.sandbox(GRID_JOB).joinpath(f".{GRID_JOB}-2.0.{os.getpid()}").mkdir()
    with pytest.raises(IsADirectoryError):
        submit(toy)
    assert toy.calls("submit") == []
    assert tokens(toy) == [f"{GRID_JOB}-1", f"{GRID_JOB}-2"], "a later worker makes these submissions"


def test_without_arrays_each_local_job_is_submitted_side_by_side(toy: ToySystem) -> None:
    toy.change_adapter(max_array=1)
    toy.add([None] * 6, token=None)
    # Each waits for three more: one after another, none would end before its time limit.
    together = 'd="${0%/*}/begun"; mkdir -p "$d"; >"$d/$2"; until [ "$(ls "$d" | wc -l)" -ge 4 ]; do sleep 0.02; done'
    toy.does("submit", f'{together}; echo "${{2##*-}}"')
    submit(toy)
    assert toy.ids() == ["1", "2", "3", "4", "5", "6"]
    assert sorted(toy.calls("submit")) == [f"{GRID_JOB}-{number} 1" for number in range(1, 7)]
    assert [toy.table(f"{GRID_JOB}-{number}") for number in range(1, 7)] == [[number] for number in range(1, 7)]


def test_one_id_for_two_local_jobs_is_a_fault_of_whoever_answers(toy: ToySystem) -> None:
    toy.change_adapter(max_array=1)
    toy.add([None] * 6, token=None)
    toy.does("submit", "echo 7")
    with pytest.raises(Garbled, match=r"its answer to .* is '7', the id of local job 1 already: whoever answers"):
        submit(toy)
    assert toy.ids() == ["7", None, None, None, None, None]


def test_an_id_of_a_local_job_that_has_ended_may_be_used_again(toy: ToySystem) -> None:
    toy.add(["7", None], State.DONE, token=None)
    toy.does("submit", "echo 7")
    submit(toy)
    assert toy.ids() == ["7", "7"]


def test_the_sites_options_come_before_the_requests(toy: ToySystem) -> None:
    toy.change_adapter(options=("--site=a b",))
    toy.add([None], token=None)
    toy.does("submit", COUNTING)
    submit(toy, batch_options=("--mine",))
    assert toy.calls("submit") == [f"{TOKEN} 1 --site=a b --mine"]


def submitted(toy: ToySystem, monkeypatch: pytest.MonkeyPatch, **request: object) -> list[Submission]:
    """What the batch system is asked for, where the request says this and the rest is submitted."""
    submissions: list[Submission] = []

    def note(system: BatchSystem, submission: Submission) -> Mapping[int, str]:
        submissions.append(submission)
        return {position: f"{16 + len(submissions)}_{position}" for position in range(1, submission.count + 1)}

    monkeypatch.setattr(BatchSystem, "submit", note)
    submit(toy, **request)
    return submissions


def test_the_batch_system_is_told_what_the_request_says(toy: ToySystem, monkeypatch: pytest.MonkeyPatch) -> None:
    toy.add(["16", None, None], token=None)
    wanted = {"queue": "long", "project": "d0", "max_cpu_time": 7, "max_wall_time": 8, "max_memory": 9}
    wanted |= {"cores": 4, "gpus": 1, "max_disk": 5}
    places = toy.account.places
    places.credentials(GRID_JOB).mkdir()
    token = places.credentials(GRID_JOB) / "bearer_token_file"
    token.touch()
    assert submitted(toy, monkeypatch, **wanted) == [
        Submission(
            token=TOKEN,
            count=2,
            driver=str(places.driver(GRID_JOB)),
            results=str(places.results(GRID_JOB)),
            sandbox=str(places.sandbox(GRID_JOB)),
            table_lines=LINES_PER_FILE,
            carried=False,
            credentials=(str(token),),
            queue="long",
            project="d0",
            max_cpu_minutes=7,
            max_wall_minutes=8,
            max_memory_mb=9,
            cores=4,
            gpus=1,
            max_disk_mb=5,
        )
    ]


def test_a_driver_of_an_earlier_version_gets_the_files_that_it_looks_for(
    toy: ToySystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    toy.change_adapter(max_array=100)
    toy.add([None] * 60, token=None)
    toy.account.places.driver(GRID_JOB).write_text("    table=$token.$(((position - 1) / 50))\n")
    assert [submission.table_lines for submission in submitted(toy, monkeypatch)] == [50]
    files = sorted(toy.account.places.sandbox(GRID_JOB).glob(f"{TOKEN}.*"))
    assert [file.read_bytes().count(b"\n") for file in files] == [50, 10]


def test_what_the_request_does_not_say_is_nothing(toy: ToySystem, monkeypatch: pytest.MonkeyPatch) -> None:
    toy.add([None], token=None)
    (asked,) = submitted(toy, monkeypatch)
    assert (asked.max_cpu_minutes, asked.max_wall_minutes, asked.max_memory_mb) == (0, 0, 0)
    assert (asked.queue, asked.project) == ("", "")
    assert (asked.cores, asked.gpus, asked.max_disk_mb) == (1, 0, 0)


@pytest.mark.parametrize("transfer", Transfer)
def test_the_site_says_whether_the_batch_system_carries_the_sandbox(
    toy: ToySystem, monkeypatch: pytest.MonkeyPatch, transfer: Transfer
) -> None:
    configuration = toy.account.configuration
    sandbox = replace(configuration.sandbox, transfer=transfer)
    toy.account = Account(toy.account.places, replace(configuration, sandbox=sandbox))
    toy.add([None], token=None)
    (submission,) = submitted(toy, monkeypatch)
    assert submission.carried is (transfer is Transfer.BATCH_SYSTEM)


@pytest.mark.parametrize(
    ("last", "following"), [("1", "2"), ("9", "a"), ("z", "10"), ("1z", "20"), ("zz", "100")], ids="after {}".format
)
def test_tokens_count_in_digits_and_letters(toy: ToySystem, last: str, following: str) -> None:
    toy.add([None], token=None)
    toy.database.grid_jobs.change(GRID_JOB, lambda job: setattr(job, "last_token", f"{GRID_JOB}-{last}"))
    intent = write_intent(toy.database, GRID_JOB, 1)
    assert intent is not None
    assert intent.token == f"{GRID_JOB}-{following}"


@pytest.mark.parametrize(("known", "kept"), [("z", "10"), ("10", "z")], ids=["kept", "known"])
def test_a_longer_token_is_a_later_one(toy: ToySystem, known: str, kept: str) -> None:
    toy.add(["17"], token=f"{GRID_JOB}-{known}")
    toy.database.grid_jobs.change(GRID_JOB, lambda job: setattr(job, "last_token", f"{GRID_JOB}-{kept}"))
    assert find_last_token(toy.database, toy.database.grid_jobs.get(GRID_JOB)) == f"{GRID_JOB}-10"


def test_of_submissions_in_doubt_one_is_adopted_and_the_next_is_made(toy: ToySystem) -> None:
    toy.change_adapter(max_array=1)
    toy.add([None, None])
    with toy.database.transaction():
        second = toy.job(2)
        second.intend(f"{GRID_JOB}-2", toy.now)
        toy.database.local_jobs.put(GRID_JOB, [second])
    toy.does("find", f'[ "$2" != {TOKEN} ] || echo "17 R {TOKEN} -"')
    toy.does("submit", "echo 18")
    toy.now += SETTLE
    submit(toy)
    assert toy.ids() == ["17", "18"]
    assert toy.calls("submit") == [f"{GRID_JOB}-2 1"]
    assert toy.table(f"{GRID_JOB}-2") == [2]


def test_a_submission_that_failed_and_was_never_made_is_an_error(toy: ToySystem) -> None:
    toy.change_adapter(settle_time=0, max_array=1)
    toy.add([None], token=None)
    toy.does("submit", "exit 1")
    with pytest.raises(Unreachable):
        submit(toy)
    assert tokens(toy) == [TOKEN]


def test_nothing_is_submitted_for_a_grid_job_that_was_cancelled(toy: ToySystem) -> None:
    toy.add([None, None])
    toy.database.grid_jobs.change(GRID_JOB, lambda job: job.cancel(toy.now, "cancelled by a test"))
    toy.now += SETTLE
    submit(toy)
    assert toy.calls("submit") == []
    assert write_intent(toy.database, GRID_JOB, 1) is None


def test_nothing_that_is_registered_is_submitted(toy: ToySystem) -> None:
    toy.add(["17_1", "17_2"])
    submit(toy)
    assert toy.calls("submit") == toy.calls("find") == []


@pytest.mark.parametrize(("code", "error"), [(2, Refused), (5, Postponed)], ids=["refused", "not now"])
def test_what_was_not_made_for_certain_has_no_intent(toy: ToySystem, code: int, error: type[BatchError]) -> None:
    toy.add([None, None], token=None)
    toy.does("submit", f"echo no room in this queue >&2; exit {code}")
    with pytest.raises(error, match="no room in this queue"):
        submit(toy)
    assert tokens(toy) == [None, None]
    assert toy.calls("find") == []


def test_an_array_of_too_many_is_cut_until_some_of_it_fits_into_the_queue(toy: ToySystem) -> None:
    toy.add([None] * 20, token=None)
    toy.does("submit", f'[ "$3" -le 5 ] && mkdir "${{0%/*}}/full" || exit 6\n{COUNTING}')
    with pytest.raises(TooMany):
        submit(toy)
    assert [call.split()[1] for call in toy.calls("submit")] == ["20", "10", "5", "5"]
    assert [one is None for one in toy.ids()] == [False] * 5 + [True] * 15
    assert tokens(toy)[5:] == [None] * 15


def test_what_had_to_wait_goes_on_with_twice_the_array_that_was_taken_last(toy: ToySystem) -> None:
    toy.add([None] * 50, token=None)
    for number in (1, 2):
        toy.does("submit", f'[ "$3" -le 5 ] && mkdir "${{0%/*}}/full.{number}" || exit 6\n{COUNTING}')
        with pytest.raises(TooMany):
            submit(toy)
    toy.does("submit", COUNTING)
    submit(toy)
    sizes = [int(call.split()[1]) for call in toy.calls("submit")]
    assert sizes == [50, 25, 12, 6, 3, 3, *(6, 3, 3), *(6, 12, 24, 2)]


def test_retries_begin_with_the_largest_array_and_what_is_cut_is_what_was_refused(toy: ToySystem) -> None:
    toy.add([None] * 20, token=None)
    toy.does("submit", COUNTING)
    submit(toy)
    retried = [toy.job(index) for index in range(2, 20)]
    for job in retried:
        job.cause = Cause.MEMORY_LIMIT if job.index < 8 else Cause.NODE_LOST
        job.begin_attempt()
    with toy.database.transaction():
        put_local_jobs(toy.database, GRID_JOB, retried)
    toy.does("submit", f'[ "$3" -le 3 ] || exit 6\n{COUNTING}')
    submit(toy, max_memory=100, retry_memory_factor=2.0)
    sizes = [int(call.split()[1]) for call in toy.calls("submit")]
    assert sizes == [20, 6, 3, 3, 3, 3, 3, 3]


def test_one_local_job_that_is_too_many_waits(toy: ToySystem) -> None:
    toy.add([None] * 2, token=None)
    toy.does("submit", "exit 6")
    with pytest.raises(TooMany):
        submit(toy)
    assert [call.split()[1] for call in toy.calls("submit")] == ["2", "1", "1"]


def test_who_is_told_not_now_is_to_come_again_after_a_longer_while(
    toy: ToySystem, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    toy.add([None, None], token=None)
    toy.does("submit", "echo this queue is closed >&2; exit 5")
    monkeypatch.setattr(worker, "run_grid_job", lambda account, grid_job: submit(toy))
    assert worker.do_task(toy.account, Task.SUBMIT, GRID_JOB) == POSTPONED
    assert "this queue is closed" in capfd.readouterr().err
    toy.does("submit", "exit 1")
    assert worker.do_task(toy.account, Task.SUBMIT, GRID_JOB) == TRY_LATER


def test_a_submission_that_was_held_back_has_not_been_made(toy: ToySystem) -> None:
    toy.change_adapter(max_array=2, commands_per_minute=1)
    toy.add([None] * 4, token=None)
    toy.does("submit", COUNTING)
    with pytest.raises(RateLimited):
        submit(toy)
    assert toy.ids() == ["1_1", "1_2", None, None]
    assert tokens(toy) == [f"{GRID_JOB}-1"] * 2 + [None] * 2


def test_a_token_is_never_given_twice(toy: ToySystem) -> None:
    toy.change_adapter(max_array=1)
    toy.add([None] * 4, token=None)
    toy.does("submit", f'[ "${{2##*-}}" != 2 ] || exit 2; {COUNTING}')
    with pytest.raises(Refused):
        submit(toy)
    assert tokens(toy)[1] is None
    toy.does("submit", COUNTING)
    submit(toy)
    assert len(set(tokens(toy))) == 4


@pytest.mark.parametrize(
    "script", ["exit 1", "echo '<html>'", "true", "printf 17", "kill -9 $$"],
    ids=["no answer", "garbage", "silence", "torn", "killed"],
)  # fmt: skip
def test_a_submission_without_a_good_answer_is_looked_for_before_anything_else(toy: ToySystem, script: str) -> None:
    toy.add([None, None], token=None)
    toy.does("submit", script)
    toy.answers("find", f"17_1 R {TOKEN} -", f"17_2 R {TOKEN} -")
    submit(toy)
    assert toy.ids() == ["17_1", "17_2"]
    assert (len(toy.calls("submit")), toy.calls("find")) == (1, [TOKEN])
    assert [seen.verdict for seen in toy.job(1).evidence() if seen.source == "us"] == ["in doubt: it is looked for"]


def test_a_submission_that_is_nowhere_is_made_again_under_its_name_once_it_is_certain(toy: ToySystem) -> None:
    toy.add([None, None], token=None)
    toy.does("submit", "exit 1")
    for _ in range(2):
        with pytest.raises(Unsettled):
            submit(toy)
    assert len(toy.calls("submit")) == 1
    toy.now += SETTLE
    for _ in range(2):
        with pytest.raises(Unsettled):
            submit(toy)
    assert len(toy.calls("submit")) == 2, "the new one may turn up late, too"
    toy.does("submit", COUNTING)
    toy.now += SETTLE
    submit(toy)
    assert toy.calls("submit") == [f"{TOKEN} 2"] * 3
    assert toy.ids() == ["1_1", "1_2"]


def test_an_answer_that_nobody_foresaw_stays_in_the_problem_while_the_submission_is_looked_for(toy: ToySystem) -> None:
    toy.add([None, None], token=None)
    toy.does("submit", "echo 'qsub: the moon is full' >&2; exit 9")
    for _ in range(2):
        for _ in range(3):
            with pytest.raises(Unsettled, match=f'"samgrid cancel {GRID_JOB}" ends it: .*exit code 9: qsub: the moon'):
                submit(toy)
        toy.now += SETTLE
    assert len(toy.calls("submit")) == 2


@pytest.mark.parametrize(("script", "error"), [("exit 1", Unreachable), ("echo what", Garbled)], ids=["no", "garbled"])
def test_while_nobody_knows_nothing_more_is_submitted(toy: ToySystem, script: str, error: type[Exception]) -> None:
    toy.change_adapter(max_array=2)
    toy.add([None] * 4, token=None)
    toy.does("submit", "exit 1")
    toy.does("find", script)
    for _ in range(2):
        with pytest.raises(error):
            submit(toy)
        toy.now += 10 * SETTLE
    assert len(toy.calls("submit")) == 1
    assert tokens(toy) == [TOKEN, TOKEN, None, None]
    assert toy.states() == [State.UNSUBMITTED] * 4


# --- further attempts


def add_retries(toy: ToySystem, *causes: Cause) -> None:
    """A grid job whose local jobs are to be tried again, each after an attempt that ended so, on a host of its own."""
    toy.add([None] * len(causes), token=None)
    jobs = toy.database.local_jobs.all_of(GRID_JOB)
    for job, cause in zip(jobs, causes, strict=True):
        job.cause, job.host = cause, f"node{job.index}"
        job.begin_attempt()
    with toy.database.transaction():
        put_local_jobs(toy.database, GRID_JOB, jobs)


def test_an_array_has_only_local_jobs_that_need_the_same(toy: ToySystem, monkeypatch: pytest.MonkeyPatch) -> None:
    add_retries(toy, Cause.MEMORY_LIMIT, Cause.NODE_LOST, Cause.MEMORY_LIMIT)
    given = submitted(toy, monkeypatch, max_memory=100, retry_memory_factor=2.0)
    assert [(each.token, each.count, each.max_memory_mb) for each in given] == [
        (f"{GRID_JOB}-1", 2, 200),
        (f"{GRID_JOB}-2", 1, 100),
    ]
    assert [toy.table(f"{GRID_JOB}-{number}") for number in (1, 2)] == [[1, 3], [2]]


def test_each_attempt_is_kept_from_its_own_host(toy: ToySystem, monkeypatch: pytest.MonkeyPatch) -> None:
    add_retries(toy, Cause.SIGNAL, Cause.SIGNAL)
    given = submitted(toy, monkeypatch, retry_elsewhere=True)
    assert [(each.count, each.excluded_host) for each in given] == [(1, "node1"), (1, "node2")]


def test_the_driver_is_told_of_limits_that_have_grown(toy: ToySystem, monkeypatch: pytest.MonkeyPatch) -> None:
    add_retries(toy, Cause.SIGNAL)
    submitted(toy, monkeypatch, max_cpu_time=10, max_memory=100, retry_memory_factor=2.0, retry_time_factor=3.0)
    (file,) = toy.account.places.sandbox(GRID_JOB).glob(f"{TOKEN}.*")
    assert b"1 cpu_minutes=30 memory_mb=200; set -- /bin/true\n" in file.read_bytes()


@pytest.mark.parametrize("wanted", [{}, {"max_cpu_time": 10}, {"max_memory": 100}])
def test_the_driver_is_told_of_no_limits_that_are_its_own(
    toy: ToySystem, monkeypatch: pytest.MonkeyPatch, wanted: dict[str, int]
) -> None:
    toy.add([None], token=None)
    submitted(toy, monkeypatch, **wanted)
    (file,) = toy.account.places.sandbox(GRID_JOB).glob(f"{TOKEN}.*")
    assert b"memory_mb" not in file.read_bytes()


def test_an_attempt_that_is_refused_is_given_up_and_the_others_go_on(toy: ToySystem) -> None:
    add_retries(toy, Cause.MEMORY_LIMIT, Cause.NODE_LOST)
    toy.does("submit", 'mkdir "${0%/*}/asked" && { echo "no such node"; exit 2; }; echo 8')
    submit(toy, max_memory=100, retry_memory_factor=2.0)
    first, second = toy.job(1), toy.job(2)
    assert (first.state, first.outcome, first.cause) == (State.FAILED, Outcome.FAILED, Cause.REFUSED)
    assert (first.token, first.local_id) == (None, None)
    assert str(first.reason).startswith("the batch system refused attempt 2: ")
    assert "no such node" in str(first.reason)
    assert (second.local_id, second.state) == ("8", State.PENDING)
    assert not toy.database.grid_jobs.get(GRID_JOB).cancelled


def test_an_attempt_that_is_refused_is_told_of_beside_the_one_before(toy: ToySystem) -> None:
    add_retries(toy, Cause.SIGNAL)
    toy.database.grid_jobs.change(GRID_JOB, lambda job: setattr(job, "retries", 3))
    jobs = toy.database.local_jobs.all_of(GRID_JOB)
    (attempt,) = jobs[0].element.iterfind("attempt")
    attempt.set("ended", render_time(NOW))
    with toy.database.transaction():
        put_local_jobs(toy.database, GRID_JOB, jobs)
    toy.does("submit", 'echo "no such node"; exit 2')
    submit(toy)
    story = {words: when for when, words in read_history(toy.database, GRID_JOB)}
    assert story["not tried again: 1 (nothing is tried again after refused)"] == NOW
