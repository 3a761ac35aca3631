"""The requests that Condor-G writes, for each job type: streamed or staged, in two phases, and after it was away."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.clients_of_gram import REQUESTS, render_globus_rsl, write_files
from tests.gram.gram_site import FORK, OURS, GramSite, Outcome, sh
from tests.gram.test_problems import send_signal
from tests.waiting import SECONDS, wait_until

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
PHASES = f"(proxy_timeout=240)(save_state=yes)(two_phase=60)(remote_io_url={GASS})"


def render_url(url: str) -> str:
    return f"(rsl_substitution=(GRIDMANAGER_GASS_URL {url}))"


def render_request(
    folder: Path, globus_rsl: str, is_staged: bool = False, arguments: str = "", url: str = "$(GLOBUSRUN_GASS_URL)"
) -> str:
    """What Condor-G says of a job whose executable it transfers, its attributes in its order."""
    out, err = folder / "stdout", folder / "stderr"
    streamed = f"(stdout={GASS}{out})(stderr={GASS}{err})"
    staged = (
        "(stdout=$(GLOBUS_CACHED_STDOUT))(stderr=$(GLOBUS_CACHED_STDERR))"
        f"(file_stage_out=($(GLOBUS_CACHED_STDOUT) {GASS}{out})($(GLOBUS_CACHED_STDERR) {GASS}{err}))"
    )
    return (
        f"{render_url(url)}(executable={GASS}{folder}/program)(scratchdir='')(directory=$(SCRATCH_DIRECTORY)){arguments}"
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
    (job_id,) = re.findall(rf"^grid job ([a-z0-9]{{8}}) \({job_type}\): ", said)
    assert gram.query(job_id, "string(/jobs/grid-job/@state)") == "done"
    note = f"not used, because the job type {job_type} does not take it: executable"
    assert (note in gram.samgrid("log", job_id)) is (job_type != "command")


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
        wait_until(runs.exists, "it runs")
        (contact,) = set(re.findall(r" contact=(\S+)", "\n".join(gram.calls()[calls:])))
        assert send_signal(gram, contact, STDIO_UPDATE, "&(invalid=bad)")[0] == BAD_RSL
        go.touch()
        _, words = client.communicate(timeout=SECONDS)
    assert client.returncode == 0, words
    assert runs.read_text() == "run\n"
    assert "1 of 1 local jobs succeeded" in (folder / "stdout").read_text()


@contextmanager
def gass_server(gram: GramSite, name: str) -> Iterator[str]:
    """The URL of a server of files of the submit machine: that of a client whose job lasts."""
    file = gram.home / name
    script = f"echo $URL >{file}; until [ -e {file}.over ]; do sleep 0.2; done"
    rsl = f"{sh(script)}(environment=(URL $(GLOBUSRUN_GASS_URL)))"
    with gram.start("globusrun", "-s", "-r", gram.contact(FORK), f"&{rsl}"):
        try:
            wait_until(lambda: file.exists() and file.read_text() != "", "the server has an address")
            yield file.read_text().strip()
        finally:
            Path(f"{file}.over").touch()


def test_a_restart_with_another_gass_url_brings_outputs_there(gram: GramSite) -> None:
    folder = make_client(gram, "restarted")
    go, runs = folder / "go", folder / "runs"
    calls = len(gram.calls())
    with gass_server(gram, "old-url") as url:
        rsl = render_request(folder, f"(samgrid_type=command)(arguments={go} {runs})", url=url)
        # It commits, which -b does not.
        with gram.start("globusrun", "-r", gram.contact(OURS), f"&{rsl}"):
            wait_until(runs.exists, "it runs")
    (contact,) = set(re.findall(r" contact=(\S+)", "\n".join(gram.calls()[calls:])))
    # Not with -s, which adds variables of its own to the request: GRAM keeps one set of them, the new one.
    with gass_server(gram, "new-url") as url:
        streams = "".join(f"({name}={GASS}{folder}/{name})({name}_position=0)" for name in ("stdout", "stderr"))
        restart = f"&{render_url(url)}(restart={contact})(remote_io_url={GASS}){streams}(proxy_timeout=240)"
        with gram.start("stdbuf", "-oL", "globusrun", "-r", gram.contact(OURS), restart) as client:
            assert client.stdout is not None
            assert any(b"submission successful" in line for line in client.stdout), client.communicate()
            go.touch()
            _, words = client.communicate(timeout=SECONDS)
    assert client.returncode == 0, words
    assert runs.read_text() == "run\n"
    assert "1 of 1 local jobs succeeded" in (folder / "stdout").read_text()
