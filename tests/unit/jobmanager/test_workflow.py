"""Structured grid jobs: what is refused, which step comes next, what a step's request is."""

import hashlib
import json
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters import JobAdapter, Step, Value, check_order, read_needs
from batch_adapters.adapter import Refused
from batch_adapters.running.diagnosis import Finding, Level
from batch_adapters.states import State
from gram_shims import calls
from handlers.command import CommandAdapter
from handlers.merge import DzeroMergeAdapter
from handlers.structured import StructuredAdapter
from jobmanager import workflow
from jobmanager.checks.handler_trial import try_request
from jobmanager.control.cancel_requests import request_cancel
from jobmanager.database.documents import read_document
from jobmanager.database.grid_job import GramOrigin, GridJob
from jobmanager.database.grid_jobs import StepLine, find_current_steps
from jobmanager.requests.acceptance import accept_grid_job
from jobmanager.requests.attributes import BadRequest, render_step_request
from jobmanager.requests.rsl import read_rsl
from jobmanager.run_grid_job import find_command_lines
from jobmanager.site.account import Account
from jobmanager.site.configuration import read_configuration
from jobmanager.states.aggregation import Task, aggregate_steps, find_due_steps, next_task_of_steps
from jobmanager.states.changes import refresh_structured
from jobmanager.views.grid_jobs import STATUS_SCHEMA, GridJobList, render_details, render_json, render_steps
from jobmanager.views.watching import Bars, PlainLines, _take_snapshot
from jobmanager.workflow import advance_grid_job, cancel_steps, collect_steps, judge_steps
from sandbox.files import TarLimits
from sandbox.gather import End, write_output
from tests.unit.jobmanager.credential_files import make_token, write_secret

P, A, S, D, F, U = (
    State.PENDING, State.ACTIVE, State.SUSPENDED, State.DONE, State.FAILED, State.UNSUBMITTED,
)  # fmt: skip
MAKE = "(make (samgrid_type command) (executable /bin/true))"
READ = "(read (samgrid_type command) (executable /bin/true) (input_step make))"


def accept(account: Account, steps: str, more: str = "") -> str:
    relations = read_rsl(f"&(samgrid_type = structured)(steps = {steps}){more}", {})
    return accept_grid_job(account, [(relation.name, relation.values) for relation in relations], Path("/"))


@pytest.mark.parametrize(
    ("steps", "more", "words"),
    [
        pytest.param("make", "", "steps must be a list of sequences", id="no sequence"),
        pytest.param("(make samgrid_type)", "", "is no (ATTRIBUTE VALUE ...)", id="no attribute"),
        pytest.param('("../x" (samgrid_type command))', "", "a name is letters, digits", id="a name that is a path"),
        pytest.param(f"{MAKE} {MAKE}", "", "two are named make", id="two of one name"),
        pytest.param(READ, "", "input_step 'make' is no earlier step: it is the first", id="input of nobody"),
        pytest.param(f"{READ} {MAKE}", "", "is no earlier step", id="input of a later step"),
        pytest.param(f"{MAKE} (x (input_step make a))", "", "takes the name of one earlier step", id="two inputs"),
        pytest.param(f"{MAKE} (x (after (make)))", "", "step x: after takes names of earlier steps", id="no names"),
        pytest.param(
            f"{MAKE} (x (after x))",
            "",
            "step x: after 'x' is no earlier step: the steps before it: make",
            id="after itself",
        ),
        pytest.param(
            "(x (after y)) (y (after x))", "", "step x: after 'y' is no earlier step: it is the first", id="a cycle"
        ),
        pytest.param(f"{MAKE} (x (after mkae))", "", "step x: after 'mkae' is no earlier step", id="after nobody"),
        pytest.param("(make (executable /bin/true))", "", "step make: samgrid_type is missing", id="no type"),
        pytest.param("(make (samgrid_type xyz))", "", 'make: samgrid_type: unknown job type "xyz"', id="unknown type"),
        pytest.param(
            "(make (samgrid_type command) (executable /nowhere))", "", "step make: executable '/nowhere'", id="program"
        ),
        pytest.param(
            "(make (samgrid_type command) (executable /bin/true) (count 0))", "", "step make: count must be", id="range"
        ),
        pytest.param(
            f"{MAKE} (read (samgrid_type command) (executable /bin/true) (count x) (input_step make))",
            "",
            "step read: count must be an integer",
            id="a step with input",
        ),
        pytest.param(
            f"(a (samgrid_type structured) (steps {MAKE}))", "", "a step cannot have steps itself", id="steps in steps"
        ),
        pytest.param(
            f"{MAKE} (a (samgrid_type structured) (steps {MAKE}) (input_step make))",
            "",
            "step a: a step cannot have steps itself",
            id="steps in a step with input",
        ),
        pytest.param(MAKE, "(min_success = 0.5)", "min_success does not go with a grid job that has steps", id="rule"),
        pytest.param(MAKE, "(stdin = /etc/hostname)", "stdin does not go with", id="stdin"),
    ],
)
def test_what_can_be_known_to_be_wrong_is_refused_at_once(account: Account, steps: str, more: str, words: str) -> None:
    with pytest.raises(BadRequest) as refusal:
        accept(account, steps, more)
    assert words in str(refusal.value)
    assert account.database.grid_jobs.overview() == []


def test_faults_of_all_steps_are_told_together(account: Account) -> None:
    with pytest.raises(BadRequest) as refusal:
        accept(
            account,
            "(a (samgrid_type xyz)) (b (samgrid_type command) (executable /bin/true) (queue q))"
            " (c (samgrid_type command) (executable /none) (count x) (queue q))"
            " (d (samgrid_type command) (executable /bin/true) (count x) (input_step c))",
            "(retries = x)(stdin = /none)(project = p)",
        )
    assert [fault[:14] for fault in refusal.value.faults] == [
        *("retries must b", "stdin: no such", "project: the b", "stdin does not", "step a: samgri", "step b: queue:"),
        *("step c: count ", "step c: execut", "step c: queue:", "step d: count "),
    ]


@pytest.mark.parametrize(
    ("steps", "cancelled", "task", "state"),
    [
        pytest.param([None, None], False, Task.ADVANCE, U, id="new"),
        pytest.param([U, None], False, None, U, id="the first is being submitted"),
        pytest.param([P, None], False, None, P, id="the first waits"),
        pytest.param([A, None], False, None, A, id="the first runs"),
        pytest.param([S, None], False, None, S, id="the first is suspended"),
        pytest.param([State.STAGE_IN, None], False, None, U, id="the inputs of the first are fetched"),
        pytest.param([State.STAGE_OUT, None], False, None, A, id="the first is gathered"),
        pytest.param([D, None], False, Task.ADVANCE, A, id="the first is done"),
        pytest.param([D, State.STAGE_IN], False, None, A, id="the inputs of the second are fetched"),
        pytest.param([D, U], False, None, A, id="the second is being submitted"),
        pytest.param([D, P], False, None, A, id="the second waits"),
        pytest.param([D, S], False, None, S, id="the second is suspended"),
        pytest.param([D, D], False, Task.COLLECT, State.STAGE_OUT, id="all are done"),
        pytest.param([F, None], False, Task.COLLECT, State.STAGE_OUT, id="the first failed"),
        pytest.param([D, F], False, Task.COLLECT, State.STAGE_OUT, id="the second failed"),
        pytest.param([None, None], True, Task.COLLECT, U, id="cancelled before it began"),
        pytest.param([A, None], True, Task.CANCEL, A, id="cancelled while the first runs"),
        pytest.param([D, None], True, Task.COLLECT, A, id="cancelled between two steps"),
        pytest.param([D, A], True, Task.CANCEL, A, id="cancelled while the second runs"),
        pytest.param([D, F], True, Task.COLLECT, State.STAGE_OUT, id="cancelled, and all ended"),
    ],
)
def test_a_structured_grid_job_is_what_its_steps_are(
    steps: Sequence[State | None], cancelled: bool, task: Task | None, state: State
) -> None:
    named = dict(zip("ab", steps, strict=True))
    needs = {"a": (), "b": ("a",)}
    assert next_task_of_steps(named, needs, cancelled) is task
    assert aggregate_steps(named, needs) is state


def test_a_handler_may_give_its_steps_requests_as_lists(account: Account, monkeypatch: pytest.MonkeyPatch) -> None:
    request: Any = [["samgrid_type", ["command"]], ("executable", ["/bin/true"]), ["environment", [["A", "1"]]]]
    find = CommandAdapter.getSteps
    monkeypatch.setattr(
        CommandAdapter, "getSteps", lambda self: [Step("a", request)] if self.request["name"] else find(self)
    )
    given = [("samgrid_type", ("command",)), ("executable", ("/bin/true",)), ("name", ("whole",))]
    job_id = accept_grid_job(account, given, Path("/"))
    advance_grid_job(account, job_id)
    (step,) = account.database.grid_jobs.get(job_id).steps
    assert account.database.grid_jobs.get(str(step.grid_job)).job_type == "command"


NEEDS = {"a": (), "b": ("a",), "c": ("a",), "d": ("b", "c")}
"""Of a diamond."""


@pytest.mark.parametrize(
    ("steps", "due", "task", "state"),
    [
        pytest.param([None] * 4, "a", Task.ADVANCE, U, id="new"),
        pytest.param([D, None, None, None], "bc", Task.ADVANCE, A, id="two are due"),
        pytest.param([D, U, None, None], "c", Task.ADVANCE, A, id="one has begun, killed before the other"),
        pytest.param([D, P, S, None], "", None, S, id="one is suspended, the other waits"),
        pytest.param([D, A, S, None], "", None, A, id="one is suspended, the other runs"),
        pytest.param([D, D, A, None], "", None, A, id="one is done, the other runs"),
        pytest.param([D, F, A, None], "", None, A, id="one failed, the other runs to its end"),
        pytest.param([D, F, None, None], "c", Task.ADVANCE, A, id="one failed before the other began"),
        pytest.param([D, F, D, None], "", Task.COLLECT, State.STAGE_OUT, id="one failed, the other is done"),
        pytest.param([F, None, None, None], "", Task.COLLECT, State.STAGE_OUT, id="nothing can begin"),
        pytest.param([D, D, D, None], "d", Task.ADVANCE, A, id="the last is due"),
        pytest.param([D, D, D, D], "", Task.COLLECT, State.STAGE_OUT, id="all are done"),
    ],
)
def test_steps_that_need_not_wait_run_side_by_side(
    steps: Sequence[State | None], due: str, task: Task | None, state: State
) -> None:
    named = dict(zip(NEEDS, steps, strict=True))
    assert find_due_steps(named, NEEDS) == list(due)
    assert next_task_of_steps(named, NEEDS, cancelled=False) is task
    assert aggregate_steps(named, NEEDS) is state


@given(st.data())
def test_in_any_graph_each_step_begins_once_after_all_that_it_needs(data: st.DataObject) -> None:
    names = [f"s{number}" for number in range(data.draw(st.integers(1, 7)))]
    steps = [
        Step(
            name,
            (),
            data.draw(st.sampled_from(["", *names[:number]])),
            data.draw(
                st.none() | st.lists(st.sampled_from(names[:number] or names), max_size=min(number, 3)).map(tuple)
            ),
        )
        for number, name in enumerate(names)
    ]
    assert check_order(steps) == []
    job = GridJob.new("abcdefgh", "structured", "ada", "fork", 100)
    job.put_request([], Path("/"))
    job.put_steps(names)
    job.put_needs(read_needs(steps))
    needs = GridJob(read_document(GridJob.tag, job.to_bytes(), job.job_id)).needs
    assert needs == read_needs(steps)
    for step in steps:
        assert set(needs[step.name]) >= {*(step.after or ()), *filter(None, [step.input_step])}
    states: dict[str, State | None] = dict.fromkeys(names)
    begun: list[str] = []
    seen = []
    while next_task_of_steps(states, needs, cancelled=False) is not Task.COLLECT:
        seen.append(aggregate_steps(states, needs))
        due = find_due_steps(states, needs)
        running = [name for name in names if states[name] in (U, A)]
        name = data.draw(st.sampled_from([*due, *running]))
        if name in due:
            assert all(states[needed] is D for needed in needs[name])
            begun.append(name)
            states[name] = U
        else:
            states[name] = A if states[name] is U else data.draw(st.sampled_from([D, D, D, F]))
    assert len(begun) == len(set(begun))
    broken = {name for name in names if states[name] is F}
    for name in names:  # each is behind all that it needs
        if broken & set(needs[name]):
            broken.add(name)
            assert states[name] is None
    assert set(begun) == {name for name in names if name not in broken or states[name] is F}
    order = {U: 0, P: 1, A: 2}
    assert [order[state] for state in seen] == sorted(order[state] for state in seen)
    assert aggregate_steps(states, needs) is State.STAGE_OUT


_LIVES = st.lists(st.sampled_from([[P, A, D], [A, D], [D], [P, F], [A, S, A, D]]), min_size=1, max_size=4)


@given(_LIVES)
def test_its_state_never_goes_back(lives: list[list[State]]) -> None:
    """Whatever its steps go through one after the other."""
    names = "abcd"[: len(lives)]
    steps: dict[str, State | None] = dict.fromkeys(names)
    needs = {name: tuple(before) for name, before in zip(names, ["", *names], strict=False)}
    seen = [aggregate_steps(steps, needs)]
    for name, life in zip(names, lives, strict=True):
        for state in (U, *life):
            steps[name] = state
            seen.append(aggregate_steps(steps, needs))
        if life[-1] is F:
            break
    order = {U: 0, P: 1, A: 2, S: 2, State.STAGE_OUT: 3}
    assert [order[state] for state in seen] == sorted(order[state] for state in seen)
    assert seen[-1] is State.STAGE_OUT


def test_limits_and_environment_of_the_whole_count_for_each_step() -> None:
    whole: list[tuple[str, tuple[Value, ...]]] = [
        ("samgrid_type", ("structured",)),
        ("Queue", ("long",)),
        ("max_wall_time", ("60",)),
        ("retry_on", ("node-lost",)),
        ("fail_fast", ("yes",)),
        ("directory", ("/tmp",)),
        ("samgrid_output", ("all.tar",)),
        ("notify_user", ("maria@example.org",)),
        ("environment", (("COLOUR", "blue"), ("SHAPE", "round"))),
    ]
    step = Step("a", (("samgrid_type", ("command",)), ("queue", ("short",)), ("environment", (("COLOUR", "red"),))))
    assert render_step_request(whole, step, None, CommandAdapter) == [
        ("Queue", ("long",)),
        ("max_wall_time", ("60",)),
        ("retry_on", ("node-lost",)),
        ("fail_fast", ("yes",)),
        ("notify_user", ("maria@example.org",)),
        *step.request,
        ("environment", (("SHAPE", "round"), ("COLOUR", "red"))),
    ]


@pytest.mark.parametrize(("handler", "takes_folder"), [(DzeroMergeAdapter, True), (CommandAdapter, False)])
def test_a_step_gets_the_folder_of_its_input(handler: type[JobAdapter], takes_folder: bool) -> None:
    step = Step("merge", (("samgrid_type", (handler.jobType,)),), "production")
    request = render_step_request([], step, Path("/inputs"), handler)
    assert (("input_folder", ("/inputs",)) in request) == takes_folder
    assert ("environment", (("SAMGRID_INPUT_FOLDER", "/inputs"),)) in request


def test_the_first_step_begins_once(account: Account) -> None:
    job_id = accept(account, f"{MAKE} {READ}")
    assert account.database.grid_jobs.open_steps()[job_id] == [
        StepLine("make", None, None),
        StepLine("read", None, None),
    ]
    for _ in range(2):
        advance_grid_job(account, job_id)
    (first, second) = account.database.grid_jobs.steps_of(job_id)
    assert first.grid_job is not None
    assert (first.state, second.grid_job) == ("unsubmitted", None)
    part = account.database.grid_jobs.get(first.grid_job)
    assert (part.parent, part.uniqid, part.request_folder) == (job_id, None, Path("/"))
    assert [row.parent for row in account.database.grid_jobs.overview() if row.id == first.grid_job] == [job_id]


def named(name: str, attributes: str) -> str:
    return f"({name} (samgrid_type command) (executable /bin/true) {attributes})"


DIAMOND = (
    f"{MAKE} {named('b', '(input_step make)')} {named('c', '(AFTER)(input_step make)')}"
    f" {named('d', '(after b c)')} {named('alone', '(after)')} {named('last', '(input_step make)')}"
)


def test_the_document_names_what_steps_need_where_that_is_not_the_one_before(account: Account) -> None:
    ask = StructuredAdapter.getSteps
    with patch.object(StructuredAdapter, "getSteps", autospec=True, side_effect=ask) as asked:
        job = account.database.grid_jobs.get(accept(account, DIAMOND, "(retries = 1)"))
    asked.assert_called_once()
    assert job.needs == {
        "make": (), "b": ("make",), "c": ("make",), "d": ("b", "c"), "alone": (), "last": ("alone", "make")
    }  # fmt: skip
    written = {step.get("name"): step.get("after") for step in job.element.iterfind("steps/step")}
    assert written == {"make": None, "b": None, "c": "make", "d": "b c", "alone": "", "last": "alone make"}
    (row,) = account.database.grid_jobs.overview(job.job_id)
    shown = render_details(account, row, 3000)
    assert "d, after b and c" in shown
    assert "alone\n" in shown
    assert "retries" not in shown, "steps make them"
    assert "after" not in dict(account.database.grid_jobs.get(job.job_id).request())


def begun_steps(account: Account, whole: str) -> dict[str, str]:
    return {step.name: step.grid_job for step in account.database.grid_jobs.get(whole).steps if step.grid_job}


def test_all_steps_that_are_due_begin_once(account: Account) -> None:
    whole = accept(account, f"{MAKE} {named('b', '')} {named('c', '(after make)')} {named('alone', '(after)')}")
    for _ in range(2):
        advance_grid_job(account, whole)
        assert list(begun_steps(account, whole)) == ["make", "alone"]
    account.database.grid_jobs.change(begun_steps(account, whole)["make"], lambda job: job.end(D, 2000))
    for _ in range(2):
        advance_grid_job(account, whole)
        assert list(begun_steps(account, whole)) == ["make", "b", "c", "alone"]
    assert len(account.database.grid_jobs.overview()) == 5


def test_a_cancel_between_two_steps_that_are_due_begins_no_other(
    account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = accept(account, f"{MAKE} {named('alone', '(after)')}")

    prepare = workflow._prepare_step

    def prepare_late(account: Account, parent: GridJob, name: str) -> GridJob:
        if name == "alone":
            request_cancel(account.database, whole, "cancelled by a test")
        return prepare(account, parent, name)

    monkeypatch.setattr(workflow, "_prepare_step", prepare_late)
    advance_grid_job(account, whole)
    assert list(begun_steps(account, whole)) == ["make"]


def test_the_reasons_of_the_steps_that_failed_are_told_by_their_names(account: Account) -> None:
    whole = accept(account, f"{MAKE} {named('b', '')} {named('c', '(after)')}")
    job = account.database.grid_jobs.get(whole)
    children = {}
    for name, state in (("make", F), ("c", F)):
        children[name] = GridJob.new(name * 2, "command", "ada", "fork", 100)
        children[name].state, children[name].reason = state, f"no {name}"
    told = "step make (makemake): no make; step c (cc): no c"
    assert judge_steps(job, children) == (F, told)
    children["c"].state = D
    assert judge_steps(job, children) == (F, "step make (makemake): no make")


def test_nothing_begins_once_it_is_cancelled(account: Account) -> None:
    job_id = accept(account, MAKE)
    request_cancel(account.database, job_id, "cancelled by a test")
    advance_grid_job(account, job_id)
    assert account.database.grid_jobs.get(job_id).steps[0].grid_job is None


def test_cancelling_it_cancels_the_step_that_runs(account: Account) -> None:
    job_id = accept(account, MAKE)
    advance_grid_job(account, job_id)
    request_cancel(account.database, job_id, "cancelled by a test")
    cancel_steps(account, job_id)
    part = account.database.grid_jobs.get(str(account.database.grid_jobs.get(job_id).steps[0].grid_job))
    assert (part.cancelled, part.reason) == (True, f"{job_id} was cancelled by a test")


def test_a_step_that_was_cancelled_is_cancelled_wherever_steps_are_listed(
    account: Account,
) -> None:
    job_id = accept(account, f"{MAKE} {READ}")
    advance_grid_job(account, job_id)
    request_cancel(account.database, job_id, "cancelled by a test")
    cancel_steps(account, job_id)
    part = str(account.database.grid_jobs.get(job_id).steps[0].grid_job)
    account.database.grid_jobs.change(part, lambda job: job.end(State.FAILED, 2000))
    expected = [StepLine("make", part, "failed", "cancelled"), StepLine("read", None, None)]
    assert account.database.grid_jobs.steps_of(job_id) == expected
    assert account.database.grid_jobs.open_steps()[job_id] == expected
    (row,) = account.database.grid_jobs.overview(job_id)
    assert f"make ({part}) cancelled" in render_details(account, row, 3000)
    printed = json.loads(render_json(account.database, GridJobList([row], {}, {}), {}))
    jsonschema.validate(printed, json.loads(STATUS_SCHEMA.read_text()))
    assert [(step["outcome"], step["after"]) for step in printed[0]["steps"]] == [("cancelled", []), (None, ["make"])]


def accept_two(account: Account, *states: State) -> tuple[str, list[str]]:
    """A grid job of two steps side by side, with their grid jobs in these states."""
    whole = accept(account, f"{MAKE} {named('beside', '(after)')}")
    advance_grid_job(account, whole)
    parts = list(begun_steps(account, whole).values())
    for part, state in zip(parts, states, strict=True):
        account.database.grid_jobs.change(part, lambda job, state=state: setattr(job, "state", state))  # type: ignore[misc]
    return whole, parts


@pytest.mark.parametrize(
    ("answers", "told"),
    [
        pytest.param([True, True], S, id="both"),
        pytest.param([None, True], S, id="the first refuses"),
        pytest.param([False, None], None, id="nothing runs in one, the other refuses"),
    ],
)
def test_a_signal_goes_to_all_steps_that_run(
    account: Account, monkeypatch: pytest.MonkeyPatch, answers: list[bool | None], told: State | None
) -> None:
    whole, parts = accept_two(account, A, P)
    asked = []

    def suspend(account: Account, part: str) -> bool:
        asked.append(part)
        answer = answers[parts.index(part)]
        if answer is None:
            raise Refused("no")
        return answer

    monkeypatch.setattr("jobmanager.control.suspension.suspend_grid_job", suspend)
    assert calls._pass_on(account, whole, calls.JobSignal.SUSPEND, "") is told
    assert asked == parts
    answers = [None, None]
    with pytest.raises(Refused):
        calls._pass_on(account, whole, calls.JobSignal.SUSPEND, "")


def test_bars_and_lines_show_all_steps_that_run(account: Account, capsys: pytest.CaptureFixture[str]) -> None:
    whole, (make, beside) = accept_two(account, A, P)
    lines = PlainLines()
    for _ in range(2):
        lines.show(_take_snapshot(account, whole))
    # The state of the whole is the monitor's to bring up to date.
    assert capsys.readouterr().out.splitlines() == [
        f"unsubmitted: step 1 of 2: make ({make}) active: no local jobs yet of 1",
        f"unsubmitted: step 2 of 2: beside ({beside}) pending: no local jobs yet of 1",
    ]
    with Bars() as bars:
        bars.show(_take_snapshot(account, whole))
    shown = capsys.readouterr().out
    assert "make local jobs" in shown
    assert "beside local jobs" in shown


def test_a_dry_run_says_what_steps_wait_for(account: Account) -> None:
    relations = read_rsl(f"&(samgrid_type = structured)(steps = {DIAMOND})", {})
    lines = find_command_lines(account, [(one.name, one.values) for one in relations], Path("/"))
    assert "step d: a grid job of its own, after b, c" in lines
    assert "step alone: a grid job of its own" in lines


def test_a_dry_run_shows_the_command_lines_of_steps_and_warns_once(
    account: Account, caplog: pytest.LogCaptureFixture
) -> None:
    make = "(make (samgrid_type command) (executable /bin/echo) (arguments '$SAMGRID_INDEX') (count 2))"
    use = "(use (samgrid_type command) (executable /bin/echo) (input_step make))"
    relations = read_rsl(f"&(samgrid_type = structured)(environment = (COLOUR blue))(steps = {make} {use})", {})
    assert find_command_lines(account, [(one.name, one.values) for one in relations], Path("/")) == [
        "step make: a grid job of its own",
        "  1: /bin/echo '$SAMGRID_INDEX'",
        "  2: /bin/echo '$SAMGRID_INDEX'",
        "step use: a grid job of its own, after make",
        "  its command lines are known when make is done",
    ]
    (warning,) = (record.message for record in caplog.records if record.levelname == "WARNING")
    assert warning.startswith("step make: arguments: no shell expands $SAMGRID_INDEX")


def test_its_state_is_refreshed_from_its_steps(account: Account) -> None:
    job_id = accept(account, f"{MAKE} {READ}")
    advance_grid_job(account, job_id)
    part = str(account.database.grid_jobs.get(job_id).steps[0].grid_job)
    account.database.grid_jobs.change(part, lambda job: setattr(job, "state", A))
    refresh_structured(account.database, job_id)
    assert account.database.grid_jobs.get(job_id).state is A


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        pytest.param([StepLine("a", None, None)], "step 1 of 1: a", id="not begun"),
        pytest.param(
            [StepLine("a", "abcdefgh", "done"), StepLine("b", "bcdefghi", "active")],
            "step 2 of 2: b (bcdefghi) active",
            id="the second",
        ),
        pytest.param(
            [StepLine("a", "abcdefgh", "failed", "cancelled"), StepLine("b", None, None)],
            "step 1 of 2: a (abcdefgh) cancelled",
            id="cancelled",
        ),
        pytest.param(
            [StepLine("a", "abcdefgh", "done"), *(StepLine(name, name * 8, "active") for name in "bcd")],
            "steps 2, 3 and 4 of 4: b (bbbbbbbb) active, c (cccccccc) active, d (dddddddd) active",
            id="side by side",
        ),
        pytest.param(
            [StepLine("a", "abcdefgh", "failed", "failed"), StepLine("b", "bcdefghi", "done")],
            "step 1 of 2: a (abcdefgh) failed",
            id="the one that failed",
        ),
    ],
)
def test_a_line_says_which_step_it_has_come_to(steps: list[StepLine], expected: str) -> None:
    assert render_steps(steps, find_current_steps(steps)) == expected


def end_step(account: Account, whole: str, state: State) -> str:
    """Begin the next step, and let it end with a tar."""
    advance_grid_job(account, whole)
    part = [step.grid_job for step in account.database.grid_jobs.get(whole).steps if step.grid_job][-1]
    assert part is not None

    def end(job: GridJob) -> None:
        job.put_summary({"events": "2000"})
        job.reason = None if state is D else "1 of 1 local jobs failed"
        job.end(state, 1_795_219_187)

    account.database.grid_jobs.change(part, end)
    account.places.grid_job(part).mkdir(parents=True)
    results = account.places.grid_job(part) / "results"
    (results / f"{part}.1.output").mkdir(parents=True)
    (results / f"{part}.1.output" / "made").write_text(part)
    ends = [End(1, "1", "succeeded", None)]
    write_output(part, results, lambda: ends, {}, account.places.output(part), TarLimits(100, 10**6))
    return part


def accept_through_gram(account: Account, folder: Path, more: str = "") -> str:
    relations = read_rsl(
        f"&(samgrid_type = structured)(steps = {MAKE} {READ.replace('(input_step make)', '')}){more}", {}
    )
    origin = GramOrigin("1.2.3", "https://localhost/1/2/", str(folder / "stdout"), str(folder / "stderr"), False)
    given = [(relation.name, relation.values) for relation in relations]
    job_id = accept_grid_job(account, given, Path("/"), origin)
    assert accept_grid_job(account, given, Path("/"), origin) == job_id, "GRAM may send it again"
    account.places.grid_job(job_id).mkdir(parents=True)
    return job_id


def test_gram_gets_a_report_of_the_steps(account: Account, tmp_path: Path) -> None:
    job_id = accept_through_gram(account, tmp_path)
    end_step(account, job_id, D)
    part = end_step(account, job_id, F)
    assert account.database.grid_jobs.find_uniqid("1.2.3") == job_id
    assert [job.id for job in account.database.grid_jobs.list_unreported()] == [job_id], "it sees the whole only"
    collect_steps(account, job_id)
    refresh_structured(account.database, job_id)
    whole = account.database.grid_jobs.get(job_id)
    assert (whole.state, whole.reason) == (F, f"step read ({part}): 1 of 1 local jobs failed")
    report = (tmp_path / "stdout").read_text()
    assert report.startswith(f"grid job {job_id} (structured): 1 of 2 steps succeeded\nmake: events: 2000\n")
    assert (tmp_path / "stderr").read_text() == f"step read ({part}): 1 of 1 local jobs failed\n"


def test_gram_gets_the_one_tar_with_what_the_steps_made(account: Account, tmp_path: Path) -> None:
    job_id = accept_through_gram(account, tmp_path, "(samgrid_output = stdout)")
    parts = [end_step(account, job_id, D), end_step(account, job_id, D)]
    collect_steps(account, job_id)
    assert account.database.grid_jobs.get(job_id).state is D
    assert (tmp_path / "stderr").read_text().startswith(f"grid job {job_id} (structured): 2 of 2 steps succeeded\n")
    assert (tmp_path / "stdout").read_bytes() == account.places.output(job_id).read_bytes()
    with tarfile.open(tmp_path / "stdout") as tar:
        manifest = json.load(tar.extractfile(f"{job_id}/manifest.json") or pytest.fail("there is no manifest"))
    found = {file["path"]: file["sha256"] for file in manifest["files"]}
    for name, part in zip(("make", "read"), parts, strict=True):
        assert found[f"{name}/{part}.1.output/made"] == hashlib.sha256(part.encode()).hexdigest()


def test_a_step_whose_tar_is_gone_is_told_in_the_manifest(account: Account, tmp_path: Path) -> None:
    job_id = accept_through_gram(account, tmp_path)
    parts = [end_step(account, job_id, D), end_step(account, job_id, D)]
    account.places.output(parts[0]).unlink()
    collect_steps(account, job_id)
    with tarfile.open(account.places.output(job_id)) as tar:
        manifest = json.load(tar.extractfile(f"{job_id}/manifest.json") or pytest.fail("there is no manifest"))
    refused = [{"path": f"make/{parts[0]}.tar", "reason": "No such file or directory"}]
    assert manifest["refused"] == refused


@pytest.mark.parametrize(
    ("steps", "level"),
    [
        pytest.param(MAKE, Level.GOOD, id="good"),
        pytest.param("(make (samgrid_type command))", Level.FAULT, id="a step without program"),
    ],
)
def test_a_handler_with_steps_is_checked_as_far_as_its_steps(tmp_path: Path, steps: str, level: Level) -> None:
    relations = read_rsl(f"&(samgrid_type = structured)(steps = {steps})", {})
    given = [(relation.name, relation.values) for relation in relations]
    configuration = read_configuration({}, site_file=Path("/nonexistent"))
    (finding,) = try_request(configuration, given, Path("/"), tmp_path)
    assert isinstance(finding, Finding)
    assert finding.level is level


def test_steps_get_the_credentials_of_the_whole(account: Account, tmp_path: Path) -> None:
    proxy = write_secret(tmp_path / "proxy", b"-")
    tokens = [write_secret(tmp_path / name, make_token(4e9)) for name in ("whole", "own")]
    own = f"(own (samgrid_type command) (executable /bin/true) (after) (bearer_token_file {tokens[1]}))"
    none = '(none (samgrid_type command) (executable /bin/true) (after) (x509_user_proxy ""))'
    relations = read_rsl(f"&(samgrid_type=structured)(steps={MAKE}{own}{none})(bearer_token_file={tokens[0]})", {})
    given = [(relation.name, relation.values) for relation in relations]
    job_id = accept_grid_job(account, given, Path("/"), proxy=str(proxy))
    advance_grid_job(account, job_id)
    steps = {step.name: step.grid_job for step in account.database.grid_jobs.get(job_id).steps}
    sources = {
        name: [entry.source for entry in account.database.grid_jobs.get(str(grid_job)).credentials]
        for name, grid_job in steps.items()
    }
    assert sources == {
        "make": [str(tokens[0]), str(proxy)],
        "own": [str(tokens[1]), str(proxy)],
        "none": [str(tokens[0])],
    }
