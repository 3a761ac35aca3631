"""The monitor tells GRAM of its grid jobs: as the answers to its polls and, in SEG mode, as events."""

import logging
import time
from collections.abc import Collection, Iterable, Iterator

from batch_adapters.states import State
from jobmanager.database.database import DamagedDocument, Unreported
from jobmanager.database.grid_job import GridJob
from jobmanager.database.times import read_time
from jobmanager.gram.answers import publish_answer, told_state
from jobmanager.gram.audit import write_record
from jobmanager.gram.events import GramEvents
from jobmanager.site.account import Account

logger = logging.getLogger(__name__)

_UNTIL_KNOWN = 1.0
"""Seconds after which GRAM surely has the id of a grid job that was just accepted: it drops what it hears before."""
_LOOK = 1.0


class GramReports:
    """Tells GRAM what has changed since it was told last, which is kept in the grid jobs' documents."""

    def __init__(self, account: Account) -> None:
        """In SEG mode where the configuration says so; nothing is read or written before the first `report`."""
        self._account = account
        settings = account.configuration.gram
        self._events = GramEvents(account) if settings.event_collector or settings.event_folder else None
        self._first_seen: dict[str, float] = {}
        self._published: dict[str, State] = {}
        self._unaudited: set[str] = set()
        self._unreported_ends = 0
        self._trouble = ""
        self._audit_trouble = ""

    @property
    def are_pending(self) -> bool:
        """True while an end has not been told, or is to be told again."""
        return self._unreported_ends > 0 or bool(self._events and self._events.dues)

    @property
    def trouble(self) -> str:
        """What keeps GRAM from being told; empty where nothing does."""
        return self._trouble or (self._events.trouble if self._events else "") or self._audit_trouble

    def due_in(self) -> float:
        """Seconds until there may be something to tell, at most 1."""
        now = time.monotonic()
        dues = [seen + _UNTIL_KNOWN for seen in self._first_seen.values()] + (self._events.dues if self._events else [])
        return min([_LOOK, *(due - now for due in dues if due > now)])

    def report(self) -> None:
        """Tell what can be told now; the rest is told later, and is no reason to stop.

        :raises DatabaseError: the job database cannot be read or written.
        """
        unreported = self._account.database.grid_jobs.list_unreported()
        now = time.monotonic()
        self._first_seen = {job.id: self._first_seen.get(job.id, now) for job in unreported}
        self._published = {job: state for job, state in self._published.items() if job in self._first_seen}
        news = {job.id: job for job in unreported if told_state(job.state) is not job.reported}
        jobs = list(self._read(news))
        # First, because somebody may be waiting for it.
        if self._events is None:
            told = set(news)
        else:
            due = [job for job in jobs if self._is_known(news[job.identity], now)]
            # Those that only wait for their audit record have been told.
            told = self._events.tell([job for job in due if job.identity not in self._unaudited]) | self._unaudited
        self._publish(jobs)
        known = self._audit([job for job in jobs if job.identity in told and self._is_published(job)])
        self._note(known)
        self._unreported_ends = sum(job.state.is_final for job in jobs) - sum(job.state.is_final for job in known)

    def _read(self, identities: Iterable[str]) -> Iterator[GridJob]:
        """Grid jobs; of one whose document cannot be read GRAM hears what it heard last."""
        for identity in identities:
            try:
                yield self._account.database.grid_jobs.get(identity)
            except DamagedDocument as damage:
                logger.debug("%s", damage)

    def _is_known(self, job: Unreported, now: float) -> bool:
        """True where GRAM has got the id, or where it does no harm that it drops the event."""
        if told_state(job.state) is State.PENDING or now - self._first_seen[job.id] >= _UNTIL_KNOWN:
            return True
        # The time of a submit is in whole seconds.
        return time.time() - read_time(job.submitted) >= _UNTIL_KNOWN + 1

    def _publish(self, jobs: Iterable[GridJob]) -> None:
        trouble = ""
        for job in jobs:
            if self._is_published(job):
                continue
            try:
                publish_answer(self._account, job)
                self._published[job.identity] = job.state
            except OSError as error:
                trouble = f"the answers to GRAM's polls cannot be written: {error}"
        if trouble and trouble != self._trouble:
            logger.warning("%s", trouble)
        self._trouble = trouble

    def _is_published(self, job: GridJob) -> bool:
        return self._published.get(job.identity) is job.state

    def _audit(self, jobs: Iterable[GridJob]) -> list[GridJob]:
        """Write the audit records of those that have ended; the grid jobs for which nothing is left to be written.

        Before it is noted that the end was told: so no record is lost, and one that is written again is the same.
        """
        folder = self._account.configuration.gram.audit_folder
        trouble, audited = "", []
        self._unaudited = set()
        for job in jobs:
            try:
                if folder is not None and job.state.is_final:
                    write_record(folder, job, self._account.database.local_jobs.first_submission(job.identity))
                audited.append(job)
            except OSError as error:
                trouble = f"audit records cannot be written: {error}"
                self._unaudited.add(job.identity)
        if trouble and trouble != self._audit_trouble:
            logger.warning("%s", trouble)
        self._audit_trouble = trouble
        return audited

    def _note(self, told: Collection[GridJob]) -> None:
        if not told:
            return
        database, now = self._account.database, time.time()
        with database.transaction():
            for job in told:
                stored = database.grid_jobs.get(job.identity)
                stored.put_reported(told_state(job.state), now)
                database.grid_jobs.put(stored)
        for job in told:
            logger.info("%s GRAM is told: %s", job.identity, told_state(job.state).word)
