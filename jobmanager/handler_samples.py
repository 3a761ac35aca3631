"""A request made from nothing but the declarations of a handler."""

from pathlib import Path

from adapters import EVENTS, Attribute, JobAdapter, Kind, Value, canonical_name
from jobmanager.request import TYPE_ATTRIBUTE, Given

FILE = "sample"
"""The file beside the request that every attribute of a file names: a program that does nothing."""
EVENTS_PER_LOCAL_JOB = 2
_EVENTS = 5
"""They make slices of different sizes."""


def make_sample(handler: type[JobAdapter], folder: Path) -> Given:
    """A request with the required attributes only, its file put into ``folder``."""
    program = folder / FILE
    program.write_text("#!/bin/sh\n")
    program.chmod(0o700)
    required = [(attribute.name, _make_values(attribute)) for attribute in handler.attributes if attribute.required]
    return [(TYPE_ATTRIBUTE.name, (handler.jobType,)), *required]


def _make_values(attribute: Attribute) -> tuple[Value, ...]:
    if attribute.choices:
        return (attribute.choices[0],)
    if attribute.kind in (Kind.INTEGER, Kind.NUMBER):
        return (_make_number(attribute),)
    if attribute.kind is Kind.FLAG:
        return ("no",)
    if attribute.kind is Kind.PAIRS:
        return (("NAME", "value"),)
    return (FILE,)


def _make_number(attribute: Attribute) -> str:
    wanted = _EVENTS if canonical_name(attribute.name) == canonical_name(EVENTS.name) else 1
    low = attribute.minimum if attribute.minimum is not None else wanted
    high = attribute.maximum if attribute.maximum is not None else wanted
    return str(min(max(wanted, low), high))
