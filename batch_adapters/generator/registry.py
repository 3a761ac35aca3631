"""The generator's modules, by the name that ``-s`` takes."""

from dataclasses import dataclass
from importlib import import_module

from batch_adapters.generator.module import Module


@dataclass(frozen=True)
class KnownModule:
    """Where a module is, and what the help text says of the log that it reads where none is named."""

    place: str
    log: str


MODULES = {
    "condor": KnownModule("batch_adapters.condor.events:CONDOR", "what condor_config_val EVENT_LOG prints"),
    "events": KnownModule(
        "batch_adapters.generator.event_lines:DAY_FILES", "needs -l: the folder another generator fills with -d"
    ),
    "fork": KnownModule("batch_adapters.fork.events:FORK", "$SAMGRID_STATE/fork/events, or below the XDG state folder"),
    "lsf": KnownModule(
        "batch_adapters.lsf.events:LSF", "LSB_SHAREDIR/CLUSTER/logdir/lsb.events; $LSB_SHAREDIR or /etc/lsf.conf"
    ),
    "pbs": KnownModule("batch_adapters.pbs.events:PBS", "PBS_HOME/server_logs/; $PBS_HOME or /etc/pbs.conf"),
    "poll": KnownModule(
        "batch_adapters.generator.poll:POLL", "needs -l: a JSON file, whom to ask and how often; no log"
    ),
    "sge": KnownModule("batch_adapters.sge.events:SGE", "$SGE_ROOT/$SGE_CELL/common/reporting"),
    "slurm": KnownModule(
        "batch_adapters.slurm.events:SLURM", "SlurmctldLogFile of /etc/slurm/slurm.conf or $SLURM_CONF"
    ),
}
"""The known modules; each is loaded when it is asked for."""

ENTRY_POINTS = "samgrid.event_generators"
"""The entry-point group in which an experiment or a site adds its own."""


class UnknownModule(Exception):
    """No module has that name, or it cannot be loaded; the message says which there are."""


def find_module(name: str) -> Module:
    """The module of that name.

    :raises UnknownModule: there is none, or it cannot be loaded.
    """
    if name not in MODULES:
        return _find_foreign(name)
    module, attribute = MODULES[name].place.split(":")
    found: Module = getattr(import_module(module), attribute)
    return found


def _find_foreign(name: str) -> Module:
    # Loaded here because it takes longer to import than all the rest.
    from importlib.metadata import entry_points

    foreign = {entry.name: entry for entry in entry_points(group=ENTRY_POINTS)}
    if name not in foreign:
        known = ", ".join(sorted(MODULES.keys() | foreign.keys()))
        raise UnknownModule(f'no module "{name}": known are {known}; others come through entry points "{ENTRY_POINTS}"')
    try:
        found: Module = foreign[name].load()
    except (ImportError, AttributeError) as error:
        raise UnknownModule(f'module "{name}" ({foreign[name].value}) cannot be loaded: {error}') from error
    return found
