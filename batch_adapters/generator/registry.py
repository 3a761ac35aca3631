"""The generator's modules, by the name that ``-s`` takes."""

from importlib import import_module

from batch_adapters.generator.module import Module

MODULES = {
    "condor": "batch_adapters.condor.events:CONDOR",
    "events": "batch_adapters.generator.event_lines:DAY_FILES",
    "fork": "batch_adapters.fork.events:FORK",
    "lsf": "batch_adapters.lsf.events:LSF",
    "pbs": "batch_adapters.pbs.events:PBS",
    "sge": "batch_adapters.sge.events:SGE",
    "slurm": "batch_adapters.slurm.events:SLURM",
}
"""Where each known module is; loaded when it is asked for."""

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
    module, attribute = MODULES[name].split(":")
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
