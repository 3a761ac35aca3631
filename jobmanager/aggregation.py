"""How local jobs' states make a grid job's state: pure functions, no I/O."""

from collections.abc import Mapping

from batch_adapters.states import State

_FINAL = (State.DONE, State.FAILED)


def aggregate(counts: Mapping[State, int], has_begun: bool = False) -> State:
    """The one state of a grid job whose local jobs are in these states.

    STAGE_OUT means that all local jobs have ended and their outputs are to be collected: what the grid job is then,
    DONE or FAILED, is `judge`'s to say. A mixture that has begun counts as ACTIVE: GRAM takes no way back to PENDING;
    so does what was begun in an earlier attempt (``has_begun``).
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
    if remaining == {State.SUSPENDED}:
        return State.SUSPENDED
    if remaining == present and State.SUSPENDED not in present:
        return State.PENDING
    return State.ACTIVE


def judge(succeeded: int, total: int, min_success: float, cancelled: bool) -> State:
    """DONE where enough local jobs succeeded (``min_success``: a fraction of all) and nobody cancelled, else FAILED."""
    if cancelled or succeeded < min_success * total - 1e-9:
        return State.FAILED
    return State.DONE
