"""The benchmark of local jobs: what one local job of `true` costs on fork, all in, beside those that do less.

CPU time of every process that works for it, from `samgrid submit` until the monitor has nothing left to do: what many
cost more than one, divided by how many more there are. So the start of interpreters is not in it. Prints a table and
writes it to bench/LOCAL_JOBS.md.
"""

import argparse
import ctypes
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

_BENCH = Path(__file__).resolve().parent
_LAUNCH = _BENCH.parent / "batch_adapters" / "launch.py"
_PR_SET_CHILD_SUBREAPER = 36
_SETTINGS = {
    "SAMGRID_MONITOR_IDLE_TIME": "1",
    "SAMGRID_FORK_SLOTS": "2",
    # No look at the queue falls into a short run and not into a long one.
    "SAMGRID_MONITOR_RECONCILE_INTERVAL": "600",
}
_GOAL = 8.0
_LIMIT = """\
What is left is starting processes. Of a driver's 5.9 ms, measured apart on 2026-11-27 with an xargs of 0.77: six execs
with the program's own 3.2, four forks of the shell 0.6, reading its own script 0.3, reading /proc and the table, a byte
at a time as dash does, 0.5. No shell starts a program in the background that may catch INT and QUIT without `env`
(0.5), and none has a timer without `sleep` (0.5). The queue takes 0.7 in all, the monitor with the rest 0.5.
"""


@dataclass
class Cost:
    """CPU seconds, by the name of the process that was ended last; execs and fsyncs where they were traced."""

    seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    calls: Counter[str] = field(default_factory=Counter)


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=400, help="local jobs of the large grid job (default: 400)")
    parser.add_argument("--runs", type=int, default=3, help="runs of each, of which the median counts (default: 3)")
    parser.add_argument("--no-write", action="store_true", help="only print")
    options = parser.parse_args()
    # Every process that works for us becomes our child when its parent ends, and is counted when we have reaped it.
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    report = render_report(list(measure(options.jobs, options.runs)), options.jobs)
    print(report)
    if not options.no_write:
        (_BENCH / "LOCAL_JOBS.md").write_text(report)
    return 0


def measure(jobs: int, runs: int) -> Iterator[tuple[str, str, str, str]]:
    """Rows: what, CPU ms, execs, fsyncs of one local job."""
    ours: list[dict[str, float]] = []
    drivers: list[float] = []
    peers: dict[str, list[float]] = {}
    for _ in range(runs):
        with _ground() as (folder, run):
            few, many = run(1), run(jobs)
            ours.append({name: (many.seconds[name] - few.seconds[name]) / (jobs - 1) for name in many.seconds})
            drivers.append(_run_drivers(folder, jobs))
        for name, argv in _peers().items():
            figures = [_run_peer(argv, count) for count in (1, jobs)]
            peers.setdefault(name, []).append((figures[1] - figures[0]) / (jobs - 1))
    execs, fsyncs = _count_calls(jobs) if shutil.which("strace") else ("", "")
    yield "a local job on fork, all in", _ms([sum(one.values()) for one in ours]), execs, fsyncs
    yield "of it the driver with its program", _ms(drivers), "", ""
    for name in sorted({name for one in ours for name in one}):
        figure = _ms([one.get(name, 0.0) for one in ours])
        if abs(float(figure)) >= 0.05:
            yield f"of it under `{name}`", figure, "", ""
    for name, figures in peers.items():
        yield name, _ms(figures), "0", ""


def _count_calls(jobs: int) -> tuple[str, str]:
    """Execs beside the program, and fsyncs, of one local job."""
    with _ground(traced=True) as (_, run):
        few, many = run(1), run(jobs)
    calls = {name: (many.calls[name] - few.calls[name]) / (jobs - 1) for name in ("execve", "fsync", "fdatasync")}
    return f"{calls['execve'] - 1:.1f}", f"{calls['fsync'] + calls['fdatasync']:.2f}"


@contextmanager
def _ground(traced: bool = False) -> Iterator[tuple[Path, Callable[[int], Cost]]]:
    with tempfile.TemporaryDirectory(prefix="samgrid-bench-", dir=os.environ.get("TMPDIR", "/var/tmp")) as name:
        folder = Path(name)
        (folder / "scratch").mkdir()
        (folder / "samgrid.toml").touch()

        def run(count: int) -> Cost:
            return _run_grid_job(folder, count, traced)

        yield folder, run


def _run_grid_job(folder: Path, count: int, traced: bool) -> Cost:
    """All that it costs until nobody works for us any more."""
    request = folder / "request.rsl"
    request.write_text(f"&(samgrid_type = command)(executable = /bin/true)(count = {count})")
    summary = folder / "calls"
    trace = ["strace", "-f", "-c", "-e", "trace=execve,fsync,fdatasync", "-o", str(summary)] if traced else []
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SAMGRID_")}
    environment |= _SETTINGS | {"SAMGRID_STATE": str(folder / "state"), "SAMGRID_CONFIG": str(folder / "samgrid.toml")}
    environment |= {"SAMGRID_SANDBOX_SCRATCH_FOLDER": str(folder / "scratch")}
    subprocess.Popen(
        [*trace, sys.executable, "-P", str(_LAUNCH), "samgrid", "submit", str(request)],
        env=environment,
        stdout=subprocess.DEVNULL,
    )
    cost = Cost()
    for name, seconds in _reap_all():
        cost.seconds[name] += seconds
    tars = [path for path in folder.glob("state/jobs/*/*.tar") if path.stem == path.parent.name]
    grid_job = max(tars, key=lambda path: path.stat().st_mtime).parent
    ends = sum("exit 0\nend " in path.read_text() for path in grid_job.glob("results/*.status"))
    assert ends == count, f"{ends} of {count} local jobs have ended well"
    if traced:
        for line in summary.read_text().splitlines():
            words = line.split()
            if words and words[-1] in ("execve", "fsync", "fdatasync"):
                errors = int(words[4]) if len(words) == 6 else 0
                cost.calls[words[-1]] += int(words[3]) - errors
    return cost


def _reap_all() -> Iterator[tuple[str, float]]:
    while True:
        try:
            child = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
        except ChildProcessError:
            return
        assert child is not None
        name = Path(f"/proc/{child.si_pid}/comm").read_text().strip()
        _, _, usage = os.wait4(child.si_pid, 0)
        yield name, usage.ru_utime + usage.ru_stime


def _run_drivers(folder: Path, count: int) -> float:
    """CPU seconds of one driver, of the last grid job there."""
    sandbox = max(folder.glob("state/jobs/*/sandbox"), key=lambda path: path.stat().st_mtime)
    table = next(sandbox.glob("*-1.0"))
    token = table.name.removesuffix(".0")
    seconds = []
    for number in range(count // 4):
        environment = {
            "PATH": os.environ["PATH"],
            "SAMGRID_FORK_ID": f"b.{number}",
            "SAMGRID_FORK_INDEX": str(count),
            "SAMGRID_FORK_STARTED": str(int(time.time())),
        }
        argv = ["/bin/sh", str(sandbox / "driver.sh"), token]
        pid = os.posix_spawn(argv[0], argv, environment)
        _, status, usage = os.wait4(pid, 0)
        assert status == 0
        seconds.append(usage.ru_utime + usage.ru_stime)
    return sum(seconds) / len(seconds)


def _peers() -> dict[str, Sequence[str]]:
    """What starts so many programs, with a number at its end, and does less."""
    found = {
        "xargs: no record, no outputs, no queue": ("xargs", "-P2", "-n1", "/bin/true"),
        "GNU parallel: a log of ends, a file of output each": (
            *("parallel", "--will-cite", "-j2", "--joblog", "log", "--results", "out", "/bin/true"),
        ),
    }
    return {name: argv for name, argv in found.items() if shutil.which(argv[0])}


def _run_peer(argv: Sequence[str], count: int) -> float:
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR", "/var/tmp")) as folder:
        given = "".join(f"{number}\n" for number in range(count)).encode()
        with subprocess.Popen(argv, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
            assert process.stdin is not None
            process.stdin.write(given)
            process.stdin.close()
            return sum(seconds for _, seconds in _reap_all())


def _ms(seconds: Sequence[float]) -> str:
    return f"{median(seconds) * 1e3:.2f}"


def render_report(rows: Sequence[tuple[str, str, str, str]], jobs: int) -> str:
    """The table, with where and when."""
    lines = [f"| {what} | {cpu} | {execs} | {fsyncs} |" for what, cpu, execs, fsyncs in rows]
    where = f"Python {platform.python_version()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.0f}"
    return "\n".join(
        [
            "# Local jobs\n",
            "What one local job of `true` costs on fork: what a grid job of many costs more than one of one, divided.",
            f"Goal: at most {_GOAL:.0f} CPU ms. Execs are those beside the program.\n",
            "| what | CPU ms | execs | fsyncs |",
            "|---|---:|---:|---:|",
            *lines,
            f"\n{datetime.now(UTC):%Y-%m-%d}, {jobs} local jobs, {where}.\n",
            _LIMIT,
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
