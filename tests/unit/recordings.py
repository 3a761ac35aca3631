"""Commands of batch systems as they were recorded, and what an adapter makes of their answers."""

import re
from dataclasses import dataclass
from pathlib import Path

from batch_adapters.adapter import Answer, Command

_RECORDED = Path(__file__).parents[1] / "recorded"


@dataclass(frozen=True)
class Recording:
    """One command that was run, and its answer."""

    command: str
    stdout: str
    stderr: str
    exit_code: int


def read_recordings(system: str, name: str) -> dict[str, Recording]:
    """What a file of ``tests/recorded/SYSTEM`` holds, by title."""
    recordings = {}
    for section in re.split(r"(?m)^=== ", (_RECORDED / system / name).read_text())[1:]:
        title, command, *lines = section.splitlines()
        stdout, stderr = ("".join(line[3:] + "\n" for line in lines if line.startswith(mark)) for mark in ("1>", "2>"))
        code = re.search(r"(?m)^\[rc=(\d+) ", section)
        assert code is not None, title
        recordings[title] = Recording(command.removeprefix("$ "), stdout, stderr, int(code[1]))
    return recordings


def judge(command: Command | None, exit_code: int, stdout: str, stderr: str = "") -> Answer:
    """What an adapter's command makes of an exit code and of all that was printed."""
    assert command is not None
    fitting = (outcome.answer for outcome in command.outcomes if outcome.fits(exit_code, stdout + stderr))
    return next(fitting, Answer.UNKNOWN)
