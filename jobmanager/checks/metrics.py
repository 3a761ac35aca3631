"""``samgrid metrics``: metrics for an operator's alarms, in Prometheus' text format 0.0.4."""

import os
import pwd
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from batch_adapters.running.rate_limiter import RateLimiter
from batch_adapters.states import Cause, State
from jobmanager import read_version
from jobmanager.database.database import LAYOUT, STANDINGS, Database
from jobmanager.monitor.client import OF_ALL, OF_EVENTS, ask_running_monitor
from jobmanager.site.account import Account, limiter_file
from jobmanager.views.text import printable
from sandbox.files import check_replaceable, replace_file

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
METRICS = {
    "samgrid_info": ("gauge", "Always 1; version of the software and layout of the job database."),
    "samgrid_monitor_up": ("gauge", "1 where the account's monitor runs, 0 where none does."),
    "samgrid_problems": ("gauge", "Tasks and other parts of the monitor's work that cannot go on now."),
    "samgrid_quarantined_grid_jobs": ("gauge", "Grid jobs left alone because a document cannot be read."),
    "samgrid_grid_jobs": ("gauge", "Grid jobs that have not ended, by state."),
    "samgrid_local_jobs": ("gauge", "Local jobs of grid jobs that have not ended, by state or outcome."),
    "samgrid_local_job_ends_total": ("counter", "Ends of local jobs, each attempt, once nothing more can change them."),
    "samgrid_oldest_unsubmitted_timestamp_seconds": ("gauge", "Since when the eldest local job waits for submission."),
    "samgrid_generator_timestamp_seconds": ("gauge", "Time of the newest event applied, or the newest request."),
    "samgrid_batch_silent_since_timestamp_seconds": ("gauge", "Since when the batch system gives no answer."),
    "samgrid_batch_commands_last_minute": ("gauge", "Commands of the batch system that were run in the last minute."),
    "samgrid_database_bytes": ("gauge", "Size of the job database on the disk, with its log."),
    "samgrid_disk_free_bytes": ("gauge", "Room that the account has on the disk of a folder."),
}
"""Type and meaning by name. Times are seconds since 1970, because an age would be wrong if its writer hangs."""

_STANDINGS = [standing for standing in STANDINGS if not standing.startswith("stage-")]
"""Those of local jobs."""
_ENDS = [("succeeded", ""), *(("cancelled" if cause.is_cancellation else "failed", cause.value) for cause in Cause)]

_Sample = tuple[str, float, dict[str, str]]
"""Name, value and labels."""


def render_metrics(account: Account, database: Database, now: float) -> str:
    """All metrics of an account, without writing, starting a monitor or asking a batch system.

    :raises DatabaseError: the job database cannot be read.
    """
    whose = {"account": pwd.getpwuid(os.geteuid()).pw_name}
    lines: dict[str, list[str]] = {name: [] for name in METRICS}
    with database.moment():
        samples = [*_read_database(account, database), *_read_limiters(account, database, now)]
    for name, value, labels in [*samples, *_ask_monitor(account)]:
        lines[name].append(f"{name}{_render_labels(whose | labels)} {value!r}\n")
    return "".join(
        f"# HELP {name} {meaning}\n# TYPE {name} {kind}\n{''.join(lines[name])}"
        for name, (kind, meaning) in METRICS.items()
    )


def write_textfile(path: Path, text: str) -> None:
    """Atomically write the text for node_exporter; the umask decides who may read it.

    :raises OSError: it cannot be written, or the target is no regular file (`/dev/null`); an existing file stays.
    """
    check_replaceable(path)
    umask = os.umask(0o077)
    os.umask(umask)
    replace_file(path, text.encode(), 0o666 & ~umask, is_lasting=False)


def _render_labels(labels: dict[str, str]) -> str:
    shown = (f'{name}="{_escape(value)}"' for name, value in labels.items())
    return f"{{{','.join(shown)}}}"


def _escape(text: str) -> str:
    return printable(text).replace("\\", "\\\\").replace('"', '\\"')


def _read_database(account: Account, database: Database) -> Iterator[_Sample]:
    yield "samgrid_info", 1, {"version": read_version(), "layout": str(LAYOUT)}
    yield "samgrid_database_bytes", sum(_find_sizes(account.places.database)), {}
    for name, folder in (("state", account.places.root), ("jobs", account.places.jobs)):
        if folder.exists():
            yield "samgrid_disk_free_bytes", shutil.disk_usage(folder).free, {"folder": name}
    yield "samgrid_quarantined_grid_jobs", len(database.quarantine.list()), {}
    batches = _find_batch_systems(account, database)
    grid_jobs = Counter((job.batch, job.state.word) for job in database.grid_jobs.list_open())
    for batch in batches:
        for state in (state for state in State if not state.is_final):
            yield "samgrid_grid_jobs", grid_jobs[batch, state.word], {"batch": batch, "state": state.word}
    standings = {(batch, standing): count for batch, standing, count in database.local_jobs.count_open()}
    for batch in batches:
        for standing in _STANDINGS:
            count = standings.get((batch, standing), 0)
            yield "samgrid_local_jobs", count, {"batch": batch, "state": standing}
    # Starting with 0: Prometheus would not see an increase in a counter that first appears with 1.
    ends = {(batch, *end): 0 for batch in batches for end in _ENDS}
    ends |= {(batch, outcome, cause): count for batch, outcome, cause, count in database.usage.ends()}
    for (batch, outcome, cause), count in ends.items():
        yield "samgrid_local_job_ends_total", count, {"batch": batch, "outcome": outcome, "cause": cause}
    eldest = database.local_jobs.eldest_unsubmitted()
    if eldest is not None:
        yield "samgrid_oldest_unsubmitted_timestamp_seconds", eldest, {}
    for batch, when in database.events.generator_times().items():
        yield "samgrid_generator_timestamp_seconds", when, {"batch": batch}


def _find_batch_systems(account: Account, database: Database) -> list[str]:
    return sorted({account.configuration.site.batch_system, *database.events.generator_times()})


def _find_sizes(path: Path) -> Iterable[int]:
    for file in (path, path.with_name(f"{path.name}-wal")):
        try:
            yield file.stat().st_size
        except FileNotFoundError:
            continue


def _read_limiters(account: Account, database: Database, now: float) -> Iterator[_Sample]:
    for batch in _find_batch_systems(account, database):
        limiter = RateLimiter(limiter_file(account, batch), per_minute=0)
        yield "samgrid_batch_commands_last_minute", limiter.count_commands(now), {"batch": batch}
        outage = limiter.outage()
        if outage is not None:
            yield "samgrid_batch_silent_since_timestamp_seconds", outage.since, {"batch": batch}


def _ask_monitor(account: Account) -> Iterator[_Sample]:
    answer = ask_running_monitor(account)
    yield "samgrid_monitor_up", int(answer is not None), {}
    if answer is not None:
        kinds = {OF_ALL: "monitor", OF_EVENTS: "events"}
        counts = Counter(
            next((kinds[start] for start in kinds if line.startswith(start)), "task") for line in answer.splitlines()
        )
        for about in (*kinds.values(), "task"):
            yield "samgrid_problems", counts[about], {"about": about}
