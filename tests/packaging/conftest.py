"""What the packaging tests share."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of this tree as git has it, with a manual page as "make man" leaves it."""
    source = tmp_path_factory.mktemp("source")
    subprocess.run(["git", "-C", ROOT, "checkout-index", "--all", f"--prefix={source}/"], check=True)
    page = source / "build" / "man" / "samgrid.1"
    page.parent.mkdir(parents=True)
    page.write_text(".TH")
    return source


@pytest.fixture(scope="session")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built from this tree."""
    folder = tmp_path_factory.mktemp("wheel")
    options = ("--quiet", "--no-deps", "--no-build-isolation", "-w", str(folder))
    subprocess.run([sys.executable, "-m", "pip", "wheel", *options, str(source)], check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.fixture(scope="session")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for the module path that has the wheel in it."""
    folder = tmp_path_factory.mktemp("site")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder
