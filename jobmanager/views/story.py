"""What happened to a grid job, as its documents tell it: active, blocked, tried again, cancelled, ended, and why."""

from collections import Counter
from collections.abc import Iterator

from jobmanager.database.database import Database
from jobmanager.database.grid_job import GridJob
from jobmanager.database.local_job import BLOCKED

_MOST_READ = 200
"""Local jobs of which it is read what blocked them."""
_SHOWN_NUMBERS = 3


def tell_story(database: Database, identity: str) -> list[tuple[int, str]]:
    """What happened and when, in seconds since 1970, in order; what workers log themselves is left out.

    :raises DamagedDocument: a document cannot be read.
    """
    job = database.grid_jobs.get(identity)
    started = database.local_jobs.first_start_ever(identity)
    story = [] if started is None else [(started, "active: its first local job has started")]
    story += [*_tell_blocks(database, identity), *_tell_retries(database, identity)]
    if job.cancelled_time is not None:
        story.append((job.cancelled_time, job.reason or "cancelled"))
    return [*sorted(story), *_tell_end(database, job)]


def _tell_blocks(database: Database, identity: str) -> Iterator[tuple[int, str]]:
    numbers: dict[tuple[int, str], list[int]] = {}
    for local_job in database.local_jobs.once_blocked(identity, _MOST_READ):
        for seen in local_job.evidence():
            if seen.verdict.startswith(BLOCKED):
                words = f"{seen.said}: {seen.verdict.removeprefix(BLOCKED)}"
                numbers.setdefault((seen.when, words), []).append(local_job.index)
    for (when, words), of_words in numbers.items():
        shown = ", ".join(map(str, of_words[:_SHOWN_NUMBERS])) + (" …" if len(of_words) > _SHOWN_NUMBERS else "")
        yield when, f"blocked, number {shown}: {words}"


def _tell_retries(database: Database, identity: str) -> Iterator[tuple[int, str]]:
    ends = database.local_jobs.attempt_ends(identity)
    for attempt in sorted({end.attempt for end in ends}):
        causes = {str(end.cause): end.count for end in ends if end.attempt == attempt}
        last = max((end.last or 0 for end in ends if end.attempt == attempt), default=0)
        yield last, f"attempt {attempt} failed: {_count(causes)}; tried again"


def _tell_end(database: Database, job: GridJob) -> Iterator[tuple[int, str]]:
    if job.ended_time is None:
        return
    ends = Counter(
        f"{line.outcome} ({line.cause.replace('-', ' ')})" if line.cause else str(line.outcome)
        for line in database.local_jobs.lines(job.identity)
        if line.outcome
    )
    if ends:
        yield job.ended_time, f"local jobs: {_count(dict(ends.most_common()))}"
    if job.no_summary:
        yield job.ended_time, f"no summary: {job.no_summary}"
    yield job.ended_time, f"{job.outcome}" + (f": {job.reason}" if job.reason else "")


def _count(numbers: dict[str, int]) -> str:
    return ", ".join(f"{number} {words.replace('-', ' ')}" for words, number in numbers.items())
