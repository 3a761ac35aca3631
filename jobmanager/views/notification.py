"""``samgrid-notify``: runs the site's command when a grid job has ended or stalled, once for each event.

A worker of the monitor becomes this program. What was sent is recorded beside the job database. After a kill at the
wrong moment, a notification is sent again: a second mail harms nobody, but without one somebody might wait for ever. A
command that fails or does not end is not repeated.
"""

import argparse
import json
import os
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from batch_adapters.running.commands import run_question
from jobmanager import render_error
from jobmanager.completion.notified import Notified
from jobmanager.database.database import Choice, DamagedDocument, DatabaseError, UnknownJob
from jobmanager.database.times import render_time
from jobmanager.monitor.logs import append_line
from jobmanager.monitor.workers import BUSY, TRY_LATER
from jobmanager.requests.attributes import NOTIFY, find_values
from jobmanager.site.account import Account, open_account
from jobmanager.views.grid_jobs import find_details, read_grid_jobs, render_credential, render_json
from jobmanager.views.progress import read_progress, render_blocked, render_silent
from jobmanager.views.text import render_line
from sandbox.files import locked

STALLED = "stalled"
EXPIRING = "expiring"
_MOST_ATTEMPTS = 3
"""How often a command is started if the process that runs it is killed each time."""
_LONGEST_WORDS = 500
_PASSED = re.compile(
    r"PATH|HOME|USER|LOGNAME|SHELL|LANG|LC_\w+|TZ|TMPDIR|(?:https?|all|no)_proxy|(?:HTTPS?|ALL|NO)_PROXY|SAMGRID_\w+"
)
"""The only variables that the command gets: others may hold secrets of whoever started the monitor."""


def main(argv: list[str]) -> int:
    """Send everything that is due; `TRY_LATER` if something could not be sent."""
    parser = argparse.ArgumentParser(prog="samgrid-notify", description=__doc__)
    parser.add_argument("--state-dir", required=True)
    account = open_account(parser.parse_args(argv).state_dir)
    try:
        with locked(account.places.notification_lock) as lock:
            if lock is None:
                return BUSY
            Notifier(account, time.time()).notify()
    except (OSError, DatabaseError) as error:
        print(render_line(render_error(error)), file=sys.stderr)
        return TRY_LATER
    return 0


class Notifier:
    """Notifies people of one account's grid jobs."""

    def __init__(self, account: Account, now: float) -> None:
        """``now`` is in seconds since the epoch."""
        self._account = account
        self._database = account.database
        self._settings = account.configuration.notification
        self._now = now
        self._notified = Notified.read(account, now)

    def notify(self) -> None:
        """Run the command for each end and each stall that has not been sent.

        :raises OSError, DatabaseError: what was sent cannot be recorded, or the job database cannot be read.
        """
        notified = self._notified
        for job_id, event in notified.find_unsent(self._account, self._now):
            self._notify(job_id, event)
        open_ids = [job.id for job in self._database.grid_jobs.list_open()]
        notified.stalled_since = {
            job_id: since for job_id, since in notified.stalled_since.items() if job_id in open_ids
        }
        for job_id in open_ids:
            self._check_open(job_id)
        notified.forget(self._now)
        notified.write(self._account)

    def try_command(self, job_id: str) -> str:
        """Run the command for a grid job, whether it was sent before or not; what went wrong, if anything did."""
        status = self._find_status(job_id)
        event = status["outcome"] or STALLED
        return self._run_command(f"{job_id}/{event}", event, list(self._list_problems(job_id, status)), status)

    def _check_open(self, job_id: str) -> None:
        """Notify of a grid job that has stalled; if it goes on and stalls again, notify again."""
        status = self._find_status(job_id)
        self._check_credentials(job_id)
        why = list(self._list_problems(job_id, status)) if status else []
        if not why:
            self._notified.stalled_since.pop(job_id, None)
            self._notified.sent.pop(f"{job_id}/{STALLED}", None)
            return
        silent_for = self._account.configuration.monitor.stall_time if status.get("stalled") else 0
        since = min(self._notified.stalled_since.get(job_id, self._now), self._now - silent_for)
        self._notified.stalled_since[job_id] = since
        if self._now - since >= self._settings.patience:
            self._notify(job_id, STALLED, why)

    def _check_credentials(self, job_id: str) -> None:
        """Notify of credentials that expire soon; once they are renewed, the next expiry is notified again."""
        why = list(self._list_expiring(job_id))
        if why:
            self._notify(job_id, EXPIRING, why)
        else:
            self._notified.sent.pop(f"{job_id}/{EXPIRING}", None)

    def _list_expiring(self, job_id: str) -> Iterator[str]:
        try:
            job = self._database.grid_jobs.get(job_id)
        except (DamagedDocument, UnknownJob):
            return
        # Steps have their own credentials.
        for entry in [] if job.steps else job.credentials:
            if entry.expires is not None and entry.expires - self._now <= self._settings.expiry_warning:
                yield f"{entry.name} {render_credential(entry, self._now)}"

    def _list_problems(self, job_id: str, status: Mapping[str, Any]) -> Iterator[str]:
        """What prevents a grid job from making progress, a sentence each, as in `samgrid status`."""
        if "quarantined" in status:
            yield status["quarantined"]
            return
        if "problem" not in status:  # its document cannot be read, and it will be in quarantine
            return
        if status["problem"]:
            yield status["problem"]
        if "silent_since" in status:
            yield f"{status['batch']} has not answered since {status['silent_since']}"
        stall_time = self._account.configuration.monitor.stall_time
        progress = read_progress(self._database, job_id, status["local_jobs"], stall_time, self._now)
        yield from render_blocked(progress)
        if progress.silent:
            yield render_silent(progress)

    def _find_status(self, job_id: str) -> Mapping[str, Any]:
        """The content of ``samgrid status --format json ID``; empty if the grid job was removed meanwhile."""
        chosen = read_grid_jobs(self._account, Choice(ids=(job_id,)))
        if not chosen.rows:
            return {}
        details = find_details(self._account, job_id, self._now)
        (status,) = json.loads(render_json(self._database, chosen, details))
        return dict(status)

    def _notify(self, job_id: str, event: str, why: Sequence[str] = ()) -> None:
        key = f"{job_id}/{event}"
        attempts = self._notified.attempts.pop(key, 0)
        status = self._find_status(job_id)
        if key in self._notified.sent or not status:
            return
        if attempts < _MOST_ATTEMPTS:
            self._notified.attempts[key] = attempts + 1
            self._notified.write(self._account)
            self._log(status, event, self._run_command(key, event, why, status))
            self._notified.attempts.pop(key)
        else:
            self._log(status, event, f"the process that ran the command was killed {attempts} times")
        self._notified.sent[key] = self._now
        self._notified.write(self._account)

    def _run_command(self, key: str, event: str, why: Sequence[str], status: Mapping[str, Any]) -> str:
        """What went wrong, if anything did."""
        message = {
            "event": event,
            "key": key,
            "site": self._account.configuration.site.name,
            "notify": self._find_words(str(status["id"])),
            "why": list(why) or [status["reason"]] * bool(status["reason"]),
            "grid_job": status,
        }
        variables = {name: value for name, value in os.environ.items() if _PASSED.fullmatch(name)}
        variables["SAMGRID_STATE"] = str(self._account.places.root)
        done = run_question(self._settings.command, self._settings.time_limit, variables, json.dumps(message))
        if done.exit_code == 0:
            return ""
        words = render_line(done.stderr[-_LONGEST_WORDS:] or done.stdout[-_LONGEST_WORDS:])
        if done.exit_code is None:
            return words
        how = f"{self._settings.command[0]} ended with exit code {done.exit_code}"
        return f"{how}: {words}" if words else how

    def _find_words(self, job_id: str) -> list[str]:
        """Whom the request wants to be notified."""
        try:
            given = self._database.grid_jobs.get(job_id).request()
        except DamagedDocument:
            return []
        return [str(word) for word in find_values(given, NOTIFY)]

    def _log(self, status: Mapping[str, Any], event: str, problem: str) -> None:
        """Log the result in the grid job's log; nothing may be added while the log is being put into the tar."""
        done = f"INFO {status['id']} notified of {event}: {self._settings.command[0]}"
        line = f"WARNING {status['id']} notification of {event} failed: {problem}" if problem else done
        if status["state"] == "stage-out":
            print(line, file=sys.stderr)
            return
        try:
            append_line(self._account.places.log(str(status["id"])), f"{render_time(time.time())} {line}")
        except OSError as error:
            print(f"{line} ({error})", file=sys.stderr)
