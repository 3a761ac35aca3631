"""Structured grid jobs: what is refused, which step comes next, what a step's request is."""

import hashlib
import json
import tarfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters import Step, Value
from batch_adapters.diagnosis import Finding, Level
from batch_adapters.states import State
from jobmanager.checks.handler_trial import try_request
from jobmanager.control.cancel_requests import request_cancel
from jobmanager.database.database import StepLine
from jobmanager.database.grid_job import GramOrigin, GridJob
from jobmanager.requests.acceptance import accept_grid_job
from jobmanager.requests.attributes import BadRequest, render_step_request
from jobmanager.requests.rsl import read_rsl
from jobmanager.site.account import Account
from jobmanager.site.configuration import read_configuration
from jobmanager.states.aggregation import Task, aggregate_steps, next_task_of_steps
from jobmanager.states.changes import refresh_structured
from jobmanager.views.grid_jobs import render_step
from jobmanager.workflow import advance_grid_job, cancel_steps, collect_steps
from sandbox.files import TarLimits
from sandbox.gather import End, write_output

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
        pytest.param('("../x" (samgrid_type command))', "", "its name letters, digits", id="a name that is a path"),
        pytest.param(f"{MAKE} {MAKE}", "", "two are named make", id="two of one name"),
        pytest.param(READ, "", "input_step 'make' is no earlier step: it is the first", id="input of nobody"),
        pytest.param(f"{READ} {MAKE}", "", "is no earlier step", id="input of a later step"),
        pytest.param(f"{MAKE} (x (input_step make a))", "", "takes the name of one earlier step", id="two inputs"),
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
        accept(account, "(a (samgrid_type xyz)) (b (samgrid_type command))")
    assert [fault.partition(":")[0] for fault in refusal.value.faults] == ["step a", "step b"]


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
    assert next_task_of_steps(steps, cancelled) is task
    assert aggregate_steps(steps) is state


_LIVES = st.lists(st.sampled_from([[P, A, D], [A, D], [D], [P, F], [A, S, A, D]]), min_size=1, max_size=4)


@given(_LIVES)
def test_its_state_never_goes_back(lives: list[list[State]]) -> None:
    """Whatever its steps go through one after the other."""
    steps: list[State | None] = [None] * len(lives)
    seen = [aggregate_steps(steps)]
    for number, life in enumerate(lives):
        for state in (U, *life):
            steps[number] = state
            seen.append(aggregate_steps(steps))
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
        ("directory", ("/tmp",)),
        ("samgrid_output", ("all.tar",)),
        ("environment", (("COLOUR", "blue"), ("SHAPE", "round"))),
    ]
    step = Step("a", (("samgrid_type", ("command",)), ("queue", ("short",)), ("environment", (("COLOUR", "red"),))))
    assert render_step_request(whole, step, None, takes_folder=False) == [
        ("Queue", ("long",)),
        ("max_wall_time", ("60",)),
        *step.request,
        ("environment", (("COLOUR", "blue"), ("SHAPE", "round"), ("COLOUR", "red"))),
    ]


@pytest.mark.parametrize("takes_folder", [True, False])
def test_a_step_gets_the_folder_of_its_input(takes_folder: bool) -> None:
    step = Step("merge", (("samgrid_type", ("any",)),), "production")
    request = render_step_request([], step, Path("/inputs"), takes_folder)
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
    (first, second) = account.database.grid_jobs.steps(job_id)[job_id]
    assert first.grid_job is not None
    assert (first.state, second.grid_job) == ("unsubmitted", None)
    part = account.database.grid_jobs.get(first.grid_job)
    assert (part.parent, part.uniqid, part.request_folder) == (job_id, None, Path("/"))
    assert [row.parent for row in account.database.grid_jobs.overview() if row.id == first.grid_job] == [job_id]


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
    ],
)
def test_a_line_says_which_step_it_has_come_to(steps: list[StepLine], expected: str) -> None:
    assert render_step(steps) == expected


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
