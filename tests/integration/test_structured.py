"""Structured grid jobs from the command line to the tar, on the embedded batch system."""

import io
import json
import os
import signal
import tarfile
from pathlib import Path

import pytest

from tests.conftest import processes_of
from tests.integration.test_grid_jobs import read_tar
from tests.samgrid import Samgrid
from tests.waiting import wait_until


def two_steps(make: str, read: str = "cat $SAMGRID_INPUT_FOLDER/*/part | tee output/all", count: int = 2) -> str:
    """A request of two shell scripts, of which the second reads what the first left in its output."""
    return f"""&(samgrid_type = structured)(steps =
        (make (samgrid_type command) (executable /bin/sh) (arguments -c '{make}') (count {count}))
        (read (samgrid_type command) (executable /bin/sh) (arguments -c '{read}') (input_step make)))"""


def steps(samgrid: Samgrid, identity: str) -> list[tuple[str, str, str]]:
    """Name, id and state of the steps that have begun."""
    (row,) = json.loads(samgrid("status", "--format", "json", identity).stdout)
    return [(step["name"], step["grid_job"], step["state"]) for step in row["steps"] if step["grid_job"]]


def read_step(samgrid: Samgrid, identity: str, name: str) -> dict[str, bytes]:
    """The files of a step's own tar, which lies in the tar of the whole, named without its own folder."""
    part = {step: grid_job for step, grid_job, _ in steps(samgrid, identity)}[name]
    inner = read_tar(samgrid, identity)[f"{name}/{part}.tar"]
    with tarfile.open(fileobj=io.BytesIO(inner)) as tar:
        return {
            member.name.removeprefix(f"{part}/{part}."): tar.extractfile(member).read()  # type: ignore[union-attr]
            for member in tar
            if member.isfile()
        }


def test_the_second_step_reads_what_the_first_one_made(samgrid: Samgrid) -> None:
    identity = samgrid.submit(two_steps("echo $SAMGRID_INDEX >output/part", count=12))
    done = samgrid("watch", identity)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert "step 2 of 2: read" in done.stdout
    (make, _, _), (read, part, state) = steps(samgrid, identity)
    assert (make, read, state) == ("make", "read", "done")
    numbers = "".join(f"{index}\n" for index in range(1, 13)).encode()
    assert read_step(samgrid, identity, "read")[f"{part}-1.1.output/all"] == numbers
    manifest = json.loads(read_tar(samgrid, identity)["manifest.json"])
    assert (manifest["missing"], manifest["refused"], len(manifest["files"])) == ([], [], 4)
    listing = samgrid("status", identity).stdout
    assert f"read ({part}) done" in listing
    assert f"(step of {identity})" in samgrid("status").stdout


def test_a_step_that_fails_is_the_last_one(samgrid: Samgrid) -> None:
    done = samgrid("run", "-", stdin=two_steps("echo no such card >&2; exit 3"))
    assert done.returncode == 1
    identity = done.stdout.split()[2]
    ((name, part, state),) = steps(samgrid, identity)
    assert (name, state) == ("make", "failed")
    assert f"failed: step make ({part}): 2 of 2 local jobs failed, first number 1" in done.stdout
    assert "(no such card)" in done.stdout
    names = {f"{identity}.log", f"{identity}.xml", f"make/{part}.tar", "manifest.json"}
    assert read_tar(samgrid, identity).keys() == names


def test_a_step_whose_request_is_wrong_when_it_is_due_ends_the_whole(samgrid: Samgrid, tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o700)
    request = f"""&(samgrid_type = structured)(steps =
        (make (samgrid_type command) (executable /bin/rm) (arguments {program}))
        (read (samgrid_type command) (executable {program})))"""
    done = samgrid("run", "-", stdin=request)
    assert done.returncode == 1
    assert f"cannot be run: step read: executable '{program}' was not found" in done.stdout


def test_cancel_in_the_second_step_ends_it_and_keeps_the_first(samgrid: Samgrid, tmp_path: Path) -> None:
    read = f"echo $$ >{tmp_path}/pid; exec sleep 600"
    identity = samgrid.submit(two_steps("echo $SAMGRID_INDEX >output/part", read))
    wait_until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text().endswith("\n"))
    assert samgrid("cancel", identity).returncode == 0
    done = samgrid("watch", identity)
    assert (done.returncode, "cancelled by" in done.stdout) == (1, True)
    wait_until(lambda: not Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}").exists())
    assert [state for _, _, state in steps(samgrid, identity)] == ["done", "failed"]
    assert {name.partition("/")[0] for name in read_tar(samgrid, identity) if "/" in name} == {"make", "read"}


def test_kill_9_of_everything_of_ours_between_the_steps_begins_each_once(samgrid: Samgrid, tmp_path: Path) -> None:
    wait = f"until [ -e {tmp_path}/go ]; do sleep 0.05; done"
    make = f"echo run >>{tmp_path}/make$SAMGRID_INDEX; {wait}; echo 1 >output/part"
    identity = samgrid.submit(two_steps(make, f"echo run >>{tmp_path}/read; cat $SAMGRID_INPUT_FOLDER/*/part"))
    wait_until(lambda: (tmp_path / "make1").exists() and (tmp_path / "make2").exists())
    (tmp_path / "go").touch()
    for _ in range(12):
        for word in ("samgrid-monitor", "samgrid-worker"):
            for pid in processes_of(samgrid.state, word):
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
        # It wakes a new monitor, which comes a little farther each time.
        assert samgrid("status").returncode == 0
    assert samgrid("watch", identity, timeout=300).returncode == 0
    assert [state for _, _, state in steps(samgrid, identity)] == ["done", "done"]
    assert len(json.loads(samgrid("status", "--format", "json").stdout)) == 3
    for name in ("make1", "make2", "read"):
        assert (tmp_path / name).read_text() == "run\n", name


@pytest.mark.parametrize(
    "trick",
    [
        pytest.param("ln -s /etc/passwd output/part", id="a link out of the folder"),
        pytest.param("mkfifo output/part", id="a named pipe"),
        pytest.param("rmdir output; ln -s /etc output", id="a link in place of the folder"),
    ],
)
def test_a_step_cannot_lead_the_next_one_out_of_its_outputs(samgrid: Samgrid, trick: str) -> None:
    read = "ls -R $SAMGRID_INPUT_FOLDER; find $SAMGRID_INPUT_FOLDER ! -type d"
    identity = samgrid.submit(two_steps(trick, read, count=1))
    assert samgrid("watch", identity).returncode == 0
    (_, _, _), (_, part, _) = steps(samgrid, identity)
    text = read_step(samgrid, identity, "read")[f"{part}-1.1.stdout"].decode()
    assert ("passwd" in text, "part" in text) == (False, False), text


def test_the_example_makes_events_and_merges_them(samgrid: Samgrid) -> None:
    pytest.importorskip("pythia8mc")
    example = Path(__file__).parents[2] / "examples" / "production-and-merge.rsl"
    done = samgrid("run", str(example), timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr
    identity = done.stdout.split()[2]
    merged = read_step(samgrid, identity, "merge")
    events = sum(content.count(b"<event>") for name, content in merged.items() if name.endswith(".lhe"))
    assert events == 2000
    inputs = b"".join(content for name, content in merged.items() if name.endswith(".inputs")).decode().splitlines()
    assert len(inputs) == len(set(inputs)) == 8
    assert "production: events: 2000" in done.stdout
    assert "merge: inputs: 8 files" in done.stdout


def test_cancel_ends_a_step_whose_handler_does_not_return(samgrid: Samgrid, tmp_path: Path) -> None:
    (tmp_path / "endless.py").write_text(
        f"""
import time
from pathlib import Path
from handlers.command import CommandAdapter

class Endless(CommandAdapter):
    jobType = "endless"
    def prepareWorkArea(self, workArea):
        Path({str(tmp_path)!r}, "entered").touch()
        time.sleep(3600)
"""
    )
    endless = Samgrid(samgrid.state, samgrid.scratch, {"SAMGRID_HANDLERS_MODULES": str(tmp_path / "endless.py")})
    steps = "(a (samgrid_type endless) (executable /bin/true))"
    identity = endless.submit(f"&(samgrid_type = structured)(steps = {steps})")
    wait_until((tmp_path / "entered").exists)
    assert endless("cancel", identity).returncode == 0
    done = endless("watch", identity, timeout=120)
    assert (done.returncode, "cancelled by" in done.stdout) == (1, True), done.stderr
