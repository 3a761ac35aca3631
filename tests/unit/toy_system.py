"""A batch system of one program, which answers each kind of command as it was last told, while time stands still."""

import shlex
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from batch_adapters.adapter import OK, Answer, BatchAdapter, Command, Lines, Meaning
from batch_adapters.fork.adapter import FORK
from batch_adapters.naming import Naming
from batch_adapters.running import commands as running
from batch_adapters.running.batch_system import BatchSystem
from batch_adapters.states import State
from jobmanager.database.local_job import LocalJob
from jobmanager.site.account import Account, find_batch_system
from jobmanager.states.changes import put_local_jobs
from jobmanager.states.driver_status import status_file
from sandbox.driver import LocalJobEntry, render_table
from tests.clocks import set_clock
from tests.unit.grid_jobs import make_grid_job

GRID_JOB = "abcdefgh"
TOKEN = f"{GRID_JOB}-1"
NOW = 1_795_219_187
SETTLE = 60
LAG = 20
_SIGNALS = ("suspend", "resume", "hold", "release", "priority", "forget")
_STATES = {
    **{"PD": State.PENDING, "R": State.ACTIVE, "S": State.SUSPENDED, "CG": State.ACTIVE},
    **{"CD": State.DONE, "F": State.FAILED, "CA": State.FAILED},
}
_OUTCOMES = (
    OK,
    Meaning(1, "", Answer.TRANSIENT),
    Meaning(2, "", Answer.PERMANENT),
    Meaning(4, "", Answer.ABSENT),
    Meaning(5, "", Answer.LATER),
    Meaning(6, "", Answer.TOO_MANY),
)
Run = Callable[[Sequence[str], float, str, Mapping[str, str]], tuple[int, str, str]]
_READ = Lines(r"(?P<id>\S+) (?P<state>\S+) (?P<token>\S*) (?:-|(?P<exit>\d+))(?: (?P<reason>.+))?")


class ToySystem:
    """The batch system, and one grid job on it."""

    def __init__(self, account: Account, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.account = account
        self.database = account.database
        self.now = NOW
        self._folder = folder
        folder.mkdir()
        self._program = folder / "toy"
        self._program.write_text('#!/bin/sh\necho "$*" >>"${0%/*}/calls"\n. "${0%/*}/$1.answer"\n')
        self._program.chmod(0o700)
        self._printed: dict[str, str] = {}
        """What is printed without a process for it: to start one takes most of a test's time."""
        for kind in ("submit", "queue", "find", "status", "tokens", "history", "cancel", *_SIGNALS):
            self.answers(kind)
        self.adapter = self._make_adapter()
        monkeypatch.setattr(
            "batch_adapters.site_adapter.find_adapter", lambda name, tables: {"toy": self.adapter}[name]
        )
        monkeypatch.setattr(running, "_run", partial(self._run, running._run))
        set_clock(monkeypatch, lambda: self.now, "jobmanager")

    def _run(
        self, run: Run, argv: Sequence[str], timeout: float, stdin: str, environment: Mapping[str, str]
    ) -> tuple[int, str, str]:
        printed = self._printed.get(argv[1]) if argv[0] == str(self._program) else None
        if printed is None or len(printed) > running.MAX_OUTPUT:
            return run(argv, timeout, stdin, environment)
        with (self._folder / "calls").open("a") as calls:
            calls.write(f"{' '.join(argv[1:])}\n")
        return 0, printed, ""

    def _make_adapter(self) -> BatchAdapter:
        def command(*arguments: str) -> Command:
            return Command((str(self._program), *arguments), _OUTCOMES, attempts=1)

        return replace(
            FORK,
            name="toy",
            submit=command("submit", "{{ token }}", "{{ count }}", "{{ options* }}"),
            naming=Naming(r"(?P<id>\d+)", single="{id}", element="{id}_{n}", array="{id}"),
            queue=command("queue"),
            find=command("find", "{{ token }}"),
            status=command("status", "{{ id }}"),
            tokens=command("tokens", "{{ ids* }}"),
            read_tokens=lambda printed: dict(line.split() for line in printed.splitlines()),
            history=command("history", "{{ token }}"),
            cancel=command("cancel", "{{ ids* }}"),
            suspend=command("suspend", "{{ ids* }}"),
            resume=command("resume", "{{ ids* }}"),
            hold=command("hold", "{{ ids* }}"),
            release=command("release", "{{ ids* }}"),
            priority=command("priority", "{{ priority }}", "{{ ids* }}"),
            forget=command("forget", "{{ prefixes* }}"),
            read_jobs=_READ,
            read_history=_READ,
            states=_STATES,
            leaving=frozenset({"CG"}),
            blocks={"PD JobHeldUser": "toy release {id}", "CG.*": "toy kill {array}"},
            settle_time=SETTLE,
            outputs_lag=LAG,
        )

    @property
    def system(self) -> BatchSystem:
        """It, as the job manager uses it."""
        return find_batch_system(self.account, "toy")

    def change_adapter(self, **fields: Any) -> None:
        """Let the batch adapter have other values in these fields."""
        self.adapter = replace(self.adapter, **fields)

    def falls_silent(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let it have left so many questions unanswered that it is asked with long pauses only."""
        clock = SimpleNamespace(**{**vars(time), "time": lambda: self.now})
        monkeypatch.setattr("batch_adapters.running.rate_limiter.time", clock)
        self.change_adapter(commands_per_minute=100)
        for _ in range(9):
            self.system.limiter.note_outage("no")

    def answers(self, kind: str, *lines: str) -> None:
        """Print these lines from now on, where that kind of command is asked."""
        # Who is not of this process asks the program.
        self.does(kind, f"printf '%s\\n' {shlex.join(lines)}" if lines else ":")
        self._printed[kind] = "".join(f"{line}\n" for line in lines)

    def does(self, kind: str, script: str) -> None:
        """Run this shell script from now on, where that kind of command is asked."""
        (self._folder / f"{kind}.answer").write_text(f"{script}\n")
        self._printed.pop(kind, None)

    def calls(self, kind: str) -> list[str]:
        """The arguments of each command of that kind so far."""
        file = self._folder / "calls"
        lines = file.read_text().splitlines() if file.exists() else []
        return [line.partition(" ")[2] for line in lines if line.split()[0] == kind]

    # the grid job

    def add(self, ids: Iterable[str | None], state: State = State.PENDING, token: str | None = TOKEN) -> None:
        """A grid job with a local job for each id, all under one token; None: its submission is in doubt."""
        local_jobs = [self._make(index, local_id, state, token) for index, local_id in enumerate(ids, 1)]
        job = make_grid_job(GRID_JOB, len(local_jobs), batch="toy", submitted=self.now)
        with self.database.transaction():
            self.database.grid_jobs.put(job)
            put_local_jobs(self.database, GRID_JOB, local_jobs)
        self.account.places.results(GRID_JOB).mkdir(parents=True)
        self.account.places.sandbox(GRID_JOB).mkdir()
        table = render_table([LocalJobEntry(("/bin/true",))] * len(local_jobs))
        self.account.places.local_jobs(GRID_JOB).write_bytes(table)

    def _make(self, index: int, local_id: str | None, state: State, token: str | None) -> LocalJob:
        job = LocalJob.new(index, "toy", None)
        if token is not None:
            job.intend(token, self.now)
        if local_id is not None:
            array = self.adapter.naming.array_of(local_id)
            job.register(local_id, array if array != local_id else "", self.now)
            job.state = state
        return job

    def job(self, index: int = 1) -> LocalJob:
        """One of its local jobs, as it is in the database."""
        return self.database.local_jobs.get(GRID_JOB, index)

    def states(self) -> list[State]:
        """The states of its local jobs."""
        return [job.state for job in self.database.local_jobs.all_of(GRID_JOB)]

    def ids(self) -> list[str | None]:
        """The ids of its local jobs."""
        return [job.local_id for job in self.database.local_jobs.all_of(GRID_JOB)]

    def documents(self) -> list[bytes]:
        """All that the database says of its local jobs."""
        return [job.to_bytes() for job in self.database.local_jobs.all_of(GRID_JOB)]

    def table(self, token: str) -> list[int]:
        """Which local job a driver finds at each position of a submission."""
        files = sorted(self.account.places.sandbox(GRID_JOB).glob(f"{token}.*"), key=lambda file: int(file.suffix[1:]))
        return [int(line.split(b" ")[0]) for file in files for line in file.read_bytes().splitlines()[::2]]

    def drives(self, local_id: str, *lines: str) -> None:
        """Let the driver of a local job have written these lines."""
        status_file(self.account, GRID_JOB, local_id).write_text("".join(f"{line}\n" for line in lines))
