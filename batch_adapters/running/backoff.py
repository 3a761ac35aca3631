"""When to try again what has failed."""


class Backoff:
    """When to try again: after 1 s, then twice as long each time, up to 10 s."""

    SHORTEST = 1.0
    LONGEST = 10.0

    def __init__(self) -> None:
        self._delay = 0.0
        self._until = 0.0

    def allows(self, now: float) -> bool:
        """True when the waiting time is over."""
        return now >= self._until

    def wait(self, now: float) -> None:
        """Wait longer than the last time."""
        self._delay = min(max(self.SHORTEST, 2 * self._delay), self.LONGEST)
        self._until = now + self._delay

    def begin_anew(self, now: float) -> None:
        """Wait as long as was said before, from now on: what was tried has failed after some time."""
        self._until = now + self._delay
