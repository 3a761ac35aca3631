"""What the outputs of a pythia grid job's local jobs amount to, all together."""

import json
import math
import stat
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LARGEST_FILE = 1_000_000
"""Bytes; what a job leaves is read with caution."""

# What a file that no job of ours wrote, or that was cut off, can raise while it is read.
UNUSABLE = (OSError, ValueError, LookupError, TypeError, ArithmeticError, RecursionError)


@dataclass(frozen=True)
class SliceResult:
    """One local job's result; the cross section and its error in pb."""

    events: int
    tried: int
    cross_section: float
    error: float
    edges: tuple[float, ...]
    counts: tuple[int, ...]


def summarise(outputs: Sequence[Path]) -> Mapping[str, str]:
    """Names and values for people, from the output folders of the local jobs; unusable ones are counted."""
    results, unread = run_reading(outputs)
    summary = {"events": str(sum(result.events for result in results))}
    if any(result.tried for result in results):
        value, error = combine_cross_sections(results)
        summary["cross section"] = f"{value:.1f} ± {error:.1f} pb"
    summary |= describe_histogram(results)
    if unread:
        summary["outputs not read"] = f"{unread} of {len(outputs)}"
    return summary


def run_reading(outputs: Iterable[Path]) -> tuple[list[SliceResult], int]:
    """The results found in the folders, and the number of folders without a usable one."""
    results, unread = [], 0
    for folder in outputs:
        try:
            results.append(read_result(folder))
        except UNUSABLE:
            unread += 1
    return results, unread


def read_result(folder: Path) -> SliceResult:
    """The result in one output folder; raises one of ``UNUSABLE`` where there is none."""
    summary, histogram = _read_json(folder / "summary.json"), _read_json(folder / "dimuon-mass.json")
    edges = tuple(_finite(edge) for edge in histogram["edges"])
    counts = tuple(_natural(count) for count in histogram["counts"])
    if len(edges) != len(counts) + 1:
        raise ValueError("a histogram has one edge more than bins")
    value, error = _finite(summary["cross_section_pb"]), _finite(summary["cross_section_error_pb"])
    return SliceResult(_natural(summary["events"]), _natural(summary["tried"]), value, error, edges, counts)


def combine_cross_sections(results: Sequence[SliceResult]) -> tuple[float, float]:
    """The weighted mean σ = Σ nᵢσᵢ / Σ nᵢ and its error √(Σ nᵢ²δᵢ²) / Σ nᵢ, in pb, with nᵢ the events tried.

    Weights 1/δᵢ² would pull the mean down: an estimate that fluctuates low has a small estimated error as well.
    """
    tried = sum(result.tried for result in results)
    value = sum(result.tried * result.cross_section for result in results) / tried
    error = math.hypot(*(result.tried * result.error for result in results)) / tried
    return value, error


def describe_histogram(results: Sequence[SliceResult]) -> Mapping[str, str]:
    """The highest bin and the mean, from bin centres, of the dimuon mass in GeV; nothing where no event is in a bin."""
    edges = results[0].edges if results else ()
    same = [result.counts for result in results if result.edges == edges]
    counts = [sum(column) for column in zip(*same, strict=True)]
    if not any(counts):
        return {}
    peak = counts.index(max(counts))
    mean = sum(count * (edges[i] + edges[i + 1]) / 2 for i, count in enumerate(counts)) / sum(counts)
    return {
        "dimuon mass peak": f"{edges[peak]:g} to {edges[peak + 1]:g} GeV ({counts[peak]} events)",
        "mean dimuon mass": f"{mean:.2f} GeV",
    }


def _read_json(path: Path) -> Any:
    status = path.lstat()
    if not stat.S_ISREG(status.st_mode) or status.st_size > LARGEST_FILE:
        raise ValueError(f"{path} is no small regular file")
    return json.loads(path.read_bytes())


def _finite(value: object) -> float:
    if not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{value!r} is no finite number")
    return float(value)


def _natural(value: object) -> int:
    if not isinstance(value, int) or not 0 <= value < 10**15:
        raise ValueError(f"{value!r} is no count")
    return value
