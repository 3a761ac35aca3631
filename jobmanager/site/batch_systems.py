"""The batch systems of one account, as its configuration wants them."""

from pathlib import Path
from typing import TYPE_CHECKING

from jobmanager.site.account import Account

if TYPE_CHECKING:  # what runs commands takes long to load: "samgrid status" and "samgrid submit" run none
    from batch_adapters.adapter import BatchAdapter
    from batch_adapters.running.batch_system import BatchSystem
    from batch_adapters.running.traffic import Silence


def find_batch_adapter(account: Account, name: str) -> "BatchAdapter":
    """The batch adapter of that name.

    :raises UnknownBatchSystem: there is none.
    """
    from batch_adapters.site_adapter import find_adapter

    return find_adapter(name, account.configuration.batch)


def find_batch_system(account: Account, name: str) -> "BatchSystem":
    """The batch system of that name as this account uses it.

    :raises UnknownBatchSystem: there is none.
    """
    from batch_adapters.running.batch_system import BatchSystem
    from batch_adapters.running.traffic import Traffic

    adapter = find_batch_adapter(account, name)
    traffic = Traffic(traffic_file(account, name), adapter.commands_per_minute)
    return BatchSystem(adapter, account.batch_variables(), traffic)


def traffic_file(account: Account, name: str) -> Path:
    """Where the account's processes share how much they have asked a batch system."""
    return account.places.root / f"batch-{name}.json"


def find_silence(account: Account, name: str) -> "Silence | None":
    """Since when a batch system does not answer, if it does not; it is not asked now."""
    from batch_adapters.running.traffic import Traffic

    # The restraint is for those who ask.
    return Traffic(traffic_file(account, name), per_minute=0).silence()
