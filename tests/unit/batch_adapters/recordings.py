"""Commands of batch systems as they were recorded, and what an adapter makes of their answers."""

import re
from dataclasses import dataclass
from pathlib import Path

from batch_adapters.adapter import Answer, Command

RECORDED = Path(__file__).parents[2] / "recorded"
_MARKED = re.compile(r"^\$ ((?:.|\n)*?)\n((?:[12]>.*\n)*)\[rc=(\d+)", re.MULTILINE)
_PLAIN = re.compile(
    r"^(?:griduser|root)?[$#] ((?:PBS_\w+=\S+ )?q.*)\n((?:(?!\[exit ).*\n)*?)\[exit (\d+)\]", re.MULTILINE
)


@dataclass(frozen=True)
class Recording:
    """One command that was run, and its answer."""

    scene: str
    command: str
    stdout: str
    stderr: str
    exit_code: int

    def judge(self, command: Command | None) -> Answer:
        """What the outcomes of an adapter's command make of it."""
        return judge(command, self.exit_code, self.stdout, self.stderr)


def read_recordings(system: str, name: str) -> list[Recording]:
    """What a file of ``tests/recorded/SYSTEM`` holds, in its order."""
    text = (RECORDED / system / name).read_text(errors="replace")
    recordings = []
    for section in re.split(r"(?m)^=== ", text):
        scene = section.partition("\n")[0]
        for pattern, mark_1, mark_2 in ((_MARKED, "1>", "2>"), (_PLAIN, "", "[stderr]")):
            for command, printed, code in pattern.findall(section):
                stdout, stderr = (
                    "".join(f"{line.removeprefix(mark).removeprefix(' ' if mark else '')}\n" for line in lines)
                    for mark, lines in (
                        (mark_1, [line for line in printed.splitlines() if not line.startswith(mark_2)]),
                        (mark_2, [line for line in printed.splitlines() if line.startswith(mark_2)]),
                    )
                )
                recordings.append(Recording(scene, command, stdout, stderr, int(code)))
    return recordings


def by_scene(recordings: list[Recording]) -> dict[str, Recording]:
    """The recordings of a file that has one command in each scene."""
    return {recording.scene: recording for recording in recordings}


def judge(command: Command | None, exit_code: int, stdout: str, stderr: str = "") -> Answer:
    """What an adapter's command makes of an exit code and of all that was printed."""
    assert command is not None
    fitting = (outcome.answer for outcome in command.outcomes if outcome.fits(exit_code, stdout + stderr))
    return next(fitting, Answer.UNKNOWN)
