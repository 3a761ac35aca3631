"""Proves that local jobs have ended, and finds out why, before they are gathered or retried."""

import logging
import os
import re
import time
from array import array
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from batch_adapters.adapter import BatchAdapter, BatchError, Garbled, LocalStatus, Unreachable
from batch_adapters.generator.module import LogModule, LogNotKnown
from batch_adapters.registry import find_event_module
from batch_adapters.running.batch_system import BatchSystem, read_user
from batch_adapters.states import Cause, State
from jobmanager import render_number
from jobmanager.database.database import Database
from jobmanager.database.local_job import LocalJob, Outcome
from jobmanager.database.times import render_time
from jobmanager.site.account import Account, find_batch_adapter, find_batch_system
from jobmanager.site.settings import EventSource
from jobmanager.states.changes import change_in_parts, in_parts, is_recent
from jobmanager.states.driver_status import reconcile_with_drivers
from jobmanager.states.ends import may_have_been_deleted, may_run_again, needs_batch_cause, was_asked_to_end
from jobmanager.states.reconciliation import HISTORY_PATIENCE, ask_queue
from jobmanager.states.transitions import note_batch_end, reopen
from sandbox.files import open_unlinked

logger = logging.getLogger(__name__)

Selection = Callable[[], Iterable[LocalJob]]
"""Reads local jobs of one grid job that have ended, as they are in the database at that time."""


def prove_ends(account: Account, job_id: str, select: Selection) -> bool:
    """False if the batch system shows a local job alive whose end was only in its log; that end is undone.

    An end in the driver's record needs no second witness.

    :raises Unreachable: the batch system does not answer, or outputs may still be on their way.
    """
    database = account.database
    is_proven = True
    # A batch system that has lost its records kills a program, and may have started it anew by now.
    for jobs in in_parts(job for job in select() if _is_unproven(job) or may_run_again(job)):
        reconcile_with_drivers(account, job_id, jobs)
        is_proven = False
    if is_proven:
        return True
    unproven = _Chosen(database, job_id, filter(_is_unproven, select()))
    # Enough for a cancelled grid job: a job that is queued again is unwanted, and `reconciliation` cancels it.
    is_enough = database.grid_jobs.get(job_id).cancelled and all(job.driver == "ended" for job in unproven)
    if not unproven.by_token or is_enough:
        return True
    system = _find_system(account, job_id)
    _wait_for_outputs(unproven, system.adapter.outputs_lag)
    asked = int(time.time())
    answer = {status.local_id: status for status in ask_queue(system, unproven.by_token)}
    tokens = {str(job.local_id): str(job.token) for job in unproven if job.local_id in answer}
    answer = {status.local_id: status for status in system.restore_tokens(list(answer.values()), tokens)}
    # An id that the batch system has reused for another token is no longer ours.
    shown = [job for job in unproven if job.local_id in answer and answer[job.local_id].is_of(str(job.token))]
    # For a while, a requeued job may look like one that is leaving, or one that is leaving like a running one.
    leaving = [job for job in shown if _may_leave(job, answer[str(job.local_id)])]
    _wait_for(leaving, system.adapter.outputs_lag, "to leave the batch system")
    alive = [job for job in shown if answer[str(job.local_id)].is_alive]
    if change_in_parts(database, job_id, alive, lambda job: reopen(job, answer[str(job.local_id)], asked)):
        return False
    change_in_parts(database, job_id, unproven, _stop_waiting)
    return True


@dataclass(frozen=True)
class _Ended:
    """The few facts that are kept in memory of many local jobs."""

    index: int
    local_id: str | None
    array: str | None
    token: str | None
    state: State
    driver: str | None
    ended_time: int


def _note(job: LocalJob) -> _Ended:
    return _Ended(job.index, job.local_id, job.array, job.token, job.state, job.driver, job.ended_time or 0)


class _Chosen:
    """Some local jobs of a grid job, read again whenever they are used: only their indexes are in memory."""

    def __init__(self, database: Database, job_id: str, jobs: Iterable[LocalJob]) -> None:
        self._database = database
        self._job_id = job_id
        self.by_token: dict[str, array[int]] = {}
        for job in jobs:
            self.by_token.setdefault(str(job.token), array("L")).append(job.index)

    def read(self, token: str) -> Iterator[LocalJob]:
        return (self._database.local_jobs.get(self._job_id, index) for index in self.by_token[token])

    def __iter__(self) -> Iterator[_Ended]:
        return (_note(job) for token in self.by_token for job in self.read(token))


def _find_system(account: Account, job_id: str) -> BatchSystem:
    """The batch system, to be queried without waiting for the end of an outage, during which drivers ended."""
    system = find_batch_system(account, account.database.grid_jobs.get(job_id).batch)
    system.limiter.hurry(account.database.local_jobs.last_end(job_id))
    return system


def _is_unproven(job: LocalJob) -> bool:
    """True if the batch system may still have the job, or have queued it again after it told it to end."""
    return job.local_id is not None and (job.driver != "ended" or was_asked_to_end(job))


def _may_leave(job: _Ended, status: LocalStatus) -> bool:
    """True if it is unknown whether the job leaves or stays: PBS shows a job that it is ending as running (R)."""
    return status.is_leaving or (job.driver == "ended" and status.state is State.ACTIVE)


def is_ripe(job: LocalJob, lag: float, now: float) -> bool:
    """True if no more news about a local job's end can come, so that nobody need wait.

    :param lag: the batch system's ``outputs_lag``, in seconds.
    """
    return not (_is_unproven(job) or needs_batch_cause(job)) or not is_recent(job.ended_time or 0, now, lag)


def _stop_waiting(job: LocalJob) -> bool:
    if job.state is not State.DONE or job.driver == "ended":
        return False
    job.driver = "missing"
    return True


def ask_for_causes(account: Account, job_id: str, select: Selection) -> None:
    """Find out why local jobs ended that did not end by themselves: from the batch system, then from what it wrote.

    A cancelled grid job does not wait for the answer.

    :raises Unreachable: the batch system does not answer, or its history may not be complete yet.
    """
    silence = _ask_history(account, job_id, select)
    suspects = [_note(job) for job in select() if may_have_been_deleted(job)]
    if suspects:
        _read_what_it_wrote(account, job_id, suspects)
    if silence is not None:
        _wait_for_history(filter(needs_batch_cause, select()), silence)


def _ask_history(account: Account, job_id: str, select: Selection) -> BatchError | None:
    """One query for each token; an error if there was no answer, and somebody waits for it."""
    database = account.database
    puzzling = _Chosen(database, job_id, filter(_may_be_told, select()))
    if not puzzling.by_token:
        return None
    system = _find_system(account, job_id)
    answer: dict[str, LocalStatus] = {}
    silence: BatchError | None = None

    def apply(job: LocalJob) -> bool:
        status = answer[str(job.local_id)]
        # One that was queued again meanwhile is in another run.
        is_news = needs_batch_cause(job) or (status.by != "" and _may_be_told(job))
        return is_news and note_batch_end(job, status)

    try:
        for token in sorted(puzzling.by_token):
            answer = {status.local_id: status for status in system.find(token) if status.says_why}
            if silence is None:
                ended, silence = _try_history(system, token)
                answer |= {status.local_id: status for status in ended}
            change_in_parts(database, job_id, (job for job in puzzling.read(token) if job.local_id in answer), apply)
    except (Unreachable, Garbled) as error:
        silence = error
    if silence is not None and database.grid_jobs.get(job_id).cancelled:
        logger.info("%s is cancelled, and why its local jobs ended is not known: %s", job_id, silence)
        return None
    if silence is None and system.adapter.history is not None:
        late = (_note(job) for token in puzzling.by_token for job in puzzling.read(token) if needs_batch_cause(job))
        _wait_for(late, system.adapter.outputs_lag, "to come into the history")
    return silence


def _may_be_told(job: LocalJob) -> bool:
    """True if the history may say why a local job ended or, where the queue has said that, who cancelled it."""
    return needs_batch_cause(job) or (job.batch_cause is Cause.CANCELLED_OUTSIDE and may_have_been_deleted(job))


def _try_history(system: BatchSystem, token: str) -> tuple[list[LocalStatus], BatchError | None]:
    """Ended local jobs, or why there is no answer: Slurm's history is in a database of its own, the queue is not."""
    try:
        return system.find_ended(token), None
    except (Unreachable, Garbled) as error:
        return [], error


def _wait_for_history(late: Iterable[LocalJob], silence: BatchError) -> None:
    """Wait for an hour at most, unless a local job would have succeeded that may have been deleted."""
    now = time.time()
    for job in late:
        if job.outcome is Outcome.SUCCEEDED:
            raise Unreachable(f"waits for news of why {job.local_id} ended: {silence}") from silence
        ended = job.ended_time or 0
        if is_recent(ended, now, HISTORY_PATIENCE):
            until = render_time(ended + HISTORY_PATIENCE)
            raise Unreachable(f"waits until {until} for news of why {job.local_id} ended: {silence}") from silence
    logger.info("why local jobs ended more than an hour ago is not known: %s", silence)


def _read_what_it_wrote(account: Account, job_id: str, suspects: list[_Ended]) -> None:
    """Record what the batch system wrote about why local jobs ended, into their own outputs or into its log."""
    batch = account.database.grid_jobs.get(job_id).batch
    adapter = find_batch_adapter(account, batch)
    is_followed = account.configuration.find_events(batch).source is not EventSource.POLL
    causes = adapter.log_causes if is_followed else {}
    results = account.places.results(job_id)
    ids = {name for job in suspects for name in (job.local_id, job.array) if name}
    deletions = _find_deletions(account, batch, ids, min(job.ended_time for job in suspects))
    read = (_read_printed(adapter, results, job) for job in suspects)
    printed = {status.local_id: status for status in read if status}

    def apply(job: LocalJob) -> bool:
        if not may_have_been_deleted(job):
            return False
        status = printed.get(str(job.local_id)) or _read_log_status(job, deletions, causes)
        return status is not None and note_batch_end(job, status)

    change_in_parts(account.database, job_id, suspects, apply)


_LAST_WORDS = 4096


def _read_printed(adapter: BatchAdapter, results: Path, job: _Ended) -> LocalStatus | None:
    """What the batch system itself printed at the end of a local job's output; None if nothing about its end."""
    if not adapter.printed_causes or job.driver is None:
        return None
    number = adapter.naming.position_of(str(job.local_id)) - 1 + adapter.naming.first
    try:
        with open_unlinked(results / f"{job.token}.{number}.driver") as stream:
            stream.seek(max(0, os.fstat(stream.fileno()).st_size - _LAST_WORDS))
            printed = stream.read(_LAST_WORDS).decode(errors="replace")
    except OSError:
        return None
    for pattern, cause in adapter.printed_causes.items():
        if found := re.search(pattern, printed):
            return LocalStatus(str(job.local_id), found[1], State.FAILED, cause=cause)
    return None


_ZONE_DIFFERENCE = 86_400
"""Seconds: the log's local times may be of another zone than ours."""


def _find_deletions(account: Account, batch: str, ids: Container[str], since: int) -> Mapping[str, str | Cause]:
    """Who, or what limit, deleted which of these jobs and arrays since then; nothing if we do not read the log."""
    settings = account.configuration.find_events(batch)
    system = find_batch_system(account, batch)
    if settings.source is not EventSource.LOG or settings.prefix or not system.adapter.event_module:
        return {}
    module = find_event_module(system.adapter.event_module)
    if not isinstance(module, LogModule) or module.read_deletions is None:
        return {}  # and no command is asked where its log is
    configured = settings.path or system.event_log
    try:
        log = Path(configured) if configured else module.find_log(os.environ)
        return module.find_deletions(log, ids, since - _ZONE_DIFFERENCE)
    except (LogNotKnown, OSError) as error:
        logger.info("%s: its log does not say who deleted local jobs: %s", batch, error)
        return {}


def _read_log_status(
    job: LocalJob, deletions: Mapping[str, str | Cause], causes: Mapping[int, Cause]
) -> LocalStatus | None:
    """What the log says about the end of a local job; None if that is only its time."""
    code = job.failure_code
    if code is not None and code in causes:
        return LocalStatus(str(job.local_id), f"exit status {code}", State.FAILED, cause=causes[code])
    # When an array is deleted, its waiting elements get no entries of their own; to Slurm's log no element does.
    is_deleted = job.batch_cause is Cause.CANCELLED_OUTSIDE
    of_array = deletions.get(str(job.array)) if job.driver is None or is_deleted else None
    by = deletions.get(str(job.local_id), of_array)
    if isinstance(by, Cause):
        # Where the batch system has said the same, it has said more.
        words = "its dependency could not be met" if by is Cause.REFUSED else "in its log"
        return None if by is job.batch_cause else LocalStatus(str(job.local_id), words, State.FAILED, cause=by)
    if not by and (is_deleted or job.batch_cause is Cause.REFUSED or code is None or code < 0 or not causes):
        return None
    return LocalStatus(
        str(job.local_id), "deleted", State.FAILED, cause=Cause.CANCELLED_OUTSIDE, by=read_user(by or "")
    )


def _wait_for_outputs(unproven: Iterable[_Ended], lag: float) -> None:
    """Wait for jobs that ran: on a network file system, their outputs may be back but not visible yet."""
    begun = [job for job in unproven if job.driver == "started" or (job.driver is None and job.state is State.DONE)]
    _wait_for(begun, lag, "to bring back their outputs")


def _wait_for(jobs: Iterable[_Ended], lag: float, what: str) -> None:
    now = time.time()
    late = (job.local_id for job in jobs if is_recent(job.ended_time, now, lag))
    if first := next(late, None):
        count = render_number(1 + sum(1 for _ in late), "local job")
        raise Unreachable(f"waits up to {lag:.0f} s for {count} {what}, first {first}")
