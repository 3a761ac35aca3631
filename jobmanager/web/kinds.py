"""How local jobs are shown: a letter, words, and a mark whose shape alone tells the kind."""

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from batch_adapters.states import State
from jobmanager.database.database import LocalJobLine


@dataclass(frozen=True)
class Kind:
    """Local jobs that look the same."""

    letter: str
    name: str
    """A word, which is a class in the style sheet too."""
    words: str
    mark: str
    """An SVG path in a square of 10 × 10."""


KINDS = (
    Kind("f", "failed", "failed", "M1.5 3l1.5 -1.5l2 2l2 -2l1.5 1.5l-2 2l2 2l-1.5 1.5l-2 -2l-2 2l-1.5 -1.5l2 -2z"),
    Kind("c", "cancelled", "cancelled", "M1 1l8 8h-8z"),
    Kind("s", "suspended", "suspended", "M1.5 1h2.5v8h-2.5zm4.5 0h2.5v8h-2.5z"),
    Kind("a", "active", "active", "M2 1l7 4l-7 4z"),
    Kind("p", "pending", "pending", "M1 1h8v8h-8zm1.6 1.6v4.8h4.8v-4.8z"),
    Kind("u", "unsubmitted", "unsubmitted", "M4 4h2v2h-2z"),
    Kind("d", "done", "done", "M1 1h8v8h-8z"),
)
"""Those that need a look come first."""

KIND_OF_NAME: Mapping[str, Kind] = {kind.name: kind for kind in KINDS}
_LETTERS = "".join(kind.letter for kind in KINDS)
_KIND_OF_STATE = {
    State.UNSUBMITTED: "unsubmitted",
    State.STAGE_IN: "pending",
    State.PENDING: "pending",
    State.ACTIVE: "active",
    State.SUSPENDED: "suspended",
    State.STAGE_OUT: "active",
    State.DONE: "done",
    State.FAILED: "failed",
}
MOST_CELLS = 10_000


@dataclass(frozen=True)
class Cells:
    """Local jobs as cells; one cell is ``each`` local jobs and shows the one of them that needs a look first."""

    runs: str
    """Letters of kinds, each with the number of cells in a row: ``d40a2``."""
    count: int
    each: int


def kind_of(line: LocalJobLine) -> Kind:
    """How a local job is shown."""
    return kind_of_end(line.outcome) if line.outcome else kind_of_state(line.state)


def kind_of_end(outcome: str) -> Kind:
    """How an end is shown: of a local job, or of a grid job."""
    return KIND_OF_NAME["done" if outcome == "succeeded" else outcome]


def kind_of_state(state: State) -> Kind:
    """How a state is shown."""
    return KIND_OF_NAME[_KIND_OF_STATE[state]]


def count_kinds(lines: Iterable[LocalJobLine]) -> list[tuple[Kind, int]]:
    """How many local jobs are of each kind."""
    counts = Counter(kind_of(line).letter for line in lines)
    return [(kind, counts[kind.letter]) for kind in KINDS]


def render_cells(lines: list[LocalJobLine]) -> Cells:
    """The local jobs as cells, at most `MOST_CELLS`."""
    each = -(-len(lines) // MOST_CELLS) or 1
    letters = [kind_of(line).letter for line in lines]
    shown = [min(letters[at : at + each], key=_LETTERS.index) for at in range(0, len(letters), each)]
    runs = "".join(f"{letter}{sum(1 for _ in run)}" for letter, run in itertools.groupby(shown))
    return Cells(runs, len(shown), each)
