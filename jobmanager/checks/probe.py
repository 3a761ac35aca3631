"""Submits one tiny local job for the doctor, to see whether files from worker nodes arrive in the spool folder."""

import os
import secrets
import shlex
import shutil
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from batch_adapters.adapter import BatchError, LocalStatus, Submission
from batch_adapters.running.batch_system import BatchSystem
from batch_adapters.running.diagnosis import Finding, Level
from batch_adapters.states import State
from jobmanager.site.account import Account
from jobmanager.site.settings import Transfer

_WRITTEN = "probe"
_LOOK = 0.5
"""Seconds between two checks for the file."""
_ASK = 2.0
"""Seconds between two queries for the job's end, before its folder is removed."""
_ENDING = 30.0


def run_probe(account: Account, system: BatchSystem, patience: float) -> Finding:
    """Submit one local job that writes a file into the spool folder, wait ``patience`` seconds, and clean up.

    :raises BatchError: the batch system refuses it, or does not answer; the message says what may be left.
    """
    # In the form of other tokens, by which adapters recognise our local jobs.
    token = f"doctor{secrets.token_hex(1)}-{secrets.token_hex(2)}"
    carried = account.configuration.sandbox.transfer is Transfer.BATCH_SYSTEM
    folder = account.places.jobs / token
    folder.mkdir(mode=0o700, parents=True)
    # Clean up whatever happens, even if it is unknown whether the submission was made.
    with ExitStack() as in_the_end:
        in_the_end.callback(shutil.rmtree, folder)
        submission = _prepare(system, token, folder, carried)
        results = Path(submission.results)
        in_the_end.callback(_cancel, system, token)
        local_id = system.submit(submission)[1]
        # By listing: a network file system caches for a while that a file did not exist.
        if not _wait(lambda: _WRITTEN in os.listdir(results), patience, _LOOK):  # noqa: PTH208
            return _describe_failure(system, local_id, results, patience)
        _wait(lambda: (status := system.status(local_id)) is None or not status.is_alive, _ENDING, _ASK)
        host = (results / _WRITTEN).read_text(errors="replace").strip()[:64]
        return Finding(Level.GOOD, f"a local job on {host} wrote into {account.places.jobs}")


def _prepare(system: BatchSystem, token: str, folder: Path, carried: bool) -> Submission:
    sandbox, results = folder / "sandbox", folder / "results"
    for made in (sandbox, results):
        made.mkdir(mode=0o700)
    where = "mkdir -p results last && cd results" if carried else f"cd -- {shlex.quote(str(results))}"
    script = f"#!/bin/sh\numask 077\n{where} && uname -n >{_WRITTEN}.part && mv {_WRITTEN}.part {_WRITTEN}\n"
    # All files that a batch system may have to transfer.
    for name, text in (("driver.sh", script), ("sandbox.tar", ""), (f"{token}.0", "")):
        (sandbox / name).touch(mode=0o600)
        (sandbox / name).write_text(text, errors="surrogateescape")
    return Submission(
        token=token,
        count=1,
        driver=str(sandbox / "driver.sh"),
        results=str(results),
        sandbox=str(sandbox),
        carried=carried,
        max_wall_minutes=2,
        options=system.adapter.options,
    )


def _cancel(system: BatchSystem, token: str) -> None:
    try:
        system.cancel((status.local_id for status in system.find(token) if status.is_alive), token)
    except BatchError as error:
        raise type(error)(f"{error}; the local job {token} may be left there: cancel it") from error


def _wait(is_so: Callable[[], bool], seconds: float, pause: float) -> bool:
    deadline = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > deadline:
            return False
        time.sleep(pause)
    return True


def _describe_failure(system: BatchSystem, local_id: str, results: Path, patience: float) -> Finding:
    status = system.status(local_id)
    if status is not None and status.is_alive:
        return Finding(
            Level.WARNING,
            f"the probe, local job {local_id}, has written nothing in {patience:g} s: it is"
            f" {status.native_state}{_describe_why(system, status)}",
            "see to what it waits for; where that is only room: samgrid doctor --probe --probe-time 1200",
        )
    ended = "it is gone" if status is None else f"it is {status.native_state}"
    return Finding(
        Level.FAULT,
        f"the probe, local job {local_id}, has run, but what it wrote did not come into {results}: {ended}",
        'in samgrid.toml: [sandbox] spool_folder = "/a/folder/that/all/nodes/see", or, where the batch system can'
        ' carry files, transfer = "batch-system"',
    )


def _describe_why(system: BatchSystem, status: LocalStatus) -> str:
    """Why it waits: the reason in the queue, and the batch system's own analysis."""
    reason = f" ({status.reason})" if status.reason else ""
    if status.state is not State.PENDING:
        return reason
    try:
        words = system.analyze(status.local_id)
    except BatchError as error:
        words = f"why, it does not say: {error}"
    return f"{reason}: {words}" if words and words != status.reason else reason
