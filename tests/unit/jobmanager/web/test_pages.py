"""The status page's answers: what they show, and that nothing hostile gets through them."""

import itertools
import re
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest
from lxml import etree, html
from starlette.testclient import TestClient

from batch_adapters.states import State
from jobmanager.database.database import DatabaseError
from jobmanager.database.grid_job import GridJob
from jobmanager.site.account import Account
from jobmanager.views.logs import render_log
from jobmanager.web.app import make_app
from jobmanager.web.pages.overview import read_overview_page
from jobmanager.web.reading import TAIL, open_read_only
from sandbox.status import render_stem
from tests.production import add_hostile, add_production

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


@pytest.fixture
def client(account: Account) -> Iterator[TestClient]:
    """A browser that knows the token."""
    with TestClient(make_app(account, TOKEN), headers={"Authorization": f"Bearer {TOKEN}"}) as browser:
        yield browser


def add(account: Account, job_id: str = JOB, count: int = 120, **facts: str) -> None:
    add_production(account.database, job_id, count, time.time(), **facts)


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
        pytest.param("?type='%20OR%201=1%20--", set(), id="SQL"),
        pytest.param("?page=99", {"aaaaaaaa", "bbbbbbbb", "cccccccc"}, id="a page that is not there"),
        pytest.param("?page=-1", {"aaaaaaaa", "bbbbbbbb", "cccccccc"}, id="no page at all"),
    ],
)
def test_grid_jobs_can_be_chosen(question: str, shown: set[str], client: TestClient, account: Account) -> None:
    add(account, "aaaaaaaa", 1)
    add(account, "bbbbbbbb", 1, job_type="command")
    add(account, "cccccccc", 1, owner="curie")
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


# --- one grid job


def test_the_log_of_a_grid_job_is_that_of_the_command_line(client: TestClient, account: Account) -> None:
    add(account, count=3)
    account.database.grid_jobs.change(JOB, lambda job: job.end(State.DONE, time.time()))
    account.places.grid_job(JOB).mkdir(parents=True)
    account.places.log(JOB).write_text("1970-01-01T00:17:05.123Z INFO a\n")
    shown = client.get(f"/jobs/{JOB}/log").text.splitlines()
    assert shown == list(render_log(account, account.database, JOB, None))
    assert (shown[0], shown[-1].endswith("Z done")) == ("1970-01-01T00:17:05.123Z INFO a", True)


def test_a_page_of_many_grid_jobs_is_read_in_few_statements(account: Account) -> None:
    for number in range(50):
        add(account, f"aaaaaa{number:02}", 2)
    statements: list[str] = []
    with open_read_only(account) as database:
        database._store._connection.set_trace_callback(statements.append)
        page = read_overview_page(database, {})
    assert [sum(entry.row.counts.values()) for entry in page.entries] == [2] * 50
    assert len(statements) <= 5


def test_a_grid_job_shows_phases_cells_pictures_and_table(client: TestClient, account: Account) -> None:
    add(account)
    page = client.get(f"/jobs/{JOB}").text
    assert re.search(r"d0gstar.*of 30000 events", page, re.DOTALL)
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
    with account.database.transaction():
        account.database.local_jobs.put(JOB, [held])
    page = client.get(f"/jobs/{JOB}").text
    assert f"number {held.index}: JobHeld&lt;User&gt;: scontrol release 7" in page
    assert "May end about" not in page
    assert "1 blocked" in client.get("/").text
    assert "scontrol release 7" in client.get(f"/jobs/{JOB}/local/{held.index}").text


def test_a_structured_grid_job_shows_its_steps(client: TestClient, account: Account) -> None:
    add(account, "stepone0")
    whole = GridJob.new(JOB, "structured", "mokhov", "slurm", time.time())
    whole.put_request([], Path("/home"))
    whole.put_steps(["production", "merge"])
    whole.begin_step("production", "stepone0")
    with account.database.transaction():
        account.database.grid_jobs.put(whole)
    account.database.grid_jobs.change("stepone0", lambda job: job.put_parent(JOB, "production"))
    page = client.get(f"/jobs/{JOB}").text
    assert re.search(r"production.*stepone0.*active.*merge.*begins when", page, re.DOTALL)
    assert "data-cells" not in page
    assert f'<a class="id" href="/jobs/{JOB}"' in client.get("/jobs/stepone0").text
    assert "step 1 of 2: production" in client.get("/").text


def test_the_table_lists_one_kind_if_asked(client: TestClient, account: Account) -> None:
    add(account)
    numbers = {line.index for line in account.database.local_jobs.lines(JOB) if line.state is State.ACTIVE}
    page = client.get(f"/jobs/{JOB}?state=active").text
    assert {int(number) for number in re.findall(r"/local/(\d+)", page)} == numbers


def test_thousands_of_local_jobs_make_no_giant_page(client: TestClient, account: Account) -> None:
    add(account, count=3000)
    assert len(client.get(f"/jobs/{JOB}").content) < 70_000, "a hundred local jobs take 57 000 bytes"


@pytest.mark.parametrize(
    "path",
    [
        "/jobs/none0000", "/jobs/none0000/log", "/jobs/none0000/output.tar", "/jobs/none0000/events",
        "/jobs/none0000/local/1", f"/jobs/{JOB}/local/0", f"/jobs/{JOB}/local/4", f"/jobs/{JOB}/local/{10**30}",
        f"/jobs/{JOB}/local/x", f"/jobs/{JOB}/output.tar", f"/jobs/{JOB}/local/1/stdout",
        f"/jobs/{JOB}/local/1/nothing", "/static/none.css", "/static/..%2fapp.py", "/static/%2e%2e/app.py",
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
    assert text.startswith(f"[the last {TAIL} of {TAIL + 1000} bytes]\na")
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
