"""A real command is told of real grid jobs, by the monitor, also where that is killed; and the examples of its page."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import processes_of
from tests.samgrid import Samgrid
from tests.waiting import Gate, wait_until

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "notification.md").read_text()
REQUEST = """&(samgrid_type = command)(executable = /bin/sh)(arguments = -c "exit 3")(name = "Z to mumu")
 (notify = maria@example.org higgs-group)"""
MESSAGE = {
    "event": "failed",
    "key": "aaaaaaaa/failed",
    "site": "local",
    "notify": ["maria@example.org", "group"],
    "why": ["1 of 12,000 failed"],
    "grid_job": {"id": "aaaaaaaa", "name": "Z → μμ", "type": "command", "counts": {"done": 11_999, "failed": 1}},
}


@pytest.fixture
def site(samgrid: Samgrid, tmp_path: Path) -> Samgrid:
    """A site whose command keeps each message in a file, whole, and then waits while there is a file ``wait``."""
    hook = tmp_path / "hook"
    keep = "cat >part-$$; mv part-$$ told-$$; while [ -e wait ]; do sleep 0.1; done"
    hook.write_text(f'#!/bin/sh\ncd "{tmp_path}"; {keep}\n')
    hook.chmod(0o700)
    return replace(samgrid, settings={"SAMGRID_NOTIFICATION_COMMAND": str(hook)})


def read_told(folder: Path) -> list[Any]:
    return [json.loads(path.read_text()) for path in sorted(folder.glob("told-*"))]


def has_log(site: Samgrid, job_id: str, words: str) -> bool:
    return words in site("log", job_id).stdout


def test_the_end_of_a_grid_job_is_told_once_and_can_be_told_by_hand(site: Samgrid, tmp_path: Path) -> None:
    job_id = site.submit(REQUEST)
    wait_until(lambda: has_log(site, job_id, f"{job_id} notified of failed"))
    site("status")
    (message,) = read_told(tmp_path)
    assert (message["key"], message["notify"]) == (f"{job_id}/failed", ["maria@example.org", "higgs-group"])
    (status,) = json.loads(site("status", "--format", "json", job_id).stdout)
    assert message["grid_job"] == status
    done = site("notify", job_id)
    assert (done.returncode, done.stderr) == (0, "")
    assert read_told(tmp_path) == [message, message]
    failing = replace(site, settings={"SAMGRID_NOTIFICATION_COMMAND": "sh -c 'echo no mail >&2; exit 4'"})
    done = failing("notify", job_id)
    assert (done.returncode, done.stderr) == (1, "samgrid notify: sh ended with exit code 4: no mail\n")


def test_an_end_is_told_though_the_monitor_and_then_everything_is_killed(
    site: Samgrid, tmp_path: Path, gate: Gate
) -> None:
    (tmp_path / "wait").touch()
    job_id = site.submit(REQUEST.replace("exit 3", f": <{gate.path}"))
    wait_until(lambda: "1 active" in site("status").stdout)
    (pid,) = re.findall(r"monitor (\d+) starts", (site.state / "monitor.log").read_text())
    os.kill(int(pid), signal.SIGKILL)
    gate.open()
    # Another monitor, for which nobody has asked, has it told.
    wait_until(lambda: bool(read_told(tmp_path)))
    while processes := processes_of(site.state):
        for pid in processes:
            with suppress(ProcessLookupError):  # one may have died of another's death
                os.kill(pid, signal.SIGKILL)
    (tmp_path / "wait").unlink()
    site("status")  # it wakes the monitor, as there is something left to tell
    wait_until(lambda: has_log(site, job_id, f"{job_id} notified of done"))
    assert [message["key"] for message in read_told(tmp_path)] == [f"{job_id}/done"] * 2


def test_what_cannot_go_on_is_told(site: Samgrid, tmp_path: Path) -> None:
    odd = tmp_path / "samgrid.toml"
    odd.write_text('[batch.odd]\nbased_on = "fork"\nsubmit = { argv = ["no-such-program"] }\n')
    settings = {
        "SAMGRID_CONFIG": str(odd),
        "SAMGRID_SITE_BATCH_SYSTEM": "odd",
        "SAMGRID_NOTIFICATION_PATIENCE": "1",
    }
    silent = replace(site, settings={**site.settings, **settings})
    job_id = silent.submit(REQUEST)
    wait_until(lambda: bool(read_told(tmp_path)))
    (message,) = read_told(tmp_path)
    assert (message["event"], message["grid_job"]["id"]) == ("stalled", job_id)
    assert "no-such-program" in " ".join(message["why"])


def test_without_a_command_it_cannot_be_tried(samgrid: Samgrid) -> None:
    done = samgrid("notify", "aaaaaaaa")
    assert (done.returncode, done.stdout) == (1, "")
    assert "names no [notification] command" in done.stderr


# --- the page's examples


def test_the_example_mails_those_words_that_are_addresses(tmp_path: Path) -> None:
    program = tmp_path / "sendmail"
    program.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" >"{tmp_path}/words"\ncat >"{tmp_path}/mail"\n')
    program.chmod(0o700)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    command = [sys.executable, str(ROOT / "examples" / "notify-by-mail.py")]
    subprocess.run(command, input=json.dumps(MESSAGE), text=True, env=environment, check=True)
    assert (tmp_path / "words").read_text().split() == ["-i", "--", "maria@example.org"]
    mail = (tmp_path / "mail").read_bytes()
    assert b"To: maria@example.org\n" in mail
    assert b"Subject: failed: Z =?utf-8?" in mail
    (tmp_path / "mail").unlink()
    nobody = {**MESSAGE, "notify": ["group"]}
    subprocess.run(command, input=json.dumps(nobody), text=True, env=environment, check=True)
    assert not (tmp_path / "mail").exists()


@contextmanager
def serving(status: int) -> Iterator[tuple[str, list[bytes]]]:
    """A web server's address, and what was posted to it."""
    posted = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            posted.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/", posted
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize("status", [200, 500])
def test_the_webhook_of_the_page_hands_the_message_on_as_it_is(status: int, tmp_path: Path) -> None:
    block = PAGE.partition("## By a webhook")[2].partition("```toml\n")[2].partition("```")[0]
    command = tomllib.loads(block)["notification"]["command"]
    text = json.dumps(MESSAGE)
    with serving(status) as (address, posted):
        (tmp_path / "webhook").write_text(f'url = "{address}"\n')
        command[-1] = str(tmp_path / "webhook")
        try:
            done = subprocess.run(command, input=text, text=True, capture_output=True, check=False)
        except FileNotFoundError:
            pytest.skip("curl is not installed")
    assert posted == [text.encode()]
    assert (done.returncode == 0) == (status == 200)
    assert done.stdout == ""
