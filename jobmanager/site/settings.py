"""Every setting of the configuration, declared once: the sections with their typed keys, defaults, units and ranges."""

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from typing import Any

from adapters.attributes import Attribute, Kind, Value, show


def _split(text: str) -> list[str]:
    import shlex  # seldom needed

    return shlex.split(text)


class EventSource(enum.Enum):
    """Where the events of local jobs come from."""

    LOG = "log"
    DAY_FILES = "day-files"
    POLL = "poll"


class Transfer(enum.Enum):
    """How sandboxes reach the local jobs, and how outputs come back."""

    SHARED = "shared"
    BATCH_SYSTEM = "batch-system"


class Benchmark(enum.Enum):
    """What tells how fast a core is; APEL takes these names."""

    HEPSCORE23 = "hepscore23"
    HEPSPEC = "hepspec"


class FailedAs(enum.Enum):
    """How GRAM hears, where it reads events, of a grid job that failed."""

    FAILED = "failed"
    DONE = "done"


_KINDS: Mapping[Any, Kind] = {
    int: Kind.INTEGER,
    float: Kind.NUMBER,
    str: Kind.NAME,
    Path | None: Kind.PATH,
    tuple[Path, ...]: Kind.PATHS,
    Sequence[str]: Kind.COMMAND,
    tuple[str, ...]: Kind.MODULES,
}
"""By the Python type of a key; any other is an enum of words."""

_SPLIT: Mapping[Kind, Callable[[str], Sequence[str]]] = {
    Kind.COMMAND: _split,
    Kind.PATHS: lambda text: text.split(":") if text else [],
    Kind.MODULES: lambda text: text.split(":") if text else [],
}
"""How an environment variable holds a list."""


@dataclass(frozen=True)
class Setting(Attribute):
    """One key of one section."""

    section: str = ""
    words: type[enum.Enum] | None = None
    """What its choices become."""

    @property
    def variable(self) -> str:
        """The environment variable that overrides the files."""
        return f"SAMGRID_{self.section}_{self.name}".upper()

    def read(self, values: Sequence[Value], folder: Path = Path("/")) -> Any:
        found = super().read(values, folder)
        return self.words(found) if self.words else found

    def read_text(self, text: str) -> Any:
        """The typed value of what an environment variable says; raises ValueError saying what it must be."""
        try:
            values = _SPLIT[self.kind](text) if self.kind in _SPLIT else [text]
        except ValueError:
            raise self.fault(show(text)) from None
        return self.read(values)


def _declare(section: str, key: "Field[Any]") -> Setting:
    type_: Any = key.type
    if type_ in _KINDS:
        return Setting(key.name, kind=_KINDS[type_], default=key.default, section=section, **key.metadata)
    choices = tuple(word.value for word in type_)
    return Setting(key.name, default=key.default, choices=choices, section=section, words=type_, **key.metadata)


def _key(
    default: Any, doc: str, unit: str = "", minimum: float | None = None, maximum: float | None = None
) -> Any:  # Any, as dataclasses.field() is to a type checker: the annotation beside it says the type
    return field(default=default, metadata={"doc": doc, "unit": unit, "minimum": minimum, "maximum": maximum})


_DAY = 86400
_YEAR_IN_MINUTES = 525600


@dataclass(frozen=True)
class SiteSettings:
    """Who we are, and what runs our local jobs."""

    name: str = _key("local", "Name of this site, in the job database and on the web page.")
    batch_system: str = _key("fork", "Batch system that local jobs go to.")
    dataset_command: Sequence[str] = _key(
        (), 'Program that prints the files of dataset {name}, one a line, such as ["rucio-list", "{name}"].'
    )
    dataset_time_limit: float = _key(60, "It is killed when it has not come to an end for so long.", "seconds", 1, 3600)


@dataclass(frozen=True)
class DecompositionSettings:
    """How many local jobs a grid job becomes."""

    events_per_local_job: int = _key(
        250, "Events per local job, if neither the request nor CPU times determine them.", "events", 1, 10**9
    )
    recommended_cpu_time: float = _key(
        0, "CPU time that a local job should take here; 0 = no recommendation.", "minutes", 0, _YEAR_IN_MINUTES
    )
    max_cpu_time: float = _key(
        0, "CPU time that a local job may take at most here; 0 = no limit.", "minutes", 0, _YEAR_IN_MINUTES
    )
    max_local_jobs: int = _key(
        100_000, "Most local jobs of one grid job; requests for more are refused.", "local jobs", 1, 10**6
    )


@dataclass(frozen=True)
class SandboxSettings:
    """Where local jobs run, and the limits of what goes out to them and comes back."""

    scratch_folder: Path | None = _key(
        None,
        "Folder on the worker node in which each local job gets a scratch folder of its own; "
        "by default the job's own folder where the batch system makes one, else /tmp.",
    )
    transfer: Transfer = _key(
        Transfer.SHARED,
        "How files travel: all nodes share a file system, or the batch system copies them (HTCondor can).",
    )
    spool_folder: Path | None = _key(
        None,
        "Folder on the shared file system in which each account gets a folder for the files of its grid jobs; "
        "by default they are in the account's state folder.",
    )
    max_input_files: int = _key(10_000, "Files in the work area of one grid job.", "files", 1, 10**7)
    max_input_size: int = _key(2000, "Size of the work area of one grid job; 1 MB is 10^6 bytes.", "MB", 1, 10**9)
    site_files: tuple[Path, ...] = _key(
        (), "Files and folders of the site in every sandbox, in $SAMGRID_SITE_FILES; in the variable, a colon between."
    )
    max_output_files: int = _key(1_000_000, "Files in the gathered output of one grid job.", "files", 1, 10**9)
    max_output_size: int = _key(
        100_000, "Size of the gathered output of one grid job; 1 MB is 10^6 bytes.", "MB", 1, 10**9
    )


@dataclass(frozen=True)
class MonitorSettings:
    """The pace of the job state monitor."""

    idle_time: float = _key(60, "The monitor ends when it has had nothing to do for this long.", "seconds", 0, _DAY)
    workers: int = _key(2, "Grid jobs that are submitted, cancelled or collected at once.", "processes", 1, 64)
    reconcile_interval: float = _key(
        30, "How often the batch system's queue is compared with the job database.", "seconds", 0.1, _DAY
    )
    progress_interval: float = _key(
        1,
        "How often the status files of running local jobs are read for phases, 2000 at a time.",
        *("seconds", 0.05, _DAY),
    )
    stall_time: float = _key(
        1800, "A running local job whose phases show nothing new for this long has stalled.", "seconds", 1, _DAY
    )
    credential_interval: float = _key(
        30, "How often the files of credentials are looked at, whose copies programs have.", "seconds", 0.1, _DAY
    )
    event_cache_time: float = _key(
        3600, "How long events are kept of local jobs that are not registered (yet).", "seconds", 0, 7 * _DAY
    )


@dataclass(frozen=True)
class EventsSettings:
    """How the monitor learns of local jobs' states; [events.NAME] is for one batch system."""

    source: EventSource = _key(
        EventSource.LOG,
        "Read the batch system's own log, the day files of another generator (docs/event-files.md), or only poll.",
    )
    path: Path | None = _key(
        None, "The log, or the folder of the day files; by default where the batch system keeps its log."
    )
    prefix: Sequence[str] = _key((), 'Command that starts the generator, such as ["sudo", "-n", "-u", "logreader"].')


@dataclass(frozen=True)
class GramSettings:
    """How GRAM learns of states (it polls, unless a key of events is set), and audit records (docs/gram.md)."""

    event_collector: Path | None = _key(
        None, "Socket of the collector, which writes the events of all accounts of this host."
    )
    event_folder: Path | None = _key(
        None, "Folder of day files that only this account writes; ignored if event_collector is set."
    )
    failed_as: FailedAs = _key(
        FailedAs.FAILED, "What GRAM's events finally say of a failed grid job: failed, or done with exit code 1."
    )
    audit_folder: Path | None = _key(
        None, "Folder that gets an audit record for each ended grid job that came through GRAM."
    )


@dataclass(frozen=True)
class ForkSettings:
    """The embedded batch system."""

    slots: int = _key(0, "Local jobs that run at once; 0 = one per processor.", "local jobs", 0, 900)
    cancel_grace: float = _key(10, "Time between SIGTERM and SIGKILL for a cancelled local job.", "seconds", 0, 3600)


@dataclass(frozen=True)
class HandlersSettings:
    """Job types beside the built-in ones."""

    modules: tuple[str, ...] = _key((), "Python modules with further job types; in the variable, separated by colons.")
    time_limit: float = _key(900, "A call of a handler that takes longer is interrupted.", "seconds", 1, _DAY)


@dataclass(frozen=True)
class NotificationSettings:
    """What tells people that a grid job has ended or stalled (docs/notification.md)."""

    command: Sequence[str] = _key(
        (), "Program with arguments that reads a JSON message on standard input; no shell runs it."
    )
    time_limit: float = _key(60, "A command that takes longer is killed.", "seconds", 1, 3600)
    patience: float = _key(900, "A grid job that has had a problem for this long has stalled.", "seconds", 1, _DAY)
    expiry_warning: float = _key(
        14_400, "How long before a credential of a grid job expires people are told of it.", "seconds", 0, 30 * _DAY
    )


@dataclass(frozen=True)
class AccountingSettings:
    """What stands in every usage record, beside the site's name (docs/accounting.md)."""

    benchmark: float = _key(0, "How fast one core is here; 0 = not known.", "", 0, 1000)
    benchmark_type: Benchmark = _key(Benchmark.HEPSCORE23, "What that was measured with.")
    vo: str = _key(
        "unknown", "Virtual organization that the local jobs of this account run for; unknown: records name none."
    )


@dataclass(frozen=True)
class Sections:
    """Every section's values."""

    site: SiteSettings = SiteSettings()
    decomposition: DecompositionSettings = DecompositionSettings()
    sandbox: SandboxSettings = SandboxSettings()
    monitor: MonitorSettings = MonitorSettings()
    events: EventsSettings = EventsSettings()
    gram: GramSettings = GramSettings()
    fork: ForkSettings = ForkSettings()
    handlers: HandlersSettings = HandlersSettings()
    notification: NotificationSettings = NotificationSettings()
    accounting: AccountingSettings = AccountingSettings()


SECTIONS: Mapping[str, Any] = {section.name: section.type for section in fields(Sections)}
"""Section → the class of its values."""
SETTINGS: Mapping[str, Mapping[str, Setting]] = {
    section: {key.name: _declare(section, key) for key in fields(keys)} for section, keys in SECTIONS.items()
}
"""Section → key → its declaration."""
