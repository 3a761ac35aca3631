"""Pictures over time, as SVG paths: how many local jobs were in which state, and when each waited and ran."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from jobmanager.database.database import LocalJobLine
from jobmanager.web.kinds import KIND_OF_NAME, Kind, kind_of

WIDTH, HEIGHT = 1000, 200
_STEPS = 200
_MOST_BARS = 120
_LEAST = 2
"""Seconds; times are whole seconds, so that less makes no picture."""
_BAR = 10
"""Height of a bar of the timeline, with the gap above it."""


@dataclass(frozen=True)
class Span:
    """The time that a picture shows, in seconds since the epoch."""

    start: int
    end: int

    @property
    def middle(self) -> int:
        return (self.start + self.end) // 2

    def place(self, when: float) -> float:
        """How far to the right a time is."""
        return round(max(0.0, min(1.0, (when - self.start) / (self.end - self.start))) * WIDTH, 1)


@dataclass(frozen=True)
class Shape:
    """All local jobs of one kind in a picture, as one path."""

    kind: Kind
    path: str


@dataclass(frozen=True)
class History:
    """How many local jobs were in which state, one upon the other."""

    span: Span
    shapes: tuple[Shape, ...]
    """From the bottom to the top."""
    count: int
    most_active: int


@dataclass(frozen=True)
class Timeline:
    """Bars for local jobs, from their submission to their end."""

    span: Span
    shapes: tuple[Shape, ...]
    bars: int
    each: int
    """Every so many-th local job has a bar."""

    @property
    def height(self) -> int:
        return self.bars * _BAR


def find_span(lines: Iterable[LocalJobLine], now: float) -> Span | None:
    """From the first submission to the last end, or to now; None where nothing was, or all within two seconds."""
    submitted = [line for line in lines if line.submitted is not None]
    if not submitted:
        return None
    start = min(line.submitted or 0 for line in submitted)
    end = max(line.ended or (0 if line.state.is_final else int(now)) for line in submitted)
    return Span(start, end) if end - start > _LEAST else None


def draw_history(lines: Sequence[LocalJobLine], span: Span) -> History:
    """How many local jobs were done, failed, ran and waited at each moment."""
    steps = _count_by_step(lines, span)
    order = [name for name in _STACK if any(step[name] for step in steps)]
    count = max((sum(step.values()) for step in steps), default=1) or 1
    below = [0] * len(steps)
    shapes = []
    for name in order:
        above = [low + step[name] for low, step in zip(below, steps, strict=True)]
        shapes.append(Shape(KIND_OF_NAME[name], _render_area(below, above, count)))
        below = above
    return History(span, tuple(shapes), count, _count_most_active(lines))


def _count_most_active(lines: Iterable[LocalJobLine]) -> int:
    """How many local jobs ran in the same second, at most; the steps of a picture are too long for short ones."""
    ran = [line for line in lines if line.started is not None]
    begins = [(line.started or 0, 0) for line in ran]
    ends = [(max(line.ended, line.started or 0), 1) for line in ran if line.ended is not None]
    most = running = 0
    for _, is_end in sorted([*begins, *ends]):
        running += -1 if is_end else 1
        most = max(most, running)
    return most


_STACK = ("done", "cancelled", "failed", "active", "pending")


def _count_by_step(lines: Iterable[LocalJobLine], span: Span) -> list[Counter[str]]:
    changes: list[Counter[str]] = [Counter() for _ in range(_STEPS + 1)]
    for line in lines:
        before, latest = "", 0
        for name, moment in _turns(line):
            # Hosts have clocks of their own: what comes later in a life shall not stand before it.
            when = latest = max(latest, moment)
            step = changes[round(span.place(when) * _STEPS / WIDTH)]
            step[name] += 1
            if before:
                step[before] -= 1
            before = name
    total: Counter[str] = Counter()
    steps = []
    for change in changes:
        total.update(change)
        steps.append(Counter(total))
    return steps


def _turns(line: LocalJobLine) -> list[tuple[str, int]]:
    """What a local job became, and when."""
    turns = [("pending", line.submitted), ("active", line.started)]
    if line.state.is_final:
        turns.append((kind_of(line).name, line.ended))
    return [(name, when) for name, when in turns if when is not None]


def _render_area(below: Sequence[int], above: Sequence[int], count: int) -> str:
    outline = [*enumerate(above), *reversed(list(enumerate(below)))]
    points = [(x * WIDTH / _STEPS, HEIGHT - y * HEIGHT / count) for x, y in outline]
    return "M" + "L".join(f"{x:g} {y:.1f}" for x, y in points) + "z"


def draw_timeline(lines: Iterable[LocalJobLine], span: Span, now: float) -> Timeline:
    """A bar per local job in the order in which they started, or for every so many-th where they are many."""
    submitted = [line for line in lines if line.submitted is not None]
    submitted.sort(key=lambda line: (line.started or line.ended or now, line.index))
    each = -(-len(submitted) // _MOST_BARS) or 1
    chosen = submitted[::each]
    paths: dict[str, list[str]] = {}
    for number, line in enumerate(chosen):
        _add_bars(paths, line, number * _BAR + 2, span, now)
    shapes = tuple(Shape(KIND_OF_NAME[name], "".join(parts)) for name, parts in paths.items())
    return Timeline(span, shapes, len(chosen), each)


def _add_bars(paths: dict[str, list[str]], line: LocalJobLine, y: int, span: Span, now: float) -> None:
    """The time in which it waited as a thin bar, the time in which it ran as a thick one."""
    end = line.ended or (line.submitted if line.state.is_final else now)
    waited_until = line.started or end
    paths.setdefault("pending", []).append(_render_bar(span, line.submitted or 0, waited_until or 0, y + 3, 2))
    if line.started is not None:
        paths.setdefault(kind_of(line).name, []).append(_render_bar(span, line.started, end or 0, y, _BAR - 2))


def _render_bar(span: Span, start: float, end: float, y: int, height: int) -> str:
    left = span.place(start)
    # A moment is seen too.
    width = max(1.0, round(span.place(end) - left, 1))
    return f"M{left:g} {y}h{width:g}v{height}h-{width:g}z"
