"""Compares the job database with the batch system's queue from time to time, because events can be lost.

There is one query for all local jobs of the account. A state in the answer is valid for the second of the query. A
local job that is not in the answer is missing. That it has ended needs a second witness (the driver's record, the batch
system's history), or several answers in a row and enough time for late news. A job with a token of ours that no open
grid job knows is an orphan.
"""

import functools
import logging
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from batch_adapters.adapter import BatchError, Garbled, LocalStatus, Unreachable
from batch_adapters.naming import TOKEN
from batch_adapters.running.batch_system import BatchSystem
from batch_adapters.running.commands import OutputTooLong
from batch_adapters.running.rate_limiter import RateLimited
from batch_adapters.states import Cause, State
from jobmanager.database.database import DamagedDocument, Database, LiveJob
from jobmanager.database.local_job import Evidence, LocalJob
from jobmanager.database.local_jobs import LocalJobs
from jobmanager.site.account import Account, find_batch_system
from jobmanager.states.changes import change_local_jobs, same_runs
from jobmanager.states.driver_status import read_driver_status, reconcile_with_drivers, status_file
from jobmanager.states.ends import may_run_again, needs_batch_cause, was_asked_to_end
from jobmanager.states.transitions import apply_status, find_state, find_wait_reason, mark_lost, note_batch_end, reopen

logger = logging.getLogger(__name__)

MISSING_ANSWERS = 3
"""A local job is gone after so many answers in a row without it."""
MOST_HISTORIES = 10
"""Tokens whose history is queried each time; the others wait for the next."""
HISTORY_PATIENCE = 3600
"""Seconds that a history without an answer is waited for: then it counts as one that knows nothing."""


def reconcile_batch_system(account: Account, name: str) -> None:
    """Query all our local jobs of a batch system, and bring the database up to date.

    :raises Unreachable, Garbled: nothing is known of the queue; ends that drivers recorded are still applied.
    """
    system = find_batch_system(account, name)
    # It lives if its log goes on.
    system.limiter.hurry(account.database.events.generator_time(name) or 0)
    # Read before the query, or what is submitted meanwhile would count as missing.
    known = account.database.local_jobs.list_open(name)
    asked = int(time.time())
    try:
        answer = ask_queue(system, (key.token for key in known))
        answer = system.restore_tokens(answer, {key.local_id: key.token for key in known})
    except (Unreachable, Garbled):
        _read_drivers(account, known)
        raise
    by_id = {status.local_id: status for status in answer}
    found = {key: by_id[key.local_id] for key in known if key.local_id in by_id}
    # An id that the batch system has reused for another token is no longer ours.
    shown = {key: status for key, status in found.items() if status.is_of(key.token)}
    _apply(account, shown, asked)
    found_ids = {key.local_id for key in found}
    others = [status for status in answer if status.local_id not in found_ids]
    _take_back(account, name, others, asked)
    _note_causes(account, name, others)
    try:
        _search_missing(account, system, [key for key in known if key not in shown], asked)
    finally:  # the history may be silent while the queue answers: Slurm's is in a database of its own
        _cancel_orphans(account, system, answer)
        cancel_overdue(account, system, {key.grid_job for key in known})


def ask_queue(system: BatchSystem, tokens: Iterable[str]) -> list[LocalStatus]:
    """What the queue shows; if the answer is too long, only of these tokens.

    :raises Unreachable, Garbled: nothing is known.
    """
    try:
        return system.query()
    except OutputTooLong:
        return [status for token in sorted(set(tokens)) for status in system.find(token)]


def _apply(account: Account, shown: Mapping[LiveJob, LocalStatus], asked: int) -> None:
    """Apply the answer to the documents that say something else."""

    def is_news(key: LiveJob, status: LocalStatus) -> bool:
        known = (key.state, key.wait_reason, key.helps)
        return (find_state(status, key.state), find_wait_reason(status), status.helps) != known

    changed = [key for key, status in shown.items() if is_news(key, status)]
    by_id = {key.local_id: shown[key] for key in changed}
    _change(account, changed, lambda job: apply_status(job, by_id[str(job.local_id)], asked, "queue"))


def _take_back(account: Account, name: str, statuses: Iterable[LocalStatus], asked: int) -> None:
    """Reopen local jobs that the queue shows alive again after a signal that was not ours ended them."""
    database = account.database
    for status in statuses:
        if status.is_leaving or status.state not in (State.PENDING, State.SUSPENDED, State.ACTIVE):
            continue
        with suppress(DamagedDocument):
            found = database.local_jobs.find(name, status.local_id)
            if found is None or not status.is_of(str(found[1].token)):
                continue
            grid_job, local_job = found
            if local_job.cancel_asked is not None or database.grid_jobs.get(grid_job).state.is_final:
                continue
            is_running = status.state is State.ACTIVE
            goes_on = _runs_again(account, grid_job, local_job) if is_running else was_asked_to_end(local_job)
            if goes_on:
                select = same_runs(grid_job, [local_job])
                change_local_jobs(database, grid_job, select, partial(_reopen, status, asked))


def _note_causes(account: Account, name: str, statuses: Iterable[LocalStatus]) -> None:
    """Keep why local jobs ended whose end is known already: the others may run until the queue shows these no more."""
    causes = {status.local_id: status for status in statuses if status.cause is not None and status.says_why}
    for grid_job, known in _by_grid_job(account.database.local_jobs.unexplained(name, causes)).items():
        with suppress(DamagedDocument):
            if not account.database.grid_jobs.get(grid_job).state.is_final:
                select = same_runs(grid_job, known)
                change_local_jobs(account.database, grid_job, select, partial(_note_cause, causes))


def _note_cause(causes: Mapping[str, LocalStatus], job: LocalJob) -> bool:
    status = causes[str(job.local_id)]
    return status.is_of(str(job.token)) and needs_batch_cause(job) and note_batch_end(job, status)


def _runs_again(account: Account, grid_job: str, job: LocalJob) -> bool:
    """True if another driver has begun since its own ended; else it may be shown running only on its way out."""
    driver = read_driver_status(status_file(account, grid_job, str(job.local_id)))
    return job.driver == "ended" and may_run_again(job) and driver.start is not None and driver.end is None


def _reopen(status: LocalStatus, asked: int, job: LocalJob) -> bool:
    if not may_run_again(job) or job.cancel_asked is not None or not reopen(job, status, asked):
        return False
    apply_status(job, status, asked, "queue")
    return True


def _change(account: Account, keys: Iterable[LiveJob], change: Callable[[LocalJob], bool]) -> None:
    """Change local jobs, and read the drivers' records of those that have ended."""
    for grid_job, known in _by_grid_job(keys).items():
        changed = change_local_jobs(account.database, grid_job, same_runs(grid_job, known), change)
        ended = [job for job in changed if job.state.is_final]
        for job in ended:
            logger.info("%s %s %s, without an event", grid_job, job.local_id, job.state.word)
        reconcile_with_drivers(account, grid_job, ended)


def _search_missing(account: Account, system: BatchSystem, gone: list[LiveJob], asked: int) -> None:
    """Find out what became of local jobs that are not in the answer."""
    missing = _count_answers(account, system, gone, asked)
    if not gone:
        return
    _read_drivers(account, gone)
    still_open = {key.local_id for key in account.database.local_jobs.list_open(system.adapter.name)}
    gone = [key for key in gone if key.local_id in still_open]
    answered, silent, silence = _end_by_history(account, system, gone, asked)
    patience = max(system.adapter.outputs_lag, system.adapter.settle_time)
    patience_for = {
        **dict.fromkeys(answered, patience),
        **dict.fromkeys(silent, max(patience, HISTORY_PATIENCE)),
    }
    hopeless = [
        key
        for key in gone
        if key.token in patience_for
        and missing[key.local_id][0] >= MISSING_ANSWERS
        and asked - missing[key.local_id][1] >= patience_for[key.token]
    ]
    # Where too many are in the queue, they are asked for by name, and somebody may have changed that.
    arrays = {system.adapter.naming.array_of(key.local_id) for key in hopeless}
    by_id = {status.local_id: status for array in sorted(arrays) for status in system.find_by_id(array)}
    found = {key: by_id[key.local_id] for key in hopeless if key.local_id in by_id}
    shown = {key: status for key, status in found.items() if status.is_of(key.token)}
    _apply(account, shown, asked)
    # Not every batch system tells what a job was submitted as: while one lives whose name is no token, it may be ours.
    renamed = {key for key, status in found.items() if status.is_alive and not TOKEN.fullmatch(status.token)}
    lost = [key for key in hopeless if key not in shown and key not in renamed]
    _change(account, lost, partial(_mark_lost, system.adapter.name, answered, asked))
    if silence is not None:
        raise silence


def _end_by_history(
    account: Account, system: BatchSystem, gone: Iterable[LiveJob], asked: int
) -> tuple[set[str], set[str], BatchError | None]:
    """End what the history knows: the tokens that it answered for, those that it did not, and why not."""
    answered: set[str] = set()
    silent: set[str] = set()
    silence: BatchError | None = None
    for token in sorted({key.token for key in gone})[:MOST_HISTORIES]:
        try:
            ended = {status.local_id: status for status in system.find_ended(token)}
        except RateLimited as error:  # it was not asked
            return answered, silent, error
        except Garbled as error:  # it may be readable for others
            silence = error
            silent.add(token)
            continue
        except Unreachable as error:
            return answered, {*silent, token}, error
        answered.add(token)
        of_token = [key for key in gone if key.token == token and key.local_id in ended]
        _change(account, of_token, partial(_apply_history, ended, asked))
    return answered, silent, silence


def _count_answers(
    account: Account, system: BatchSystem, gone: list[LiveJob], asked: int
) -> dict[str, tuple[int, int]]:
    """In how many answers, including this one, each local job was missing, and since when."""
    name = system.adapter.name
    with account.database.transaction():
        before = account.database.events.missing(name)
        missing = {}
        for key in gone:
            answers, since = before.get(key.local_id, (0, asked))
            # The clock may have been set back since.
            missing[key.local_id] = (answers + 1, min(since, asked))
        account.database.events.put_missing(name, missing)
    return missing


def _read_drivers(account: Account, keys: Iterable[LiveJob]) -> None:
    for grid_job, known in _by_grid_job(keys).items():
        reconcile_with_drivers(account, grid_job, known)


def _by_grid_job(keys: Iterable[LiveJob]) -> dict[str, list[LiveJob]]:
    found: dict[str, list[LiveJob]] = {}
    for key in keys:
        found.setdefault(key.grid_job, []).append(key)
    return found


def _apply_history(ended: Mapping[str, LocalStatus], asked: int, job: LocalJob) -> bool:
    status = ended[str(job.local_id)]
    return status.state is not None and status.state.is_final and apply_status(job, status, asked, "history")


def _mark_lost(batch: str, answered: Container[str], asked: int, job: LocalJob) -> bool:
    if job.state.is_final:
        return False
    history = "" if job.token in answered else ", its history does not answer"
    mark_lost(job, asked, f"{batch} no longer knows it{history}, and its driver left no record of an end")
    return True


def waiting_since(job: LocalJob) -> int | None:
    """Since when a local job waits or is held (seconds since 1970); None if it does neither, or we suspended it."""
    is_held = job.state is State.SUSPENDED and job.helps is not None and job.signalled is None
    if job.state is not State.PENDING and not is_held:
        return None
    entered = [seen.when for seen in job.evidence() if seen.state is job.state]
    return max([job.submitted_time or 0, *entered[-1:]])


def cancel_overdue(account: Account, system: BatchSystem, grid_jobs: Iterable[str]) -> None:
    """Cancel local jobs that have waited longer than their request allows, repeatedly until they have ended.

    :raises BatchError: the batch system does not answer, or its answer cannot be understood.
    """
    for grid_job in sorted(grid_jobs):
        try:
            minutes = account.database.grid_jobs.get(grid_job).max_pending_minutes
        except DamagedDocument:
            continue  # other tasks will put it in quarantine
        if minutes is not None and (ids := _note_overdue(account, grid_job, minutes)):
            logger.info("%s waited longer than max_pending_time, cancelled: %s", grid_job, " ".join(ids[:20]))
            system.cancel(ids, grid_job)


def _note_overdue(account: Account, grid_job: str, minutes: int) -> list[str]:
    """Record in the documents of overdue local jobs why they are cancelled; their ids."""
    now = int(time.time())
    latest = now - 60 * minutes

    def select(local_jobs: LocalJobs) -> Iterable[LocalJob]:
        known = (local_jobs.get(grid_job, index) for index in local_jobs.waiting(grid_job, latest))
        return [job for job in known if (since := waiting_since(job)) is not None and since <= latest]

    def note(job: LocalJob) -> None:
        if job.cancel_asked is None:
            job.cancel_asked, job.cancel_cause = now, Cause.PENDING_LIMIT
            job.put_evidence(Evidence("us", f"waited or held for {minutes} min", now, "cancelled: max_pending_time"))

    return [str(job.local_id) for job in change_local_jobs(account.database, grid_job, select, note)]


def _cancel_orphans(account: Account, system: BatchSystem, statuses: Iterable[LocalStatus]) -> None:
    """Cancel jobs of ours that no grid job needs: a submission that appeared late, or twice."""
    orphans = [orphan for orphan in find_orphans(account.database, system, statuses) if orphan.is_ours]
    if orphans:
        logger.warning(
            "%s: cancelled, as no grid job needs them: %s", system.adapter.name, [o.local_id for o in orphans][:20]
        )
        system.cancel((o.local_id for o in orphans), *(o.token for o in orphans))


@dataclass(frozen=True)
class Orphan:
    """A job in the batch system that has a token of ours, but that no open grid job owns."""

    local_id: str
    token: str
    native_state: str
    is_ours: bool
    """Its grid job is in this job database; other state folders of the account have tokens, too."""
    reason: str


def find_orphans(database: Database, system: BatchSystem, statuses: Iterable[LocalStatus]) -> Iterator[Orphan]:
    """The orphans in a batch system's answer; a submission that is under way is none."""
    open_grid_jobs = {job.id for job in database.grid_jobs.list_open()}
    in_doubt = database.local_jobs.tokens_in_doubt()
    batch_of = functools.cache(database.grid_jobs.batch_of)
    is_registered = functools.cache(functools.partial(database.local_jobs.is_registered, system.adapter.name))
    earlier_ids = functools.cache(database.attempts.ids)
    for status in statuses:
        match = TOKEN.fullmatch(status.token)
        if match is None or not status.is_alive or status.token in in_doubt:
            continue
        batch = batch_of(match[1])
        # The same batch system may be configured under two names: only the grid job's own counts.
        if batch not in (None, system.adapter.name):
            continue
        array = system.adapter.naming.array_of(status.local_id) or status.local_id
        is_ours = batch is not None
        reason = _find_reason(is_registered(status.token, array), match[1], is_ours, match[1] in open_grid_jobs)
        if status.local_id in earlier_ids(match[1]):
            reason = f"an earlier attempt of grid job {match[1]}, which has tried again"
        if reason and not _has_run(database, system, status):
            yield Orphan(status.local_id, status.token, status.native_state, is_ours, reason)


def _has_run(database: Database, system: BatchSystem, status: LocalStatus) -> bool:
    """True if its driver ended undisturbed: PBS shows a job as running (R) until its epilogue has ended."""
    with suppress(DamagedDocument):
        found = database.local_jobs.find(system.adapter.name, status.local_id)
        if found is not None and status.state is State.ACTIVE and status.is_of(str(found[1].token)):
            return found[1].driver == "ended" and not may_run_again(found[1])
    return False


def _find_reason(is_registered: bool, grid_job: str, is_ours: bool, is_open: bool) -> str:
    if not is_ours:
        return f"no grid job {grid_job} in this job database"
    if not is_registered:
        return f"grid job {grid_job} does not know of it"
    return "" if is_open else f"grid job {grid_job} has ended"
