"""The package as an installed one lies in site-packages, without a wheel: tests/packaging compares the two."""

import os
import subprocess
import sys
from pathlib import Path

from tests.waiting import SECONDS

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "jobmanager" / "commands" / "samgrid_jobmanager"
FOLDERS = ("adapters", "batch_adapters", "gram_shims", "handlers", "jobmanager", "sandbox")


def link_package(folder: Path) -> Path:
    """A folder for the module path, in which the tree is the package."""
    package = folder / PACKAGE.name
    package.mkdir(parents=True)
    for target in (*PACKAGE.glob("*.*"), *(ROOT / name for name in FOLDERS)):
        (package / target.name).symlink_to(target)
    return folder


def run_python(site: Path, code: str, folder: Path, **variables: str) -> str:
    """What a program prints that is run in a folder, in an interpreter that has the package."""
    environment = {**os.environ, "PYTHONPATH": str(site), **variables}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stderr
    return done.stdout
