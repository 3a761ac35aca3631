"""Every setting of the configuration, declared once: the sections with their typed keys, defaults, units and ranges."""

import enum
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class _Kind:
    """How values of one Python type are described, checked and, given as a variable's text, read."""

    noun: str
    accepts: Callable[[Any], bool]
    convert: Callable[[Any], Any]
    parse: Callable[[str], Any]


def _is_word(value: Any) -> bool:
    return isinstance(value, str) and bool(re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", value))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_path(value: Any) -> bool:
    # The processes of one account run in different folders: a relative path would name a different file in each.
    return isinstance(value, str) and value.startswith("/") and value.isprintable()


def _is_module(value: Any) -> bool:
    if isinstance(value, str) and value.endswith(".py"):
        return _is_path(value)
    return isinstance(value, str) and all(part.isidentifier() for part in value.split("."))


class EventSource(enum.Enum):
    """Where the events of local jobs come from."""

    LOG = "log"
    DAY_FILES = "day-files"
    POLL = "poll"


class Transfer(enum.Enum):
    """How sandboxes reach the local jobs, and how outputs come back."""

    SHARED = "shared"
    BATCH_SYSTEM = "batch-system"


class FailedAs(enum.Enum):
    """How GRAM hears, where it reads events, of a grid job that failed."""

    FAILED = "failed"
    DONE = "done"


def _choice(words: "type[EventSource] | type[FailedAs] | type[Transfer]") -> _Kind:
    known = [word.value for word in words]
    return _Kind("one of " + ", ".join(known), lambda value: value in known, words, str)


_KINDS: Mapping[Any, _Kind] = {
    EventSource: _choice(EventSource),
    FailedAs: _choice(FailedAs),
    Transfer: _choice(Transfer),
    Path | None: _Kind(
        "an absolute path, or nothing",
        lambda value: value == "" or _is_path(value),
        lambda value: Path(value) if value else None,
        str,
    ),
    int: _Kind("an integer", lambda value: _is_number(value) and isinstance(value, int), int, int),
    float: _Kind("a number", _is_number, lambda value: value, float),
    str: _Kind(
        "a word of letters, digits, dots, dashes and underscores, at most 64",
        _is_word,
        str,
        str,
    ),
    Path: _Kind("an absolute path", _is_path, Path, str),
    Sequence[str]: _Kind(
        "a list of the words of a command",
        lambda value: isinstance(value, list) and all(isinstance(word, str) and word.isprintable() for word in value),
        tuple,
        shlex.split,
    ),
    tuple[str, ...]: _Kind(
        "a list of dotted module names and absolute paths of .py files",
        lambda value: isinstance(value, list) and all(map(_is_module, value)),
        tuple,
        lambda text: text.split(":") if text else [],
    ),
}


@dataclass(frozen=True)
class Setting:
    """One key of one section; ``type`` is the Python type that the program gets, the range includes its ends."""

    section: str
    key: str
    type: Any
    default: Any
    doc: str
    unit: str = ""
    minimum: float | None = None
    maximum: float | None = None

    @property
    def variable(self) -> str:
        """The environment variable that overrides the files."""
        return f"SAMGRID_{self.section}_{self.key}".upper()

    def read(self, value: object) -> Any:
        """The typed value of what a file says; raises ValueError saying what it must be."""
        kind = _KINDS[self.type]
        if not kind.accepts(value) or not self._is_in_range(value):
            raise ValueError(f"must be {self.describe()}, not {show(value)}")
        return kind.convert(value)

    def read_text(self, text: str) -> Any:
        """The typed value of what an environment variable says; raises ValueError saying what it must be."""
        try:
            value = _KINDS[self.type].parse(text)
        except ValueError:
            raise ValueError(f"must be {self.describe()}, not {show(text)}") from None
        return self.read(value)

    def describe(self) -> str:
        """What a value must be, for people: ``a number from 0 to 3600 (seconds)``."""
        bounds = "" if self.minimum is None else f" from {self.minimum} to {self.maximum}"
        unit = f" ({self.unit})" if self.unit else ""
        return f"{_KINDS[self.type].noun}{bounds}{unit}"

    def _is_in_range(self, value: Any) -> bool:
        if self.minimum is None or self.maximum is None:
            return True
        return bool(self.minimum <= value <= self.maximum)


def show(value: object) -> str:
    """A faulty value as messages quote it: one line, shortened."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


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


@dataclass(frozen=True)
class DecompositionSettings:
    """How many local jobs a grid job becomes."""

    events_per_local_job: int = _key(
        250, "Rule of thumb, where neither the request nor CPU times say more.", "events", 1, 10**9
    )
    recommended_cpu_time: float = _key(
        0, "CPU time that a local job should take here; 0 = no recommendation.", "minutes", 0, _YEAR_IN_MINUTES
    )
    max_cpu_time: float = _key(
        0, "CPU time that a local job may take at most here; 0 = no limit.", "minutes", 0, _YEAR_IN_MINUTES
    )
    max_local_jobs: int = _key(
        100_000, "A grid job that would become more local jobs is refused.", "local jobs", 1, 10**6
    )


@dataclass(frozen=True)
class SandboxSettings:
    """Where local jobs run, and the limits of what goes out to them and comes back."""

    scratch_folder: Path | None = _key(  # noqa: RUF009 - this is dataclasses.field() in disguise
        None,
        "Folder on the worker node in which each local job gets a scratch folder of its own; "
        "by default the job's own folder where the batch system makes one, else /tmp.",
    )
    transfer: Transfer = _key(  # noqa: RUF009
        Transfer.SHARED,
        "Files are on a file system that all nodes share, or the batch system carries them (HTCondor can).",
    )
    spool_folder: Path | None = _key(  # noqa: RUF009
        None,
        "Folder on the shared file system in which each account gets a folder for the files of its grid jobs; "
        "by default they are in the account's state folder.",
    )
    max_input_files: int = _key(10_000, "Files in the work area of one grid job.", "files", 1, 10**7)
    max_input_size: int = _key(2000, "Size of the work area of one grid job; 1 MB is 10^6 bytes.", "MB", 1, 10**9)
    max_output_files: int = _key(1_000_000, "Files in the gathered output of one grid job.", "files", 1, 10**9)
    max_output_size: int = _key(
        100_000, "Size of the gathered output of one grid job; 1 MB is 10^6 bytes.", "MB", 1, 10**9
    )


@dataclass(frozen=True)
class MonitorSettings:
    """The pace of the job state monitor."""

    idle_time: float = _key(60, "The monitor ends after so long without work.", "seconds", 0, _DAY)
    workers: int = _key(2, "Grid jobs that are submitted, cancelled or collected at once.", "processes", 1, 64)
    reconcile_interval: float = _key(
        30, "How often the batch system's queue is compared with the job database.", "seconds", 0.1, _DAY
    )
    progress_interval: float = _key(
        1,
        "How often the status files of running local jobs are looked at for phases, of 2000 at once.",
        *("seconds", 0.05, _DAY),
    )
    stall_time: float = _key(
        1800, "A running local job that has told phases, but nothing new for so long, is warned of.", "seconds", 1, _DAY
    )
    event_cache_time: float = _key(
        3600, "How long events of local jobs that nobody registered are kept.", "seconds", 0, 7 * _DAY
    )


@dataclass(frozen=True)
class EventsSettings:
    """Where the monitor hears of the local jobs' states; [events.NAME] says otherwise of one batch system."""

    source: EventSource = _key(  # noqa: RUF009 - this is dataclasses.field() in disguise
        EventSource.LOG,
        "The batch system's own log, the day files of another generator (docs/event-files.md), or questions only.",
    )
    path: Path | None = _key(  # noqa: RUF009
        None, "The log, or the folder of the day files; by default where the batch system keeps its log."
    )
    prefix: Sequence[str] = _key((), 'Through what the generator is run, such as ["sudo", "-n", "-u", "logreader"].')


@dataclass(frozen=True)
class GramSettings:
    """How GRAM hears of its grid jobs' states, by polls where no key of events is set, and its audit (docs/gram.md)."""

    event_collector: Path | None = _key(  # noqa: RUF009 - this is dataclasses.field() in disguise
        None, "Socket of the collector, which writes the events of all accounts of this host."
    )
    event_folder: Path | None = _key(  # noqa: RUF009
        None, "Folder of day files that this account alone writes; not used where there is a collector."
    )
    failed_as: FailedAs = _key(  # noqa: RUF009
        FailedAs.FAILED,
        "How GRAM hears by events of a failed grid job: failed, or done with exit code 1, so that it stages files out.",
    )
    audit_folder: Path | None = _key(  # noqa: RUF009
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

    modules: tuple[str, ...] = _key(
        (), "Python modules with further job types; in the variable, with a colon between them."
    )
    time_limit: float = _key(
        900, "A handler that is asked something, and has not come to an end for so long, is ended.", "seconds", 1, _DAY
    )


SECTIONS: Mapping[str, type[Any]] = {
    "site": SiteSettings,
    "decomposition": DecompositionSettings,
    "sandbox": SandboxSettings,
    "monitor": MonitorSettings,
    "events": EventsSettings,
    "gram": GramSettings,
    "fork": ForkSettings,
    "handlers": HandlersSettings,
}

SETTINGS: Mapping[str, Mapping[str, Setting]] = {
    section: {key.name: Setting(section, key.name, key.type, key.default, **key.metadata) for key in fields(keys)}
    for section, keys in SECTIONS.items()
}
"""Section → key → its declaration."""
