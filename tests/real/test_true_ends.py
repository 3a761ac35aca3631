"""What ended local jobs, and why, on real batch systems: no false success, each with its cause."""

import pytest

from tests.real.site import Site
from tests.waiting import wait_until

SCRIPT = "sleep 300; echo x"
"""Its shell ends with 0 where the signal reaches the sleep first."""
DELETE = {"slurm": ("scancel",), "sge": ("qdel",), "condor": ("condor_rm",)}


def outcomes(site: Site, job: str) -> dict[str, int]:
    """How many local jobs ended with each outcome and cause."""
    found: dict[str, int] = {}
    for outcome in ("succeeded", "failed", "cancelled"):
        causes = site.query(job, f'//local-job[@outcome="{outcome}"]/@cause').split()
        for cause in causes:
            found[f"{outcome} {cause}"] = found.get(f"{outcome} {cause}", 0) + 1
        silent = int(site.query(job, f'count(//local-job[@outcome="{outcome}"][not(@cause)])'))
        found |= {outcome: silent} if silent else {}
    return found


def test_what_we_cancel_was_cancelled_by_us(site: Site) -> None:
    job = site.submit(SCRIPT, 30)
    site.wait_for_local_jobs(job, "active", 2)
    site.samgrid("cancel", job)
    site.wait_for(job, "failed")
    assert outcomes(site, job) == {"cancelled cancelled-by-us": 30}
    assert site.query(job, "string(/jobs/grid-job/@outcome)") == "cancelled"


def test_what_somebody_deletes_was_cancelled_outside(site: Site) -> None:
    if site.name not in DELETE:
        pytest.skip("its commands are Slurm's, in whose history a deletion is not told")
    job = site.submit(SCRIPT, 2)
    site.wait_for_local_jobs(job, "active", 2)
    for local_id in site.local_ids(job):
        assert site.run(*DELETE[site.name], local_id).returncode == 0
    site.wait_for(job, "failed")
    assert outcomes(site, job) == {"cancelled cancelled-outside": 2}
    assert site.query(job, "string(/jobs/grid-job/@outcome)") == "failed"


def test_a_warning_leaves_the_driver_time_for_the_outputs(site: Site) -> None:
    if site.name != "sge":
        pytest.skip("-notify is SGE's")
    job = site.submit("echo half; echo half >output/half; sleep 300", 10, '(batch_options="-notify")')
    site.wait_for_local_jobs(job, "active", 10)
    wait_until(lambda: site.samgrid("log", f"{job}/1-10").split().count("half") == 10, "all have begun")
    assert site.run("qdel", site.local_ids(job)[0].partition(".")[0]).returncode == 0
    site.wait_for(job, "failed")
    # To SGE's history what the warning ended had ended by itself.
    assert outcomes(site, job) == {"cancelled cancelled-outside": 10}
    assert " 10 ×  output/half " in site.samgrid("output", job)


def test_what_runs_too_long_has_failed_for_that(site: Site) -> None:
    if site.name == "torque":
        pytest.skip("its commands are Slurm's, in whose history a time limit is not told")
    job = site.submit(SCRIPT, 3, "(max_wall_time=1)")
    site.wait_for(job, "failed")
    assert outcomes(site, job) == {"failed time-limit": 3}
