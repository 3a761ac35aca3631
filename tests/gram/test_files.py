"""Files that GRAM brings and takes, scratch folders and several destinations: the same as under fork."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.gram.gram_site import FORK, OURS, GramSite, Outcome, sh, without_details

GASS = "$(GLOBUSRUN_GASS_URL)"

SAME = {
    "stage-in": sh("cat OUT/in") + "(file_stage_in=(file://HOME/input OUT/in))",
    "stage-in-from-the-client": sh("cat OUT/in") + f"(file_stage_in=({GASS}HOME/input OUT/in))",
    "stage-in-shared": sh("cat OUT/in") + f"(file_stage_in_shared=({GASS}HOME/input OUT/in))",
    "stage-in-of-a-program": f"(executable=OUT/program)(file_stage_in=({GASS}HOME/program OUT/program))(arguments=x)",
    "stage-out": sh("echo made >OUT/made") + "(file_stage_out=(OUT/made file://OUT/taken))",
    "stage-out-to-the-client": sh("echo made >OUT/made") + f"(file_stage_out=(OUT/made {GASS}OUT/taken))",
    "stage-out-of-a-job-that-failed": sh("echo made >OUT/made; exit 1")
    + f"(file_stage_out=(OUT/made {GASS}OUT/taken))",
    "clean-up": sh("echo made >OUT/made") + "(file_clean_up=OUT/made)",
    "stdout-file": sh("echo out; echo err >&2") + "(stdout=OUT/stdout)(stderr=OUT/stderr)",
    "stdout-file-that-is-there": sh("echo out") + "(stdout=OUT/there)",
    "one-file-for-both": sh("echo out; sleep 1; echo err >&2") + "(stdout=OUT/both)(stderr=OUT/both)",
    "one-file-for-both-that-is-there": sh("echo out") + "(stdout=OUT/there)(stderr=OUT/there)",
    "stdout-file-that-its-program-writes": sh("echo first >>OUT/there; sleep 1; echo out") + "(stdout=OUT/there)",
    "stdout-of-many": sh("echo out") + "(count=3)(stdout=OUT/stdout)",
    "several-destinations": sh("echo out") + f"(stdout=(OUT/first)({GASS}OUT/second)({GASS}/dev/stdout))",
    "several-of-stderr": sh("echo err >&2") + f"(stderr=(OUT/first)({GASS}/dev/stderr))",
    "cache": sh("echo out") + "(stdout=x-gass-cache://$(GLOBUS_GRAM_JOB_CONTACT)stdout)",
    "scratch": sh("cp HOME/input here; cat here; ls") + "(scratch_dir=.)(directory=$(SCRATCH_DIRECTORY))",
    "scratch-with-stage-in": sh("cat in")
    + f"(scratch_dir=.)(directory=$(SCRATCH_DIRECTORY))(file_stage_in=({GASS}HOME/input $(SCRATCH_DIRECTORY)/in))",
    "scratch-is-gone": sh('echo "$SCRATCH_DIRECTORY" >OUT/scratch') + "(scratch_dir=OUT)",
    "stdin-that-was-staged": f"(executable=/bin/cat)(stdin=OUT/in)(file_stage_in=({GASS}HOME/input OUT/in))",
    "saved-description": sh("echo out") + "(save_job_description=no)",
}
"""By name; HOME is the account's folder, OUT a folder for this job alone."""


@dataclass(frozen=True)
class Both:
    """What became of the same requests under both job managers."""

    ours: dict[str, Outcome]
    forks: dict[str, Outcome]
    folders: dict[str, Path]
    """By job manager: the folder of the folders."""
    before: frozenset[Path]
    """GRAM's folders of jobs that were there before."""


@pytest.fixture(scope="module")
def both(gram: GramSite) -> Both:
    gram.write("input", b"line\n\x00\xff no end")
    gram.write("program", b'#!/bin/sh\necho "ran with $*"\n', 0o700)
    folders, placed, before = {}, {}, find_job_folders(gram)
    for service in (OURS, FORK):
        folders[service] = gram.make_folder(service)
        requests = {}
        for name, rsl in SAME.items():
            folder = gram.make_folder(f"{service}/{name}")
            gram.write(f"{service}/{name}/there", b"what was there before, and longer\n")
            requests[name] = rsl.replace("OUT", str(folder)).replace("HOME/", f"{gram.home}/")
        placed[service] = requests
    return Both(*gram.run_both(placed[OURS], placed[FORK]), folders, before)


@pytest.mark.parametrize("name", list(SAME))
def test_files_come_and_go_as_under_fork(both: Both, name: str) -> None:
    ours, forks = both.ours[name], both.forks[name]
    assert (ours.status, ours.stdout) == (forks.status, forks.stdout), (ours.words, forks.words)
    assert without_details(ours) == without_details(forks)
    assert _read(both.folders[OURS] / name) == _read(both.folders[FORK] / name)


def _read(folder: Path) -> dict[str, bytes]:
    return {file.name: _read_file(file) for file in sorted(folder.iterdir())}


def _read_file(file: Path) -> bytes:
    """What is in a file; of a link, which leads into GRAM's cache, and of a name that varies, that they are there."""
    return b"" if file.is_symlink() or file.name == "scratch" else file.read_bytes()


def test_no_scratch_folder_stays(both: Both) -> None:
    for folder in both.folders.values():
        name = (folder / "scratch-is-gone" / "scratch").read_text().strip()
        assert name.startswith(str(folder))
        assert not Path(name).exists()


def test_no_job_folder_stays(gram: GramSite, both: Both) -> None:
    assert find_job_folders(gram) <= both.before


def find_job_folders(gram: GramSite) -> frozenset[Path]:
    """GRAM's folders of the account's jobs."""
    return frozenset((gram.account_home / ".globus" / "job").glob("*/*"))
