"""Step 5 of a grid job: each local job is submitted exactly once, whichever process dies when.

Before a submit command runs, its token is committed in the documents of the local jobs that it submits (the intent). A
token without ids means that the result is unknown, and `adoption` finds out. If the submission is found, its ids are
adopted. If it is nowhere, it is made again under the same token. If nobody answers, it waits.
"""

import logging
import math
import os
import re
import signal
import string
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from batch_adapters.adapter import BatchError, Garbled, Postponed, Refused, Submission, TooMany, Unreachable
from batch_adapters.running.batch_system import BatchSystem
from batch_adapters.states import Cause, State
from jobmanager import render_number
from jobmanager.database.database import Database
from jobmanager.database.documents import render_ranges
from jobmanager.database.grid_job import GridJob
from jobmanager.database.local_job import Evidence, LocalJob, Outcome
from jobmanager.site.account import Account, find_batch_system
from jobmanager.site.settings import Transfer
from jobmanager.states.changes import change_local_jobs, of_token, put_local_jobs
from jobmanager.states.registration import register_local_jobs
from jobmanager.submission.adoption import adopt
from jobmanager.submission.credential_copies import find_copies
from sandbox.driver import GrownLimits, read_lines_per_file, write_submission_table

logger = logging.getLogger(__name__)

_DIGITS = string.digits + string.ascii_lowercase
PARALLEL_SUBMITS = 4
"""Submit commands at once, where the batch system has no arrays."""
# A program that gets no memory may end with any exit code, and a batch system may kill it without a word.
_MAY_LACK_MEMORY = (Cause.MEMORY_LIMIT, Cause.SIGNAL, Cause.EXIT_CODE)
_MAY_LACK_TIME = (Cause.TIME_LIMIT, Cause.CPU_LIMIT, Cause.SIGNAL)
_MOST = 10_000_000
"""Minutes that a request may ask for, and more MB than any host has."""
_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*", re.ASCII)


@dataclass(frozen=True)
class Intent:
    """A submission that is recorded in the documents: its token, and the indexes of its local jobs, by position."""

    token: str
    indexes: Sequence[int]


def submit_local_jobs(account: Account, job: GridJob, request: Mapping[str, Any]) -> None:
    """Submit and register all local jobs that are not yet submitted; stops when the grid job is cancelled.

    :raises Refused: the batch system refuses it.
    :raises Unreachable, Garbled: the rest must wait.
    """
    database = account.database
    system = find_batch_system(account, job.batch)
    # It lives if its log goes on.
    system.limiter.hurry(database.events.generator_time(job.batch) or 0)
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
    size = _choose_first_size(database, job.job_id, most)
    fitted = 1
    while True:
        try:
            if not _submit_next(account, system, job, request, size):
                return
            fitted, size = size, min(most, 2 * size)
        except TooMany:
            # What the account may have in the queue may be less than an array. Once some are in it, the rest waits.
            refused = len(find_next(database, job.job_id, size, partial(choose_resources, request=request)))
            if refused <= fitted:
                raise
            size = most = refused // 2


def _choose_first_size(database: Database, grid_job: str, most: int) -> int:
    """The size of the first array: most, but twice that of the last one where the rest of a submission had to wait."""
    last = database.local_jobs.last_token(grid_job)
    if last is None or all(job.attempt > 1 for job in database.local_jobs.to_submit(grid_job, most)):
        return most
    return min(most, 2 * len(database.local_jobs.of_token(grid_job, last)))


def _submit_next(account: Account, system: BatchSystem, job: GridJob, request: Mapping[str, Any], most: int) -> bool:
    """Submit the next array, or some single local jobs; False if none are left, or the grid job is cancelled."""
    resources = partial(choose_resources, request=request)
    with uninterrupted():
        number = 1 if most > 1 else PARALLEL_SUBMITS
        written = (write_intent(account.database, job.job_id, most, resources) for _ in range(number))
        if intents := [intent for intent in written if intent is not None]:
            _submit_all(account, system, job, request, intents)
    return bool(intents)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Hold back a SIGTERM while the block submits, so that the answer is read; only in the main thread.

    Without the answer, the submission would be in doubt for the batch system's settle time. All commands in the block
    have time limits.
    """
    received: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: received.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
        if received:
            os.kill(os.getpid(), signal.SIGTERM)


def open_intents(database: Database, grid_job: str) -> list[Intent]:
    """The submissions whose ids are unknown."""
    indexes: dict[str, list[int]] = {}
    for job in database.local_jobs.in_doubt(grid_job):
        indexes.setdefault(str(job.token), []).append(job.index)
    return [Intent(token, found) for token, found in indexes.items()]


def write_intent(
    database: Database, grid_job: str, max_array: int, resources: Callable[[LocalJob], object] = lambda job: None
) -> Intent | None:
    """Commit the token of the next array to be submitted; None if nothing is left, or the grid job is cancelled.

    :param resources: what all local jobs of one array must have in common.
    """
    with database.transaction():
        jobs = find_next(database, grid_job, max_array, resources)
        stored = database.grid_jobs.get(grid_job)
        if not jobs or stored.cancelled:
            return None
        token = _next_token(grid_job, find_last_token(database, stored))
        for job in jobs:
            job.intend(token, time.time())
        put_local_jobs(database, grid_job, jobs)
    return Intent(token, [job.index for job in jobs])


def find_next(
    database: Database, grid_job: str, max_array: int, resources: Callable[[LocalJob], object]
) -> list[LocalJob]:
    """The local jobs of the next array: those without a token that may have what the first of them may."""
    jobs = database.local_jobs.to_submit(grid_job, max_array)
    common = resources(jobs[0]) if jobs else None
    return [job for job in jobs if resources(job) == common]


def renew_intent(database: Database, grid_job: str, intent: Intent) -> None:
    """Commit that a submission which was never made is about to be made again."""
    change_local_jobs(
        database, grid_job, of_token(grid_job, intent.token), lambda job: job.intend(intent.token, time.time())
    )


def _submit_all(
    account: Account, system: BatchSystem, job: GridJob, request: Mapping[str, Any], intents: Sequence[Intent]
) -> None:
    """Submit all of these in parallel, and record every outcome; then raise the first error, if there was one."""

    def submit(intent: Intent) -> Mapping[int, str] | BatchError:
        try:
            return system.submit(submissions[intent.token])
        except BatchError as error:
            return error

    submissions = {intent.token: _render_submission(account, system, job, request, intent) for intent in intents}
    table = account.places.local_jobs(job.job_id)
    for intent in intents:
        submission = submissions[intent.token]
        limits = _choose_driver_limits(submission, request)
        write_submission_table(table, intent.token, intent.indexes, submission.table_lines, limits)
    with ThreadPoolExecutor(len(intents)) as threads:
        outcomes = list(threads.map(submit, intents))
    errors = [_note_outcome(account, system, job.job_id, *pair) for pair in zip(intents, outcomes, strict=True)]
    for error in filter(None, errors):
        raise error


def _note_outcome(
    account: Account, system: BatchSystem, grid_job: str, intent: Intent, outcome: Mapping[int, str] | BatchError
) -> BatchError | None:
    """Record the outcome of a submission; what keeps the grid job from going on, if anything does."""
    database = account.database
    if isinstance(outcome, Refused) and database.local_jobs.get(grid_job, intent.indexes[0]).attempt > 1:
        _give_up(database, grid_job, intent, outcome)
        return None
    if isinstance(outcome, Refused | Postponed):
        # Certainly nothing was submitted.
        change_local_jobs(database, grid_job, of_token(grid_job, intent.token), LocalJob.forget_intent)
        return outcome
    if isinstance(outcome, BatchError):
        logger.warning("%s %s: %s: looking for it", grid_job, intent.token, outcome)
        _note_answer(database, grid_job, intent, outcome)
        try:
            return None if adopt(account, system, grid_job, intent.token) else outcome
        except (Unreachable, Garbled) as error:
            return error
    if twin := _find_twin(database, system, grid_job, outcome[1]):
        words = f"its answer to {intent.token} is {outcome[1]!r}, the id of local job {twin} already"
        return Garbled(f"{system.adapter.name}: {words}: whoever answers for its submit command is at fault")
    count = render_number(len(intent.indexes), "local job")
    logger.info("%s %s submitted: %s, %s", grid_job, intent.token, count, render_ranges(intent.indexes))
    ids = {intent.indexes[position - 1]: local_id for position, local_id in outcome.items()}
    register_local_jobs(database, grid_job, ids, system.adapter.naming)
    return None


def _note_answer(database: Database, grid_job: str, intent: Intent, outcome: BatchError) -> None:
    """Record an answer to submit without ids, in the document of the first local job, where `adopt` finds it."""
    now = int(time.time())
    change_local_jobs(
        database,
        grid_job,
        lambda jobs: [jobs.get(grid_job, intent.indexes[0])],
        lambda job: job.put_evidence(Evidence("us", str(outcome), now, "in doubt: it is looked for")),
    )


def _give_up(database: Database, grid_job: str, intent: Intent, refusal: Refused) -> None:
    """Fail the local jobs of a retry that is refused (it may ask for too much memory now); the others go on."""

    def fail(job: LocalJob) -> None:
        job.forget_intent()
        job.state, job.cause, job.outcome = State.FAILED, Cause.REFUSED, Outcome.FAILED
        job.reason = f"the batch system refused attempt {job.attempt}: {refusal}"

    change_local_jobs(database, grid_job, of_token(grid_job, intent.token), fail)
    logger.warning("%s %s refused: %s", grid_job, intent.token, refusal)


def _find_twin(database: Database, system: BatchSystem, grid_job: str, local_id: str) -> int | None:
    """The other local job of the grid job that is open under that id, if there is one.

    Batch systems reuse an id only after its job has ended.
    """
    found = database.local_jobs.find(system.adapter.name, local_id)
    if found is None or found[0] != grid_job or found[1].state.is_final:
        return None
    return found[1].index


def _render_submission(
    account: Account, system: BatchSystem, job: GridJob, request: Mapping[str, Any], intent: Intent
) -> Submission:
    places = account.places
    resources = choose_resources(account.database.local_jobs.get(job.job_id, intent.indexes[0]), request)
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
        max_cpu_minutes=resources.cpu_minutes,
        max_wall_minutes=resources.wall_minutes,
        max_memory_mb=resources.memory_mb,
        cores=request["cores"] or 1,
        gpus=request["gpus"] or 0,
        max_disk_mb=request["max_disk"] or 0,
        excluded_host=resources.excluded_host,
        options=(*system.adapter.options, *request["batch_options"]),
    )


@dataclass(frozen=True)
class Resources:
    """What one attempt may use; all local jobs of an array have the same. 0: no limit is requested."""

    memory_mb: int
    cpu_minutes: int
    wall_minutes: int
    excluded_host: str
    """First part of the name of the host that the previous attempt ran on; empty if it may run there again."""


def choose_resources(job: LocalJob, request: Mapping[str, Any]) -> Resources:
    """The present attempt's resources: those of the request, grown if earlier attempts may have had too little."""
    past = job.earlier_attempts()
    causes = [attempt.cause for attempt in past]
    memory_growth = request["retry_memory_factor"] ** sum(cause in _MAY_LACK_MEMORY for cause in causes)
    time_growth = request["retry_time_factor"] ** sum(cause in _MAY_LACK_TIME for cause in causes)
    host = _HOST.match(past[-1].host or "") if past and request["retry_elsewhere"] else None
    return Resources(
        memory_mb=_grow(request["max_memory"], memory_growth),
        cpu_minutes=_grow(request["max_cpu_time"], time_growth),
        wall_minutes=_grow(request["max_wall_time"], time_growth),
        excluded_host=host[0] if host else "",
    )


def _grow(limit: int | None, growth: float) -> int:
    return max(limit or 0, math.ceil(min((limit or 0) * growth, _MOST)))


def _choose_driver_limits(submission: Submission, request: Mapping[str, Any]) -> GrownLimits | None:
    """The limits that drivers must keep, if they differ from those of the first attempt."""
    limits = GrownLimits(submission.max_cpu_minutes, submission.max_memory_mb)
    first = GrownLimits(request["max_cpu_time"] or 0, request["max_memory"] or 0)
    return None if limits == first else limits


def find_last_token(database: Database, job: GridJob) -> str | None:
    """The highest token of a grid job, earlier attempts included; None before its first submission."""
    known = [token for token in (database.local_jobs.last_token(job.job_id), job.last_token) if token is not None]
    return max(known, key=lambda token: (len(token), token), default=None)


def _next_token(grid_job: str, last: str | None) -> str:
    number = int(last.removeprefix(f"{grid_job}-"), 36) + 1 if last else 1
    digits = ""
    while number:
        number, digit = divmod(number, 36)
        digits = _DIGITS[digit] + digits
    return f"{grid_job}-{digits}"
