"""Structured grid jobs from the command line to the tar, on the embedded batch system."""

import json
import os
import re
import signal
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from lxml import etree

from tests.conftest import processes_of
from tests.extras import need
from tests.integration.test_grid_jobs import read_tar
from tests.samgrid import Samgrid
from tests.waiting import Gate, is_gone, wait_until


def two_steps(make: str, read: str = "cat $SAMGRID_INPUT_FOLDER/*/part | tee output/all", count: int = 2) -> str:
    """A request of two shell scripts, of which the second reads what the first left in its output."""
    return f"""&(samgrid_type = structured)(steps =
        (make (samgrid_type command) (executable /bin/sh) (arguments -c '{make}') (count {count}))
        (read (samgrid_type command) (executable /bin/sh) (arguments -c '{read}') (input_step make)))"""


def steps(samgrid: Samgrid, job_id: str) -> list[tuple[str, str, str]]:
    """Name, id and state of the steps that have begun."""
    (row,) = json.loads(samgrid("status", "--format", "json", job_id).stdout)
    return [(step["name"], step["grid_job"], step["state"]) for step in row["steps"] if step["grid_job"]]


def read_step(samgrid: Samgrid, job_id: str, name: str) -> dict[str, bytes]:
    """The files of a step in the tar of the whole, named without its own id."""
    part = {step: grid_job for step, grid_job, _ in steps(samgrid, job_id)}[name]
    files = read_tar(samgrid, job_id)
    return {
        path.removeprefix(f"{name}/").removeprefix(f"{part}."): content
        for path, content in files.items()
        if path.startswith(f"{name}/")
    }


def kill_processes_of(samgrid: Samgrid, word: str) -> None:
    """Kill those whose command line has the word, and return when they are gone."""
    for pid in processes_of(samgrid.state, word):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        wait_until(partial(is_gone, pid))


def test_the_second_step_reads_what_the_first_one_made(shared_samgrid: Samgrid) -> None:
    job_id = shared_samgrid.submit(two_steps("echo $SAMGRID_INDEX >output/part", count=12))
    done = shared_samgrid("watch", job_id)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert "step 2 of 2: read" in done.stdout
    (make, _, _), (read, part, state) = steps(shared_samgrid, job_id)
    assert (make, read, state) == ("make", "read", "done")
    numbers = "".join(f"{index}\n" for index in range(1, 13)).encode()
    assert read_step(shared_samgrid, job_id, "read")[f"{part}-1.1.output/all"] == numbers
    manifest = json.loads(read_tar(shared_samgrid, job_id)["manifest.json"])
    assert (manifest["missing"], manifest["refused"]) == ([], [])
    listing = shared_samgrid("status", job_id).stdout
    assert f"read ({part}) done" in listing
    assert f"(step of {job_id})" in shared_samgrid("status").stdout


def test_a_step_that_fails_is_the_last_one(shared_samgrid: Samgrid) -> None:
    done = shared_samgrid("run", "-", stdin=two_steps("echo no such card >&2; exit 3"))
    assert done.returncode == 1
    job_id = done.stdout.split()[2]
    ((name, part, state),) = steps(shared_samgrid, job_id)
    assert (name, state) == ("make", "failed")
    assert f"failed: step make ({part}): 2 of 2 local jobs failed, first number 1" in done.stdout
    assert "(no such card)" in done.stdout
    ends = {f"{part}.{part}-1.{index}.{what}" for index in (1, 2) for what in ("stdout", "stderr", "status")}
    of_step = {f"make/{name}" for name in (f"{part}.log", f"{part}.xml", "manifest.json", *ends)}
    assert read_tar(shared_samgrid, job_id).keys() == {
        f"{job_id}.log", f"{job_id}.xml", "manifest.json", *of_step
    }  # fmt: skip


def diamond(signal: str, background: str) -> str:
    """A request of four shell scripts, of which the second and third need the first only."""
    scripts = {"geometry": "echo 1 >output/part", "signal": signal, "background": background}
    scripts["compare"] = "cat $SAMGRID_INPUT_FOLDER/*/part"
    more = {"signal": "(after geometry)", "background": "(after)(input_step geometry)"}
    more["compare"] = "(after background)(input_step signal)"
    step = "({name} (samgrid_type command) (executable /bin/sh) (arguments -c '{script}') {more})"
    steps = [step.format(name=name, script=script, more=more.get(name, "")) for name, script in scripts.items()]
    return f"&(samgrid_type = structured)(steps = {' '.join(steps)})"


def test_steps_that_need_not_wait_run_side_by_side(shared_samgrid: Samgrid, tmp_path: Path, gate: Gate) -> None:
    meet = "touch {place}/{mine}; until [ -e {place}/{other} ]; do sleep 0.05; done; echo {mine} >output/part"
    signal, background = (
        meet.format(place=tmp_path, mine=mine, other=other) for mine, other in (("s", "b"), ("b", "s"))
    )
    # They end when somebody has seen both.
    until_seen = f"; : <{gate.path}"
    job_id = shared_samgrid.submit(diamond(signal + until_seen, background + until_seen))
    wait_until(lambda: [state for _, _, state in steps(shared_samgrid, job_id)] == ["done", "active", "active"])
    row = shared_samgrid("status").stdout
    assert "steps 2 and 3 of 4: signal" in " ".join(row.split()), row
    assert "compare, after background and signal" in shared_samgrid("status", job_id).stdout
    gate.open()
    done = shared_samgrid("watch", job_id)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert {"step 2 of 4: signal", "step 3 of 4: background"} <= set(re.findall(r"step \d of 4: \w+", done.stdout))
    found = steps(shared_samgrid, job_id)
    assert [(name, state) for name, _, state in found] == [
        (name, "done") for name in ("geometry", "signal", "background", "compare")
    ]
    assert read_step(shared_samgrid, job_id, "compare")[f"{found[3][1]}-1.1.stdout"] == b"s\n"


def test_the_others_run_to_their_ends_where_one_failed(shared_samgrid: Samgrid, gate: Gate) -> None:
    job_id = shared_samgrid.submit(diamond("exit 3", f": <{gate.path}; echo made >output/part"))
    wait_until(lambda: "failed" in [state for _, _, state in steps(shared_samgrid, job_id)])
    gate.open()
    done = shared_samgrid("watch", job_id)
    assert done.returncode == 1
    (_, (_, part, _), _) = found = steps(shared_samgrid, job_id)
    assert [(name, state) for name, _, state in found] == [
        ("geometry", "done"), ("signal", "failed"), ("background", "done")
    ]  # fmt: skip
    assert f"failed: step signal ({part}): 1 of 1 local jobs failed" in done.stdout
    assert f"{found[2][1]}-1.1.output/part" in read_step(shared_samgrid, job_id, "background")
    again = shared_samgrid("resubmit", job_id, "--failed")
    assert again.returncode == 0, again.stderr
    repetition = again.stdout.strip()
    assert shared_samgrid("watch", repetition).returncode == 1
    taken = {name: grid_job for name, grid_job, _ in steps(shared_samgrid, repetition)}
    assert {name: taken[name] for name in ("geometry", "background")} == {
        name: grid_job for name, grid_job, state in found if state == "done"
    }
    assert taken["signal"] != part


def test_a_step_whose_request_is_wrong_when_it_is_due_ends_the_whole(shared_samgrid: Samgrid, tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o700)
    request = f"""&(samgrid_type = structured)(steps =
        (make (samgrid_type command) (executable /bin/rm) (arguments {program}))
        (read (samgrid_type command) (executable {program})))"""
    done = shared_samgrid("run", "-", stdin=request)
    assert done.returncode == 1
    assert f"cannot be run: step read: executable '{program}' was not found" in done.stdout


def test_cancel_in_the_second_step_ends_it_and_keeps_the_first(shared_samgrid: Samgrid, tmp_path: Path) -> None:
    read = f"echo $$ >{tmp_path}/pid; exec sleep 600"
    job_id = shared_samgrid.submit(two_steps("echo $SAMGRID_INDEX >output/part", read))
    wait_until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text().endswith("\n"))
    assert shared_samgrid("cancel", job_id).returncode == 0
    done = shared_samgrid("watch", job_id)
    assert (done.returncode, "cancelled by" in done.stdout) == (1, True)
    wait_until(lambda: is_gone(int((tmp_path / "pid").read_text())))
    assert [state for _, _, state in steps(shared_samgrid, job_id)] == ["done", "failed"]
    assert {name.partition("/")[0] for name in read_tar(shared_samgrid, job_id) if "/" in name} == {"make", "read"}


def test_kill_9_of_everything_of_ours_between_the_steps_begins_each_once(
    samgrid: Samgrid, tmp_path: Path, gate: Gate
) -> None:
    make = f"echo run >>{tmp_path}/make$SAMGRID_INDEX; : <{gate.path}; echo 1 >output/part"
    job_id = samgrid.submit(two_steps(make, f"echo run >>{tmp_path}/read; cat $SAMGRID_INPUT_FOLDER/*/part"))
    moments: list[Callable[[], bool]] = [
        lambda: all((tmp_path / name).exists() for name in ("make1", "make2")),
        lambda: bool(list(samgrid.state.glob("jobs/*/*.tar"))),
        lambda: len(steps(samgrid, job_id)) == 2,
        (tmp_path / "read").exists,
    ]
    for has_come in moments:
        wait_until(has_come)
        for word in ("samgrid-monitor", "samgrid-worker"):
            kill_processes_of(samgrid, word)
        gate.open()
        # It wakes a new monitor.
        assert samgrid("status").returncode == 0
    assert samgrid("watch", job_id).returncode == 0
    assert [state for _, _, state in steps(samgrid, job_id)] == ["done", "done"]
    assert len(json.loads(samgrid("status", "--format", "json").stdout)) == 3
    for name in ("make1", "make2", "read"):
        assert (tmp_path / name).read_text() == "run\n", name


def test_a_step_cannot_lead_the_next_one_out_of_its_outputs(shared_samgrid: Samgrid) -> None:
    link, pipe, folder = "ln -s /etc/passwd output/part", "mkfifo output/part", "rmdir output; ln -s /etc output"
    tricks = f"case $SAMGRID_INDEX in 1) {link};; 2) {pipe};; 3) {folder};; 4) echo good >output/part;; esac"
    read = "ls -R $SAMGRID_INPUT_FOLDER; find $SAMGRID_INPUT_FOLDER ! -type d"
    job_id = shared_samgrid.submit(two_steps(tricks, read, count=4))
    assert shared_samgrid("watch", job_id).returncode == 0
    (_, _, _), (_, part, _) = steps(shared_samgrid, job_id)
    text = read_step(shared_samgrid, job_id, "read")[f"{part}-1.1.stdout"].decode()
    found = [line for line in text.splitlines() if "passwd" in line or line.endswith("/part")]
    assert (len(found), found[0].endswith("/000004/part")) == (1, True), text


def test_the_example_makes_events_and_merges_them(shared_samgrid: Samgrid) -> None:
    need("pythia8mc")
    example = (Path(__file__).parents[2] / "examples" / "production-and-merge.rsl").read_text()
    assert "(events 2000)" in example
    smaller = example.replace("(events 2000)", "(events 20) (events_per_local_job 10)")
    done = shared_samgrid("run", "-", stdin=smaller)
    assert done.returncode == 0, done.stdout + done.stderr
    job_id = done.stdout.split()[2]
    merged = read_step(shared_samgrid, job_id, "merge")
    (content,) = (content for name, content in merged.items() if name.endswith(".lhe"))
    root = etree.fromstring(content)
    assert [child.tag for child in root] == ["init", *["event"] * 20]
    numbers = [(event.text or "").split()[-1] for event in root.iter("event")]
    assert numbers == [str(number) for number in range(1, 21)]
    inputs = b"".join(content for name, content in merged.items() if name.endswith(".inputs")).decode().splitlines()
    assert len(inputs) == len(set(inputs)) == 2
    assert "production: events: 20" in done.stdout
    assert "merge: inputs: 2 files" in done.stdout
    assert re.search(r"^ +1 × +merge/output/merged-1\.lhe +[\d,]+ bytes$", done.stdout, re.MULTILINE), done.stdout
    assert re.search(r"^ +2 × +production/output/events\.lhe +[\d,]+ bytes$", done.stdout, re.MULTILINE), done.stdout


def test_cancel_ends_a_step_whose_handler_does_not_return(shared_samgrid: Samgrid, tmp_path: Path) -> None:
    steps = f"(a (samgrid_type endless) (executable /bin/true) (arguments {tmp_path}/entered))"
    job_id = shared_samgrid.submit(f"&(samgrid_type = structured)(steps = {steps})")
    wait_until((tmp_path / "entered").exists)
    assert shared_samgrid("cancel", job_id).returncode == 0
    done = shared_samgrid("watch", job_id)
    assert (done.returncode, "cancelled by" in done.stdout) == (1, True), done.stderr
