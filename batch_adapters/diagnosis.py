"""What ``samgrid doctor`` finds of a batch system: one sentence each, with the line to put in which file."""

import enum
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass


class Level(enum.Enum):
    """How bad a finding is."""

    GOOD = "ok"
    WARNING = "warning"
    FAULT = "FAULT"


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    level: Level
    text: str
    remedy: str = ""
    """What to write into which file, or to run; empty where all is well."""


@dataclass(frozen=True)
class Printed:
    """What a program printed and how it ended; exit code None: it cannot be run, or did not answer in time."""

    exit_code: int | None
    stdout: str
    stderr: str


PARALLEL_ENVIRONMENT = "{{ parallel_environment }}"
"""A word of a command: the adapter's `parallel_environment`, which a site may have changed."""
Ask = Callable[[Sequence[str]], Printed]
"""Runs one harmless command, such as ``scontrol show config``, and never raises."""
Diagnosis = Callable[[Ask, Mapping[str, str]], Iterable[Finding]]
"""From what commands print, and the environment, to findings that are this batch system's own.

That its commands and its daemon are there, its version, its array limit and whether its log can be read are looked at
for every batch system alike, and not here.
"""


SHORTEST_MEMORY = 600
"""Seconds for which ended jobs should be remembered: some twenty looks of the job manager."""


def judge(is_good: bool, text: str, remedy: str, bad: str = "", level: Level = Level.WARNING) -> Finding:
    """What was found where all is well, or else ``bad`` (by default the same text), how bad it is and its remedy."""
    return Finding(Level.GOOD, text) if is_good else Finding(level, bad or text, remedy)


def read_seconds(time: str) -> int:
    """Of ``HH:MM:SS`` or a number of seconds; 0 where it is neither."""
    seconds = 0
    for part in time.split(":"):
        seconds = seconds * 60 + read_number(part)
    return seconds


def read_number(text: str, default: int = 0) -> int:
    """The whole number that a setting is; the default where it is none, or one that no setting can be."""
    return int(text) if re.fullmatch(r"\d{1,18}", text, re.ASCII) else default
