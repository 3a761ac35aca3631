"""The benchmark of the scheduler event generator: throughput, latency and memory beside other programs.

Prints tables and writes them to bench/RESULTS.md, with every figure in bench/results.json.
"""

import argparse
import os
import platform
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from make_logs import MAKERS, Log, start_log, write_log
from measure import Run, run_latency, run_whole_log
from programs import (
    NotHere,
    Program,
    enter_namespace,
    find_other,
    find_ours,
    install_packages,
    read_namespace,
    read_versions,
    replace_globus_configuration,
)
from report import Latency, Machine, Memory, Results, Throughput, render_json, render_report

_BENCH = Path(__file__).resolve().parent
_LARGE = 5


@dataclass(frozen=True)
class Case:
    """A scheduler's log: how long, and how much faster than the other program we want to be."""

    scheduler: str
    unit: str
    units: int
    target: float


CASES = (
    Case("pbs", "lines", 2_000_000, 5.0),
    Case("fork", "lines", 2_000_000, 5.0),
    Case("lsf", "lines", 2_000_000, 2.0),
    Case("condor", "records", 300_000, 10.0),
)


@dataclass(frozen=True)
class Bench:
    """What is the same for every case."""

    folder: Path
    """For logs; removed at the end."""
    configuration: Path
    """In the place of Globus' own."""
    runs: int
    probes: int
    scale: float

    @contextmanager
    def make_log(self, case: Case, times: int = 1) -> Iterator[Log]:
        """The case's log, so many times as long; gone afterwards."""
        with tempfile.TemporaryDirectory(dir=self.folder) as name:
            yield write_log(MAKERS[case.scheduler], Path(name), int(case.units * self.scale) * times)


def measure_throughput(bench: Bench, case: Case) -> Throughput:
    """Both programs in turn on the same log."""
    our_runs: list[Run] = []
    other_runs: list[Run] = []
    with bench.make_log(case) as log:
        ours = find_ours(case.scheduler, log.path)
        other, name = _find_other(bench, case, log.path, follow=False)
        # Not counted: it reads the log into the page cache and, where that is Python, compiles the modules.
        for program in filter(None, (ours, other)):
            run_whole_log(program, log.expected)
        for _ in range(bench.runs):
            our_runs.append(run_whole_log(ours, log.expected))
            if other is not None:
                other_runs.append(run_whole_log(other, log.expected))
        size = log.path.stat().st_size
    head = (case.scheduler, case.unit, log.units, log.events, size, case.target, name)
    return Throughput(*head, tuple(our_runs), tuple(other_runs))


def _find_other(bench: Bench, case: Case, log: Path, follow: bool) -> tuple[Program | None, str]:
    try:
        program = find_other(case.scheduler, log, follow, bench.configuration)
    except NotHere as reason:
        return None, str(reason)
    return program, program.name


def measure_latency(bench: Bench, case: Case) -> Iterator[Latency]:
    """Each program by itself on a log that grows."""
    for is_ours in (True, False):
        with tempfile.TemporaryDirectory(dir=bench.folder) as name:
            log = start_log(case.scheduler, Path(name))
            program: Program | None = find_ours(case.scheduler, log)
            if not is_ours:
                program, _ = _find_other(bench, case, log, follow=True)
            if program is not None:
                yield Latency(case.scheduler, program.name, run_latency(program, case.scheduler, log, bench.probes))


def measure_memory(bench: Bench, case: Case, small: Throughput) -> Memory:
    """Ours on a log several times as long as the one of the throughput."""
    with bench.make_log(case, _LARGE) as log:
        run = run_whole_log(find_ours(case.scheduler, log.path), log.expected)
        peak = max(run.peak_kib for run in small.our_runs)
        return Memory(case.scheduler, peak, _LARGE, log.path.stat().st_size, run.peak_kib)


def run_bench(bench: Bench) -> Results:
    """Everything, case by case; says on standard error how far it is."""
    load_before = os.getloadavg()[0]
    throughput: list[Throughput] = []
    latency: list[Latency] = []
    memory: list[Memory] = []
    for case in CASES:
        print(f"{case.scheduler}: throughput …", file=sys.stderr, flush=True)
        throughput.append(measure_throughput(bench, case))
        print(f"{case.scheduler}: memory …", file=sys.stderr, flush=True)
        memory.append(measure_memory(bench, case, throughput[-1]))
        print(f"{case.scheduler}: latency …", file=sys.stderr, flush=True)
        latency.extend(measure_latency(bench, case))
    return Results(read_machine(load_before), tuple(throughput), tuple(latency), tuple(memory))


def read_machine(load_before: float) -> Machine:
    """Date, processor, load and versions."""
    info = Path("/proc/cpuinfo").read_text()
    cpu = next((line.split(":", 1)[1].strip() for line in info.splitlines() if line.startswith("model name")), "?")
    date = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    load_after = os.getloadavg()[0]
    return Machine(date, cpu, os.cpu_count() or 0, platform.release(), load_before, load_after, read_versions())


def make_arguments() -> argparse.ArgumentParser:
    """The command line's options."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--install", action="store_true", help="install Globus' C program first (apt-get, as root)")
    parser.add_argument("--runs", type=int, default=3, help="runs of each program on each log (default: 3)")
    parser.add_argument("--probes", type=int, default=100, help="lines of which the latency is taken (default: 100)")
    parser.add_argument("--scale", type=float, default=1.0, help="length of the logs, 1 for the full ones (default: 1)")
    # The mount namespace that was left, where one was.
    parser.add_argument("--left", default="", help=argparse.SUPPRESS)
    return parser


def main() -> int:
    """Measure, print, write."""
    options = make_arguments().parse_args()
    # Logs are in local time.
    os.environ["TZ"] = "UTC"
    time.tzset()
    if not options.left:
        if options.install:
            install_packages()
        enter_namespace([*sys.argv, "--left", read_namespace()])
    with tempfile.TemporaryDirectory(prefix="samgrid-bench-") as name:
        # As an installed package has them.
        os.environ["PYTHONPYCACHEPREFIX"] = str(Path(name) / "compiled")
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        configuration = Path(name) / "globus"
        configuration.mkdir()
        if options.left not in ("", read_namespace()):
            replace_globus_configuration(configuration)
        results = run_bench(Bench(Path(name), configuration, options.runs, options.probes, options.scale))
    report = render_report(results)
    (_BENCH / "RESULTS.md").write_text(report)
    (_BENCH / "results.json").write_text(render_json(results))
    print(report)
    return 0


if __name__ == "__main__":
    sys.exit(main())
