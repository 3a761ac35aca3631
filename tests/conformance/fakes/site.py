"""A site with a fake batch system: an account whose grid jobs go to it, and the hand that moves it."""

import contextlib
import io
import os
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from lxml import etree

from batch_adapters.adapter import BatchAdapter
from batch_adapters.registry import ADAPTERS
from batch_adapters.running import commands as running
from batch_adapters.site_adapter import find_adapter
from batch_adapters.states import State
from jobmanager.control.cancel_requests import request_cancel
from jobmanager.database.grid_job import GridJob
from jobmanager.database.local_job import LocalJob
from jobmanager.monitor.worker import main as run_worker
from jobmanager.requests.acceptance import accept_grid_job
from jobmanager.site import account as accounts
from jobmanager.site.account import open_account
from jobmanager.site.configuration import Configuration, read_configuration, render_configuration
from jobmanager.site.settings import Transfer
from tests.clocks import set_clock
from tests.conformance.fakes.book import Book
from tests.conformance.fakes.dialect import find_dialect
from tests.conformance.fakes.hand import Hand
from tests.conformance.fakes.program import Outcome, answer
from tests.conformance.fakes.resident import Resident
from tests.hanging import give_up_what_hangs

ROOT = Path(__file__).resolve().parents[3]
EXAMPLES: Mapping[str, Mapping[str, Any]] = tomllib.loads((ROOT / "examples" / "oar.toml").read_text())["batch"]
"""Batch systems that a configuration defines, with no code of ours."""

SYSTEMS = sorted({*ADAPTERS, *EXAMPLES})

ARRAY = 2
"""Local jobs in one array, at most."""
SETTLE = 60.0
"""Seconds after which a submission that is nowhere was never made."""
NOW = 1_800_000_000.0
"""What time it is when a test begins."""
Run = Callable[[Sequence[str], float, str, Mapping[str, str]], tuple[int, str, str]]
_COMMANDS = ("submit", "queue", "find", "status", "cancel", "history", "array_limit", "version")


def has_dialect(name: str) -> bool:
    """True if there is a dialect of that name."""
    return Path(__file__).with_name(f"{name}.py").exists()


class Site(Hand):
    """One account, and the fake batch system that its grid jobs go to."""

    def __init__(self, name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (folder / "fake").mkdir(parents=True)
        super().__init__(find_dialect(name), Book(NOW))
        self.name = name
        self.folder = folder
        self.said: list[str] = []
        self.has_programs = False
        """Its commands are programs; else they are answered at once, as to start them takes half of a test's time.

        Who is forked of us, and may be killed, always has programs: it would have a book of its own.
        """
        self._pid = os.getpid()
        self._install(monkeypatch)
        set_clock(monkeypatch, self.book.now, "jobmanager", "batch_adapters")
        self._configure(monkeypatch)
        self.root = folder / "state"
        self.account = open_account(str(self.root))
        self.database = self.account.database
        self.adapter = find_adapter(name, self.account.configuration.batch)

    # --- how it is set up

    def _install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Put the commands on PATH; fork's are started by an interpreter, through our launcher, and not by name."""
        programs = self.folder / "bin"
        programs.mkdir()
        self._resident = Resident(self.folder / "fake", self._answer)
        for program in (*self.dialect.PROGRAMS, "python"):
            self._resident.install(programs / program)
        monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
        monkeypatch.setattr(accounts, "sys", SimpleNamespace(executable=str(programs / "python")))
        give_up_what_hangs(monkeypatch, self.folder / "fake")
        monkeypatch.setattr(running, "_run", partial(self._run, running._run))

    def _run(
        self, run: Run, argv: Sequence[str], timeout: float, stdin: str, environment: Mapping[str, str]
    ) -> tuple[int, str, str]:
        """Exit code, stdout and stderr of a command; ``run`` makes a process for it."""
        has_programs = self.has_programs or os.getpid() != self._pid
        if has_programs or not (self.folder / "bin" / Path(argv[0]).name).exists():
            return run(argv, timeout, stdin, environment)
        reply, unanswered = self._resident.run_here(argv, stdin)
        if unanswered:
            return run(unanswered, timeout, stdin, environment)
        return reply.exit_code, reply.stdout, reply.stderr

    def _answer(self, words: Sequence[str], stdin: Callable[[], str]) -> Outcome:
        program, *arguments = words
        if program.endswith("/python"):
            *_, program = arguments[:3]
            arguments = arguments[3:]
        return answer(self.book, self.dialect, Path(program).name, arguments, stdin)

    def _configure(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SAMGRID_CONFIG", str(self.folder / "samgrid.toml"))
        # Read once: every worker would read it again, which takes a sixth of a test's time.
        monkeypatch.setattr(accounts, "read_configuration", lambda _: self._configuration)
        self.configure()

    def configure(self, transfer: Transfer = Transfer.SHARED, **fields: object) -> None:
        """Write the account's configuration: who carries files, and the fields of the adapter."""
        adapter: BatchAdapter = find_adapter(self.name, EXAMPLES)
        table: dict[str, Any] = dict(EXAMPLES.get(self.name, {}))
        self.array = min(ARRAY, adapter.max_array)
        for command in _COMMANDS:
            if getattr(adapter, command) is not None:
                table[command] = {**table.get(command, {}), "attempts": 1}
        own = {"max_array": self.array, "settle_time": SETTLE, "outputs_lag": 0, "commands_per_minute": 0}
        rendered = render_configuration(Configuration(batch={self.name: {**table, **own, **fields}}))
        # Without what is as it is by default.
        (self.folder / "samgrid.toml").write_text(
            f'[site]\nbatch_system = "{self.name}"\n'
            f'[sandbox]\nscratch_folder = "{self.folder}"\ntransfer = "{transfer.value}"\n'
            f"{rendered[rendered.index('[batch.') :]}"
        )
        self._configuration = read_configuration(os.environ)

    # --- what the account does

    def accept(self, count: int, script: str = "true", **wishes: str) -> str:
        """A new grid job of so many local jobs, each of which runs a line of shell, with further attributes."""
        request = [
            ("samgrid_type", ("command",)),
            ("executable", ("/bin/sh",)),
            ("arguments", ("-c", script)),
            ("count", (str(count),)),
            *((name, (word,)) for name, word in wishes.items()),
        ]
        return accept_grid_job(self.account, request, self.folder)

    def work(self, step: str, subject: str) -> int:
        """The exit status of one worker; what it said is kept."""
        said = io.StringIO()
        with contextlib.redirect_stderr(said):
            status = run_worker(["--state-dir", str(self.root), step, subject])
        self.said.append(said.getvalue())
        return status

    def reconcile(self) -> int:
        """The exit status of a look at the batch system."""
        return self.work("reconcile", self.name)

    def submit(self, grid_job: str) -> int:
        """Start submitting workers until all is submitted, a minute after each other; how many it took."""
        for number in range(1, 20):
            status = self.work("submit", grid_job)
            if status == 0 and State.UNSUBMITTED not in self.counts(grid_job):
                return number
            self.advance(SETTLE + 1)
        raise AssertionError(f"it is never submitted: {self.said[-1]}")

    def finish(self, grid_job: str) -> GridJob:
        """Let everything run to its end, and the account see it; the grid job then."""
        self.run()
        for _ in range(8):
            if not self.are_open(grid_job):
                break
            self.advance(SETTLE + 1)
            assert self.reconcile() == 0, self.said[-1]
        assert self.work("collect", grid_job) == 0, self.said[-1]
        return self.database.grid_jobs.get(grid_job)

    def are_open(self, grid_job: str) -> bool:
        """True while some local job of it has not ended."""
        return any(not state.is_final for state in self.counts(grid_job))

    def counts(self, grid_job: str) -> dict[State, int]:
        """Its local jobs by state."""
        return self.database.local_jobs.count(grid_job)

    def local_jobs(self, grid_job: str) -> list[LocalJob]:
        """Its local jobs, as the database has them."""
        return self.database.local_jobs.all_of(grid_job)

    @property
    def find_kind(self) -> str:
        """The kind of the command that looks for a token: some batch systems can only be asked for everything."""
        return "find" if self.adapter.find != self.adapter.queue else "queue"

    def document(self) -> bytes:
        """All that the database says."""
        return etree.tostring(self.database.to_xml())

    def cancel(self, grid_job: str) -> None:
        """Record the cancel request, as the command does."""
        assert request_cancel(self.database, grid_job, "cancelled by a test")

    def settle_cancel(self, grid_job: str) -> None:
        """Start cancelling workers, and look at the batch system, until all has ended."""
        for _ in range(12):
            self.work("cancel", grid_job)
            self.advance(SETTLE + 1)
            self.reconcile()
            if not self.are_open(grid_job):
                return
        raise AssertionError(f"it is never cancelled: {self.said[-2:]}")

    # --- what must always be so

    def check(self) -> None:
        """No command had arguments that the real one does not know, and no message names another batch system."""
        self._resident.close()
        assert not self._resident.faults, self._resident.faults[0]
        assert not self.calls("unknown"), f"{self.name}: no such arguments: {self.calls('unknown')[0][1:]}"
        known = [other for other in SYSTEMS if has_dialect(other)]
        foreign = {name for other in known for name in find_dialect(other).NAMES} - {*self.dialect.NAMES}
        logs = [self.account.places.log(job.id) for job in self.database.grid_jobs.overview()]
        reasons = [str(self.database.grid_jobs.get(job.id).reason) for job in self.database.grid_jobs.overview()]
        texts = [*self.said, *reasons, *(log.read_text() for log in logs if log.exists())]
        # With their digits: an id may have a name in it.
        words = set(re.findall(r"[a-z0-9_-]+", " ".join(texts).replace(str(self.folder), "").lower()))
        assert not words & foreign, f"messages about {self.name} speak of {words & foreign}"
