"""What keeps local jobs from going on, on real batch systems: people see it, and what they are told helps."""

import re

import pytest

from tests.real.site import Site
from tests.waiting import wait_until

HOLD = {
    "slurm": (("scontrol", "requeuehold"), "job requeued in held state"),
    "condor": (("condor_hold",), "via condor_hold (by user griduser)"),
    "sge": (("qmod", "-sj"), "s"),
}
"""What holds a running local job, and the batch system's own reason."""


def test_what_is_held_is_shown_and_goes_on_by_the_command_that_is_told(site: Site) -> None:
    if site.name not in HOLD:
        pytest.skip("its commands are Slurm's, which show nothing of the kind")
    command, reason = HOLD[site.name]
    job = site.submit("sleep 300; echo x", 2)
    site.wait_for_local_jobs(job, "active", 2)
    held = site.local_ids(job)[1]
    assert site.run(*command, held).returncode == 0
    shown = "string(//local-job[@number=2 or @index=2]/@helps)"
    wait_until(lambda: site.query(job, shown) != "", f"{site.name}: it is blocked")
    status = site.samgrid("status", job)
    told = re.search(rf"(?m)^blocked +number 2: {re.escape(reason)}: (.+)$", status)
    assert told is not None, status
    assert "may end" not in status
    done = site.run(*told[1].split())
    assert done.returncode == 0, done
    wait_until(lambda: site.query(job, shown) == "", f"{site.name}: it goes on")
    assert f"{reason}: {told[1]}" in site.samgrid("log", job)
    site.samgrid("cancel", job)
    site.wait_for(job, "failed")
    assert re.search(
        r"cancelled by griduser\n.*local jobs: 2 cancelled \(cancelled by us\)", site.samgrid("log", job), re.DOTALL
    )
