"""What happened to a grid job, from its log and documents, and what a local job printed; as printable lines."""

import heapq
import os
import re
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

from jobmanager.database.database import DamagedDocument, Database, UnknownJob
from jobmanager.database.grid_job import GridJob
from jobmanager.database.local_job import LocalJob, Outcome
from jobmanager.database.times import render_time
from jobmanager.site.account import Account
from jobmanager.states.failures import count_refusals, find_refusal
from jobmanager.views.following import KINDS, find_printed
from jobmanager.views.text import printable, render_line
from sandbox.files import open_unlinked

LAST_LINES = 100
"""The last lines of a local job's standard output and standard error that are shown."""
_LONGEST = 4096
_STAMPED = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d")
_SECOND = len("2026-11-23T01:02:03")


def render_log(account: Account, database: Database, job_id: str, lines: int | None) -> Iterator[str]:
    """The log of a grid job merged with the history from its documents, or the last lines of that.

    :raises OSError: the log cannot be read.
    """
    path = account.places.log(job_id)
    logged = _stamp(read_lines(path, lines) if os.path.lexists(path) else ())
    left_out = []
    try:
        history = read_history(database, job_id)
    except DamagedDocument as damage:
        history, left_out = [], [f"left out is what its documents tell: {render_line(str(damage))}"]
    recorded = [(render_time(when), f"{render_time(when)} {render_line(text)}") for when, text in history]
    merged = heapq.merge(logged, recorded, key=lambda line: line[0][:_SECOND])
    text = [line for _, line in (merged if lines is None else deque(merged, lines))]
    yield from [*text, *left_out] or (() if lines == 0 else ["nothing has been logged yet"])


def _stamp(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Each line with its time, or that of the line before."""
    stamp = ""
    for line in lines:
        stamp = max(stamp, line[:_SECOND]) if _STAMPED.match(line) else stamp
        yield stamp, line


MOST_LOCAL_JOBS = 20
"""Local jobs whose texts are shown at once."""
_RANGE = re.compile(r"(?P<grid_job>.+)/(?P<first>[0-9]{1,9})-(?P<last>[0-9]{1,9})", re.DOTALL)


def is_of_local_jobs(database: Database, word: str) -> bool:
    """True for ``ID/NUMBER``, ``ID/FIRST-LAST`` and a batch system's id with a slash; names may have one, too.

    :raises UnknownJob: it means both a grid job and local jobs.
    """
    if "/" not in word:
        return False
    try:
        named = database.grid_jobs.find(word)
    except UnknownJob:
        return True
    try:
        ((whose, job), *_) = find_meant(database, word)
    except UnknownJob:
        return False
    local_job = f"local job {whose}/{job.index}"
    raise UnknownJob(f'"{word}" fits grid job {named} by its name, and {local_job}: use an id, or --name')


def is_to_come(database: Database, word: str) -> bool:
    """True while the grid job of ``ID/NUMBER`` is still prepared: nobody has written down its local jobs yet."""
    prefix, _, _ = word.rpartition("/")
    try:
        job = database.grid_jobs.get(database.grid_jobs.find(prefix))
    except UnknownJob:
        return False
    return not (job.state.is_final or job.steps or database.local_jobs.count(job.job_id))


def find_meant(database: Database, word: str) -> list[tuple[str, LocalJob]]:
    """The local jobs that ``ID/NUMBER``, ``ID/FIRST-LAST`` or a batch system's id names.

    :raises UnknownJob: there is none.
    """
    found = _RANGE.fullmatch(word)
    if found is None:
        return find_local_jobs(database, word)
    identity, first, last = database.grid_jobs.find(found["grid_job"]), int(found["first"]), int(found["last"])
    indexes = [line.index for line in database.local_jobs.lines(identity) if first <= line.index <= last]
    if not indexes:
        raise UnknownJob(f"grid job {identity} has no local jobs {first} to {last}")
    return [(identity, database.local_jobs.get(identity, index)) for index in indexes[: MOST_LOCAL_JOBS + 1]]


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


def find_failed(database: Database, identity: str) -> list[tuple[str, LocalJob]]:
    """The first local jobs of a grid job, and of its steps, that ended without success."""
    failed = (
        (job_id, line.index)
        for job_id in (identity, *find_step_jobs(database, identity))
        for line in database.local_jobs.lines(job_id)
        if line.state.is_final and not line.succeeded
    )
    return [(job_id, database.local_jobs.get(job_id, index)) for job_id, index in islice(failed, MOST_LOCAL_JOBS + 1)]


def render_local_logs(account: Account, jobs: Sequence[tuple[str, LocalJob]], lines: int | None) -> Iterator[str]:
    """The last lines of standard output and standard error of some local jobs.

    :raises OSError: something cannot be read.
    """
    for grid_job, job in jobs[:MOST_LOCAL_JOBS]:
        if job.reason:
            yield render_line(f"{grid_job}/{job.index}: {job.reason}")
        for kind in KINDS:
            yield f"{kind} of {grid_job}/{job.index}:"
            path = find_printed(account, grid_job, job, kind)
            if path is not None:
                yield from read_lines(path, LAST_LINES if lines is None else lines)
            else:
                standing = "cancelled" if job.outcome is Outcome.CANCELLED else job.state.word
                yield f"  is not back: the local job is {standing}"
    if len(jobs) > MOST_LOCAL_JOBS:
        yield f"… and others: {MOST_LOCAL_JOBS} local jobs are shown at once"


def read_lines(path: Path, last: int | None) -> Iterator[str]:
    """The lines of a file, or the last ones, in constant memory."""
    with open_unlinked(path) as stream:
        if last is not None:
            stream.seek(max(0, os.fstat(stream.fileno()).st_size - last * _LONGEST))
        pieces = iter(lambda: stream.readline(_LONGEST), b"")
        for piece in pieces if last is None else deque(pieces, last):
            yield printable(piece.decode(errors="replace").rstrip("\r\n").expandtabs())


_MOST_READ = 200
"""Local jobs whose documents are read for what blocked them."""
_SHOWN_NUMBERS = 3


def read_history(database: Database, job_id: str) -> list[tuple[int, str]]:
    """Events with their times (seconds since 1970), in order, without those that workers log themselves.

    :raises DamagedDocument: a document cannot be read.
    """
    job = database.grid_jobs.get(job_id)
    started = database.local_jobs.first_start_ever(job_id)
    events = [] if started is None else [(started, "active: its first local job has started")]
    events += [*_read_blocks(database, job_id), *_read_retries(database, job)]
    if job.cancelled_time is not None:
        events.append((job.cancelled_time, job.reason or "cancelled"))
    return [*sorted(events), *_read_end(database, job)]


def _read_blocks(database: Database, job_id: str) -> Iterator[tuple[int, str]]:
    numbers: dict[tuple[int, str], list[int]] = {}
    for local_job in database.local_jobs.once_blocked(job_id, _MOST_READ):
        for seen in local_job.evidence():
            if seen.helps:
                numbers.setdefault((seen.when, f"{seen.said}: {seen.helps}"), []).append(local_job.index)
    for (when, words), of_words in numbers.items():
        shown = ", ".join(map(str, of_words[:_SHOWN_NUMBERS])) + (" …" if len(of_words) > _SHOWN_NUMBERS else "")
        yield when, f"blocked, number {shown}: {words}"


def _read_retries(database: Database, job: GridJob) -> Iterator[tuple[int, str]]:
    ends = database.attempts.ends(job.job_id)
    for attempt in sorted({end.attempt for end in ends}):
        causes = {str(end.cause): end.count for end in ends if end.attempt == attempt}
        last = max((end.last or 0 for end in ends if end.attempt == attempt), default=0)
        yield last, f"attempt {attempt} failed: {_count(causes)}; tried again"
    failures = database.local_jobs.failed(job.job_id, each=True)
    for refusal, count in count_refusals(job, failures).items():
        given_up = [failed.ended for failed in failures if failed.ended and find_refusal(job, failed) == refusal]
        # An attempt that was never in the batch system has no time of its end.
        before = job.cancelled_time or max((end.last or 0 for end in ends), default=0)
        yield max(given_up, default=before), f"not tried again: {count} ({refusal})"


def _read_end(database: Database, job: GridJob) -> Iterator[tuple[int, str]]:
    if job.ended_time is None:
        return
    ends = Counter(
        f"{line.outcome} ({line.cause.replace('-', ' ')})" if line.cause else str(line.outcome)
        for line in database.local_jobs.lines(job.job_id)
        if line.outcome
    )
    if ends:
        yield job.ended_time, f"local jobs: {_count(dict(ends.most_common()))}"
    if job.no_summary:
        yield job.ended_time, f"no summary: {job.no_summary}"
    yield job.ended_time, f"{job.outcome}" + (f": {job.reason}" if job.reason else "")


def _count(numbers: dict[str, int]) -> str:
    return ", ".join(f"{number} {words.replace('-', ' ')}" for words, number in numbers.items())
