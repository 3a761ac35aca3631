"""What this site offers to the grid: job types, slots, local jobs, versions and health, as far as they are known."""

import os
import pwd
import socket
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from adapters.attributes import Attribute
from batch_adapters.adapter import BatchError
from batch_adapters.diagnosis import Level
from batch_adapters.running.batch_system import BatchSystem
from batch_adapters.states import State
from jobmanager.checks.doctor import examine
from jobmanager.requests.job_types import load_job_types
from jobmanager.site.account import Account, find_batch_system
from jobmanager.site.version import read_version


@dataclass(frozen=True)
class OfferedType:
    """A job type, and what a request of that type may say."""

    name: str
    attributes: Sequence[Attribute]


@dataclass(frozen=True)
class Offer:
    """What one account of a site offers; None, or an empty word: nobody could say, which is not zero."""

    site: str
    host: str
    account: str
    version: str
    batch_system: str
    batch_version: str
    slots: int | None
    free_slots: int | None
    """Of the batch system, for whoever comes first."""
    waiting: int | None
    """Local jobs of this account in the batch system, by its own answer; so are those that run."""
    running: int | None
    max_cpu_minutes: float | None
    """Of one local job; so far as the site limits it."""
    max_local_jobs: int
    """Of one grid job."""
    faults: Sequence[str]
    """What doctor finds; empty where all is well."""
    warnings: Sequence[str]
    job_types: Sequence[OfferedType]
    made: int
    """Seconds since 1970."""
    lifetime: int
    """Seconds after which nobody is to believe it any more."""

    @property
    def name(self) -> str:
        """What tells it from all other offers."""
        return f"{self.account}@{self.host}"

    @property
    def health(self) -> str:
        """One of GLUE's words for it."""
        return "critical" if self.faults else "warning" if self.warnings else "ok"


def collect_offer(account: Account, now: float, lifetime: int) -> Offer:
    """Ask the configuration, the handlers, doctor and the batch system; where that does not answer, it is left out.

    :raises UnknownBatchSystem: the configured one is none; HandlerError: a handler cannot be loaded.
    """
    configuration = account.configuration
    name = configuration.site.batch_system
    system = find_batch_system(account, name)
    findings = list(examine(account, [name], None))
    states = _count_states(system)
    slots, free_slots = (account.fork_slots, None) if name == "fork" else _ask_slots(system)
    types = load_job_types(configuration.handlers.modules)
    return Offer(
        site=configuration.site.name,
        host=socket.getfqdn(),
        account=pwd.getpwuid(os.geteuid()).pw_name,
        version=read_version(),
        batch_system=name,
        batch_version=_ask_version(system),
        slots=slots,
        free_slots=free_slots,
        waiting=None if states is None else states[State.PENDING],
        running=None if states is None else states[State.ACTIVE],
        max_cpu_minutes=configuration.decomposition.max_cpu_time or None,
        max_local_jobs=configuration.decomposition.max_local_jobs,
        faults=[finding.text for finding in findings if finding.level is Level.FAULT],
        warnings=[finding.text for finding in findings if finding.level is Level.WARNING],
        job_types=[OfferedType(word, types[word].attributes) for word in sorted(types)],
        made=int(now),
        lifetime=lifetime,
    )


def _count_states(system: BatchSystem) -> Counter[State | None] | None:
    try:
        return Counter(status.state for status in system.query())
    except BatchError:
        return None


def _ask_slots(system: BatchSystem) -> tuple[int | None, int | None]:
    try:
        return system.slots() or (None, None)
    except BatchError:
        return None, None


def _ask_version(system: BatchSystem) -> str:
    try:
        return system.version()
    except BatchError:
        return ""
