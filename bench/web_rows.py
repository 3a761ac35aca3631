"""How long the status page of a grid job of 10 000 local jobs takes: its server, and a real Chromium that draws it."""

import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from grid_report import Row
from playwright.sync_api import Browser, sync_playwright

from jobmanager.site.account import open_account
from tests.production import add_production
from tests.samgrid import Samgrid
from tests.serving import Serving, serving
from tests.web.conftest import FLAGS, find_chromium

LOCAL_JOBS = 10_000
_IDENTITY = "k3f9zq2m"
_PATH = f"/jobs/{_IDENTITY}"
_FIRST_PAINT = "() => performance.getEntriesByName('first-contentful-paint')[0].startTime"


def measure_web(folder: Path, runs: int) -> Iterator[Row]:
    """The grid job's page, as its server gives it and as a browser shows it, each run a first visit."""
    state = folder / "state"
    folder.mkdir(exist_ok=True)
    account = open_account(str(state))
    add_production(account.database, _IDENTITY, LOCAL_JOBS, time.time())
    account.database.close()
    with serving(Samgrid(state, folder, {})) as server:
        yield Row(f"the page of {LOCAL_JOBS:,} local jobs from its server", "ms", tuple(_fetch(server, runs)))
        chromium = find_chromium()
        if chromium is None:
            pytest.skip("no Chromium here, and it cannot be installed")
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
            visits = [_visit(browser, server) for _ in range(runs)]
            browser.close()
    yield Row("first paint in Chromium", "ms", tuple(paint for paint, _ in visits), target=1000)
    yield Row("all cells drawn in Chromium", "ms", tuple(drawn for _, drawn in visits))


def _fetch(server: Serving, runs: int) -> Iterator[float]:
    request = urllib.request.Request(server.address + _PATH, headers={"Authorization": f"Bearer {server.token}"})
    for _ in range(runs):
        begin = time.perf_counter()
        with urllib.request.urlopen(request) as answer:
            answer.read()
        yield (time.perf_counter() - begin) * 1e3


def _visit(browser: Browser, server: Serving) -> tuple[float, float]:
    """Milliseconds from the visit's beginning until anything is shown, and until every cell is."""
    context = browser.new_context()
    context.request.get(server.entrance)
    page = context.new_page()
    begin = time.perf_counter()
    page.goto(server.address + _PATH, wait_until="commit")
    # One path for each state: the first comes with all the others.
    page.wait_for_selector("#cells path")
    drawn = (time.perf_counter() - begin) * 1e3
    paint = float(page.evaluate(_FIRST_PAINT))
    context.close()
    return paint, drawn
