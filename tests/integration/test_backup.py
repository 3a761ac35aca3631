"""An account is saved while it works, and made anew of that: somewhere else, or where it was."""

import json
import os
import shutil
import tarfile
from dataclasses import replace
from pathlib import Path

from tests.conftest import end_processes_of
from tests.samgrid import Samgrid
from tests.waiting import Gate, wait_until

WAITING = "echo begun >output/begun; touch {0}/begun-$SAMGRID_INDEX; : <{0}/go"


def submit_waiting(samgrid: Samgrid, marks: Path) -> str:
    job_id = samgrid.submit(f"&(samgrid_type=command)(executable=/bin/sh)(arguments=-c '{WAITING.format(marks)}')")
    wait_until(lambda: (marks / "begun-1").exists())
    return job_id


def states(samgrid: Samgrid) -> dict[str, str]:
    return {job["id"]: job["state"] for job in json.loads(samgrid("status", "--format", "json").stdout)}


def save(samgrid: Samgrid, file: Path) -> None:
    done = samgrid("backup", str(file))
    assert done.returncode == 0, done.stderr
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_backup_taken_while_local_jobs_end_restored_elsewhere_is_what_had_ended_and_the_whole_can_be_moved(
    samgrid: Samgrid, tmp_path: Path, gate: Gate
) -> None:
    hello = "&(samgrid_type=command)(executable=/bin/sh)(count=3)(arguments=-c 'echo $SAMGRID_INDEX >output/number')"
    ended = samgrid.submit(hello)
    assert samgrid("watch", ended).returncode == 0
    running = submit_waiting(samgrid, tmp_path)
    others = [samgrid.submit(hello) for _ in range(2)]
    for number in range(3):
        wait_until(lambda number=number: [*states(samgrid).values()].count("done") > number)  # type: ignore[misc]
        save(samgrid, tmp_path / f"{number}.tar")
    for number in range(3):
        other = replace(samgrid, state=tmp_path / f"elsewhere-{number}")
        file = tmp_path / f"{number}.tar"
        refused = other("restore", str(file))
        assert (refused.returncode, "--leave-out" in refused.stderr) == (1, True), refused.stderr
        refused = other("restore", "--follow", str(file))
        assert (refused.returncode, "in the same place" in refused.stderr) == (1, True), refused.stderr
        assert not other.state.exists()
        told = other("restore", "--leave-out", str(file))
        assert told.returncode == 0, told.stderr
        assert f"left out: {running}\n" in told.stdout
        assert sorted(os.listdir(other.state)) == ["jobs", "jobs.db"]  # noqa: PTH208 names
        found = states(other)
        assert {ended} <= found.keys() <= {ended, *others}
        assert set(found.values()) == {"done"}
        for job_id in found:
            assert other("output", job_id).stdout == samgrid("output", job_id).stdout.replace(
                str(samgrid.state), str(other.state)
            )
            assert read_outputs(other, job_id) == [b"1\n", b"2\n", b"3\n"]
            assert (
                other("query", "--job", job_id, "//grid-job").stdout
                == samgrid("query", "--job", job_id, "//grid-job").stdout
            )
        assert "FAULT" not in other("doctor").stdout
        end_processes_of(other.state)
    gate.open()
    assert samgrid("watch", running).returncode == 0
    check_that_it_can_be_moved(samgrid, ended)


def check_that_it_can_be_moved(samgrid: Samgrid, job_id: str) -> None:
    """A state folder whose grid jobs have ended, that one among them, works elsewhere as well."""
    end_processes_of(samgrid.state)
    moved = replace(samgrid, state=samgrid.state.with_name("moved"))
    samgrid.state.rename(moved.state)
    assert f"{moved.state}/jobs/{job_id}/{job_id}.tar" in moved("output", job_id).stdout
    assert read_outputs(moved, job_id) == [b"1\n", b"2\n", b"3\n"]
    again = moved("resubmit", job_id)
    assert again.returncode == 0, again.stderr
    assert moved("watch", again.stdout.split()[-1]).returncode == 0
    assert moved("remove", job_id).returncode == 0
    end_processes_of(moved.state)
    assert not samgrid.state.exists()


def test_a_state_folder_that_was_lost_is_followed_and_nothing_runs_twice(
    samgrid: Samgrid, tmp_path: Path, gate: Gate
) -> None:
    samgrid = replace(samgrid, settings={"SAMGRID_MONITOR_RECONCILE_INTERVAL": "1", "SAMGRID_FORK_SLOTS": "1"})
    script = f"echo run >>{tmp_path}/runs-$SAMGRID_INDEX; " + WAITING.format(tmp_path)
    words = "(samgrid_type=command)(executable=/bin/sh)(count=2)(retries=3)"
    job_id = samgrid.submit(f"&{words}(arguments=-c '{script}')")
    wait_until(lambda: (tmp_path / "begun-1").exists())
    file = tmp_path / "backup.tar"
    save(samgrid, file)
    end_processes_of(samgrid.state)
    shutil.rmtree(samgrid.state)
    done = samgrid("restore", "--follow", str(file))
    assert (done.returncode, done.stdout) == (0, f"followed: {job_id}\nrestored: {samgrid.state}\n"), done.stderr
    gate.open()
    assert samgrid("watch", job_id).returncode == 1
    assert states(samgrid) == {job_id: "failed"}
    assert (tmp_path / "runs-1").read_text() == "run\n"
    assert not (tmp_path / "runs-2").exists()
    again = samgrid("resubmit", job_id)
    assert again.returncode == 0, again.stderr
    assert samgrid("watch", again.stdout.split()[-1]).returncode == 0


def read_outputs(samgrid: Samgrid, job_id: str) -> list[bytes]:
    with tarfile.open(samgrid.state / "jobs" / job_id / f"{job_id}.tar") as tar:
        files = [tar.extractfile(member) for member in tar if member.name.endswith("output/number")]
        return sorted(file.read() for file in files if file)
