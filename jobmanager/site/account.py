"""One account's job manager: where its state lies, how it is configured, its database and batch systems."""

import functools
import os
import pwd
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from batch_adapters.launch import LAUNCH, command_line
from jobmanager.database.database import Database, DatabaseError
from jobmanager.site.configuration import Configuration, read_configuration
from jobmanager.site.host import OtherHost, check_host, claim_host
from jobmanager.site.places import StateFolderError, StatePlaces, find_state_folder, make_state_folder

if TYPE_CHECKING:  # what runs commands takes long to load: "samgrid status" and "samgrid submit" run none
    from batch_adapters.adapter import BatchAdapter
    from batch_adapters.running.batch_system import BatchSystem
    from batch_adapters.running.rate_limiter import Outage


@dataclass(frozen=True)
class Account:
    """One account's paths, configuration, database and batch systems."""

    places: StatePlaces
    configuration: Configuration
    owns_process: bool = True
    """False in somebody's Python, to which the process's signals belong."""

    @property
    def handler_time_limit(self) -> float:
        """Seconds that a call of a handler may take; 0: without a limit, as the caller can interrupt it."""
        return self.configuration.handlers.time_limit if self.owns_process else 0

    @functools.cached_property
    def database(self) -> Database:
        """The XML job database, opened when it is first needed."""
        # Without a state folder, nothing was ever submitted.
        if not self.places.root.exists():
            return Database(None)
        lost = self._find_lost_database()
        if lost and not self.places.database.exists():
            raise DatabaseError(lost)
        return Database(self.places.database, self.refusal, lost)

    @property
    def refusal(self) -> str:
        """Why this host may change nothing now, as another is the active one, and the way out; empty where it may."""
        try:
            check_host(self.places)
        except OtherHost as other:
            return str(other)
        return ""

    def _find_lost_database(self) -> str:
        """Why no job database may be begun anew: there are folders of grid jobs; empty if there are none."""
        own = self.places.root / "jobs"
        if not own.is_dir() or not any(own.iterdir()):
            return ""
        return (
            f"job database {self.places.database} is missing or empty, but {own} has grid jobs: bring it back, with its"
            f" -wal file if there was one, or move {own} away, and a new one is begun"
        )

    def program(self, name: str, *arguments: str) -> list[str]:
        """The command line of another of our programs, for the same state folder."""
        return command_line(name, "--state-dir", str(self.places.root), *arguments)

    @property
    def fork_slots(self) -> int:
        """How many cores the local jobs of the embedded batch system may use in total."""
        return self.configuration.fork.slots or len(os.sched_getaffinity(0))

    def batch_variables(self) -> dict[str, str]:
        """The site's variables for the templates of all batch adapters."""
        fork = self.configuration.fork
        return {
            "python": sys.executable,
            "launch": str(LAUNCH),
            "fork_spool": str(self.places.fork_spool),
            "fork_slots": str(self.fork_slots),
            "fork_grace": str(fork.cancel_grace),
        }


def open_account(state_dir: str | None, create: bool = True) -> Account:
    """The account whose state folder is named, or the caller's own.

    :param create: to work with it: the folder is made where there is none, and no other host may be the active one.
    :raises StateFolderError, ConfigurationError: in one clear sentence each.
    """
    configuration = read_configuration(os.environ)
    spool = configuration.sandbox.spool_folder
    try:
        user = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        raise StateFolderError(f"user {os.geteuid()} has no name on this host: make an account of it") from None
    places = StatePlaces(find_state_folder(state_dir, os.environ), spool / user if spool else None)
    if create or places.root.exists():
        for folder in filter(None, (places.root, places.spool)):
            make_state_folder(folder)
    if create:
        claim_host(places)
    return Account(places, configuration)


def find_batch_adapter(account: Account, name: str) -> "BatchAdapter":
    """The batch adapter of that name; raises UnknownBatchSystem: there is none."""
    from batch_adapters.site_adapter import find_adapter

    return find_adapter(name, account.configuration.batch)


def find_batch_system(account: Account, name: str) -> "BatchSystem":
    """The batch system with that name, with this account's rate limit.

    :raises UnknownBatchSystem: there is none. Unreachable: its jobs are processes of another host.
    """
    from batch_adapters.adapter import Unreachable
    from batch_adapters.running.batch_system import BatchSystem
    from batch_adapters.running.rate_limiter import RateLimiter

    # Its spool is SQLite's, too: to look from here would harm it.
    if name == "fork" and (refusal := account.refusal):
        raise Unreachable(f"its local jobs are processes of the active host: {refusal}")
    adapter = find_batch_adapter(account, name)
    limiter = RateLimiter(limiter_file(account, name), adapter.commands_per_minute, adapter.longest_pause)
    return BatchSystem(adapter, account.batch_variables(), limiter)


def limiter_file(account: Account, name: str) -> Path:
    """The file in which the account's processes share the rate limit of a batch system."""
    return account.places.root / f"batch-{name}.json"


def find_outage(account: Account, name: str) -> "Outage | None":
    """Since when a batch system does not answer, as far as is known; None if it does. It is not asked now."""
    from batch_adapters.running.rate_limiter import RateLimiter

    # The rate limit is for those who ask.
    return RateLimiter(limiter_file(account, name), per_minute=0).outage()
