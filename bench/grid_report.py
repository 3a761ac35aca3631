"""What was measured of whole grid jobs, and how it is told: tables for people, JSON for programs."""

import dataclasses
import json
import platform
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median


@dataclass(frozen=True)
class Row:
    """One thing measured so many times, in one unit."""

    what: str
    unit: str
    figures: tuple[float, ...]
    target: float | None = None
    """The median is to be at most that; None where it is there to be compared with."""
    remark: str = ""

    @property
    def is_missed(self) -> bool:
        """True where there is a target, and the median is above it."""
        return self.target is not None and median(self.figures) > self.target


@dataclass(frozen=True)
class Section:
    """Rows that were measured together."""

    title: str
    words: str
    """How it was measured."""
    rows: tuple[Row, ...]
    missing: str
    """Why there are no rows, or not all of them; empty where all are there."""
    load_before: float
    load_after: float
    date: str


@dataclass(frozen=True)
class Results:
    """The sections of the last runs of the benchmark on one machine."""

    cpu: str
    cores: int
    kernel: str
    python: str
    sections: tuple[Section, ...]


def read_results(cores: int, sections: Iterable[Section]) -> Results:
    """The sections, with where they were measured."""
    info = Path("/proc/cpuinfo").read_text()
    cpu = next((line.split(":", 1)[1].strip() for line in info.splitlines() if line.startswith("model name")), "?")
    return Results(cpu, cores, platform.release(), platform.python_version(), tuple(sections))


def read_date() -> str:
    """Now, as the report says it."""
    return datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")


def read_sections(text: str) -> dict[str, Section]:
    """The sections of results as JSON, by title."""
    found = [
        Section(
            **{**section, "rows": tuple(Row(**{**row, "figures": tuple(row["figures"])}) for row in section["rows"])}
        )
        for section in json.loads(text)["sections"]
    ]
    return {section.title: section for section in found}


def render_json(results: Results) -> str:
    """The results with every single figure."""
    return json.dumps(dataclasses.asdict(results), indent=1) + "\n"


def render_report(results: Results) -> str:
    """The results as Markdown tables."""
    head = f"""\
# Benchmark of grid jobs

{results.cpu}, {results.cores} cores, Linux {results.kernel}, Python {results.python}.

Made by `make bench` (bench/grid_jobs.py). Targets are held against the medians.
"""
    return "\n".join([head, *map(render_section, results.sections), _render_missed(results.sections)])


def render_section(section: Section) -> str:
    """One section as Markdown."""
    load = f"{section.date}, load average before {section.load_before:.2f}, after {section.load_after:.2f}."
    parts = [f"## {section.title}\n", f"{section.words}\n{load}\n"]
    if section.rows:
        parts.append(_render_table(section.rows))
    if section.missing:
        parts.append(f"Not measured: {section.missing}\n")
    return "\n".join(parts)


def _render_table(rows: Iterable[Row]) -> str:
    lines = [["", "unit", "n", "median", "max", "target", "remark"]]
    for row in rows:
        figures = (f"{len(row.figures)}", _show(median(row.figures)), _show(max(row.figures)))
        lines.append([row.what, row.unit, *figures, _render_target(row), row.remark])
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    lines.insert(1, ["-" * width for width in widths])
    cells = ([cell.ljust(width) for cell, width in zip(line, widths, strict=True)] for line in lines)
    return "".join(f"| {' | '.join(line)} |\n" for line in cells)


def _show(figure: float) -> str:
    return f"{figure:,.0f}" if figure == int(figure) or figure >= 1000 else f"{figure:.3g}"


def _render_target(row: Row) -> str:
    if row.target is None:
        return "–"
    return f"{_show(row.target)}: {'MISSED' if row.is_missed else 'met'}"


def _render_missed(sections: Iterable[Section]) -> str:
    lines = []
    for section in sections:
        for row in section.rows:
            if row.is_missed and row.target is not None:
                figures = f"{_show(median(row.figures))} {row.unit}; the target is {_show(row.target)} {row.unit}"
                lines.append(f"- {section.title}: {row.what}: {figures}\n")
        if section.missing:
            lines.append(f"- {section.title}: not measured: {section.missing}\n")
    if not lines:
        return "## Targets\n\nNone of those measured was missed.\n"
    return "## Targets\n\nMissed, or not measured:\n\n" + "".join(lines)
