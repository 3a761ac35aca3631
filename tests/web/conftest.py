"""A real Chromium that looks at real pages; skipped with the reason where it cannot be had."""

import os
import shutil
import subprocess
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.real.site import SYSTEMS
from tests.samgrid import Samgrid
from tests.serving import Serving, serving

expect.set_options(timeout=60_000)

FLAGS = [
    "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip


def find_chromium() -> str | None:
    """Debian's Chromium, installed if need be and possible."""
    if not shutil.which("chromium") and os.geteuid() == 0 and shutil.which("apt-get"):
        install = [str(SYSTEMS / "prepare.sh"), "--no-install-recommends", "chromium"]
        subprocess.run(install, check=False, stdout=subprocess.DEVNULL)
    return shutil.which("chromium")


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """The browser."""
    chromium = find_chromium()
    if chromium is None:
        pytest.skip("no Chromium here, and it cannot be installed: apt-get install chromium")
    with sync_playwright() as playwright:
        yield playwright.chromium.launch(executable_path=chromium, args=FLAGS)


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """An empty page; what it complains of in its console, or asks of other hosts, fails the test."""
    context = browser.new_context(viewport={"width": 1200, "height": 900})
    context.set_default_timeout(60_000)
    page = context.new_page()
    complaints: list[str] = []
    page.on("console", lambda said: complaints.append(said.text) if said.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("dialog", lambda dialog: complaints.append(f"dialog {dialog.message}"))
    page.on("request", lambda asked: complaints.append(asked.url) if "//127.0.0.1:" not in asked.url else None)
    yield page
    context.close()
    # That a server has gone, as servers in tests do, is no fault of the page.
    assert [text for text in complaints if "net::ERR_" not in text] == []


@pytest.fixture
def site(samgrid: Samgrid, page: Page) -> Iterator[Serving]:
    """The pages of an account of its own, which the browser's page has entered."""
    samgrid.state.mkdir(mode=0o700)
    with serving(samgrid) as running:
        page.goto(running.entrance)
        yield running
