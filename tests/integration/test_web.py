"""``samgrid web`` as a process: where it listens, what it refuses, how it ends."""

import contextlib
import http.client
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from lxml import etree

from batch_adapters.states import State
from jobmanager.database.database import Database
from tests.conftest import end_processes_of
from tests.production import add_production
from tests.samgrid import Samgrid
from tests.serving import Serving, serving
from tests.waiting import SECONDS, wait_until

TOKEN = "a-token-of-24-characters"


def get(site: Serving, path: str, **headers: str) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection("127.0.0.1", site.port, timeout=SECONDS)
    connection.request("GET", path, headers=headers or {"Authorization": f"Bearer {site.token}"})
    return connection.getresponse()


@pytest.fixture(scope="module")
def finished(module_samgrid: Samgrid) -> tuple[Samgrid, str]:
    """An account whose one grid job is done, and for which nothing works any more."""
    job_id = module_samgrid.submit(
        '&(samgrid_type = command)(executable = /bin/echo)(arguments = "<b>hello</b>")(count = 3)'
    )
    assert module_samgrid("watch", job_id).returncode == 0
    end_processes_of(module_samgrid.state)
    return module_samgrid, job_id


@pytest.fixture(scope="module")
def site(finished: tuple[Samgrid, str]) -> Iterator[Serving]:
    """Its pages."""
    with serving(finished[0]) as site:
        yield site


def test_a_grid_job_is_shown_down_to_its_output(finished: tuple[Samgrid, str], site: Serving) -> None:
    samgrid, job_id = finished
    assert site.line == f"{site.address}/?token={site.token}\n"
    assert job_id in get(site, "/").read().decode()
    assert "3 done" in get(site, f"/jobs/{job_id}").read().decode()
    assert "the outputs are back" in get(site, f"/jobs/{job_id}/local/2").read().decode()
    assert get(site, f"/jobs/{job_id}/local/2/stdout").read() == b"<b>hello</b>\n"
    assert "packed for 3" in get(site, f"/jobs/{job_id}/log").read().decode()
    tar = get(site, f"/jobs/{job_id}/output.tar").read()
    assert tar == (samgrid.state / "jobs" / job_id / f"{job_id}.tar").read_bytes()


def test_questions_are_answered_within_limits(finished: tuple[Samgrid, str], site: Serving) -> None:
    _, job_id = finished
    page = get(site, f"/query?q={quote('//local-job/@exit-code')}&job={job_id[:4]}").read().decode()
    assert "3 items" in page
    assert "0\n0\n0\n" in page
    assert "XPath" in get(site, f"/query?q={quote('//local-job[')}").read().decode()
    assert "no grid job" in get(site, "/query?q=1&job=zzz").read().decode()


def read_documents(samgrid: Samgrid) -> bytes:
    database = Database(samgrid.state / "jobs.db")
    try:
        return etree.tostring(database.to_xml())
    finally:
        database.close()


def test_nothing_is_written(finished: tuple[Samgrid, str], site: Serving) -> None:
    samgrid, job_id = finished
    # Not the file's bytes: whoever closes it last brings in what the monitor has committed.
    before = read_documents(samgrid)
    for path in ("/", f"/jobs/{job_id}", f"/jobs/{job_id}/local/1", "/query?q=1"):
        assert get(site, path).status == 200
    assert read_documents(samgrid) == before


def test_a_driver_elsewhere_copies_while_a_local_job_s_page_is_open(samgrid: Samgrid) -> None:
    samgrid.state.mkdir(mode=0o700)
    database = Database(samgrid.state / "jobs.db")
    add_production(database, "k3f9zq2m", 100, time.time())
    number = next(line.index for line in database.local_jobs.lines("k3f9zq2m") if line.state is State.ACTIVE)
    database.close()
    results = samgrid.state / "jobs" / "k3f9zq2m" / "results"
    results.mkdir(parents=True)
    wish = results / f".k3f9zq2m.4711_{number}.live"
    with serving(samgrid) as site:
        page = f"/jobs/k3f9zq2m/local/{number}"
        assert "Nothing is to be seen yet" in get(site, page).read().decode()
        assert not wish.exists(), "who only fetches a page waits for nothing"
        events = get(site, f"{page}/events")
        wait_until(wish.exists)
        while events.readline() != b"event: change\n":
            pass
        wish.with_name(f"{wish.name}.stdout").write_text("0\nevent 17 of 250\n")
        while events.readline() != b"event: change\n":
            pass
        assert "event 17 of 250" in get(site, page).read().decode()
        events.close()
        wait_until(lambda: not list(results.iterdir()))


def test_where_nothing_was_submitted_nothing_is_made(samgrid: Samgrid) -> None:
    with serving(samgrid) as site:
        assert "There are no grid jobs yet" in get(site, "/").read().decode()
    assert not samgrid.state.exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
def test_it_ends_at_once_when_told_to_though_a_page_is_open(number: signal.Signals, samgrid: Samgrid) -> None:
    with serving(samgrid) as site:
        events = get(site, "/events")
        assert events.readline() == b"retry: 2000\n"
        site.process.send_signal(number)
        assert b"still here" not in events.read()
        assert site.process.wait(SECONDS) == 0


def test_a_token_opens_the_page(samgrid: Samgrid, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN)
    file.chmod(0o600)
    with serving(samgrid, "--token-file", str(file)) as site:
        assert TOKEN not in site.line
        assert get(site, "/", Authorization="none").status == 401
        assert get(site, "/", Authorization=f"Bearer {TOKEN}").status == 200
        cookie = get(site, f"/?token={TOKEN}", Authorization="none").getheader("Set-Cookie", "")
        assert get(site, "/", Cookie=str(cookie).partition(";")[0]).status == 200


def connect(site: Serving, uid: int) -> socket.socket:
    """A connection of another account's to the pages."""
    os.seteuid(uid)
    try:
        client = socket.socket()
    finally:
        os.seteuid(0)
    client.settimeout(SECONDS)
    client.connect(("127.0.0.1", site.port))
    return client


HEAD = b"GET /query?q=1 HTTP/1.1\r\nHost: localhost\r\n"


def test_nobody_is_let_in_without_the_token(site: Serving) -> None:
    with socket.create_connection(("127.0.0.1", site.port), timeout=SECONDS) as client:
        client.sendall(HEAD + b"\r\n")
        assert client.makefile("rb").read().startswith(b"HTTP/1.1 401")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another account for a moment")
def test_another_account_s_half_sent_requests_keep_nobody_out(samgrid: Samgrid) -> None:
    with serving(samgrid) as site, contextlib.ExitStack() as opened:
        clients = [opened.enter_context(connect(site, 65534)) for _ in range(300)]
        for client in clients:
            with contextlib.suppress(OSError):
                client.send(HEAD)
        assert get(site, "/").status == 200
        assert len([*Path(f"/proc/{site.process.pid}/fd").iterdir()]) < 200


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        pytest.param(["--listen", "192.0.2.1:1", "--token-file", "token"], "cannot listen on", id="not our address"),
        pytest.param(["--token-file", "open"], "chmod 600", id="others can read the token"),
        pytest.param(["--token-file", "missing"], "missing", id="no token file"),
    ],
)
def test_what_cannot_be_is_one_clear_error(
    options: list[str], complaint: str, samgrid: Samgrid, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, mode in (("token", 0o600), ("open", 0o644)):
        (tmp_path / name).write_text(TOKEN)
        (tmp_path / name).chmod(mode)
    check_error(samgrid("web", *options), complaint)


def test_a_busy_port_is_one_clear_error(samgrid: Samgrid) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        check_error(samgrid("web", "--listen", f"127.0.0.1:{port}"), f"127.0.0.1:{port}", "in use", "--listen")


def check_error(done: subprocess.CompletedProcess[str], *words: str) -> None:
    """A command failed as it should: one line on stderr with these words."""
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("samgrid web: ")
    assert all(word in line for word in words), line
