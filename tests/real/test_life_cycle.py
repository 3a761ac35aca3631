"""The life of grid jobs on real batch systems, the same on each of them."""

import json
import tarfile
import time

import pytest

from tests.real.site import ROOT, Site
from tests.waiting import wait_until

HELD = {"slurm": "(batch_options=--hold)", "sge": "(batch_options=-h)"}
"""How a local job is submitted held."""
RELEASE = {"slurm": ("scontrol", "release"), "sge": ("qrls",)}
DEMO = ROOT / "examples" / "drell-yan.rsl"
SUSPEND = {
    "sge": (("qmod", "-sj"), ("qmod", "-usj")),
    "condor": (("condor_suspend",), ("condor_continue",)),
}
"""Slurm lets only its operator suspend a job."""


def test_the_doctor_finds_no_fault(site: Site) -> None:
    done = site.run("samgrid", "doctor")
    assert done.returncode == 0, done.stdout + done.stderr
    assert site.name in done.stdout


def test_of_many_local_jobs_each_runs_once(site: Site) -> None:
    marks = site.home / "marks"
    # Where there are no arrays, each is a submit command of its own.
    count = 40 if site.name == "torque" else 200
    job = site.submit(f'mkdir -p {marks}; echo run >>{marks}/"$SAMGRID_INDEX"; echo "$SAMGRID_INDEX"', count)
    site.wait_for(job, "done")
    ran = {int(mark.name): mark.read_text() for mark in marks.iterdir()}
    assert ran == dict.fromkeys(range(1, count + 1), "run\n")
    assert len(set(site.local_ids(job))) == count
    tar = site.samgrid("output", job).splitlines()[0]
    with tarfile.open(tar) as archive:
        stdouts = [member for member in archive.getmembers() if member.name.endswith(".stdout")]
        texts = sorted(int(archive.extractfile(member).read()) for member in stdouts)  # type: ignore[union-attr]
    assert texts == list(range(1, count + 1))


def test_exit_codes_and_signals_are_told(site: Site) -> None:
    script = "case $SAMGRID_INDEX in 1) exit 0;; 2) exit 3;; 3) kill -9 $$;; 4) kill -SEGV $$;; 5) exit 137;; esac"
    job = site.submit(script, 5)
    site.wait_for(job, "failed")
    assert site.query(job, "//local-job/@exit-code").split() == ["0", "3", "137", "139", "137"]
    assert site.query(job, "//local-job/@signal").split()[:2] == ["KILL", "SEGV"]
    assert site.count(job, "done") == 5


def test_a_held_local_job_waits_and_says_so(site: Site) -> None:
    if site.name not in HELD:
        pytest.skip(f"no hold command for {site.name}")
    job = site.submit("true", 1, HELD[site.name])
    site.wait_for_local_jobs(job, "pending", 1)
    (held,) = site.local_ids(job)
    wait_until(lambda: "held" in site.samgrid("explain", held).lower(), "the hold is told")
    assert site.run(*RELEASE[site.name], held).returncode == 0
    site.wait_for(job, "done")


def test_cancel_ends_what_waits_and_what_runs(site: Site) -> None:
    job = site.submit("echo begun; sleep 600", 20)
    site.wait_for_local_jobs(job, "active", 2)
    site.samgrid("cancel", job)
    site.wait_for(job, "failed")
    assert site.run("samgrid", "orphans").returncode == 0
    assert site.query(job, 'count(//local-job[@state="active" or @state="pending"])') == "0"


def test_nothing_is_lost_while_the_daemon_is_down(site: Site) -> None:
    if site.name == "torque":
        pytest.skip("its daemon here is Slurm's, which goes down in a test of its own")
    job = site.submit("sleep 20; echo over", 4)
    site.wait_for_local_jobs(job, "active", 2)
    # What a slurmctld was told in the last seconds before a kill -9, it forgets: that is Slurm's to mend.
    time.sleep(10)
    site.run_script("halt")
    try:
        waiting = site.submit("echo late", 3)
        wait_until(lambda: "problem" in site.samgrid("status", waiting), "problem is told")
        assert site.state(job) not in ("done", "failed") or site.count(job, "done") == 4
        assert site.count(waiting, "failed") == 0
    finally:
        site.run_script("resume")
    site.wait_for(job, "done")
    site.wait_for(waiting, "done")
    assert len(set(site.local_ids(waiting))) == 3


def test_the_log_may_be_rotated_in_the_middle(site: Site) -> None:
    job = site.submit(f"until [ -e {site.home}/go-rotate ]; do sleep 0.2; done", 6)
    site.wait_for_local_jobs(job, "active", 2)
    site.run_script("rotate")
    (site.home / "go-rotate").touch()
    site.wait_for(job, "done")
    assert site.count(job, "done") == 6


def test_a_suspended_local_job_is_told_suspended(site: Site) -> None:
    if site.name not in SUSPEND:
        pytest.skip(f"{site.name} does not let a job's owner suspend it")
    suspend, resume = SUSPEND[site.name]
    job = site.submit(f"until [ -e {site.home}/go-suspend ]; do sleep 0.2; done", 1)
    site.wait_for_local_jobs(job, "active", 1)
    (local_id,) = site.local_ids(job)
    assert site.run(*suspend, local_id).returncode == 0
    site.wait_for_local_jobs(job, "suspended", 1)
    assert site.run(*resume, local_id).returncode == 0
    site.wait_for_local_jobs(job, "active", 1)
    (site.home / "go-suspend").touch()
    site.wait_for(job, "done")


def test_what_ends_while_all_of_ours_is_down_is_found(site: Site) -> None:
    job = site.submit(f"until [ -e {site.home}/go-down ]; do sleep 0.2; done; exit 5", 2)
    site.wait_for_local_jobs(job, "active", 1)
    site.kill_monitor()
    files = site.home / "state" / "jobs" / job / "results"
    wait_until(lambda: len(list(files.glob("*.status"))) == 2, "all have begun")
    (site.home / "go-down").touch()
    wait_until(lambda: all("end " in file.read_text() for file in files.glob("*.status")), "all have ended")
    site.samgrid("status")
    site.wait_for(job, "failed")
    assert site.query(job, "//local-job/@exit-code").split() == ["5", "5"]


def test_explain_shows_what_was_seen(site: Site) -> None:
    job = site.submit("exit 4", 1)
    site.wait_for(job, "failed")
    (local_id,) = site.local_ids(job)
    text = site.samgrid("explain", local_id)
    assert "exit code 4" in text
    assert job in text


def test_the_pythia_demo_runs(site: Site) -> None:
    job = site.samgrid("submit", "-", stdin=DEMO.read_text()).strip()
    site.wait_for(job, "done")
    facts = site.samgrid("status", job)
    assert "events" in facts
    assert json.loads(site.samgrid("status", "--format", "json", job))[0]["counts"] == {"done": 8}
