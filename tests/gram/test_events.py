"""GRAM reads our events, which the collector writes: exit codes reach clients, and ends are known at once."""

import pwd
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.gram.gram_site import FORK, OURS, GramSite, Outcome, sh
from tests.gram.seg_mode import EVENTS, collecting, in_seg_mode, read_events
from tests.gram.test_problems import USER_CANCELLED, restarted, write_job
from tests.real.site import ACCOUNT
from tests.waiting import SECONDS, wait_until

COMMAND = "(samgrid_type=command)"

RUN = {
    "done": sh("echo out; echo err >&2"),
    "exit-code": sh("echo out; exit 7"),
    "a-signal": sh("kill -9 $$"),
    "grid-job": COMMAND + sh("echo out") + "(count=3)",
    "grid-job-that-fails": COMMAND + sh("exit 7") + "(count=3)",
    "grid-job-that-fails-as-done": COMMAND + sh("exit 7") + "(count=3)(failed_as=done)",
    "staged-out-of-a-failure": COMMAND
    + sh("exit 7")
    + "(samgrid_output=HOME/failed.tar)(file_stage_out=(HOME/failed.tar $(GLOBUSRUN_GASS_URL)HOME/brought.tar))",
    "no-such-program": "(executable=/nowhere/program)",
}
"""By name; HOME is the account's folder."""


@pytest.fixture(scope="module")
def seg(gram: GramSite, ground: Path) -> Iterator[GramSite]:
    """The same site in SEG mode, with a collector that an account of its own runs."""
    with collecting(ground / "collector") as text, in_seg_mode(gram, text):
        yield gram


@pytest.fixture(scope="module")
def outcomes(seg: GramSite) -> dict[str, Outcome]:
    return seg.run_all(OURS, {name: rsl.replace("HOME/", f"{seg.home}/") for name, rsl in RUN.items()})


@pytest.mark.parametrize(
    ("name", "stdout", "stderr"),
    [("done", b"out\n", b"err\n"), ("exit-code", b"out\n", b""), ("a-signal", b"", b"")],
)
def test_outputs_are_those_of_the_program(
    outcomes: dict[str, Outcome], name: str, stdout: bytes, stderr: bytes
) -> None:
    assert (outcomes[name].stdout, outcomes[name].stderr) == (stdout, stderr)


@pytest.mark.parametrize(
    ("rsl", "code"),
    [
        pytest.param(sh("true"), 0, id="success"),
        pytest.param(sh("exit 7"), 7, id="exit-code"),
        pytest.param(sh("kill -9 $$"), 137, id="signal"),
        pytest.param(sh('exit "$((SAMGRID_INDEX - 1))"') + "(count=3)", 1, id="first-that-is-not-0"),
        pytest.param(COMMAND + sh("true") + "(count=3)", 0, id="grid-job"),
        pytest.param(COMMAND + sh("exit 7") + "(count=3)", 1, id="grid-job-that-failed"),
        pytest.param(COMMAND + sh("exit 7") + "(count=3)(min_success=0)", 0, id="grid-job-that-failed-enough"),
    ],
)
def test_the_exit_code_is_in_the_last_event(seg: GramSite, rsl: str, code: int) -> None:
    contact = seg.submit(OURS, rsl)
    wait_until(lambda: seg.grid_job(contact) != "", "it has its id")
    job = seg.grid_job(contact)
    wait_until(lambda: f";{job};8;" in read_events(), "its end is told")
    states = re.findall(rf"^001;[0-9]+;{job};([0-9]+);([0-9]+)$", read_events(), re.MULTILINE)
    assert states[-1] == ("8", str(code))
    assert next(state for state, _ in states if state != "1") == "2"


@pytest.mark.parametrize(
    ("name", "status"),
    [
        ("done", 0),
        ("exit-code", 0),
        ("grid-job", 0),
        ("grid-job-that-fails", 17),
        ("staged-out-of-a-failure", 17),
        ("grid-job-that-fails-as-done", 0),
    ],
)
def test_no_script_takes_a_grid_job_that_failed_for_done(outcomes: dict[str, Outcome], name: str, status: int) -> None:
    assert outcomes[name].status == status, outcomes[name].words
    assert ("GRAM Job failed" in outcomes[name].words) is (status == 17)


def test_a_failure_brings_its_outputs_back(seg: GramSite, outcomes: dict[str, Outcome]) -> None:
    assert (seg.home / "brought.tar").read_bytes() == (seg.home / "failed.tar").read_bytes()
    assert "0 of 3 local jobs succeeded" in outcomes["grid-job-that-fails"].text
    assert "exit code 7" in outcomes["grid-job-that-fails"].words


def test_a_bad_request_is_refused_as_in_poll_mode(outcomes: dict[str, Outcome]) -> None:
    assert outcomes["no-such-program"].status == 5


def test_no_poll_is_needed(seg: GramSite, outcomes: dict[str, Outcome]) -> None:
    calls = len(seg.calls())
    assert seg.globusrun(OURS, sh("sleep 12")).status == 0
    assert not [line for line in seg.calls()[calls:] if " poll contact" in line]


def test_the_end_of_a_cancelled_job_is_told_so_that_gram_asks_why(seg: GramSite) -> None:
    folder, request = write_job(seg, "seg-cancelled")
    contact = seg.submit(OURS, request)
    wait_until((folder / "runs").exists, "it runs")
    job = seg.grid_job(contact)
    assert seg.run("globusrun", "-k", contact).status == 0
    wait_until(lambda: f";{job};8;1" in read_events(), "its end is told")


@pytest.mark.parametrize("by_gram", [True, False], ids=["through GRAM", "by its owner"])
@pytest.mark.parametrize("options", [("-s", "-w"), ()], ids=["with outputs", "with nothing brought back"])
def test_no_script_takes_a_cancelled_job_for_done(seg: GramSite, by_gram: bool, options: tuple[str, ...]) -> None:
    folder = seg.make_folder(f"seg-waiting-{by_gram}{''.join(options)}")
    calls = len(seg.calls())
    rsl = sh(f"echo out; echo run >>{folder}/runs; sleep 600")
    with seg.start("globusrun", *options, "-r", seg.contact(OURS), f"&{rsl}") as client:
        wait_until((folder / "runs").exists, "it runs")
        (line,) = [line for line in seg.calls()[calls:] if "answer=JOB_ID:" in line]
        contact = line.split(" contact=")[1].split()[0]
        if by_gram:
            assert seg.run("globusrun", "-k", contact).status == 0
        else:
            seg.samgrid("cancel", seg.grid_job(contact))
        stdout, words = client.communicate(timeout=SECONDS)
    assert client.returncode == USER_CANCELLED, words
    assert by_gram or not options or stdout == b"out\n"


def test_no_script_takes_a_failure_for_done_where_nothing_is_brought_back(seg: GramSite) -> None:
    def run(rsl: str) -> int:
        return seg.run("globusrun", "-r", seg.contact(OURS), f"&{rsl}").status

    assert run(COMMAND + sh("exit 7")) == 17
    assert run(COMMAND + sh("exit 7") + "(failed_as=done)") == 0
    assert run(sh("exit 7")) == 0


def test_a_killed_job_manager_hears_of_an_end_that_came_meanwhile(seg: GramSite) -> None:
    folder, request = write_job(seg, "seg-manager")
    contact = seg.submit(OURS, request)
    wait_until((folder / "runs").exists, "it runs")
    job = seg.grid_job(contact)
    assert seg.kill_job_managers() == 1
    (folder / "go").touch()
    wait_until(lambda: f";{job};8;" in read_events(), "its end is told")
    with restarted(seg, contact):
        wait_until(lambda: (folder / "out").exists() and (folder / "out").read_text() == "over\n", "output")
    assert (folder / "runs").read_text() == "run\n"


def test_a_killed_monitor_tells_what_it_has_missed(seg: GramSite) -> None:
    folder, request = write_job(seg, "seg-monitor")
    with seg.start("globusrun", "-s", "-r", seg.contact(OURS), f"&{request}") as client:
        wait_until((folder / "runs").exists, "it runs")
        assert seg.kill_ours("samgrid-monitor") == 1
        (folder / "go").touch()
        time.sleep(2)
        seg.samgrid("status")
        _, words = client.communicate(timeout=SECONDS)
    assert client.returncode == 0, words
    assert (folder / "out").read_text() == "over\n"


def test_twenty_grid_jobs_at_once_are_all_heard_of(seg: GramSite) -> None:
    with ThreadPoolExecutor(20) as pool:
        outcomes = list(pool.map(lambda _: seg.globusrun(OURS, COMMAND + sh("true") + "(count=3)"), range(20)))
    assert [done.status for done in outcomes] == [0] * 20, [done.words for done in outcomes if done.status]


def test_fork_is_not_disturbed(seg: GramSite) -> None:
    assert seg.globusrun(FORK, sh("echo out")).stdout == b"out\n"


def test_no_account_can_write_the_events(seg: GramSite) -> None:
    (file,) = (file for file in EVENTS.iterdir() if file.name == time.strftime("%Y%m%d", time.gmtime()))
    account = pwd.getpwnam(ACCOUNT)
    assert file.stat().st_uid != account.pw_uid
    assert not file.stat().st_mode & 0o022
    assert seg.run("/bin/sh", "-c", f'echo x >>"{file}"').status != 0
