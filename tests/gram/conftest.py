"""A real GRAM, ours installed in it as a site would; skipped with the reason where it cannot be had."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.gram.gram_site import OUR_PROGRAMS, GramSite, own_configuration
from tests.gram.seg_mode import EVENTS
from tests.real.site import ACCOUNT, installed_package, open_ground, run_system


@pytest.fixture(scope="session")
def ground() -> Iterator[Path]:
    """A folder that every account can enter."""
    with open_ground("samgrid-gram") as folder:
        yield folder


@pytest.fixture(scope="session")
def programs(testrun_uid: str) -> Iterator[Path]:
    """Our programs, installed."""
    with installed_package(testrun_uid) as folder:
        yield folder


@pytest.fixture(scope="session")
def gram(ground: Path, programs: Path) -> Iterator[GramSite]:
    """A gatekeeper, with our job manager in poll mode."""
    site = GramSite(ground / "gram", programs, ground / "home")
    site.home.mkdir()
    site.folder.mkdir()
    with own_configuration():
        try:
            site.run_script("start")
            # The account is made where there was none.
            shutil.chown(site.home, ACCOUNT, ACCOUNT)
            site.register("install", "--poll", "--state", str(site.state))
            yield site
        finally:
            site.run_script("stop")
            site.kill_ours(*OUR_PROGRAMS)
            site.kill_jobs(str(site.home))
            site.register("uninstall")
            # Days with events stay.
            shutil.rmtree(EVENTS, ignore_errors=True)


@pytest.fixture(scope="session")
def gram_packages(tmp_path_factory: pytest.TempPathFactory) -> None:
    """GRAM's own programs and Perl, installed if need be and possible; nothing of them runs yet."""
    run_system("gram", "install", tmp_path_factory.mktemp("packages") / "gram")
