"""How much one account may say to the event collector."""

LINES_PER_SECOND = 20.0
MOST_LINES = 1000
"""Lines that an account may say at once."""


class Allowances:
    """How many lines each account may still say: `MOST_LINES` at once, `LINES_PER_SECOND` in the long run."""

    def __init__(self) -> None:
        self._left: dict[int, tuple[float, float]] = {}

    def take(self, uid: int, wanted: int, now: float) -> int:
        """How many of the wanted lines are allowed now; ``now``: seconds of a clock that nobody sets."""
        left, then = self._left.get(uid, (float(MOST_LINES), now))
        left = min(MOST_LINES, left + (now - then) * LINES_PER_SECOND)
        allowed = min(wanted, int(left))
        self._left[uid] = left - allowed, now
        return allowed
