"""Rows of a real batch system: how fast grid jobs are registered, how soon the end of a local job is known."""

import re
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

from grid_report import Row

from tests.real.site import ACCOUNT, Site
from tests.waiting import wait_until

REGISTRATION_TARGETS = {10_000: 5.0, 1_000: 1.0}
"""Local jobs → seconds."""
END_TARGET = 100.0
"""Milliseconds."""
_HELD = "(batch_options=--hold)"
_FINAL = ("done", "failed")
_PATIENCE = 300.0
_OFTEN = 0.002


class Watch:
    """The account's job database, looked into as often as is needed, and never written."""

    def __init__(self, state: Path) -> None:
        self._address = f"file:{state / 'jobs.db'}?mode=ro"

    def wait_for(self, question: str, job: str, is_so: Callable[[tuple[object, ...]], bool]) -> float:
        """Seconds since 1970 at which the answer to a question about a grid job is right.

        :raises TimeoutError: it never is.
        """
        deadline = time.monotonic() + _PATIENCE
        with closing(sqlite3.connect(self._address, uri=True, timeout=10)) as connection:
            while time.monotonic() < deadline:
                row = connection.execute(question, (job,)).fetchone()
                if row is not None and is_so(row):
                    return time.time()
                time.sleep(_OFTEN)
        raise TimeoutError(f"not within {_PATIENCE:.0f} s, for {job}: {question}")

    def wait_for_end(self, job: str) -> None:
        """Wait until the grid job is over."""
        self.wait_for("SELECT state FROM grid_job WHERE id = ?", job, lambda row: row[0] in _FINAL)

    def ask(self, question: str, job: str) -> str:
        """The first field of the first row."""
        with closing(sqlite3.connect(self._address, uri=True, timeout=10)) as connection:
            return str(connection.execute(question, (job,)).fetchone()[0])


# --- registration


def measure_registration(site: Site, runs: int, loop: int) -> Iterator[Row]:
    """Grid jobs of held local jobs, and a loop of sbatch between them."""
    _raise_job_limit(site)
    watch = Watch(site.home / "state")
    per_job: list[float] = []
    ours: dict[int, list[float]] = {count: [] for count in REGISTRATION_TARGETS}
    arrays: dict[int, str] = {}
    for _ in range(runs):
        per_job.append(_run_loop(site, loop))
        for count in ours:
            seconds, arrays[count] = _run_registration(site, watch, count)
            ours[count].append(seconds)
    for count, target in REGISTRATION_TARGETS.items():
        yield Row(f"`samgrid submit` of {count:,}", "s", tuple(ours[count]), target, f"arrays: {arrays[count]}")
        figures = tuple(seconds * count for seconds in per_job)
        yield Row(f"loop of {count:,} `sbatch`", "s", figures, None, f"extrapolated from {loop}")


def _raise_job_limit(site: Site) -> None:
    """Let Slurm have more jobs than its 10 000: cancelled ones count for MinJobAge, and sbatch waits beyond."""
    site.run_script("halt")
    with (site.folder / "slurm.conf").open("a") as file:
        file.write("MaxJobCount=500000\n")
    site.run_script("resume")


def _run_registration(site: Site, watch: Watch, count: int) -> tuple[float, str]:
    """Seconds from the start of ``samgrid submit`` until all are registered; in how many arrays. Cancels them."""
    # What is still being cancelled keeps Slurm busy.
    wait_until(lambda: not site.run("squeue", "--me", "--noheader").stdout, "the queue is empty")
    begin = time.time()
    job = site.submit("true", count, _HELD)
    question = "SELECT count(*) FROM local_job WHERE grid_job = ? AND state <> 'unsubmitted'"
    seconds = watch.wait_for(question, job, lambda row: row[0] == count) - begin
    arrays = watch.ask("SELECT count(DISTINCT token) FROM local_job WHERE grid_job = ?", job)
    site.samgrid("cancel", job)
    watch.wait_for_end(job)
    return seconds, arrays


def _run_loop(site: Site, loop: int) -> float:
    """Seconds per sbatch."""
    submit = "sbatch --parsable --hold --output=/dev/null --wrap=true >>sbatch.out || exit 1"
    begin = time.monotonic()
    done = site.run("/bin/sh", "-c", f"i=0; while [ $i -lt {loop} ]; do {submit}; i=$((i + 1)); done")
    seconds = (time.monotonic() - begin) / loop
    if done.returncode != 0:
        raise OSError(f"sbatch: {done.stderr.strip()[-300:]}")
    site.run("scancel", "--user", ACCOUNT)
    return seconds


# --- from the end of a local job to the database


@dataclass(frozen=True)
class Ending:
    """When one local job ended, in seconds since 1970, by three clocks that are one machine's."""

    by_job: float
    """What it wrote itself, the last thing it did."""
    by_log: float
    """The time stamp of the line in the batch system's log that tells it."""
    in_database: float


def measure_ends(site: Site, count: int) -> Iterator[Row]:
    """Local jobs one after another, each by itself in a grid job."""
    endings = [_run_to_end(site, number) for number in range(count)]
    whole = tuple((ending.in_database - ending.by_job) * 1e3 for ending in endings)
    theirs = median((ending.by_log - ending.by_job) * 1e3 for ending in endings)
    ours = tuple((ending.in_database - ending.by_log) * 1e3 for ending in endings)
    yield Row(
        f"{site.name}: to the database", "ms", whole, END_TARGET, f"{theirs:.0f} ms of it to the log's time stamp"
    )
    yield Row(f"{site.name}: from the log's time stamp on", "ms", ours)


def _run_to_end(site: Site, number: int) -> Ending:
    mark = site.home / f"ended-{number}"
    job = site.submit(f"date +%s.%N >{mark}", 1)
    watch = Watch(site.home / "state")
    in_database = watch.wait_for("SELECT state FROM local_job WHERE grid_job = ?", job, lambda row: row[0] in _FINAL)
    state = watch.ask("SELECT state FROM local_job WHERE grid_job = ?", job)
    if state != "done":
        raise ValueError(f"{site.name}: the local job of {job} is {state}")
    by_log = read_log_time(site, watch.ask("SELECT local_id FROM local_job WHERE grid_job = ?", job))
    watch.wait_for_end(job)
    return Ending(float(mark.read_text()), by_log, in_database)


def read_log_time(site: Site, local_id: str) -> float:
    """When the batch system's log says that a local job ended, in seconds since 1970.

    :raises ValueError: it does not say it.
    """
    log = {"slurm": "log/slurmctld.log", "condor": "local/log/EventLog"}[site.name]
    number = re.escape(local_id.partition(".")[0])
    pattern = {
        "slurm": rf"(?m)^\[(\S+)\] _job_complete: JobId={number} ",
        "condor": rf"(?m)^005 \(0*{number}\.\d+\.\d+\) (\S+ [\d:.]+)Z",
    }[site.name]
    found = re.search(pattern, (site.folder / log).read_text(errors="replace"))
    if found is None:
        raise ValueError(f"{log} does not tell the end of {local_id}")
    when = datetime.fromisoformat(found[1])
    return (when.replace(tzinfo=UTC) if site.name == "condor" else when).timestamp()
