"""A grid job that has ended is submitted again: all of it, or what did not succeed."""

import logging
from collections.abc import Collection

from batch_adapters.states import State
from jobmanager.acceptance import add_grid_job, prepare_grid_job
from jobmanager.account import Account
from jobmanager.database import Database
from jobmanager.grid_job import GridJob

logger = logging.getLogger(__name__)


class NotRepeatable(Exception):
    """There is nothing to submit again, or not yet; the sentence says why."""


def repeat_grid_job(account: Account, identity: str, only_failed: bool) -> GridJob:
    """The new grid job with the request of one that has ended; ``only_failed``: with what did not succeed in that.

    :raises NotRepeatable: it has not ended, or nothing of it failed.
    :raises BadRequest: its request cannot be run any more.
    :raises UnknownJob: it has been removed.
    """
    database = account.database
    first = database.grid_job(identity)
    if not first.state.is_final:
        raise NotRepeatable(f"grid job {identity} is {first.state.word}: wait until it has ended, or cancel it")
    job = prepare_failed(account, first) if only_failed else prepare_whole(account, first)
    with database.transaction():
        # Raises where it has been removed meanwhile: with it goes what its repetition may build on.
        database.grid_job(identity)
        add_grid_job(database, job)
    logger.info("%s repeats %s: %d local jobs", job.identity, identity, job.count)
    return job


def prepare_whole(account: Account, first: GridJob) -> GridJob:
    """The document of a repetition of all that a grid job was."""
    if first.is_partial:
        return prepare_slices(account, first, first.indexes)
    return _prepare(account, first)


def prepare_failed(account: Account, first: GridJob) -> GridJob:
    """The document of a repetition of what did not succeed.

    :raises NotRepeatable: there is nothing of that.
    """
    if first.steps:
        return prepare_steps(account, first)
    failed = set(first.indexes) - succeeded_indexes(account.database, first.identity)
    if not failed:
        raise NotRepeatable(f"no local job of {first.identity} failed: there is nothing to submit again")
    return prepare_slices(account, first, failed)


def prepare_slices(account: Account, first: GridJob, indexes: Collection[int]) -> GridJob:
    """The document of a repetition of some slices, with their indexes, events and seeds."""
    job = _prepare(account, first)
    job.repeat_slices(first, indexes)
    return job


def prepare_steps(account: Account, first: GridJob) -> GridJob:
    """The document of a structured grid job that goes on behind the last step that is done: it takes over the others.

    :raises NotRepeatable: all steps are done.
    """
    done = done_steps(account.database, first.identity)
    if len(done) == len(first.steps):
        raise NotRepeatable(f"all steps of {first.identity} are done: there is nothing to submit again")
    job = _prepare(account, first)
    for name, part in done.items():
        job.begin_step(name, part)
    return job


def _prepare(account: Account, first: GridJob) -> GridJob:
    job = prepare_grid_job(account, first.request(), first.request_folder)
    job.repeats = first.identity
    return job


def succeeded_indexes(database: Database, identity: str) -> set[int]:
    """The indexes of the local jobs of a grid job that succeeded."""
    return {job.index for job in database.local_jobs(identity, State.DONE) if job.succeeded}


def done_steps(database: Database, identity: str) -> dict[str, str]:
    """The grid jobs of a structured one's first steps, by their names, up to the first that is not done."""
    done = {}
    for step in database.steps(identity).get(identity, ()):
        if step.grid_job is None or step.state != State.DONE.word:
            break
        done[step.name] = step.grid_job
    return done
