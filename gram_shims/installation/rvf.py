"""GRAM's RSL validation file: which attributes a request may have, from what the job types declare.

The syntax is that of GRAM's own parser (rvf_parser.y of the Grid Community Toolkit), with its oddities: ``Values`` as
a record's last aspect is lost, and a single ``true`` there is a boolean that ends the job manager.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from adapters import Attribute, JobAdapter, Kind, canonical_name
from jobmanager.requests.attributes import COMMON_ATTRIBUTES

_HEAD = Path(__file__).with_name("templates") / "samgrid.rvf"
"""What the file begins with."""
_NOT_OURS = frozenset(
    (
        "executable", "jobtype", "proxytimeout", "remoteiourl", "restart", "restartcontacts", "rslsubstitution",
        "stderr", "stderrposition", "stdout", "stdoutposition",
    )
)  # fmt: skip
"""Said above, or valid in GRAM's base file at other times than a submit: what a job type declares must not end that."""
_PLAIN_WORD = re.compile(r"[A-Za-z0-9_.:+-]+", re.ASCII)


@dataclass(frozen=True)
class _Declared:
    """An attribute, and whose it is: a job type's, or "every job type"'s."""

    attribute: Attribute
    owner: str


def render_rvf(job_types: Mapping[str, type[JobAdapter]]) -> str:
    """The file for these job types, by name; each attribute once, whatever the number of types that declare it.

    There is no ``Default`` and no ``RequiredWhen``: both would bind requests of every type.
    """
    records: dict[str, list[_Declared]] = {}
    for declared in _find_declared(job_types):
        records.setdefault(canonical_name(declared.attribute.name), []).append(declared)
    names = [name for name in sorted(job_types) if _PLAIN_WORD.fullmatch(name)]
    known = " ".join(["single", "multiple", "mpi", "condor", *names])
    blocks = [_HEAD.read_text().format(types=", ".join(sorted(job_types)), values=known)]
    blocks += [_render_record(name, found) for name, found in records.items() if name not in _NOT_OURS]
    return "\n".join(blocks)


def _find_declared(job_types: Mapping[str, type[JobAdapter]]) -> Iterable[_Declared]:
    for attribute in COMMON_ATTRIBUTES:
        yield _Declared(attribute, "every job type")
    for job_type, handler in sorted(job_types.items()):
        for attribute in handler.attributes:
            yield _Declared(attribute, job_type)


def _render_record(name: str, declared: Iterable[_Declared]) -> str:
    texts = [f"{one.owner}: {one.attribute.doc} ({one.attribute.describe()})" for one in declared]
    lines = [f"Attribute: {name}", f'Description: "{_render_text("; ".join(texts))}"']
    choices = _find_choices([one.attribute for one in declared])
    if choices:
        lines.append(f"Values: {' '.join(choices)}")
    return "\n".join([*lines, "ValidWhen: GLOBUS_GRAM_JOB_SUBMIT", ""])


def _find_choices(attributes: Iterable[Attribute]) -> list[str]:
    """What GRAM may check: every value that any of the types takes, nothing where one of them takes more."""
    words: dict[str, None] = {}
    for attribute in attributes:
        if attribute.kind is not Kind.TEXT or not all(map(_PLAIN_WORD.fullmatch, attribute.choices)):
            return []
        if not attribute.choices:
            return []
        words.update(dict.fromkeys(attribute.choices))
    # One choice alone could be "true".
    return list(words) if len(words) > 1 else []


def _render_text(text: str) -> str:
    line = "".join(letter if letter.isprintable() else "?" for letter in " ".join(text.split()))
    return line.replace('"', "'")
