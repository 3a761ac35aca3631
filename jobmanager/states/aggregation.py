"""How local jobs' states make a grid job's state, and what is to be done next: pure functions, no I/O."""

import enum
from collections.abc import Mapping, Sequence

from batch_adapters.states import State

_FINAL = (State.DONE, State.FAILED)


def aggregate(counts: Mapping[State, int], has_begun: bool = False) -> State:
    """The one state of a grid job whose local jobs are in these states.

    STAGE_OUT means that all local jobs have ended and their outputs are to be collected: what the grid job is then,
    DONE or FAILED, is `judge`'s to say. SUSPENDED means that none runs, and some are suspended while the others wait.
    Any other mixture that has begun counts as ACTIVE: GRAM takes no way back to PENDING; so does what was begun in an
    earlier attempt (``has_begun``).
    """
    state = _aggregate(counts)
    return State.ACTIVE if has_begun and state in (State.UNSUBMITTED, State.PENDING) else state


def _aggregate(counts: Mapping[State, int]) -> State:
    present = {state for state, number in counts.items() if number}
    remaining = present.difference(_FINAL)
    if not present or present == {State.UNSUBMITTED}:
        return State.UNSUBMITTED
    if not remaining:
        return State.STAGE_OUT
    if State.ACTIVE in present:
        return State.ACTIVE
    if State.SUSPENDED in remaining and remaining <= {State.SUSPENDED, State.PENDING}:
        return State.SUSPENDED
    if remaining == present and State.SUSPENDED not in present:
        return State.PENDING
    return State.ACTIVE


def aggregate_steps(steps: Sequence[State | None]) -> State:
    """The one state of a structured grid job that has not ended, by the states of its steps, None for one not begun.

    It follows its first step until that is ACTIVE, and never goes back; STAGE_OUT: no step is to come any more.
    """
    begun = [state for state in steps if state is not None]
    last = begun[-1] if begun else State.UNSUBMITTED
    if last is State.FAILED or (last is State.DONE and len(begun) == len(steps)):
        return State.STAGE_OUT
    if last is State.STAGE_IN and len(begun) < 2:
        return State.UNSUBMITTED
    if last is State.SUSPENDED or (len(begun) < 2 and last in (State.UNSUBMITTED, State.PENDING)):
        return last
    return State.ACTIVE


def judge(succeeded: int, total: int, min_success: float, cancelled: bool) -> State:
    """DONE where enough local jobs succeeded (``min_success``: a fraction of all) and nobody cancelled, else FAILED."""
    if cancelled or succeeded < min_success * total - 1e-9:
        return State.FAILED
    return State.DONE


class Task(enum.StrEnum):
    """What one worker process does; the subject is a grid job, of RECONCILE a batch system."""

    SUBMIT = "submit"
    CANCEL = "cancel"
    COLLECT = "collect"
    RECONCILE = "reconcile"
    ADVANCE = "advance"
    REPORTS = "reports"
    """Beside the other tasks of the grid job, so that a handler that hangs keeps none of them from being done."""
    WAKE = "wake"
    """The server's own, when the monitor has gone: another one, where nobody else would miss it. It has no subject."""


def next_task(counts: Mapping[State, int], cancelled: bool) -> Task | None:
    """The task of a grid job that has not ended, by the states of its local jobs; None: it waits for one of these."""
    present = {state for state, number in counts.items() if number}
    is_over = present.issubset(_FINAL)
    if cancelled:
        return Task.COLLECT if is_over else Task.CANCEL
    if not present or State.UNSUBMITTED in present:
        return Task.SUBMIT
    return Task.COLLECT if is_over else None


def next_task_of_steps(steps: Sequence[State | None], cancelled: bool) -> Task | None:
    """The task of a structured grid job that has not ended, by the states of its steps, None for one not begun.

    ADVANCE begins the next step. None: it waits for the step that runs.
    """
    begun = [state for state in steps if state is not None]
    is_over = set(begun).issubset(_FINAL)
    if not is_over:
        return Task.CANCEL if cancelled else None
    if cancelled or State.FAILED in begun or len(begun) == len(steps):
        return Task.COLLECT
    return Task.ADVANCE
