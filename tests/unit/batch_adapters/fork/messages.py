"""The other side of the Globus fork starter's protocol: who asks it to start jobs."""

import re
from dataclasses import dataclass

from batch_adapters.fork.protocol import StartRequest, render_escaped


@dataclass(frozen=True)
class Started:
    """A 101 message."""

    tag: str
    pids: tuple[int, ...]


@dataclass(frozen=True)
class NotStarted:
    """A 102 message."""

    tag: str
    error: int
    reason: str


def render_start_request(request: StartRequest) -> str:
    """The request as a 100 message, newline included."""
    pairs = [f"{render_escaped(name)}={render_escaped(value)}" for name, value in request.environment]
    attributes = {
        "directory": render_escaped(request.directory),
        "environment": ",".join(pairs),
        "count": str(request.count),
        "executable": render_escaped(request.executable),
        "arguments": ",".join(map(render_escaped, request.arguments)),
        "stdin": render_escaped(request.stdin),
        "stdout": ",".join(map(render_escaped, request.stdout)),
        "stderr": ",".join(map(render_escaped, request.stderr)),
    }
    # Absent and empty differ: "arguments=" is one empty argument.
    absent = {name for name in ("environment", "arguments", "stdout", "stderr") if not getattr(request, name)}
    fields = [f"{name}={values}" for name, values in attributes.items() if name not in absent]
    return ";".join(["100", render_escaped(request.tag), *fields]) + "\n"


def read_answer(line: str) -> Started | NotStarted:
    """The answer that a 101 or 102 message carries."""
    fields = re.findall(r"((?:\\.|[^\\;])*)(?:;|$)", line.removesuffix("\n"))[:-1]
    kind, tag, *rest = (
        re.sub(r"\\(.)", lambda found: "\n" if found[1] == "n" else found[1], field) for field in fields
    )
    if kind == "101":
        return Started(tag, tuple(map(int, rest[0].split(","))))
    assert kind == "102", line
    return NotStarted(tag, int(rest[0]), rest[1])
