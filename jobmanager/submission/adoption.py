"""Finds a submission whose result is unknown, and adopts its ids.

It is looked for in the batch system's queue, then in its history, then in drivers' status files. This is the order in
which a local job moves, so one that moves in between is found by the next query. A submission was never made only if it
is in none of them, after the time in which it may still appear. If the batch system does not answer, a status file of
every local job of the token is proof, too.
"""

import logging
import re
import time
from collections.abc import Iterable, Mapping, Sequence

from batch_adapters.adapter import Garbled, LocalStatus, Unreachable
from batch_adapters.running.batch_system import BatchSystem
from jobmanager import render_number
from jobmanager.database.database import Database
from jobmanager.database.local_job import Evidence, LocalJob
from jobmanager.site.account import Account
from jobmanager.states.changes import CLOCKS_DIFFER, change_local_jobs, of_token, put_local_jobs
from jobmanager.states.driver_status import read_driver_status
from jobmanager.states.registration import register_local_jobs
from sandbox.status import render_stem

logger = logging.getLogger(__name__)


class Unsettled(Unreachable):
    """A submission is nowhere, but may still appear."""


def adopt(account: Account, system: BatchSystem, grid_job: str, token: str) -> bool:
    """Register the local jobs that were submitted under a token; False if there are none, and never will be.

    If a part of an array is missing, the answer may be incomplete, and the query is repeated later. When an answer adds
    nothing, the rest is submitted under a new token.

    :raises Unreachable, Garbled: the result is still unknown.
    """
    database = account.database
    jobs = database.local_jobs.of_token(grid_job, token)
    in_doubt = {job.index for job in jobs if job.local_id is None}
    found = _search_everywhere(account, system, grid_job, token, [job.index for job in jobs], in_doubt)
    eldest = {index: ids[0] for index, ids in found.items() if index in in_doubt}
    if not eldest:
        return _believe_absence(system, database, grid_job, token, jobs)
    logger.info("%s %s found in the batch system: %s", grid_job, token, render_number(len(eldest), "local job"))
    register_local_jobs(database, grid_job, eldest, system.adapter.naming)
    _cancel_duplicates(system, database, grid_job, found)
    if missing := in_doubt - eldest.keys():
        raise Garbled(f"{token}: {len(missing)} of its local jobs are not in the answer: it will be asked again")
    return True


def _believe_absence(system: BatchSystem, database: Database, grid_job: str, token: str, jobs: list[LocalJob]) -> bool:
    """Decide when nothing more was found; False if nothing of the token was ever found."""
    missing = [job for job in jobs if job.local_id is None]
    now = time.time()
    if any(job.intended > now + CLOCKS_DIFFER for job in missing):
        # The clock was set back since: when it was sent is unknown, but it was not later than now.
        change_local_jobs(database, grid_job, of_token(grid_job, token), lambda job: job.intend(token, now))
    if missing and now - max(job.intended for job in missing) < system.adapter.settle_time:
        problem = (
            f"{token} is nowhere in {system.adapter.name}; it may still turn up: it is looked for until"
            f" {system.adapter.settle_time:.0f} s after it was sent"
        )
        first = missing[0]
        if said := [seen.said for seen in first.evidence() if seen.source == "us" and seen.when >= first.intended]:
            problem += f', and then sent again. If this refuses it, "samgrid cancel {grid_job}" ends it: {said[-1]}'
        raise Unsettled(problem)
    if len(missing) == len(jobs):
        return False
    change_local_jobs(database, grid_job, of_token(grid_job, token), LocalJob.forget_intent)
    return True


def _search_everywhere(
    account: Account, system: BatchSystem, grid_job: str, token: str, indexes: Sequence[int], wanted: set[int]
) -> dict[int, list[str]]:
    """The ids of a token's local jobs by index, the oldest id first; ``indexes`` are in order of position."""
    found: dict[int, list[str]] = {}
    try:
        _add(found, system, indexes, system.find(token) or system.find_renamed(token))
        if wanted - found.keys():
            _add(found, system, indexes, system.find_ended(token))
    except (Unreachable, Garbled):
        _add_drivers(found, account, grid_job, token)
        if wanted - found.keys():
            raise
    if wanted - found.keys():
        _add_drivers(found, account, grid_job, token)
    return {index: sorted(dict.fromkeys(ids), key=_age) for index, ids in found.items()}


def _add(
    found: dict[int, list[str]], system: BatchSystem, indexes: Sequence[int], statuses: Iterable[LocalStatus]
) -> None:
    for status in statuses:
        position = system.adapter.naming.position_of(status.local_id)
        if not 1 <= position <= len(indexes):
            raise Garbled(f"{status.local_id} is at position {position} of an array of {len(indexes)}")
        found.setdefault(indexes[position - 1], []).append(status.local_id)


def _add_drivers(found: dict[int, list[str]], account: Account, grid_job: str, token: str) -> None:
    """Add the ids of the token's local jobs whose drivers have started."""
    prefix = render_stem(grid_job, "")
    for file in account.places.results(grid_job).glob(f"{prefix}*.status"):
        status = read_driver_status(file)
        if status.token == token and status.index is not None:
            local_id = file.name.removeprefix(prefix).removesuffix(".status")
            found.setdefault(status.index, []).append(local_id)


def _age(local_id: str) -> list[int]:
    # Batch systems count upwards.
    return [int(number) for number in re.findall(r"\d+", local_id)]


def _cancel_duplicates(system: BatchSystem, database: Database, grid_job: str, found: Mapping[int, list[str]]) -> None:
    """Cancel all but the oldest of jobs that were submitted twice, and record that."""
    now = int(time.time())
    unwanted = []
    with database.transaction():
        for index, ids in found.items():
            job = database.local_jobs.get(grid_job, index)
            others = [local_id for local_id in ids if local_id != job.local_id]
            if others and job.local_id is not None:
                words = f"submitted twice: {', '.join(others)}"
                job.put_evidence(Evidence("us", words, now, f"cancelled; {job.local_id} stays"))
                put_local_jobs(database, grid_job, [job])
                unwanted += others
    if unwanted:
        logger.warning("%s submitted twice, cancelled: %s", grid_job, " ".join(unwanted[:20]))
        system.cancel(unwanted, grid_job)
