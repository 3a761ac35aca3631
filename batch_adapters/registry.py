"""The batch systems we know, by name: the built-in ones, and those that the site's tables define."""

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # a request is mostly accepted without any adapter
    from batch_adapters.adapter import BatchAdapter

ADAPTERS = {
    "condor": "batch_adapters.condor:CONDOR",
    "fork": "batch_adapters.fork:FORK",
    "lsf": "batch_adapters.lsf:LSF",
    "pbs": "batch_adapters.pbs:PBS",
    "sge": "batch_adapters.sge:SGE",
    "slurm": "batch_adapters.slurm:SLURM",
    "torque": "batch_adapters.pbs:TORQUE",
}
"""Name of each batch system and where its adapter is; loaded when it is asked for."""

Tables = Mapping[str, Mapping[str, Any]]
"""What the configuration says in ``[batch.NAME]``, by name."""


class UnknownBatchSystem(LookupError):
    """No batch adapter has that name; the message lists the known ones."""


class BadAdapter(Exception):
    """A table does not make a batch adapter; ``faults`` has a sentence for each thing to be mended."""

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
    module, attribute = ADAPTERS[name].split(":")
    adapter: BatchAdapter = getattr(import_module(module), attribute)
    return adapter
