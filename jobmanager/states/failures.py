"""Which local jobs that failed are tried again, and when; and when a grid job cannot succeed any more."""

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
"""Seconds: the second attempt comes at once, then each later than the one before, so that no storm comes of them."""


def find_refusal(job: GridJob, failed: FailedJob) -> str:
    """Why a local job is not tried again; empty where it is."""
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
    """How many local jobs are not tried again for each reason; none where no retries are asked for."""
    refusals = Counter[str]()
    for failed in failures:
        refusals[find_refusal(job, failed)] += failed.count
    del refusals[""]
    return dict(refusals.most_common()) if job.retries else {}


def is_due(failed: FailedJob, now: float) -> bool:
    """True where the pause after an attempt is over."""
    # An end that is still to come is of a clock that was set back since.
    return not 0 <= now - (failed.ended or 0) < pause_after(failed.attempt - 1, _SHORTEST_PAUSE, _LONGEST_PAUSE)


def is_lost(job: GridJob, given_up: int) -> bool:
    """True where a grid job is to be stopped: so many of its local jobs failed for good that it cannot succeed."""
    return bool(job.fail_fast) and judge(job.count - given_up, job.count, job.min_success, False) is State.FAILED


def choose_due(job: GridJob, failures: Iterable[FailedJob], now: float) -> list[FailedJob]:
    """Those that are to be tried again now; and, where they end the grid job, those that failed for good."""
    again, given_up = [], []
    for failed in failures:
        if find_refusal(job, failed):
            given_up.append(failed)
        elif is_due(failed, now):
            again.append(failed)
    return [*again, *given_up] if is_lost(job, sum(failed.count for failed in given_up)) else again


def find_due(database: Database, job_id: str) -> Due:
    """When something is to be done about local jobs of a grid job that failed.

    :raises DamagedDocument: its document cannot be read.
    """
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
