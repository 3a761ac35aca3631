"""What a job type says whose grid jobs are made of other grid jobs."""

from dataclasses import dataclass

from adapters.attributes import Value


@dataclass(frozen=True)
class Step:
    """One grid job of a sequence: it starts when the one before is done."""

    name: str
    request: tuple[tuple[str, tuple[Value, ...]], ...]
    """Its attributes and their values, its job type among them."""
    input_step: str = ""
    """The earlier step whose outputs it reads; empty: none."""
