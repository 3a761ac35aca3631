"""The real batch systems, each in one worker of pytest; what cannot be had here is skipped with its reason."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from xdist.scheduler import LoadScopeScheduling

from tests.real.site import SYSTEMS, Site, installed_package, open_ground

FAST = {
    "SAMGRID_MONITOR_RECONCILE_INTERVAL": "5",
    "SAMGRID_MONITOR_IDLE_TIME": "5",
}


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> LoadScopeScheduling:
    """Give each batch system, and GRAM, to one worker: pytest-xdist's own groups are lost with pytest 9.2."""
    scheduler = LoadScopeScheduling(config, log)
    scheduler._split_scope = find_group
    return scheduler


def find_group(test: str) -> str:
    """The batch system that a test needs, or ``gram``; otherwise its module."""
    system = re.search(r"^tests/real/.*\[(\w+)\]$|^tests/(gram)/(?!test_(audit|module|validation_file)\.)", test)
    return system[1] or system[2] if system else test.partition("::")[0]


def write_configuration(ground: Path, name: str, script: str) -> Path:
    """What a site would put into samgrid.toml for this batch system."""
    table = SYSTEMS / f"{script}.toml"
    # All of it is on one file system: outputs of what was killed need not be waited for as long as elsewhere.
    options = "outputs_lag = 15\nrequest_options = ['--hold', '-h', '-notify']"
    text = table.read_text() if table.exists() else f"[batch.{name}]\n{options}\n"
    path = ground / f"{name}.toml"
    path.write_text(text)
    return path


@pytest.fixture(scope="session")
def ground() -> Iterator[Path]:
    """A folder that every account can enter."""
    with open_ground("samgrid-test") as folder:
        yield folder


@pytest.fixture(scope="session")
def programs(testrun_uid: str) -> Iterator[Path]:
    """Our programs, installed."""
    with installed_package(testrun_uid) as folder:
        yield folder


@pytest.fixture(scope="session", params=["slurm", "sge", "condor", "torque"])
def site(request: pytest.FixtureRequest, ground: Path, programs: Path) -> Iterator[Site]:
    """A real batch system and an account to use it."""
    name = request.param
    script = "pbs" if name == "torque" else name
    settings = {**FAST, "SAMGRID_CONFIG": str(write_configuration(ground, name, script))}
    site = Site(name, script, ground / name, programs, settings)
    site.folder.mkdir()
    try:
        site.run_script("start")
        site.make_home()
        yield site
    finally:
        site.end_processes()
        site.run_script("stop")
