"""Sequences of grid jobs: which step begins next, what it reads of the steps before, and one output tar of all.

A step is an ordinary grid job; only what joins the steps is here.
"""

import logging
from collections.abc import Sequence
from pathlib import Path

from adapters import Step
from batch_adapters.states import State
from jobmanager.completion.collection import Verdict, keep_summary, output_limits, put_end, render_extras
from jobmanager.completion.delivery import deliver_outputs
from jobmanager.control.cancel_requests import request_cancel
from jobmanager.database.database import Database
from jobmanager.database.grid_job import GridJob
from jobmanager.database.grid_jobs import states_of
from jobmanager.requests.acceptance import add_grid_job, find_steps, make_adapter, prepare_grid_job, request_of_step
from jobmanager.requests.attributes import BadRequest
from jobmanager.requests.job_types import HandlerError
from jobmanager.requests.time_limit import HandlerHung, asking
from jobmanager.site.account import Account
from jobmanager.states.aggregation import aggregate_steps
from jobmanager.states.next_task import Task, next_task_of_steps
from sandbox.gather import render_stem, write_bundle
from sandbox.unpack import lay_out

logger = logging.getLogger(__name__)


def advance_grid_job(account: Account, identity: str) -> None:
    """Begin the next step of a structured grid job, once: step and grid job are written in one transaction.

    :raises BadRequest, HandlerError: it can never be run.
    :raises OSError, SandboxError, DatabaseError: not now.
    """
    database = account.database
    whole = database.grid_jobs.get(identity)
    if _find_task(database, whole) is not Task.ADVANCE:
        return
    name = next(entry.name for entry in whole.steps if entry.grid_job is None)
    part = _prepare_step(account, whole, name)
    with database.transaction():
        whole = database.grid_jobs.get(identity)
        # Cancelled meanwhile, or begun by a worker that has outlived its monitor.
        if _find_task(database, whole) is not Task.ADVANCE:
            return
        whole.begin_step(name, part.identity)
        add_grid_job(database, part)
        database.grid_jobs.put(whole)
    logger.info("%s step %s is %s", identity, name, part.identity)


def _find_task(database: Database, whole: GridJob) -> Task | None:
    return next_task_of_steps(states_of(database.grid_jobs.steps(whole.identity)[whole.identity]), whole.cancelled)


def _prepare_step(account: Account, whole: GridJob, name: str) -> GridJob:
    """The document of the grid job that a step becomes.

    :raises BadRequest, HandlerError: naming the step.
    """
    with asking(account, whole.identity, "check").limited():
        adapter = make_adapter(account, whole.request(), whole.request_folder)
        step = next((step for step in find_steps(adapter) if step.name == name), None)
    if step is None:
        raise HandlerError(f"handler {adapter.jobType}: getSteps does not give {name} any more")
    input_folder = _bring_input(account, whole, step) if step.input_step else None
    try:
        with asking(account, whole.identity, "pack").limited():
            request = request_of_step(account, whole.request(), step, input_folder)
            part = prepare_grid_job(account, request, whole.request_folder)
    except HandlerHung:
        raise
    except BadRequest as error:
        raise BadRequest([f"step {name}: {fault}" for fault in error.faults]) from error
    except HandlerError as error:
        raise HandlerError(f"step {name}: {error}") from error
    part.put_parent(whole.identity, name)
    return part


def _bring_input(account: Account, whole: GridJob, step: Step) -> Path:
    """The folder with what the local jobs of an earlier step left in ``output``, a folder for each that succeeded."""
    earlier = next(entry.grid_job for entry in whole.steps if entry.name == step.input_step)
    if earlier is None:
        raise HandlerError(f"step {step.name} reads {step.input_step}, which has not begun")
    folders = {
        f"{earlier}/{render_stem(earlier, str(job.local_id))}.output": f"{job.index:06d}"
        for job in account.database.local_jobs.all_of(earlier)
        if job.succeeded
    }
    destination = account.places.step_input(whole.identity, step.input_step)
    lay_out(account.places.output(earlier), folders, destination, output_limits(account))
    return destination


def cancel_steps(account: Account, identity: str) -> None:
    """Want those steps ended that have begun; the monitor sees to each of them as to any grid job."""
    database = account.database
    whole = database.grid_jobs.get(identity)
    for entry in whole.steps:
        if entry.grid_job is not None:
            request_cancel(database, entry.grid_job, f"{identity} was {whole.reason or 'cancelled'}")


def refresh_structured(database: Database, identity: str) -> None:
    """Bring the state of a structured grid job up to date with those of its steps."""
    with database.transaction():
        whole = database.grid_jobs.get(identity)
        state = aggregate_steps(states_of(database.grid_jobs.steps(identity)[identity]))
        if whole.state.is_final or whole.state is state:
            return
        whole.state = state
        database.grid_jobs.put(whole)
    logger.info("%s %s", identity, state.word)


def collect_steps(account: Account, identity: str) -> None:
    """Gather the outputs of a structured grid job whose steps have ended, or never begin, and put its final state.

    Done again after a crash, it writes the same bytes.

    :raises SandboxError, OSError, DatabaseError: not now; nothing half-made stays.
    """
    database, places = account.database, account.places
    whole = database.grid_jobs.get(identity)
    parts = {step.name: database.grid_jobs.get(step.grid_job) for step in whole.steps if step.grid_job is not None}
    summary = {f"{name}: {item}": text for name, part in parts.items() for item, text in part.summary().items()}
    keep_summary(database, whole, summary)
    gathered = write_bundle(
        grid_job=identity,
        parts={name: places.output(part.identity) for name, part in parts.items()},
        extras=render_extras(account, identity, lambda job: judge_steps(job, list(parts.values()))),
        tar=places.output(identity),
        limits=output_limits(account),
    )
    undelivered = deliver_outputs(account, database.grid_jobs.get(identity), [])
    job = database.grid_jobs.change(
        identity, lambda job: put_end(job, judge_steps(job, list(parts.values())), undelivered)
    )
    logger.info(
        "%s %s: %d files gathered, %s", identity, job.state.word, len(gathered.files), job.reason or "no faults"
    )


def judge_steps(whole: GridJob, parts: Sequence[GridJob]) -> Verdict:
    """DONE where all steps are; ``parts``: the grid jobs of the steps that have begun."""
    if whole.cancelled:
        return State.FAILED, whole.reason
    named = zip(whole.steps, parts, strict=False)  # the last steps may not have begun
    faults = [f"step {step.name} ({part.identity}): {part.reason}" for step, part in named if part.reason]
    if len(parts) == len(whole.steps) and all(part.state is State.DONE for part in parts):
        return State.DONE, "; ".join(faults) or None
    return State.FAILED, faults[-1] if faults else "a step failed"
