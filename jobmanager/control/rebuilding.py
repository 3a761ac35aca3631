"""A grid job's own document that cannot be read is made anew: from its index, and from what of its text is whole."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lxml import etree

from batch_adapters.states import STATE_OF_WORD, State
from jobmanager.database.database import Database
from jobmanager.database.documents import InvalidDocument, read_xml
from jobmanager.database.grid_job import GramOrigin, GridJob
from jobmanager.database.times import read_time, render_time

_PARTS = ("request", "gram", "slices", "steps", "summary")


class NotRebuilt(Exception):
    """Too little is known of a grid job; the sentence says what is missing, and what to do."""


def rebuild_grid_job(database: Database, identity: str, now: float) -> str:
    """Write a grid job's document anew, inside a transaction; a sentence about what is lost, empty where nothing is.

    Where its request is lost, what was submitted is collected as ever, and what was not never will be.

    :raises NotRebuilt: it cannot be; nothing has changed.
    """
    text = database.read_text(identity)
    parts = _find_parts(text)
    for start, whole in ((_read_start(text), parts), (None, parts), (None, {})):
        try:
            job = _make(database, identity, start, whole, now)
            job.to_bytes()
        except (InvalidDocument, ValueError, LookupError):  # what looks whole, or the index, is damaged as well
            continue
        lost = ["request"] if "request" not in whole else []
        lost += ["GRAM's stdout and stderr"] if job.uniqid and "gram" not in whole else []
        lost += ["min_success and retries"] if start is None else []
        if "request" not in whole:
            _give_up_unsubmitted(database, job, now)
        database.grid_jobs.put(job)
        return f"grid job {identity} was made anew without what is lost: {', '.join(lost)}" if lost else ""
    raise NotRebuilt(
        f"grid job {identity} cannot be made anew: nobody knows how it was cut; samgrid remove {identity} removes it"
    )


def _read_start(text: bytes) -> etree._Element | None:
    """The start tag with its attributes, where that is whole."""
    found = re.search(rb"<grid-job\s[^<>]*>", text)
    return _read(found[0].removesuffix(b">").removesuffix(b"/") + b"/>") if found else None


def _find_parts(text: bytes) -> dict[str, etree._Element]:
    """Those of its children that are whole: half a request would be another request."""
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
    database: Database, identity: str, start: etree._Element | None, parts: Mapping[str, etree._Element], now: float
) -> GridJob:
    columns = database.read_columns(identity, 0)
    job = GridJob.new(identity, columns["type"], columns["owner"], columns["batch"], read_time(columns["submitted"]))
    for name, value in ({} if start is None else start.attrib).items():
        # What the index knows counts.
        if name not in job.element.attrib:
            job.element.set(name, value)
    for parent in database.grid_jobs.parents_of(identity)[:1]:
        step = next(step.name for step in database.grid_jobs.steps(parent)[parent] if step.grid_job == identity)
        job.put_parent(parent, step)
    job.put_request([("samgrid_type", (job.job_type,))], Path("/"))
    _put_index(database, job, columns, now)
    for part in parts.values():
        for before in job.element.findall(part.tag):
            job.element.remove(before)
        job.element.append(part)
    if columns["reported"]:
        job.put_reported(STATE_OF_WORD[columns["reported"]], columns["reported_time"])
    return job


def _put_index(database: Database, job: GridJob, columns: Mapping[str, Any], now: float) -> None:
    job.state, job.outcome = STATE_OF_WORD[columns["state"]], columns["outcome"]
    local_jobs = database.local_jobs.lines(job.identity)
    if job.state.is_final and job.ended is None:
        job.ended = render_time(max((line.ended or 0 for line in local_jobs), default=0) or now)
    if columns["cancelled"]:
        job.cancel(now, "its document could not be read", "us" if job.outcome == State.FAILED.word else None)
    if columns["uniqid"] is not None:
        job.put_origin(GramOrigin(columns["uniqid"], "unknown", "/dev/null", "/dev/null", False))
    steps = database.grid_jobs.steps(job.identity).get(job.identity, ())
    indexes = [line.index for line in local_jobs]
    if steps:
        job.put_steps([step.name for step in steps])
        for step in steps:
            if step.grid_job:
                job.begin_step(step.name, step.grid_job)
    elif indexes:
        job.put_slices(max(indexes), None, 1)
        if len(indexes) < max(indexes):
            job.put_only(indexes)


def _give_up_unsubmitted(database: Database, job: GridJob, now: float) -> None:
    """Without its request nothing more of it can be run, nor tried again."""
    job.retries = 0
    if not job.state.is_final and State.UNSUBMITTED in database.local_jobs.count(job.identity):
        job.cancel(now, "its request is lost: what was not submitted cannot be", by="us")
