"""Workers and their server in a real account: what is killed is begun again, and nothing is done twice."""

import json
import os
import signal
from dataclasses import replace
from pathlib import Path

from batch_adapters.fork.adapter import FORK
from jobmanager.requests.time_limit import MOST_DEATHS
from tests.conftest import find_monitor, processes_of
from tests.integration.test_grid_jobs import counts, read_tar
from tests.samgrid import Samgrid
from tests.waiting import Gate, wait_until

HANDLER = """
import os, time
from handlers.command import CommandAdapter

class Waiting(CommandAdapter):
    jobType = "waiting"

    def prepareWorkArea(self, workArea):
        open("{folder}/begun-%d" % os.getpid(), "w").close()
        while not os.path.exists("{folder}/go"):
            time.sleep(0.01)
        super().prepareWorkArea(workArea)
"""
"""A handler that does not come back before the test says so, and leaves a mark of each worker that it runs in."""


def servers_of(samgrid: Samgrid) -> list[int]:
    """The server, and whatever it has forked."""
    return processes_of(samgrid.state, "samgrid-worker", "serve")


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_tasks_whose_server_or_monitor_was_killed_are_begun_again_done_once_and_can_be_cancelled(
    samgrid: Samgrid, tmp_path: Path
) -> None:
    handler = tmp_path / "waiting.py"
    handler.write_text(HANDLER.format(folder=tmp_path))
    samgrid = replace(samgrid, settings={"SAMGRID_HANDLERS_MODULES": str(handler)})
    script = f'echo run >>{tmp_path}/"ran-$SAMGRID_INDEX"; echo out'
    job_id = samgrid.submit(f"&(samgrid_type=waiting)(executable=/bin/sh)(arguments=-c '{script}')(count=3)")
    wait_until(lambda: len(list(tmp_path.glob("begun-*"))) == 1)
    (begun,) = (int(path.name.removeprefix("begun-")) for path in tmp_path.glob("begun-*"))
    os.kill(parent_of(begun), signal.SIGKILL)
    wait_until(lambda: begun not in servers_of(samgrid))
    wait_until(lambda: len(list(tmp_path.glob("begun-*"))) == 2)
    unwanted = samgrid.submit("&(samgrid_type=waiting)(executable=/bin/true)")
    wait_until(lambda: len(list(tmp_path.glob("begun-*"))) == 3)
    os.kill(find_monitor(samgrid.state), signal.SIGKILL)
    assert samgrid("cancel", unwanted).returncode == 0
    assert samgrid("watch", unwanted).stdout.splitlines()[-1].startswith(f"grid job {unwanted} cancelled: cancelled")
    (tmp_path / "go").touch()
    assert samgrid("watch", job_id).returncode == 0
    assert counts(samgrid, job_id) == {"done": 3}
    assert [(tmp_path / f"ran-{index}").read_text() for index in (1, 2, 3)] == ["run\n"] * 3
    assert len([name for name in read_tar(samgrid, job_id) if name.endswith(".stdout")]) == 3
    # The one server, once the last look at the batch system has ended.
    wait_until(lambda: len(servers_of(samgrid)) == 1)


def test_a_cancel_during_a_submission_adopts_its_array_and_begins_no_other(
    samgrid: Samgrid, tmp_path: Path, gate: Gate
) -> None:
    slow = tmp_path / "slow"
    slow.write_text(f'#!/bin/sh\necho run >>{tmp_path}/begun\n: <{gate.path}\nexec "$@"\n')
    slow.chmod(0o755)
    submit = json.dumps([str(slow), *FORK.submit.argv])
    # What is in doubt would keep the cancel for longer than the test waits.
    (tmp_path / "samgrid.toml").write_text(
        f"[batch.fork]\nmax_array = 2\nsettle_time = 3600\nsubmit = {{ argv = {submit} }}\n"
    )
    samgrid = replace(samgrid, settings={"SAMGRID_CONFIG": str(tmp_path / "samgrid.toml")})
    job_id = samgrid.submit("&(samgrid_type=command)(executable=/bin/sleep)(arguments=300)(count=6)")
    wait_until((tmp_path / "begun").exists)
    assert samgrid("cancel", job_id).returncode == 0
    # The monitor answers when it has seen to whoever connected before.
    assert samgrid("status", job_id).returncode == 0
    gate.open()
    assert samgrid("watch", job_id).stdout.splitlines()[-1].startswith(f"grid job {job_id} cancelled: cancelled")
    assert (tmp_path / "begun").read_text() == "run\n"
    assert "submitted: 2 local jobs, 1-2" in samgrid("log", job_id).stdout
    assert "4 never submitted" in samgrid("log", job_id).stdout


def wait_for_failure(samgrid: Samgrid, job_id: str) -> str:
    """What is told of a grid job that fails, when it has."""
    # A watch ends as well when something keeps a grid job from going on for a while.
    wait_until(lambda: samgrid("watch", job_id).returncode == 1)
    return samgrid("status", job_id).stdout


DEADLY = """
import os, signal
from handlers.command import CommandAdapter

class Deadly(CommandAdapter):
    jobType = "deadly"

    def prepareWorkArea(self, workArea):
        os.kill(os.getppid(), signal.SIGKILL)
        super().prepareWorkArea(workArea)
"""


def test_a_handler_that_kills_the_workers_server_is_given_up_and_the_others_go_on(
    samgrid: Samgrid, tmp_path: Path
) -> None:
    handler = tmp_path / "deadly.py"
    handler.write_text(DEADLY)
    samgrid = replace(samgrid, settings={"SAMGRID_HANDLERS_MODULES": str(handler)})
    job_id = samgrid.submit("&(samgrid_type=deadly)(executable=/bin/true)")
    died = samgrid.state / "jobs" / job_id / "handler-pack.died"
    wait_until(died.exists)
    assert "while it asked the handler" in samgrid("status", job_id).stdout
    healthy = samgrid.submit("&(samgrid_type=command)(executable=/bin/true)")
    # A watch gives up when its worker was ended too often.
    wait_until(lambda: samgrid("watch", healthy).returncode == 0)
    died.write_bytes(b"." * MOST_DEATHS)  # its pauses grow: so often would take minutes
    assert "handler deadly was asked" in wait_for_failure(samgrid, job_id)


def test_a_monitor_whose_job_database_loses_its_log_saves_what_it_held(samgrid: Samgrid, gate: Gate) -> None:
    job_id = samgrid.submit(f"&(samgrid_type=command)(executable=/bin/sh)(arguments=-c ': <{gate.path}')")
    wait_until(lambda: counts(samgrid, job_id) == {"active": 1})
    (samgrid.state / "jobs.db-wal").unlink()
    wait_until(lambda: "jobs.db-wal, and what it held is written back" in (samgrid.state / "monitor.log").read_text())
    # Its successor has the same process id.
    wait_until(lambda: samgrid("status", job_id).returncode == 0)
    gate.open()
    wait_until(lambda: samgrid("watch", job_id).returncode == 0)
    assert counts(samgrid, job_id) == {"done": 1}
