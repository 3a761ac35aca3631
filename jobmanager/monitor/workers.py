"""The monitor's workers: which task of which grid job runs now, and what keeps one from going on."""

import logging
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Protocol

from batch_adapters.running.backoff import Backoff
from jobmanager.database.database import DatabaseError, UnknownJob
from jobmanager.requests.time_limit import has_stack
from jobmanager.site.account import Account
from jobmanager.site.places import FIRST_QUESTIONS, QUESTIONS
from jobmanager.states.aggregation import Task

logger = logging.getLogger(__name__)

TRY_LATER = 75
"""Exit status of a worker whose task could not be done now (EX_TEMPFAIL of sysexits.h); its last words say why."""
BUSY = 76
"""Exit status of a worker that found another, started by a monitor that has died, still at it."""
HUNG = 77
"""Exit status of a worker whose handler did not come to an end; its last words say where that was."""
POSTPONED = 78
"""Exit status of a worker whom the batch system answered: not now (a closed queue, a quota); its last words say why."""

BEGINNING = (Task.SUBMIT, Task.ADVANCE)
"""Tasks that do not go on once the grid job is cancelled: they ask handlers, which may hang."""

HANDLER_PATIENCE = 5.0
"""Seconds for which a worker that waits for a handler keeps others from being started."""
MOST_ASIDE = 16
"""Workers that wait for handlers beside those that may run at once."""


class Postponement(Backoff):
    """When a batch system that said "not now" is asked for the same again."""

    SHORTEST = 4.0
    LONGEST = 60.0


class Worker(Protocol):
    """A process that does one task."""

    @property
    def last_words(self) -> str:
        """The end of what it wrote to stderr."""

    def exit_status(self) -> int | None:
        """None while it runs; then its exit status, once."""

    def kill(self) -> None:
        """End it now, with what it has started."""


@dataclass
class _Subject:
    """A grid job or a batch system, and its task over all attempts."""

    name: str
    task: Task
    worker: Worker | None = None
    trouble: str = ""
    said: list[str] = field(default_factory=list)
    """The last words of the worker before."""
    backoff: Backoff = field(default_factory=Backoff)
    begun: float = 0.0
    """When its worker was started."""
    hangs: int = 0
    """How often its handler did not come to an end."""
    not_before: float = 0.0
    """When such a handler may be asked again."""
    postponement: Postponement = field(default_factory=Postponement)


class Workers:
    """Starts workers, a limited number at a time, and each task again after a while for as long as it is needed."""

    def __init__(self, account: Account, start: Callable[[Task, str], Worker]) -> None:
        """``start`` starts a worker for a task of a subject."""
        self._account = account
        self._start = start
        self._subjects: dict[str, _Subject] = {}

    @property
    def are_busy(self) -> bool:
        """True while a worker runs."""
        return any(subject.worker for subject in self._subjects.values())

    def start(self, task: Task, name: str, cancelled: bool = False) -> None:
        """Start a worker for this task, unless one runs for that subject, or it is too early, or there are enough.

        :param cancelled: whether the subject is a grid job that was cancelled.
        """
        subject = self._subjects.get(name)
        if subject is not None and subject.worker is not None and cancelled and self._may_be_ended(subject):
            logger.info("%s %s is ended: the grid job is cancelled", name, subject.task)
            subject.worker.kill()
            subject.worker = None
        if subject is None or (subject.task is not task and subject.worker is None):
            subject = self._subjects[name] = _Subject(name, task)
        now = time.monotonic()
        is_early = now < subject.not_before or not (subject.backoff.allows(now) and subject.postponement.allows(now))
        if subject.worker or is_early or self._are_enough(task):
            return
        logger.info("%s %s starts", name, task)
        subject.worker = self._start(task, name)
        subject.begun = now
        # Whatever comes of it: if the same task is needed again, not at once.
        subject.backoff.wait(time.monotonic())

    def _may_be_ended(self, subject: _Subject) -> bool:
        """True for a worker that begins something, and has no array on its way, which would be in doubt for long.

        A grid job that is cancelled gets no new intent. So a worker that has none open submits nothing any more,
        however long it takes, and one that has ends with the answers to its submit commands, or their time limits.
        While it asks a handler, which may hang, none of these runs, whatever earlier workers have left in doubt.
        """
        if subject.task not in BEGINNING:
            return False
        is_in_doubt = self._account.database.local_jobs.is_in_doubt(subject.name)
        return not is_in_doubt or self._account.places.is_handler_asked(subject.name, FIRST_QUESTIONS)

    def _are_enough(self, task: Task) -> bool:
        """A look at a batch system is not to wait until no grid job has anything to do, nor a cancel for handlers.

        Whoever waits for a handler for long gives its place to others: no grid job waits for another's handler.
        """
        if task is Task.RECONCILE:
            return False
        running = [other for other in self._subjects.values() if other.worker and other.task is not Task.RECONCILE]
        aside = min(sum(map(self._is_aside, running)), MOST_ASIDE)
        most = self._account.configuration.monitor.workers + (task is Task.CANCEL)
        return len(running) - aside >= most

    def _is_aside(self, subject: _Subject) -> bool:
        waits = time.monotonic() - subject.begun >= HANDLER_PATIENCE
        return waits and self._account.places.is_handler_asked(subject.name)

    def _note_hang(self, subject: _Subject, status: int) -> None:
        """A handler that did not come to an end is asked again after as long as it took, and longer each time."""
        asked = self._account.places.handler_asked
        if status != HUNG and not (status and any(has_stack(asked(subject.name, what)) for what in QUESTIONS)):
            return
        now = time.monotonic()
        subject.hangs += 1
        subject.not_before = now + subject.hangs * (now - subject.begun)

    def reap(self) -> None:
        """Note what has become of the workers that ended; a trouble that cannot be written down is kept in memory."""
        for subject in self._subjects.values():
            status = subject.worker.exit_status() if subject.worker else None
            if subject.worker is None or status is None:
                continue
            lines = subject.worker.last_words.splitlines() or [f"the worker ended with status {status}"]
            subject.worker = None
            subject.trouble = lines[-1] if status not in (0, BUSY) else ""
            log = logger.warning if status else logger.info
            # A traceback is said once, however often it comes.
            is_known = subject.said == lines
            subject.said = lines
            words = (lines[-1] if is_known else " | ".join(lines)) if status else ""
            log("%s %s ended with status %d %s", subject.name, subject.task, status, words)
            if status:
                # It may have taken longer than the pause: it would fill the disk again at once.
                subject.backoff.begin_anew(time.monotonic())
            if subject.task is not Task.RECONCILE:
                self._note_hang(subject, status)
                if status == POSTPONED:
                    subject.postponement.wait(time.monotonic())
                else:
                    subject.postponement = Postponement()
            if subject.task in (Task.RECONCILE, Task.REPORTS):
                # Their interval is the monitor's to keep; only where that failed it is left alone longer.
                subject.backoff = subject.backoff if status else Backoff()
            else:
                self._write_trouble(subject)

    def forget_all_but(self, names: Collection[str]) -> None:
        """Forget what is known of grid jobs that have ended."""
        self._subjects = {name: known for name, known in self._subjects.items() if known.worker or name in names}

    def troubles(self) -> str:
        """A line per subject that cannot go on now."""
        return "".join(
            f"{subject.name}: {subject.task}: {subject.trouble}\n"
            for subject in self._subjects.values()
            if subject.trouble
        )

    def _write_trouble(self, subject: _Subject) -> None:
        database = self._account.database
        try:
            with database.transaction():
                job = database.grid_jobs.get(subject.name)
                if job.state.is_final:
                    return  # it was killed after it had done all
                had_trouble = job.clear_trouble() if not subject.trouble else True
                if subject.trouble:
                    job.put_trouble(f"{subject.task}: {subject.trouble}", time.time())
                if had_trouble:
                    database.grid_jobs.put(job)
        except UnknownJob:
            logger.info("%s has been removed", subject.name)
        except DatabaseError as error:
            logger.warning("%s trouble not written down: %s", subject.name, error)
