"""Resubmitting and recovering, from the command line to the tar, on the embedded batch system."""

import json
from pathlib import Path

from tests.integration.test_grid_jobs import read_tar
from tests.integration.test_structured import read_step, steps, two_steps
from tests.samgrid import Samgrid


def request(folder: Path, request_id: int) -> str:
    return (
        f"&(samgrid_type = generator)(events = 50)(events_per_local_job = 10)(request_id = {request_id})"
        f"(name = {request_id})(seed = 100)(marks = {folder})"
    )


def test_what_failed_runs_again_with_its_number_events_and_seed(shared_samgrid: Samgrid, tmp_path: Path) -> None:
    for name in ("fail2", "fail4"):
        (tmp_path / name).touch()
    first = shared_samgrid("run", "-", stdin=request(tmp_path, 13668)).stdout.split()[2]
    for name in ("fail2", "fail4"):
        (tmp_path / name).unlink()
    done = shared_samgrid("resubmit", first, "--failed")
    assert (done.returncode, done.stderr) == (0, "")
    second = done.stdout.strip()
    assert shared_samgrid("watch", second).returncode == 0
    texts = {name: text for name, text in read_tar(shared_samgrid, second).items() if name.endswith(".stdout")}
    assert sorted(texts.values()) == [b"2 of 5: 11 10 101\n", b"4 of 5: 31 10 103\n"]
    assert [len((tmp_path / str(index)).read_text().split()) for index in range(1, 6)] == [1, 2, 1, 2, 1]
    assert first in shared_samgrid("status", second).stdout
    again = shared_samgrid("resubmit", second, "--failed")
    assert (again.returncode, "no local job of" in again.stderr) == (1, True)


def test_recovery_by_request_id_submits_what_is_missing_once(shared_samgrid: Samgrid, tmp_path: Path) -> None:
    (tmp_path / "fail3").touch()
    first = shared_samgrid("run", "-", stdin=request(tmp_path, 13669)).stdout.split()[2]
    (tmp_path / "fail3").unlink()
    recovered = shared_samgrid("recover", "--request", "13669")
    assert (recovered.returncode, f"makes 1 local job of {first} again" in recovered.stdout) == (0, True)
    at_once = shared_samgrid("recover", "--request", "13669")
    assert at_once.returncode == 0
    assert at_once.stdout.startswith("request 13669: nothing is")
    second = recovered.stdout.split()[2]
    assert shared_samgrid("watch", second).returncode == 0
    last = shared_samgrid("recover", "--request", "13669")
    assert (last.returncode, last.stdout) == (0, "request 13669: nothing is missing\n")
    assert len(json.loads(shared_samgrid("status", "--name", "13669", "--format", "json").stdout)) == 2


def test_a_request_that_nobody_knows_is_one_clear_error(samgrid: Samgrid) -> None:
    done = samgrid("recover", "--request", "1\x1b[31m3")
    assert done.returncode == 1
    assert "no grid job belongs to request 1\ufffd[31m3" in done.stderr


def test_a_structured_grid_job_goes_on_behind_the_last_step_that_is_done(
    shared_samgrid: Samgrid, tmp_path: Path
) -> None:
    make = f"echo run >>{tmp_path}/make$SAMGRID_INDEX; echo $SAMGRID_INDEX >output/part"
    read = f"[ -e {tmp_path}/mended ] && cat $SAMGRID_INPUT_FOLDER/*/part"
    done = shared_samgrid("run", "-", stdin=two_steps(make, read))
    assert done.returncode == 1
    first = done.stdout.split()[2]
    (tmp_path / "mended").touch()
    second = shared_samgrid("resubmit", "--failed", first).stdout.strip()
    assert shared_samgrid("watch", second).returncode == 0
    assert [state for _, _, state in steps(shared_samgrid, second)] == ["done", "done"]
    assert steps(shared_samgrid, second)[0] == steps(shared_samgrid, first)[0]
    part = steps(shared_samgrid, second)[1][1]
    assert read_step(shared_samgrid, second, "read")[f"{part}-1.1.stdout"] == b"1\n2\n"
    assert (tmp_path / "make1").read_text() == "run\n"
    assert f"make/{steps(shared_samgrid, first)[0][1]}.xml" in read_tar(shared_samgrid, second)
