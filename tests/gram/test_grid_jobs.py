"""Requests that know of us, through a real GRAM: outputs, success rules, and refusals that name what is wrong."""

import io
import re
import tarfile
from pathlib import Path

import pytest

from tests.gram.gram_site import OURS, GramSite, Outcome, sh
from tests.real.site import ROOT

COMMAND = "(samgrid_type=command)"
FAILS = sh('[ "$SAMGRID_INDEX" = 1 ] || { echo "number $SAMGRID_INDEX is bad" >&2; exit 3; }; echo fine')

RUN = {
    "demo": (ROOT / "examples" / "drell-yan.rsl").read_text().partition("&")[2],
    "command": COMMAND + sh("echo hello") + "(count=3)",
    "fails": COMMAND + FAILS + "(count=3)",
    "enough": COMMAND + FAILS + "(count=4)(min_success=0.25)",
    "tar": COMMAND
    + sh('echo "$SAMGRID_INDEX"; echo made >"$SAMGRID_OUTPUT/file"')
    + "(count=3)(samgrid_output=stdout)",
    "tar-of-a-failure": COMMAND + FAILS + "(count=2)(samgrid_output=stdout)",
    "staged-out": COMMAND + sh("echo hello") + "(samgrid_output=HOME/made.tar)"
    "(file_stage_out=(HOME/made.tar $(GLOBUSRUN_GASS_URL)HOME/taken.tar))",
    "stdout-files": COMMAND + sh("echo hello") + "(stdout=HOME/report)(stderr=HOME/reasons)",
    "hostile": COMMAND + sh('printf "[%s]" "$@"', "two\nlines", 'q"', "it's", "$HOME", "", "\udcff"),
    "program-beside-the-request": COMMAND + "(executable=program)(directory=HOME)(arguments=x)",
}
"""By name; HOME is the account's folder."""

REFUSED = {
    "directory": (COMMAND + sh("") + "(directory=/nowhere)", 4, "/nowhere"),
    "program": (COMMAND + "(executable=/nowhere/program)", 5, "/nowhere/program"),
    "program-not-executable": (COMMAND + "(executable=/etc/passwd)", 72, "/etc/passwd"),
    "stdin": (COMMAND + sh("") + "(stdin=/nowhere/file)", 11, "/nowhere/file"),
    "arguments": ("(executable=/bin/echo)(arguments=(a b))", 50, "arguments"),
    "environment": (COMMAND + sh("") + "(environment=(A))", 54, "environment"),
    "environment-name": (COMMAND + sh("") + "(environment=(A-B 1))", 54, "A-B"),
    "count-zero": (sh("") + "(count=0)", 14, "count"),
    "count-negative": (sh("") + "(count=-1)", 14, "count"),
    "count-of-ours": (COMMAND + sh("") + "(count=0)", 14, "count"),
    "too-many": (COMMAND + sh("") + "(count=900000)", 14, "count"),
    "max-time": (sh("") + "(max_time=long)", 13, "max"),
    "max-wall-time": (sh("") + "(max_wall_time=long)", 102, "max"),
    "max-cpu-time": (COMMAND + sh("") + "(max_cpu_time=1h)", 104, "max"),
    "max-memory": (COMMAND + sh("") + "(max_memory=much)", 87, "max"),
    "mpi": (sh("") + "(job_type=mpi)", 26, "mpi"),
    "part-of-a-job-type": (sh("") + "(job_type=mult)", 26, "mult"),
    "queue": (COMMAND + sh("") + "(queue=(a b))", 37, "queue"),
    "project": (COMMAND + sh("") + "(project=(a b))", 38, "project"),
    "job-type": ("(samgrid_type=nothing)", 134, "nothing"),
    "part-of-a-type": ("(samgrid_type=comm)" + sh(""), 134, "comm"),
    "min-success": (COMMAND + sh("") + "(min_success=2)", 134, "min_success"),
    "of-another-type": (COMMAND + sh("") + "(events=10)", 134, "events"),
    "events": ("(samgrid_type=pythia)(events=many)", 134, "events"),
}
"""By name: a request, GRAM's number for what is wrong with it, and a word that the client is told."""


@pytest.fixture(scope="module")
def outcomes(gram: GramSite) -> dict[str, Outcome]:
    gram.write("program", b'#!/bin/sh\necho "ran with $*"\n', 0o700)
    return gram.run_all(OURS, {name: _place(gram, rsl) for name, rsl in RUN.items()})


@pytest.fixture(scope="module")
def refusals(gram: GramSite) -> dict[str, Outcome]:
    return gram.run_all(OURS, {name: rsl for name, (rsl, _, _) in REFUSED.items()})


def _place(gram: GramSite, rsl: str) -> str:
    return rsl.replace("HOME/", f"{gram.home}/").replace("=HOME)", f"={gram.home})")


def test_the_demo_reports_what_it_made(outcomes: dict[str, Outcome]) -> None:
    demo = outcomes["demo"]
    assert demo.status == 0, demo.words
    assert "8 of 8 local jobs succeeded" in demo.text
    assert "events" in demo.text


def test_a_grid_job_reports_on_stdout(outcomes: dict[str, Outcome]) -> None:
    done = outcomes["command"]
    assert (done.status, done.words) == (0, "")
    assert "3 of 3 local jobs succeeded" in done.text
    tar = re.search(r"^output: (.*)$", done.text, re.MULTILINE)
    assert tar is not None
    assert Path(tar[1]).is_file()


def test_a_failure_is_told_with_its_reason_and_the_tar(outcomes: dict[str, Outcome]) -> None:
    failed = outcomes["fails"]
    assert failed.status == 17
    assert "2 of 3 local jobs failed" in failed.words
    assert "number 2 is bad" in failed.words
    tar = re.search(r"\S+\.tar", failed.words)
    assert tar is not None
    assert Path(tar[0]).is_file()


def test_enough_successes_are_a_success_with_every_failure_on_stderr(outcomes: dict[str, Outcome]) -> None:
    done = outcomes["enough"]
    assert done.status == 0, done.words
    assert "1 of 4 local jobs succeeded" in done.text
    assert len(re.findall(r"^local job [234] .*exit code 3", done.words, re.MULTILINE)) == 3


def test_the_tar_comes_as_stdout(outcomes: dict[str, Outcome]) -> None:
    done = outcomes["tar"]
    assert done.status == 0, done.words
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as tar:
        names = tar.getnames()
    assert sum(name.endswith(".stdout") for name in names) == 3
    assert sum(name.endswith(".output/file") for name in names) == 3


def test_the_tar_is_staged_out_from_a_path_of_the_request(gram: GramSite, outcomes: dict[str, Outcome]) -> None:
    assert outcomes["staged-out"].status == 0, outcomes["staged-out"].words
    taken = gram.home / "taken.tar"
    assert taken.read_bytes() == (gram.home / "made.tar").read_bytes()
    with tarfile.open(taken) as tar:
        assert any(name.endswith(".stdout") for name in tar.getnames())


def test_report_and_reasons_go_into_files(gram: GramSite, outcomes: dict[str, Outcome]) -> None:
    assert outcomes["stdout-files"].status == 0, outcomes["stdout-files"].words
    assert "1 of 1 local jobs succeeded" in (gram.home / "report").read_text()
    assert (gram.home / "reasons").read_text() == ""


@pytest.mark.parametrize(
    ("name", "expected"),
    [("hostile", b"[two\nlines][q\"][it's][$HOME][][\xff]"), ("program-beside-the-request", b"ran with x\n")],
)
def test_words_arrive_as_they_are(gram: GramSite, outcomes: dict[str, Outcome], name: str, expected: bytes) -> None:
    assert outcomes[name].status == 0, outcomes[name].words
    found = re.search(r"^output: (.*)$", outcomes[name].text, re.MULTILINE)
    assert found is not None
    with tarfile.open(found[1]) as tar:
        (member,) = (member for member in tar.getmembers() if member.name.endswith(".stdout"))
        assert tar.extractfile(member).read() == expected  # type: ignore[union-attr]


@pytest.mark.parametrize("name", REFUSED)
def test_a_bad_request_is_refused_with_the_number_and_the_word(refusals: dict[str, Outcome], name: str) -> None:
    _, number, word = REFUSED[name]
    refused = refusals[name]
    assert (refused.status, refused.stdout) == (number, b""), refused.words
    assert word in refused.words.partition("Details:")[2]


def test_nothing_exists_of_a_refused_request(gram: GramSite, refusals: dict[str, Outcome]) -> None:
    # Steps are grid jobs that nobody has submitted.
    jobs = gram.samgrid("query", "//grid-job[gram]/@id").split()
    submitted = [line for line in gram.calls() if " submit contact" in line and "answer=JOB_ID" in line]
    assert len(jobs) == len(submitted)
