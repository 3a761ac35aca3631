"""What is installed is what is in the tree, inside one folder of ours."""

import configparser
import importlib
import subprocess
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("adapters", "batch_adapters", "gram_shims", "handlers", "jobmanager", "sandbox")
PACKAGE = "jobmanager/commands/samgrid_jobmanager/"
"""What is the package itself; all else is a part of it."""
INSTALLED = (
    ".py",
    ".lark",
    ".rng",
    ".j2",
    ".sh",
    ".xsl",
    ".pm",
    ".html",
    ".css",
    ".js",
    ".svg",
    ".conf",
    ".rvf",
    ".schema.json",
    ".service",
    "/py.typed",
)


@pytest.fixture(scope="module")
def wheel_names(wheel: Path) -> set[str]:
    """The files in that wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_the_wheel_holds_every_file_of_the_tree(wheel_names: set[str]) -> None:
    listed = subprocess.run(["git", "-C", ROOT, "ls-files", *FOLDERS], capture_output=True, text=True, check=True)
    names = {name.removeprefix(PACKAGE) for name in listed.stdout.split() if name.endswith(INSTALLED)}
    expected = {f"samgrid_jobmanager/{name}" for name in names}
    assert {name for name in wheel_names if name.startswith("samgrid_jobmanager/")} == expected


def test_the_wheel_has_the_manual_page_that_was_made(wheel_names: set[str]) -> None:
    assert any(name.endswith(".data/data/share/man/man1/samgrid.1") for name in wheel_names)


def test_site_packages_get_one_folder_of_ours(wheel_names: set[str]) -> None:
    assert {name.partition("/")[0].partition("-")[0] for name in wheel_names} == {"samgrid_jobmanager"}


def test_the_wheel_has_every_extra_of_setup_cfg(wheel: Path) -> None:
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = message_from_bytes(archive.read(name))
    assert metadata.get_all("Provides-Extra") == list(setup["options.extras_require"])


def test_every_console_script_is_a_program_that_the_launcher_knows() -> None:
    from batch_adapters.launch import PROGRAMS

    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    scripts = setup["options.entry_points"]["console_scripts"].strip().splitlines()
    for script in scripts:
        name, target = (part.strip() for part in script.split("="))
        assert target == "samgrid_jobmanager.batch_adapters.launch:run"
        assert callable(importlib.import_module(PROGRAMS[name]).main)
