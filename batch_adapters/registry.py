"""The batch systems we know, by name, and the event generator's modules; each is loaded when it is asked for."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:  # a request is mostly accepted without any adapter
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
"""Name of each built-in batch system and where its adapter is; the site's tables may define others."""

Tables = Mapping[str, Mapping[str, Any]]
"""What the configuration says in ``[batch.NAME]``, by name."""


class UnknownBatchSystem(LookupError):
    """No batch adapter has that name; the message lists the known ones."""


class BadAdapter(Exception):
    """A table does not make a batch adapter; ``faults`` has a sentence for each thing to be put right."""

    def __init__(self, faults: list[str]) -> None:
        super().__init__("; ".join(faults))
        self.faults = faults


def check_name(name: str, tables: Tables) -> None:
    """Nothing, where there is a batch system of that name.

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
    # As an import statement: importlib does not know what our short names mean in other interpreters.
    return getattr(__import__(module, fromlist=[attribute]), attribute)


class EventModule(NamedTuple):
    """Where a module of the event generator is, and what its help says of the log that it reads where none is named."""

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
"""The entry-point group in which an experiment or a site adds its own."""


class UnknownEventModule(Exception):
    """No module has that name, or it cannot be loaded; the message says which there are."""


def find_event_module(name: str) -> "Module":
    """The module of that name.

    :raises UnknownEventModule: there is none, or it cannot be loaded.
    """
    if name not in EVENT_MODULES:
        return _find_foreign(name)
    found: Module = _load(EVENT_MODULES[name].place)
    return found


def _find_foreign(name: str) -> "Module":
    # Loaded here because it takes longer to import than all the rest.
    from importlib.metadata import entry_points

    foreign = {entry.name: entry for entry in entry_points(group=ENTRY_POINTS)}
    if name not in foreign:
        known = ", ".join(sorted(EVENT_MODULES.keys() | foreign.keys()))
        raise UnknownEventModule(
            f'no module "{name}": known are {known}; others come through entry points "{ENTRY_POINTS}"'
        )
    try:
        found: Module = foreign[name].load()
    except (ImportError, AttributeError) as error:
        raise UnknownEventModule(f'module "{name}" ({foreign[name].value}) cannot be loaded: {error}') from error
    return found
