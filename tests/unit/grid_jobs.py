"""Grid jobs and local jobs as documents, for tests that begin where there are some already."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from adapters.attributes import Value
from jobmanager.database.database import Database
from jobmanager.database.grid_job import GridJob
from jobmanager.database.local_job import LocalJob

TRUE = (("samgrid_type", ("command",)), ("executable", ("/bin/true",)))
"""The request of a grid job of which only that it exists matters."""


def make_grid_job(
    job_id: str,
    count: int = 1,
    *,
    request: Iterable[tuple[str, Sequence[Value]]] = TRUE,
    job_type: str = "command",
    owner: str = "physicist",
    batch: str = "fork",
    submitted: float = 1000,
) -> GridJob:
    """One of so many local jobs, of which nothing has been submitted; nobody has written it down."""
    job = GridJob.new(job_id, job_type, owner, batch, submitted)
    job.put_request(request, Path("/"))
    job.put_slices(count, None, 1)
    return job


def make_whole(job_id: str, *steps: str, **begun: str) -> GridJob:
    """One of these steps, some of which have become grid jobs: their ids by name."""
    job = GridJob.new(job_id, "structured", "physicist", "fork", 1000)
    job.put_request([], Path("/"))
    job.put_steps(steps)
    for step, child in begun.items():
        job.begin_step(step, child)
    return job


def put(database: Database, job: GridJob, local_jobs: Iterable[LocalJob] = ()) -> None:
    """Write down a grid job, with local jobs."""
    with database.transaction():
        database.grid_jobs.put(job)
        database.local_jobs.put(job.job_id, local_jobs)


def put_local_jobs(database: Database, job_id: str, *jobs: LocalJob) -> None:
    """Write down local jobs of a grid job."""
    with database.transaction():
        database.local_jobs.put(job_id, jobs)


@contextmanager
def changing(database: Database, job_id: str, index: int = 1) -> Iterator[LocalJob]:
    """A local job, which is written down again with what is changed."""
    with database.transaction():
        job = database.local_jobs.get(job_id, index)
        yield job
        database.local_jobs.put(job_id, [job])
