"""A job as GRAM describes it: attributes by their canonical names, each a list of words and nested lists.

Words are what came, byte for byte (bytes that are no UTF-8 as in `os.fsdecode`).
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from adapters import Value, canonical_name


class BadDescription(Exception):
    """What came is no description of a job."""


@dataclass(frozen=True)
class JobDescription:
    """One job, as the GRAM job manager or its argument file describes it."""

    attributes: Mapping[str, tuple[Value, ...]]
    environment: Mapping[str, str] = field(default_factory=dict)
    """What the caller's own environment says of the job: its contact and its proxy."""

    def words(self, name: str) -> tuple[Value, ...]:
        """All values of an attribute; none where it is not there."""
        return self.attributes.get(canonical_name(name), ())

    def word(self, name: str) -> str:
        """The one word of an attribute; empty where there is none, or anything else."""
        values = self.words(name)
        return values[0] if len(values) == 1 and isinstance(values[0], str) else ""


def read_description(text: str) -> JobDescription:
    """The description that the Perl module writes as JSON: every character stands for one byte.

    :raises BadDescription: it is anything else.
    """
    try:
        found = json.loads(text)
        attributes = {
            canonical_name(_decode(name)): _read_values(values) for name, values in found["description"].items()
        }
        environment = {_decode(name): _decode(value) for name, value in found["environment"].items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BadDescription(f"no description of a job: {error}") from error
    return JobDescription(attributes, environment)


def _read_values(values: Sequence[object]) -> tuple[Value, ...]:
    if not isinstance(values, list):
        raise TypeError(f"{values!r} is no list")
    return tuple(_read_values(value) if isinstance(value, list) else _decode(value) for value in values)


def _decode(word: object) -> str:
    if not isinstance(word, str):
        raise TypeError(f"{word!r} is no word")
    return os.fsdecode(word.encode("latin-1"))
