"""An upgrade while local jobs run: what the version before has begun, with its own code, is ended by this one."""

import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from jobmanager.database.database import LAYOUT
from tests.forked_samgrid import ROOT
from tests.samgrid import Samgrid
from tests.waiting import SECONDS, Gate, wait_until

PACKAGES = ("adapters", "batch_adapters", "gram_shims", "handlers", "jobmanager", "sandbox")


def run_git(*words: str) -> bytes:
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"the project's history is not here: {done.stderr.decode()}")
    return done.stdout


def read_layout(samgrid: Samgrid) -> int:
    with closing(sqlite3.connect(samgrid.state / "jobs.db")) as database:
        layout: int = database.execute("PRAGMA user_version").fetchone()[0]
    return layout


def put_version_before(folder: Path) -> None:
    """The last version with the layout before this one's, as it was committed."""
    change = run_git("log", "-1", "--format=%H", "-G^LAYOUT = ", "--", "jobmanager/database/database.py").decode()
    archive = run_git("archive", f"{change.strip()}^", *PACKAGES)
    folder.mkdir()
    subprocess.run(["tar", "--extract"], cwd=folder, input=archive, check=True)


def test_local_jobs_that_run_while_a_new_version_is_installed_live_on(
    samgrid: Samgrid, gate: Gate, tmp_path: Path
) -> None:
    code, new, begun = tmp_path / "code", tmp_path / "new", tmp_path / "begun"
    put_version_before(code)
    samgrid = replace(samgrid, settings={"SAMGRID_FORK_SLOTS": "2"})

    def run(*words: str, stdin: str = "") -> str:
        command = [sys.executable, "-P", str(code / "batch_adapters" / "launch.py"), "samgrid", *words]
        done = subprocess.run(
            command,
            input=stdin,
            capture_output=True,
            text=True,
            env=samgrid.environment(),
            timeout=SECONDS,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    script = f"echo $SAMGRID_INDEX >>{begun}; : <{gate.path}; echo $SAMGRID_INDEX >output/number"
    request = f'&(samgrid_type=command)(executable=/bin/sh)(arguments=-c "{script}")(count=3)'
    job_id = run("submit", "-", stdin=request).strip()
    wait_until(lambda: "1 pending, 2 active" in run("status", job_id))
    assert read_layout(samgrid) < LAYOUT
    for package in PACKAGES:
        shutil.copytree(ROOT / package, new / package, ignore=shutil.ignore_patterns("__pycache__"))
    code.rename(tmp_path / "old")
    new.rename(code)
    assert "1 pending, 2 active" in run("status", job_id)
    assert read_layout(samgrid) == LAYOUT
    gate.open()
    run("watch", job_id)
    run("output", job_id, "--extract", str(tmp_path / "outputs"))
    numbers = ["1\n", "2\n", "3\n"]
    assert sorted(file.read_text() for file in tmp_path.glob("outputs/*/*.output/number")) == numbers
    assert sorted(begun.read_text().splitlines(keepends=True)) == numbers, "one was begun again"
