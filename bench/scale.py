"""The benchmark of growth: what each step costs as the job database grows, in CPU time, beside the size before.

A state folder is grown through the product's own code: grid jobs of a thousand local jobs that have ended, one of a
thousand that run, and at each size one large grid job (as large as the rest, up to 100 000 local jobs) that is made,
told of, and collected. Prints a table and writes
it to bench/SCALE.md. What stands in for the batch system answers at once: only our own work is measured.
"""

import argparse
import os
import platform
import resource
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from adapters import PlannedJob
from batch_adapters.adapter import LocalStatus
from batch_adapters.condor import CONDOR
from batch_adapters.fork.adapter import FORK
from batch_adapters.running.batch_system import BatchSystem
from batch_adapters.states import Event, State
from jobmanager.completion.collection import collect_grid_job
from jobmanager.database.grid_job import GridJob
from jobmanager.database.local_job import Evidence, LocalJob
from jobmanager.monitor.monitor import Monitor
from jobmanager.site.account import Account, open_account
from jobmanager.states.changes import put_local_jobs
from jobmanager.states.driver_status import status_file
from jobmanager.states.reconciliation import reconcile_batch_system
from jobmanager.states.registration import apply_events, create_local_jobs, register_local_jobs
from jobmanager.submission.submit import write_intent
from jobmanager.views.grid_jobs import render_table
from jobmanager.views.query.child import Question, find_by_columns
from jobmanager.views.usage import sum_usage
from jobmanager.web.pages.overview import read_overview_page
from jobmanager.web.reading import open_read_only

_BENCH = Path(__file__).parent
SIZES = (10_000, 100_000, 300_000, 1_000_000)
_PART = 1_000
"""Local jobs of an ordinary grid job, and how many run."""
_BATCH = 1_000
"""Events that are applied at once."""
_BATCHES = 10
_RUNS = 5
_LOOKS = 60
"""Before the monitor has found out what is new."""
_DAY = 86_400
_QUESTION = 'count(//local-job[@state="active"])'
_LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"


@dataclass(frozen=True)
class Figure:
    """What one step took with so many local jobs in the database."""

    step: str
    unit: str
    value: float
    goal: str = ""


class Ground:
    """A state folder that grows."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self.account = open_account(str(state))
        self.ended = 0
        self._made = 0

    def job_id(self) -> str:
        """The id of another grid job."""
        self._made += 1
        number, letters = self._made, ""
        for _ in range(7):
            number, digit = divmod(number, len(_LETTERS))
            letters = _LETTERS[digit] + letters
        return f"s{letters}"

    def add_grid_job(self, batch: str, local_jobs: int, submitted: float) -> GridJob:
        """A grid job whose local jobs are not made yet."""
        job = GridJob.new(self.job_id(), "command", f"user{self._made % 20}", batch, submitted)
        job.put_request([("samgrid_type", ("command",)), ("executable", ("/bin/true",))], Path("/"))
        job.put_slices(local_jobs, None, 1)
        with self.account.database.transaction():
            self.account.database.grid_jobs.put(job)
        self.account.places.results(job.job_id).mkdir(parents=True)
        return job

    def grow(self, size: int) -> None:
        """Add grid jobs that have ended, until there are so many local jobs; a thousand ended in the last hour."""
        while self.ended < size:
            when = time.time() - (100 if self.ended == 0 else _DAY + self._made * 600)
            job = self.add_grid_job("fork", _PART, when - 100)
            with self.account.database.transaction():
                put_local_jobs(self.account.database, job.job_id, (_make_ended(job, n, when) for n in _numbers(_PART)))
                job.end(State.DONE, when)
                self.account.database.grid_jobs.put(job)
            self.ended += _PART

    def add_running(self, batch: str, count: int) -> str:
        """A grid job whose local jobs all run, with the status files that their drivers have begun."""
        now = time.time()
        job = self.add_grid_job(batch, count, now)
        with self.account.database.transaction():
            put_local_jobs(self.account.database, job.job_id, (_make_running(job, n, now) for n in _numbers(count)))
        for number in _numbers(count):
            file = status_file(self.account, job.job_id, _local_id(job, number))
            file.write_text(f"start {now:.0f}\nhost node17\npid {number}\nindex {number}\n")
        return job.job_id

    def delete(self, job_id: str) -> None:
        """Forget a grid job."""
        with self.account.database.transaction():
            self.account.database.grid_jobs.delete(job_id)


def _numbers(count: int) -> range:
    return range(1, count + 1)


def _local_id(job: GridJob, number: int) -> str:
    return f"{job.job_id}-1.{number}"


def _make_running(job: GridJob, number: int, when: float) -> LocalJob:
    local_job = LocalJob.new(number, job.batch, None)
    local_job.intend(f"{job.job_id}-1", when)
    local_id = _local_id(job, number)
    array = CONDOR.naming.array_of(local_id)
    local_job.register(local_id, array if array != local_id else "", when)
    for second, state in enumerate((State.PENDING, State.ACTIVE)):
        local_job.put_evidence(Evidence("log", state.word, int(when) + second, state.word, state))
    local_job.state = State.ACTIVE
    local_job.started_time = int(when)
    return local_job


def _make_ended(job: GridJob, number: int, when: float) -> LocalJob:
    local_job = _make_running(job, number, when - 50)
    local_job.put_evidence(Evidence("log", "done 0", int(when), "done", State.DONE))
    local_job.state, local_job.exit_code = State.DONE, 0
    local_job.driver, local_job.host, local_job.cpu_seconds = "ended", "node17", 12.3
    local_job.ended_time = int(when)
    return local_job


# the steps


def measure_all(ground: Ground, largest: int) -> Iterator[Figure]:
    """Every step once, on a state folder that is left as it was but for what has come to its end."""
    yield from measure_registration(ground)
    running = ground.add_running("condor", _PART)
    yield Figure("reconcile pass, 1 000 open", "ms", measure_reconciliation(ground, running), "≤ 20")
    yield Figure("tick of the monitor, 1 000 running", "ms", measure_tick(ground), "")
    ground.delete(running)
    yield from measure_events(ground, largest)
    yield from measure_views(ground)


def measure_registration(ground: Ground) -> Iterator[Figure]:
    """A grid job of a thousand local jobs from nothing to registered, without a batch system."""
    database = ground.account.database
    job = ground.add_grid_job("fork", _PART, time.time())

    def register() -> None:
        create_local_jobs(database, job, (PlannedJob(number, _PART) for number in _numbers(_PART)))
        write_intent(database, job.job_id, _PART)
        ids = {number: _local_id(job, number) for number in _numbers(_PART)}
        register_local_jobs(database, job.job_id, ids, FORK.naming)

    yield Figure("create, intend, register: each local job", "µs", cpu(register, 1) / _PART * 1e6)
    ground.delete(job.job_id)


def measure_reconciliation(ground: Ground, running: str) -> float:
    """Milliseconds of a pass over a batch system that shows all local jobs as they are."""
    keys = ground.account.database.local_jobs.list_open("condor")
    answer = [LocalStatus(key.local_id, "R", key.state, token=key.token) for key in keys]
    assert {key.grid_job for key in keys} == {running}
    with mock.patch.object(BatchSystem, "query", return_value=answer):
        return cpu(lambda: reconcile_batch_system(ground.account, "condor")) * 1e3


def measure_tick(ground: Ground, seconds: int = 3) -> float:
    """Milliseconds of CPU that a monitor takes a second, over some seconds in which nothing happens.

    Between two looks as much time passes for it as would in truth, and nobody waits for that.
    """
    begin = time.monotonic() + _LOOKS
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("")
        monitor = Monitor(ground.account, listener)
        nobody: Any = SimpleNamespace(
            start=lambda *_: None, supervise=lambda: None, forget_all_but=lambda _: None, are_busy=False
        )
        monitor._generators = monitor._workers = monitor._readers = nobody
        with mock.patch("time.monotonic", return_value=begin) as clock:
            took = 0.0
            for second in range(-_LOOKS, seconds):
                clock.return_value = begin + second
                took += cpu(monitor._work, 1) * (second >= 0)
    return took / seconds * 1e3


def measure_events(ground: Ground, size: int) -> Iterator[Figure]:
    """Events of one large grid job, alone and in batches; then its end."""
    account = ground.account
    job = ground.add_grid_job("fork", size, time.time() - 1000)
    create_local_jobs(account.database, job, (PlannedJob(number, size) for number in _numbers(size)))
    write_intent(account.database, job.job_id, size)
    ids = {number: _local_id(job, number) for number in _numbers(size)}
    register_local_jobs(account.database, job.job_id, ids, FORK.naming)
    when = int(time.time()) - 500

    def events(state: State, first: int, count: int) -> list[Event]:
        return [Event(when + state, ids[number], state, 0) for number in range(first, first + count)]

    # The first two or three have SQLite prepare each statement, which a monitor does once.
    single = (events(State.ACTIVE, number, 1) for number in range(1, 10))
    alone = [partial(apply_events, account.database, "fork", event) for event in single]
    yield Figure("one event of the large grid job", "ms", min(cpu(apply, 1) for apply in alone) * 1e3, "≤ 0.5")
    took, told = 0.0, 0
    for number in range(_BATCHES):
        first = 10 + number * _BATCH // 2
        if first + _BATCH // 2 > size:
            break
        batch = [*events(State.ACTIVE, first, _BATCH // 2), *events(State.DONE, first, _BATCH // 2)]
        took += cpu(partial(apply_events, account.database, "fork", batch), 1)
        told += len(batch)
    yield Figure("events applied, by the thousand, a CPU second", "1/s", told / took, "20 000")
    _end(account, job)
    yield from measure_collection(ground, job)


def _end(account: Account, job: GridJob) -> None:
    when = time.time() - 2 * _DAY
    for first in range(1, job.slice_count + 1, 10_000):
        numbers = range(first, min(first + 10_000, job.slice_count + 1))
        with account.database.transaction():
            put_local_jobs(account.database, job.job_id, (_make_ended(job, number, when) for number in numbers))


def measure_collection(ground: Ground, job: GridJob) -> Iterator[Figure]:
    """The end of a grid job in a process of its own, no local job of which has brought anything back."""
    argv = [sys.executable, __file__, "--collect", str(ground.state), job.job_id]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    told = subprocess.run(argv, env=environment, stdout=subprocess.PIPE, check=True, text=True).stdout.split()
    yield Figure("collect the large grid job", "s", float(told[0]))
    yield Figure("collect the large grid job: peak memory", "MB", float(told[1]), "≤ 100")
    ground.ended += job.slice_count


def collect(state: str, job_id: str) -> None:
    """Collect a grid job and print CPU seconds and peak memory in MB."""
    account = open_account(state)
    took = cpu(lambda: collect_grid_job(account, job_id), 1)
    assert account.database.grid_jobs.get(job_id).state is State.DONE
    peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:"))
    print(took, int(peak.split()[1]) / 1000)


def measure_views(ground: Ground) -> Iterator[Figure]:
    """What people ask for."""
    database, now = ground.account.database, time.time()
    yield Figure("`usage --since 1h`", "ms", cpu(lambda: sum_usage(database, ["user"], now - 3600, now)) * 1e3, "≤ 200")
    question = Question(str(ground.account.places.database), None, _QUESTION, "XPath", 0, 0, 10**6)
    yield Figure(f"`{_QUESTION}`", "ms", cpu(lambda: find_by_columns(question, [])) * 1e3, "≤ 1000")
    yield Figure("`status`", "ms", cpu(lambda: render_table(database.grid_jobs.overview())) * 1e3, "≤ 200")
    with open_read_only(ground.account) as reader:
        statements: list[str] = []
        reader._store._connection.set_trace_callback(statements.append)
        took = cpu(lambda: read_overview_page(reader, {}, time.time()))
        yield Figure("page of 50 grid jobs", "ms", took * 1e3)
        yield Figure("page of 50 grid jobs: SQL statements", "", len(statements) / _RUNS, "≤ 5")
        yield Figure("mark of that page", "ms", cpu(reader.mark_of_all) * 1e3)


def cpu(work: Callable[[], object], runs: int = _RUNS) -> float:
    """CPU seconds of this process for some work, the least of some runs."""
    figures = []
    for _ in range(runs):
        before = resource.getrusage(resource.RUSAGE_SELF)
        work()
        after = resource.getrusage(resource.RUSAGE_SELF)
        figures.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(figures)


# the table


def render(columns: Sequence[tuple[int, Sequence[Figure]]], note: str) -> str:
    """A row per step: its cost at each size, and how many times that of the size before."""
    heads = [f"{size:,}" for size, _ in columns]
    lines = [f"| step | unit | {' | '.join(heads)} | goal |", f"|---|---|{'---:|' * len(columns)}---|"]
    names = dict.fromkeys(figure.step for _, figures in columns for figure in figures)
    for name in names:
        cells, before, unit, goal = [], 0.0, "", ""
        for _, figures in columns:
            found = next((figure for figure in figures if figure.step == name), None)
            if found is None:
                cells.append("")
                continue
            ratio = f" (× {found.value / before:.2g})" if before else ""
            cells.append(f"{found.value:,.4g}{ratio}" if found.value < 1000 else f"{found.value:,.0f}{ratio}")
            before, unit, goal = found.value, found.unit, found.goal
        lines.append(f"| {name} | {unit} | {' | '.join(cells)} | {goal} |")
    words = (__doc__ or "").split("\n\n")[0]
    return f"# Growth\n\n{words}\n\n" + "\n".join(lines) + f"\n\n{note}\n"


@contextmanager
def _folder(named: Path | None) -> Iterator[Path]:
    if named is not None:
        named.mkdir(parents=True)
        yield named
        return
    with tempfile.TemporaryDirectory(prefix="samgrid-scale-") as name:
        yield Path(name)


def make_arguments() -> argparse.ArgumentParser:
    """The command line's options."""
    parser = argparse.ArgumentParser(description=__doc__)
    sizes = ",".join(map(str, SIZES))
    parser.add_argument("--sizes", default=sizes, help=f"local jobs, each size in thousands (default: {sizes})")
    parser.add_argument(
        "--largest", type=int, default=100_000, help="most local jobs of one grid job (default: 100000)"
    )
    parser.add_argument("--running", type=int, default=100, help="grid jobs of 1000 that run at last (default: 100)")
    parser.add_argument("--folder", type=Path, help="keep the state folder there")
    parser.add_argument("--no-write", action="store_true", help="only print")
    parser.add_argument("--collect", nargs=2, metavar=("STATE", "ID"), help=argparse.SUPPRESS)
    return parser


def main() -> int:
    """Grow, measure, print, write."""
    options = make_arguments().parse_args()
    for name in [name for name in os.environ if name.startswith("SAMGRID_")]:
        del os.environ[name]
    if options.collect:
        collect(*options.collect)
        return 0
    columns: list[tuple[int, list[Figure]]] = []
    with _folder(options.folder) as folder:
        ground = Ground(folder / "state")
        for size in map(int, options.sizes.split(",")):
            ground.grow(size)
            columns.append((size, list(measure_all(ground, min(size, options.largest)))))
            print(render(columns, ""), file=sys.stderr, flush=True)
        for _ in range(options.running):
            ground.add_running("condor", _PART)
        what = f"tick of the monitor, {options.running} × 1 000 running"
        columns[-1][1].append(Figure(what, "ms", measure_tick(ground), "≤ 20"))
    date = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    load = " ".join(f"{figure:.1f}" for figure in os.getloadavg())
    report = render(columns, f"{date}, Python {platform.python_version()}, {os.cpu_count()} cores, load {load}.")
    print(report)
    if not options.no_write:
        (_BENCH / "SCALE.md").write_text(report)
    return 0


if __name__ == "__main__":
    sys.exit(main())
