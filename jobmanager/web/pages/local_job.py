"""The page of one local job."""

from dataclasses import dataclass
from pathlib import Path

from jobmanager.database.database import UnknownJob
from jobmanager.database.local_job import Evidence, LocalJob
from jobmanager.site.account import Account
from jobmanager.views.explaining import describe_driver, describe_local_job, read_context
from jobmanager.views.following import PrintedEnd, read_printed
from jobmanager.views.verdict import render_verdict
from jobmanager.web.charts import JobKind, kind_of_end, kind_of_state
from jobmanager.web.pages.grid_job import Bar, render_bars
from jobmanager.web.reading import ReadOnlyDatabase, find_size
from sandbox.gather import EXPECTED
from sandbox.status import render_stem

_SHOWN_ELSEWHERE = ("grid job", "number", "state", "intended", "submitted", "started", "ended")


@dataclass(frozen=True)
class LocalJobPage:
    job_id: str
    job: LocalJob
    kind: JobKind
    verdict: str
    facts: list[tuple[str, str]]
    times: list[tuple[str, int]]
    """Names and seconds since the epoch."""
    bars: list[Bar]
    evidence: list[Evidence]
    driver: list[str]
    printed: list[PrintedEnd]
    files: list[tuple[str, int]]
    """Names and bytes."""
    events: str
    here: str = "jobs"


def read_local_job_page(account: Account, database: ReadOnlyDatabase, job_id: str, index: int) -> LocalJobPage:
    """Everything that is written down of one local job; its batch system is not asked.

    :raises UnknownJob: there is none of that number.
    """
    job = find_local_job(database, job_id, index)
    context, complaint = read_context(account, database, job_id, job)
    facts = describe_local_job(database.grid_jobs.get(job_id), job)
    return LocalJobPage(
        job_id=job_id,
        job=job,
        kind=kind_of_end(job.outcome.value) if job.outcome else kind_of_state(job.state),
        verdict=render_verdict(job, context),
        facts=[(name, text) for name, text in facts if name not in _SHOWN_ELSEWHERE],
        times=_list_times(job),
        bars=render_bars(job.phases()),
        evidence=job.evidence(),
        driver=[*describe_driver(context.driver), *complaint],
        printed=read_printed(account, job_id, job),
        files=_list_files(account, job_id, job),
        events=f"/jobs/{job_id}/local/{index}/events",
    )


def find_local_job(database: ReadOnlyDatabase, job_id: str, index: int) -> LocalJob:
    """One local job; raises UnknownJob: there is none of that number."""
    count = sum(database.local_jobs.count(database.grid_jobs.get(job_id).job_id).values())
    if not 1 <= index <= count:
        raise UnknownJob(f"grid job {job_id} has no local job {index}: it has {count} by now")
    return database.local_jobs.get(job_id, index)


def find_file(account: Account, job_id: str, job: LocalJob, what: str) -> Path | None:
    """Where one of the `EXPECTED` files of a local job is, if it is back; None before it has an id."""
    if job.local_id is None or what not in EXPECTED:
        return None
    return account.places.results(job_id) / f"{render_stem(job_id, job.local_id)}.{what}"


def _list_times(job: LocalJob) -> list[tuple[str, int]]:
    times = [
        ("intended", job.intended or None),
        ("submitted", job.submitted_time),
        ("started", job.started_time),
        ("ended", job.ended_time),
    ]
    return [(name, when) for name, when in times if when is not None]


def _list_files(account: Account, job_id: str, job: LocalJob) -> list[tuple[str, int]]:
    sizes = [(what, find_size(find_file(account, job_id, job, what))) for what in EXPECTED]
    return [(what, size) for what, size in sizes if size is not None]
