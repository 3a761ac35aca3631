"""Turns a grid job into local jobs, in the six steps of SAMGrid's JIM (ARCHITECTURE.md).

A worker process runs them in the background, repeatedly if necessary: what an earlier worker has done stays done.
"""

import logging
import shlex
from pathlib import Path

from adapters import PlannedJob, Step
from adapters.job_adapter import cut_slice
from jobmanager.completion.retries import judge_failures
from jobmanager.database.grid_job import GridJob
from jobmanager.requests.acceptance import prepare_grid_job, refuse_faults_of_now
from jobmanager.requests.attributes import BadRequest, Given, render_step_request
from jobmanager.requests.request_handler import check_errors, find_handler, find_steps, make_adapter
from jobmanager.requests.time_limit import asking, limited
from jobmanager.site.account import Account
from jobmanager.states.registration import create_local_jobs, note_staging
from jobmanager.submission.credential_copies import bring_credentials
from jobmanager.submission.packing import find_entries, pack_sandbox
from jobmanager.submission.submit import submit_local_jobs
from sandbox.driver import LocalJobEntry
from sandbox.files import SandboxRefused

logger = logging.getLogger(__name__)


def run_grid_job(account: Account, job_id: str) -> None:
    """Take a grid job through the six steps, from wherever an earlier worker left it.

    :raises BadRequest, HandlerError, Refused: it can never be run.
    :raises OSError, SandboxError, DatabaseError, Unreachable: it cannot be run now.
    """
    job = account.database.grid_jobs.get(job_id)
    # 1. Check for errors again, until all is packed, because files may have been removed since the acceptance.
    with asking(account, job_id, "check", job.batch).limited():
        adapter = make_adapter(account, job.request(), job.request_folder, job_id)
        if not account.places.driver(job_id).exists():
            check_errors(adapter)
    # 2. The number of local jobs: fixed at the acceptance, by getNumSubmissionTimes.
    local_jobs = cut_grid_job(job)
    bring_credentials(account, job_id)
    # 3. and 4. Command lines and work area, packed once for all of them.
    if not account.places.driver(job_id).exists():
        note_staging(account.database, job_id)
    pack_sandbox(account, job, adapter, local_jobs)
    # 5. and 6. Submit the right number of times. Each local job is in the database with its submission's token before,
    # and gets the batch system's id afterwards, so that none is submitted twice. Failed ones get a new attempt.
    indexes = set(job.indexes)
    create_local_jobs(account.database, job, [local_job for local_job in local_jobs if local_job.index in indexes])
    try:
        judge_failures(account, job_id)
    finally:
        # An unknown cause of one end must not prevent other submissions.
        submit_local_jobs(account, job, adapter.request)


def find_command_lines(account: Account, given: Given, folder: Path) -> list[str]:
    """A line for each local job of a request, with its own variables; of steps, below a line for each.

    :raises BadRequest, HandlerError: the request would be refused.
    """
    with limited(account.configuration.handlers.time_limit):
        return _find_lines(account, given, folder)


def _find_lines(account: Account, given: Given, folder: Path, *, is_step: bool = False) -> list[str]:
    job = prepare_grid_job(account, given, folder, warns=not is_step)
    refuse_faults_of_now(job)
    adapter = make_adapter(account, given, folder)
    if job.steps:
        return [line for step in find_steps(adapter) for line in _find_step_lines(account, given, folder, job, step)]
    try:
        entries = find_entries(adapter, job, cut_grid_job(job))
    except SandboxRefused as error:
        raise BadRequest([str(error)]) from error
    return [f"{index}: {_render_entry(entry)}" for index, entry in enumerate(entries, 1)]


def _find_step_lines(account: Account, given: Given, folder: Path, parent: GridJob, step: Step) -> list[str]:
    needs = ", ".join(parent.needs[step.name])
    title = f"step {step.name}: a grid job of its own" + (f", after {needs}" if needs else "")
    if step.input_step:
        return [title, f"  its command lines are known when {step.input_step} is done"]
    request = render_step_request(given, step, None, find_handler(account, step.request))
    return [title, *(f"  {line}" for line in _find_lines(account, request, folder, is_step=True))]


def _render_entry(entry: LocalJobEntry) -> str:
    variables = [f"{name}={shlex.quote(value)}" for name, value in entry.environment]
    return " ".join([*variables, shlex.join(entry.command)])


def cut_grid_job(job: GridJob) -> list[PlannedJob]:
    """The local jobs of a grid job, always the same.

    A partial repetition has command lines for all of them, too, because they are found by number.
    """
    count, of_size = job.slice_count, job.size_and_seed
    cut = range(1, count + 1)
    return [PlannedJob(index, count, cut_slice(index, count, *of_size) if of_size else None) for index in cut]
