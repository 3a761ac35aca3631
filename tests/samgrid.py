"""Runs the command line as a person would: in a process of its own, on a state folder of its own."""

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.waiting import SECONDS

LAUNCH = Path(__file__).resolve().parents[1] / "batch_adapters" / "launch.py"


@dataclass(frozen=True)
class Samgrid:
    """``samgrid`` on one state folder."""

    state: Path
    scratch: Path
    settings: Mapping[str, str]

    def __call__(self, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """The finished command."""
        return subprocess.run(
            [sys.executable, "-P", str(LAUNCH), "samgrid", *arguments],
            input=stdin,
            text=True,
            capture_output=True,
            timeout=SECONDS,
            env=self.environment(),
            check=False,
        )

    def environment(self) -> dict[str, str]:
        """The environment that the command gets."""
        return {
            **os.environ,
            "SAMGRID_STATE": str(self.state),
            # Not what the machine's own site file says.
            "SAMGRID_SITE_BATCH_SYSTEM": "fork",
            "SAMGRID_SANDBOX_SCRATCH_FOLDER": str(self.scratch),
            "SAMGRID_MONITOR_PROGRESS_INTERVAL": "0.2",
            "SAMGRID_FORK_CANCEL_GRACE": "2",
            **self.settings,
        }

    def submit(self, request: str) -> str:
        """The id of a new grid job."""
        done = self("submit", "-", stdin=request)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()
