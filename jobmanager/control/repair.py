"""Repairs a job database as far as possible; a copy of the faulty one is kept.

A local job's document that cannot be read is made again from its columns and its driver's record, a grid job's from its
columns and the readable parts of its text.
"""

import re
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lxml import etree

from adapters.job_adapter import cut_slice
from batch_adapters.states import STATE_OF_WORD, State
from jobmanager.database.database import DamagedDocument, Database, DatabaseError
from jobmanager.database.documents import InvalidDocument, read_xml
from jobmanager.database.grid_job import GramOrigin, GridJob
from jobmanager.database.local_job import Evidence, LocalJob
from jobmanager.database.times import read_time, render_time
from jobmanager.site.account import Account
from jobmanager.states.changes import put_local_jobs
from jobmanager.states.driver_status import read_driver_status, status_file
from jobmanager.states.transitions import apply_driver_status


@dataclass(frozen=True)
class Repair:
    """The result of a repair."""

    saved: Path
    """The copy of the job database from before."""
    repaired: list[str]
    left: list[str]
    """What cannot be repaired, a sentence each."""


def repair(account: Account, now: float) -> Repair:
    """Derive all columns again, and make documents again that cannot be read.

    :raises DatabaseError: the file itself is damaged; nothing has changed. OSError: it cannot be saved first.
    """
    if not account.places.database.exists():
        raise DatabaseError(f"there is no job database {account.places.database}")
    try:
        database = account.database
        faults = database.checking.list_file_faults()
    except DatabaseError as error:
        raise DatabaseError(f"{error}: samgrid doctor says what to do") from error
    if faults:
        raise DatabaseError(f"job database {database.path} is damaged: {faults[0]}: samgrid doctor says what to do")
    saved = _save(account, now)
    before = list(database.checking.list_document_faults())
    lost, left = list[str](), list[str]()
    with database.transaction():
        database.checking.derive_anew()
        for damage in list(database.find_damages()):
            # A grid job's own document comes first.
            if damage.number:
                _make_anew(account, damage, now)
                continue
            try:
                lost.append(rebuild_grid_job(database, damage.grid_job, now))
            except NotRebuilt as problem:
                left.append(str(problem))
    faults = list(database.checking.list_document_faults())
    with database.transaction():
        for grid_job in database.quarantine.list():
            if not any(database.find_damages(grid_job)):
                database.quarantine.lift(grid_job)
    return Repair(saved, [*filter(None, lost), *(fault for fault in before if fault not in faults)], left + faults)


def _save(account: Account, now: float) -> Path:
    """Copy the file and its write-ahead log, while nobody can write."""
    path = account.places.database
    saved = path.with_name(f"{path.name}.before-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime(now))}")
    with account.database.transaction():
        for end in ("", "-wal"):
            if path.with_name(path.name + end).exists():
                copy = saved.with_name(saved.name + end)
                shutil.copyfile(path.with_name(path.name + end), copy)
                copy.chmod(0o600)
    return saved


def _make_anew(account: Account, damage: DamagedDocument, now: float) -> None:
    database = account.database
    try:
        grid_job = database.grid_jobs.get(damage.grid_job)
    except DamagedDocument:
        return
    job = make_from_index(grid_job, database.checking.read_columns(damage.grid_job, damage.number), now)
    if job.local_id is not None:
        status = read_driver_status(status_file(account, damage.grid_job, job.local_id))
        apply_driver_status(job, status, now)
    put_local_jobs(database, damage.grid_job, [job])


def make_from_index(grid_job: GridJob, columns: Mapping[str, Any], now: float) -> LocalJob:
    """A local job made from its columns; evidence, phases and earlier attempts are lost."""
    index, of_size = int(columns["number"]), grid_job.size_and_seed
    part = None if of_size is None else cut_slice(index, grid_job.slice_count, *of_size)
    job = LocalJob.new(index, str(columns["batch"]), part)
    job.state = STATE_OF_WORD[str(columns["state"])]
    job.local_id, job.token, job.array = columns["local_id"], columns["token"], columns["array"]
    job.wait_reason, job.reason, job.cpu_seconds = columns["wait_reason"], columns["reason"], columns["cpu_seconds"]
    job.helps, job.submitted_time = columns["helps"], columns["submitted"]
    job.started_time, job.ended_time = columns["started"], columns["ended"]
    if job.token is not None and job.state is State.UNSUBMITTED:
        job.intend(job.token, now)
    job.put_evidence(Evidence("us", "its document could not be read", int(now), "made anew from the index"))
    return job


_PARTS = ("request", "gram", "slices", "steps", "summary")


class NotRebuilt(Exception):
    """Too little is known of a grid job; the message says what is missing, and what to do."""


def rebuild_grid_job(database: Database, job_id: str, now: float) -> str:
    """Write a grid job's document again, inside a transaction; a sentence about what is lost, or an empty text.

    If its request is lost, submitted local jobs are collected as usual, and the others are never submitted.

    :raises NotRebuilt: this is impossible; nothing has changed.
    """
    text = database.read_text(job_id)
    parts = _find_parts(text)
    for start, whole in ((read_start(text), parts), (None, parts), (None, {})):
        try:
            job = _make(database, job_id, start, whole, now)
            job.to_bytes()
        except (InvalidDocument, ValueError, LookupError):  # these parts, or the columns, are damaged, too
            continue
        lost = ["request"] if "request" not in whole else []
        lost += ["GRAM's stdout and stderr"] if job.uniqid and "gram" not in whole else []
        lost += ["min_success, retries and what it repeats"] if start is None else []
        if "request" not in whole:
            _give_up_unsubmitted(database, job, now)
        database.grid_jobs.put(job)
        return f"grid job {job_id} was made anew without what is lost: {', '.join(lost)}" if lost else ""
    raise NotRebuilt(
        f"grid job {job_id} cannot be made anew: nobody knows how it was cut; samgrid remove {job_id} removes it"
    )


def read_start(text: bytes) -> etree._Element | None:
    """The start tag with its attributes, if it is complete."""
    found = re.search(rb"<grid-job\s[^<>]*>", text)
    return _read(found[0].removesuffix(b">").removesuffix(b"/") + b"/>") if found else None


def _find_parts(text: bytes) -> dict[str, etree._Element]:
    """The children that are complete: half a request would be another request."""
    found = {}
    for name in _PARTS:
        tag = name.encode()
        match = re.search(rb"<%b(?:\s[^<>]*)?(?:/>|>.*?</%b>)" % (tag, tag), text, re.DOTALL)
        element = _read(match[0]) if match else None
        if element is not None:
            found[name] = element
    return found


def _read(text: bytes) -> etree._Element | None:
    try:
        return read_xml(text)
    except etree.XMLSyntaxError:
        return None


def _make(
    database: Database, job_id: str, start: etree._Element | None, parts: Mapping[str, etree._Element], now: float
) -> GridJob:
    columns = database.checking.read_columns(job_id, 0)
    job = GridJob.new(job_id, columns["type"], columns["owner"], columns["batch"], read_time(columns["submitted"]))
    for name, value in ({} if start is None else start.attrib).items():
        # The columns take precedence.
        if name not in job.element.attrib:
            job.element.set(name, value)
    for parent in database.grid_jobs.parents_of(job_id)[:1]:
        step = next(step.name for step in database.grid_jobs.steps_of(parent) if step.grid_job == job_id)
        job.put_parent(parent, step)
    job.put_request([("samgrid_type", (job.job_type,))], Path("/"))
    _put_index(database, job, columns, now)
    for part in parts.values():
        for before in job.element.findall(part.tag):
            job.element.remove(before)
        job.element.append(part)
    if columns["reported"]:
        job.reported, job.reported_time = STATE_OF_WORD[columns["reported"]], columns["reported_time"]
    return job


def _put_index(database: Database, job: GridJob, columns: Mapping[str, Any], now: float) -> None:
    job.state, job.outcome = STATE_OF_WORD[columns["state"]], columns["outcome"]
    job.name, job.reason = columns["name"] or job.name, columns["reason"] or job.reason
    job.ended = columns["ended"] or job.ended
    local_jobs = list(database.local_jobs.lines(job.job_id))
    if job.state.is_final and job.ended is None:
        job.ended = render_time(max((line.ended or 0 for line in local_jobs), default=0) or now)
    if columns["cancelled"]:
        job.cancel(now, "its document could not be read", "us" if job.outcome == State.FAILED.word else None)
    if columns["uniqid"] is not None:
        job.put_origin(GramOrigin(columns["uniqid"], "unknown", "/dev/null", "/dev/null", False))
    steps = database.grid_jobs.steps_of(job.job_id)
    indexes = [line.index for line in local_jobs]
    if steps:
        job.put_steps([step.name for step in steps])
        for step in steps:
            if step.grid_job:
                job.begin_step(step.name, step.grid_job)
    elif indexes:
        job.put_slices(max(indexes), None, 1)
        if len(indexes) < max(indexes):
            job.only = indexes


def _give_up_unsubmitted(database: Database, job: GridJob, now: float) -> None:
    """Without its request, nothing more of it can be submitted or retried."""
    job.retries = 0
    if not job.state.is_final and State.UNSUBMITTED in database.local_jobs.count(job.job_id):
        job.cancel(now, "its request is lost: what was not submitted cannot be", by="us")
