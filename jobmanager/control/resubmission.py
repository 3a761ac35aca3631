"""Submits a grid job again that has ended: all of it, or what did not succeed."""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from adapters import JobAdapter, canonical_name
from batch_adapters.states import State
from jobmanager import UserError, render_number
from jobmanager.control.repair import read_start
from jobmanager.database.database import DamagedDocument, Database
from jobmanager.database.grid_job import GridJob
from jobmanager.requests.acceptance import add_grid_job, prepare_grid_job
from jobmanager.requests.attributes import BadRequest, Given, read_type
from jobmanager.requests.job_types import HandlerError, load_job_types
from jobmanager.requests.request_handler import find_steps, read_adapter
from jobmanager.requests.time_limit import limited, telling_delay
from jobmanager.site.account import Account

logger = logging.getLogger(__name__)


class NotRepeatable(UserError):
    """There is nothing to submit again now; the message says why."""


def repeat_grid_job(account: Account, job_id: str, only_failed: bool) -> GridJob:
    """A new grid job with the request of one that has ended; ``only_failed``: only what did not succeed in that.

    :raises NotRepeatable: it has not ended, nothing of it failed, or a repetition has made or is making that.
    :raises BadRequest: its request can no longer be run.
    :raises UnknownJob: it has been removed.
    """
    database = account.database
    first = database.grid_jobs.get(job_id)
    if not first.state.is_final:
        raise NotRepeatable(f"grid job {job_id} is {first.state.word}: wait until it has ended, or cancel it")
    while True:
        gap = gap_of(database, first) if only_failed else None
        job = _prepare_gap(account, gap) if gap else prepare_whole(account, first)
        with database.transaction():
            # Raises if it has been removed meanwhile, with what its repetition may build on.
            database.grid_jobs.get(job_id)
            # Another process may have been faster.
            if gap and gap_of(database, first) != gap:
                continue
            add_grid_job(account, job)
        logger.info("%s repeats %s: %s", job.job_id, job.repeats, render_number(job.count, "local job"))
        return job


def prepare_whole(account: Account, first: GridJob) -> GridJob:
    """A new grid job that repeats all of another."""
    job = _prepare(account, first)
    if first.is_partial:
        job.repeat_slices(first, first.indexes)
    return job


def _prepare_gap(account: Account, gap: "Gap") -> GridJob:
    """A new grid job that makes what is missing: slices with their indexes, events and seeds, or the other steps."""
    first = account.database.grid_jobs.get(gap.grid_job)
    job = _prepare(account, first)
    if first.steps:
        for name, child in done_steps(account.database, first.job_id).items():
            job.begin_step(name, child)
    else:
        job.repeat_slices(first, gap.indexes)
    return job


def gap_of(database: Database, first: GridJob) -> "Gap":
    """What did not succeed in a grid job that has ended, nor in its repetitions.

    :raises NotRepeatable: nothing is missing, or a repetition is making it now.
    """
    eldest = first
    while eldest.is_partial and eldest.repeats is not None and database.grid_jobs.has(eldest.repeats):
        eldest = database.grid_jobs.get(eldest.repeats)
    try:
        family = find_family(database, eldest)
    except DamagedDocument as damage:
        raise NotRepeatable(f"what failed in {first.job_id} may have been made again already: {damage}") from damage
    if first.steps:
        return _gap_of_steps(database, first, [job for job in family if job.steps])
    failed = set(first.indexes) - succeeded_indexes(database, first.job_id)
    if not failed:
        raise NotRepeatable(f"no local job of {first.job_id} failed: there is nothing to submit again")
    repetitions = [job for job in family if job.is_partial and job.slices == first.slices]
    made = {job.job_id: succeeded_indexes(database, job.job_id) for job in repetitions}
    missing = failed.difference(*made.values())
    if not missing:
        makers = ", ".join(job_id for job_id, indexes in made.items() if indexes & failed)
        raise NotRepeatable(f"what failed in {first.job_id} has succeeded in {makers}: nothing is missing")
    _check_none_runs(first, [job for job in repetitions if missing & set(job.indexes)])
    return Gap(first.job_id, tuple(sorted(missing)))


def find_family(database: Database, eldest: GridJob) -> list[GridJob]:
    """A grid job, its repetitions, and the repetitions of those, the eldest first."""
    family = [eldest, *_find_strays(database, eldest)]
    for job in family:  # which grows
        family += map(database.grid_jobs.get, database.grid_jobs.repetitions_of(job.job_id))
    return sorted(family, key=lambda job: (job.submitted, job.job_id))


def _find_strays(database: Database, eldest: GridJob) -> Iterator[GridJob]:
    """Repetitions of the same slices that no longer name what they repeat, or name what has been removed."""
    for job_id in database.grid_jobs.partial(eldest.job_type):
        try:
            job = database.grid_jobs.get(job_id)
        except DamagedDocument:
            if _may_be_stray(database, job_id):
                raise
            continue
        is_same = (job.slices, job.request()) == (eldest.slices, eldest.request())
        if is_same and job.job_id != eldest.job_id and not (job.repeats and database.grid_jobs.has(job.repeats)):
            yield job


def _gap_of_steps(database: Database, first: GridJob, family: Sequence[GridJob]) -> "Gap":
    done = next((job.job_id for job in family if job.state is State.DONE), None)
    if done is not None:
        raise NotRepeatable(f"all steps of {done} are done: there is nothing to submit again")
    _check_none_runs(first, family)
    return _farthest_gap(database, family)


def _farthest_gap(database: Database, family: Iterable[GridJob]) -> "Gap":
    """What is missing of the repetition in which most steps are done."""
    farthest = max(reversed(list(family)), key=lambda job: len(done_steps(database, job.job_id)))
    return Gap(farthest.job_id, ())


def _check_none_runs(first: GridJob, repetitions: Iterable[GridJob]) -> None:
    for job in repetitions:
        if not job.state.is_final:
            raise NotRepeatable(
                f"what failed in {first.job_id} is made again by {job.job_id}, which is {job.state.word}:"
                " wait until it has ended, or cancel it"
            )


def _prepare(account: Account, first: GridJob) -> GridJob:
    seconds = account.handler_time_limit
    with telling_delay(seconds), limited(seconds):
        return prepare_grid_job(account, first.request(), first.request_folder, first)


def succeeded_indexes(database: Database, job_id: str) -> set[int]:
    """The indexes of the local jobs of a grid job that succeeded."""
    return {line.index for line in database.local_jobs.lines(job_id) if line.succeeded}


def done_steps(database: Database, job_id: str) -> dict[str, str]:
    """The grid jobs of the steps that are done, by the steps' names; the steps that these need are done, too."""
    steps = database.grid_jobs.steps_of(job_id)
    return {step.name: step.grid_job for step in steps if step.grid_job and step.state == State.DONE.word}


class UnknownRequest(UserError, LookupError):
    """No grid job belongs to a request."""


@dataclass(frozen=True)
class Gap:
    """What is missing of one grid job and its repetitions."""

    grid_job: str
    """The one to be repeated."""
    indexes: tuple[int, ...]
    """The local jobs that have succeeded nowhere; empty for a structured grid job, of which steps are missing."""


@dataclass(frozen=True)
class Recovery:
    """What has to be done for a request: nothing while one of its grid jobs runs."""

    running: tuple[str, ...]
    gaps: tuple[Gap, ...]
    unknown: tuple[str, ...] = ()
    """Those whose documents cannot be read, so that it is not known what is missing of them and of what they repeat."""


def recover_request(account: Account, request_id: str) -> tuple[Recovery, list[GridJob]]:
    """Submit again what is missing of a request, once; what was found, and the new grid job for each gap.

    :raises UnknownRequest: no grid job belongs to it.
    :raises BadRequest: its request can no longer be run.
    """
    database = account.database
    types = load_job_types(account.configuration.handlers.modules)
    while True:
        found = plan_recovery(account, types, request_id)
        jobs = [] if found.running else [_prepare_gap(account, gap) for gap in found.gaps]
        with database.transaction():
            # Another process may have been faster.
            if plan_recovery(account, types, request_id) != found:
                continue
            for job in jobs:
                add_grid_job(account, job)
        return found, jobs


def plan_recovery(account: Account, types: Mapping[str, type[JobAdapter]], request_id: str) -> Recovery:
    """What has to be done for a request.

    :raises UnknownRequest: no grid job belongs to it.
    """
    strays = dict[str, str]()
    candidates = _find_candidates(account, types, strays)
    jobs = [job for job in candidates if request_id in _read_request_ids(account, types, job)]
    if not jobs:
        known = ", ".join(sorted(name for name, handler in types.items() if handler.requestIdAttribute)) or "none"
        raise UnknownRequest(f"no grid job belongs to request {request_id}; job types with request ids: {known}")
    ids = {job.job_id for job in jobs}
    gaps, seen = list[Gap](), set[str]()
    database = account.database
    running = tuple(job.job_id for job in jobs if not job.state.is_final)
    unknown = {job_id for job_id, job_type in strays.items() if any(job_type == job.job_type for job in jobs)}
    if unknown:  # they may repeat any of these
        return Recovery(running, (), tuple(sorted(unknown)))
    # A part may be of the family of a whole, and not name what it repeats.
    for job in sorted(jobs, key=lambda job: job.is_partial):
        if job.repeats in ids or job.job_id in seen:
            continue
        try:
            if job.repeats is not None and database.grid_jobs.has(job.repeats):
                database.grid_jobs.get(job.repeats)  # raises if it is damaged: then this begins no family
            family = find_family(database, job)
            seen.update(one.job_id for one in family)
            gaps += _gaps_of(database, family)
        except DamagedDocument as damage:
            unknown.add(damage.grid_job)
    return Recovery(running, tuple(gaps), tuple(sorted(unknown)))


def _find_candidates(account: Account, types: Mapping[str, type[JobAdapter]], strays: dict[str, str]) -> list[GridJob]:
    """The grid jobs that may belong to a request, the eldest first; steps are recovered with their parent.

    :param strays: gets those, and their types, that cannot be read, so that it is not known which one they repeat.
    """
    database = account.database
    with_id = {name for name, handler in types.items() if handler.requestIdAttribute}
    rows = [row for row in database.grid_jobs.overview() if row.parent is None and (row.steps or row.type in with_id)]
    found = []
    for row in rows:
        try:
            found.append(database.grid_jobs.get(row.id))
        except DamagedDocument as damage:  # it may belong to the request: the user must know
            logger.warning("%s", damage)
            if _may_be_stray(database, row.id):
                strays[row.id] = row.type
    return found


def _may_be_stray(database: Database, job_id: str) -> bool:
    """True if a document that cannot be read may be that of a repetition, and does not name what is repeated."""
    start = read_start(database.read_text(job_id))
    repeats = None if start is None else start.get("repeats")
    return start is None or (repeats is not None and not database.grid_jobs.has(repeats))


def _read_request_ids(account: Account, types: Mapping[str, type[JobAdapter]], job: GridJob) -> set[str]:
    """The ids of the requests to which a grid job, or a step of it, belongs."""
    requests = [job.request(), *_find_requests_of_steps(account, job)]
    return {found for given in requests for found in _read_ids(types, given)}


def _find_requests_of_steps(account: Account, job: GridJob) -> list[Given]:
    """Empty if the grid job's type no longer exists, which must not prevent the recovery of other requests."""
    if not job.steps:
        return []
    try:
        adapter, faults = read_adapter(account, job.request(), job.request_folder)
        return [] if faults else [step.request for step in find_steps(adapter)]
    except (BadRequest, HandlerError) as error:
        logger.warning("%s: its steps cannot be known: %s", job.job_id, error)
        return []


def _read_ids(types: Mapping[str, type[JobAdapter]], given: Given) -> list[str]:
    """The value of the attribute with the request id; the last one if it is given several times."""
    handler = types.get(read_type(given))
    wanted = canonical_name(handler.requestIdAttribute) if handler else ""
    values = next((values for name, values in reversed(given) if wanted and canonical_name(name) == wanted), ())
    return [value for value in values if isinstance(value, str)]


def _gaps_of(database: Database, family: Sequence[GridJob]) -> list[Gap]:
    if family[0].steps:
        is_done = any(job.state is State.DONE for job in family)
        return [] if is_done else [_farthest_gap(database, family)]
    base = _choose_base(family)
    made = (succeeded_indexes(database, job.job_id) for job in family if job.slices == base.slices)
    missing = set(base.indexes).difference(*made)
    return [Gap(base.job_id, tuple(sorted(missing)))] if missing else []


def _choose_base(family: Sequence[GridJob]) -> GridJob:
    """The last grid job of a family that was to make everything: a repetition of all of it takes its place."""
    whole = [job for job in family if not job.is_partial] or list(family[:1])
    repeated = {job.repeats for job in whole}
    return [job for job in whole if job.job_id not in repeated][-1]
