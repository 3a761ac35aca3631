"""``samgrid usage``: local jobs, CPU and wall time by group, and reasons of failures, as a table, JSON or CSV."""

import csv
import io
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jobmanager.database.database import Database
from jobmanager.database.usage import Usage
from jobmanager.views.text import printable, render_columns, render_line, render_listing

_SUMS = (
    *("grid_jobs", "local_jobs", "succeeded", "failed", "cancelled"),
    *("cpu_seconds", "wall_seconds", "efficiency"),
)
_SHOWN_REASONS = 10
_LONGEST_REASON = 200
# Words such as "node17.site" and "4711_3" differ for each failure; an exit code is important.
_PARTICULARS = re.compile(r"(?<!\S)(?<!code )\S*\d\S*")


@dataclass(frozen=True)
class UsageLine:
    """The usage of one group, and its failures by reason, the most frequent first."""

    usage: Usage
    reasons: Sequence[tuple[str, int]]


def sum_usage(database: Database, by: Sequence[str], since: float, until: float) -> list[UsageLine]:
    """The usage of local jobs that ended between two times (seconds since 1970), a line for each group."""
    reasons: dict[tuple[str, ...], Counter[str]] = {}
    for group, reason, count in database.usage.failure_reasons(by, since, until):
        reasons.setdefault(group, Counter())[fold_reason(reason)] += count
    lines = database.usage.sums(by, since, until)
    return [UsageLine(line, reasons.get(line.group, Counter()).most_common()) for line in lines]


def fold_reason(reason: str) -> str:
    """The reason without details of one local job: words with digits become ``#``, except exit codes."""
    return _PARTICULARS.sub("#", render_line(reason))[:_LONGEST_REASON]


def render_usage(lines: Sequence[UsageLine], by: Sequence[str]) -> str:
    """A table with a line for each group, followed by the reasons of failures."""
    if not lines:
        return "no local job ended in this time"
    counts = ("GRID JOBS", "LOCAL JOBS", "SUCCEEDED", "FAILED", "CANCELLED")
    heading = (*(name.upper() for name in by), *counts, "CPU TIME", "WALL TIME", "CPU/WALL")
    parts = [render_listing(heading, [_render_row(line.usage) for line in lines])]
    for line in lines:
        parts += _render_reasons(line)
    return "\n".join(parts)


def _render_row(usage: Usage) -> tuple[str, ...]:
    return (
        *map(printable, usage.group),
        *map("{:,}".format, (usage.grid_jobs, usage.local_jobs, usage.succeeded, usage.failed, usage.cancelled)),
        *(_render_duration(usage.cpu_seconds), _render_duration(usage.wall_seconds)),
        "" if usage.efficiency is None else f"{usage.efficiency:.0%}",
    )


def _render_reasons(line: UsageLine) -> list[str]:
    if not line.reasons:
        return []
    whose = " ".join(map(printable, line.usage.group)) or "all"
    shown = [f"{count:>9,} × {reason}" for reason, count in line.reasons[:_SHOWN_REASONS]]
    others = sum(count for _, count in line.reasons[_SHOWN_REASONS:])
    shown = [render_columns([[line]]) for line in shown]
    return ["", f"failures of {whose}:", *shown, *([f"{others:>9,} × other reasons"] if others else [])]


def _render_duration(seconds: float) -> str:
    hours, rest = divmod(round(seconds), 3600)
    return f"{hours:,}:{rest // 60:02}:{rest % 60:02}"


def render_usage_json(lines: Sequence[UsageLine], by: Sequence[str]) -> str:
    """The same for programs: times in seconds, CPU time divided by wall time as ``efficiency`` (null if not known)."""
    return json.dumps([_list_values(line, by) for line in lines], indent=2)


def render_usage_csv(lines: Sequence[UsageLine], by: Sequence[str]) -> str:
    """The same for spreadsheets; the reasons are in one column, as ``12 × REASON; 3 × REASON``."""
    text = io.StringIO()
    writer = csv.DictWriter(text, (*by, *_SUMS, "reasons"), lineterminator="\n")
    writer.writeheader()
    for line in lines:
        reasons = "; ".join(f"{count} × {reason}" for reason, count in line.reasons)
        writer.writerow({**_list_values(line, by), "reasons": reasons})
    return text.getvalue().rstrip("\n")


def _list_values(line: UsageLine, by: Sequence[str]) -> Mapping[str, Any]:
    usage = line.usage
    return {
        **dict(zip(by, map(printable, usage.group), strict=True)),
        **{name: getattr(usage, name) for name in _SUMS},
        "cpu_seconds": round(usage.cpu_seconds, 2),
        "efficiency": None if usage.efficiency is None else round(usage.efficiency, 4),
        "reasons": [{"reason": reason, "local_jobs": count} for reason, count in line.reasons],
    }
