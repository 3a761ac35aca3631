"""A slow look at a batch system beside its log, for what the log never told, or told while no monitor ran.

One question for all local jobs of the account. What the answer shows counts for the second in which it was asked. What
it does not show is missing: that it has ended needs a second witness (the driver's record, the batch system's history),
or several answers in a row and the time in which late news may still come. What has a token of ours, and no live grid
job, is an orphan.
"""

import functools
import logging
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from batch_adapters.adapter import Garbled, LocalStatus, Unreachable
from batch_adapters.running.batch_system import BatchSystem
from batch_adapters.running.commands import OutputTooLong
from batch_adapters.states import State
from jobmanager.database.database import DamagedDocument, Database, LiveJob
from jobmanager.database.local_job import LocalJob
from jobmanager.site.account import Account, find_batch_system
from jobmanager.states.changes import change_local_jobs, same_runs
from jobmanager.states.driver_status import reconcile_with_drivers
from jobmanager.states.ends import was_asked_to_end
from jobmanager.states.pending_limit import cancel_overdue
from jobmanager.states.transitions import apply_status, find_state, find_wait_reason, mark_lost, reopen

logger = logging.getLogger(__name__)

MISSING_ANSWERS = 3
"""Answers in a row without a local job after which it is gone."""
MOST_HISTORIES = 10
"""Tokens whose history is asked for in one look: the others have their turn in the next."""


def reconcile_batch_system(account: Account, name: str) -> None:
    """Ask a batch system once for all its local jobs, and bring the database up to date with the answer.

    :raises Unreachable, Garbled: nothing is known of the queue; ends that drivers wrote down count all the same.
    """
    system = find_batch_system(account, name)
    # Before the question: what is submitted while it is answered would count as missing.
    known = account.database.local_jobs.list_open(name)
    asked = int(time.time())
    try:
        answer = ask_queue(system, (key.token for key in known))
    except (Unreachable, Garbled):
        # What the disk proves needs no answer.
        _ask_drivers(account, known)
        raise
    by_id = {status.local_id: status for status in answer}
    told = {key: by_id[key.local_id] for key in known if key.local_id in by_id}
    # An id that the batch system has used again, for another token, is not ours any more.
    shown = {key: status for key, status in told.items() if status.is_of(key.token)}
    _apply(account, shown, asked)
    told_ids = {key.local_id for key in told}
    _take_back(account, name, [status for status in answer if status.local_id not in told_ids], asked)
    _search_missing(account, system, [key for key in known if key not in shown], asked)
    _cancel_orphans(account, system, answer)
    cancel_overdue(account, system, {key.grid_job for key in known})


def ask_queue(system: BatchSystem, tokens: Iterable[str]) -> list[LocalStatus]:
    """What the queue shows; where that is more than anybody reads, of these tokens only.

    :raises Unreachable, Garbled: nothing is known.
    """
    try:
        return system.query()
    except OutputTooLong:
        return [status for token in sorted(set(tokens)) for status in system.find(token)]


def _apply(account: Account, told: Mapping[LiveJob, LocalStatus], asked: int) -> None:
    """Put what the answer shows into the documents that say otherwise."""

    def is_news(key: LiveJob, status: LocalStatus) -> bool:
        known = (key.state, key.wait_reason, key.helps)
        return (find_state(status, key.state), find_wait_reason(status), status.helps) != known

    changed = [key for key, status in told.items() if is_news(key, status)]
    shown = {key.local_id: told[key] for key in changed}
    _change(account, changed, lambda job: apply_status(job, shown[str(job.local_id)], asked, "queue"))


def _take_back(account: Account, name: str, statuses: Iterable[LocalStatus], asked: int) -> None:
    """Reopen local jobs whose drivers ended on a signal that was not ours, and that the queue shows held or waiting."""
    database = account.database
    for status in statuses:
        if status.is_leaving or status.state not in (State.PENDING, State.SUSPENDED):
            continue
        with suppress(DamagedDocument):
            found = database.local_jobs.find(name, status.local_id)
            if found is None or not status.is_of(str(found[1].token)):
                continue
            grid_job, local_job = found
            if was_asked_to_end(local_job) and not database.grid_jobs.get(grid_job).state.is_final:
                select = same_runs(grid_job, [local_job])
                change_local_jobs(database, grid_job, select, partial(_reopen, status, asked))


def _reopen(status: LocalStatus, asked: int, job: LocalJob) -> bool:
    if not was_asked_to_end(job) or not reopen(job, status, asked):
        return False
    apply_status(job, status, asked, "queue")
    return True


def _change(account: Account, keys: Iterable[LiveJob], change: Callable[[LocalJob], bool]) -> None:
    """Change local jobs; those that ended are reconciled with their drivers."""
    for grid_job, known in _by_grid_job(keys).items():
        changed = change_local_jobs(account.database, grid_job, same_runs(grid_job, known), change)
        ended = [job for job in changed if job.state.is_final]
        for job in ended:
            logger.info("%s %s %s, which no event told", grid_job, job.local_id, job.state.word)
        reconcile_with_drivers(account, grid_job, ended)


def _search_missing(account: Account, system: BatchSystem, gone: list[LiveJob], asked: int) -> None:
    """Find out what became of local jobs that the answer does not show."""
    missing = _count_answers(account, system, gone, asked)
    _ask_drivers(account, gone)
    still_open = {key.local_id for key in account.database.local_jobs.list_open(system.adapter.name)}
    gone = [key for key in gone if key.local_id in still_open]
    witnessed = set()
    for token in sorted({key.token for key in gone})[:MOST_HISTORIES]:
        ended = {status.local_id: status for status in system.find_ended(token)}
        witnessed.add(token)
        of_token = [key for key in gone if key.token == token and key.local_id in ended]
        _change(account, of_token, partial(_end_by_history, ended, asked))
    patience = max(system.adapter.outputs_lag, system.adapter.settle_time)
    hopeless = [
        key
        for key in gone
        if key.token in witnessed
        and missing[key.local_id][0] >= MISSING_ANSWERS
        and asked - missing[key.local_id][1] >= patience
    ]
    _change(account, hopeless, partial(_mark_lost, system.adapter.name, asked))


def _count_answers(
    account: Account, system: BatchSystem, gone: list[LiveJob], asked: int
) -> dict[str, tuple[int, int]]:
    """In how many answers each local job was missing, this one included, and since when."""
    name = system.adapter.name
    with account.database.transaction():
        before = account.database.events.missing(name)
        missing = {}
        for key in gone:
            answers, since = before.get(key.local_id, (0, asked))
            missing[key.local_id] = (answers + 1, since)
        account.database.events.put_missing(name, missing)
    return missing


def _ask_drivers(account: Account, keys: Iterable[LiveJob]) -> None:
    for grid_job, of_grid_job in _by_grid_job(keys).items():
        jobs = [account.database.local_jobs.get(grid_job, key.index) for key in of_grid_job]
        reconcile_with_drivers(account, grid_job, jobs)


def _by_grid_job(keys: Iterable[LiveJob]) -> dict[str, list[LiveJob]]:
    found: dict[str, list[LiveJob]] = {}
    for key in keys:
        found.setdefault(key.grid_job, []).append(key)
    return found


def _end_by_history(ended: Mapping[str, LocalStatus], asked: int, job: LocalJob) -> bool:
    status = ended[str(job.local_id)]
    return status.state is not None and status.state.is_final and apply_status(job, status, asked, "history")


def _mark_lost(batch: str, asked: int, job: LocalJob) -> bool:
    if job.state.is_final:
        return False
    mark_lost(job, asked, f"{batch} does not know it any more, and its driver left no record of an end")
    return True


def _cancel_orphans(account: Account, system: BatchSystem, statuses: Iterable[LocalStatus]) -> None:
    """Cancel what was submitted for a grid job of ours behind our back: a submission that came late, or twice."""
    orphans = [orphan for orphan in find_orphans(account.database, system, statuses) if orphan.is_ours]
    if orphans:
        logger.warning(
            "%s: cancelled, as nobody wants them: %s", system.adapter.name, [o.local_id for o in orphans][:20]
        )
        system.cancel(orphan.local_id for orphan in orphans)


_TOKEN = re.compile(r"([a-z][a-z0-9]{7})-[0-9a-z]{1,6}", re.ASCII)


@dataclass(frozen=True)
class Orphan:
    """A local job in a batch system that carries a token of ours, but that no live grid job owns."""

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
    batch_of = functools.cache(database.grid_jobs.batch_of)
    is_registered = functools.cache(functools.partial(database.local_jobs.is_registered, system.adapter.name))
    earlier_ids = functools.cache(database.local_jobs.earlier_ids)
    for status in statuses:
        match = _TOKEN.fullmatch(status.token)
        if match is None or not status.is_alive or status.token in in_doubt:
            continue
        batch = batch_of(match[1])
        # The same batch system may be there under two names: under the grid job's own it is known what is wanted.
        if batch not in (None, system.adapter.name):
            continue
        array = system.adapter.naming.array_of(status.local_id) or status.local_id
        is_ours = batch is not None
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
