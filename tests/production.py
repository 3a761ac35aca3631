"""A grid job in the middle of its work, as documents: what the status page has to show without waiting for hours."""

import random
import time
from pathlib import Path

from batch_adapters.states import Cause, State
from jobmanager.database.database import Database
from jobmanager.database.grid_job import GridJob
from jobmanager.database.local_job import Evidence, LocalJob, Outcome
from sandbox.status import PhaseStatus

EVENTS = 250
AGE = 7200.0
"""Seconds since it was submitted."""


def add_production(
    database: Database, job_id: str, count: int, now: float, *, job_type: str = "pythia", owner: str = "mokhov"
) -> GridJob:
    """A grid job of so many local jobs: most are done, some run, some wait, a few have failed; the same every time."""
    chance = random.Random(job_id)
    job = GridJob.new(job_id, job_type, owner, "slurm", now - AGE)
    job.put_request([("events", (str(count * EVENTS),)), ("process", ("drell-yan",))], Path("/home"))
    job.put_slices(count, count * EVENTS, 4711)
    job.state = State.ACTIVE
    jobs = [_make_local_job(chance, index, count, now) for index in range(1, count + 1)]
    with database.transaction():
        database.grid_jobs.put(job)
        database.local_jobs.put(job_id, jobs)
    return job


def add_hostile(database: Database, job_id: str, text: str) -> None:
    """A grid job of three local jobs that has a hostile text wherever a document can have one, also in its third."""
    job = add_production(database, job_id, 3, time.time(), owner=text)
    job.put_request([("arguments", (text, (text,)))], Path("/home"))
    job.put_problem(text, 1000)
    job.put_summary({text: text})
    job.reason = text
    local_job = LocalJob.new(3, "slurm", None)
    local_job.intend("samgrid-0001", 1000)
    local_job.register(text, text, 1000)
    local_job.state, local_job.reason, local_job.wait_reason, local_job.host = State.FAILED, text, text, text
    local_job.outcome = Outcome.FAILED
    local_job.put_evidence(Evidence("log", text, 1000, text))
    with database.transaction():
        database.grid_jobs.put(job)
        database.local_jobs.put(job_id, [local_job])


def _make_local_job(chance: random.Random, index: int, count: int, now: float) -> LocalJob:
    submitted = now - AGE + 60 + 600 * index / count
    started = submitted + 100 + 8000 * index / count + chance.uniform(0, 300)
    needs = chance.gauss(900, 150)
    job = LocalJob.new(index, "slurm", None)
    job.intend("samgrid-0001", now - AGE)
    job.register(f"4711_{index}", "4711", submitted)
    _see(job, "queued", submitted, "pending")
    if started < now:
        _start(job, started, min(1.0, (now - started) / needs), now)
        if started + needs < now:
            _end(job, started + needs, chance.random())
        elif chance.random() < 0.05:
            job.state = State.SUSPENDED
    return job


def _see(job: LocalJob, said: str, when: float, verdict: str) -> None:
    job.put_evidence(Evidence("log", said, int(when), verdict))


def _start(job: LocalJob, when: float, part: float, now: float) -> None:
    job.state = State.ACTIVE
    job.started_time = int(when)
    _see(job, "running on node017", when, "active")
    parts = {"d0gstar": min(1.0, 1.4 * part), "d0reco": max(0.0, min(1.0, 1.8 * part - 0.8))}
    job.put_phases([PhaseStatus(name, int(done * EVENTS), EVENTS, "events") for name, done in parts.items()], now)


def _end(job: LocalJob, when: float, luck: float) -> None:
    job.ended_time = int(when)
    job.state, job.exit_code, job.reason, job.outcome = State.DONE, 0, None, Outcome.SUCCEEDED
    job.driver, job.host, job.cpu_seconds = "ended", "node017", 850.0
    if luck < 0.012:
        job.state, job.exit_code, job.reason = State.FAILED, None, "the batch system ended it: out of memory"
        job.outcome, job.cause = Outcome.FAILED, Cause.MEMORY_LIMIT
    elif luck < 0.024:
        job.exit_code, job.reason = 3, "its program ended with exit code 3"
        job.outcome, job.cause = Outcome.FAILED, Cause.EXIT_CODE
    _see(job, "completed", when, job.state.word)
