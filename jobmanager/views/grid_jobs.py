"""Texts about grid jobs and job types for people, and the same as JSON for programs."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from jobmanager import render_number
from jobmanager.database.database import Choice, DamagedDocument, Database, Overview, Quarantined
from jobmanager.database.details import PhaseSum
from jobmanager.database.grid_jobs import StepLine, find_current_steps
from jobmanager.database.local_jobs import LocalJobLine
from jobmanager.database.times import render_time
from jobmanager.site.account import Account, find_outage
from jobmanager.views.text import (
    is_terminal,
    printable,
    render_columns,
    render_duration,
    render_line,
    render_listing,
    render_moment,
)

if TYPE_CHECKING:  # a list of grid jobs needs neither XML nor job types
    from batch_adapters.running.rate_limiter import Outage
    from jobmanager.database.grid_job import CredentialEntry, GridJob

_STATES = ("unsubmitted", "pending", "active", "suspended", "done", "failed", "cancelled")


class GridJobList(NamedTuple):
    """Some grid jobs, and what keeps them from making progress."""

    rows: Sequence[Overview]
    outages: "Mapping[str, Outage]"
    """By batch system that they need, and that does not answer."""
    quarantined: Mapping[str, Quarantined]
    """By id: those of which a document cannot be read."""

    def find_silence(self, row: Overview) -> float | None:
        """Since when (seconds since 1970) the batch system that it needs does not answer; None if it does."""
        outage = self.outages.get(row.batch) if row.outcome is None else None
        return None if outage is None else outage.since


def read_grid_jobs(account: Account, choice: Choice) -> GridJobList:
    """The grid jobs that are chosen, the newest last."""
    rows = account.database.grid_jobs.overview(choice=choice)
    needed = sorted({row.batch for row in rows if row.outcome is None})
    outages = {batch: outage for batch in needed if (outage := find_outage(account, batch))}
    ids = {row.id for row in rows}
    quarantined = {job_id: why for job_id, why in account.database.quarantine.list().items() if job_id in ids}
    return GridJobList(rows, outages, quarantined)


def render_title(job_id: str, name: str | None) -> str:
    """The id of a grid job, and its name if it has one: ``k3f9zq2m (Z to mumu)``."""
    return f"{job_id} ({render_line(name)})" if name else job_id


def render_counts(row: Overview) -> str:
    """Local jobs by state and outcome, ``3 active, 5 done, 2 failed``; for a structured grid job, its steps."""
    if row.steps:
        return render_steps(row.steps, find_current_steps(row.steps))
    parts = [f"{row.counts[state]:,} {state}" for state in _STATES if row.counts.get(state)]
    parts += [f"{row.blocked:,} blocked"] if row.blocked else []
    return ", ".join(parts) or ("no local jobs" if row.outcome else "no local jobs yet")


def render_steps(steps: Sequence[StepLine], shown: Sequence[StepLine]) -> str:
    """Some of the steps of a structured grid job: ``step 2 of 2: merge (k3f9zq2m) active``."""
    numbers = render_words([str(steps.index(step) + 1) for step in shown])
    parts = ", ".join(map(_render_part, shown))
    return f"step{'s' * (len(shown) > 1)} {numbers} of {len(steps)}: {parts}"


def render_words(words: Sequence[str]) -> str:
    """Words as people list them: ``a, b and c``."""
    return " and ".join([part for part in (", ".join(words[:-1]), *words[-1:]) if part])


def _render_part(step: StepLine) -> str:
    return f"{step.name} ({step.grid_job}) {step.outcome or step.state or 'removed'}" if step.grid_job else step.name


def render_table(rows: Iterable[Overview], folder: Path | None = None) -> str:
    """A line for each grid job, with a heading; ``folder``: the state folder where these are all, None: some."""
    heading = ("ID", "NAME", "TYPE", "STATE", "OWNER", "SUBMITTED", "LOCAL JOBS")
    # On a narrow terminal a day and a time fit one below the other; programs get one word.
    blank = " " if is_terminal() else "T"
    lines = [
        (
            *(row.id, render_line(row.name or ""), row.type, row.outcome or row.state, printable(row.owner)),
            row.submitted.replace("T", blank),
            render_counts(row) + (f" (step of {row.parent})" if row.parent else ""),
        )
        for row in rows
    ]
    if lines:
        has_names = any(line[1] for line in lines)
        shown = [line if has_names else (line[0], *line[2:]) for line in (heading, *lines)]
        return render_listing(shown[0], shown[1:])
    if folder is None:
        return "no grid jobs fit these options"
    return f'no grid jobs in {printable(str(folder))}: "samgrid submit FILE" makes one'


STATUS_SCHEMA = Path(__file__).with_name("status.schema.json")
"""What `render_json` prints."""


def render_json(database: Database, chosen: GridJobList, details: Mapping[str, object]) -> str:
    """The grid jobs for programs, with further facts about each of them."""
    import json

    objects = []
    for row in chosen.rows:
        since = chosen.find_silence(row)
        moment = {} if since is None else {"silent_since": render_time(since)}
        why = {"quarantined": chosen.quarantined[row.id].sentence} if row.id in chosen.quarantined else {}
        sums = database.phases.sums(row.id)
        phases = [{name: getattr(phase, name) for name in _OF_PHASE} for phase in sums]
        steps = {"steps": find_steps(database, row)}
        objects.append({**asdict(row), **steps, "phases": phases, **moment, **why, **details})
    return json.dumps(objects, indent=2)


_OF_PHASE = ("name", "unit", "done", "total", "local_jobs")


def find_steps(database: Database, row: Overview) -> list[dict[str, object]]:
    """The steps of a structured grid job, for programs; with the steps that each needs, if the document can be read."""
    try:
        needs = database.grid_jobs.get(row.id).needs if row.steps else {}
    except DamagedDocument:
        needs = {}
    return [{**asdict(step), **({"after": needs[step.name]} if needs else {})} for step in row.steps]


def find_details(account: Account, job_id: str, now: float) -> dict[str, object]:
    """Further facts about one grid job, for programs; empty if its document cannot be read."""
    from jobmanager.states.failures import count_refusals
    from jobmanager.views.progress import estimate_end, read_progress

    try:
        job = account.database.grid_jobs.get(job_id)
    except DamagedDocument:
        return {}
    progress = read_progress(account.database, job_id, job.count, account.configuration.monitor.stall_time, now)
    end = None if job.state.is_final else estimate_end(progress, now)
    return {
        "local_jobs": job.count,
        "being_cancelled": job.cancelled and not job.state.is_final,
        "repeats": job.repeats,
        "problem": job.problem,
        "retries": sum(ends.count for ends in account.database.attempts.ends(job_id)),
        "not_tried_again": count_refusals(job, account.database.local_jobs.failed(job_id)),
        "blocks": [asdict(block) for block in progress.blocked],
        "may_end": None if end is None else render_time(end),
        "stalled": list(progress.silent),
        "credentials": [
            {
                "name": entry.name,
                "expires": None if entry.expires is None else render_time(entry.expires),
                "problem": entry.problem,
            }
            for entry in job.credentials
        ],
        "summary": job.summary(),
        "no_summary": job.no_summary,
    }


def render_local_jobs(lines: Iterable[LocalJobLine], standing: str) -> str:
    """The local jobs with that state or outcome, a line each: number, id, cause and reason."""
    rows = [
        (str(line.index), printable(line.local_id or "-"), line.cause or "-", render_line(line.reason or "-"))
        for line in lines
        if {"succeeded": "done"}.get(str(line.outcome), line.outcome or line.state.word) == standing
    ]
    return render_listing(("NUMBER", "ID", "CAUSE", "REASON"), rows) if rows else f"no local job is {standing}"


def render_delays(chosen: GridJobList, now: float) -> Iterator[str]:
    """What keeps grid jobs of a list from making progress, a line each."""
    for job_id, why in chosen.quarantined.items():
        yield render_line(f"{job_id}: {why.sentence}")
    for batch, outage in chosen.outages.items():
        yield _render_outage(batch, outage, now)


def _render_outage(batch: str, outage: "Outage", now: float) -> str:
    """Since when a batch system does not answer, when it is asked again, and what it said."""
    again = f"asked again at {render_moment(outage.next_try)}" if outage.next_try > now else "asked again soon"
    return f"{batch} has not answered since {render_moment(outage.since)} ({again}): {render_line(outage.words)}"


def render_details(account: Account, row: Overview, now: float) -> str:
    """Everything about one grid job that fits a screen."""
    from jobmanager.views.progress import estimate_end, read_progress, render_blocked, render_silent

    try:
        job = account.database.grid_jobs.get(row.id)
    except DamagedDocument as damage:
        known = {
            "grid job": render_title(row.id, row.name),
            "type": row.type,
            "state": row.state,
            "owner": printable(row.owner),
        }
        known |= {"submitted": row.submitted, "local jobs": render_counts(row), "problem": render_line(str(damage))}
        return render_columns([*known.items()])
    progress = read_progress(account.database, row.id, job.count, account.configuration.monitor.stall_time, now)
    facts = [
        ("grid job", row.id),
        *([("name", render_line(job.name))] if job.name else []),
        ("type", job.job_type),
        (
            "state",
            (job.outcome or job.state.word)
            + (" (being cancelled)" if job.cancelled and not job.state.is_final else ""),
        ),
        ("owner", printable(job.owner)),
        ("submitted", job.submitted),
        *([("ended", job.ended)] if job.ended else []),
        *([("repeats", job.repeats)] if job.repeats else []),
        ("batch system", job.batch),
        *_render_parts(job, row),
        *(() if row.steps else _render_retries(account.database, job)),
        *((f"phase {phase.name}", _render_phase(phase, job.count)) for phase in progress.phases),
    ]
    end = None if job.state.is_final else estimate_end(progress, now)
    facts += [(name, render_line(words)) for name, words in render_credentials(job, now)]
    facts += [("blocked", line) for line in render_blocked(progress)]
    facts += [("waits", f"samgrid explain {row.id}/1 asks {job.batch} why")] if _only_waits(row) else []
    facts += [("may end", f"{render_moment(end)} (estimate)")] if end is not None else []
    facts += [("stalled", render_silent(progress))] if progress.silent else []
    facts += [("cancel", _render_cancel(account, job.batch, row))] if job.cancelled and not job.state.is_final else []
    facts += [("reason", printable(job.reason))] if job.reason else []
    facts += [("problem", printable(job.problem))] if job.problem else []
    facts += [(printable(name), printable(text)) for name, text in job.summary().items()]
    facts += [("no summary", render_line(job.no_summary))] if job.no_summary else []
    return render_columns(facts)


def _only_waits(row: Overview) -> bool:
    """True if nothing of it has begun, and nobody needs to act on what is known."""
    return [*row.counts] == ["pending"] and not row.blocked and not row.steps


def render_credentials(job: "GridJob", now: float) -> list[tuple[str, str]]:
    """The credentials of a grid job that has not ended, by name; those of a sequence are its steps'."""
    is_over = job.state.is_final or job.steps
    return [] if is_over else [(entry.name, render_credential(entry, now)) for entry in job.credentials]


def render_credential(entry: "CredentialEntry", now: float) -> str:
    """How long a credential is valid, and whether the programs' copy is kept up to date."""
    if entry.expires is None:
        words = "it is not known when it expires"
    elif entry.expires <= now:
        words = f"has expired at {render_moment(entry.expires)}: renew {entry.source}"
    else:
        words = f"expires at {render_moment(entry.expires)}, in {render_duration(entry.expires - now)}"
    return f"{words}; it is not followed: {entry.problem}" if entry.problem else words


def _render_cancel(account: Account, batch: str, row: Overview) -> str:
    """What a cancel is still waiting for."""
    open_ones = sum(row.counts.get(state, 0) for state in ("unsubmitted", "pending", "active", "suspended"))
    waits = (
        f"waits for the end of {render_number(open_ones, 'local job')}" if open_ones else "all local jobs have ended"
    )
    if find_outage(account, batch) is None:
        return waits
    return f"{waits}, as far as is known: {batch} does not answer, and the cancel goes on when it does"


def _render_parts(job: "GridJob", row: Overview) -> list[tuple[str, str]]:
    """What a grid job is made of: its steps, or its local jobs."""
    if not row.steps:
        of_parent = [("step", f"of {row.parent}")] if row.parent else []
        return [*of_parent, ("local jobs", f"{job.count:,}: {render_counts(row)}")]
    after = {name: f", after {render_words(needs)}" if needs else "" for name, needs in job.needs.items()}
    unbegun = " never began" if job.state.is_final else ""
    return [
        (f"step {number} of {len(row.steps)}", _render_part(step) + unbegun * (not step.grid_job) + after[step.name])
        for number, step in enumerate(row.steps, 1)
    ]


def _render_retries(database: Database, job: "GridJob") -> list[tuple[str, str]]:
    """How many retries were made, and why some local jobs are not retried."""
    from jobmanager.states.failures import count_refusals

    made = sum(ends.count for ends in database.attempts.ends(job.job_id))
    refusals = count_refusals(job, database.local_jobs.failed(job.job_id))
    words = ", ".join(f"{count} ({refusal})" for refusal, count in refusals.items())
    return [("retries", f"{made} made" + (f"; not again: {words}" if words else ""))] if job.retries else []


def _render_phase(phase: PhaseSum, local_jobs: int) -> str:
    from jobmanager.views.progress import render_rate

    amount = f"{phase.done:,} of {phase.expected_total(local_jobs):,} {phase.unit}".rstrip()
    return ", ".join(filter(None, (amount, render_rate(phase))))
