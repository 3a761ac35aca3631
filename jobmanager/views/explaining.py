"""``samgrid explain``: what is known about a local job, from which source and when, and the conclusion."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from batch_adapters.adapter import BatchError, LocalStatus, Unreachable
from batch_adapters.naming import TOKEN
from batch_adapters.registry import UnknownBatchSystem
from batch_adapters.running.batch_system import BatchSystem
from batch_adapters.states import State
from jobmanager import render_error, render_number
from jobmanager.database.database import Database, UnknownJob
from jobmanager.database.grid_job import GridJob
from jobmanager.database.local_job import Evidence, LocalJob, Outcome
from jobmanager.database.local_jobs import FailedJob
from jobmanager.site.account import Account, find_batch_system, find_outage
from jobmanager.states.driver_status import read_driver_status, status_file
from jobmanager.states.ends import needs_batch_cause
from jobmanager.states.failures import find_refusal
from jobmanager.states.reconciliation import MISSING_ANSWERS
from jobmanager.views.following import find_printed
from jobmanager.views.text import printable, render_columns, render_line, render_moment
from sandbox.files import read_regular
from sandbox.status import CaughtSignal, DriverStatus

_SHOWN_IDS = 5


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


def explain(account: Account, name: str, ask: bool) -> str:
    """Everything about the local jobs with a name, the last submitted first; without ``ask`` no command is run.

    :raises UnknownJob: there is none.
    """
    found = find_local_jobs(account.database, name)
    return "\n\n".join(_explain(account, grid_job, job, ask) for grid_job, job in found)


def find_step_jobs(database: Database, job_id: str) -> list[str]:
    """The grid jobs of a structured grid job's steps; empty for others."""
    steps = database.grid_jobs.steps_of(job_id)
    return [step.grid_job for step in steps if step.grid_job]


def find_local_jobs(database: Database, name: str) -> list[tuple[str, LocalJob]]:
    """Grid job and local job of all with the id ``name``, or of the one that ``ID/NUMBER`` names.

    :raises UnknownJob: there is none.
    """
    found = database.local_jobs.named(name)
    prefix, slash, number = name.rpartition("/")
    if found:
        return found
    if not (slash and number.isascii() and number.isdigit()):
        try:
            job_id = database.grid_jobs.find(prefix or name)
        except UnknownJob as error:
            raise UnknownJob(
                f"no local job has the id \"{name}\": samgrid query '//local-job/@id' lists the ids, and ID/NUMBER"
                " names a local job by its number in its grid job"
            ) from error
        holder = (find_step_jobs(database, job_id) or [job_id])[0]
        raise UnknownJob(f'"{name}" is no local job: say {holder}/NUMBER, such as {holder}/1')
    job_id = database.grid_jobs.find(prefix)
    index = int(number)
    if all(line.index != index for line in database.local_jobs.lines(job_id)):
        count = sum(database.local_jobs.count(job_id).values())
        steps = ", ".join(find_step_jobs(database, job_id))
        raise UnknownJob(
            f"grid job {job_id} has no local job {number}: "
            + (f"those of its steps are of {steps}" if steps else f"it has {count} by now")
        )
    return [(job_id, database.local_jobs.get(job_id, index))]


def _explain(account: Account, grid_job: str, job: LocalJob, ask: bool) -> str:
    context, complaint = read_context(account, account.database, grid_job, job)
    if ask:
        now, history = _ask(account, job)
        context = replace(context, now=now, history=history)
    facts = describe_local_job(account.database.grid_jobs.get(grid_job), job)
    stopped = _find_stopped(account, grid_job, job, context.driver)
    parts = [
        render_columns([(name, render_line(text)) for name, text in facts]),
        "seen:\n" + (render_evidence(job.evidence()) or "  nothing"),
        _render_part("driver:", [*describe_driver(context.driver), *complaint, *stopped]),
    ]
    for title, answer in ((f"{job.batch} now:", context.now), (f"{job.batch}'s history:", context.history)):
        parts += [] if answer is None else [_describe_answer(title, answer)]
    if why := account.database.quarantine.list().get(grid_job):
        parts.append(_render_part(f"grid job {grid_job}:", [why.sentence]))
    parts.append(_render_part("verdict:", [render_verdict(job, context)]))
    return "\n".join(parts)


def _find_stopped(account: Account, grid_job: str, job: LocalJob, driver: DriverStatus) -> list[str]:
    """A line if a signal has stopped the program, which batch systems do not see; known only on its own host.

    What a batch system suspends it stops, too.
    """
    if job.state is State.SUSPENDED:
        return []
    if driver.host != os.uname().nodename:  # its scratch folder may be shared, its process numbers are not
        return []
    try:
        path = None if job.local_id is None or job.state.is_final else find_printed(account, grid_job, job, "pid")
        pid = int(read_regular(path)) if path else 0
        state = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0]
    except (OSError, ValueError):
        return []
    return [f"the program, process {pid}, is stopped: kill -CONT {pid} makes it go on"] if state == b"T" else []


def _render_part(title: str, lines: Iterable[str]) -> str:
    return f"{title}\n{render_columns([('', render_line(line)) for line in lines])}"


def read_context(account: Account, database: Database, grid_job: str, job: LocalJob) -> tuple[Context, list[str]]:
    """The recorded context of a local job, and why the driver's record cannot be read (empty if it can)."""
    driver, complaint = _read_driver(account, grid_job, job)
    whole = database.grid_jobs.get(grid_job)
    context = Context(
        grid_job_has_ended=whole.state.is_final,
        reconcile_interval=account.configuration.monitor.reconcile_interval,
        missing=database.events.missing(job.batch).get(str(job.local_id)),
        driver=driver,
        problem=whole.problem,
    )
    return context, complaint


def describe_local_job(grid_job: GridJob, job: LocalJob) -> list[tuple[str, str]]:
    """The facts in its document, by name, for people."""
    facts = [
        ("grid job", grid_job.job_id),
        ("number", str(job.index)),
        ("batch system", job.batch),
        ("token", job.token),
        ("local id", job.local_id),
        ("array", job.array),
        ("state", job.state.word),
        ("outcome", job.outcome and job.outcome.value),
        ("cause", job.cause and job.cause.value),
        ("exit code", None if job.exit_code is None else str(job.exit_code)),
        ("intended", render_moment(job.intended) if job.intended else None),
        ("submitted", _render_moment(job.submitted_time)),
        ("started", _render_moment(job.started_time)),
        ("ended", _render_moment(job.ended_time)),
        ("reason", job.reason),
        ("waits", job.wait_reason),
        ("helps", job.helps),
        *_describe_credentials(grid_job, job),
        ("tried again", _describe_retry(grid_job, job)),
        *((f"attempt {at}", _describe_attempt(attempt)) for at, attempt in enumerate(job.earlier_attempts(), 1)),
    ]
    return [(name, text) for name, text in facts if text]


def _describe_credentials(grid_job: GridJob, job: LocalJob) -> Iterator[tuple[str, str]]:
    """The credentials that had expired before a local job failed, which may be the reason."""
    when = job.ended_time
    if job.outcome is not Outcome.FAILED or when is None:
        return
    for entry in grid_job.credentials:
        begin = entry.find_lapse(when)
        if begin is not None:
            yield entry.name, f"had expired at {render_moment(begin)}, before it failed"


def _describe_retry(grid_job: GridJob, job: LocalJob) -> str | None:
    """Whether a failed local job is retried, and if not, why not; None if no retries are requested."""
    if not grid_job.retries or job.outcome not in (Outcome.FAILED, Outcome.CANCELLED):
        return None
    cause = job.cause and job.cause.value
    if refusal := find_refusal(grid_job, FailedJob(job.index, job.attempt, cause, job.ended_time)):
        return f"no: {refusal}"
    if grid_job.state.is_final or grid_job.cancelled:
        return "no: its grid job has ended, or was cancelled"
    return "soon"


def _describe_attempt(attempt: LocalJob) -> str:
    place = f" on {attempt.host}" if attempt.host else ""
    return f"{attempt.local_id or 'never submitted'}{place}: {attempt.reason or attempt.state.word}"


def _render_moment(seconds: int | None) -> str:
    return "" if seconds is None else render_moment(seconds)


def render_evidence(evidence: Iterable[Evidence]) -> str:
    """A line for each piece of evidence: when, source, what it said, and what that changed."""
    rows = [
        (f"  {render_moment(e.when)}", printable(e.source), render_line(e.said), f"→ {render_line(e.verdict)}")
        for e in evidence
    ]
    return render_columns(rows) if rows else ""


def _read_driver(account: Account, grid_job: str, job: LocalJob) -> tuple[DriverStatus, list[str]]:
    """The driver's record, and why it cannot be read (empty if it can)."""
    if job.local_id is None:
        return DriverStatus(), []
    try:
        return read_driver_status(status_file(account, grid_job, job.local_id)), []
    except OSError as error:
        return DriverStatus(), [f"its status file cannot be read: {render_error(error)}"]


def describe_driver(status: DriverStatus) -> list[str]:
    """The driver's record, as lines."""
    if status == DriverStatus():
        return ["nothing"]
    lines = []
    if status.start is not None:
        lines.append(f"{render_moment(status.start)} start" + (f" on {status.host}" if status.host else ""))
    lines += [f"phase {p.name}: {p.done} of {p.total} {p.unit}{_render_outputs(p.outputs)}" for p in status.phases]
    lines += [_describe_caught(caught) for caught in status.caught]
    if status.exit_code is not None:
        signal = f", signal {status.signal}" if status.signal else ""
        cpu = "" if status.cpu_seconds is None else f", {status.cpu_seconds:.2f} s of CPU time"
        lines.append(f"the program's exit code: {status.exit_code}{signal}{cpu}")
    lines += [f"lost: {line}" for line in status.lost]
    if status.end is not None:
        back = "what could be read of the outputs is" if status.lost else "the outputs are"
        lines.append(f"{render_moment(status.end)} end: {back} back")
    return lines + ([f"problem: {status.problem}"] if status.problem else [])


def _render_outputs(names: Sequence[str]) -> str:
    return f"; files: {', '.join(names)}" if names else ""


def _describe_caught(caught: CaughtSignal) -> str:
    when = "its program ran" if caught.after_end is None else f"its program had ended {caught.after_end} s before"
    return f"{render_moment(caught.time)} signal {caught.signal}: {when}"


def _ask(account: Account, job: LocalJob) -> tuple[BatchAnswer, BatchAnswer | None]:
    """What the batch system says now, and its history if the local job is not in its queue."""
    try:
        system = find_batch_system(account, job.batch)
    except (UnknownBatchSystem, Unreachable) as error:
        return BatchAnswer(problem=str(error)), None
    now = _query(account, job.batch, lambda: _ask_queue(system, job))
    is_gone = job.state.is_final or not (now.found or now.problem)
    if job.token is None or not is_gone or system.adapter.history is None:
        return now, None
    return now, _query(account, job.batch, lambda: _ask_history(system, job))


def _ask_queue(system: BatchSystem, job: LocalJob) -> list[LocalStatus]:
    if job.local_id is None:
        return system.find(job.token) if job.token else []
    status = system.status(job.local_id)
    if status is None:
        return []
    if status.state is State.PENDING and not status.reason:
        with suppress(BatchError):  # no answer changes nothing but the words
            status = replace(status, reason=system.analyze(job.local_id))
    return system.restore_tokens([status], {job.local_id: str(job.token)})


def _ask_history(system: BatchSystem, job: LocalJob) -> list[LocalStatus]:
    ended = system.find_ended(str(job.token))
    return [status for status in ended if job.local_id in (None, status.local_id)]


def _query(account: Account, batch: str, question: Callable[[], list[LocalStatus]]) -> BatchAnswer:
    try:
        return BatchAnswer(tuple(question()))
    except Unreachable as error:
        outage = find_outage(account, batch)
        since = f"no answer since {render_moment(outage.since)}" if outage else "no answer"
        return BatchAnswer(problem=f"{since}: {error}")
    except BatchError as error:
        return BatchAnswer(problem=f"no answer that can be understood: {error}")
    except OSError as error:  # for example, the rate limit cannot be written
        return BatchAnswer(problem=f"it cannot be asked: {error}")


def _describe_answer(title: str, answer: BatchAnswer) -> str:
    lines = [answer.problem] if answer.problem else [_describe_status(status) for status in answer.found[:_SHOWN_IDS]]
    if len(answer.found) > _SHOWN_IDS:
        lines.append(f"… and {len(answer.found) - _SHOWN_IDS:,} others of that token")
    return _render_part(title, lines or ["does not know it"])


def _describe_status(status: LocalStatus) -> str:
    state = "no state that the adapter knows" if status.state is None else status.state.word
    code = "" if status.exit_code is None else f", exit code {status.exit_code}"
    name = f", named {status.token}" if status.token else ""
    leaving = ", on its way out" if status.is_leaving else ""
    reason = f": {status.reason}" if status.reason else ""
    return f"{status.local_id} {status.native_state} ({state}{leaving}){code}{name}{reason}"


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
