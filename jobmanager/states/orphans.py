"""Local jobs in a batch system that carry a token of ours, but that no live grid job owns."""

import functools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from batch_adapters.adapter import LocalStatus
from batch_adapters.running.batch_system import BatchSystem
from jobmanager.database.database import Database

_TOKEN = re.compile(r"([a-z][a-z0-9]{7})-[0-9a-z]{1,6}", re.ASCII)


@dataclass(frozen=True)
class Orphan:
    """One of them."""

    local_id: str
    token: str
    native_state: str
    is_ours: bool
    """Its grid job is in this job database; other state folders of the same account make tokens, too."""
    reason: str


def find_orphans(database: Database, system: BatchSystem, statuses: Iterable[LocalStatus]) -> Iterator[Orphan]:
    """The orphans among what a batch system answered that it has; a submission that is under way makes none."""
    open_grid_jobs = {job.id for job in database.grid_jobs.list_open()}
    in_doubt = database.local_jobs.tokens_in_doubt()
    is_taken = functools.cache(database.grid_jobs.has)
    is_registered = functools.cache(functools.partial(database.local_jobs.is_registered, system.adapter.name))
    earlier_ids = functools.cache(database.local_jobs.earlier_ids)
    for status in statuses:
        match = _TOKEN.fullmatch(status.token)
        is_alive = status.state is not None and not status.state.is_final and not status.is_leaving
        if match is None or not is_alive or status.token in in_doubt:
            continue
        array = system.adapter.naming.array_of(status.local_id) or status.local_id
        is_ours = is_taken(match[1])
        reason = _find_reason(is_registered(status.token, array), match[1], is_ours, match[1] in open_grid_jobs)
        if status.local_id in earlier_ids(match[1]):
            reason = f"an earlier attempt of grid job {match[1]}, which has tried again"
        if reason:
            yield Orphan(status.local_id, status.token, status.native_state, is_ours, reason)


def _find_reason(is_registered: bool, grid_job: str, is_ours: bool, is_open: bool) -> str:
    if not is_ours:
        return f"no grid job {grid_job} in this job database"
    if not is_registered:
        return f"grid job {grid_job} does not know of it"
    return "" if is_open else f"grid job {grid_job} has ended"
