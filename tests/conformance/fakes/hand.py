"""The hand that moves a fake batch system: time passes, and jobs start and end, when a test says so and not before."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from tests.conformance.fakes.book import BROKEN, ENDED, HELD, LOST, PENDING, RUNNING, Book, Job
from tests.conformance.fakes.dialect import Dialect


class Hand:
    """One fake batch system, from its own side."""

    def __init__(self, dialect: Dialect, book: Book) -> None:
        self.dialect = dialect
        self.book = book

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.book.set_clock(self.book.now() + seconds)

    def plan(self, kind: str, *ways: str) -> None:
        """Let the next commands of that kind misbehave, each in one of these ways."""
        self.book.plan(kind, ways)

    def calls(self, kind: str = "") -> list[list[str]]:
        """The commands so far, or those of a kind."""
        return [call for call in self.book.calls() if kind in ("", call[0])]

    def taken(self, grid_job: str) -> list[Job]:
        """Every local job of a grid job that the batch system ever took."""
        return [job for job in self.book.jobs() if job.token.startswith(f"{grid_job}-") and job.state != LOST]

    def start(self, *indexes: int) -> None:
        """Start what waits, or those of it: the drivers write that they begin."""
        for job in self._change_state(PENDING, RUNNING, None, indexes):
            began = f"start {self.book.now():.0f}"
            self._write_status(
                job, ("", began, "host n1", "pid 1", f"index {job.number_in_grid_job}", f"token {job.token}")
            )

    def end(self, exit_code: int = 0, *indexes: int) -> None:
        """End what runs, or those of it: the drivers write down that exit code, and their outputs are back."""
        for job in self._change_state(RUNNING, ENDED, exit_code, indexes):
            self.result(job, "stdout").write_text(f"output of {job.number_in_grid_job}\n")
            self.result(job, "stderr").touch()
            self._write_status(job, ("cpu 0.01", f"exit {exit_code}", f"end {self.book.now():.0f}"))

    def run(self) -> None:
        """Start and end what waits, and end what runs."""
        self.start()
        self.end()

    def break_down(self) -> None:
        """End what runs as a node ends that dies: no driver writes anything any more."""
        self._change_state(RUNNING, BROKEN)

    def requeue(self) -> None:
        """Queue again what runs or was broken."""
        self._change_state(RUNNING, PENDING)
        self._change_state(BROKEN, PENDING)

    def hold(self) -> None:
        """Hold what waits."""
        self._change_state(PENDING, HELD)

    def release(self) -> None:
        """Release what is held."""
        self._change_state(HELD, PENDING)

    def forget(self, history_too: bool = False) -> None:
        """Let the queue, and perhaps the history, forget what has ended."""
        self.book.change(lambda job: job if job.is_live else job._replace(forgotten=True, unrecorded=history_too))

    def run_drivers(self) -> None:
        """Run what waits for real: each driver with what a job finds in its environment, to its end."""
        self.start()
        for job in [job for job in self.book.jobs() if job.state == RUNNING]:
            self.result(job, "status").unlink()
            environment = {"PATH": os.environ["PATH"], "HOME": "/", **self.dialect.variables(job)}
            done = self._run_driver(job, environment)
            self._change_state(RUNNING, ENDED, done.returncode, [job.number_in_grid_job])

    def _run_driver(self, job: Job, environment: Mapping[str, str]) -> "subprocess.CompletedProcess[bytes]":
        if not job.brings:
            command = ["/bin/sh", job.driver, job.token]
            return subprocess.run(command, cwd="/", env=environment, check=False, stdin=subprocess.DEVNULL)
        results = self.result(job, "status").parent
        with tempfile.TemporaryDirectory() as folder:
            for path in job.brings:
                shutil.copy(path, folder)
            command = ["/bin/sh", Path(job.driver).name, job.token]
            done = subprocess.run(command, cwd=folder, env=environment, check=False, stdin=subprocess.DEVNULL)
            for carried in ("results", "last"):
                shutil.copytree(Path(folder, carried), results, dirs_exist_ok=True)
        return done

    def _change_state(
        self, before: str, after: str, exit_code: int | None = None, indexes: Collection[int] = ()
    ) -> list[Job]:
        """Those that were in the first state are in the second."""
        now = self.book.now()
        found = [job for job in self.book.visible() if job.state == before]
        changed = [job for job in found if not indexes or job.number_in_grid_job in indexes]
        keys = [_key(job) for job in changed]
        self.book.change(
            lambda job: (
                job._replace(state=after, exit_code=exit_code, gone=now, runs=job.runs + (after == RUNNING))
                if _key(job) in keys
                else job
            )
        )
        return changed

    def result(self, job: Job, kind: str) -> Path:
        """What its driver leaves of that kind."""
        # The driver lies in the sandbox, beside the results.
        results = Path(job.driver).parent.with_name("results")
        return results / f"{job.token.partition('-')[0]}.{self.dialect.local_id(job)}.{kind}"

    def _write_status(self, job: Job, lines: Iterable[str]) -> None:
        with self.result(job, "status").open("a") as status:
            status.writelines(f"{line}\n" for line in lines)


def _key(job: Job) -> tuple[int, int | None, float]:
    # Numbers are used again after a crash.
    return job.number, job.element, job.appears
