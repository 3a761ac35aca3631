"""The real commands of the embedded batch system, without the start of an interpreter for each."""

import contextlib
import io
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from batch_adapters.fork.commands import main as run_fork
from tests.conformance.fakes.dialect import Reply
from tests.conformance.fakes.program import Outcome


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
    return [Job(*line.split(" ")) for line in printed.getvalue().splitlines()]


def answer_fork(words: Sequence[str], _stdin: Callable[[], str]) -> Outcome:
    """What ``samgrid-fork`` prints and how it ends, run in a fork of this process: for a `Resident`."""
    files = [os.memfd_create(name) for name in ("stdout", "stderr")]
    child = os.fork()
    if child == 0:
        _become_fork(words[1:], *files)
    exit_code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    stdout, stderr = map(_read_file, files)
    return Outcome(Reply(stdout, stderr, exit_code))


def _become_fork(arguments: Sequence[str], stdout: int, stderr: int) -> None:
    status = 70
    try:
        os.dup2(stdout, 1)
        os.dup2(stderr, 2)
        with open(1, "w") as sys.stdout, open(2, "w") as sys.stderr:
            status = run_fork(arguments)
    except SystemExit:
        status = 2  # of argparse
    finally:
        os._exit(status)


def _read_file(descriptor: int) -> str:
    with open(descriptor) as file:
        file.seek(0)
        return file.read()
