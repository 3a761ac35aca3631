"""One account with grid jobs that are sick in every way, and many healthy ones: nobody holds up anybody else."""

import json
import os
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jobmanager.requests.time_limit import MOST_HANGS
from tests.integration.test_workers import wait_for_failure
from tests.samgrid import Samgrid
from tests.waiting import SECONDS, Gate, wait_until

HEALTHY = 20
"""Far more than there are workers."""
HANGING = """
import time
from handlers.command import CommandAdapter

class Hanging(CommandAdapter):
    jobType = "hanging"

    def getCommandAndArguments(self, localJob):
        while True:
            time.sleep(0.01)

class Deaf(CommandAdapter):
    jobType = "deaf"

    def prepareWorkArea(self, workArea):
        while True:
            try:
                time.sleep(60)
            except BaseException:
                pass
"""
HANGS = {"hanging": "getCommandAndArguments", "deaf": "prepareWorkArea"}
"""Job types whose handlers hang, and where; the second hears of no time limit."""
SPOILERS = {
    "folder": "cd ${SAMGRID_STATUS%/*}/.. && mv results elsewhere && ln -s elsewhere results",
    "size": "head -c 2000000 /dev/zero >output/large",
}
"""What programs do to their outputs."""


def submit_shell(samgrid: Samgrid, script: str) -> str:
    return samgrid.submit(f"&(samgrid_type=command)(executable=/bin/sh)(arguments=-c '{script}')")


@contextmanager
def full_disk(folder: Path) -> Iterator[bool]:
    """Let a folder be on a disk of its own that holds no more than the status file; false where only root may."""
    mount = ["mount", "-t", "tmpfs", "-o", "size=4k", "tmpfs", str(folder)]
    is_full = os.geteuid() == 0 and subprocess.run(mount, capture_output=True, check=False).returncode == 0
    try:
        yield is_full
    finally:
        if is_full:
            subprocess.run(["umount", "--lazy", str(folder)], check=True)


def states(samgrid: Samgrid) -> dict[str, dict[str, Any]]:
    return {job["id"]: job for job in json.loads(samgrid("status", "--format", "json").stdout)}


def damage(samgrid: Samgrid, table: str, grid_job: str) -> None:
    """Cut a document short, as a bad disk or a bug would."""
    column = "id" if table == "grid_job" else "grid_job"
    with closing(sqlite3.connect(samgrid.state / "jobs.db", timeout=SECONDS)) as connection, connection:
        changed = connection.execute(
            f"UPDATE {table} SET document = substr(document, 1, 60) WHERE {column} = ?", [grid_job]
        )
        assert changed.rowcount == 1


@pytest.mark.waits_long
def test_sick_grid_jobs_end_or_say_what_holds_them_and_all_others_are_done(
    samgrid: Samgrid, tmp_path: Path, gate: Gate
) -> None:
    handler = tmp_path / "hanging.py"
    handler.write_text(HANGING)
    settings = {"SAMGRID_HANDLERS_MODULES": str(handler), "SAMGRID_HANDLERS_TIME_LIMIT": "3"}
    settings |= {"SAMGRID_MONITOR_RECONCILE_INTERVAL": "5", "SAMGRID_SANDBOX_MAX_OUTPUT_SIZE": "1"}
    settings |= {"SAMGRID_FORK_SLOTS": "4"}  # programs that wait must not take all
    samgrid = replace(samgrid, settings=settings)
    torn = submit_shell(samgrid, "echo one >output/one")
    assert samgrid("watch", torn).returncode == 0
    os.truncate(samgrid.state / "jobs" / torn / f"{torn}.tar", 700)
    waiting = f'echo begun >{tmp_path}/begun-"$$"; : <{gate.path}'
    poisoned = {table: submit_shell(samgrid, waiting) for table in ("grid_job", "local_job")}
    cramped = submit_shell(samgrid, f"{waiting}; head -c 9000 /dev/zero >output/large")
    wait_until(lambda: len(list(tmp_path.glob("begun-*"))) == 3)
    for table, job_id in poisoned.items():
        damage(samgrid, table, job_id)
    hung = [samgrid.submit(f"&(samgrid_type={kind})(executable=/bin/true)") for kind in HANGS]
    # To end the process of the second so often would take most of a minute.
    deaf = samgrid.state / "jobs" / hung[1] / "handler-pack.hung"
    deaf.parent.mkdir(mode=0o700, exist_ok=True)
    deaf.write_text("earlier\n" * (MOST_HANGS - 1))
    spoilt = {what: submit_shell(samgrid, script) for what, script in SPOILERS.items()}
    with full_disk(samgrid.state / "jobs" / cramped / "results") as is_full:
        gate.open()
        healthy = [samgrid.submit("&(samgrid_type=command)(executable=/bin/true)") for _ in range(HEALTHY)]
        for job_id in healthy:
            assert samgrid("watch", job_id).returncode == 0
        if is_full:
            wait_until(lambda: "output waits for room: No space left" in samgrid("explain", f"{cramped}/1").stdout)
    assert samgrid("watch", cramped).returncode == 0
    for job_id, method in zip(hung, HANGS.values(), strict=True):
        failure = wait_for_failure(samgrid, job_id)
        assert "was asked 3 times and did not come to an end" in failure
        assert f"{method} ({handler}, line " in failure
        assert "hanging.py" in samgrid("log", job_id).stdout
    assert "the results folder has become a link" in wait_for_failure(samgrid, spoilt["folder"])
    assert samgrid("watch", spoilt["size"]).returncode == 0
    assert "output/large: its 2000000 bytes would pass the limit" in samgrid("output", spoilt["size"]).stdout
    told = samgrid("output", torn)
    assert told.returncode == 1
    assert f"the output {samgrid.state}/jobs/{torn}/{torn}.tar cannot be read" in told.stderr
    wait_until(lambda: all("quarantined" in states(samgrid)[job_id] for job_id in poisoned.values()))
    for job_id in poisoned.values():
        assert f"samgrid remove {job_id}" in states(samgrid)[job_id]["quarantined"]
        assert samgrid("log", job_id).stdout.count("in quarantine since") == 1
        assert samgrid("remove", job_id).returncode == 0
    left = {torn, cramped, *hung, *spoilt.values(), *healthy}
    assert states(samgrid).keys() == left
    assert samgrid("query", "count(//grid-job)").stdout == f"{len(left)}\n"
