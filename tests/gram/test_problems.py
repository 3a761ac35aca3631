"""Whoever is killed, in whatever phase: one request stays one grid job, and its client hears the end."""

import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from batch_adapters.states import State
from tests.gram.gram_site import OUR_PROGRAMS, OURS, GramSite, sh
from tests.waiting import SECONDS, wait_until

SENDER = Path(__file__).with_name("send_signal.py")
SIGNALLING_JOB = 107
USER_CANCELLED = 8
"""GLOBUS_GRAM_PROTOCOL_ERROR_…"""


def write_job(gram: GramSite, name: str) -> tuple[Path, str]:
    """A folder, and a request whose process says there that it runs, until it finds the file ``go``."""
    folder = gram.make_folder(name)
    script = f"echo run >>{folder}/runs; until [ -e {folder}/go ]; do sleep 0.1; done; echo over"
    return folder, sh(script) + f"(stdout={folder}/out)"


@contextmanager
def restarted(gram: GramSite, contact: str) -> Iterator[None]:
    """Have GRAM start a job manager that goes on with a job; its client, who may hear nothing, is not waited for."""
    with gram.start("globusrun", "-b", "-r", gram.contact(OURS), f"&(restart={contact})"):
        yield


@pytest.mark.parametrize("phase", ["after-submit", "active", "after-the-end"])
def test_a_killed_job_manager_goes_on_with_the_same_grid_job(gram: GramSite, phase: str) -> None:
    folder, request = write_job(gram, phase)
    contact = gram.submit(OURS, request)
    if phase != "after-submit":
        wait_until((folder / "runs").exists, "it runs")
        wait_until(lambda: gram.grid_job(contact) != "", "it has its answer")
    if phase == "after-the-end":
        (folder / "go").touch()
        job = gram.grid_job(contact)
        wait_until(lambda: gram.query(job, "string(/jobs/grid-job/@state)") == "done", "it is done")
    assert gram.kill_job_managers() == 1
    (folder / "go").touch()
    with restarted(gram, contact):
        wait_until(lambda: (folder / "out").exists() and (folder / "out").read_text() == "over\n", "output")
    assert (folder / "runs").read_text() == "run\n"
    uniqid = ".".join(contact.rstrip("/").split("/")[-2:])
    assert gram.samgrid("query", f'count(//grid-job[gram/@uniqid="{uniqid}"])') == "1"


def test_after_a_power_cut_the_job_is_known_to_have_run_once(gram: GramSite) -> None:
    folder, request = write_job(gram, "power-cut")
    contact = gram.submit(OURS, request)
    wait_until((folder / "runs").exists, "it runs")
    gram.kill_job_managers()
    gram.kill_ours(*OUR_PROGRAMS, "samgrid-gram")
    gram.kill_jobs(str(folder))
    job = gram.grid_job(contact)
    with restarted(gram, contact):
        wait_until(lambda: gram.query(job, "string(/jobs/grid-job/@state)") in ("done", "failed"), "an end")
        assert (folder / "runs").read_text() == "run\n"
        wait_until(lambda: gram.status(contact) in ("DONE", "FAILED"), "GRAM knows the end")


def test_two_services_of_one_type_are_one_job_manager(gram: GramSite) -> None:
    gram.register("install", "--service", "samgrid-two")
    outcomes = [gram.globusrun(service, sh("echo x")) for service in (OURS, "jobmanager-samgrid-two")]
    assert [(done.status, done.stdout) for done in outcomes] == [(0, b"x\n")] * 2
    assert gram.kill_job_managers() == 1


@pytest.mark.parametrize("delay", [0, 0.05, 0.1, 0.2])
def test_a_submit_that_is_killed_is_taken_up_once(gram: GramSite, delay: float) -> None:
    gram.end_job_managers()
    folder, request = write_job(gram, f"submit-{delay}")
    (folder / "go").touch()
    with gram.start("globusrun", "-s", "-r", gram.contact(OURS), f"&{request}") as client:
        wait_until(lambda: gram.count_ours("samgrid-gram") > 0, "the submit has begun")
        time.sleep(delay)
        killed = gram.kill_ours("samgrid-gram")
        _, words = client.communicate(timeout=SECONDS)
    assert killed or delay
    assert client.returncode == 0, words
    assert (folder / "runs").read_text() == "run\n"
    assert (folder / "out").read_text() == "over\n"


@pytest.mark.parametrize("delay", [0, 0.1, 0.2])
def test_a_job_manager_that_is_killed_during_submit_submits_the_same_grid_job_again(
    gram: GramSite, delay: float
) -> None:
    gram.end_job_managers()
    folder, request = write_job(gram, f"manager-{delay}")
    (folder / "go").touch()
    # The client may wait for ever for a word of the job manager that is killed.
    with gram.start("globusrun", "-b", "-r", gram.contact(OURS), f"&{request}"):
        wait_until(lambda: gram.count_ours("samgrid-gram") > 0, "the submit has begun")
        time.sleep(delay)
        # There may be two for a moment: one hands its request to the other.
        assert gram.kill_job_managers() > 0
    # Whoever comes next starts a job manager, which goes on with what it finds.
    assert gram.globusrun(OURS, sh("true")).status == 0
    wait_until(lambda: (folder / "out").exists() and (folder / "out").read_text() == "over\n", "output")
    assert (folder / "runs").read_text() == "run\n"


def test_our_processes_are_killed_again_and_again(gram: GramSite) -> None:
    folder, request = write_job(gram, "ours-killed")
    with gram.start("globusrun", "-s", "-r", gram.contact(OURS), f"&{request}") as client:
        wait_until((folder / "runs").exists, "it runs")
        for _ in range(3):
            wait_until(
                lambda: gram.kill_ours("samgrid-monitor", "samgrid-worker", "samgrid-scheduler-event-generator") > 0,
                "one of ours works",
            )
        (folder / "go").touch()
        _, words = client.communicate(timeout=SECONDS)
    assert client.returncode == 0, words
    assert (folder / "runs").read_text() == "run\n"
    assert (folder / "out").read_text() == "over\n"


def test_a_request_in_two_phases_is_submitted_once(gram: GramSite) -> None:
    folder, request = write_job(gram, "two-phase")
    (folder / "go").touch()
    calls = len(gram.calls())
    done = gram.run("globusrun", "-s", "-r", gram.contact(OURS), f"&{request}(two_phase=30)")
    assert done.status == 0, done.words
    assert (folder / "runs").read_text() == "run\n"
    submits = [line for line in gram.calls()[calls:] if " submit contact" in line]
    assert len(submits) == 1


def test_signals_suspend_and_resume_and_what_fork_does_not_do_is_refused(gram: GramSite) -> None:
    folder, request = write_job(gram, "signals")
    contact = gram.submit(OURS, request)
    wait_until((folder / "runs").exists, "it runs")
    job = gram.grid_job(contact)
    assert send_signal(gram, contact, "2") == (0, State.SUSPENDED.value, 0)
    (folder / "go").touch()
    wait_until(lambda: gram.status(contact) == "SUSPENDED", "GRAM's poll says so, too")
    assert gram.query(job, "string(//local-job/@state)") == "suspended"
    assert send_signal(gram, contact, "4", "1")[0] == SIGNALLING_JOB
    assert send_signal(gram, contact, "3") == (0, State.ACTIVE.value, 0)
    wait_until(lambda: (folder / "out").exists() and (folder / "out").read_text() == "over\n", "output")


def test_a_signal_can_cancel(gram: GramSite) -> None:
    folder, request = write_job(gram, "signal-cancel")
    contact = gram.submit(OURS, request)
    wait_until((folder / "runs").exists, "it runs")
    job = gram.grid_job(contact)
    assert send_signal(gram, contact, "1") == (0, State.FAILED.value, USER_CANCELLED)
    wait_until(lambda: gram.query(job, "string(/jobs/grid-job/@state)") == "failed", "it ends")
    assert (folder / "runs").read_text() == "run\n"


def send_signal(gram: GramSite, contact: str, number: str, argument: str = "argument") -> tuple[int, ...]:
    """What GRAM answers: an error, the job's state, the job's failure."""
    done = gram.run("/usr/bin/python3", "-c", SENDER.read_text(), contact, number, argument)
    assert done.status == 0, done.words
    return tuple(map(int, done.text.split()))


def test_the_client_can_cancel_at_once(gram: GramSite) -> None:
    folder, request = write_job(gram, "cancel-at-once")
    contact = gram.submit(OURS, request)
    killed = gram.run("globusrun", "-k", contact)
    assert killed.status == 0, killed.words
    uniqid = ".".join(contact.rstrip("/").split("/")[-2:])
    find = f'string(//grid-job[gram/@uniqid="{uniqid}"]/@state)'
    wait_until(lambda: gram.samgrid("query", find) in ("failed", ""), "the grid job ends")
    (folder / "go").touch()


def test_twenty_grid_jobs_at_once(gram: GramSite) -> None:
    folder = gram.make_folder("twenty")
    requests = [
        "(samgrid_type=command)(count=5)" + sh(f'echo run >>{folder}/{number}."$SAMGRID_INDEX"') for number in range(20)
    ]
    with ThreadPoolExecutor(20) as pool:
        outcomes = list(pool.map(lambda rsl: gram.globusrun(OURS, rsl), requests))
    assert [done.status for done in outcomes] == [0] * 20, [done.words for done in outcomes if done.status]
    assert all("5 of 5 local jobs succeeded" in done.text for done in outcomes)
    assert {file.name: file.read_text() for file in folder.iterdir()} == {
        f"{number}.{index}": "run\n" for number in range(20) for index in range(1, 6)
    }


def test_what_stays_running_has_nothing_of_its_caller(gram: GramSite) -> None:
    folder, request = write_job(gram, "left-running")
    gram.kill_ours(*OUR_PROGRAMS)
    contact = gram.submit(OURS, request)
    wait_until((folder / "runs").exists, "it runs")
    stay = [pid for pid, _ in gram.find_ours(*OUR_PROGRAMS)]
    assert len(stay) >= 3
    for pid in stay:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
        assert b"X509_USER_PROXY" not in environment
        assert b"GLOBUS_GRAM_JOB_CONTACT" not in environment
        files = [str(file.readlink()) for file in Path(f"/proc/{pid}/fd").iterdir()]
        assert not [file for file in files if file.startswith(("/tmp/", str(gram.folder), "/var/lib/globus"))]
    (folder / "go").touch()
    job = gram.grid_job(contact)
    wait_until(lambda: gram.query(job, "string(/jobs/grid-job/@state)") == "done", "it is done")


def test_each_call_is_one_line_of_the_log(gram: GramSite) -> None:
    line = re.compile(r"\S+ INFO \w+ contact=\S+ uniqid=\S+ job=\S+ seconds=[0-9.]+ answer=.+")
    calls = [text for text in gram.calls() if " contact=" in text]
    assert calls
    assert not [text for text in calls if not line.fullmatch(text)]
