"""``samgrid explain``: what is known about a local job, from which source and when, and the conclusion."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from batch_adapters.adapter import BatchError, LocalStatus, Unreachable
from batch_adapters.registry import UnknownBatchSystem
from batch_adapters.running.batch_system import BatchSystem
from batch_adapters.states import State
from jobmanager import render_error
from jobmanager.database.database import Database
from jobmanager.database.grid_job import GridJob
from jobmanager.database.local_job import Evidence, LocalJob, Outcome
from jobmanager.database.local_jobs import FailedJob
from jobmanager.site.account import Account, find_batch_system, find_outage
from jobmanager.states.driver_status import read_driver_status, status_file
from jobmanager.states.failures import find_refusal
from jobmanager.views.following import find_printed
from jobmanager.views.logs import find_local_jobs
from jobmanager.views.text import printable, render_columns, render_line, render_moment
from jobmanager.views.verdict import BatchAnswer, Context, render_verdict
from sandbox.files import read_regular
from sandbox.status import CaughtSignal, DriverStatus

_SHOWN_IDS = 5


def explain(account: Account, name: str, ask: bool) -> str:
    """Everything about the local jobs with a name, the last submitted first; without ``ask`` no command is run.

    :raises UnknownJob: there is none.
    """
    found = find_local_jobs(account.database, name)
    return "\n\n".join(_explain(account, grid_job, job, ask) for grid_job, job in found)


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
