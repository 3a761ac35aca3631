"""How local jobs' states make a grid job's state: pure functions, no I/O."""

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
