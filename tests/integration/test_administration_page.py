"""docs/administration.md: every command on it does what it says, in the order of the page."""

import re
import shlex
from dataclasses import replace
from pathlib import Path

from tests.samgrid import Samgrid

PAGE = Path(__file__).parents[2] / "docs" / "administration.md"
NOT_HERE = {
    "apt-get": "root installs packages: tests/real/test_package.py",
    "make": "builds take minutes, and root's packages: tests/real/test_package.py",
    "python3 -m venv": "needs the network",
    "/opt/samgrid/bin/pip": "needs the network",
    "samgrid gram": "root's files: tests/unit/gram_shims/test_installing.py",
}
"""How commands begin that are not run here, and why."""


def find_commands(text: str) -> list[str]:
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [line for language, block in blocks if not language for line in block.splitlines()]


def test_every_command_of_the_page_works(samgrid: Samgrid, tmp_path: Path) -> None:
    backups = tmp_path / "backups"
    backups.mkdir()
    ids = {}
    for name, program in (("ID", "true"), ("FAILED", "false")):
        ids[name] = samgrid.submit(f"&(samgrid_type=command)(executable=/bin/{program})(name={name.lower()})")
        samgrid("watch", ids[name])
    own = {**ids, "samgrid.prom": str(tmp_path / "samgrid.prom")}
    restored = replace(samgrid, state=tmp_path / "restored")
    ran = 0
    for command in find_commands(PAGE.read_text()):
        if command.startswith(tuple(NOT_HERE)):
            continue
        words = [own.get(word, word).replace("/backups", str(backups)) for word in shlex.split(command, comments=True)]
        if words[0] == "rm":
            assert Path(words[-1]).is_relative_to(backups)
            continue
        assert words[0] == "samgrid", command
        account = restored if words[1:] == ["restore", str(backups / "samgrid.tar")] else samgrid
        done = account(*words[1:])
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        ran += 1
    assert ran > 15


def test_no_reason_is_kept_for_a_command_that_is_gone() -> None:
    commands = find_commands(PAGE.read_text())
    assert [start for start in NOT_HERE if not any(command.startswith(start) for command in commands)] == []
