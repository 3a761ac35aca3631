"""The same through Slurm: plain commands and the demo, in poll mode."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.gram.gram_site import FORK, OURS, PATIENCE, GramSite, Outcome, configured, sh, without_details
from tests.gram.test_troubles import write_job
from tests.real.site import ROOT, Site, wait_until

SLURM_CONFIGURATION = Path("/etc/slurm/slurm.conf")
SAME = {
    "outputs": sh("echo out; echo err >&2"),
    "words": sh(
        'for word; do printf "[%s]" "$word"; done', "", "two words", 'q"', "it's", "$HOME", "\\", "two\nlines", "\udcff"
    ),
    "count": sh("echo one") + "(count=5)",
    "directory": "(executable=/bin/pwd)(directory=/usr/share)",
    "default-directory": "(executable=/bin/pwd)",
    "default-stdin": "(executable=/bin/cat)",
    "environment": sh('echo "$A|$LOGNAME|$GLOBUS_LOCATION"') + '(environment=(A "two words"))',
    "proxy": sh('head -c 27 "$X509_USER_PROXY"'),
    "exit-code": sh("echo before; exit 3"),
    "no-such-program": "(executable=/nowhere/program)",
}


@pytest.fixture(scope="module")
def slurm(gram: GramSite, ground: Path) -> Iterator[GramSite]:
    """The same site, whose jobs go to Slurm."""
    if SLURM_CONFIGURATION.exists():
        pytest.skip(f"{SLURM_CONFIGURATION} is this machine's own")
    cluster = Site("slurm", "slurm", ground / "slurm", gram.programs, {})
    cluster.folder.mkdir()
    try:
        cluster.run_script("start")
        # GRAM hands on no SLURM_CONF.
        SLURM_CONFIGURATION.symlink_to(cluster.folder / "slurm.conf")
        with configured(gram, "[site]\nbatch_system = 'slurm'\n[monitor]\nreconcile_interval = 5\n"):
            yield gram
    finally:
        SLURM_CONFIGURATION.unlink(missing_ok=True)
        cluster.run_script("stop")


@pytest.fixture(scope="module")
def both(slurm: GramSite) -> dict[str, dict[str, Outcome]]:
    return {service: slurm.run_all(service, SAME) for service in (OURS, FORK)}


@pytest.mark.parametrize("name", SAME)
def test_a_plain_job_ends_as_under_fork(both: dict[str, dict[str, Outcome]], name: str) -> None:
    ours, forks = both[OURS][name], both[FORK][name]
    assert (ours.status, ours.stdout) == (forks.status, forks.stdout), (ours.words, forks.words)
    assert without_details(ours) == without_details(forks)


def test_the_demo_runs_on_slurm(slurm: GramSite) -> None:
    demo = slurm.globusrun(OURS, (ROOT / "examples" / "drell-yan.rsl").read_text().partition("&")[2])
    assert demo.status == 0, demo.words
    assert "8 of 8 local jobs succeeded" in demo.text


def test_cancel_empties_the_queue(slurm: GramSite) -> None:
    folder, request = write_job(slurm, "slurm-cancelled")
    contact = slurm.submit(OURS, request)
    wait_until((folder / "runs").exists, "it runs", PATIENCE)
    assert slurm.run("globusrun", "-k", contact).status == 0
    empty = Outcome(0, b"", b"")
    wait_until(lambda: slurm.run("squeue", "-h") == empty, "the queue is empty", PATIENCE)
    job = slurm.grid_job(contact)
    wait_until(lambda: slurm.query(job, "string(/jobs/grid-job/@state)") == "failed", "it has ended", PATIENCE)
