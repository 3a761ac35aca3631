"""docs/handlers.md does what it says: its files and its commands, from the first line to the package."""

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.samgrid import Samgrid

PAGE = Path(__file__).resolve().parents[2] / "docs" / "handlers.md"
FOLDER = "/opt/tracker"
_BLOCK = re.compile(r"^```(?P<kind>\w+)(?: (?P<name>\S+))?\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
_NUMBERS = re.compile(r"\d+(\.\d+)?")


@dataclass(frozen=True)
class Page:
    """The page's files, written into a folder, and its commands."""

    folder: Path
    commands: Mapping[str, list[list[str]]]
    text: str


@pytest.fixture
def page(tmp_path: Path) -> Page:
    folder = tmp_path / "tracker"
    folder.mkdir()
    commands: dict[str, list[list[str]]] = {}
    text = PAGE.read_text().replace(FOLDER, str(folder))
    for block in _BLOCK.finditer(text):
        if block["kind"] == "sh":
            commands.setdefault(block["name"] or "", []).extend(line.split() for line in block["text"].splitlines())
        else:
            (folder / block["name"]).write_text(block["text"])
    return Page(folder, commands, text)


def run(samgrid: Samgrid, folder: Path, command: list[str]) -> str:
    """What one command of the page prints; its files are named as seen from the folder."""
    assert command[0] == "samgrid"
    words = [str(folder / word) if (folder / word).is_file() else word for word in command[1:]]
    done = samgrid(*words)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


def test_the_handler_works_from_its_file(samgrid: Samgrid, page: Page) -> None:
    site = replace(samgrid, settings={"SAMGRID_CONFIG": str(page.folder / "samgrid.toml")})
    check, types, check_request, run_request = page.commands[""]
    shown = "\n".join(line[4:] for line in page.text.splitlines() if line.startswith(("    ok ", "    no faults")))
    printed = run(samgrid, page.folder, check).strip()
    assert _NUMBERS.sub("N", printed) == _NUMBERS.sub("N", shown)
    assert not samgrid.state.exists()
    assert "layers" in run(site, page.folder, types)
    assert "4 local jobs, whose slices hold each of 20 events once" in run(site, page.folder, check_request)
    output = run(site, page.folder, run_request)
    assert "events: 20" in output
    assert re.search(r"hits: \d+", output)


def test_the_handler_passes_the_tests_of_the_page(page: Page) -> None:
    folder = str(page.folder)
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", folder, folder]
    environment = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}
    done = subprocess.run(words, cwd=page.folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 passed" in done.stdout


def test_the_handler_works_from_a_package(samgrid: Samgrid, page: Page, tmp_path: Path) -> None:
    target = tmp_path / "site-packages"
    install = [sys.executable, "-m", "pip", "install", "--no-index", "--no-build-isolation", "--no-deps", "-q"]
    done = subprocess.run([*install, "--target", target, page.folder], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    installed = Samgrid(samgrid.state, samgrid.scratch, {"PYTHONPATH": str(target)})
    (page.folder / "tracker.py").unlink()
    types, check, run_request = page.commands["installed"]
    assert "momentum" in run(installed, page.folder, types)
    assert "no faults" in run(installed, page.folder, check)
    assert "events: 20" in run(installed, page.folder, run_request)
