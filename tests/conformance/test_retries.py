"""Local jobs that fail while others run, on every batch system: tried again, given more, or stopping the rest."""

from collections.abc import Mapping
from typing import Any

import pytest

from batch_adapters.adapter import Command
from batch_adapters.running import batch_system
from batch_adapters.running.commands import render_argv, render_text, run_command
from batch_adapters.states import Cause, State
from jobmanager.database.local_job import Outcome
from tests.conformance.fakes.site import SETTLE, Site

COUNT = 3
"""Local jobs of a grid job: an array of two, and one alone, where there are arrays."""


def fail_one(site: Site, grid_job: str) -> None:
    """One local job fails while the others run, and the account hears of it."""
    site.start()
    site.end(3, 2)
    site.advance(SETTLE + 1)
    assert site.reconcile() == 0


def test_a_local_job_that_failed_is_tried_again_while_the_others_run(site: Site) -> None:
    grid_job = site.accept(COUNT, retries="1")
    site.submit(grid_job)
    fail_one(site, grid_job)
    first = {job.index: job.local_id for job in site.local_jobs(grid_job)}
    # Its answer is lost, so that the second attempt is looked for among those that run.
    site.plan("submit", "fail-after")
    site.submit(grid_job)
    assert site.counts(grid_job) == {State.ACTIVE: COUNT - 1, State.PENDING: 1}
    second = {job.index: job.local_id for job in site.local_jobs(grid_job)}
    assert [index for index in first if first[index] != second[index]] == [2]
    assert len(site.taken(grid_job)) == COUNT + 1
    # What the batch system still shows of the first attempt is not the second's end.
    assert site.reconcile() == 0
    assert site.counts(grid_job) == {State.ACTIVE: COUNT - 1, State.PENDING: 1}
    assert site.finish(grid_job).state is State.DONE
    assert [job.runs for job in site.taken(grid_job)] == [1] * (COUNT + 1)


def test_a_cancel_ends_what_runs_beside_a_second_attempt(site: Site) -> None:
    grid_job = site.accept(COUNT, retries="1")
    site.submit(grid_job)
    fail_one(site, grid_job)
    site.submit(grid_job)
    site.cancel(grid_job)
    site.settle_cancel(grid_job)
    assert not [job for job in site.taken(grid_job) if job.is_live]
    assert site.work("collect", grid_job) == 0
    assert {job.cause for job in site.local_jobs(grid_job)} == {Cause.CANCELLED_BY_US}


@pytest.mark.usefixtures("site")
def test_a_second_attempt_is_given_more_memory(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []

    def note(command: Command, variables: Mapping[str, Any], ignored: tuple[str, ...]) -> str:
        said.append(" ".join([*render_argv(command, variables), render_text(command.stdin, variables)]))
        return run_command(command, variables, ignored)

    monkeypatch.setattr(batch_system, "run_command", note)
    grid_job = site.accept(COUNT, retries="1", max_memory="1001", retry_memory_factor="1.5")
    site.submit(grid_job)
    fail_one(site, grid_job)
    said.clear()
    site.submit(grid_job)
    words = {
        **dict.fromkeys(("pbs", "torque"), "mem=1502mb"),
        **{"slurm": "--mem=1502M", "sge": "h_vmem=1502M", "lsf": "-M 1502MB", "condor": "request_memory = 1502"},
    }
    assert any(words.get(site.name, "") in command for command in said), said
    token = site.local_jobs(grid_job)[1].token
    table = site.account.places.sandbox(grid_job) / f"{token}.0"
    assert " memory_mb=1502; " in table.read_text(), "the driver's own limit"


def test_where_one_fails_for_good_the_others_are_stopped(site: Site) -> None:
    grid_job = site.accept(COUNT, fail_fast="yes")
    site.submit(grid_job)
    fail_one(site, grid_job)
    assert site.work("submit", grid_job) == 0
    site.settle_cancel(grid_job)
    assert site.work("collect", grid_job) == 0
    stopped = site.database.grid_jobs.get(grid_job)
    assert (stopped.state, stopped.outcome) == (State.FAILED, "failed")
    assert stopped.reason == "1 of 3 local jobs failed, first number 2: the program ended with exit code 3"
    ends = [(job.outcome, job.cause) for job in site.local_jobs(grid_job)]
    rest = (Outcome.CANCELLED, Cause.FAIL_FAST)
    assert ends == [rest, (Outcome.FAILED, Cause.EXIT_CODE), rest]


@pytest.mark.parametrize("is_held", [False, True], ids=["waits", "held"])
def test_a_local_job_that_waits_too_long_is_cancelled_and_says_why(site: Site, is_held: bool) -> None:
    grid_job = site.accept(COUNT, max_pending_time="10")
    site.submit(grid_job)
    site.start(1)
    if is_held:
        site.hold()
    assert site.reconcile() == 0
    site.advance(595)
    assert site.reconcile() == 0
    assert not any(state.is_final for state in site.counts(grid_job)), "not yet"
    for _ in range(5):
        site.advance(SETTLE + 1)
        assert site.reconcile() == 0
    first, *others = site.local_jobs(grid_job)
    assert first.state is State.ACTIVE, "what runs is left alone"
    assert {(job.outcome, job.cause) for job in others} == {(Outcome.FAILED, Cause.PENDING_LIMIT)}
    assert {str(job.reason) for job in others} == {"it waited, or was held, longer than max_pending_time allows"}
    assert site.finish(grid_job).state is State.FAILED
