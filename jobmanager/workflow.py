"""Structured grid jobs: starts their steps, gives them the outputs of earlier steps, and joins all outputs in one tar.

Each step is an ordinary grid job with its own local jobs.
"""

import logging
from collections.abc import Mapping
from pathlib import Path

from adapters import Step
from batch_adapters.states import State
from jobmanager.completion.collection import Verdict, keep_summary, open_extras, output_limits, put_end
from jobmanager.completion.delivery import deliver_outputs
from jobmanager.control.cancel_requests import request_cancel
from jobmanager.database.database import Database
from jobmanager.database.grid_job import GridJob
from jobmanager.database.grid_jobs import states_of
from jobmanager.requests.acceptance import add_grid_job, prepare_grid_job
from jobmanager.requests.attributes import BadRequest, find_values, render_step_request
from jobmanager.requests.credentials import PROXY
from jobmanager.requests.job_types import HandlerError, HandlerUnreachable
from jobmanager.requests.request_handler import find_handler, find_steps, make_adapter
from jobmanager.requests.time_limit import HandlerHung, asking
from jobmanager.site.account import Account
from jobmanager.states.aggregation import find_due_steps
from sandbox.gather import write_bundle
from sandbox.status import render_stem
from sandbox.unpack import lay_out

logger = logging.getLogger(__name__)


def advance_grid_job(account: Account, job_id: str) -> None:
    """Begin the due steps of a structured grid job, each once: step and parent are written in one transaction.

    :raises BadRequest, HandlerError: it can never be run.
    :raises OSError, SandboxError, DatabaseError: not now.
    """
    parent = account.database.grid_jobs.get(job_id)
    for name in _find_due(account.database, parent):
        _begin_step(account, parent, name)


def _find_due(database: Database, parent: GridJob) -> list[str]:
    if parent.cancelled:
        return []
    return find_due_steps(states_of(database.grid_jobs.steps_of(parent.job_id)), parent.needs)


def _begin_step(account: Account, parent: GridJob, name: str) -> None:
    database, job_id = account.database, parent.job_id
    child = _prepare_step(account, parent, name)
    with database.transaction():
        parent = database.grid_jobs.get(job_id)
        # The parent was cancelled meanwhile, or another worker, left by an earlier monitor, has begun the step.
        if name not in _find_due(database, parent):
            return
        parent.begin_step(name, child.job_id)
        add_grid_job(account, child)
        database.grid_jobs.put(parent)
    logger.info("%s step %s is %s", job_id, name, child.job_id)


def _prepare_step(account: Account, parent: GridJob, name: str) -> GridJob:
    """The document of a step's grid job; raises BadRequest, HandlerError: the message names the step."""
    with asking(account, parent.job_id, "check").limited():
        adapter = make_adapter(account, parent.request(), parent.request_folder, parent.job_id)
        step = next((step for step in find_steps(adapter) if step.name == name), None)
    if step is None:
        raise HandlerError(f"handler {adapter.jobType}: getSteps does not give {name} any more")
    input_folder = _bring_input(account, parent, step) if step.input_step else None
    try:
        with asking(account, parent.job_id, "pack").limited():
            handler = find_handler(account, step.request)
            request = render_step_request(parent.request(), step, input_folder, handler)
            child = prepare_grid_job(account, request, parent.request_folder)
    except (HandlerHung, HandlerUnreachable):
        raise
    except BadRequest as error:
        raise BadRequest([f"step {name}: {fault}" for fault in error.faults]) from error
    except HandlerError as error:
        raise HandlerError(f"step {name}: {error}") from error
    child.put_parent(parent.job_id, name)
    if not find_values(request, PROXY.attribute):
        default = [entry for entry in parent.credentials if entry.is_gram_default]
        child.put_credentials([*child.credentials, *default])
    return child


def _bring_input(account: Account, parent: GridJob, step: Step) -> Path:
    """Unpack the ``output`` folders of an earlier step's successful local jobs; the folder with them."""
    earlier = next(entry.grid_job for entry in parent.steps if entry.name == step.input_step)
    if earlier is None:
        raise HandlerError(f"step {step.name} reads {step.input_step}, which has not begun")
    folders = {
        f"{earlier}/{render_stem(earlier, str(job.local_id))}.output": f"{job.index:06d}"
        for job in account.database.local_jobs.lines(earlier)
        if job.succeeded
    }
    destination = account.places.step_input(parent.job_id, step.input_step)
    lay_out(account.places.output(earlier), folders, destination, output_limits(account))
    return destination


def cancel_steps(account: Account, job_id: str) -> None:
    """Request the end of all steps that have begun; the monitor then cancels each as any grid job."""
    database = account.database
    parent = database.grid_jobs.get(job_id)
    for entry in parent.steps:
        if entry.grid_job is not None:
            request_cancel(database, entry.grid_job, f"{job_id} was {parent.reason or 'cancelled'}")


def collect_steps(account: Account, job_id: str) -> None:
    """Gather the outputs of a structured grid job whose steps have ended or never begin, and set its final state.

    After a crash, this can be repeated, and writes the same bytes.

    :raises SandboxError, OSError, DatabaseError: not now; nothing incomplete is left.
    """
    database, places = account.database, account.places
    parent = database.grid_jobs.get(job_id)
    children = {step.name: database.grid_jobs.get(step.grid_job) for step in parent.steps if step.grid_job is not None}
    summary = {f"{name}: {item}": text for name, child in children.items() for item, text in child.summary().items()}
    keep_summary(database, parent, summary)
    with open_extras(account, job_id, lambda job: judge_steps(job, children)) as extras:
        gathered = write_bundle(
            grid_job=job_id,
            title=parent.name,
            parts={name: places.output(child.job_id) for name, child in children.items()},
            extras=extras,
            tar=places.output(job_id),
            limits=output_limits(account),
        )
    undelivered = deliver_outputs(account, database.grid_jobs.get(job_id))
    job = database.grid_jobs.change(job_id, lambda job: put_end(job, judge_steps(job, children), undelivered))
    logger.info("%s %s: %d files gathered, %s", job_id, job.state.word, gathered.files, job.reason or "no faults")


def judge_steps(parent: GridJob, children: Mapping[str, GridJob]) -> Verdict:
    """DONE if all steps are; ``children``: the grid jobs of the steps that have begun, by step."""
    if parent.cancelled:
        return State.FAILED, parent.reason
    is_done = len(children) == len(parent.steps) and all(child.state is State.DONE for child in children.values())
    faults = [
        f"step {name} ({child.job_id}): {child.reason}"
        for name, child in children.items()
        if child.reason and (is_done or child.state is not State.DONE)
    ]
    return State.DONE if is_done else State.FAILED, "; ".join(faults) or (None if is_done else "a step failed")
