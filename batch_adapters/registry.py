"""The batch systems and the event generator's modules by name; each is loaded when it is needed."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:  # most requests are accepted without loading an adapter
    from batch_adapters.adapter import BatchAdapter
    from batch_adapters.generator.module import Module

ADAPTERS = {
    "condor": "batch_adapters.condor:CONDOR",
    "fork": "batch_adapters.fork.adapter:FORK",
    "lsf": "batch_adapters.lsf:LSF",
    "pbs": "batch_adapters.pbs:PBS",
    "sge": "batch_adapters.sge:SGE",
    "slurm": "batch_adapters.slurm:SLURM",
    "torque": "batch_adapters.pbs:TORQUE",
}
"""Each built-in batch system and the place of its adapter; the site's tables may define others."""

Tables = Mapping[str, Mapping[str, Any]]
"""The tables ``[batch.NAME]`` of the configuration, by name."""


class UnknownBatchSystem(LookupError):
    """No batch adapter has that name; the message lists the known ones."""


class BadAdapter(Exception):
    """A table does not define a batch adapter; ``faults`` has one sentence for each fault."""

    def __init__(self, faults: list[str]) -> None:
        super().__init__("; ".join(faults))
        self.faults = faults


def check_name(name: str, tables: Tables) -> None:
    """Check that there is a batch system of that name.

    :raises UnknownBatchSystem: naming the known ones.
    """
    known = {*ADAPTERS, *tables}
    if name not in known:
        raise UnknownBatchSystem(f'unknown batch system "{name}": known are {", ".join(sorted(known))}')


def find_builtin(name: str) -> "BatchAdapter":
    """The built-in batch adapter of that name.

    :raises UnknownBatchSystem: naming the known ones.
    """
    check_name(name, {})
    adapter: BatchAdapter = _load(ADAPTERS[name])
    return adapter


def _load(place: str) -> Any:
    module, attribute = place.split(":")
    # Not by importlib, which does not know our short names in other interpreters.
    return getattr(__import__(module, fromlist=[attribute]), attribute)


class EventModule(NamedTuple):
    """The place of an event generator's module, and the text in the help about the log that it reads by default."""

    place: str
    log: str


EVENT_MODULES = {
    "condor": EventModule("batch_adapters.condor.events:CONDOR", "what condor_config_val EVENT_LOG prints"),
    "events": EventModule(
        "batch_adapters.generator.module:DAY_FILES", "needs -l: the folder another generator fills with -d"
    ),
    "fork": EventModule("batch_adapters.fork.events:FORK", "$SAMGRID_STATE/fork/events, or below the XDG state folder"),
    "lsf": EventModule(
        "batch_adapters.lsf.events:LSF", "LSB_SHAREDIR/CLUSTER/logdir/lsb.events; $LSB_SHAREDIR or /etc/lsf.conf"
    ),
    "pbs": EventModule("batch_adapters.pbs.events:PBS", "PBS_HOME/server_logs/; $PBS_HOME or /etc/pbs.conf"),
    "poll": EventModule(
        "batch_adapters.generator.poll:POLL", "needs -l: a JSON file, whom to ask and how often; no log"
    ),
    "sge": EventModule("batch_adapters.sge.events:SGE", "$SGE_ROOT/$SGE_CELL/common/reporting"),
    "slurm": EventModule(
        "batch_adapters.slurm.events:SLURM", "SlurmctldLogFile of /etc/slurm/slurm.conf or $SLURM_CONF"
    ),
}
"""The generator's modules, by the name that ``-s`` takes."""

ENTRY_POINTS = "samgrid.event_generators"
"""The entry-point group for further modules."""


class UnknownEventModule(Exception):
    """No module has that name, or it cannot be loaded; the message names the known ones."""


def find_event_module(name: str) -> "Module":
    """The module of that name; raises UnknownEventModule: there is none, or it cannot be loaded."""
    found: Module
    if name in EVENT_MODULES:
        found = _load(EVENT_MODULES[name].place)
        return found
    # Imported late: it takes longer to import than everything else.
    from importlib.metadata import entry_points

    foreign = {entry.name: entry for entry in entry_points(group=ENTRY_POINTS)}
    if name not in foreign:
        known = ", ".join(sorted(EVENT_MODULES.keys() | foreign.keys()))
        raise UnknownEventModule(
            f'no module "{name}": known are {known}; others come through entry points "{ENTRY_POINTS}"'
        )
    try:
        found = foreign[name].load()
    except (ImportError, AttributeError) as error:
        raise UnknownEventModule(f'module "{name}" ({foreign[name].value}) cannot be loaded: {error}') from error
    return found
