"""Style and types of the whole tree: `make check`, while the other tests run."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def find_checks() -> list[str]:
    """The commands of ``make check``, without the folder of their programs."""
    recipe = re.search(r"^check: venv\n((?:\t.+\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert recipe
    return [line.removeprefix("\t$(BIN)/") for line in recipe[1].splitlines()]


@pytest.mark.waits_long
@pytest.mark.parametrize("command", find_checks())
def test_make_check_finds_nothing(command: str) -> None:
    program, *arguments = command.split()
    path = Path(sys.executable).with_name(program)
    if not path.exists():
        pytest.skip(f"there is no {path}: pip install '.[check]'")
    done = subprocess.run([path, *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_style_and_types_are_checked() -> None:
    assert {command.split()[0] for command in find_checks()} == {"ruff", "mypy"}
