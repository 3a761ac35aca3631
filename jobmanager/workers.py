"""The monitor's workers: which step of which grid job runs now, and what keeps one from going on."""

import logging
import selectors
import time
from collections.abc import Collection
from dataclasses import dataclass, field

from jobmanager.account import Account
from jobmanager.child import Backoff, Child
from jobmanager.database import DatabaseError

logger = logging.getLogger(__name__)

TRY_LATER = 75
"""Exit status of a worker whose step could not be done now (EX_TEMPFAIL of sysexits.h); its last words say why."""
BUSY = 76
"""Exit status of a worker that found another, started by a monitor that has died, still at it."""


@dataclass
class _Task:
    """One step of one grid job (or of one batch system), over all its attempts."""

    step: str
    subject: str
    child: Child | None = None
    trouble: str = ""
    backoff: Backoff = field(default_factory=Backoff)


class Workers:
    """Starts workers, a limited number at a time, and each step again after a while for as long as it is needed."""

    def __init__(self, account: Account, selector: selectors.BaseSelector) -> None:
        self._account = account
        self._selector = selector
        self._tasks: dict[str, _Task] = {}

    @property
    def are_busy(self) -> bool:
        """True while a worker runs."""
        return any(task.child for task in self._tasks.values())

    def start(self, step: str, subject: str) -> None:
        """Start a worker for this step, unless one runs for that subject, or it is too early, or there are enough."""
        task = self._tasks.get(subject)
        if task is not None and task.child is not None and (task.step, step) == ("submit", "cancel"):
            # It may hang in a handler, or go on submitting for a long time; any step can be killed and begun again.
            logger.info("%s submit is ended: the grid job is cancelled", subject)
            task.child.kill()
            task.child = None
        if task is None or (task.step != step and task.child is None):
            task = self._tasks[subject] = _Task(step, subject)
        running = sum(1 for other in self._tasks.values() if other.child and other.step != "reconcile")
        # A look at a batch system is not to wait until no grid job has anything to do.
        if task.child or (step != "reconcile" and running >= self._account.configuration.monitor.workers):
            return
        if not task.backoff.allows(time.monotonic()):
            return
        logger.info("%s %s starts", subject, step)
        command = self._account.program("samgrid-worker", step, subject)
        task.child = Child(self._selector, command, lambda block: None)
        # Whatever comes of it: if the same step is needed again, not at once.
        task.backoff.wait(time.monotonic())

    def reap(self) -> None:
        """Note what has become of the workers that ended; a trouble that cannot be written down is kept in memory."""
        for task in self._tasks.values():
            status = task.child.exit_status() if task.child else None
            if task.child is None or status is None:
                continue
            lines = task.child.last_words.splitlines() or [f"the worker ended with status {status}"]
            task.child = None
            task.trouble = lines[-1] if status not in (0, BUSY) else ""
            log = logger.warning if status else logger.info
            log("%s %s ended with status %d %s", task.subject, task.step, status, " | ".join(lines) if status else "")
            if task.step == "reconcile":
                # Its interval is the monitor's to keep; only a batch system that does not answer is left alone longer.
                task.backoff = task.backoff if status else Backoff()
            else:
                self._write_trouble(task)

    def forget_all_but(self, subjects: Collection[str]) -> None:
        """Forget what is known of grid jobs that have ended."""
        self._tasks = {name: task for name, task in self._tasks.items() if task.child or name in subjects}

    def troubles(self) -> str:
        """A line per subject that cannot go on now."""
        return "".join(
            f"{task.subject}: {task.step}: {task.trouble}\n" for task in self._tasks.values() if task.trouble
        )

    def _write_trouble(self, task: _Task) -> None:
        database = self._account.database
        try:
            with database.transaction():
                job = database.grid_job(task.subject)
                had_trouble = job.clear_trouble() if not task.trouble else True
                if task.trouble:
                    job.put_trouble(f"{task.step}: {task.trouble}", time.time())
                if had_trouble:
                    database.put_grid_job(job)
        except DatabaseError as error:
            logger.warning("%s trouble not written down: %s", task.subject, error)
