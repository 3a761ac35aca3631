"""Retries failed local jobs while others still run, or ends a grid job early that cannot succeed (fail_fast)."""

import logging
import time
from collections.abc import Iterator

from jobmanager import render_number
from jobmanager.completion.collection import render_failures
from jobmanager.completion.proof import Selection, ask_for_causes, is_ripe, prove_ends
from jobmanager.database.local_job import LocalJob
from jobmanager.site.account import Account, find_batch_adapter
from jobmanager.states.aggregation import Due
from jobmanager.states.changes import in_parts, put_local_jobs
from jobmanager.states.failures import choose_due, find_due, find_refusal, is_lost
from jobmanager.submission.submit import find_last_token

logger = logging.getLogger(__name__)


def judge_failures(account: Account, job_id: str) -> None:
    """Begin new attempts at a grid job's failed local jobs, or end it early if it cannot succeed.

    Ends about which news may still come are judged the next time; the others do not wait for them.

    :raises Unreachable, Garbled: it is not known whether, or why, they have ended.
    """
    database = account.database
    if find_due(database, job_id) is not Due.NOW:
        return
    # One time for all: an end that becomes ripe later has not been asked about.
    now = time.time()
    job = database.grid_jobs.get(job_id)
    chosen = choose_due(job, database.local_jobs.failed(job_id, each=True), now)
    lag = find_batch_adapter(account, job.batch).outputs_lag

    def select() -> Iterator[LocalJob]:
        jobs = (database.local_jobs.get(job_id, failed.index) for failed in chosen)
        return (local_job for local_job in jobs if local_job.state.is_final and is_ripe(local_job, lag, now))

    prove_ends(account, job_id, select)
    ask_for_causes(account, job_id, select)
    _decide(account, job_id, select)


def _decide(account: Account, job_id: str, select: Selection) -> None:
    """Begin new attempts, all or none of them, and end the grid job if that is not enough.

    The local jobs lose their tokens, so that late news about them finds nobody. The grid job keeps the last one.
    """
    database = account.database
    with database.transaction():
        job = database.grid_jobs.get(job_id)
        if job.cancelled:
            return
        refusals = {failed.index: find_refusal(job, failed) for failed in database.local_jobs.failed(job_id, each=True)}
        # While a submission is in doubt, its other local jobs are identified by their order under the token.
        in_doubt = database.local_jobs.tokens_in_doubt()
        given_up: list[int] = []
        count = 0
        job.last_token = find_last_token(database, job)
        for part in in_parts(local_job for local_job in select() if local_job.index in refusals):
            given_up += [local_job.index for local_job in part if refusals[local_job.index]]
            again = [each for each in part if not refusals[each.index] and each.token not in in_doubt]
            if again and not count:
                database.grid_jobs.put(job)
            count += len(again)
            for local_job in again:
                local_job.begin_attempt()
            put_local_jobs(database, job_id, again)
        if is_lost(job, len(given_up)):
            job = database.grid_jobs.get(job_id)
            job.cancel(time.time(), render_failures(account, job, len(given_up), given_up[0]), "fail-fast")
            database.grid_jobs.put(job)
    if count:
        logger.info("%s tried again: %s", job_id, render_number(count, "local job"))
    if job.cancelled:
        logger.info("%s is ended early, as it can no longer succeed: %s", job_id, job.reason)
