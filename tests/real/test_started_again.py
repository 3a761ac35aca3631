"""What HTCondor starts again although it had ended: its program does not run a second time."""

import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from tests.real.site import Site
from tests.waiting import wait_until

CARRIED = """\
[sandbox]
transfer = "batch-system"
[batch.condor]
options = ["-append", "transfer_output_files = results/, last/, sandbox.tar"]
"""
"""HTCondor carries files back in this order: its shadow waits for a reader of a pipe when all else is there."""


def kill_shadows(site: Site) -> None:
    """Kill what HTCondor's schedd has for each job that runs."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            program = (entry / "exe").readlink()
        except OSError:  # it has ended meanwhile, or belongs to the machine
            continue
        if program.name == "condor_shadow" and program.is_relative_to(site.folder):
            os.kill(int(entry.name), signal.SIGKILL)


def test_what_was_carried_back_before_its_shadow_died_runs_no_second_time(site: Site) -> None:
    if site.name != "condor":
        pytest.skip("only HTCondor carries the files")
    # A monitor keeps the environment in which it was started.
    site.kill_monitor()
    configuration = site.home / "carried.toml"
    configuration.write_text(CARRIED)
    site = replace(site, settings={**site.settings, "SAMGRID_CONFIG": str(configuration)})
    mark, go = site.home / "ran", site.home / "go-carried"
    job = site.submit(f"echo run >>{mark}; echo x >output/x; until [ -e {go} ]; do sleep 0.2; done; exit 3", 1)
    site.wait_for_local_jobs(job, "active", 1)
    (local_id,) = site.local_ids(job)
    # Ours do not remove the job before HTCondor has started it again.
    site.kill_monitor()
    results = site.home / "state" / "jobs" / job / "results"
    pipe = results / "sandbox.tar"
    os.mkfifo(pipe)
    os.chown(pipe, results.stat().st_uid, results.stat().st_gid)
    go.touch()
    wait_until(
        lambda: any("\nend " in file.read_text() for file in results.glob("*.status")), "the end was carried back"
    )
    kill_shadows(site)
    pipe.unlink()
    ended = ("condor_history", local_id, "-constraint", "NumShadowStarts > 1", "-af", "ExitCode")
    wait_until(lambda: site.run(*ended).stdout == "3\n", "HTCondor has started it again, and it has ended")
    site.samgrid("status")
    site.wait_for(job, "failed")
    assert mark.read_text() == "run\n"
    assert site.query(job, "//local-job/@exit-code").split() == ["3"]
    assert site.count(job, "done") == 1
    assert " output/x " in site.samgrid("output", job)
    site.kill_monitor()
