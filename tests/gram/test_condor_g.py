"""The requests that Condor-G writes, for each job type: streamed or staged, in two phases, and after it was away."""

import re
from pathlib import Path

import pytest

from tests.clients_of_gram import REQUESTS, render_globus_rsl, write_files
from tests.gram.gram_site import OURS, PATIENCE, GramSite, Outcome
from tests.gram.test_troubles import send_signal
from tests.real.site import wait_until

GASS = "$(GRIDMANAGER_GASS_URL)"
STDIO_UPDATE = "7"
BAD_RSL = 48
PROGRAM = b"""#!/bin/sh
echo "$COLOUR $*"
[ $# = 0 ] && exit
echo run >>"$2"
until [ -e "$1" ]; do sleep 0.1; done
"""
"""Waits for the file that its first argument names, if it has any."""
WAYS = ("streamed", "staged")
NEW_URL = "(rsl_substitution=(GRIDMANAGER_GASS_URL $(GLOBUSRUN_GASS_URL)))"
PHASES = f"(proxy_timeout=240)(save_state=yes)(two_phase=60)(remote_io_url={GASS})"


def render_request(folder: Path, globus_rsl: str, is_staged: bool = False, arguments: str = "") -> str:
    """What Condor-G says of a job whose executable it transfers, its attributes in its order."""
    out, err = folder / "stdout", folder / "stderr"
    streamed = f"(stdout={GASS}{out})(stderr={GASS}{err})"
    staged = (
        "(stdout=$(GLOBUS_CACHED_STDOUT))(stderr=$(GLOBUS_CACHED_STDERR))"
        f"(file_stage_out=($(GLOBUS_CACHED_STDOUT) {GASS}{out})($(GLOBUS_CACHED_STDERR) {GASS}{err}))"
    )
    return (
        f"{NEW_URL}(executable={GASS}{folder}/program)(scratchdir='')(directory=$(SCRATCH_DIRECTORY)){arguments}"
        f"{staged if is_staged else streamed}(environment=(COLOUR blue)){PHASES}{globus_rsl}"
    )


def make_client(gram: GramSite, name: str) -> Path:
    """The submit machine's folder of one job, with the program of every submit file."""
    folder = gram.make_folder(name)
    gram.write(f"{name}/program", PROGRAM, 0o700)
    return folder


def run(gram: GramSite, rsl: str) -> tuple[int, str]:
    done = gram.run("globusrun", "-s", "-r", gram.contact(OURS), f"&{rsl}")
    return done.status, done.words


@pytest.fixture(scope="module")
def files(gram: GramSite) -> Path:
    folder = gram.home / "files-of-types"
    write_files(folder)
    gram.run("true")
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755)
    return folder


KINDS = {f"{job_type}-{way}": (job_type, way) for job_type in ("plain", "command", *REQUESTS) for way in WAYS}


@pytest.fixture(scope="module")
def outcomes(gram: GramSite, files: Path) -> dict[str, Outcome]:
    """What became of a request of each type, streamed and staged."""
    requests = {}
    for name, (job_type, way) in KINDS.items():
        globus_rsl = "" if job_type == "plain" else render_globus_rsl(job_type, files)
        requests[name] = render_request(make_client(gram, name), globus_rsl, is_staged=way == "staged")
    return gram.run_all(OURS, requests)


@pytest.mark.parametrize("name", KINDS)
def test_each_job_type_is_reached(gram: GramSite, outcomes: dict[str, Outcome], name: str) -> None:
    assert (outcomes[name].status, outcomes[name].words) == (0, "")
    said = (gram.home / name / "stdout").read_text()
    job_type, _ = KINDS[name]
    if job_type == "plain":
        assert said == "blue \n"
        return
    (identity,) = re.findall(rf"^grid job ([a-z0-9]{{8}}) \({job_type}\): ", said)
    assert gram.query(identity, "string(/jobs/grid-job/@state)") == "done"
    note = f"not used, because the job type {job_type} does not take it: executable"
    assert (note in gram.samgrid("log", identity)) is (job_type != "command")


def test_what_globus_rsl_says_is_still_checked(gram: GramSite) -> None:
    folder = make_client(gram, "condor-g-bad")
    status, words = run(gram, render_request(folder, "(samgrid_type=structured)(events=10)"))
    assert status == 134, words


def test_an_update_that_condor_g_spoils_does_the_job_no_harm(gram: GramSite) -> None:
    folder = make_client(gram, "spoilt")
    go, runs = folder / "go", folder / "runs"
    rsl = render_request(folder, f"(samgrid_type=command)(arguments={go} {runs})")
    calls = len(gram.calls())
    with gram.start("globusrun", "-s", "-r", gram.contact(OURS), f"&{rsl}") as client:
        wait_until(runs.exists, "it runs", PATIENCE)
        (contact,) = set(re.findall(r" contact=(\S+)", "\n".join(gram.calls()[calls:])))
        assert send_signal(gram, contact, STDIO_UPDATE, "&(invalid=bad)")[0] == BAD_RSL
        go.touch()
        _, words = client.communicate(timeout=PATIENCE)
    assert client.returncode == 0, words
    assert runs.read_text() == "run\n"
    assert "1 of 1 local jobs succeeded" in (folder / "stdout").read_text()
