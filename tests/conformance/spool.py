"""The real commands of the embedded batch system, without the start of an interpreter for each."""

import contextlib
import io
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple, NoReturn

import pytest

from batch_adapters.fork.commands import main as run_fork
from batch_adapters.fork.spool import Spool, has_ended, read_tokens
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
    spool, asked = Spool(folder), 0.0

    def is_over() -> bool:
        nonlocal asked
        # A question starts a queue process where there is none: one is enough, unless that has been killed.
        if time.monotonic() > asked + 1:
            query_spool(folder, slots, grace)
            asked = time.monotonic()
        return all(has_ended(spool, token) for token in read_tokens(spool))

    wait_until(is_over)


def run_forked(arguments: Sequence[str], given: str = "") -> subprocess.CompletedProcess[str]:
    """``samgrid-fork`` with these arguments in a fork of this process, read to the end of its output."""
    stdin = os.memfd_create("stdin")
    os.pwrite(stdin, given.encode(), 0)
    (stdout, out), (stderr, err) = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        _become_fork(arguments, stdin, out, err)
    for descriptor in (stdin, out, err):
        os.close(descriptor)
    with open(stdout) as printed, open(stderr) as complaints:
        texts = printed.read(), complaints.read()
    return subprocess.CompletedProcess(arguments, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), *texts)


def _become_fork(arguments: Sequence[str], *descriptors: int) -> NoReturn:
    status = 70
    try:
        for target, descriptor in enumerate(descriptors):
            os.dup2(descriptor, target)
        os.closerange(3, max(descriptors) + 1)
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
