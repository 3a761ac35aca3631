"""Two hosts see one state folder: one works with it, until the other takes over."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.samgrid import LAUNCH, Samgrid
from tests.waiting import SECONDS, wait_until

NAMED = ("unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"')
"""A command after it, and the name of its host, runs on that host, as far as it can tell."""
CAN_BE_NAMED = os.geteuid() == 0 and subprocess.run([*NAMED, "beta", "true"], capture_output=True).returncode == 0


def run_on(name: str, samgrid: Samgrid, *words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """A program of ours on another host."""
    return subprocess.run(
        [*NAMED, name, sys.executable, "-P", str(LAUNCH), *words],
        input=stdin, text=True, capture_output=True, timeout=SECONDS, env=samgrid.environment(), check=False,
    )  # fmt: skip


@pytest.mark.skipif(not CAN_BE_NAMED, reason="only root gives a process a host name of its own")
def test_a_second_host_reads_and_is_refused_until_it_takes_over_and_goes_on(samgrid: Samgrid, tmp_path: Path) -> None:
    go, runs = tmp_path / "go", tmp_path / "runs"
    script = f"echo run >>{runs}; until [ -e {go} ]; do sleep 0.1; done"
    request = f"&(samgrid_type=command)(executable=/bin/sh)(arguments=-c '{script}')"
    job_id = samgrid.submit(request)
    wait_until(runs.exists)

    def on_beta(*words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return run_on("beta", samgrid, "samgrid", *words, stdin=stdin)

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
    answer = run_on(
        "beta", samgrid, "samgrid-gram", "--state-dir", str(samgrid.state), "submit", stdin=json.dumps(call)
    )
    assert refusal in answer.stdout
    assert "ERROR:" in answer.stdout
    done = on_beta("take-over")
    assert (done.returncode, "samgrid take-over --fenced" in done.stderr) == (1, True), done.stderr

    done = on_beta("take-over", "--fenced")
    assert (done.returncode, done.stdout) == (0, f"taken over from {os.uname().nodename}\n"), done.stderr
    # The monitor of the first host sees it and ends.
    wait_until(lambda: "ends: the state folder" in (samgrid.state / "monitor.log").read_text())
    assert "in use on host beta" in samgrid("cancel", job_id).stderr
    go.touch()
    assert on_beta("watch", job_id).returncode == 0
    assert [job["state"] for job in json.loads(samgrid("status", "--format", "json").stdout)] == ["done"]
    assert runs.read_text() == "run\n"
