"""Step 5 of a grid job: each local job is submitted exactly once, whoever dies when.

Before a submit command runs, its token is in the documents of the local jobs that it submits (the intent). Where a
token is there but the ids are not, nobody knows what happened: the batch system is asked for the token. Found: its ids
are adopted. Answered that there is none: the same submission is made again, under the same token. No answer: later.
"""

import logging
import string
from collections.abc import Mapping, Sequence
from typing import Any

from batch_adapters.adapter import Garbled, Submission, Unreachable
from batch_adapters.batch_system import BatchSystem
from batch_adapters.registry import find_adapter
from jobmanager.account import Account
from jobmanager.database import Database
from jobmanager.grid_job import GridJob
from jobmanager.local_job import LocalJob
from jobmanager.registration import register_local_jobs

logger = logging.getLogger(__name__)

_DIGITS = string.digits + string.ascii_lowercase


def submit_local_jobs(account: Account, job: GridJob, request: Mapping[str, Any]) -> None:
    """Submit and register every local job that is not; stops where the grid job is cancelled meanwhile.

    :raises Refused: the batch system does not want it.
    :raises Unreachable, Garbled: the rest must wait.
    """
    database = account.database
    system = find_batch_system(account, job.batch)
    for token, indexes in open_intents(database, job.identity).items():
        if adopt(database, system, job.identity, token):
            continue
        if database.grid_job(job.identity).cancelled:
            return
        _submit(account, system, job.identity, _submission(account, job, request, token, indexes))
    while intent := write_intent(database, job.identity, system.adapter.max_array):
        _submit(account, system, job.identity, _submission(account, job, request, *intent))


def find_batch_system(account: Account, name: str) -> BatchSystem:
    """The batch system of that name as this account uses it."""
    return BatchSystem(find_adapter(name), account.batch_variables())


def open_intents(database: Database, grid_job: str) -> dict[str, list[int]]:
    """The tokens whose ids are not known, each with the indexes of its local jobs."""
    intents: dict[str, list[int]] = {}
    for job in database.local_jobs_in_doubt(grid_job):
        intents.setdefault(str(job.token), []).append(job.index)
    return intents


def write_intent(database: Database, grid_job: str, max_array: int) -> tuple[str, list[int]] | None:
    """Commit the token of the next array to be submitted; None where nothing is left, or the grid job is cancelled."""
    with database.transaction():
        jobs = database.local_jobs_to_submit(grid_job, max_array)
        if not jobs or database.grid_job(grid_job).cancelled:
            return None
        # Up to the first gap in the indexes: an array has none.
        array = [job for position, job in enumerate(jobs) if job.index == jobs[0].index + position]
        token = f"{grid_job}-{_base36(database.count_tokens(grid_job) + 1)}"
        for job in array:
            job.intend(token)
        database.put_local_jobs(grid_job, array)
    return token, [job.index for job in array]


def adopt(database: Database, system: BatchSystem, grid_job: str, token: str) -> bool:
    """Register what the batch system has under a token; False if it answered that it has nothing.

    Where a part of an array is missing the answer may have been cut short: it is asked again later. Once an answer
    names nothing new, the missing ones lose their intent: they go under a new token.

    :raises Unreachable, Garbled: nobody knows.
    """
    ids = _find_ids(system, token)
    if not ids and not any(job.token == token and job.local_id for job in database.local_jobs(grid_job)):
        return False
    in_doubt = _in_doubt(database, grid_job, token)
    logger.info("%s %s found in the batch system: %d local jobs", grid_job, token, len(ids))
    register_local_jobs(database, grid_job, ids)
    missing = _in_doubt(database, grid_job, token)
    if missing and len(missing) < len(in_doubt):
        raise Garbled(f"{token}: {len(missing)} of its local jobs are not in the answer: it will be asked again")
    with database.transaction():
        for job in missing:
            job.forget_intent()
        database.put_local_jobs(grid_job, missing)
    return True


def _find_ids(system: BatchSystem, token: str) -> dict[int, str]:
    try:
        return {system.adapter.index_of(status.local_id): status.local_id for status in system.find(token)}
    except ValueError as error:
        raise Garbled(f"{token}: an id without an index in the answer: {error}") from error


def _in_doubt(database: Database, grid_job: str, token: str) -> list[LocalJob]:
    return [job for job in database.local_jobs_in_doubt(grid_job) if job.token == token]


def _submit(account: Account, system: BatchSystem, grid_job: str, submission: Submission) -> None:
    try:
        ids = system.submit(submission)
    except (Unreachable, Garbled) as error:
        logger.warning("%s %s: %s: looking for it", grid_job, submission.token, error)
        if not adopt(account.database, system, grid_job, submission.token):
            raise
        return
    logger.info("%s %s submitted: local jobs %d to %d", grid_job, submission.token, submission.first, submission.last)
    register_local_jobs(account.database, grid_job, ids)


def _submission(
    account: Account, job: GridJob, request: Mapping[str, Any], token: str, indexes: Sequence[int]
) -> Submission:
    return Submission(
        token=token,
        first=indexes[0],
        last=indexes[-1],
        driver=str(account.places.driver(job.identity)),
        log_folder=str(account.places.results(job.identity)),
        queue=request["queue"],
        project=request["project"],
        max_cpu_minutes=request["max_cpu_time"] or 0,
        max_wall_minutes=request["max_wall_time"] or 0,
        max_memory_mb=request["max_memory"] or 0,
    )


def _base36(number: int) -> str:
    digits = ""
    while number:
        number, digit = divmod(number, 36)
        digits = _DIGITS[digit] + digits
    return digits
