"""Why a local job ended: one closed list, for batch systems' own words and for what people read."""

import enum


class Cause(enum.Enum):
    """Why a local job ended without success; the value stands in documents."""

    EXIT_CODE = "exit-code"
    """The program ended with another exit code than 0."""
    SIGNAL = "signal"
    """A signal ended the program, and nobody says who sent it."""
    TIME_LIMIT = "time-limit"
    """It ran longer than it may."""
    CPU_LIMIT = "cpu-limit"
    """It took more CPU time than it may."""
    MEMORY_LIMIT = "memory-limit"
    """It took more memory than it may, or than there was."""
    CANCELLED_BY_US = "cancelled-by-us"
    """Its grid job was cancelled."""
    CANCELLED_OUTSIDE = "cancelled-outside"
    """Somebody ended it in the batch system, past the job manager."""
    NODE_LOST = "node-lost"
    """Its host, or the batch system's daemon there, was lost."""
    NEVER_STARTED = "never-started"
    """The batch system could not start it."""
    REFUSED = "refused"
    """The batch system did not take it."""
    DRIVER_FAILED = "driver-failed"
    """The driver could not run the program or bring its outputs back."""
    OUTPUTS_MISSING = "outputs-missing"
    """Nothing says that its outputs came back."""

    @property
    def is_cancellation(self) -> bool:
        """True where somebody wanted the end."""
        return self in (Cause.CANCELLED_BY_US, Cause.CANCELLED_OUTSIDE)


CAUSE_OF_WORD = {cause.value: cause for cause in Cause}
