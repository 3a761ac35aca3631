"""Words of the command line of samgrid-fork; each reader raises ArgumentTypeError, or returns what its name says."""

import argparse
import os

from batch_adapters.fork.jobs import MAX_INDEX, is_token
from batch_adapters.fork.protocol import read_wire

# Each running job costs the queue process one descriptor, of which it has 1024 by default.
MAX_SLOTS = 900
MAX_ARRAY = 1_000_000
_MOST_DIGITS = 18


def read_word(text: str) -> str:
    """The bytes as they were given to us, in the one form that the spool and the protocol use."""
    return read_wire(os.fsencode(text))


def read_token(text: str) -> str:
    """A submission's name."""
    if not is_token(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no token: at most 15 characters [a-z][a-z0-9-]*")
    return text


def read_array(text: str) -> tuple[int, int]:
    """First and last index."""
    first, dash, last = text.partition("-")
    if not (dash and _is_number(first) and _is_number(last)):
        raise argparse.ArgumentTypeError(f"{text!r} is not FIRST-LAST, as in 1-250")
    if not 1 <= int(first) <= int(last) <= MAX_INDEX or int(last) - int(first) >= MAX_ARRAY:
        raise argparse.ArgumentTypeError(f"{text}: it must rise, begin at 1 or later and have at most {MAX_ARRAY} jobs")
    return int(first), int(last)


def read_variable(text: str) -> tuple[str, str]:
    """Name and value of a variable."""
    name, equals, value = read_word(text).partition("=")
    if not (name and equals):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value


def read_slots(text: str) -> int:
    """How many jobs run at a time."""
    return _read_number(text, MAX_SLOTS)


def read_limit(text: str) -> int:
    """Minutes, or megabytes."""
    return _read_number(text, 10_000_000)


def _is_number(text: str) -> bool:
    return text.isdecimal() and len(text) <= _MOST_DIGITS


def _read_number(text: str, largest: int) -> int:
    if not _is_number(text) or int(text) > largest:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0 to {largest}")
    return int(text)


def read_grace(text: str) -> float:
    """Seconds."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= 86400:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from 0 to 86400")
    return seconds
