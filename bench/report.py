"""What was measured, and how it is told: tables for people, JSON for programs."""

import dataclasses
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median

from measure import Run

_LATENCY_TARGET = 0.005
_PEAK_TARGET = 40_000_000


@dataclass(frozen=True)
class Throughput:
    """Runs of ours and of another program, in turn, over one log."""

    scheduler: str
    unit: str
    units: int
    events: int
    log_bytes: int
    target: float
    other: str
    """What ours is beside; why there is none, where there are no runs of it."""
    our_runs: tuple[Run, ...]
    other_runs: tuple[Run, ...]


@dataclass(frozen=True)
class Latency:
    """Seconds from a line appended to its event, each."""

    scheduler: str
    program: str
    seconds: tuple[float, ...]


@dataclass(frozen=True)
class Memory:
    """Our peak resident memory on one log, and on one so many times as large, in KiB."""

    scheduler: str
    peak_kib: int
    times: int
    large_bytes: int
    large_peak_kib: int


@dataclass(frozen=True)
class Machine:
    """Where and when it was measured."""

    date: str
    cpu: str
    cores: int
    kernel: str
    load_before: float
    load_after: float
    versions: Mapping[str, str]


@dataclass(frozen=True)
class Results:
    """Everything of one run of the benchmark."""

    machine: Machine
    throughput: tuple[Throughput, ...]
    latency: tuple[Latency, ...]
    memory: tuple[Memory, ...]


def render_json(results: Results) -> str:
    """The results with every single figure."""
    return json.dumps(dataclasses.asdict(results), indent=1) + "\n"


def render_report(results: Results) -> str:
    """The results as Markdown tables."""
    sections = (
        _render_machine(results.machine),
        _render_throughput(results.throughput),
        _render_ratios(results.throughput),
        _render_latency(results.latency),
        _render_memory(results.memory),
        _render_missed(results),
    )
    return "\n".join(sections)


def _render_table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [list(head), *map(list, rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    lines.insert(1, ["-" * width for width in widths])
    cells = ([cell.ljust(width) for cell, width in zip(line, widths, strict=True)] for line in lines)
    return "".join(f"| {' | '.join(line)} |\n" for line in cells)


def _render_machine(machine: Machine) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in machine.versions.items())
    return f"""\
# Benchmark of the scheduler event generator

{machine.date}, {machine.cpu}, {machine.cores} cores, Linux {machine.kernel}.
Load average before {machine.load_before:.2f}, after {machine.load_after:.2f}.
{versions}.

Made by `make bench`. Whole processes, nothing subtracted: a wall-clock time goes from the start of the process to its
last event, read from a pipe; CPU is user and system time of the process until it has ended. With its pbs module,
Globus' C program waits about 1 s before it begins: its wall-clock time contains that second, its CPU time does not.
The programs run in turn on the same log in the page cache, after one run of each that is not counted; Python's modules
are compiled by then, as those of an installed package are. Times are best / median.
"""


def _render_throughput(rows: Iterable[Throughput]) -> str:
    head = ("log", "size", "events", "program", "runs", "wall s", "CPU s", "wall M/s", "CPU M/s", "peak MB", "output")
    lines = []
    for row in rows:
        size = f"{row.units:,} {row.unit}, {row.log_bytes / 1e6:.0f} MB"
        for program, runs in (("ours", row.our_runs), (row.other, row.other_runs)):
            lines.append((row.scheduler, size, f"{row.events:,}", program, *_render_runs(runs, row.units)))
    return f"## Throughput\n\nM/s: millions of lines (records) per second, best run.\n\n{_render_table(head, lines)}"


def _render_runs(runs: tuple[Run, ...], units: int) -> tuple[str, ...]:
    if not runs:
        return ("0", *("–",) * 6)
    walls, cpus = [run.seconds for run in runs], [run.cpu_seconds for run in runs]
    faults = sorted({run.fault for run in runs if run.fault})
    return (
        str(len(runs)),
        f"{min(walls):.2f} / {median(walls):.2f}",
        f"{min(cpus):.2f} / {median(cpus):.2f}",
        f"{units / min(walls) / 1e6:.2f}",
        f"{units / min(cpus) / 1e6:.2f}",
        f"{max(run.peak_kib for run in runs) * 1024 / 1e6:.1f}",
        "; ".join(faults) or "identical",
    )


@dataclass(frozen=True)
class _Ratio:
    best: float
    median: float


def _divide(others: Iterable[float], ours: Iterable[float]) -> _Ratio:
    others, ours = tuple(others), tuple(ours)
    return _Ratio(min(others) / min(ours), median(others) / median(ours))


def _divide_walls(row: Throughput) -> _Ratio:
    return _divide((run.seconds for run in row.other_runs), (run.seconds for run in row.our_runs))


def _render_ratios(rows: Iterable[Throughput]) -> str:
    head = ("log", "beside", "faster by wall clock", "by CPU time", "target (wall clock)")
    lines = []
    for row in rows:
        if row.other_runs:
            wall = _divide_walls(row)
            cpu = _divide((run.cpu_seconds for run in row.other_runs), (run.cpu_seconds for run in row.our_runs))
            ratios = (f"{wall.best:.1f} / {wall.median:.1f}", f"{cpu.best:.1f} / {cpu.median:.1f}")
            verdict = "met" if wall.median >= row.target else "MISSED"
            lines.append((row.scheduler, row.other, *ratios, f"{row.target:g}: {verdict}"))
    caption = "Ratios of the best runs / of the medians; the target is held against the medians."
    return f"{caption}\n\n{_render_table(head, lines)}"


def _render_latency(rows: Iterable[Latency]) -> str:
    head = ("log", "program", "lines", "median ms", "max ms")
    lines = (
        (
            row.scheduler,
            row.program,
            str(len(row.seconds)),
            f"{median(row.seconds) * 1e3:.2f}",
            f"{max(row.seconds) * 1e3:.1f}",
        )
        for row in rows
    )
    return f"## Latency\n\nFrom just before a line is appended to its event on stdout.\n\n{_render_table(head, lines)}"


def _render_memory(rows: Iterable[Memory]) -> str:
    head = ("log", "peak MB", "larger log", "peak MB")
    lines = (
        (
            row.scheduler,
            f"{row.peak_kib * 1024 / 1e6:.1f}",
            f"{row.times} ×, {row.large_bytes / 1e6:.0f} MB",
            f"{row.large_peak_kib * 1024 / 1e6:.1f}",
        )
        for row in rows
    )
    return f"## Our memory\n\nPeak resident size (VmHWM).\n\n{_render_table(head, lines)}"


_LIMIT = """
Measured on these logs, in CPU seconds of the whole process (pbs, lsf): ours takes 0.66 and 0.70. With a parser that
remembers and decides nothing, but prints one line for each match of the module's pattern, 0.51 and 0.63: no parser
behind these patterns takes less. With no scan at all, only reading the log and writing as many lines, 0.17 and 0.24.
A scanner in C that found the lines with an event in no time would make the whole generator 1.4 times as fast on pbs,
1.1 times on lsf, and no faster on fork, where every line is one: so there is none (ARCHITECTURE.md, "Ours, and not a
library").
"""


def _render_missed(results: Results) -> str:
    missed = tuple(_find_missed(results))
    if not missed:
        return "## Targets\n\nNone of those measured was missed.\n"
    return "## Targets\n\nMissed:\n\n" + "".join(f"- {line}\n" for line in missed) + _LIMIT


def _find_missed(results: Results) -> Iterable[str]:
    for row in results.throughput:
        if any(run.fault for run in row.our_runs):
            yield f"{row.scheduler}: our events are not the expected ones"
        if not row.other_runs:
            yield f"{row.scheduler}: throughput not compared: {row.other}"
        elif (ratio := _divide_walls(row).median) < row.target:
            yield f"{row.scheduler}: {ratio:.1f} × {row.other} by wall clock; the target is {row.target:g} ×"
    for latency in results.latency:
        if latency.program == "ours" and (middle := median(latency.seconds)) >= _LATENCY_TARGET:
            yield f"{latency.scheduler}: median latency {middle * 1e3:.1f} ms; the target is below 5 ms"
    for memory in results.memory:
        if (peak := max(memory.peak_kib, memory.large_peak_kib) * 1024) >= _PEAK_TARGET:
            yield f"{memory.scheduler}: peak memory {peak / 1e6:.1f} MB; the target is below 40 MB"
