"""Decides which failed local jobs are retried, and when, and whether a grid job can still succeed."""

import time
from collections import Counter
from collections.abc import Iterable

from batch_adapters.running.backoff import pause_after
from batch_adapters.states import CAUSE_OF_WORD, Cause, State
from jobmanager.database.database import Database
from jobmanager.database.grid_job import GridJob
from jobmanager.database.local_jobs import FailedJob
from jobmanager.states.aggregation import Due, judge

_SHORTEST_PAUSE = 1.0
_LONGEST_PAUSE = 300.0
"""Seconds: the second attempt comes at once, and the pauses before later ones grow, to avoid a storm of retries."""


def find_refusal(job: GridJob, failed: FailedJob) -> str:
    """Why a local job is not retried; empty if it is."""
    cause = CAUSE_OF_WORD.get(str(failed.cause))
    words = str(failed.cause).replace("-", " ")
    if not job.retries:
        return "no retries are asked for"
    if cause is not None and not cause.is_retriable:
        return f"nothing is tried again after {words}"
    if job.retry_on is None and cause is Cause.CANCELLED_OUTSIDE:
        return "somebody cancelled it outside, and retry_on does not name that"
    if job.retry_on is not None and failed.cause not in job.retry_on:
        return f"retry_on does not name {words}"
    if failed.attempt > job.retries:
        return f"all attempts are used up ({failed.attempt})"
    return ""


def count_refusals(job: GridJob, failures: Iterable[FailedJob]) -> dict[str, int]:
    """How many local jobs are not retried, by reason; empty if no retries are requested."""
    refusals = Counter[str]()
    for failed in failures:
        refusals[find_refusal(job, failed)] += failed.count
    del refusals[""]
    return dict(refusals.most_common()) if job.retries else {}


def is_due(failed: FailedJob, now: float) -> bool:
    """True if the pause after an attempt is over."""
    # An end in the future: the clock was set back since.
    return not 0 <= now - (failed.ended or 0) < pause_after(failed.attempt - 1, _SHORTEST_PAUSE, _LONGEST_PAUSE)


def is_lost(job: GridJob, given_up: int) -> bool:
    """True if a grid job is to be ended early, because too many local jobs failed for good (fail_fast)."""
    return bool(job.fail_fast) and judge(job.count - given_up, job.count, job.min_success, False) is State.FAILED


def choose_due(job: GridJob, failures: Iterable[FailedJob], now: float) -> list[FailedJob]:
    """The local jobs to be retried now, and those that failed for good if they end the grid job."""
    again, given_up = [], []
    for failed in failures:
        if find_refusal(job, failed):
            given_up.append(failed)
        elif is_due(failed, now):
            again.append(failed)
    return [*again, *given_up] if is_lost(job, sum(failed.count for failed in given_up)) else again


def find_due(database: Database, job_id: str) -> Due:
    """When a grid job's failed local jobs need another task; raises DamagedDocument: its document cannot be read."""
    ends = database.local_jobs.count_ends(job_id)
    if not ends["failed"] + ends["cancelled"]:
        return Due.NEVER
    job = database.grid_jobs.get(job_id)
    if job.cancelled or not (job.retries or job.fail_fast):
        return Due.NEVER
    failures = database.local_jobs.failed(job_id)
    if choose_due(job, failures, time.time()):
        return Due.NOW
    return Due.NEVER if all(find_refusal(job, failed) for failed in failures) else Due.LATER
