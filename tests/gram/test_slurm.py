"""The same through Slurm: plain commands, the demo, cancels and signals in poll mode, and ends by events."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from batch_adapters.states import State
from tests.gram.gram_site import FORK, OURS, GramSite, Outcome, configured, sh, without_details
from tests.gram.seg_mode import collecting, in_seg_mode, read_events
from tests.gram.test_problems import SIGNALLING_JOB, send_signal, write_job
from tests.real.site import ROOT, Site
from tests.waiting import SECONDS, wait_until

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


IN_SLURM = (
    "[site]\nbatch_system = 'slurm'\n[monitor]\nreconcile_interval = 5\n[batch.slurm]\nrequest_options = ['--hold']\n"
)


@pytest.fixture(scope="module")
def cluster(gram: GramSite, ground: Path) -> Iterator[Site]:
    """Slurm, as GRAM's jobs find it."""
    # A link is what a run that was killed has left.
    if SLURM_CONFIGURATION.exists() and not SLURM_CONFIGURATION.is_symlink():
        pytest.skip(f"{SLURM_CONFIGURATION} is this machine's own")
    SLURM_CONFIGURATION.unlink(missing_ok=True)
    cluster = Site("slurm", "slurm", ground / "slurm", gram.programs, {})
    cluster.folder.mkdir()
    try:
        cluster.run_script("start")
        # GRAM hands on no SLURM_CONF.
        SLURM_CONFIGURATION.symlink_to(cluster.folder / "slurm.conf")
        yield cluster
    finally:
        SLURM_CONFIGURATION.unlink(missing_ok=True)
        cluster.run_script("stop")


@pytest.fixture(scope="module")
def slurm(gram: GramSite, cluster: Site) -> Iterator[GramSite]:
    """The same site, whose jobs go to Slurm."""
    with configured(gram, IN_SLURM):
        yield gram


@pytest.fixture(scope="module")
def both(slurm: GramSite) -> dict[str, dict[str, Outcome]]:
    ours, forks = slurm.run_both(SAME, SAME)
    return {OURS: ours, FORK: forks}


@pytest.mark.parametrize("name", SAME)
def test_a_plain_job_ends_as_under_fork(both: dict[str, dict[str, Outcome]], name: str) -> None:
    ours, forks = both[OURS][name], both[FORK][name]
    assert (ours.status, ours.stdout) == (forks.status, forks.stdout), (ours.words, forks.words)
    assert without_details(ours) == without_details(forks)


def test_the_demo_runs_on_slurm(slurm: GramSite) -> None:
    demo = slurm.globusrun(OURS, (ROOT / "examples" / "drell-yan.rsl").read_text().partition("&")[2])
    assert demo.status == 0, demo.words
    assert "8 of 8 local jobs succeeded" in demo.text


def wait_for_state(slurm: GramSite, job: str, *states: str) -> None:
    wait_until(lambda: slurm.query(job, "string(/jobs/grid-job/@state)") in states, f"{job} is {' or '.join(states)}")


def wait_for_empty_queue(slurm: GramSite) -> None:
    wait_until(lambda: slurm.run("squeue", "-h") == Outcome(0, b"", b""), "the queue is empty")


def test_a_cancel_during_submission_twice_empties_the_queue(slurm: GramSite) -> None:
    # Three arrays; held, because a hundred that run are a load of their own. None of them is killed on its way: Slurm
    # would be asked for it for 300 s.
    contact = slurm.submit(OURS, "(samgrid_type=command)(count=2500)(batch_options=--hold)" + sh("true"))
    wait_until(lambda: slurm.grid_job(contact) != "", "it has its answer")
    job = slurm.grid_job(contact)
    wait_until(lambda: slurm.query(job, "count(//local-job[@token])") != "0", "it is being submitted")
    assert slurm.run("globusrun", "-k", contact).status == 0
    # GRAM knows the job no more, or as one that has failed.
    slurm.run("globusrun", "-k", contact)
    wait_for_state(slurm, job, "failed")
    wait_for_empty_queue(slurm)
    assert slurm.query(job, "count(//local-job[@state!='failed'])") == "0"


def test_a_cancel_while_slurm_is_down_is_told_at_once_and_done_later(slurm: GramSite, cluster: Site) -> None:
    folder, request = write_job(slurm, "slurm-down")
    contact = slurm.submit(OURS, request)
    wait_until((folder / "runs").exists, "it runs")
    job = slurm.grid_job(contact)
    wait_for_state(slurm, job, "active")
    try:
        stop_controller(slurm, cluster)
        killed = slurm.run("globusrun", "-k", contact)
        assert killed.status == 0, killed.words
        assert slurm.query(job, "count(//local-job[@state='active'])") == "1"
    finally:
        cluster.run_script("resume")
    wait_for_state(slurm, job, "failed")
    wait_for_empty_queue(slurm)
    assert (folder / "runs").read_text() == "run\n"


def stop_controller(slurm: GramSite, cluster: Site) -> None:
    """As an operator does: what it knows is written down."""
    pid = int((cluster.folder / "run" / "slurmctld.pid").read_text())
    os.kill(pid, signal.SIGTERM)
    wait_until(lambda: slurm.run("scontrol", "ping").status != 0, "slurmctld does not answer")


def test_a_signal_suspends_and_another_resumes(slurm: GramSite) -> None:
    folder, request = write_job(slurm, "slurm-signals")
    with slurm.start("globusrun", "-s", "-r", slurm.contact(OURS), f"&{request}") as client:
        wait_until((folder / "runs").exists, "it runs")
        job = slurm.samgrid("query", "string((//grid-job[@state='active'])[last()]/@id)").strip()
        contact = slurm.query(job, "string(//gram/@contact)")
        assert send_signal(slurm, contact, "2") == (0, State.SUSPENDED.value, 0)
        wait_for_state(slurm, job, "suspended")
        assert slurm.run("squeue", "-h", "-o", "%T").text == "STOPPED"
        # A higher priority is for operators.
        assert send_signal(slurm, contact, "4", "10")[0] == SIGNALLING_JOB
        assert send_signal(slurm, contact, "3") == (0, State.ACTIVE.value, 0)
        wait_for_state(slurm, job, "active")
        (folder / "go").touch()
        _, words = client.communicate(timeout=SECONDS)
    assert client.returncode == 0, words
    assert slurm.query(job, "string(//local-job/@state)") == "done"


def test_gram_hears_of_ends_on_slurm_by_events(slurm: GramSite, ground: Path) -> None:
    with collecting(ground / "slurm-collector") as text, in_seg_mode(slurm, IN_SLURM + text):
        contact = slurm.submit(OURS, sh('exit "$((SAMGRID_INDEX - 1))"') + "(count=8)")
        wait_until(lambda: slurm.grid_job(contact) != "", "it has its id")
        job = slurm.grid_job(contact)
        wait_until(lambda: f";{job};8;1\n" in read_events(), "its end is told with its exit code")
        done = slurm.globusrun(OURS, sh("echo out"))
        assert (done.status, done.stdout) == (0, b"out\n"), done.words
        contact = slurm.submit(OURS, sh("sleep 600"))
        wait_until(lambda: slurm.grid_job(contact) != "", "it has its id")
        job = slurm.grid_job(contact)
        assert slurm.run("globusrun", "-k", contact).status == 0
        wait_until(lambda: f";{job};8;" in read_events(), "its cancel is told")
