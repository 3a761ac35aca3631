"""Makes the pictures of docs/web.md: ``python -m tests.web.screenshots docs``."""

import argparse
import tempfile
import time
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

from jobmanager.database.database import Database
from tests.production import add_production
from tests.samgrid import Samgrid
from tests.serving import Serving, serving
from tests.web.conftest import FLAGS, find_chromium

JOB = "k3f9zq2m"
VIEWS = (
    ("web-overview", "/", 1000, 560, "light"),
    ("web-grid-job", f"/jobs/{JOB}", 1000, 1480, "light"),
    ("web-grid-job-dark", f"/jobs/{JOB}", 1000, 1480, "dark"),
    ("web-phone", f"/jobs/{JOB}", 375, 800, "light"),
)
"""File, page, width, height, colours."""


def main() -> None:
    """Make the pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    with tempfile.TemporaryDirectory() as scratch, sync_playwright() as playwright:
        samgrid = Samgrid(Path(scratch) / "state", Path(scratch), {"SAMGRID_SITE_NAME": "westgrid"})
        fill(samgrid)
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=FLAGS)
        with serving(samgrid) as site:
            for name, path, width, height, colours in VIEWS:
                take(browser, site, path, folder / f"{name}.png", width, height, colours)


def fill(samgrid: Samgrid) -> None:
    """Grid jobs to look at."""
    samgrid.state.mkdir(mode=0o700)
    database = Database(samgrid.state / "jobs.db")
    now = time.time()
    add_production(database, JOB, 400, now, job_type="dzero_monte_carlo")
    add_production(database, "m7w2kd4c", 60, now - 2400, owner="garzoglio")
    add_production(database, "p1x8ru5a", 10_000, now - 4000, job_type="cdf_monte_carlo", owner="terekhov")
    database.close()


def take(browser: Browser, site: Serving, path: str, file: Path, width: int, height: int, colours: str) -> None:
    """One picture."""
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=colours)  # type: ignore[arg-type]
    page = context.new_page()
    page.goto(site.entrance)
    page.goto(site.address + path)
    page.wait_for_timeout(500)
    page.screenshot(path=file)
    context.close()


if __name__ == "__main__":
    main()
