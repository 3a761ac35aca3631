"""What a job type defines; everything else about running grid jobs is the same for all job types."""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from .attributes import Attribute, Kind, Value
from .sweep import SWEEP, Sweep, read_sweep

HIGHEST_SEED = 900_000_000
"""Pythia 8 takes seeds from 1 to this number; other generators take at least as many."""


@dataclass(frozen=True)
class Limits:
    """A site's limits for local jobs; CPU times in seconds (0: not configured), sizes of work areas in bytes."""

    events_per_local_job: int = 250
    recommended_cpu_time: float = 0
    max_cpu_time: float = 0
    max_local_jobs: int = 100_000
    max_input_size: int = 2_000_000_000


@dataclass(frozen=True)
class Slice:
    """The part of a grid job's events that one local job processes; events are numbered from 1."""

    first_event: int
    events: int
    seed: int


class TooLarge(ValueError):
    """No division into local jobs would fit into the site's limits."""


def count_local_jobs(events: int, cpu_per_event: float, events_per_local_job: int, limits: Limits) -> int:
    """The number of local jobs that ``events`` are divided into.

    The events of one local job follow from the first of these that is known: the request's ``events_per_local_job``;
    its CPU seconds per event and the site's recommended (else maximum) CPU time; the site's default. In no case does a
    local job get more than the maximum CPU time permits.

    :raises TooLarge: naming the limit and the way out.
    """
    share = events_per_local_job or _recommended_share(cpu_per_event, limits)
    if cpu_per_event and limits.max_cpu_time:
        share = min(share, int(limits.max_cpu_time // cpu_per_event))
        if share < 1:
            raise TooLarge(
                f"one event takes {cpu_per_event:g} s of CPU, but a local job may take {limits.max_cpu_time:g} s here"
            )
    count = -(-events // share)
    if count > limits.max_local_jobs:
        raise TooLarge(
            f"{events} events at {share} a local job make {count} local jobs, but this site takes at most "
            f"{limits.max_local_jobs}: ask for fewer events or for more events a local job"
        )
    return count


def _recommended_share(cpu_per_event: float, limits: Limits) -> int:
    cpu_time = limits.recommended_cpu_time or limits.max_cpu_time
    if cpu_per_event and cpu_time:
        return max(1, int(cpu_time // cpu_per_event))
    return limits.events_per_local_job


def cut_slice(index: int, count: int, events: int, seed: int) -> Slice:
    """Slice number ``index`` (from 1) of ``count``. Together they have each event once; sizes differ by at most 1."""
    before = (index - 1) * events // count
    behind = index * events // count
    return Slice(before + 1, behind - before, (seed + index - 2) % HIGHEST_SEED + 1)


@dataclass(frozen=True)
class PlannedJob:
    """A local job before it is submitted; ``slice`` is None for job types without a size."""

    index: int
    count: int
    slice: Slice | None = None


@dataclass(frozen=True)
class Phase:
    """A named step of a local job: ``done`` of ``total`` (whole numbers); ``unit`` is a word like ``events``."""

    name: str
    done: int
    total: int
    unit: str = ""


class UnknownDataset(ValueError):
    """The site has no such dataset; the message is one sentence for people."""


@dataclass(frozen=True)
class Site:
    """What a handler knows of its site: limits, and the values of the job type's ``siteAttributes``."""

    limits: Limits = field(default_factory=Limits)
    values: Mapping[str, Any] = field(default_factory=dict)
    findDataset: Callable[[str], Sequence[str]] | None = None
    """Runs the site's command that lists the files of a dataset; None: there is none. Raises `UnknownDataset`."""


EVENTS = Attribute("events", "How many events the grid job makes.", Kind.INTEGER, "events", required=True, minimum=1)
SLICING = (
    Attribute("events_per_local_job", "Events of one local job, in place of the site's rule.", Kind.INTEGER, "events",
              minimum=1),
    Attribute("cpu_per_event", "CPU time of one event, from which the site sizes the local jobs.", Kind.NUMBER,
              "seconds", minimum=0.000001),
    Attribute("seed", "First random seed; each local job gets one of its own.", Kind.INTEGER, minimum=1,
              maximum=900_000_000),
)  # fmt: skip
"""Attributes that a job type with events declares in addition to its own."""


@dataclass(frozen=True)
class Step:
    """One grid job of a workflow; it starts when the steps that it needs are done."""

    name: str
    request: tuple[tuple[str, tuple[Value, ...]], ...]
    """Its attributes and their values, including its job type."""
    input_step: str = ""
    """The earlier step whose outputs it reads, and which it therefore needs; empty: none."""
    after: tuple[str, ...] | None = None
    """Further earlier steps that it needs; None: the one before it."""


def read_needs(steps: Sequence[Step]) -> dict[str, tuple[str, ...]]:
    """For each step, the names of the steps that must be done before it starts."""
    needs: dict[str, tuple[str, ...]] = {}
    before: tuple[str, ...] = ()
    for step in steps:
        named = before if step.after is None else step.after
        needs[step.name] = tuple(dict.fromkeys([*named, step.input_step] if step.input_step else named))
        before = (step.name,)
    return needs


_STEP_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,39}", re.ASCII)
"""A step's name is also a folder's."""


def check_order(steps: Sequence[Step]) -> list[str]:
    """One sentence for each bad or repeated name, and each need that is no earlier step: so no circle is possible."""
    faults = []
    before: list[str] = []
    for step in steps:
        if not _STEP_NAME.fullmatch(step.name):
            faults.append(f"steps: a name is letters, digits, _ and -, at most 40, first a letter, not {step.name!r}")
        if step.name in before:
            faults.append(f"steps: two are named {step.name}")
        known = f"the steps before it: {', '.join(before)}" if before else "it is the first"
        named = [("input_step", step.input_step)] if step.input_step else []
        for attribute, name in [*named, *(("after", name) for name in step.after or ())]:
            if name not in before:
                faults.append(f"step {step.name}: {attribute} {name!r} is no earlier step: {known}")
        before.append(step.name)
    return faults


class JobAdapter(ABC):
    """A job type: declares its attributes, prepares its work area, gives its command lines.

    ``request`` maps the name of each declared attribute to its typed value, or to its default if the request does not
    give one. A job type never deals with batch systems or the job database.
    """

    jobType: ClassVar[str]
    """The name that a request's ``samgrid_type`` gives."""
    attributes: ClassVar[Sequence[Attribute]] = ()
    siteAttributes: ClassVar[Sequence[Attribute]] = ()
    """Values that the site sets for this type, in the configuration's table ``[type.NAME]``."""
    usesDirectory: ClassVar[bool] = True
    """True: its programs run in the request's ``directory``, if it has one. False: always in a scratch folder."""
    requestIdAttribute: ClassVar[str] = ""
    """The attribute with the experiment's own id of a request, by which people find its grid jobs; empty: none."""

    def __init__(self, request: Mapping[str, Any], site: Site) -> None:
        self.request = request
        self.site = site

    @cached_property
    def sweep(self) -> Sweep | None:
        """How the local jobs differ, and so how many there are; None: the job type or the request has no sweep.

        :raises BadSweep: with a sentence about the first fault.
        """
        return read_sweep(self.request) if all(one in self.attributes for one in SWEEP) else None

    def checkErrors(self) -> Iterable[str]:
        """Faults of the request that its attributes' declarations cannot express, one sentence each."""
        return ()

    def findWarnings(self) -> Iterable[str]:
        """What looks wrong but may be intended, one sentence each; shown to whoever submits."""
        return ()

    def getSize(self) -> int | None:
        """The grid job's size in events; None for a job type without slices of events."""
        return self.request.get("events")

    def getNumSubmissionTimes(self) -> int:
        """The number of local jobs; by default computed from the size (`count_local_jobs`).

        :raises TooLarge: the site does not permit that many.
        """
        size = self.getSize()
        if size is None:
            return 1
        return count_local_jobs(
            size,
            self.request.get("cpu_per_event") or 0,
            self.request.get("events_per_local_job") or 0,
            self.site.limits,
        )

    def getSteps(self) -> Sequence[Step]:
        """The steps of a workflow, in their order; none for a job type with local jobs of its own."""
        return ()

    @abstractmethod
    def prepareWorkArea(self, workArea: Path) -> None:
        """Fill the empty folder ``workArea`` with what every local job needs; it is packed as the sandbox."""

    @abstractmethod
    def getCommandAndArguments(self, localJob: PlannedJob) -> Sequence[str]:
        """The command line of one local job, run in a copy of the work area; ``./name`` is a file of it.

        The program finds ``SAMGRID_INDEX``, ``SAMGRID_FIRST_EVENT``, ``SAMGRID_EVENTS`` and ``SAMGRID_SEED`` in
        its environment, and writes its outputs into ``output/``.
        """

    def getEnvironment(self) -> Mapping[str, str]:
        """Environment variables for every local job, in addition to the request's."""
        return {}

    def getPhaseOfLine(self, line: str) -> Phase | None:
        """The phase that a line of the program's standard output reports; None for most lines.

        If overridden, it is called while local jobs run: with lines in their order, of which some may be missing.
        """
        return None

    def getSummary(self, outputs: Sequence[Path]) -> Mapping[str, str]:
        """A summary of the outputs for people, as names and values; ``outputs`` has one folder per local job."""
        return {}
