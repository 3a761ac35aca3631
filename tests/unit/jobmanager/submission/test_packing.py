"""What goes out to the local jobs: the driver, as the account's configuration wants it."""

from dataclasses import replace
from pathlib import Path

import pytest

from jobmanager.requests.acceptance import accept_grid_job
from jobmanager.requests.request_handler import make_adapter
from jobmanager.run_grid_job import cut_grid_job
from jobmanager.site.account import Account
from jobmanager.site.settings import SandboxSettings, SiteSettings, Transfer
from jobmanager.submission.packing import pack_sandbox


def pack(account: Account, batch: str, sandbox: SandboxSettings) -> str:
    """The driver of a grid job on a batch system."""
    site = SiteSettings(batch_system=batch)
    account = Account(account.places, replace(account.configuration, site=site, sandbox=sandbox))
    job_id = accept_grid_job(account, [("samgrid_type", ("command",)), ("executable", ("/bin/true",))], Path("/"))
    job = account.database.grid_jobs.get(job_id)
    account.places.sandbox(job_id).mkdir(parents=True, exist_ok=True)
    pack_sandbox(account, job, make_adapter(account, job.request(), job.request_folder), cut_grid_job(job))
    return account.places.driver(job_id).read_text()


@pytest.mark.parametrize(
    ("batch", "line"),
    [
        ("sge", 'job_folder="$TMPDIR"'),
        ("pbs", 'job_folder="$TMPDIR"'),
        ("condor", 'job_folder="$_CONDOR_SCRATCH_DIR"'),
        *((batch, None) for batch in ("slurm", "lsf", "torque", "fork")),
    ],
)
def test_scratch_folders_lie_in_the_job_folders_of_batch_systems_that_have_them(
    account: Account, batch: str, line: str | None
) -> None:
    lines = pack(account, batch, SandboxSettings()).splitlines()
    assert [found for found in lines if found.startswith("job_folder=")] == ([line] if line else [])
    assert "scratch_base=/tmp" in lines


def test_a_scratch_folder_that_the_site_has_named_is_used_whatever_the_batch_system_makes(account: Account) -> None:
    lines = pack(account, "sge", SandboxSettings(scratch_folder=Path("/data/scratch"))).splitlines()
    assert not [line for line in lines if "job_folder" in line]
    assert "scratch_base=/data/scratch" in lines


def test_where_files_are_carried_the_driver_knows_no_path_of_ours(account: Account) -> None:
    driver = pack(account, "condor", SandboxSettings(transfer=Transfer.BATCH_SYSTEM))
    assert str(account.places.root) not in driver
    assert "sandbox=$PWD" in driver.splitlines()
