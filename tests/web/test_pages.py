"""The status page as a reader has it: in a real browser, while real grid jobs run."""

import re
import time
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from batch_adapters.states import State
from jobmanager.database.database import Database
from tests.production import add_hostile, add_production
from tests.samgrid import Samgrid
from tests.serving import Serving, serving

JOB = "k3f9zq2m"
PAGES = ["/", f"/jobs/{JOB}", f"/jobs/{JOB}/local/3", f"/query?q=//local-job&job={JOB}", "/query"]
HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>\n{{7*7}}\x1b[31m\u202e" + "x" * 10_000


@pytest.fixture
def database(samgrid: Samgrid, site: Serving) -> Iterator[Database]:
    """The account's job database."""
    database = Database(samgrid.state / "jobs.db")
    yield database
    database.close()


def add_printed(samgrid: Samgrid) -> None:
    """What the third local job has printed."""
    results = samgrid.state / "jobs" / JOB / "results"
    results.mkdir(parents=True)
    for local_id in ("4711_3", "bad"):
        (results / f"{JOB}.{local_id}.stdout").write_text("a line\n" * 2000)


def count_marks(page: Page) -> int:
    """How many cells are drawn, once some are."""
    expect(page.locator("#cells path")).not_to_have_count(0)
    paths = page.locator("#cells path").all()
    return sum(len(re.findall("M", str(path.get_attribute("d")))) for path in paths)


def test_a_reader_walks_from_the_list_to_a_local_job_and_back(page: Page, site: Serving, database: Database) -> None:
    add_production(database, JOB, 120, time.time())
    page.goto(site.address)
    page.get_by_role("link", name=JOB).click()
    expect(page.get_by_role("heading", name=JOB)).to_be_visible()
    assert count_marks(page) == 120
    page.locator("#table").get_by_role("row").nth(7).get_by_role("link").click()
    expect(page.get_by_role("heading", name="Local job 7")).to_be_visible()
    expect(page.get_by_text("running on node017").first).to_be_visible()
    page.get_by_role("link", name=JOB).click()
    page.get_by_role("navigation").get_by_role("link", name="Grid jobs").click()
    expect(page.get_by_text("1 grid job, the newest first")).to_be_visible()


def test_a_running_grid_job_changes_before_the_reader_s_eyes(page: Page, site: Serving, samgrid: Samgrid) -> None:
    gate = samgrid.scratch / "gate"
    wait = f"while [ ! -e {gate} ]; do sleep 0.1; done; samgrid-report phase waiting 1/1; echo over"
    job_id = samgrid.submit(f"""&(samgrid_type = command)(executable = /bin/sh)(count = 4)(arguments = -c "{wait}")""")
    # The page is longer than that, whatever is on it.
    page.set_viewport_size({"width": 1200, "height": 400})
    page.goto(f"{site.address}/jobs/{job_id}")
    expect(page.locator("#cells")).to_have_attribute("data-cells", re.compile("a"))
    page.evaluate("window.isTheSame = true; scrollTo(0, 150)")
    page.get_by_role("link", name="Log").focus()
    gate.touch()
    expect(page.locator("#cells")).to_have_attribute("data-cells", "d4")
    expect(page.locator("#head .state")).to_have_text("done")
    expect(page.get_by_role("link", name="Output tar")).to_be_visible()
    expect(page).to_have_title(re.compile(f"{job_id} done"))
    expect(page.get_by_role("progressbar", name="waiting")).to_have_text("4 of 4")
    assert count_marks(page) == 4
    assert page.evaluate("[window.isTheSame, document.activeElement.textContent, scrollY]") == [True, "Log", 150]


def test_what_a_local_job_prints_comes_before_the_reader_s_eyes(page: Page, site: Serving, samgrid: Samgrid) -> None:
    gates = [samgrid.scratch / f"gate{number}" for number in range(3)]
    lines = "; ".join(f"while [ ! -e {gate} ]; do sleep 0.1; done; seq -f 'line %g' 200" for gate in gates)
    job_id = samgrid.submit(
        f"""&(samgrid_type = command)(executable = /bin/sh)(arguments = -c "echo begun; {lines}")"""
    )
    page.goto(f"{site.address}/jobs/{job_id}")
    page.get_by_role("row").nth(1).get_by_role("link").click()
    printed = page.get_by_role("region", name="Standard output")
    expect(printed).to_have_text("begun\n")
    page.evaluate("window.isTheSame = true")
    is_at_end = "one => one.scrollHeight - one.scrollTop - one.clientHeight < 5"
    gates[0].touch()
    expect(printed).to_contain_text("line 200")
    assert printed.evaluate(is_at_end), "the end is in sight"
    printed.evaluate("one => one.scrollTop = 50")
    gates[1].touch()
    expect(printed).to_contain_text(re.compile("line 200.*line 200", re.DOTALL))
    assert printed.evaluate("one => one.scrollTop") == 50, "unless the reader has left it"
    gates[2].touch()
    expect(page.get_by_role("heading", name="What it printed")).to_be_visible()
    expect(printed).to_contain_text(re.compile("(line 200.*){3}", re.DOTALL))
    assert page.evaluate("window.isTheSame")


def test_new_grid_jobs_come_into_the_list_and_the_focus_stays(page: Page, site: Serving, database: Database) -> None:
    add_production(database, "aaaaaaaa", 5, time.time() - 1000)
    page.goto(site.address)
    page.get_by_role("link", name="aaaaaaaa").focus()
    add_production(database, "bbbbbbbb", 5, time.time())
    expect(page.get_by_role("link", name="bbbbbbbb")).to_be_visible()
    assert page.evaluate("document.activeElement.textContent") == "aaaaaaaa"
    assert [row.split()[0] for row in page.get_by_role("row").all_inner_texts()[1:]] == ["bbbbbbbb", "aaaaaaaa"]


def test_a_lost_connection_is_said_and_found_again(page: Page, samgrid: Samgrid) -> None:
    samgrid.state.mkdir(mode=0o700)
    note = page.get_by_text("The connection is lost")
    token = samgrid.scratch / "token"
    token.write_text("a-token-of-24-characters")
    token.chmod(0o600)
    with serving(samgrid, "--token-file", str(token)) as first:
        page.goto(f"{first.address}/?token={token.read_text()}")
        expect(note).to_be_hidden()
    expect(note).to_be_visible()
    with serving(samgrid, "--token-file", str(token), port=first.port):
        expect(note).to_be_hidden()


BROKEN_WORDS = """() => [...document.querySelectorAll(".scrolls td")].filter(cell => {
  const words = document.createRange();
  words.selectNodeContents(cell);
  return !cell.textContent.includes(" ") && words.getBoundingClientRect().height > 30;
}).map(cell => cell.textContent)"""


def test_a_query_is_asked_and_answered(page: Page, site: Serving, database: Database) -> None:
    add_production(database, JOB, 30, time.time())
    page.goto(f"{site.address}/query")
    page.get_by_label("Expression").fill("count(//local-job[@state='done'])")
    page.get_by_role("button", name="Ask").click()
    done = sum(line.state is State.DONE for line in database.local_jobs.lines(JOB))
    expect(page.locator("pre")).to_have_text(f"{done}\n")
    page.set_viewport_size({"width": 390, "height": 844})
    page.get_by_label("Expression").fill("//local-job")
    page.get_by_role("button", name="Ask").click()
    expect(page.locator(".scrolls td")).not_to_have_count(0)
    assert page.evaluate(BROKEN_WORDS) == []
    page.get_by_label("Expression").fill("//local-job[")
    page.get_by_role("button", name="Ask").click()
    expect(page.get_by_role("heading", name="For example")).to_be_visible()
    expect(page.get_by_role("alert")).to_contain_text("//local-job[")


@pytest.mark.parametrize("path", PAGES)
def test_hostile_texts_do_nothing(path: str, page: Page, site: Serving, database: Database) -> None:
    add_hostile(database, JOB, HOSTILE)
    page.goto(site.address + path)
    page.wait_for_timeout(200)
    assert page.locator("img, main script").count() == 0
    assert page.evaluate("document.documentElement.scrollWidth") == 1200


def test_the_keyboard_reaches_everything(page: Page, site: Serving, database: Database) -> None:
    add_production(database, JOB, 120, time.time())
    page.goto(f"{site.address}/jobs/{JOB}")
    page.keyboard.press("Tab")
    expect(page.get_by_text("Skip to the content")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.id") == "cells":
            break
    expect(page.locator("#cells")).to_be_focused()
    for key in ("ArrowRight", "ArrowRight", "ArrowDown", "ArrowUp", "ArrowLeft"):
        page.keyboard.press(key)
    expect(page.get_by_text("Local job 2: done")).to_be_visible()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Local job 2")).to_be_visible()


def test_the_mouse_points_at_cells(page: Page, site: Serving, database: Database) -> None:
    add_production(database, JOB, 120, time.time())
    page.goto(f"{site.address}/jobs/{JOB}")
    page.locator("#cells").hover(position={"x": 5, "y": 5})
    expect(page.get_by_text("Local job 1: done")).to_be_visible()
    page.locator("#cells").click(position={"x": 30, "y": 5})
    expect(page.get_by_role("heading", name="Local job 2")).to_be_visible()


@pytest.mark.parametrize("path", PAGES)
@pytest.mark.parametrize("is_hostile", [False, True], ids=["usual", "hostile"])
def test_a_phone_needs_no_sideways_scrolling(
    is_hostile: bool, path: str, page: Page, site: Serving, database: Database
) -> None:
    add_hostile(database, JOB, HOSTILE) if is_hostile else add_production(database, JOB, 2000, time.time())
    page.set_viewport_size({"width": 375, "height": 800})
    page.goto(site.address + path)
    page.wait_for_timeout(200)
    assert page.evaluate("document.documentElement.scrollWidth") == 375


def test_ten_thousand_local_jobs_are_drawn(page: Page, site: Serving, database: Database) -> None:
    add_production(database, JOB, 10_000, time.time())
    page.goto(f"{site.address}/jobs/{JOB}")
    expect(page.locator("#cells path")).not_to_have_count(0)
    assert count_marks(page) == 10_000
    assert page.evaluate("document.querySelectorAll('*').length") < 2000
    page.get_by_role("link", name="failed").click()
    expect(page.locator("#table tbody tr").first).to_contain_text("failed")


PALE = """() => {
  const read = (colour) => colour.match(/[0-9.]+/g).map(Number);
  const light = (colour) => read(colour).slice(0, 3).map((one) => one / 255)
    .map((one) => one <= 0.04045 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4)
    .reduce((sum, one, at) => sum + one * [0.2126, 0.7152, 0.0722][at], 0.05);
  const paper = (one) => {
    const colour = getComputedStyle(one).backgroundColor;
    return read(colour)[3] === 0 ? paper(one.parentElement) : colour;
  };
  return [...document.querySelectorAll("body, body *")]
    .filter((one) => one.tagName !== "PROGRESS")
    .filter((one) => [...one.childNodes].some((node) => node.nodeType === Node.TEXT_NODE && node.data.trim()))
    .filter((one) => {
      const [low, high] = [getComputedStyle(one).color, paper(one)].map(light).sort((a, b) => a - b);
      return high / low < 4.5;
    })
    .map((one) => one.outerHTML);
}"""
"""Texts whose contrast is less than WCAG's AA asks for."""


@pytest.mark.parametrize("path", PAGES)
def test_texts_can_be_read_in_light_and_in_dark(
    path: str, page: Page, site: Serving, database: Database, samgrid: Samgrid
) -> None:
    add_hostile(database, JOB, "bad")
    add_printed(samgrid)
    colours = set()
    for scheme in ("dark", "light"):
        page.emulate_media(color_scheme=scheme)
        page.goto(site.address + path)
        colours.add(page.evaluate("getComputedStyle(document.body).backgroundColor"))
        assert page.evaluate(PALE) == []
    assert len(colours) == 2


@pytest.mark.parametrize("path", PAGES)
def test_axe_finds_no_barrier(path: str, page: Page, site: Serving, database: Database, samgrid: Samgrid) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="pip install axe-playwright-python")
    add_hostile(database, JOB, "bad")
    add_printed(samgrid)
    for width, scheme in ((1280, "light"), (390, "dark")):
        page.set_viewport_size({"width": width, "height": 900})
        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        page.goto(site.address + path)
        found = axe.Axe().run(page)
        assert found.violations_count == 0, found.generate_report()


UNNAMED = """() => [...document.querySelectorAll("a, button, select, input, textarea, svg, progress, [tabindex]")]
  .filter((one) => !one.closest("[aria-hidden]") && one.id !== "main")
  .filter((one) => !(one.textContent.trim() || one.labels?.length || one.ariaLabel || one.ariaLabelledByElements))
  .map((one) => one.outerHTML)"""


@pytest.mark.parametrize("path", PAGES)
def test_everything_has_a_name_for_who_cannot_see_it(
    path: str, page: Page, site: Serving, database: Database, samgrid: Samgrid
) -> None:
    add_production(database, JOB, 120, time.time())
    add_printed(samgrid)
    page.goto(site.address + path)
    assert page.locator("h1").count() == 1
    assert page.locator("main").count() == 1
    assert page.locator("table:not(:has(caption))").count() == 0
    assert page.evaluate(UNNAMED) == []
