"""The end of a grid job: what failed is tried again, its outputs become one tar, and its state is judged."""

import itertools
import logging
import os
import tempfile
import time
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from lxml import etree

from adapters import JobAdapter
from batch_adapters.adapter import Garbled, LocalStatus, Unreachable
from batch_adapters.running.batch_system import BatchSystem
from batch_adapters.states import State
from jobmanager.completion.delivery import deliver_outputs, measure_files
from jobmanager.control.removal import remove_folder
from jobmanager.database.database import Database
from jobmanager.database.grid_job import GridJob
from jobmanager.database.local_job import LocalJob
from jobmanager.database.local_jobs import LocalJobLine
from jobmanager.requests.acceptance import make_adapter
from jobmanager.requests.job_types import HANDLER_FAILURES
from jobmanager.requests.time_limit import HandlerHung, asking
from jobmanager.site.account import Account, find_batch_system
from jobmanager.states.aggregation import Task, judge, next_task
from jobmanager.states.changes import change_in_parts, in_parts, put_local_jobs
from jobmanager.states.driver_status import reconcile_with_drivers
from jobmanager.states.ends import wants_a_word, was_told_to_end
from jobmanager.states.reconciliation import ask_queue
from jobmanager.states.transitions import apply_status, reopen
from jobmanager.submission.submit import find_last_token
from sandbox.files import TarLimits, open_regular
from sandbox.gather import NO_FOLDER, End, Extra, Gathered, write_output
from sandbox.status import render_stem

Verdict = tuple[State, str | None]
"""A grid job's final state, and a sentence about what went wrong, if anything did."""

logger = logging.getLogger(__name__)


def collect_grid_job(account: Account, job_id: str) -> None:
    """Gather the outputs of a grid job whose local jobs have all ended, and put its final state.

    Where failed ones may be tried again, that comes first. Done again after a crash, it writes the same bytes.

    :raises SandboxError, OSError, DatabaseError, Unreachable: not now; nothing half-made stays.
    """
    database = account.database
    if not _is_over(account, job_id):
        logger.warning("%s is not over: the batch system shows local jobs that were told to have ended", job_id)
        return
    _ask_for_causes(account, job_id)
    _note_lost_folder(account, job_id)
    if retry_failed(database, job_id):
        return
    # Before the transaction: reading all the outputs may take minutes, in which everybody could write nothing.
    job = database.grid_jobs.get(job_id)
    keep_summary(database, job, *_ask_for_summary(account, job))
    gathered = _gather(account, job_id)
    undelivered = deliver_outputs(account, database.grid_jobs.get(job_id))
    job = database.grid_jobs.change(job_id, lambda job: _end(account, job, undelivered))
    logger.info("%s %s: %d files gathered, %s", job_id, job.state.word, gathered.files, job.reason or "no faults")
    if job.state.is_final:
        _remove_gathered(account, job_id, gathered)


def keep_summary(database: Database, job: GridJob, summary: Mapping[str, str], problem: str = "") -> None:
    """Keep what the outputs amount to, or why nobody says so, and how much is in GRAM's files before any delivery."""
    sizes = job.sizes_before or measure_files(job)

    def put(job: GridJob) -> None:
        job.put_summary(summary)
        job.no_summary = problem or None
        if job.origin is not None:
            job.put_sizes_before(*sizes)

    database.grid_jobs.change(job.job_id, put)


def _is_over(account: Account, job_id: str) -> bool:
    """False where the batch system shows a local job alive whose end only its log told; that end is taken back.

    The driver's record of an end needs no second witness.

    :raises Unreachable: nobody answered, or outputs may still be on their way.
    """
    database = account.database
    is_proven = True
    for jobs in in_parts(filter(_is_unproven, database.local_jobs.each(job_id))):
        reconcile_with_drivers(account, job_id, jobs)
        is_proven = False
    if is_proven:
        return True
    unproven = _Chosen(database, job_id, _is_unproven)
    # Of a cancel that is enough: what is queued again nobody wants, and `reconciliation` cancels it.
    is_enough = database.grid_jobs.get(job_id).cancelled and all(job.driver == "ended" for job in unproven)
    if not unproven.by_token or is_enough:
        return True
    system = _find_system(account, job_id)
    _wait_for_outputs(unproven, system.adapter.outputs_lag)
    asked = int(time.time())
    answer = {status.local_id: status for status in ask_queue(system, unproven.by_token)}
    # An id that the batch system has used again, for another token, is not ours any more.
    shown = [job for job in unproven if job.local_id in answer and answer[job.local_id].is_of(str(job.token))]
    # Some batch systems show a job that is queued again like one that goes, for a while.
    leaving = [job for job in shown if answer[str(job.local_id)].is_leaving]
    _wait_for(leaving, system.adapter.outputs_lag, "to leave the batch system")
    alive = [job for job in shown if answer[str(job.local_id)].is_alive]
    if change_in_parts(database, job_id, alive, lambda job: reopen(job, answer[str(job.local_id)], asked)):
        return False
    change_in_parts(database, job_id, unproven, _stop_waiting)
    return True


@dataclass(frozen=True)
class _Ended:
    """What has to be known of many local jobs at once."""

    index: int
    local_id: str | None
    token: str | None
    state: State
    driver: str | None
    ended_time: int | None


def _note(job: LocalJob) -> _Ended:
    return _Ended(job.index, job.local_id, job.token, job.state, job.driver, job.ended_time)


class _Chosen:
    """Some local jobs of a grid job, as they are by now whenever they are read: only their indexes are kept."""

    def __init__(self, database: Database, job_id: str, is_one: Callable[[LocalJob], bool]) -> None:
        self._database = database
        self._job_id = job_id
        self.by_token: dict[str, array[int]] = {}
        for job in filter(is_one, database.local_jobs.each(job_id)):
            self.by_token.setdefault(str(job.token), array("L")).append(job.index)

    def read(self, token: str) -> Iterator[LocalJob]:
        """Those of one token."""
        return (self._database.local_jobs.get(self._job_id, index) for index in self.by_token[token])

    def __iter__(self) -> Iterator[_Ended]:
        return (_note(job) for token in self.by_token for job in self.read(token))


def _find_system(account: Account, job_id: str) -> BatchSystem:
    """The batch system, to be asked at once: all may have ended, by their drivers' word, during an outage."""
    system = find_batch_system(account, account.database.grid_jobs.get(job_id).batch)
    system.traffic.hurry(account.database.local_jobs.last_end(job_id) or 0)
    return system


def _is_unproven(job: LocalJob) -> bool:
    """True where the batch system may have it still, or again: what it told to end itself it may have queued again."""
    return job.local_id is not None and (job.driver != "ended" or was_told_to_end(job))


def _stop_waiting(job: LocalJob) -> bool:
    if job.state is not State.DONE or job.driver == "ended":
        return False
    job.driver = "missing"
    return True


def _ask_for_causes(account: Account, job_id: str) -> None:
    """Ask the batch system why local jobs ended that did not end by themselves: of each token its history, once.

    A cancel does not wait for the answer.

    :raises Unreachable: nobody answered, or the history may still be on its way.
    """
    database = account.database
    puzzling = _Chosen(database, job_id, wants_a_word)
    if not puzzling.by_token:
        return
    system = _find_system(account, job_id)
    asked = int(time.time())
    answer: dict[str, LocalStatus] = {}

    def apply(job: LocalJob) -> bool:
        # One that was queued again meanwhile has begun another run.
        return wants_a_word(job) and apply_status(job, answer[str(job.local_id)], asked, "history")

    try:
        for token in sorted(puzzling.by_token):
            answer = {status.local_id: status for status in (*system.find(token), *system.find_ended(token))}
            change_in_parts(database, job_id, (job for job in puzzling.read(token) if job.local_id in answer), apply)
    except (Unreachable, Garbled) as error:
        if not database.grid_jobs.get(job_id).cancelled:
            raise
        logger.info("%s is cancelled, and nobody says why its local jobs ended: %s", job_id, error)
        return
    if system.adapter.history is not None:
        late = (_note(job) for token in puzzling.by_token for job in puzzling.read(token) if wants_a_word(job))
        _wait_for(late, system.adapter.outputs_lag, "to come into the history")


def _note_lost_folder(account: Account, job_id: str) -> None:
    """No local job's outputs are back where something else has taken the place of the folder that they lay in."""
    results = account.places.results(job_id)
    if results.is_symlink() or not results.is_dir():

        def lose(job: LocalJob) -> bool:
            job.put_lost([NO_FOLDER])
            return True

        known = (job for job in account.database.local_jobs.lines(job_id) if job.local_id)
        change_in_parts(account.database, job_id, known, lose)


def _wait_for_outputs(unproven: Iterable[_Ended], lag: float) -> None:
    """A job that ran may have brought its outputs back without our seeing them yet: over a network file system."""
    begun = [job for job in unproven if job.driver == "started" or (job.driver is None and job.state is State.DONE)]
    _wait_for(begun, lag, "to bring back their outputs")


def _wait_for(jobs: Iterable[_Ended], lag: float, what: str) -> None:
    now = time.time()
    late = (job.local_id for job in jobs if now - (job.ended_time or 0) < lag)
    if first := next(late, None):
        raise Unreachable(f"waits up to {lag:.0f} s for {1 + sum(1 for _ in late)} local jobs {what}, first {first}")


def _gather(account: Account, job_id: str) -> Gathered:
    places = account.places
    with open_extras(account, job_id, lambda job: _judge(account, job)) as extras:
        return write_output(
            grid_job=job_id,
            title=account.database.grid_jobs.get(job_id).name,
            results=places.results(job_id),
            ends=lambda: itertools.starmap(_describe_end, account.database.local_jobs.ends(job_id)),
            extras=extras,
            tar=places.output(job_id),
            limits=output_limits(account),
        )


def _remove_gathered(account: Account, job_id: str, gathered: Gathered) -> None:
    """Remove the outputs that the tar holds whole; texts and status files stay, for those who look at local jobs.

    Only now: before the end is written, whoever begins anew must find them. A kill here costs no more than their room.
    """
    results = account.places.results(job_id)
    if results.is_symlink():
        return
    # One that a host brought back meanwhile, long given up, is not in the tar.
    for job, is_whole in zip(account.database.local_jobs.lines(job_id), gathered.whole, strict=False):
        name = f"{render_stem(job_id, str(job.local_id))}.output"
        try:
            if is_whole:
                remove_folder(results / name)
        except OSError as error:
            logger.warning("%s %s stays, though it is in the tar: %s", job_id, name, error)


def _describe_end(job: LocalJobLine, lost: tuple[str, ...]) -> End:
    return End(job.index, job.local_id, job.outcome or job.state.word, job.cause, lost)


def output_limits(account: Account) -> TarLimits:
    """What the outputs of one grid job may measure."""
    settings = account.configuration.sandbox
    return TarLimits(settings.max_output_files, settings.max_output_size * 1_000_000)


@contextmanager
def open_extras(account: Account, job_id: str, judge: Callable[[GridJob], Verdict]) -> Iterator[Mapping[str, Extra]]:
    """The files of the job manager's own in a grid job's tar: its log and its document."""
    log = account.places.log(job_id)
    with tempfile.TemporaryFile(dir=account.places.grid_job(job_id)) as document:
        document.writelines(_render_document(account, job_id, judge))
        document.seek(0)
        yield {f"{job_id}.log": log.read_bytes() if log.exists() else b"", f"{job_id}.xml": document}


def _render_document(account: Account, job_id: str, judge: Callable[[GridJob], Verdict]) -> Iterator[bytes]:
    """The grid job's document as it will be, but for the time of its end, so that it is the same in each attempt.

    It comes part by part: with all its local jobs inside, it may be larger than the memory.
    """
    job = account.database.grid_jobs.get(job_id)
    job.clear_sizes_before()
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
    put_end(job, _judge(account, job), undelivered)


def put_end(job: GridJob, verdict: Verdict, undelivered: str) -> None:
    """End a grid job; what could not be delivered is told beside the verdict."""
    state, reason = verdict
    job.reason = "; ".join(filter(None, (reason, undelivered))) or None
    job.end(state, time.time())


def _judge(account: Account, job: GridJob) -> Verdict:
    """The grid job's final state, and a sentence about what went wrong, if anything did."""
    local_jobs = account.database.local_jobs
    ends = local_jobs.count_ends(job.job_id)
    failed = ends.total() - ends["succeeded"]
    state = judge(job.count - failed, job.count, job.min_success, job.cancelled)
    if job.cancelled or not failed:
        return state, job.reason
    first = next(local_job for local_job in local_jobs.lines(job.job_id) if not local_job.succeeded)
    words = _last_words(account, job, first)
    number = local_jobs.get(job.job_id, first.index).attempt
    attempt = f" (attempt {number})" if number > 1 else ""
    reason = f"number {first.index}{attempt}: {first.reason or 'no reason known'}" + (f" ({words})" if words else "")
    return state, f"{failed} of {job.count} local jobs failed, first {reason}"


def _last_words(account: Account, job: GridJob, local_job: LocalJobLine) -> str:
    stem = render_stem(job.job_id, str(local_job.local_id))
    return read_last_words(account.places.results(job.job_id) / f"{stem}.stderr")


def read_last_words(path: Path) -> str:
    """The last line that a program wrote to stderr, shortened."""
    try:
        stderr = open_regular(path)
    except OSError:
        return ""
    with stderr:
        stderr.seek(-min(4096, os.fstat(stderr.fileno()).st_size), os.SEEK_END)
        lines = stderr.read(4096).decode(errors="replace").split("\n")
    return next((line.strip()[:200] for line in reversed(lines) if line.strip()), "")


def _ask_for_summary(account: Account, job: GridJob) -> tuple[Mapping[str, str], str]:
    """The handler's summary, or why there is none: a handler that fails or hangs here never costs the outputs."""
    asked = asking(account, job.job_id, "summary")
    try:
        if hangs := asked.find_hangs():  # it may have ended the worker, and would again
            raise HandlerHung(hangs[-1])
        with asked.limited():
            adapter = make_adapter(account, job.request(), job.request_folder)
            if type(adapter).getSummary is JobAdapter.getSummary:
                return {}, ""
            summary = adapter.getSummary(_find_outputs(account, job.job_id))
            return {str(name): str(text) for name, text in summary.items()}, ""
    except HANDLER_FAILURES as error:
        logger.warning("%s no summary: %s: %s", job.job_id, type(error).__name__, error)
        return {}, f"{type(error).__name__}: {error}"


def _find_outputs(account: Account, job_id: str) -> list[Path]:
    """The output folders of the local jobs that succeeded."""
    results = account.places.results(job_id)
    succeeded = (job.local_id for job in account.database.local_jobs.lines(job_id) if job.succeeded)
    outputs = (results / f"{render_stem(job_id, str(local_id))}.output" for local_id in succeeded)
    return [path for path in outputs if path.is_dir() and not path.is_symlink()]


def retry_failed(database: Database, job_id: str) -> int:
    """Make those of a grid job's failed local jobs new that may be tried again, all or none; how many they are.

    The grid job keeps the last token, because they lose theirs: what comes late under it finds nobody.
    """
    if not database.grid_jobs.get(job_id).retries:
        return 0
    count = 0
    with database.transaction():
        job = database.grid_jobs.get(job_id)
        # The batch system may have queued one of them again meanwhile.
        if job.cancelled or next_task(database.local_jobs.count(job_id), job.cancelled) is not Task.COLLECT:
            return 0
        job.last_token = find_last_token(database, job)
        for chosen in in_parts(choose_retries(database.local_jobs.each(job_id), job.retries)):
            if not count:
                database.grid_jobs.put(job)
            count += len(chosen)
            for local_job in chosen:
                local_job.begin_attempt()
            put_local_jobs(database, job_id, chosen)
    if count:
        logger.info("%s %d local jobs failed and are submitted again", job_id, count)
    return count


def choose_retries(local_jobs: Iterable[LocalJob], retries: int) -> Iterator[LocalJob]:
    """Those that ended without success and have been tried at most ``retries`` times."""
    return (job for job in local_jobs if job.state.is_final and not job.succeeded and job.attempt <= retries)
