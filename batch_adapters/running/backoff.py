"""When to try again what has failed."""


def pause_after(failures: int, shortest: float, longest: float) -> float:
    """Seconds to wait after a number of failures in a row: the shortest pause, doubled each time up to the longest."""
    # A limited exponent: a float could not hold more.
    return min(shortest * 2.0 ** min(failures - 1, 30), longest) if failures > 0 else 0.0


class Backoff:
    """When to try again: after 1 s, doubled each time up to 10 s."""

    SHORTEST = 1.0
    LONGEST = 10.0

    def __init__(self) -> None:
        self._failures = 0
        self._until = 0.0

    def allows(self, now: float) -> bool:
        """True when the pause is over."""
        return now >= self._until

    def wait(self, now: float) -> None:
        """Begin the next, longer pause."""
        self._failures += 1
        self.begin_anew(now)

    def begin_anew(self, now: float) -> None:
        """Begin the same pause again: the attempt took some time before it failed."""
        self._until = now + pause_after(self._failures, self.SHORTEST, self.LONGEST)
