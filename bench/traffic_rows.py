"""How many scheduler commands an account runs, by the number of its grid jobs: on the fake Slurm and its clock."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from grid_report import Row

from jobmanager.site.settings import SETTINGS
from tests.conformance.fakes.site import Site

SIZES = ((1, 10), (100, 1_000))
"""Grid jobs, local jobs of each."""
COMMANDS_PER_MINUTE = 120
_MOST = 10_000
_INTERVAL = float(SETTINGS["monitor"]["reconcile_interval"].default)
_HOUR = 3600.0


def measure_traffic(folder: Path, seconds: float) -> Iterator[Row]:
    """The monitor's looks for so many simulated seconds, with few local jobs and with many."""
    before: float | None = None
    for grid_jobs, local_jobs in SIZES:
        asked, submitted = _count(folder / f"{grid_jobs}", grid_jobs, local_jobs, seconds)
        per_hour = asked * _HOUR / seconds
        remark = f"{submitted} commands to submit them, before" if seconds == _HOUR else _describe(seconds, submitted)
        # With many at most what it is with few.
        yield Row(f"{grid_jobs:,} × {local_jobs:,}", "commands/h", (per_hour,), before, remark)
        before = per_hour


def _describe(seconds: float, submitted: int) -> str:
    return f"from {seconds:.0f} simulated seconds; {submitted} commands to submit them, before"


def _count(folder: Path, grid_jobs: int, local_jobs: int, seconds: float) -> tuple[int, int]:
    """Commands in that time while all of them run, and those that submitted them."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        site = Site("slurm", folder, monkeypatch)
        site.configure(max_array=_MOST, commands_per_minute=COMMANDS_PER_MINUTE)
        for _ in range(grid_jobs):
            _expect(site.work("submit", site.accept(local_jobs)), site)
            site.advance(_INTERVAL)
        submitted = len(site.calls())
        for _ in range(int(seconds / _INTERVAL)):
            site.advance(_INTERVAL)
            _expect(site.reconcile(), site)
        site.check()
        return len(site.calls()) - submitted, submitted


def _expect(status: int, site: Site) -> None:
    if status != 0:
        raise ValueError(f"a worker ends with {status}: {site.said[-1][-300:]}")
