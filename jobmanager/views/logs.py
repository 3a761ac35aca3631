"""What happened to a grid job, as its log and its documents tell it, and what a local job printed: harmless lines."""

import heapq
import os
import re
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from pathlib import Path

from jobmanager.database.database import DamagedDocument, Database
from jobmanager.database.grid_job import GridJob
from jobmanager.database.local_job import BLOCKED
from jobmanager.database.times import render_time
from jobmanager.site.account import Account
from jobmanager.views.explaining import find_local_jobs
from jobmanager.views.text import printable, render_line
from sandbox.files import open_regular
from sandbox.status import render_stem

LAST_LINES = 100
"""Lines of a local job's standard output, and of its standard error, that are shown."""
_LONGEST = 4096
_STAMPED = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d")
_SECOND = len("2026-11-23T01:02:03")


def render_log(account: Account, job_id: str, lines: int | None) -> Iterator[str]:
    """The log of a grid job with what its documents tell, in order, or the last lines of that.

    :raises OSError: the log cannot be read.
    """
    path = account.places.log(job_id)
    logged = _stamp(_read_lines(path, lines) if os.path.lexists(path) else ())
    left_out = []
    try:
        story = tell_story(account.database, job_id)
    except DamagedDocument as damage:
        story, left_out = [], [f"left out is what its documents tell: {render_line(str(damage))}"]
    told = [(render_time(when), f"{render_time(when)} {render_line(text)}") for when, text in story]
    merged = heapq.merge(logged, told, key=lambda line: line[0][:_SECOND])
    text = [line for _, line in (merged if lines is None else deque(merged, lines))]
    yield from [*text, *left_out] or ["nothing has been logged yet"]


def _stamp(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Each line with the time of it, or of the one before."""
    stamp = ""
    for line in lines:
        stamp = max(stamp, line[:_SECOND]) if _STAMPED.match(line) else stamp
        yield stamp, line


def render_local_log(account: Account, name: str, lines: int | None) -> Iterator[str]:
    """The last lines of standard output and standard error of the local job that ``ID/NUMBER`` names.

    :raises UnknownJob: there is none; OSError: something cannot be read.
    """
    for grid_job, job in find_local_jobs(account.database, name):
        for kind in ("stdout", "stderr"):
            yield f"{kind} of {grid_job}/{job.index}:"
            path = account.places.results(grid_job) / f"{render_stem(grid_job, str(job.local_id))}.{kind}"
            if os.path.lexists(path):
                yield from _read_lines(path, LAST_LINES if lines is None else lines)
            else:
                yield f"  is not back: the local job is {job.state.word}"


def _read_lines(path: Path, last: int | None) -> Iterator[str]:
    """The lines, or the last ones, in constant memory."""
    with open_regular(path) as stream:
        if last is not None:
            stream.seek(max(0, os.fstat(stream.fileno()).st_size - last * _LONGEST))
        pieces = iter(lambda: stream.readline(_LONGEST), b"")
        for piece in pieces if last is None else deque(pieces, last):
            yield printable(piece.decode(errors="replace").rstrip("\r\n").expandtabs())


_MOST_READ = 200
"""Local jobs of which it is read what blocked them."""
_SHOWN_NUMBERS = 3


def tell_story(database: Database, job_id: str) -> list[tuple[int, str]]:
    """What happened and when, in seconds since 1970, in order; what workers log themselves is left out.

    :raises DamagedDocument: a document cannot be read.
    """
    job = database.grid_jobs.get(job_id)
    started = database.local_jobs.first_start_ever(job_id)
    story = [] if started is None else [(started, "active: its first local job has started")]
    story += [*_tell_blocks(database, job_id), *_tell_retries(database, job_id)]
    if job.cancelled_time is not None:
        story.append((job.cancelled_time, job.reason or "cancelled"))
    return [*sorted(story), *_tell_end(database, job)]


def _tell_blocks(database: Database, job_id: str) -> Iterator[tuple[int, str]]:
    numbers: dict[tuple[int, str], list[int]] = {}
    for local_job in database.local_jobs.once_blocked(job_id, _MOST_READ):
        for seen in local_job.evidence():
            if seen.verdict.startswith(BLOCKED):
                words = f"{seen.said}: {seen.verdict.removeprefix(BLOCKED)}"
                numbers.setdefault((seen.when, words), []).append(local_job.index)
    for (when, words), of_words in numbers.items():
        shown = ", ".join(map(str, of_words[:_SHOWN_NUMBERS])) + (" …" if len(of_words) > _SHOWN_NUMBERS else "")
        yield when, f"blocked, number {shown}: {words}"


def _tell_retries(database: Database, job_id: str) -> Iterator[tuple[int, str]]:
    ends = database.local_jobs.attempt_ends(job_id)
    for attempt in sorted({end.attempt for end in ends}):
        causes = {str(end.cause): end.count for end in ends if end.attempt == attempt}
        last = max((end.last or 0 for end in ends if end.attempt == attempt), default=0)
        yield last, f"attempt {attempt} failed: {_count(causes)}; tried again"


def _tell_end(database: Database, job: GridJob) -> Iterator[tuple[int, str]]:
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
