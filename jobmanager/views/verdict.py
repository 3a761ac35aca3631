"""The conclusion about a local job from all that is known of it: its verdict, a sentence or two."""

from dataclasses import dataclass

from batch_adapters.adapter import LocalStatus
from batch_adapters.naming import TOKEN
from batch_adapters.states import State
from jobmanager import render_number
from jobmanager.database.local_job import Evidence, LocalJob
from jobmanager.states.ends import needs_batch_cause
from jobmanager.states.reconciliation import MISSING_ANSWERS
from jobmanager.views.text import render_moment
from sandbox.status import DriverStatus


@dataclass(frozen=True)
class BatchAnswer:
    """An answer of the batch system: what it found, if anything; or why there is no answer."""

    found: tuple[LocalStatus, ...] = ()
    problem: str = ""


@dataclass(frozen=True)
class Context:
    """What is relevant for the verdict besides the document."""

    grid_job_has_ended: bool
    reconcile_interval: float
    """Seconds between two queries of the batch system's queue."""
    missing: tuple[int, int] | None
    """In how many consecutive answers it was missing, and since when (seconds since 1970)."""
    driver: DriverStatus
    problem: str | None = None
    """What delays its grid job now."""
    now: BatchAnswer | None = None
    """What the queue shows about it, or about its token while it has no id; None if there was no query."""
    history: BatchAnswer | None = None


def render_verdict(job: LocalJob, context: Context) -> str:
    """The conclusion, and the evidence for it."""
    if job.local_id is None:
        return _judge_unsubmitted(job, context)
    if job.state.is_final:
        return _judge_end(job, context)
    return _judge_life(job, context)


def _judge_unsubmitted(job: LocalJob, context: Context) -> str:
    if job.state.is_final:
        return f"{job.state.word}: {job.reason or 'it was never submitted'}."
    if job.token is None:
        return f"Not submitted: {context.problem or 'no submission of it is under way'}."
    sentence = (
        f"In doubt: its submission as {job.token} was begun at {render_moment(job.intended)}, and what came of it"
        " is not written down yet" + (f" ({context.problem})" if context.problem else "")
    )
    now = context.now
    if now is None:
        return f"{sentence}; what {job.batch} has under that name will be adopted."
    if now.problem:
        return f"{sentence}; nothing changes until {job.batch} answers."
    if now.found:
        count = render_number(len(now.found), "local job")
        return f"{sentence}; {job.batch} has {count} of that name, which will be adopted."
    return f"{sentence}; it is submitted again only once it is certain that {job.batch} never got it."


def _judge_end(job: LocalJob, context: Context) -> str:
    if job.succeeded:
        return "Succeeded: its driver recorded the end, which it does only when the outputs are back."
    word = job.outcome.value if job.outcome else job.state.word
    what = f"{word.capitalize()}, as {job.reason or 'nobody said otherwise'}"
    if needs_batch_cause(job) and not context.grid_job_has_ended:
        what += f" (so far: {job.batch} is asked why before the outputs are gathered)"
    if job.driver == "ended":
        return f"{what}; its outputs are back."
    decisive = _find_decisive(job)
    sentence = f"{what} ({_describe_source(decisive)})" if decisive else what
    alive = _find_alive(job, context.now)
    if alive is None:
        return f"{sentence}; its driver wrote down {_describe_end(job, context.driver)}."
    if context.grid_job_has_ended:
        return f'{sentence}; but {job.batch} shows it {alive.native_state} now: "samgrid orphans" lists it.'
    return (
        f"{sentence}; but {job.batch} shows it {alive.native_state} now: if it still does when the outputs are to be"
        " collected, its end is taken back."
    )


def _describe_end(job: LocalJob, driver: DriverStatus) -> str:
    if driver.end is None:
        return "no end"
    if job.earlier_run == f"{driver.start} {driver.pid}":
        return "the end of an earlier run only"
    return "an end, which counts when the outputs are gathered"


def _judge_life(job: LocalJob, context: Context) -> str:
    decisive = _find_decisive(job)
    said = _describe_source(decisive) if decisive else "it was submitted, and nobody has told more of it since"
    sentence = f"{job.state.word.capitalize()}: {said}"
    now = context.now
    if now is None:
        return f"{sentence}."
    if now.problem:
        return f"{sentence}; as long as {job.batch} does not answer, nothing changes but by its log."
    shown = next((status for status in now.found if status.is_of(str(job.token))), None)
    if shown is None:
        return f"{sentence}; {_describe_absence(job, context)}."
    return f"{sentence}; {_compare(job, shown, context.reconcile_interval)}."


def _compare(job: LocalJob, shown: LocalStatus, interval: float) -> str:
    if shown.is_leaving:
        return f"{job.batch} calls it {shown.native_state} now: it is on its way out"
    if shown.state is job.state:
        is_unexplained = shown.state is State.PENDING and not shown.reason
        way_out = f'; it does not say why: "samgrid doctor {job.batch}" may' if is_unexplained else ""
        return f"{job.batch} says so now, too{way_out}"
    if shown.state is None:
        return f"{job.batch} calls it {shown.native_state}, which its adapter does not know, so nothing changes"
    return (
        f"{job.batch} calls it {shown.native_state} now: it will be {shown.state.word} when the queue is looked at"
        f" next, every {interval:g} s"
    )


def _describe_absence(job: LocalJob, context: Context) -> str:
    another = next((status for status in context.now.found), None) if context.now else None
    gone = f"{job.batch} does not know it now"
    if another is not None and another.is_alive and not TOKEN.fullmatch(another.token):
        return f"{job.batch} shows it {another.native_state} now, but renamed: as long as it does, it is not given up"
    if another is not None:
        gone = f"{job.batch} has given its id to another job, named {another.token}"
    witness = _find_witness(context)
    if witness:
        return f"{gone}, but {witness}: that ends it when the queue is looked at next"
    counted = ""
    if context.missing is not None:
        answers, since = context.missing
        counted = f" (so far {answers}, since {render_moment(since)})"
    return (
        f"{gone}, nor is there a second witness of its end: it will have failed once {MISSING_ANSWERS} answers in a"
        f" row{counted} have not shown it and no late news may come any more"
    )


def _find_witness(context: Context) -> str:
    if context.driver.end is not None:
        return "its driver wrote down the end"
    found = context.history.found if context.history else ()
    ended = [status for status in found if status.state is not None and status.state.is_final]
    return f"its history says {ended[0].native_state}" if ended else ""


def _find_alive(job: LocalJob, now: BatchAnswer | None) -> LocalStatus | None:
    found = now.found if now else ()
    return next((status for status in found if status.is_alive and status.is_of(str(job.token))), None)


def _find_decisive(job: LocalJob) -> Evidence | None:
    """The last piece of evidence that put the local job into its present state."""
    for evidence in reversed(job.evidence()):
        if evidence.state is job.state:
            return evidence
    return None


_SOURCES = {
    "log": "the batch system's log",
    "queue": "the batch system's queue",
    "history": "the batch system's history",
    "driver": "its driver",
    "us": "the job manager",
}


def _describe_source(evidence: Evidence) -> str:
    source = _SOURCES.get(evidence.source, evidence.source)
    return f'{source} said "{evidence.said}" for {render_moment(evidence.when)}'
