"""The real commands of the embedded batch system, without the start of an interpreter for each."""

import contextlib
import io
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.reduction import DupFd
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, NoReturn

import pytest

from batch_adapters.fork.commands import main as run_fork
from batch_adapters.fork.spool import Spool, has_work
from jobmanager.site import account as accounts
from tests.conformance.fakes.dialect import Reply
from tests.conformance.fakes.program import Outcome
from tests.conformance.fakes.resident import Resident
from tests.waiting import wait_until


class Job(NamedTuple):
    """What a query says of one job."""

    local_id: str
    native: str
    code: str

    @property
    def is_live(self) -> bool:
        """True while it waits or runs."""
        return self.native in ("queued", "running", "suspended")


def query_spool(spool: Path, slots: int, grace: float) -> list[Job]:
    """Every job, as ``samgrid-fork query`` tells of it."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        assert run_fork(["--spool", str(spool), "--slots", str(slots), "--grace", str(grace), "query"]) == 0
    return [Job(*line.split(" ")[:3]) for line in printed.getvalue().splitlines()]


def wait_for_ends(folder: Path, slots: int, grace: float) -> None:
    """Return when no job waits or runs any more."""
    asked = 0.0

    def is_over() -> bool:
        nonlocal asked
        # A question starts a queue process where there is none: one is enough, unless that has been killed.
        if time.monotonic() > asked + 1:
            query_spool(folder, slots, grace)
            asked = time.monotonic()
        with contextlib.closing(Spool(folder)) as spool:
            return not has_work(spool)

    wait_until(is_over)


def count_runs(marks: Path) -> dict[int, int]:
    """How often each job has written ``run`` into its mark; one that was ended before it could has a mark without."""
    counts = {int(mark.name): mark.read_text().count("run") for mark in marks.iterdir()}
    return {index: count for index, count in counts.items() if count}


# A server without threads does the forking: a fork of ours would have SQLite's locks as our threads hold them then.
_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(["tests.conformance.spool", "batch_adapters.fork.queue"])


def run_forked(arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """``samgrid-fork`` with these arguments in a fork of who has it loaded, read to the end of its output."""
    stdin = os.open(os.devnull, os.O_RDONLY)
    (stdout, out), (stderr, err) = os.pipe(), os.pipe()
    descriptors = [DupFd(descriptor) for descriptor in (stdin, out, err)]
    child = _SERVER.Process(target=_become_fork, args=(arguments, dict(os.environ), descriptors))
    child.start()
    for descriptor in (stdin, out, err):
        os.close(descriptor)
    with open(stdout) as printed, open(stderr) as complaints:
        texts = printed.read(), complaints.read()
    child.join()
    assert child.exitcode is not None
    return subprocess.CompletedProcess(arguments, child.exitcode, *texts)


def _become_fork(arguments: Sequence[str], environment: Mapping[str, str], descriptors: Sequence[Any]) -> NoReturn:
    status = 70
    try:
        os.environ.clear()
        os.environ.update(environment)
        for target, descriptor in enumerate(descriptors):
            os.dup2(descriptor.detach(), target)
        os.closerange(3, 100)
        with open(0) as sys.stdin, open(1, "w") as sys.stdout, open(2, "w") as sys.stderr:
            status = run_fork(arguments)
    except SystemExit:
        status = 2  # of argparse
    finally:
        os._exit(status)


def install_fork(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Resident:
    """Have an account's ``samgrid-fork`` run in forks of this process, until the resident is closed."""
    folder.mkdir()
    resident = Resident(folder, _answer)
    resident.install(folder / "python")
    monkeypatch.setattr(accounts, "sys", SimpleNamespace(executable=str(folder / "python")))
    return resident


def _answer(words: Sequence[str], _stdin: Callable[[], str]) -> Outcome:
    done = run_forked(words[words.index("samgrid-fork") + 1 :])
    return Outcome(Reply(done.stdout, done.stderr, done.returncode))
