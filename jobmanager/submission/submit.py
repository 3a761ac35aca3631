"""Step 5 of a grid job: each local job is submitted exactly once, whoever dies when.

Before a submit command runs, its token is in the documents of the local jobs that it submits (the intent). Where a
token is there but the ids are not, nobody knows what happened: `adoption` finds out. Found: its ids are adopted.
Nowhere: the same submission is made again, under the same token. No answer: later.
"""

import logging
import os
import signal
import string
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from batch_adapters.adapter import BatchError, Garbled, Postponed, Refused, Submission, Unreachable
from batch_adapters.running.batch_system import BatchSystem
from batch_adapters.states import Cause, State
from jobmanager.database.database import Database
from jobmanager.database.grid_job import GridJob
from jobmanager.database.local_job import LocalJob, Outcome
from jobmanager.site.account import Account, find_batch_system
from jobmanager.site.settings import Transfer
from jobmanager.states.changes import change_local_jobs, of_token, put_local_jobs
from jobmanager.states.registration import register_local_jobs
from jobmanager.submission.adoption import adopt
from jobmanager.submission.credential_copies import find_copies
from jobmanager.submission.needs import find_needs
from sandbox.driver import GrownLimits, read_lines_per_file, write_submission_table

logger = logging.getLogger(__name__)

_DIGITS = string.digits + string.ascii_lowercase
PARALLEL_SUBMITS = 4
"""Submit commands at once, where the batch system has no arrays."""


@dataclass(frozen=True)
class Intent:
    """A submission that is in the documents: the token, and the indexes of its local jobs, by position."""

    token: str
    indexes: Sequence[int]


def submit_local_jobs(account: Account, job: GridJob, request: Mapping[str, Any]) -> None:
    """Submit and register every local job that is not; stops where the grid job is cancelled meanwhile.

    :raises Refused: the batch system does not want it.
    :raises Unreachable, Garbled: the rest must wait.
    """
    database = account.database
    system = find_batch_system(account, job.batch)
    for intent in open_intents(database, job.job_id):
        if adopt(account, system, job.job_id, intent.token):
            continue
        if database.grid_jobs.get(job.job_id).cancelled:
            return
        with uninterrupted():
            renew_intent(database, job.job_id, intent)
            _submit_all(account, system, job, request, [intent])
    if not database.local_jobs.to_submit(job.job_id, 1):
        return
    most = system.max_array()
    while _submit_next(account, system, job, request, most):
        pass


def _submit_next(account: Account, system: BatchSystem, job: GridJob, request: Mapping[str, Any], most: int) -> bool:
    """Submit the next array; False where nothing is left, or the grid job is cancelled."""
    with uninterrupted():
        intents = _write_intents(account.database, job.job_id, most, partial(find_needs, request=request))
        if intents:
            _submit_all(account, system, job, request, intents)
    return bool(intents)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Let a SIGTERM end this process behind the block, in which a submission is on its way; in its main thread only.

    Killed in between, it would be in doubt for the batch system's settle time. The block's commands have time limits.
    """
    heard: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
        if heard:
            os.kill(os.getpid(), signal.SIGTERM)


def open_intents(database: Database, grid_job: str) -> list[Intent]:
    """The submissions whose ids are not known."""
    indexes: dict[str, list[int]] = {}
    for job in database.local_jobs.in_doubt(grid_job):
        indexes.setdefault(str(job.token), []).append(job.index)
    return [Intent(token, found) for token, found in indexes.items()]


def _write_intents(database: Database, grid_job: str, most: int, needs: Callable[[LocalJob], object]) -> list[Intent]:
    intents = (write_intent(database, grid_job, most, needs) for _ in range(1 if most > 1 else PARALLEL_SUBMITS))
    return [intent for intent in intents if intent is not None]


def write_intent(
    database: Database, grid_job: str, max_array: int, needs: Callable[[LocalJob], object] = lambda job: None
) -> Intent | None:
    """Commit the token of the next array to be submitted; None where nothing is left, or the grid job is cancelled.

    :param needs: what the local jobs of one array must have in common.
    """
    with database.transaction():
        jobs = database.local_jobs.to_submit(grid_job, max_array)
        stored = database.grid_jobs.get(grid_job)
        if not jobs or stored.cancelled:
            return None
        token = _next_token(grid_job, find_last_token(database, stored))
        common = needs(jobs[0])
        jobs = [job for job in jobs if needs(job) == common]
        for job in jobs:
            job.intend(token, time.time())
        put_local_jobs(database, grid_job, jobs)
    return Intent(token, [job.index for job in jobs])


def renew_intent(database: Database, grid_job: str, intent: Intent) -> None:
    """Commit that a submission which was never made is about to be tried again."""
    change_local_jobs(
        database, grid_job, of_token(grid_job, intent.token), lambda job: job.intend(intent.token, time.time())
    )


def _withdraw_intent(database: Database, grid_job: str, intent: Intent) -> None:
    change_local_jobs(database, grid_job, of_token(grid_job, intent.token), LocalJob.forget_intent)


def _submit_all(
    account: Account, system: BatchSystem, job: GridJob, request: Mapping[str, Any], intents: Sequence[Intent]
) -> None:
    """Make submissions side by side, and see to what became of each; then raise the first error, if there was one."""

    def submit(intent: Intent) -> Mapping[int, str] | BatchError:
        try:
            return system.submit(submissions[intent.token])
        except BatchError as error:
            return error

    submissions = {intent.token: _render_submission(account, system, job, request, intent) for intent in intents}
    table = account.places.local_jobs(job.job_id)
    for intent in intents:
        submission = submissions[intent.token]
        limits = _find_grown_limits(submission, request)
        write_submission_table(table, intent.token, intent.indexes, submission.table_lines, limits)
    with ThreadPoolExecutor(len(intents)) as threads:
        outcomes = list(threads.map(submit, intents))
    note = partial(_note_outcome, account, system, job.job_id)
    _raise_first(list(map(note, intents, outcomes)))


def _raise_first(errors: Iterable[BatchError | None]) -> None:
    for error in errors:
        if error is not None:
            raise error


def _note_outcome(
    account: Account, system: BatchSystem, grid_job: str, intent: Intent, outcome: Mapping[int, str] | BatchError
) -> BatchError | None:
    """Put the outcome of a submission into the database; what keeps the grid job from going on, if anything does."""
    database = account.database
    if isinstance(outcome, Refused) and database.local_jobs.get(grid_job, intent.indexes[0]).attempt > 1:
        _give_up(database, grid_job, intent, outcome)
        return None
    if isinstance(outcome, Refused | Postponed):
        # Nothing was submitted, for certain.
        _withdraw_intent(database, grid_job, intent)
        return outcome
    if isinstance(outcome, BatchError):
        logger.warning("%s %s: %s: looking for it", grid_job, intent.token, outcome)
        try:
            return None if adopt(account, system, grid_job, intent.token) else outcome
        except (Unreachable, Garbled) as error:
            return error
    if twin := _find_twin(database, system, grid_job, outcome[1]):
        words = f"its answer to {intent.token} is {outcome[1]!r}, the id of local job {twin} already"
        return Garbled(f"{system.adapter.name}: {words}: whoever answers for its submit command is at fault")
    first, last = intent.indexes[0], intent.indexes[-1]
    logger.info("%s %s submitted: %d local jobs, %d to %d", grid_job, intent.token, len(intent.indexes), first, last)
    ids = {intent.indexes[position - 1]: local_id for position, local_id in outcome.items()}
    register_local_jobs(database, grid_job, ids, system.adapter.naming)
    return None


def _give_up(database: Database, grid_job: str, intent: Intent, refusal: Refused) -> None:
    """Another attempt is refused, with more memory perhaps than there is: the others are not to be cancelled for it."""

    def fail(job: LocalJob) -> None:
        job.forget_intent()
        job.state, job.cause, job.outcome = State.FAILED, Cause.REFUSED, Outcome.FAILED
        job.reason = f"the batch system refused attempt {job.attempt}: {refusal}"

    change_local_jobs(database, grid_job, of_token(grid_job, intent.token), fail)
    logger.warning("%s %s refused: %s", grid_job, intent.token, refusal)


def _find_twin(database: Database, system: BatchSystem, grid_job: str, local_id: str) -> int | None:
    """Which of the grid job's other local jobs is open under that id: batch systems use one again after an end only."""
    found = database.local_jobs.find(system.adapter.name, local_id)
    if found is None or found[0] != grid_job or found[1].state.is_final:
        return None
    return found[1].index


def _render_submission(
    account: Account, system: BatchSystem, job: GridJob, request: Mapping[str, Any], intent: Intent
) -> Submission:
    places = account.places
    needs = find_needs(account.database.local_jobs.get(job.job_id, intent.indexes[0]), request)
    return Submission(
        token=intent.token,
        count=len(intent.indexes),
        driver=str(places.driver(job.job_id)),
        results=str(places.results(job.job_id)),
        sandbox=str(places.sandbox(job.job_id)),
        table_lines=read_lines_per_file(places.driver(job.job_id)),
        carried=account.configuration.sandbox.transfer is Transfer.BATCH_SYSTEM,
        credentials=tuple(map(str, find_copies(account, job.job_id).values())),
        queue=request["queue"],
        project=request["project"],
        max_cpu_minutes=needs.cpu_minutes,
        max_wall_minutes=needs.wall_minutes,
        max_memory_mb=needs.memory_mb,
        cores=request["cores"] or 1,
        gpus=request["gpus"] or 0,
        max_disk_mb=request["max_disk"] or 0,
        excluded_host=needs.excluded_host,
        options=(*system.adapter.options, *request["batch_options"]),
    )


def _find_grown_limits(submission: Submission, request: Mapping[str, Any]) -> GrownLimits | None:
    """The limits that drivers keep, where they are not those of the first attempt."""
    limits = GrownLimits(submission.max_cpu_minutes, submission.max_memory_mb)
    first = GrownLimits(request["max_cpu_time"] or 0, request["max_memory"] or 0)
    return None if limits == first else limits


def find_last_token(database: Database, job: GridJob) -> str | None:
    """The highest token of a grid job, earlier attempts included; None where no submission was ever intended."""
    known = [token for token in (database.local_jobs.last_token(job.job_id), job.last_token) if token is not None]
    return max(known, key=lambda token: (len(token), token), default=None)


def _next_token(grid_job: str, last: str | None) -> str:
    """The token after the last one: never one that local jobs have, though others may have lost theirs."""
    number = int(last.removeprefix(f"{grid_job}-"), 36) + 1 if last else 1
    digits = ""
    while number:
        number, digit = divmod(number, 36)
        digits = _DIGITS[digit] + digits
    return f"{grid_job}-{digits}"
