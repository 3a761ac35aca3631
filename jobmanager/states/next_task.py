"""What a worker does with a grid job next: one task at a time, each of which can be killed and begun again."""

import enum
from collections.abc import Mapping, Sequence

from batch_adapters.states import State

_FINAL = (State.DONE, State.FAILED)


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
