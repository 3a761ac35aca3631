"""``samgrid orphans``: what carries our tokens and nobody wants is listed, and cancelled on demand."""

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from batch_adapters.states import State
from jobmanager.commands import batch_system as batch_commands
from jobmanager.database.local_job import LocalJob
from jobmanager.site.account import Account
from tests.unit.batch_program import SILENT, BatchProgram, use
from tests.unit.grid_jobs import make_grid_job, put

ENDED, ALIVE = "aaaaaaaa", "bbbbbbbb"


@pytest.fixture
def program(room: Path) -> BatchProgram:
    return BatchProgram(room)


@pytest.fixture
def fake(account: Account, program: BatchProgram, monkeypatch: pytest.MonkeyPatch) -> Account:
    """Two grid jobs, of which one has ended; each has the local job that its batch system shows."""
    fake = use(account, program)
    monkeypatch.setattr(batch_commands, "open_account_of", lambda options, to_change: fake)
    add(fake, ENDED, "17", State.FAILED)
    add(fake, ALIVE, "18", State.ACTIVE)
    return fake


def add(account: Account, job_id: str, array: str, state: State, batch: str = "fake") -> None:
    job = make_grid_job(job_id, batch=batch)
    job.state = state
    local_job = LocalJob.new(1, batch, None)
    local_job.intend(f"{job_id}-1", 1000)
    local_job.register(f"{array}.1", array, 1000)
    local_job.state = state
    put(account.database, job, [local_job])


def orphans(*tokens: str, reap: bool = False) -> int:
    return batch_commands.orphans(argparse.Namespace(state_dir=None, tokens=list(tokens), reap=reap))


QUEUE = f"""17.1 RUNS {ENDED}-1
18.1 RUNS {ALIVE}-1
19.1 WAITS {ALIVE}-1
20.1 WAITS cccccccc-1
21.1 ENDED cccccccc-1
22.1 RUNS interactive
"""
LISTED = [
    ["BATCH SYSTEM", "LOCAL ID", "TOKEN", "STATE", "WHY"],
    ["fake", "17.1", f"{ENDED}-1", "RUNS", f"grid job {ENDED} has ended"],
    ["fake", "19.1", f"{ALIVE}-1", "WAITS", f"grid job {ALIVE} does not know of it"],
    ["fake", "20.1", "cccccccc-1", "WAITS", "no grid job cccccccc in this job database"],
]


def cells(text: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.split("  ") if cell] for line in text.splitlines()]


@pytest.mark.usefixtures("fake")
def test_orphans_are_listed_with_the_reason_and_one_question(
    program: BatchProgram, capsys: pytest.CaptureFixture[str]
) -> None:
    program.answer("queue", QUEUE)
    assert orphans() == 1
    assert cells(capsys.readouterr().out) == LISTED
    assert program.calls() == ["queue"]


def test_a_host_that_is_not_the_active_one_lists_orphans_by_what_is_committed_until_the_answer(
    fake: Account, program: BatchProgram, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.places.active_host.write_text("another -\n")
    elsewhere = replace(fake)
    monkeypatch.setattr(batch_commands, "open_account_of", lambda options, to_change: elsewhere)
    assert elsewhere.database.refusal
    add(fake, "dddddddd", "23", State.ACTIVE)
    program.answer("queue", QUEUE + "23.1 RUNS dddddddd-1\n")
    assert orphans() == 1
    assert cells(capsys.readouterr().out) == LISTED


@pytest.mark.usefixtures("fake")
@pytest.mark.parametrize(
    ("tokens", "cancelled"),
    [
        pytest.param([], "cancel 17.1 19.1 20.1", id="all"),
        pytest.param(["cccccccc-1", f"{ENDED}-1"], "cancel 17.1 20.1", id="named"),
    ],
)
def test_reaping_cancels_what_is_listed_and_nothing_else(
    program: BatchProgram, capsys: pytest.CaptureFixture[str], tokens: list[str], cancelled: str
) -> None:
    program.answer("queue", QUEUE)
    assert orphans(*tokens, reap=True) == 0
    assert program.calls("cancel") == [cancelled]
    assert f"fake: {len(cancelled.split()) - 1} cancelled" in capsys.readouterr().out


@pytest.mark.usefixtures("fake")
@pytest.mark.parametrize("tokens", [[], ["cccccccc-1"]], ids=["all", "named"])
def test_where_there_are_none_that_is_said(
    program: BatchProgram, capsys: pytest.CaptureFixture[str], tokens: list[str]
) -> None:
    program.answer("queue", f"18.1 RUNS {ALIVE}-1\n")
    assert orphans(*tokens, reap=True) == 0
    assert capsys.readouterr().out == f"no orphans{' of cccccccc-1' if tokens else ''}\n"
    assert program.calls("cancel") == []


@pytest.mark.usefixtures("fake")
@pytest.mark.parametrize(
    ("command", "words"),
    [pytest.param("queue", "cannot be asked", id="question"), pytest.param("cancel", "did not cancel", id="cancel")],
)
def test_a_silent_batch_system_is_a_clear_error_of_its_own(
    program: BatchProgram, capsys: pytest.CaptureFixture[str], command: str, words: str
) -> None:
    program.answer("queue", QUEUE)
    program.answer(command, "no\nconnection", SILENT)
    assert orphans(reap=True) == 3
    printed = capsys.readouterr()
    assert "no orphans" not in printed.out
    (line,) = printed.err.splitlines()
    assert line.startswith(f"samgrid orphans: fake {words}")
    assert "no connection" in line


def test_the_batch_systems_of_all_grid_jobs_are_asked(
    fake: Account, program: BatchProgram, capsys: pytest.CaptureFixture[str]
) -> None:
    add(fake, "dddddddd", "30", State.DONE, batch="elsewhere")
    program.answer("queue", QUEUE)
    assert orphans() == 3
    printed = capsys.readouterr()
    assert cells(printed.out) == LISTED, "those that do answer are listed"
    assert 'elsewhere cannot be asked: unknown batch system "elsewhere"' in printed.err


@pytest.mark.usefixtures("fake")
def test_hostile_names_are_printed_as_text(program: BatchProgram, capsys: pytest.CaptureFixture[Any]) -> None:
    program.answer("queue", f"17.\x1b[2J RUNS {ENDED}-1\n")
    assert orphans() == 1
    assert all(line.isprintable() for line in capsys.readouterr().out.splitlines())
