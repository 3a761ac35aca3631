"""The table of command lines: of a grid job, written once, and of each submission, which its drivers read.

Line N of a grid job's table is for index N: the sha256 of what follows it, the index, and shell words. A submission's
table has the lines of its local jobs, in the order of their indexes: line N is for position N. It is cut into files
TOKEN.0, TOKEN.1 …, of which a driver reads one.
"""

import hashlib
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from sandbox.files import replace_file, sync_folder
from sandbox.limits import SandboxRefused

LINES_PER_FILE = 100
"""Of a submission's table: so much a driver reads, whatever the size of the grid job."""


@dataclass(frozen=True)
class LocalJobEntry:
    """One local job's line of the table: its slice, if its job type has slices, and its command."""

    command: tuple[str, ...]
    first_event: int | None = None
    events: int | None = None
    seed: int | None = None


def render_table(entries: Iterable[LocalJobEntry]) -> bytes:
    """The table of a grid job's local jobs, in the order of their indexes.

    :raises SandboxRefused: for an empty command and for NUL characters.
    """
    return b"".join(_render_line(index, entry) for index, entry in enumerate(entries, 1))


def _render_line(index: int, entry: LocalJobEntry) -> bytes:
    line = f"{index} {_render_entry(entry)}\n".encode("utf-8", "surrogateescape")
    return hashlib.sha256(line).hexdigest().encode() + b" " + line


def _render_entry(entry: LocalJobEntry) -> str:
    if not entry.command or not entry.command[0]:
        raise SandboxRefused("a local job has no command: its job type must name a program")
    words = "".join(
        f"{name}={value} "
        for name, value in (("first_event", entry.first_event), ("events", entry.events), ("seed", entry.seed))
        if value is not None
    )
    # A line break lies within single quotes always; the driver knows it as $NL.
    command = " ".join(quote_word(word).replace("\n", "'\"$NL\"'") for word in entry.command)
    return f"{words.strip()}; set -- {command}" if words else f"set -- {command}"


def quote_word(value: object) -> str:
    """A word for the shell.

    :raises SandboxRefused: it holds a NUL character.
    """
    text = str(value)
    if "\0" in text:
        raise SandboxRefused(f"{text!r} holds a NUL character, which no command line can carry")
    return shlex.quote(text)


def write_submission_table(table: Path, token: str, indexes: Sequence[int]) -> None:
    """Write the table of a submission beside the grid job's; ``indexes`` are those of its local jobs, in their order.

    Written again, it is the same: a driver may be reading it.

    :raises OSError: it cannot be written, or the grid job's table cannot be read.
    """
    wanted = set(indexes)
    with open(table, "rb") as stream:
        lines = [line for index, line in enumerate(islice(stream, indexes[-1]), 1) if index in wanted]
    for start in range(0, len(lines), LINES_PER_FILE):
        name = f"{token}.{start // LINES_PER_FILE}"
        replace_file(table.with_name(name), b"".join(lines[start : start + LINES_PER_FILE]))
    sync_folder(table.parent)
