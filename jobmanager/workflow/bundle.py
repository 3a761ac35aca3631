"""The end of a structured grid job: the tars of its steps become one, and its state is judged."""

import logging
from collections.abc import Sequence

from batch_adapters.states import State
from jobmanager.completion.collection import Verdict, keep_summary, output_limits, put_end, render_extras
from jobmanager.completion.delivery import deliver_outputs
from jobmanager.database.grid_job import GridJob
from jobmanager.site.account import Account
from sandbox.gather import write_bundle

logger = logging.getLogger(__name__)


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
