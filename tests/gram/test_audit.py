"""A grid job that Globus' own script submitted leaves one audit record, whoever is killed."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import end_processes_of, processes_of
from tests.gram_interpreter import CONTACT, GramSite
from tests.waiting import wait_until

pytestmark = pytest.mark.usefixtures("gram_packages")


@pytest.fixture
def site(tmp_path: Path) -> Iterator[GramSite]:
    """A host of its own that audits; whatever works on it is ended after the test."""
    (tmp_path / "audit").mkdir()
    variables = {"SANDBOX_SCRATCH_FOLDER": tmp_path / "scratch", "GRAM_AUDIT_FOLDER": tmp_path / "audit"}
    site = GramSite(tmp_path, {f"SAMGRID_{name}": str(path) for name, path in variables.items()})
    site.install()
    yield site
    end_processes_of(tmp_path)


def wait_for_records(folder: Path, count: int) -> list[Path]:
    wait_until(lambda: len(list(folder.glob("*.gramaudit"))) >= count)
    return sorted(folder.glob("*.gramaudit"))


def test_one_record_per_grid_job_though_the_monitor_is_killed(site: GramSite) -> None:
    folder = site.folder / "audit"
    with site.start() as interpreter:
        answer = dict(interpreter.ask("submit", **site.describe("1.1")))
        (record,) = wait_for_records(folder, 1)
        for pid in processes_of(site.folder, "samgrid-monitor"):
            os.kill(pid, signal.SIGKILL)
        # A failed one wakes the next monitor.
        interpreter.ask("submit", **site.describe("1.2", executable=["/bin/false"], samgridtype=["command"]))
        records = wait_for_records(folder, 2)
    fields = record.read_text().strip().strip('"').split('","')
    assert (fields[0], fields[1], fields[4], fields[11]) == (CONTACT, answer["JOB_ID"], "1.1", "fork")
    assert "(executable = /bin/true)" in fields[12].replace("&quot;", '"')
    assert sorted(text.read_text().strip().split(",")[-3] for text in records) == ['"false"', '"true"']
    assert len(records) == 2
