"""How local jobs are shown: as kinds with a mark each, as cells, and over time. Pictures are SVG paths."""

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from batch_adapters.states import State
from jobmanager.database.details import EarlierAttempt
from jobmanager.database.local_jobs import LocalJobLine

Earlier = Mapping[int, Sequence[EarlierAttempt]]
"""Earlier attempts by the number of their local job."""


@dataclass(frozen=True)
class JobKind:
    """Local jobs that look the same."""

    letter: str
    name: str
    """A word for people, which is a class in the style sheet, too."""
    mark: str
    """An SVG path in a square of 10 × 10."""


KINDS = (
    JobKind("f", "failed", "M1.5 3l1.5 -1.5l2 2l2 -2l1.5 1.5l-2 2l2 2l-1.5 1.5l-2 -2l-2 2l-1.5 -1.5l2 -2z"),
    JobKind("c", "cancelled", "M1 1l8 8h-8z"),
    JobKind("s", "suspended", "M1.5 1h2.5v8h-2.5zm4.5 0h2.5v8h-2.5z"),
    JobKind("a", "active", "M2 1l7 4l-7 4z"),
    JobKind("p", "pending", "M1 1h8v8h-8zm1.6 1.6v4.8h4.8v-4.8z"),
    JobKind("u", "unsubmitted", "M4 4h2v2h-2z"),
    JobKind("d", "done", "M1 1h8v8h-8z"),
)
"""Those that need a look come first."""

KIND_OF_NAME: Mapping[str, JobKind] = {kind.name: kind for kind in KINDS}
_LETTERS = "".join(kind.letter for kind in KINDS)
_KIND_OF_STATE = {State.STAGE_IN: "pending", State.STAGE_OUT: "active"}
"""Where a state's word is no kind's."""
MOST_CELLS = 10_000


@dataclass(frozen=True)
class Cells:
    """Local jobs as cells; one cell is ``each`` local jobs and shows the one of them that needs a look first."""

    runs: str
    """Letters of kinds, each with the number of cells in a row: ``d40a2``."""
    count: int
    each: int


def kind_of(line: LocalJobLine) -> JobKind:
    return kind_of_end(line.outcome) if line.outcome else kind_of_state(line.state)


def kind_of_end(outcome: str) -> JobKind:
    """How an end is shown: of a local job, or of a grid job."""
    return KIND_OF_NAME["done" if outcome == "succeeded" else outcome]


def kind_of_state(state: State) -> JobKind:
    return KIND_OF_NAME[_KIND_OF_STATE.get(state, state.word)]


def count_kinds(lines: Iterable[LocalJobLine]) -> list[tuple[JobKind, int]]:
    counts = Counter(kind_of(line).letter for line in lines)
    return [(kind, counts[kind.letter]) for kind in KINDS]


def render_cells(lines: list[LocalJobLine]) -> Cells:
    """The local jobs as cells, at most `MOST_CELLS`."""
    each = -(-len(lines) // MOST_CELLS) or 1
    letters = [kind_of(line).letter for line in lines]
    shown = [min(letters[at : at + each], key=_LETTERS.index) for at in range(0, len(letters), each)]
    runs = "".join(f"{letter}{sum(1 for _ in run)}" for letter, run in itertools.groupby(shown))
    return Cells(runs, len(shown), each)


_SHARES = ("done", "failed", "cancelled", "active", "suspended", "pending", "unsubmitted")
"""The parts of a bar from the left: what has ended comes first."""


def draw_shares(counts: Mapping[str, int]) -> list[tuple[JobKind, str]]:
    """How large a part of local jobs is of each kind, as SVG paths along a bar of 1000 × 10."""
    total = sum(counts.values())
    shares, left = [], 0.0
    for name in _SHARES:
        if number := counts.get(name, 0):
            width = 1000 * number / total
            shares.append((KIND_OF_NAME[name], f"M{left:.1f} 0h{width:.1f}v10h-{width:.1f}z"))
            left += width
    return shares


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

    kind: JobKind
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


def find_span(lines: Iterable[LocalJobLine], now: float, earlier: Earlier) -> Span | None:
    """From the first submission to the last end, or to now; None where nothing was, or all within two seconds."""
    submitted = [line for line in lines if line.submitted is not None]
    if not submitted:
        return None
    begun = [past.started for attempts in earlier.values() for past in attempts if past.started is not None]
    start = min(*begun, *(line.submitted or 0 for line in submitted), int(now))
    end = max(line.ended or (0 if line.state.is_final else int(now)) for line in submitted)
    return Span(start, end) if end - start > _LEAST else None


def draw_history(lines: Sequence[LocalJobLine], span: Span, earlier: Earlier) -> History:
    """How many local jobs were done, failed, ran and waited at each moment."""
    steps = _count_by_step(lines, span, earlier)
    order = [name for name in _STACK if any(step[name] for step in steps)]
    count = max((sum(step.values()) for step in steps), default=1) or 1
    below = [0] * len(steps)
    shapes = []
    for name in order:
        above = [low + step[name] for low, step in zip(below, steps, strict=True)]
        shapes.append(Shape(KIND_OF_NAME[name], _render_area(below, above, count)))
        below = above
    return History(span, tuple(shapes), count, _count_most_active([*lines, *itertools.chain(*earlier.values())]))


def _count_most_active(runs: Iterable[LocalJobLine | EarlierAttempt]) -> int:
    """How many local jobs ran when a second began, at most; the steps of a picture are too long for short ones.

    Those that ended within a second and those that started in it may never have run at once.
    """
    ran = [run for run in runs if run.started is not None]
    lasted = [run for run in ran if run.ended is None or run.ended > (run.started or 0)]
    ends = [(run.ended, -1) for run in lasted if run.ended is not None]
    changes = sorted([*((run.started or 0, 1) for run in lasted), *ends])
    return max([*itertools.accumulate(change for _, change in changes), min(len(ran), 1)])


_STACK = ("done", "cancelled", "failed", "active", "pending")


def _count_by_step(lines: Iterable[LocalJobLine], span: Span, earlier: Earlier) -> list[Counter[str]]:
    changes: list[Counter[str]] = [Counter() for _ in range(_STEPS + 1)]
    for line in lines:
        before, latest = "", 0
        for name, moment in _turns(line, earlier.get(line.index, ())):
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


def _turns(line: LocalJobLine, earlier: Sequence[EarlierAttempt]) -> list[tuple[str, int]]:
    """What a local job became, and when; after an attempt that failed it waits for the next."""
    turns = [turn for past in earlier for turn in (("active", past.started), ("pending", past.ended))]
    turns += [("pending", line.submitted), ("active", line.started)]
    if line.state.is_final:
        turns.append((kind_of(line).name, line.ended))
    return [(name, when) for name, when in turns if when is not None]


def _render_area(below: Sequence[int], above: Sequence[int], count: int) -> str:
    outline = [*enumerate(above), *reversed(list(enumerate(below)))]
    points = [(x * WIDTH / _STEPS, HEIGHT - y * HEIGHT / count) for x, y in outline]
    return "M" + "L".join(f"{x:g} {y:.1f}" for x, y in points) + "z"


def draw_timeline(lines: Iterable[LocalJobLine], span: Span, now: float, earlier: Earlier) -> Timeline:
    """A bar per local job in the order in which they started, or for every so many-th where they are many."""
    submitted = [line for line in lines if line.submitted is not None]
    submitted.sort(key=lambda line: (line.started or line.ended or now, line.index))
    each = -(-len(submitted) // _MOST_BARS) or 1
    chosen = submitted[::each]
    paths: dict[str, list[str]] = {}
    for number, line in enumerate(chosen):
        _add_bars(paths, line, number * _BAR + 2, span, now)
        for past in earlier.get(line.index, ()):
            if past.started is not None and past.ended is not None:
                bar = _render_bar(span, past.started, past.ended, number * _BAR + 2, _BAR - 2)
                paths.setdefault("failed", []).append(bar)
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
