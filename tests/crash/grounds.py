"""The batch systems on which workers are killed."""

from pathlib import Path
from typing import Protocol

import pytest

from jobmanager.database.database import Database
from jobmanager.monitor.worker import main as run_worker
from jobmanager.requests.acceptance import accept_grid_job
from jobmanager.site.account import Account, open_account
from tests.conformance.fakes.site import Site
from tests.conformance.spool import Job, count_runs, install_fork, query_spool, wait_for_ends
from tests.waiting import Gate, wait_until

COUNT = 3
"""Local jobs of a grid job: an array of two, and one alone."""


class Ground(Protocol):
    """A batch system, and an account that uses it."""

    name: str
    account: Account

    @property
    def database(self) -> Database:
        """The account's database."""

    def accept_three(self) -> str:
        """A new grid job of `COUNT` local jobs, each of which prints its number."""

    def work(self, task: str, subject: str) -> int:
        """The exit status of one worker."""

    def advance(self, seconds: float) -> None:
        """Let time pass."""

    def start(self) -> None:
        """Start what waits."""

    def run(self) -> None:
        """Let everything run to its end."""

    def runs(self, grid_job: str) -> dict[int, int]:
        """How often each local job has run."""

    def taken_ids(self, grid_job: str) -> list[str]:
        """The ids of all local jobs of a grid job that the batch system ever took."""

    def live_ids(self) -> list[str]:
        """The ids of those that wait or run."""

    def wait_for_ends(self) -> None:
        """Return when none waits or runs that can end by itself."""


class FakeSlurm(Site):
    """A fake batch system, whose jobs run when they are told to."""

    def accept_three(self) -> str:
        return self.accept(COUNT)

    def runs(self, grid_job: str) -> dict[int, int]:
        return {job.number_in_grid_job: job.runs for job in self.taken(grid_job) if job.runs}

    def taken_ids(self, grid_job: str) -> list[str]:
        return [self.dialect.local_id(job) for job in self.taken(grid_job)]

    def live_ids(self) -> list[str]:
        return [self.dialect.local_id(job) for job in self.book.jobs() if job.is_live]

    def wait_for_ends(self) -> None:
        """What ends there has ended at once."""


class Fork:
    """The embedded batch system, whose jobs leave a mark when they run and wait until they may go."""

    name = "fork"

    def __init__(self, account: Account, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.account = account
        self._commands = install_fork(folder / "commands", monkeypatch)
        self._folder = folder
        self.gate = Gate(folder / "go")
        (folder / "marks").mkdir()

    def close(self) -> None:
        """Let go of what waits."""
        self.gate.close()
        self._commands.close()

    @property
    def database(self) -> Database:
        return self.account.database

    def accept_three(self) -> str:
        mark = f'echo "output of $SAMGRID_INDEX"; echo run >>{self._folder}/marks/"$SAMGRID_INDEX"'
        script = f"{mark}; : <{self.gate.path}"
        words = {"samgrid_type": ("command",), "executable": ("/bin/sh",), "count": (str(COUNT),)}
        request = [*words.items(), ("arguments", ("-c", script))]
        return accept_grid_job(self.account, request, self._folder)

    def work(self, task: str, subject: str) -> int:
        return run_worker(["--state-dir", str(self.account.places.root), task, subject])

    def advance(self, seconds: float) -> None:
        """It needs no time."""

    def start(self) -> None:
        wait_until(lambda: len(count_runs(self._folder / "marks")) == COUNT)

    def run(self) -> None:
        self.gate.open()
        self.wait_for_ends()

    def runs(self, grid_job: str) -> dict[int, int]:
        return count_runs(self._folder / "marks")

    def taken_ids(self, grid_job: str) -> list[str]:
        return [job.local_id for job in self._query()]

    def live_ids(self) -> list[str]:
        return [job.local_id for job in self._query() if job.is_live]

    def wait_for_ends(self) -> None:
        settings = self.account.configuration.fork
        wait_for_ends(self.account.places.fork_spool, settings.slots, settings.cancel_grace)

    def _query(self) -> list[Job]:
        settings = self.account.configuration.fork
        return query_spool(self.account.places.fork_spool, settings.slots, settings.cancel_grace)


def make_fork(account: Account, folder: Path, monkeypatch: pytest.MonkeyPatch, settings: str) -> Fork:
    """The embedded batch system of an account, with settings of its own as in samgrid.toml."""
    configuration = folder / "samgrid.toml"
    configuration.write_text(settings)
    monkeypatch.setenv("SAMGRID_CONFIG", str(configuration))
    monkeypatch.setenv("SAMGRID_SANDBOX_SCRATCH_FOLDER", str(folder))
    return Fork(open_account(str(account.places.root)), folder, monkeypatch)
