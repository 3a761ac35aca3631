"""The collector's protocol: a packet of 001 lines is answered by a packet with one word for each line.

The socket's type is SOCK_SEQPACKET: a packet arrives completely or not at all.
"""

import enum
import re
from collections.abc import Sequence
from pathlib import Path

from batch_adapters.states import Event, State, render_event

MOST_EVENTS = 500
"""Most events in one packet."""
LONGEST_PACKET = 32_768
"""Bytes."""
_PATIENCE = 1.0
"""Seconds for each of connecting, sending and receiving the answer."""

# Stricter than GRAM's reader; group 1 is the id, group 2 the uid in it.
_LINE = re.compile(rb"001;[0-9]{1,12};(([0-9]{1,10})\.[a-z][a-z0-9]{7});([1248]);([0-9]{1,5})")
_HIGHEST_EXIT_CODE = 65_535


class Receipt(enum.Enum):
    """What became of one line."""

    TAKEN = "taken"
    """It is in the day file on the disk."""
    LATER = "later"
    """It could not be written now, or the account has sent too many lines: send it again."""
    REFUSED = "refused"
    """It is not an event of a grid job, or its id does not contain the sender's uid."""


def render_id(uid: int, grid_job: str) -> str:
    """A grid job's id in GRAM: it contains the account's uid, and no id is a prefix of another."""
    return f"{uid}.{grid_job}"


def read_lines(packet: bytes, uid: int) -> list[Event | None]:
    """The event in each line of a packet; None for a line that is not this account's event, or is torn."""
    *lines, torn = packet.split(b"\n")
    return [_read_line(line, uid) for line in lines] + ([None] if torn else [])


def _read_line(line: bytes, uid: int) -> Event | None:
    match = _LINE.fullmatch(line)
    if match is None or match[2].decode() != str(uid) or int(match[4]) > _HIGHEST_EXIT_CODE:
        return None
    return Event(0, match[1].decode(), State(int(match[3])), int(match[4]))


def hand_in(collector: Path, events: Sequence[Event]) -> list[Receipt]:
    """Send events to the collector on that socket; its receipt for each. The collector sets the events' times.

    :raises OSError: it does not answer; some events may have been taken.
    """
    answers = []
    for start in range(0, len(events), MOST_EVENTS):
        part = events[start : start + MOST_EVENTS]
        packet = "".join(map(render_event, part)).encode()
        answers += _read_answers(collector, _ask(collector, packet), len(part))
    return answers


def _ask(collector: Path, packet: bytes) -> bytes:
    import socket  # imported late: most processes only need ids from here

    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.settimeout(_PATIENCE)
        connection.connect(str(collector))
        connection.sendall(packet)
        return connection.recv(LONGEST_PACKET)


def _read_answers(collector: Path, packet: bytes, wanted: int) -> list[Receipt]:
    try:
        answers = [Receipt(word) for word in packet.decode("ascii", "replace").splitlines()]
    except ValueError as error:
        raise OSError(f"{collector} answers what no collector does: {error}") from error
    if len(answers) != wanted:
        raise OSError(f"{collector} answered {len(answers)} of {wanted} events")
    return answers


def render_answers(answers: Sequence[Receipt]) -> bytes:
    """The packet that answers."""
    return "".join(f"{answer.value}\n" for answer in answers).encode()
