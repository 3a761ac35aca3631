"""What ``samgrid doctor`` finds of a batch system: one sentence each, with the line to put in which file."""

import enum
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module


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


Ask = Callable[[Sequence[str]], Printed]
"""Runs one harmless command, such as ``scontrol show config``, and never raises."""
Diagnosis = Callable[[Ask, Mapping[str, str]], Iterable[Finding]]
"""From what commands print, and the environment, to findings that are this batch system's own.

That its commands and its daemon are there, its version, its array limit and whether its log can be read are looked at
for every batch system alike, and not here.
"""


def later(place: str) -> Diagnosis:
    """The diagnosis of that place, MODULE:FUNCTION, which is loaded when it is asked for."""
    module, name = place.split(":")

    def diagnose(ask: Ask, environment: Mapping[str, str]) -> Iterable[Finding]:
        found: Iterable[Finding] = getattr(import_module(module), name)(ask, environment)
        return found

    return diagnose


def no_diagnosis(ask: Ask, environment: Mapping[str, str]) -> Iterator[Finding]:
    """Nothing beyond what is looked at for every batch system."""
    del ask, environment
    yield from ()
