"""What local jobs are to have, on real batch systems: they have it, or it is said why not."""

import pytest

from tests.real.site import Site
from tests.waiting import wait_until

HAVE = {
    "slurm": "$SLURM_CPUS_PER_TASK cores $SLURM_GPUS_ON_NODE GPU",
    "sge": "$NSLOTS cores",
    "condor": "$(sed -n 's/^Cpus = //p' $_CONDOR_MACHINE_AD) cores $(sed -n 's/^GPUs = //p' $_CONDOR_MACHINE_AD) GPU",
    "torque": "$SLURM_CPUS_ON_NODE cores",
}
"""What the batch system tells a job that it has."""


def test_a_local_job_has_what_it_asked_for(site: Site) -> None:
    says_more = site.name in ("slurm", "condor")
    needs = "(cores=2)(max_memory=400)" + ("(gpus=1)(max_disk=50)" if says_more else "")
    job = site.submit(f"echo $SAMGRID_CORES {HAVE[site.name]} $(ulimit -v)", 2, needs)
    site.wait_for(job, "done", "failed")
    printed = site.samgrid("log", f"{job}/1-2").splitlines()
    assert printed.count("2 2 cores 1 GPU 409600" if says_more else "2 2 cores 409600") == 2, printed


def test_a_local_job_that_asks_for_more_gpus_than_there_are_does_not_run(site: Site) -> None:
    done = site.run("samgrid", "submit", "-", stdin="&(samgrid_type=command)(executable=/bin/true)(gpus=9)")
    if site.name in ("sge", "torque"):
        assert done.returncode != 0
        assert f"gpus: the batch system {site.name} has no option for it: leave it out" in done.stderr
        return
    job = done.stdout.strip()
    if site.name == "slurm":
        site.wait_for(job, "failed")
        assert "Requested node configuration is not available" in site.samgrid("status", job)
    else:
        # A host that has them may join the pool yet.
        site.wait_for_local_jobs(job, "pending", 1)
        site.samgrid("cancel", job)
        site.wait_for(job, "failed")


def test_an_attempt_keeps_away_from_the_host_of_the_one_before(site: Site) -> None:
    if site.name == "torque":
        pytest.skip("it has no word for that")
    job = site.submit("exit 1", 1, "(retries=1)(retry_elsewhere=yes)")
    # There is no other host, and Slurm says so, which knows this one as n1 only.
    if site.name == "slurm":
        site.wait_for(job, "failed")
        assert "Requested node configuration is not available" in site.samgrid("status", job)
        return
    wait_until(lambda: site.query(job, "count(//attempt)") == "1", "it failed")
    site.wait_for_local_jobs(job, "pending", 1)
    site.wait_for(site.submit("exit 0", 1), "done")
    assert site.count(job, "pending") == 1
    site.samgrid("cancel", job)
    site.wait_for(job, "failed")


def test_a_row_of_a_table_is_seen_at_work_by_who_looks_on(site: Site) -> None:
    table, seen = site.home / "points.csv", site.home / "seen"
    table.write_text("mass,tag\n80,W\n91,Z\n")
    script = f"echo begun {{mass}}; until [ -e {seen} ]; do sleep 0.2; done; echo over {{tag}}"
    words = f'&(samgrid_type=command)(executable=/bin/sh)(parameters={table})(arguments=-c "{script}")'
    job = site.samgrid("submit", "-", stdin=words).strip()
    # The local jobs end only if what they print is seen while they run.
    look = f'while read -r line; do echo "$line"; [ "$line" != "begun 91" ] || : >{seen}; done'
    printed = site.run("sh", "-c", f"samgrid log -f {job}/2 | {look}").stdout.splitlines()
    assert [line for line in printed if line.startswith(("begun", "over"))] == ["begun 91", "over Z"]
    site.wait_for(job, "done")
