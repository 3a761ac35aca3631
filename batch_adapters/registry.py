"""The batch systems we know, by name."""

from importlib import import_module

from batch_adapters.adapter import BatchAdapter

ADAPTERS = {"fork": "batch_adapters.fork:FORK"}
"""Name of each batch system and where its adapter is; loaded when it is asked for."""


class UnknownBatchSystem(LookupError):
    """No batch adapter has that name; the message lists the known ones."""


def find_adapter(name: str) -> BatchAdapter:
    """The batch adapter of that name.

    :raises UnknownBatchSystem: naming the known ones.
    """
    if name not in ADAPTERS:
        raise UnknownBatchSystem(f'unknown batch system "{name}": known are {", ".join(sorted(ADAPTERS))}')
    module, attribute = ADAPTERS[name].split(":")
    adapter: BatchAdapter = getattr(import_module(module), attribute)
    return adapter
