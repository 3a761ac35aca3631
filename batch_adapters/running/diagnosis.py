"""Findings of ``samgrid doctor`` about a batch system: a sentence each, and the remedy."""

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
    """The result of one check."""

    level: Level
    text: str
    remedy: str = ""
    """What to write into which file, or which command to run; empty if all is well."""


@dataclass(frozen=True)
class Printed:
    """A program's output and exit code; exit code None: it could not be run, or did not answer in time."""

    exit_code: int | None
    stdout: str
    stderr: str


PARALLEL_ENVIRONMENT = "{{ parallel_environment }}"
"""An argument that stands for the adapter's `parallel_environment`, which a site may have changed."""
Ask = Callable[[Sequence[str]], Printed]
"""Runs one harmless command, such as ``scontrol show config``, and never raises."""
Diagnosis = Callable[[Ask, Mapping[str, str]], Iterable[Finding]]
"""Checks one batch system by its commands and the environment. Checks that are the same for all batch systems are not
here: commands, daemon, version, array limit, readable log."""

SHORTEST_MEMORY = 600
"""Seconds for which ended jobs should be kept in the batch system: some twenty queries of the job manager."""


def judge(is_good: bool, text: str, remedy: str, bad: str = "", level: Level = Level.WARNING) -> Finding:
    """The finding ``text`` if all is well; else ``bad`` (by default the same text) with its level and remedy."""
    return Finding(Level.GOOD, text) if is_good else Finding(level, bad or text, remedy)


def read_seconds(time: str) -> int:
    """Seconds from ``HH:MM:SS`` or a number of seconds; 0 for anything else."""
    seconds = 0
    for part in time.split(":"):
        seconds = seconds * 60 + read_number(part)
    return seconds


def read_number(text: str, default: int = 0) -> int:
    """A setting's whole number; the default for anything else, or for an impossibly large number."""
    return int(text) if re.fullmatch(r"\d{1,18}", text, re.ASCII) else default
