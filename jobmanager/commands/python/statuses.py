"""The state of grid jobs and local jobs at one moment, in the words of ``samgrid status --format json``."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from jobmanager.database.database import Choice
from jobmanager.database.local_jobs import LocalJobLine
from jobmanager.database.times import read_time
from jobmanager.site.account import Account
from jobmanager.views.grid_jobs import find_details, find_steps, read_grid_jobs

from ...database.local_jobs import Blocked


@dataclass(frozen=True)
class PhaseProgress:
    """The progress of all local jobs of a grid job in one phase."""

    name: str
    unit: str
    done: int
    total: int
    """Of the local jobs that report it."""
    local_jobs: int
    """How many report it."""


@dataclass(frozen=True)
class StepStatus:
    """A step of a sequence; all but its name are None for one that has not begun, its outcome until it has ended."""

    name: str
    grid_job: str | None
    state: str | None
    outcome: str | None
    after: tuple[str, ...] = ()
    """The steps that it needs, by name."""


@dataclass(frozen=True)
class CredentialStatus:
    """A credential of a grid job."""

    name: str
    """x509_user_proxy or bearer_token_file."""
    expires: datetime | None
    """None where it is not known."""
    problem: str | None
    """Why the programs' copy is not kept up to date; None if it is."""


@dataclass(frozen=True)
class JobStatus:
    """What is known of a grid job at one moment; times are UTC."""

    id: str
    name: str | None
    type: str
    state: str
    """GRAM's: unsubmitted, pending, active, suspended, done or failed."""
    outcome: str | None
    """done, failed or cancelled; None until it has ended."""
    reason: str | None
    """Why it failed."""
    owner: str
    batch: str
    submitted: datetime
    ended: datetime | None
    may_end: datetime | None
    """An estimate; None where too little is known."""
    local_jobs: int
    counts: Mapping[str, int]
    """Local jobs by state; those that have ended by their outcome: done, failed, cancelled."""
    blocked: int
    """Local jobs that do not go on until somebody acts."""
    blocks: tuple[Blocked, ...]
    """Why, and the command that helps."""
    stalled: tuple[int, ...]
    """Numbers of the local jobs that have reported nothing new for long."""
    phases: tuple[PhaseProgress, ...]
    steps: tuple[StepStatus, ...]
    parent: str | None
    """The sequence that it is a step of."""
    repeats: str | None
    being_cancelled: bool
    problem: str | None
    """What prevents its progress now."""
    retries: int
    """Attempts that failed and were made again."""
    not_tried_again: Mapping[str, int]
    """How many failed local jobs are not retried, by reason."""
    credentials: tuple[CredentialStatus, ...]
    """The credentials of its programs."""
    silent_since: datetime | None
    """Since when its batch system does not answer; None: it does."""
    quarantined: str | None
    """Why it is in quarantine; None if it is not."""
    summary: Mapping[str, str]
    """The job type's summary of the outputs."""
    no_summary: str | None

    @property
    def has_ended(self) -> bool:
        """True once it has ended."""
        return self.outcome is not None

    @property
    def succeeded(self) -> bool:
        """True where it ended well."""
        return self.outcome == "done"

    @property
    def local_jobs_ended(self) -> int:
        """How many local jobs have ended, well or not."""
        return sum(self.counts.get(outcome, 0) for outcome in ("done", "failed", "cancelled"))


@dataclass(frozen=True)
class LocalJobStatus:
    """What is known of a local job at one moment; times are UTC, None where nothing is known."""

    number: int
    """From 1, in its grid job."""
    local_id: str | None
    """The batch system's id."""
    state: str
    outcome: str | None
    """succeeded, failed or cancelled; None until it has ended."""
    cause: str | None
    """Why it did not succeed, from a closed list: exit-code, time-limit, node-lost …"""
    reason: str | None
    """Why it did not succeed or, before its end, why it waits."""
    submitted: datetime | None
    started: datetime | None
    ended: datetime | None
    cpu_seconds: float | None

    @property
    def succeeded(self) -> bool:
        """True where it ended well."""
        return self.outcome == "succeeded"


def read_status(account: Account, job_id: str) -> JobStatus:
    """What is known of a grid job now; raises UnknownJob: there is no such grid job (any more)."""
    database, now = account.database, time.time()
    details: Mapping[str, Any] = find_details(account, job_id, now)
    chosen = read_grid_jobs(account, Choice(ids=(job_id,)))
    (row,) = chosen.rows
    steps: list[dict[str, Any]] = find_steps(database, row)
    why = chosen.quarantined.get(job_id)
    return JobStatus(
        id=row.id,
        name=row.name,
        type=row.type,
        state=row.state,
        outcome=row.outcome,
        reason=row.reason,
        owner=row.owner,
        batch=row.batch,
        submitted=_read_moment(row.submitted),
        ended=_read_moment(row.ended) if row.ended else None,
        may_end=_read_moment(details["may_end"]) if details.get("may_end") else None,
        local_jobs=details.get("local_jobs", sum(row.counts.values())),
        counts=row.counts,
        blocked=row.blocked,
        blocks=tuple(Blocked(**block) for block in details.get("blocks", ())),
        stalled=tuple(details.get("stalled", ())),
        phases=tuple(
            PhaseProgress(phase.name, phase.unit, phase.done, phase.total, phase.local_jobs)
            for phase in database.phases.sums(job_id)
        ),
        steps=tuple(StepStatus(**step) for step in steps),
        parent=row.parent,
        repeats=details.get("repeats"),
        being_cancelled=details.get("being_cancelled", False),
        problem=details.get("problem"),
        retries=details.get("retries", 0),
        not_tried_again=details.get("not_tried_again", {}),
        credentials=tuple(map(_read_credential, details.get("credentials", ()))),
        silent_since=_moment(chosen.find_silence(row)),
        quarantined=why.sentence if why else None,
        summary=details.get("summary", {}),
        no_summary=details.get("no_summary"),
    )


def _read_credential(item: Mapping[str, Any]) -> CredentialStatus:
    expires = item["expires"]
    return CredentialStatus(item["name"], _read_moment(expires) if expires else None, item["problem"])


def read_local_status(line: LocalJobLine) -> LocalJobStatus:
    """The line about a local job, for everybody."""
    return LocalJobStatus(
        number=line.index,
        local_id=line.local_id,
        state=line.state.word,
        outcome=line.outcome,
        cause=line.cause,
        reason=line.reason,
        submitted=_moment(line.submitted),
        started=_moment(line.started),
        ended=_moment(line.ended),
        cpu_seconds=line.cpu_seconds,
    )


def _read_moment(text: str) -> datetime:
    return datetime.fromtimestamp(read_time(text), UTC)


def _moment(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)
