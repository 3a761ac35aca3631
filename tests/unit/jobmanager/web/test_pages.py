"""The status page's answers: what they show, and that nothing hostile gets through them."""

import functools
import itertools
import re
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest
from lxml import etree, html
from starlette.testclient import TestClient

from batch_adapters.states import Cause, State
from jobmanager.checks.metrics import render_metrics
from jobmanager.control.cancel_requests import request_cancel
from jobmanager.database.database import DatabaseError
from jobmanager.database.grid_job import CredentialEntry, GridJob
from jobmanager.database.local_job import LocalJob, Outcome
from jobmanager.site.account import Account
from jobmanager.views.logs import render_log
from jobmanager.web.app import make_app
from jobmanager.web.pages.overview import read_overview_page
from jobmanager.web.reading import TAIL, open_read_only
from jobmanager.web.rendering import Templates
from sandbox.status import render_stem
from tests.production import AGE, add_hostile, add_production
from tests.unit.grid_jobs import put, put_local_jobs

TOKEN = "a-token-of-24-characters"
JOB = "k3f9zq2m"
HOSTILE = [
    pytest.param("<script>alert(1)</script>", id="script"),
    pytest.param("\"'><img src=x onerror=alert(1)>", id="quotes"),
    pytest.param("{{ 7 * 7 }}{% raw %}", id="template"),
    pytest.param("a\nb\r\n\tc", id="newlines"),
    pytest.param("x" * 10_000, id="10 kB"),
    pytest.param("\udcff\udcfe", id="no UTF-8"),
    pytest.param("\x1b[31m\x07\x00\u202egnp.exe\u2066", id="terminal and direction"),
    pytest.param("https://evil.example/ javascript:alert(1)", id="addresses"),
]


_templates = functools.cache(Templates)


@pytest.fixture
def client(account: Account, forked_queries: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[TestClient]:
    """A browser that knows the token, and a site whose templates are compiled once for all tests."""
    monkeypatch.setattr("jobmanager.web.app.Templates", _templates)
    with TestClient(make_app(account, TOKEN), headers={"Authorization": f"Bearer {TOKEN}"}) as browser:
        yield browser


def add(account: Account, job_id: str = JOB, count: int = 120, **facts: str) -> None:
    add_production(account.database, job_id, count, time.time(), **facts)


# --- for Prometheus


def test_metrics_are_those_of_the_command_for_whoever_has_the_token(client: TestClient, account: Account) -> None:
    add(account)
    answer = client.get("/metrics")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    with open_read_only(account) as database:
        assert _without_disks(answer.text) == _without_disks(render_metrics(account, database, time.time()))
    assert 'samgrid_grid_jobs{account="' in answer.text
    assert client.get("/metrics", headers={"Authorization": "Bearer another"}).status_code == 401
    account.database.close()
    account.places.database.write_text("no database at all" * 100)
    assert client.get("/metrics").status_code == 503
    account.places.database.unlink()


def _without_disks(metrics: str) -> list[str]:
    """Others write to the same disks meanwhile."""
    return [line for line in metrics.splitlines() if not line.startswith("samgrid_disk_free_bytes")]


# --- the list


def test_an_account_without_grid_jobs_is_told_how_to_make_one(client: TestClient, account: Account) -> None:
    assert "samgrid submit FILE" in client.get("/").text
    assert not account.places.database.exists()


def test_the_newest_grid_job_comes_first_with_its_local_jobs_by_state(client: TestClient, account: Account) -> None:
    add_production(account.database, "older000", 40, time.time() - 5000)
    add(account)
    page = client.get("/").text
    assert page.index(JOB) < page.index("older000")
    (row,) = account.database.grid_jobs.overview(JOB)
    assert f"{row.counts['active']} active" in page
    assert f"{row.counts['pending']} pending" in page


def test_pages_of_a_host_that_is_not_the_active_one_are_read_from_a_copy(client: TestClient, account: Account) -> None:
    add(account, count=1)
    account.places.active_host.write_text("another -\n")
    add(account, "younger0", count=1)
    for address in ("/", "/metrics", f"/jobs/{JOB}"):
        assert client.get(address).status_code == 200
    assert "younger0" in client.get("/").text
    with open_read_only(account) as database:
        assert "another" in database.refusal


def test_pages_show_a_grid_jobs_name_as_text(client: TestClient, account: Account) -> None:
    add(account)
    account.database.grid_jobs.change(JOB, lambda job: setattr(job, "name", "Z <b>&"))
    for address in ("/", f"/jobs/{JOB}"):
        assert "Z &lt;b&gt;&amp;" in client.get(address).text


def test_what_was_cancelled_is_never_called_failed(client: TestClient, account: Account) -> None:
    add(account, count=1)

    def cancel(job: GridJob) -> None:
        job.cancel(time.time(), "enough")
        job.end(State.FAILED, time.time())

    account.database.grid_jobs.change(JOB, cancel)
    (listed,) = re.findall(r'<span class="state">.*?</svg>(.*?)</span>', client.get("/").text)
    (title,) = re.findall("<title>(.*?)</title>", client.get(f"/jobs/{JOB}").text)
    assert (listed, f"{JOB} cancelled" in title) == ("cancelled", True)


@pytest.mark.parametrize(
    ("question", "shown"),
    [
        pytest.param("", {"aaaaaaaa", "bbbbbbbb", "cccccccc"}, id="all"),
        pytest.param("?type=command", {"bbbbbbbb"}, id="type"),
        pytest.param("?owner=curie", {"cccccccc"}, id="owner"),
        pytest.param("?state=active", {"aaaaaaaa", "bbbbbbbb", "cccccccc"}, id="state"),
        pytest.param("?state=done", set(), id="no such state"),
        pytest.param("?type=pythia&owner=mokhov", {"aaaaaaaa"}, id="type and owner"),
        pytest.param("?text=BBBB", {"bbbbbbbb"}, id="text in an id"),
        pytest.param("?text=z%20to", {"aaaaaaaa"}, id="text in a name"),
        pytest.param("?text=Curie", {"cccccccc"}, id="text in an owner"),
        pytest.param("?text=pyth", {"aaaaaaaa", "cccccccc"}, id="text in a type"),
        pytest.param("?text=%25", set(), id="text that is no pattern"),
        pytest.param("?since=2001-09-10", {"aaaaaaaa", "cccccccc"}, id="first day"),
        pytest.param("?until=2001-09-09", {"bbbbbbbb"}, id="last day"),
        pytest.param("?since=2001-09-09&until=2001-09-09", {"bbbbbbbb"}, id="one day"),
        pytest.param("?until=2001-09-08", set(), id="the day before"),
        pytest.param("?since=yesterday", {"aaaaaaaa", "bbbbbbbb", "cccccccc"}, id="no day"),
        pytest.param("?type='%20OR%201=1%20--", set(), id="SQL"),
        pytest.param("?page=99", {"aaaaaaaa", "bbbbbbbb", "cccccccc"}, id="a page that is not there"),
        pytest.param("?page=-1", {"aaaaaaaa", "bbbbbbbb", "cccccccc"}, id="no page at all"),
    ],
)
def test_grid_jobs_can_be_chosen(question: str, shown: set[str], client: TestClient, account: Account) -> None:
    add(account, "aaaaaaaa", 1)
    add_production(account.database, "bbbbbbbb", 1, 1_000_000_000 + AGE, job_type="command")  # 2001-09-09
    add(account, "cccccccc", 1, owner="curie")
    account.database.grid_jobs.change("aaaaaaaa", lambda job: setattr(job, "name", "Z to mumu"))
    assert set(re.findall(r'href="/jobs/(\w+)"', client.get(f"/{question}").text)) == shown


def test_many_grid_jobs_are_on_several_pages(client: TestClient, account: Account) -> None:
    for number in range(60):
        add(account, f"k{number:07d}", 1, owner="a&b")
    first = client.get("/?owner=a%26b").text
    (following,) = re.findall(r'href="([^"]+)" rel="next"', first)
    second = client.get("/" + following.replace("&amp;", "&")).text
    listed = [set(re.findall(r'href="/jobs/(\w+)"', page)) for page in (first, second)]
    assert [len(page) for page in listed] == [50, 10]
    assert not listed[0] & listed[1]


def list_ids(page: str) -> list[str]:
    return re.findall(r'<th scope="row".*?href="/jobs/(\w+)"', page)


@pytest.mark.parametrize(
    ("column", "ascending", "descending"),
    [
        pytest.param("Id", "abc", "cba", id="id"),
        pytest.param("Name", "bca", "cba", id="name"),  # who has none comes last
        pytest.param("State", "abc", "cba", id="state"),
        pytest.param("Local jobs", "cba", "abc", id="local jobs"),
        pytest.param("Type", "bca", "acb", id="type"),
        pytest.param("Owner", "acb", "bca", id="owner"),
        pytest.param("Submitted", "bca", "acb", id="submitted"),
    ],
)
def test_a_click_on_a_heading_sorts_and_a_second_one_turns_that_round(
    column: str, ascending: str, descending: str, client: TestClient, account: Account
) -> None:
    now = time.time()
    add_production(account.database, "aaaaaaaa", 12, now, owner="curie")
    add_production(account.database, "bbbbbbbb", 9, now - 200, owner="meitner", job_type="command")
    add_production(account.database, "cccccccc", 7, now - 100, owner="franklin", job_type="dzero_merge")
    for job_id, name in (("bbbbbbbb", "alpha"), ("cccccccc", "Beta")):
        account.database.grid_jobs.change(job_id, lambda job, name=name: setattr(job, "name", name))  # type: ignore[misc]
    account.database.grid_jobs.change("cccccccc", lambda job: setattr(job, "state", State.PENDING))
    account.database.grid_jobs.change("bbbbbbbb", lambda job: setattr(job, "outcome", "cancelled"))
    page = client.get("/?since=2001-09-09&page=1").text
    for direction, expected in (("ascending", ascending), ("descending", descending)):
        (address,) = re.findall(rf'href="([^"]+)">{column}</a>', page)
        page = client.get("/" + address.replace("&amp;", "&")).text
        assert "".join(job_id[0] for job_id in list_ids(page)) == expected
        assert re.findall(rf'aria-sort="(\w+)"><a href="[^"]+">{column}<', page) == [direction]
        assert address.startswith("?since=2001-09-09&amp;sort=")


def test_totals_of_all_local_jobs_stand_above_the_list(client: TestClient, account: Account) -> None:
    now = time.time()
    ends = [("succeeded", 10)] * 3 + [("failed", 4000), ("succeeded", 80_000), ("succeeded", 90_000)]
    jobs = [LocalJob.new(index, "slurm", None) for index in range(1, 1300)]
    for job in jobs:
        job.state = State.PENDING
    for job, (outcome, age) in zip(jobs, ends, strict=False):
        job.state, job.outcome = State.DONE, Outcome(outcome)
        job.ended_time = int(now - age)
    jobs[-1].state = State.ACTIVE
    add(account, count=1)
    put_local_jobs(account.database, JOB, *jobs)
    (said,) = re.findall(r'<ul class="totals">(.*?)</ul>', client.get("/?text=nothing").text, re.DOTALL)
    assert re.findall(r"<b>([\d,]+)</b> (.*?)</li>", said) == [
        *(("1", "running"), ("1,292", "waiting"), ("4", "succeeded in 24 h"), ("1", "failed in 24 h")),
        ("3", "ended in the last hour"),
    ]


# --- one grid job


def add_whole(account: Account, *children: str) -> GridJob:
    """A structured grid job of two steps, of which the first ones have become grid jobs."""
    whole = GridJob.new(JOB, "structured", "mokhov", "slurm", time.time())
    whole.put_request([], Path("/home"))
    whole.put_steps(["production", "merge"])
    for name, child in zip(("production", "merge"), children, strict=False):
        whole.begin_step(name, child)
    put(account.database, whole)
    for name, child in zip(("production", "merge"), children, strict=False):
        account.database.grid_jobs.change(child, lambda job, name=name: job.put_parent(JOB, name))  # type: ignore[misc]
    return whole


def test_the_log_of_a_grid_job_is_that_of_the_command_line(client: TestClient, account: Account) -> None:
    add(account, count=3)
    account.database.grid_jobs.change(JOB, lambda job: job.end(State.DONE, time.time()))
    account.places.grid_job(JOB).mkdir(parents=True)
    account.places.log(JOB).write_text("1970-01-01T00:17:05.123Z INFO a\n")
    shown = client.get(f"/jobs/{JOB}/log").text.splitlines()
    assert shown == list(render_log(account, account.database, JOB, None))
    assert (shown[0], shown[-1].endswith("Z done")) == ("1970-01-01T00:17:05.123Z INFO a", True)


def test_a_page_of_many_grid_jobs_is_read_in_few_statements(account: Account) -> None:
    add_whole(account)
    for number in range(50):
        add(account, f"aaaaaa{number:02}", 2)
    statements: list[str] = []
    with open_read_only(account) as database:
        database._store._connection.set_trace_callback(statements.append)
        page = read_overview_page(database, {"sort": "jobs", "text": "m", "since": "2001-09-09"}, time.time())
    assert [sum(entry.row.counts.values()) for entry in page.entries] == [0, *[2] * 49]
    assert len(statements) <= 5
    assert not [sql for sql in statements if "document" in sql]


def test_a_grid_job_shows_phases_cells_pictures_and_table(client: TestClient, account: Account) -> None:
    add(account)
    page = client.get(f"/jobs/{JOB}").text
    assert re.search(r"d0gstar.*of 30,000 events", page, re.DOTALL)
    assert "May end about" in page
    (runs,) = re.findall(r'data-cells="(\w+)"', page)
    assert sum(map(int, re.findall(r"\d+", runs))) == 120
    for kind, number in account.database.local_jobs.count(JOB).items():
        assert kind is State.DONE or f"{number} {kind.word}" in page
    assert page.count('class="chart') == 2
    assert page.count(f'<a href="/jobs/{JOB}/local/') == 50


def test_a_grid_job_shows_what_blocks_it_and_no_end(client: TestClient, account: Account) -> None:
    add(account)
    held = next(job for job in account.database.local_jobs.each(JOB) if job.state in (State.PENDING, State.ACTIVE))
    held.wait_reason, held.helps = "JobHeld<User>", "scontrol release 7"
    put_local_jobs(account.database, JOB, held)
    page = client.get(f"/jobs/{JOB}").text
    assert f"number {held.index}: JobHeld&lt;User&gt;: scontrol release 7" in page
    assert "May end about" not in page
    assert "1 blocked" in client.get("/").text
    assert "scontrol release 7" in client.get(f"/jobs/{JOB}/local/{held.index}").text


def test_a_grid_job_that_goes_on_shows_when_its_credential_expires(client: TestClient, account: Account) -> None:
    add(account)
    proxy = CredentialEntry("x509_user_proxy", "/tmp/x509up_u1000", expires=time.time() - 60)
    account.database.grid_jobs.change(JOB, lambda job: job.put_credentials([proxy]))
    page = client.get(f"/jobs/{JOB}").text
    assert re.search(r"x509_user_proxy</dt><dd[^>]*>has expired at .*: renew /tmp/x509up_u1000</dd>", page)
    account.database.grid_jobs.change(JOB, lambda job: job.end(State.DONE, time.time()))
    assert "expired" not in client.get(f"/jobs/{JOB}").text


def test_a_structured_grid_job_shows_its_steps(client: TestClient, account: Account) -> None:
    add(account, "stepone0")
    add_whole(account, "stepone0")
    page = client.get(f"/jobs/{JOB}").text
    assert re.search(r"production.*stepone0.*active.*merge.*after production.*has not begun", page, re.DOTALL)
    assert "data-cells" not in page
    assert f'<a class="id" href="/jobs/{JOB}"' in client.get("/jobs/stepone0").text
    assert "step 1 of 2: production" in client.get("/").text


def test_each_step_that_has_begun_has_its_local_jobs_and_phases_as_bars(client: TestClient, account: Account) -> None:
    add(account, "stepone0", 2000)
    add(account, "steptwo0", 40)
    add_whole(account, "stepone0", "steptwo0")
    page = client.get(f"/jobs/{JOB}").text
    steps = html.fromstring(page).findall(".//ol/li")
    for step, job_id in zip(steps, ("stepone0", "steptwo0"), strict=True):
        (row,) = account.database.grid_jobs.overview(job_id)
        shares = step.find(".//svg[@class='share']")
        assert shares is not None
        assert len(shares) == 1 + len(row.counts)
        assert f"{row.counts['done']:,} done" in "".join(map(str, step.itertext()))
        assert len(step.findall(".//progress")) == 2
    ids = re.findall(r' id="([^"]+)"', page)
    assert len(ids) == len(set(ids))


def test_a_cancelled_grid_job_shows_its_cancelled_step_and_the_one_that_never_began(
    client: TestClient, account: Account
) -> None:
    add(account, "stepone0", 3)
    add_whole(account, "stepone0")
    for job_id in ("stepone0", JOB):
        request_cancel(account.database, job_id, "cancelled by mokhov")
        account.database.grid_jobs.change(job_id, lambda job: job.end(State.FAILED, time.time()))
    steps = re.search('<section id="steps".*?</section>', client.get(f"/jobs/{JOB}").text, re.DOTALL)
    assert steps
    assert re.search(r"production.*stepone0.*cancelled.*merge.*never began", steps[0], re.DOTALL)
    assert "failed" not in steps[0]
    assert "production (stepone0) cancelled" in client.get("/").text


def test_the_table_lists_one_kind_if_asked(client: TestClient, account: Account) -> None:
    add(account)
    numbers = {line.index for line in account.database.local_jobs.lines(JOB) if line.state is State.ACTIVE}
    page = client.get(f"/jobs/{JOB}?state=active").text
    assert {int(number) for number in re.findall(r"/local/(\d+)", page)} == numbers


def add_failures(account: Account) -> None:
    """Five local jobs: three fail, one of them again and again, one succeeds where others failed, one is pending."""
    ends: list[list[tuple[Cause | None, str | None]]] = [
        [(Cause.EXIT_CODE, "wn1"), (Cause.MEMORY_LIMIT, "wn2"), (Cause.EXIT_CODE, "wn1")],
        [(Cause.EXIT_CODE, "wn2")],
        [(Cause.NODE_LOST, None)],
        [(Cause.EXIT_CODE, "wn1"), (None, "wn1")],
        [],
    ]
    jobs = []
    for index, attempts in enumerate(ends, 1):
        job = LocalJob.new(index, "slurm", None)
        for number, (cause, host) in enumerate(attempts):
            if number:
                job.begin_attempt()
            job.state, job.cause, job.host = State.DONE, cause, host
            job.outcome = Outcome.FAILED if cause else Outcome.SUCCEEDED
            job.started_time = int(time.time()) - 60 + 10 * number
            job.ended_time = job.started_time + 5
        jobs.append(job)
    add(account, count=1)
    put_local_jobs(account.database, JOB, *jobs)


def list_failures(page: str, heading: str) -> list[list[str]]:
    (table,) = re.findall(rf"<caption>By {heading}.*?</caption>(.*?)</table>", page, re.DOTALL)
    rows = html.fromstring(f"<table>{table}</table>").iterfind(".//tbody/tr")
    return [["".join(map(str, cell.itertext())) for cell in row] for row in rows]


def test_failures_are_counted_by_cause_and_by_host(client: TestClient, account: Account) -> None:
    add_failures(account)
    page = client.get(f"/jobs/{JOB}").text
    assert list_failures(page, "cause") == [
        ["exit code", "2", "2"],
        ["node lost", "1", "0"],
        ["memory limit", "0", "1"],
    ]
    assert list_failures(page, "host") == [["wn1", "1", "2", "4"], ["wn2", "1", "1", "2"], ["not known", "1", "0", "1"]]
    attempts = re.findall(r'data-name="attempt">(\d+)<', page)
    assert attempts == ["3", "1", "1", "2", "1"]


def test_a_grid_job_without_failures_shows_no_tables_of_them(client: TestClient, account: Account) -> None:
    add(account, count=1)
    assert "By cause" not in client.get(f"/jobs/{JOB}").text


@pytest.mark.parametrize(
    ("words", "numbers", "said"),
    [
        pytest.param("exit code", [1, 2, 4], "failed in any attempt with exit code", id="cause"),
        pytest.param("memory limit", [1], "failed in any attempt with memory limit", id="of earlier attempts only"),
        pytest.param("wn2", [1, 2], "failed in any attempt on wn2", id="host"),
    ],
)
def test_a_cause_or_host_leads_to_its_local_jobs(
    words: str, numbers: list[int], said: str, client: TestClient, account: Account
) -> None:
    add_failures(account)
    (address,) = re.findall(rf'href="([^"]+)#table">{words}</a>', client.get(f"/jobs/{JOB}").text)
    page = client.get(f"/jobs/{JOB}{address}").text
    assert [int(number) for number in re.findall(r"/local/(\d+)", page)] == numbers
    assert f"Only those that {said}." in page


@pytest.mark.parametrize(
    ("asked", "numbers"),
    [
        pytest.param("-number", [5, 4, 3, 2, 1], id="number"),
        pytest.param("attempt", [2, 3, 5, 4, 1], id="attempt"),
        pytest.param("-host", [2, 1, 4, 3, 5], id="host, those without one last"),
        pytest.param("state", [4, 1, 2, 3, 5], id="state"),
        pytest.param("nothing", [1, 2, 3, 4, 5], id="no column"),
    ],
)
def test_the_table_of_local_jobs_is_sorted(
    asked: str, numbers: list[int], client: TestClient, account: Account
) -> None:
    add_failures(account)
    page = client.get(f"/jobs/{JOB}?sort={asked}").text
    assert [int(number) for number in re.findall(r"/local/(\d+)", page)] == numbers


def test_thousands_of_local_jobs_make_no_giant_page(client: TestClient, account: Account) -> None:
    add(account, count=3000)
    assert len(client.get(f"/jobs/{JOB}").content) < 70_000, "a hundred local jobs take 57 000 bytes"


@pytest.mark.parametrize(
    "path",
    [
        "/jobs/none0000", "/jobs/none0000/log", "/jobs/none0000/output.tar", "/jobs/none0000/events",
        "/jobs/none0000/local/1/events",
        "/jobs/none0000/local/1", f"/jobs/{JOB}/local/0", f"/jobs/{JOB}/local/4", f"/jobs/{JOB}/local/{10**30}",
        f"/jobs/{JOB}/local/x", f"/jobs/{JOB}/output.tar", f"/jobs/{JOB}/local/1/stdout",
        f"/jobs/{JOB}/local/1/nothing", "/static/none.css", "/static/..%2fapp.py", "/static/%2e%2e/app.py",
        "/static/a%00b", f"/static/{'x' * 500}", "/static/",
        "/jobs/..%2f..%2fetc", "/nothing",
    ],
)  # fmt: skip
def test_what_is_not_there_is_one_clear_page(path: str, client: TestClient, account: Account) -> None:
    add(account, count=3)
    answer = client.get(path)
    assert answer.status_code == 404
    assert "<h1>There is no" in answer.text


def test_nothing_can_be_sent(client: TestClient) -> None:
    assert {client.request(method, "/").status_code for method in ("POST", "PUT", "DELETE", "PATCH")} == {405}


def test_whoever_only_looks_cannot_write(account: Account) -> None:
    add(account, count=3)
    with open_read_only(account) as database, pytest.raises(DatabaseError, match="readonly"):
        database.grid_jobs.change(JOB, lambda job: job.put_problem("none", 1000))


def test_a_damaged_database_is_one_clear_page(client: TestClient, account: Account) -> None:
    account.places.database.write_bytes(b"no database " * 1000)
    answer = client.get("/")
    assert answer.status_code == 503
    assert "jobs.db" in answer.text
    account.places.database.unlink()


# --- one local job and its files


def bring_back(account: Account, index: int, what: str, content: bytes) -> Path:
    """A file of a local job, as its driver leaves it."""
    results = account.places.results(JOB)
    results.mkdir(parents=True, exist_ok=True)
    path = results / f"{render_stem(JOB, f'4711_{index}')}.{what}"
    path.write_bytes(content)
    return path


def test_a_local_job_shows_evidence_verdict_and_files(client: TestClient, account: Account) -> None:
    add(account)
    bring_back(account, 2, "stdout", b"hello")
    page = client.get(f"/jobs/{JOB}/local/2").text
    assert "running on node017" in page
    assert "4711_2" in page
    assert re.search(rf'href="/jobs/{JOB}/local/2/stdout".*5 bytes', page)
    assert f"/jobs/{JOB}/local/2/stderr" not in page


def test_a_local_job_s_page_has_what_it_printed_harmlessly(client: TestClient, account: Account) -> None:
    add(account, count=3)
    bring_back(account, 2, "stdout", b"<script>\xff\x1b[2J</script>\n" * 9000)
    bring_back(account, 2, "stderr", b"")
    answer = client.get(f"/jobs/{JOB}/local/2")
    check_harmless(answer.text)
    (printed,) = html.fromstring(answer.text).findall(".//pre")
    assert set(str(printed.text).splitlines()) == {"<script>\ufffd\ufffd[2J</script>"}
    assert len(str(printed.text)) < 9000
    assert "the end of it, after" in answer.text
    assert client.get(f"/jobs/{JOB}/local/2", headers={"Authorization": "none"}).status_code == 401
    assert client.get(f"/jobs/{JOB}/local/2/events", headers={"Authorization": "none"}).status_code == 401


def test_text_is_text_whatever_is_in_it(client: TestClient, account: Account) -> None:
    add(account, count=3)
    bring_back(account, 2, "stderr", b"<script>\xff</script>")
    answer = client.get(f"/jobs/{JOB}/local/2/stderr")
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.text == "<script>\ufffd</script>"


def test_of_a_huge_text_the_end_is_shown(client: TestClient, account: Account) -> None:
    add(account, count=3)
    bring_back(account, 2, "stdout", b"a" * TAIL + b"b" * 1000)
    text = client.get(f"/jobs/{JOB}/local/2/stdout").text
    assert text.startswith(f"[the last {TAIL:,} of {TAIL + 1000:,} bytes]\na")
    assert text.endswith("b" * 1000)
    assert len(text) < TAIL + 100


def test_links_are_not_followed(client: TestClient, account: Account, tmp_path: Path) -> None:
    add(account, count=3)
    secret = tmp_path / "secret"
    secret.write_text("secret")
    file = bring_back(account, 2, "stdout", b"")
    file.unlink()
    file.symlink_to(secret)
    account.places.log(JOB).symlink_to(secret)
    account.places.output(JOB).symlink_to(secret)
    for path in (f"/jobs/{JOB}/local/2/stdout", f"/jobs/{JOB}/log", f"/jobs/{JOB}/output.tar"):
        answer = client.get(path)
        assert answer.status_code == 404
        assert "secret" not in answer.text


def test_the_output_tar_is_sent_byte_for_byte(client: TestClient, account: Account) -> None:
    add(account, count=3)
    account.places.grid_job(JOB).mkdir(parents=True)
    content = bytes(range(256)) * 5000
    account.places.output(JOB).write_bytes(content)
    answer = client.get(f"/jobs/{JOB}/output.tar")
    assert answer.content == content
    assert answer.headers["content-disposition"] == f'attachment; filename="{JOB}.tar"'
    assert answer.headers["content-length"] == str(len(content))


# --- hostile texts


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_texts_are_shown_harmlessly(text: str, client: TestClient, account: Account) -> None:
    add_hostile(account.database, JOB, text)
    for path in ("/", f"/jobs/{JOB}", f"/jobs/{JOB}/local/3", f"/query?job={JOB}"):
        answer = client.get(path)
        assert (path, answer.status_code) == (path, 200)
        check_harmless(answer.text)
        assert "x" * 2100 not in answer.text


def test_texts_are_no_templates(client: TestClient, account: Account) -> None:
    add_hostile(account.database, JOB, "{{ 6543 * 2 }}")
    page = client.get(f"/jobs/{JOB}").text
    assert "{{ 6543 * 2 }}" in page
    assert "13086" not in page


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_questions_are_shown_harmlessly(text: str, client: TestClient) -> None:
    for name, path in itertools.product(("q", "job", "owner", "state", "page", "language"), ("/", "/query")):
        answer = client.get(f"{path}?{urlencode({name: text}, errors='surrogateescape')}")
        assert (name, path, answer.status_code) == (name, path, 200)
        check_harmless(answer.text)


def check_harmless(page: str) -> None:
    """Only our own scripts, no attribute or markup of theirs, nothing invisible, nothing endless."""
    elements = list(html.document_fromstring(page).iter(etree.Element))
    scripts = {element.get("src") for element in elements if element.tag == "script"}
    assert scripts <= {"/static/live.js", "/static/cells.js"}
    assert not {element.tag for element in elements} & {"img", "iframe", "object", "style"}
    assert not [
        str(name) for element in elements for name in element.attrib if str(name).startswith("on") or name == "style"
    ]
    assert all(str(element.get("href", "/")).startswith(("/", "?", "#")) for element in elements)
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u202e\u2066]", page)


# --- questions


def test_the_examples_are_questions_of_the_documentation(client: TestClient) -> None:
    documented = " ".join((Path(__file__).parents[4] / "docs" / "questions.md").read_text().split())
    examples = html.fromstring(client.get("/query").text).findall(".//li/code")
    assert len(examples) == 10
    assert [text for text in (str(one.text) for one in examples) if f"'{text}'" not in documented] == []


def test_an_answer_with_attributes_is_a_table(client: TestClient, account: Account) -> None:
    add_failures(account)
    question = urlencode({"q": "//local-job[@host='wn1' and @cause]"})
    page = html.fromstring(client.get(f"/query?{question}").text)
    heading = [str(cell.text) for cell in page.findall(".//thead//th")]
    rows = [["".join(map(str, cell.itertext())) for cell in row] for row in page.findall(".//tbody/tr")]
    assert [(row[heading.index("host")], row[heading.index("cause")]) for row in rows] == [("wn1", "exit-code")]


def test_a_value_is_no_table(client: TestClient, account: Account) -> None:
    add(account, count=3)
    page = html.fromstring(client.get("/query?q=count(//local-job)").text)
    assert (page.find(".//table"), page.findtext(".//pre")) == (None, "3\n")
