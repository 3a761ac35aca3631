"""The commands that ask batch systems, as a person uses them, on the embedded batch system fork."""

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.samgrid import LAUNCH, Samgrid
from tests.waiting import wait_until

HELLO = '&(samgrid_type = command)(executable = /bin/sh)(count = 2)(arguments = -c "exit $((SAMGRID_INDEX - 1))")'
FOREVER = "&(samgrid_type = command)(executable = /bin/sleep)(arguments = 36000)"


@pytest.fixture(scope="module")
def site(module_samgrid: Samgrid, tmp_path_factory: pytest.TempPathFactory) -> Samgrid:
    """An account that looks at its batch system often."""
    file = tmp_path_factory.mktemp("site") / "samgrid.toml"
    file.write_text("[batch.fork]\ncommands_per_minute = 1000\n[monitor]\nreconcile_interval = 2\n")
    return replace(module_samgrid, settings={"SAMGRID_CONFIG": str(file)})


@pytest.fixture(scope="module")
def finished(site: Samgrid) -> tuple[Samgrid, str]:
    """A grid job of this account that has ended: of its two local jobs the second failed."""
    job_id = site.submit(HELLO)
    done = site("watch", job_id)
    assert done.returncode == 1, done.stderr
    return site, job_id


@pytest.fixture(scope="module")
def running(site: Samgrid) -> tuple[Samgrid, str]:
    """Another one, whose one local job runs."""
    job_id = site.submit(FOREVER)
    wait_until(lambda: "1 active" in site("status", job_id).stdout)
    return site, job_id


def submit_by_hand(samgrid: Samgrid, token: str) -> None:
    """What nobody but fork knows of."""
    queue = [sys.executable, "-P", str(LAUNCH), "samgrid-fork", "--spool", str(samgrid.state / "fork")]
    submit = [*queue, "--slots", "4", "submit", "--token", token, "--count", "2", "--", "/bin/sleep", "300"]
    subprocess.run(submit, check=True, capture_output=True, env=samgrid.environment())


# --- explain


def test_explain_shows_evidence_and_verdict(finished: tuple[Samgrid, str]) -> None:
    samgrid, job_id = finished
    done = samgrid("explain", f"{job_id}-1.2")
    assert (done.returncode, done.stderr) == (0, "")
    assert re.search(r"^state +done\noutcome +failed\ncause +exit-code\nexit code +1$", done.stdout, re.MULTILINE)
    assert re.search(r"^  \S+Z  (log  +done 1|driver  +end, exit code 1)  +→ done$", done.stdout, re.M)
    assert re.search(r"^fork now:\n  \S+ ended \(done\), exit code 1", done.stdout, re.MULTILINE)
    assert re.search(r"^verdict:\n  Failed, .* exit code 1; its outputs are back", done.stdout, re.MULTILINE)


def test_explain_takes_a_number_and_can_leave_the_batch_system_alone(finished: tuple[Samgrid, str]) -> None:
    samgrid, job_id = finished
    done = samgrid("explain", "--no-ask", f"{job_id[:4]}/1")
    assert done.returncode == 0
    assert f"{job_id}-1.1" in done.stdout
    assert "now:" not in done.stdout


def test_explain_of_what_is_not_there_is_a_clear_error(finished: tuple[Samgrid, str], samgrid: Samgrid) -> None:
    for account in (finished[0], samgrid):
        done = account("explain", "17.1")
        assert (done.returncode, done.stdout) == (1, "")
        assert re.fullmatch(r"samgrid explain: no local job has the id .*\n", done.stderr)
    assert not samgrid.state.exists(), "a question makes nothing"


# --- orphans


def test_orphans_are_listed_reaped_and_gone_while_grid_jobs_live_on(running: tuple[Samgrid, str]) -> None:
    samgrid, job_id = running
    assert samgrid("orphans").stdout == "no orphans\n"
    submit_by_hand(samgrid, "zzzzzzzz-1")
    listed = samgrid("orphans")
    assert listed.returncode == 1
    rows = [re.split("  +", line) for line in listed.stdout.splitlines()[1:]]
    assert sorted(row[:3] for row in rows) == [["fork", f"zzzzzzzz-1.{n}", "zzzzzzzz-1"] for n in (1, 2)]
    assert samgrid("orphans", "--reap", "yyyyyyyy-1").stdout == "no orphans of yyyyyyyy-1\n"
    assert samgrid("orphans").returncode == 1
    reaped = samgrid("orphans", "--reap")
    assert (reaped.returncode, reaped.stderr) == (0, "")
    wait_until(lambda: samgrid("orphans").returncode == 0)
    assert "1 active" in samgrid("status", job_id).stdout


def test_a_batch_system_that_cannot_be_asked_for_orphans_is_exit_status_3(samgrid: Samgrid, tmp_path: Path) -> None:
    samgrid.state.mkdir(mode=0o700)
    (samgrid.state / "fork").write_text("no folder")
    done = samgrid("orphans")
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.startswith("samgrid orphans: fork cannot be asked: ")


# --- doctor


def test_the_doctor_finds_fork_well_and_leaves_nothing_of_its_probe(finished: tuple[Samgrid, str]) -> None:
    samgrid, _ = finished
    kept = sorted(os.listdir(samgrid.state / "jobs"))  # noqa: PTH208
    done = samgrid("doctor", "--probe", "--probe-time", "300")
    assert (done.returncode, done.stderr) == (0, "")
    assert {line.split()[0] for line in done.stdout.splitlines()} == {"ok"}
    assert f"wrote into {samgrid.state / 'jobs'}" in done.stdout
    assert sorted(os.listdir(samgrid.state / "jobs")) == kept  # noqa: PTH208
    assert samgrid("orphans").stdout == "no orphans\n"


def test_the_doctor_works_before_anything_was_submitted(samgrid: Samgrid) -> None:
    done = samgrid("doctor")
    assert (done.returncode, done.stderr) == (0, "")
    assert "its log" in done.stdout
    assert "warning" not in done.stdout


def test_the_doctor_names_what_is_wrong_and_what_to_put_where(samgrid: Samgrid, tmp_path: Path) -> None:
    (tmp_path / "samgrid.toml").write_text('[batch.odd]\nbased_on = "fork"\nversion = { argv = ["no-such-program"] }\n')
    settings = {"SAMGRID_CONFIG": str(tmp_path / "samgrid.toml"), "SAMGRID_SITE_BATCH_SYSTEM": "odd"}
    odd = replace(samgrid, settings=settings)
    done = odd("doctor")
    assert done.returncode == 1
    fault = r"^FAULT    odd: .*: no-such-program missing\n         remedy: .* PATH$"
    assert re.search(fault, done.stdout, re.MULTILINE), done.stdout
    assert odd("doctor", "fork").returncode == 0


def test_a_wrong_batch_system_for_the_doctor_is_a_clear_error(samgrid: Samgrid) -> None:
    done = samgrid("doctor", "nowhere")
    assert (done.returncode, done.stdout) == (1, "")
    assert re.fullmatch('samgrid doctor: unknown batch system "nowhere": known are .*fork.*\n', done.stderr)
    for wrong in (["fork", "--all"], ["--probe-time", "soon"], ["--probe-time", "nan"]):
        assert samgrid("doctor", *wrong).returncode == 2


# --- status


def test_status_says_since_when_a_batch_system_does_not_answer(running: tuple[Samgrid, str]) -> None:
    samgrid, job_id = running
    assert "has not answered" not in samgrid("status").stdout
    spool = samgrid.state / "fork"
    spool.rename(samgrid.state / "away")
    spool.write_text("")
    wait_until(lambda: "fork has not answered since " in samgrid("status", job_id).stdout)
    assert '"silent_since": "' in samgrid("status", "--format", "json").stdout
    spool.unlink()
    (samgrid.state / "away").rename(spool)
    wait_until(lambda: "has not answered" not in samgrid("status").stdout)
