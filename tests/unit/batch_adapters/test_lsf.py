"""The adapter lsf on what LSF's documentation says that commands print: nothing here was recorded, see the README."""

import subprocess
from pathlib import Path

import pytest

from batch_adapters.lsf import LSF, read_jobs
from batch_adapters.running.diagnosis import Level, Printed
from batch_adapters.states import State
from tests.unit.batch_adapters.recordings import read_recordings

DOCUMENTED = {entry.scene: entry.stdout for entry in read_recordings("lsf", "documented.txt")}
"""What the last command of each section prints."""


def test_jobs_by_their_names() -> None:
    printed = DOCUMENTED["jobs"]
    jobs = {job.local_id: (job.token, job.native_state, job.exit_code) for job in read_jobs(printed)}
    assert jobs == {
        "101": ("k3f9zq2m-1", "RUN", None),
        "102[1]": ("k3f9zq2m-2", "DONE", None),
        "102[2]": ("k3f9zq2m-2", "EXIT", 3),
        "102[3]": ("k3f9zq2m-2", "PEND", None),
        "103": ("k3f9zq2m-4", "EXIT by LSF", 130),
        "104": ("k3f9zq2m-5", "EXIT by LSF", None),
        "105": ("k3f9zq2m-6", "EXIT", 139),
        "106": ("k3f9zq2m-7", "EXIT by LSF", 140),
        "108": ("k3f9zq2m-8", "PSUSP", None),
    }
    reasons = {job.local_id: job.reason for job in read_jobs(printed)}
    assert reasons["102[3]"] == "Job's resource requirements not satisfied"
    assert reasons["103"] == "TERM_OWNER: job killed by owner"
    assert reasons["101"] == ""


def test_an_id_with_its_index_is_read_as_well() -> None:
    assert [job.local_id for job in read_jobs(DOCUMENTED["LSB_BJOBS_DISPLAY_ENH=Y"])] == ["102[2]"]


@pytest.mark.parametrize(("index", "words"), [("0", "12 1"), ("3", "12[3] 3")], ids=["alone", "in an array"])
def test_a_running_job_finds_its_id_and_position(tmp_path: Path, index: str, words: str) -> None:
    # A file that the shell could take for the meaning of [3].
    (tmp_path / "3").touch()
    script = f'id="{LSF.local_id_words}"\nposition="{LSF.index_words}"\nprintf "%s %s" "$id" "$position"'
    environment = {"LSB_JOBID": "12", "LSB_JOBINDEX": index}
    printed = subprocess.run(["/bin/sh", "-c", script], env=environment, cwd=tmp_path, capture_output=True, check=True)
    assert printed.stdout.decode() == words


def test_an_end_that_lsf_made_is_a_failure() -> None:
    assert LSF.states["EXIT by LSF"] is State.FAILED


@pytest.mark.parametrize(
    ("printed", "findings"),
    [
        pytest.param(DOCUMENTED["settings"], [(Level.GOOD, "")], id="as delivered"),
        pytest.param(
            "    CLEAN_PERIOD = 60\n",
            [(Level.WARNING, "lsb.params: CLEAN_PERIOD = 3600, then: badmin reconfig")],
            id="ended jobs are gone soon",
        ),
        pytest.param("", [], id="it says nothing"),
    ],
)
def test_the_doctor(printed: str, findings: list[tuple[Level, str]]) -> None:
    found = LSF.diagnose(lambda _: Printed(0, printed, ""), {})
    assert [(finding.level, finding.remedy) for finding in found] == findings
