"""What a job type must say; everything else about running grid jobs is common to all of them."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from adapters.attributes import Attribute, Kind, Value
from adapters.decomposition import Limits, Slice, count_local_jobs


@dataclass(frozen=True)
class LocalJob:
    """One of the local jobs that a grid job becomes; ``slice`` is None for job types without a size."""

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


@dataclass(frozen=True)
class Site:
    """What the site tells a handler: limits of a local job, and the values of the type's ``siteAttributes``."""

    limits: Limits = field(default_factory=Limits)
    values: Mapping[str, Any] = field(default_factory=dict)


EVENTS = Attribute("events", "How many events the grid job makes.", Kind.INTEGER, "events", required=True, minimum=1)
SLICING = (
    Attribute("events_per_local_job", "Events of one local job, in place of the site's rule.", Kind.INTEGER, "events",
              minimum=1),
    Attribute("cpu_per_event", "CPU time of one event, from which the site sizes the local jobs.", Kind.NUMBER,
              "seconds", minimum=0.000001),
    Attribute("seed", "First random seed; each local job gets one of its own.", Kind.INTEGER, minimum=1,
              maximum=900_000_000),
)  # fmt: skip
"""Attributes that a job type with events declares beside its own."""


@dataclass(frozen=True)
class Step:
    """One grid job of a sequence: it starts when the one before is done."""

    name: str
    request: tuple[tuple[str, tuple[Value, ...]], ...]
    """Its attributes and their values, its job type among them."""
    input_step: str = ""
    """The earlier step whose outputs it reads; empty: none."""


class JobAdapter(ABC):
    """A job type: declares its attributes, prepares its work area, gives its command lines.

    ``request`` maps each declared attribute's name (as declared) to its typed value, its default where the
    request does not name it. Nothing here touches a batch system or the job database.
    """

    jobType: ClassVar[str]
    """The name that a request's ``samgrid_type`` gives."""
    attributes: ClassVar[Sequence[Attribute]] = ()
    siteAttributes: ClassVar[Sequence[Attribute]] = ()
    """Values that the site sets for this type, in the configuration's table ``[type.NAME]``."""
    requestIdAttribute: ClassVar[str] = ""
    """The attribute with the experiment's own id of the request, by which its grid jobs can be found; empty: none."""

    def __init__(self, request: Mapping[str, Any], site: Site) -> None:
        self.request = request
        self.site = site

    def checkErrors(self) -> Iterable[str]:
        """Faults of the request that the declared attributes alone cannot show, one sentence each."""
        return ()

    def getSize(self) -> int | None:
        """The grid job's size in events, or None for a type whose local jobs are not slices of a whole."""
        return self.request.get("events")

    def getNumSubmissionTimes(self) -> int:
        """The number of local jobs; by default from the size (`adapters.decomposition`).

        :raises TooLarge: where the site would not take that many.
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
        """The grid jobs that this one is made of, in their order; none for a type with local jobs of its own."""
        return ()

    @abstractmethod
    def prepareWorkArea(self, workArea: Path) -> None:
        """Put into the empty folder ``workArea`` what every local job needs: it becomes the sandbox."""

    @abstractmethod
    def getCommandAndArguments(self, localJob: LocalJob) -> Sequence[str]:
        """The command line of one local job, run in a copy of the work area; ``./name`` is a file of it.

        The program finds ``SAMGRID_INDEX``, ``SAMGRID_FIRST_EVENT``, ``SAMGRID_EVENTS`` and ``SAMGRID_SEED`` in
        its environment, and leaves in ``output/`` what shall come back.
        """

    def getEnvironment(self) -> Mapping[str, str]:
        """Variables that every local job gets beside those of the request."""
        return {}

    def getPhaseOfLine(self, line: str) -> Phase | None:
        """The phase that a line of a program's standard output tells of, in words of its own; None for most lines.

        Who overrides this is asked while the local jobs run, about lines in their order, of which some may be missing.
        """
        return None

    def getSummary(self, outputs: Sequence[Path]) -> Mapping[str, str]:
        """What the outputs amount to, a few names and values for people; ``outputs`` has a folder per local job."""
        return {}
