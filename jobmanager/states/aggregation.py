"""Computes a grid job's state from those of its local jobs, and its next task; pure functions without I/O."""

import enum
from collections import Counter
from collections.abc import Iterable, Mapping

from batch_adapters.states import State

_FINAL = (State.DONE, State.FAILED)


def aggregate(counts: Mapping[State, int], has_begun: bool = False) -> State:
    """The state of a grid job whose local jobs are in these states.

    STAGE_OUT means that all local jobs have ended and their outputs are to be collected; then `judge` decides between
    DONE and FAILED. SUSPENDED means that none runs, and some are suspended while the others wait. Any other mixture is
    ACTIVE if anything has begun, even in an earlier attempt (``has_begun``): GRAM knows no way back to PENDING.
    """
    present = {state for state, number in counts.items() if number}
    remaining = present.difference(_FINAL)
    if present and not remaining:
        return State.STAGE_OUT
    if State.SUSPENDED in remaining and remaining <= {State.SUSPENDED, State.PENDING}:
        return State.SUSPENDED
    if has_begun or present.difference({State.UNSUBMITTED, State.PENDING}):
        return State.ACTIVE
    return State.PENDING if State.PENDING in present else State.UNSUBMITTED


def aggregate_steps(steps: Mapping[str, State | None], needs: Mapping[str, Iterable[str]]) -> State:
    """The state of a structured grid job that has not ended; a step that has not begun has the state None.

    It is computed from the steps that have begun, as otherwise from local jobs. STAGE_OUT: no step is to come.
    """
    begun = Counter(_OF_STEP.get(state, state) for state in steps.values() if state is not None)
    state = aggregate(begun)
    return State.ACTIVE if state is State.STAGE_OUT and find_due_steps(steps, needs) else state


_OF_STEP = {State.STAGE_IN: State.UNSUBMITTED, State.STAGE_OUT: State.ACTIVE}
"""What these states of a step count as."""


def find_due_steps(steps: Mapping[str, State | None], needs: Mapping[str, Iterable[str]]) -> list[str]:
    """The steps that have not begun, and whose needed steps (``needs``, by name) are all done."""
    return [
        name
        for name, state in steps.items()
        if state is None and all(steps[needed] is State.DONE for needed in needs[name])
    ]


def judge(succeeded: int, total: int, min_success: float, cancelled: bool) -> State:
    """DONE if enough local jobs succeeded (``min_success``: a fraction of all) and nobody cancelled, else FAILED."""
    if cancelled or succeeded < min_success * total - 1e-9:
        return State.FAILED
    return State.DONE


class Task(enum.StrEnum):
    """What one worker process does.

    The subject is a grid job, of RECONCILE a batch system, of NOTIFY and CREDENTIALS nothing.
    """

    SUBMIT = "submit"
    CANCEL = "cancel"
    COLLECT = "collect"
    RECONCILE = "reconcile"
    ADVANCE = "advance"
    REPORTS = "reports"
    """Runs in parallel with other tasks of the grid job, so that a handler that hangs does not block them."""
    NOTIFY = "notify"
    CREDENTIALS = "credentials"
    """Update the copies of credentials, for all grid jobs."""
    WAKE = "wake"
    """Start another monitor; used by the workers' server when the monitor has died. It has no subject."""


class Due(enum.Enum):
    """When failed local jobs are retried, or end their grid job."""

    NEVER = "never"
    LATER = "later"
    """After a pause."""
    NOW = "now"


def next_task(counts: Mapping[State, int], cancelled: bool, due: Due = Due.NEVER) -> Task | None:
    """The next task of a grid job that has not ended, by the states of its local jobs; None: it waits.

    :param due: when those that failed are retried.
    """
    present = {state for state, number in counts.items() if number}
    is_over = present.issubset(_FINAL)
    if cancelled:
        return Task.COLLECT if is_over else Task.CANCEL
    if not present or State.UNSUBMITTED in present or due is Due.NOW:
        return Task.SUBMIT
    return Task.COLLECT if is_over and due is Due.NEVER else None


def next_task_of_steps(
    steps: Mapping[str, State | None], needs: Mapping[str, Iterable[str]], cancelled: bool
) -> Task | None:
    """The next task of a structured grid job that has not ended; a step that has not begun has the state None.

    ADVANCE begins the steps that are due. None: it waits for running steps.
    """
    if not cancelled and find_due_steps(steps, needs):
        return Task.ADVANCE
    is_over = {state for state in steps.values() if state is not None}.issubset(_FINAL)
    if is_over:
        return Task.COLLECT
    return Task.CANCEL if cancelled else None
