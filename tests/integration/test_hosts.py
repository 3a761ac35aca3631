"""Two hosts see one state folder: one works with it, until the other takes over."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.forked_samgrid import ForkedSamgrid
from tests.samgrid import LAUNCH, Samgrid
from tests.waiting import SECONDS, Gate, wait_until

NAMED = ("unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"')
"""A command after it, and the name of its host, runs on that host, as far as it can tell."""
CAN_BE_NAMED = os.geteuid() == 0 and subprocess.run([*NAMED, "beta", "true"], capture_output=True).returncode == 0


@pytest.mark.skipif(not CAN_BE_NAMED, reason="only root gives a process a host name of its own")
def test_a_second_host_reads_and_is_refused_until_it_takes_over_and_goes_on(
    samgrid: Samgrid, tmp_path: Path, gate: Gate
) -> None:
    runs = tmp_path / "runs"
    request = f"&(samgrid_type=command)(executable=/bin/sh)(arguments=-c 'echo run >>{runs}; : <{gate.path}')"
    job_id = samgrid.submit(request)
    wait_until(runs.exists)
    on_beta = ForkedSamgrid(samgrid.state, samgrid.scratch, {}, (*NAMED, "beta"))
    for reading in (
        ["log", job_id],
        ["query", "--job", job_id, "//grid-job/@id"],
        ["usage"],
        ["explain", f"{job_id}/1"],
        ["doctor"],
    ):
        assert on_beta(*reading).returncode == 0, reading
    told = on_beta("status", job_id)
    assert (told.returncode, job_id in told.stdout) == (0, True)
    refusal = f"in use on host {os.uname().nodename}"
    assert refusal in told.stderr
    for working in (
        ["submit", "-"], ["watch", job_id], ["cancel", job_id],
        ["repair"], ["orphans", "--reap"], ["doctor", "--probe"], ["advertise"], ["monitor"],
    ):  # fmt: skip
        done = on_beta(*working, stdin=request)
        assert (done.returncode, refusal in done.stderr, "samgrid take-over" in done.stderr) == (1, True, True), working
    listed = on_beta("orphans")
    assert (listed.returncode, "processes of the active host" in listed.stderr) == (3, True), listed.stderr
    call = {"description": {"executable": ["/bin/true"], "uniqid": ["1.2"]}, "environment": {}}
    answer = subprocess.run(
        [*NAMED, "beta", sys.executable, "-P", LAUNCH, "samgrid-gram", "--state-dir", samgrid.state, "submit"],
        input=json.dumps(call), text=True, capture_output=True, timeout=SECONDS, env=samgrid.environment(), check=False,
    )  # fmt: skip
    assert refusal in answer.stdout
    assert "ERROR:" in answer.stdout
    done = on_beta("take-over")
    assert (done.returncode, "samgrid take-over --fenced" in done.stderr) == (1, True), done.stderr

    done = on_beta("take-over", "--fenced")
    assert (done.returncode, done.stdout) == (0, f"taken over from {os.uname().nodename}\n"), done.stderr
    # The monitor of the first host sees it and ends.
    wait_until(lambda: "ends: the state folder" in (samgrid.state / "monitor.log").read_text())
    assert "in use on host beta" in samgrid("cancel", job_id).stderr
    gate.open()
    assert on_beta("watch", job_id).returncode == 0
    assert [job["state"] for job in json.loads(samgrid("status", "--format", "json").stdout)] == ["done"]
    assert runs.read_text() == "run\n"
