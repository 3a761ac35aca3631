"""The end of a grid job: its outputs are gathered into one tar, and its success is judged."""

import itertools
import logging
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from lxml import etree

from adapters import JobAdapter
from batch_adapters.states import State
from jobmanager.completion.delivery import deliver_outputs, measure_files
from jobmanager.completion.proof import ask_for_causes, prove_ends
from jobmanager.database.database import Database
from jobmanager.database.grid_job import GridJob
from jobmanager.requests.job_types import HANDLER_FAILURES, HandlerError, render_failure
from jobmanager.requests.request_handler import make_adapter
from jobmanager.requests.time_limit import MOST_DEATHS, HandlerHung, asking
from jobmanager.site.account import Account
from jobmanager.states.aggregation import Due, Task, judge, next_task
from jobmanager.states.changes import change_in_parts
from jobmanager.states.driver_status import read_driver_status, status_file
from jobmanager.states.failures import find_due
from sandbox.files import TarLimits, kept_open, open_folder, open_unlinked, remove_folder
from sandbox.gather import NO_FOLDER, End, Extra, Gathered, write_output
from sandbox.status import render_stem

Verdict = tuple[State, str | None]
"""A grid job's final state, and a sentence about what went wrong, if anything did."""

_LONGEST_LOG = 1 << 26
"""Bytes of a grid job's log in its tar: programs can make the log arbitrarily long."""
_MOST_ITEMS = 1000
_MOST_LETTERS = 1_000_000
"""In a handler's summary."""
logger = logging.getLogger(__name__)


def collect_grid_job(account: Account, job_id: str) -> None:
    """Gather the outputs of a grid job whose local jobs have all ended, and set its final state.

    Nothing is gathered yet if one of them turns out to have failed and will be retried. After a crash, this can be
    repeated, and writes the same bytes.

    :raises SandboxError, OSError, DatabaseError, Unreachable: not now; nothing incomplete is left.
    """
    database = account.database
    if not prove_ends(account, job_id, lambda: database.local_jobs.each(job_id)):
        logger.warning("%s is not over: the batch system shows local jobs that seemed to have ended", job_id)
        return
    ask_for_causes(account, job_id, lambda: database.local_jobs.each(job_id))
    _note_lost_folder(account, job_id)
    if find_due(database, job_id) is not Due.NEVER:
        logger.info("%s is not over: some of its local jobs failed, and may be tried again", job_id)
        return
    # Long work on files is outside transactions: nobody can write to the database during one.
    job = database.grid_jobs.get(job_id)
    keep_summary(database, job, *_ask_for_summary(account, job))
    gathered = _gather(account, job_id)
    undelivered = deliver_outputs(account, database.grid_jobs.get(job_id))
    job = database.grid_jobs.change(job_id, lambda job: _end(account, job, undelivered))
    logger.info("%s %s: %d files gathered, %s", job_id, job.state.word, gathered.files, job.reason or "no faults")
    if job.state.is_final:
        _remove_gathered(account, job_id, gathered)


def keep_summary(database: Database, job: GridJob, summary: Mapping[str, str], problem: str = "") -> None:
    """Record the summary, or why there is none, and the sizes of GRAM's files before anything is delivered to them."""
    sizes = job.sizes_before or measure_files(job)

    def put(job: GridJob) -> None:
        job.put_summary(summary)
        job.no_summary = problem or None
        job.sizes_before = sizes

    database.grid_jobs.change(job.job_id, put)


def _note_lost_folder(account: Account, job_id: str) -> None:
    """Record that all outputs are lost, if something else is in the place of the folder with them."""
    results = account.places.results(job_id)
    if results.is_symlink() or not results.is_dir():
        known = (job for job in account.database.local_jobs.lines(job_id) if job.local_id)
        change_in_parts(account.database, job_id, known, lambda job: job.put_lost([NO_FOLDER]))


def _gather(account: Account, job_id: str) -> Gathered:
    places = account.places
    replaced = _find_replaced(account, job_id)

    def list_ends() -> Iterator[End]:
        for job, lost in account.database.local_jobs.ends(job_id):
            has_files = job.index not in replaced
            yield End(job.index, job.local_id, job.outcome or job.state.word, job.cause, lost, has_files)

    with open_extras(account, job_id, lambda job: _judge(account, job)) as extras:
        return write_output(
            grid_job=job_id,
            title=account.database.grid_jobs.get(job_id).name,
            results=places.results(job_id),
            ends=list_ends,
            extras=extras,
            tar=places.output(job_id),
            limits=output_limits(account),
        )


def _remove_gathered(account: Account, job_id: str, gathered: Gathered) -> None:
    """Remove outputs that are completely in the tar; texts and status files stay, for `samgrid log` and the page.

    This comes after the end is committed, because a repeated collection needs them. A kill here wastes only disk space.
    """
    try:
        results = open_folder(account.places.results(job_id))
    except OSError:  # no longer a folder: nothing was gathered from it
        return
    # Outputs that a host, given up long ago, brought back meanwhile are not in the tar.
    with kept_open(results):
        for job in itertools.compress(account.database.local_jobs.lines(job_id), gathered.complete):
            name = f"{render_stem(job_id, str(job.local_id))}.output"
            try:
                remove_folder(Path(name), results)
            except OSError as error:
                logger.warning("%s %s cannot be removed, though it is in the tar: %s", job_id, name, error)


def _find_replaced(account: Account, job_id: str) -> set[int]:
    """Local jobs whose outputs were overwritten by another's: a batch system that lost its state reuses ids."""
    replaced = set()
    for local_id, indexes in account.database.local_jobs.with_one_id(job_id).items():
        index = read_driver_status(status_file(account, job_id, local_id)).index
        replaced.update(indexes - {index if index in indexes else max(indexes)})
    return replaced


def output_limits(account: Account) -> TarLimits:
    """The limits for the outputs of one grid job."""
    settings = account.configuration.sandbox
    return TarLimits(settings.max_output_files, settings.max_output_size * 1_000_000)


@contextmanager
def open_extras(account: Account, job_id: str, judge: Callable[[GridJob], Verdict]) -> Iterator[Mapping[str, Extra]]:
    """The job manager's own files in a grid job's tar: the log and the document."""
    with tempfile.TemporaryFile(dir=account.places.grid_job(job_id)) as document:
        document.writelines(_render_document(account, job_id, judge))
        document.seek(0)
        yield {f"{job_id}.log": _read_log(account.places.log(job_id)), f"{job_id}.xml": document}


def _read_log(path: Path) -> bytes:
    """The log; empty if a program has put something else in its place."""
    try:
        log = open_unlinked(path)
    except OSError:
        return b""
    with log:
        return log.read(_LONGEST_LOG)


def _render_document(account: Account, job_id: str, judge: Callable[[GridJob], Verdict]) -> Iterator[bytes]:
    """The grid job's final document, without the time of the end, so that a repeated collection writes the same.

    It is rendered in parts, because with all its local jobs it may be larger than the memory.
    """
    job = account.database.grid_jobs.get(job_id)
    job.sizes_before = None
    state, job.reason = judge(job)
    job.put_final_state(state)
    begin, end = f"<{job.tag}>\n".encode(), f"</{job.tag}>\n".encode()
    yield etree.tostring(job.element, pretty_print=True).removesuffix(end)
    for local_job in account.database.local_jobs.each(job_id):
        around = etree.Element(job.tag)
        around.append(local_job.element)
        yield etree.tostring(around, pretty_print=True).removeprefix(begin).removesuffix(end)
    yield end


def _end(account: Account, job: GridJob, undelivered: str) -> None:
    if next_task(account.database.local_jobs.count(job.job_id), job.cancelled) is not Task.COLLECT:
        logger.warning("%s is not over: the batch system queued a local job again meanwhile", job.job_id)
        return
    _remove_credentials(account, job.job_id)
    put_end(job, _judge(account, job), undelivered)


def _remove_credentials(account: Account, job_id: str) -> None:
    """Remove the copies of credentials inside the transaction of the end.

    After it, a kill would leave them for ever; before it, a local job that is queued again would run without them.
    """
    try:
        remove_folder(account.places.credentials(job_id))
    except OSError as error:
        logger.warning("%s the copies of its credentials cannot be removed: %s", job_id, error)


def put_end(job: GridJob, verdict: Verdict, undelivered: str) -> None:
    """End a grid job; its reason also names what could not be delivered."""
    state, reason = verdict
    job.reason = "; ".join(filter(None, (reason, undelivered))) or None
    job.end(state, time.time())


def _judge(account: Account, job: GridJob) -> Verdict:
    local_jobs = account.database.local_jobs
    ends = local_jobs.count_ends(job.job_id)
    failed = ends.total() - ends["succeeded"]
    state = judge(job.count - failed, job.count, job.min_success, job.cancelled)
    if job.cancelled or not failed:
        return state, job.reason
    first = next(local_job for local_job in local_jobs.lines(job.job_id) if not local_job.succeeded)
    return state, render_failures(account, job, failed, first.index)


def render_failures(account: Account, job: GridJob, count: int, first: int) -> str:
    """How many local jobs of a grid job failed, and why the first one did; ``first`` is its index."""
    local_job = account.database.local_jobs.get(job.job_id, first)
    stem = render_stem(job.job_id, str(local_job.local_id))
    words = read_last_output(account.places.results(job.job_id) / f"{stem}.stderr")
    attempt = f" (attempt {local_job.attempt})" if local_job.attempt > 1 else ""
    reason = f"number {first}{attempt}: {local_job.reason or 'no reason known'}" + (f" ({words})" if words else "")
    return f"{count} of {job.count} local jobs failed, first {reason}"


def read_last_output(path: Path) -> str:
    """The last line that a program wrote to stderr, shortened."""
    try:
        stderr = open_unlinked(path)
    except OSError:
        return ""
    with stderr:
        stderr.seek(-min(4096, os.fstat(stderr.fileno()).st_size), os.SEEK_END)
        lines = stderr.read(4096).decode(errors="replace").split("\n")
    return next((line.strip()[:200] for line in reversed(lines) if line.strip()), "")


def _ask_for_summary(account: Account, job: GridJob) -> tuple[Mapping[str, str], str]:
    """The handler's summary, or why there is none; a handler that fails or hangs here does not endanger the outputs."""
    asked = asking(account, job.job_id, "summary")
    try:
        if hangs := asked.find_hangs():  # it may have killed the worker, and would do so again
            raise HandlerHung(hangs[-1])
        if (deaths := asked.count_deaths()) >= MOST_DEATHS:
            raise HandlerError(f"the process that asked it has ended {deaths} times")
        with asked.limited():
            adapter = make_adapter(account, job.request(), job.request_folder, job.job_id)
            if type(adapter).getSummary is JobAdapter.getSummary:
                return {}, ""
            summary = adapter.getSummary(_find_outputs(account, job.job_id))
            return _read_summary(summary), ""
    except HANDLER_FAILURES as error:
        logger.warning("%s no summary: %s", job.job_id, render_failure(error))
        return {}, render_failure(error)


def _read_summary(summary: Mapping[str, str]) -> dict[str, str]:
    """A handler's summary as texts; it becomes part of a document that is read again and again."""
    items = {str(name): str(text) for name, text in summary.items()}
    letters = sum(len(name) + len(text) for name, text in items.items())
    if len(items) > _MOST_ITEMS or letters > _MOST_LETTERS:
        raise HandlerError(f"getSummary gave more than {_MOST_ITEMS} items or {_MOST_LETTERS:,} letters")
    return items


def _find_outputs(account: Account, job_id: str) -> list[Path]:
    """The output folders of the local jobs that succeeded."""
    results = account.places.results(job_id)
    succeeded = (job.local_id for job in account.database.local_jobs.lines(job_id) if job.succeeded)
    outputs = (results / f"{render_stem(job_id, str(local_id))}.output" for local_id in succeeded)
    return [path for path in outputs if path.is_dir() and not path.is_symlink()]
