"""Reports grid jobs to GRAM: as answers to its polls and, if it reads events, as events.

Events go through the collector, or into the account's own folder.
"""

import logging
import os
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from batch_adapters.generator.collector_protocol import Receipt, hand_in
from batch_adapters.generator.emit import keep_days, write_events_now
from batch_adapters.running.backoff import Backoff
from batch_adapters.states import Event, State
from jobmanager import render_error
from jobmanager.database.database import DamagedDocument, Unreported
from jobmanager.database.grid_job import GridJob
from jobmanager.database.times import read_time
from jobmanager.gram.answers import make_events, publish_answer, reported_state
from jobmanager.gram.audit import write_record
from jobmanager.site.account import Account

logger = logging.getLogger(__name__)

_AGAIN = {State.ACTIVE: (5.0,), State.DONE: (5.0, 60.0), State.FAILED: (5.0, 60.0)}
"""Seconds after which a state is reported again: GRAM drops events of jobs that it does not know yet."""
_REMEMBERED = 600
"""A monitor that starts repeats the ends that were reported within so many seconds."""
_PAUSE = 60.0
"""Seconds until refused events are sent to the collector again."""
_DAYS_INTERVAL = 1.0


@dataclass(frozen=True)
class _Message:
    """Events of one grid job, due at a time; ``again``: the delays of repetitions."""

    grid_job: str
    events: tuple[Event, ...]
    due: float
    again: tuple[float, ...] = ()
    is_repetition: bool = False

    def repetition(self, now: float) -> "_Message":
        return _Message(self.grid_job, self.events, now + self.again[0], self.again[1:], is_repetition=True)


class GramEvents:
    """Reports to GRAM by events, and repeats them."""

    def __init__(self, account: Account) -> None:
        """Nothing is read or written before the first `report`."""
        self._account = account
        self._collector = account.configuration.gram.event_collector
        self._folder = account.configuration.gram.event_folder
        self._repetitions: list[_Message] = []
        self._remembers = False
        self._refused: dict[str, float] = {}
        self._backoff = Backoff()
        self._next_days = 0.0
        self._problem = ""

    @property
    def problem(self) -> str:
        """Why events cannot be written; empty if they can."""
        if self._refused and not self._problem:
            return f"the collector refuses the events of {', '.join(self._refused)}: its log says why"
        return self._problem

    @property
    def dues(self) -> list[float]:
        """When repetitions are due, by the clock `time.monotonic`."""
        return [message.due for message in self._repetitions]

    def report(self, jobs: Iterable[GridJob]) -> set[str]:
        """Write the events of these grid jobs' states, and due repetitions.

        Returns the ids of the grid jobs whose events are all written; the others must be reported later.

        :raises DatabaseError: the job database cannot be read.
        """
        now = time.monotonic()
        if not self._backoff.allows(now):
            return set()
        self._remember(now)
        messages = [message for message in self._repetitions if message.due <= now]
        messages += [self._make_message(job, now) for job in jobs if self._refused.get(job.job_id, now) <= now]
        answers = self._write(messages, now)
        written = [message for message, answer in answers.items() if answer is Receipt.TAKEN]
        news = {message.grid_job for message in written if not message.is_repetition}
        # New events replace repetitions of older ones.
        left = (message for message in self._repetitions if message not in answers and message.grid_job not in news)
        self._repetitions = [*left, *(message.repetition(now) for message in written if message.again)]
        return news

    def _remember(self, now: float) -> None:
        """Repeat the last reports: nobody may have received them, or the last monitor died before it repeated them."""
        if self._remembers:
            return
        database = self._account.database
        for grid_job in database.grid_jobs.list_reported_since(int(time.time()) - _REMEMBERED):
            try:
                events = tuple(make_events(self._account, database.grid_jobs.get(grid_job)))
            except DamagedDocument as damage:  # its last report is no longer known
                logger.warning("%s", damage)
                continue
            self._repetitions.append(_Message(grid_job, events, now, is_repetition=True))
        self._remembers = True

    def _make_message(self, job: GridJob, now: float) -> _Message:
        events = tuple(make_events(self._account, job))
        return _Message(job.job_id, events, now, _AGAIN.get(events[-1].state, ()) if events else ())

    def _write(self, messages: Sequence[_Message], now: float) -> dict[_Message, Receipt]:
        """The result for each message, without those that will be sent again soon."""
        try:
            self._keep_days(now)
            answers = iter(self._hand_in([event for message in messages for event in message.events]))
        except OSError as error:
            self._problem = _warn_once(self._problem, f"GRAM cannot be told by events: {render_error(error)}")
            self._backoff.wait(now)
            return {}
        found = {message: [next(answers) for _ in message.events] for message in messages}
        self._refused = {job: until for job, until in self._refused.items() if until > now}
        for message in [message for message, all_of in found.items() if Receipt.REFUSED in all_of]:
            logger.warning("%s: the collector refuses its events, its log says why", message.grid_job)
            self._refused[message.grid_job] = now + _PAUSE
        if any(Receipt.LATER in all_of for all_of in found.values()):
            problem = "GRAM cannot be told by events: the collector cannot take them now"
            self._problem = _warn_once(self._problem, problem)
            self._backoff.wait(now)
        else:
            self._problem, self._backoff = "", Backoff()
        return {
            message: Receipt.REFUSED if Receipt.REFUSED in all_of else Receipt.TAKEN
            for message, all_of in found.items()
            if Receipt.LATER not in all_of
        }

    def _hand_in(self, events: Sequence[Event]) -> list[Receipt]:
        if self._collector is not None:
            return hand_in(self._collector, events)
        if self._folder is not None and events:
            write_events_now(self._folder, events)
        return [Receipt.TAKEN] * len(events)

    def _keep_days(self, now: float) -> None:
        if self._folder is not None and self._collector is None and now >= self._next_days:
            # As root we could write here, too, but a day file owned by root would stop the folder's owner.
            if self._folder.stat().st_uid == os.geteuid():
                keep_days(self._folder)
            self._next_days = now + _DAYS_INTERVAL


def _warn_once(before: str, problem: str) -> str:
    """The problem; logged if it differs from the one before."""
    if problem and problem != before:
        logger.warning("%s", problem)
    return problem


_UNTIL_KNOWN = 1.0
"""Seconds after which GRAM certainly has a new grid job's id: it drops earlier events."""
_LOOK = 1.0


class GramReports:
    """Reports changes to GRAM; what was last reported is in the grid jobs' documents."""

    def __init__(self, account: Account) -> None:
        """By events if the configuration says so; nothing is read or written before the first `report`."""
        self._account = account
        settings = account.configuration.gram
        self._events = GramEvents(account) if settings.event_collector or settings.event_folder else None
        self._first_seen: dict[str, float] = {}
        self._published: dict[str, State] = {}
        self._unaudited: set[str] = set()
        self._unreported_ends = 0
        self._problem = ""
        self._audit_problem = ""

    @property
    def are_pending(self) -> bool:
        """True while ends have not been reported, or are to be repeated."""
        return self._unreported_ends > 0 or bool(self._events and self._events.dues)

    @property
    def problem(self) -> str:
        """Why GRAM cannot be informed; empty if it can."""
        return self._problem or (self._events.problem if self._events else "") or self._audit_problem

    def due_in(self) -> float:
        """Seconds until something may be due, at most 1."""
        now = time.monotonic()
        dues = [seen + _UNTIL_KNOWN for seen in self._first_seen.values()] + (self._events.dues if self._events else [])
        return min([_LOOK, *(due - now for due in dues if due > now)])

    def report(self) -> None:
        """Report what can be reported now; the rest is reported later.

        :raises DatabaseError: the job database cannot be read or written.
        """
        unreported = self._account.database.grid_jobs.list_unreported()
        now = time.monotonic()
        self._first_seen = {job.id: self._first_seen.get(job.id, now) for job in unreported}
        self._published = {job: state for job, state in self._published.items() if job in self._first_seen}
        news = {job.id: job for job in unreported if reported_state(job.state) is not job.reported}
        jobs = list(self._read(news))
        # Events first, because somebody may be waiting for them.
        if self._events is None:
            reported = set(news)
        else:
            due = [job for job in jobs if self._is_known(news[job.job_id], now)]
            # Those that only wait for their audit record have been reported.
            reported = self._events.report([job for job in due if job.job_id not in self._unaudited]) | self._unaudited
        self._publish(jobs)
        known = self._audit([job for job in jobs if job.job_id in reported and self._is_published(job)])
        self._note(known)
        self._unreported_ends = sum(job.state.is_final for job in jobs) - sum(job.state.is_final for job in known)

    def _read(self, job_ids: Iterable[str]) -> Iterator[GridJob]:
        """These grid jobs, without those whose document cannot be read: their last report stays."""
        for job_id in job_ids:
            try:
                yield self._account.database.grid_jobs.get(job_id)
            except DamagedDocument as damage:
                logger.debug("%s", damage)

    def _is_known(self, job: Unreported, now: float) -> bool:
        """True if GRAM has the id, or may drop the event without harm."""
        if reported_state(job.state) is State.PENDING or now - self._first_seen[job.id] >= _UNTIL_KNOWN:
            return True
        # Times of submission are in whole seconds.
        return time.time() - read_time(job.submitted) >= _UNTIL_KNOWN + 1

    def _publish(self, jobs: Iterable[GridJob]) -> None:
        problem = ""
        for job in jobs:
            if self._is_published(job):
                continue
            try:
                publish_answer(self._account, job)
                self._published[job.job_id] = job.state
            except OSError as error:
                problem = f"the answers to GRAM's polls cannot be written: {render_error(error)}"
        self._problem = _warn_once(self._problem, problem)

    def _is_published(self, job: GridJob) -> bool:
        return self._published.get(job.job_id) is job.state

    def _audit(self, jobs: Iterable[GridJob]) -> list[GridJob]:
        """Write the audit records of those that have ended; the grid jobs for which nothing is left to be written.

        Called before the report is recorded, so that no audit record is lost; one that is written again is the same.
        """
        folder = self._account.configuration.gram.audit_folder
        problem, audited = "", []
        self._unaudited = set()
        for job in jobs:
            try:
                if folder is not None and job.state.is_final:
                    write_record(folder, job, self._account.database.local_jobs.first_submission(job.job_id))
                audited.append(job)
            except OSError as error:
                problem = f"audit records cannot be written: {render_error(error)}"
                self._unaudited.add(job.job_id)
        self._audit_problem = _warn_once(self._audit_problem, problem)
        return audited

    def _note(self, reported: Collection[GridJob]) -> None:
        if not reported:
            return
        database, now = self._account.database, time.time()
        with database.transaction():
            for job in reported:
                stored = database.grid_jobs.get(job.job_id)
                stored.reported, stored.reported_time = reported_state(job.state), int(now)
                database.grid_jobs.put(stored)
        for job in reported:
            logger.info("%s GRAM is told: %s", job.job_id, reported_state(job.state).word)
