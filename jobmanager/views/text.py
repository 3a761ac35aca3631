"""Text that people read: harmless on a terminal, in columns, with times and durations in their words."""

import re
from collections.abc import Sequence
from datetime import datetime

_COMMANDS = re.compile("[\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    """The text without anything that a terminal could take for a command."""
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in text)


def render_line(text: str) -> str:
    """The text as a part of one printable line: a program's output may have several."""
    return printable(" ".join(text.split()))


def render_markup(markup: str) -> str:
    """The same XML with a character reference for each character that a terminal may obey: no name can have one."""
    return _COMMANDS.sub(lambda found: f"&#{ord(found[0])};", markup)


def render_local_time(seconds: float) -> str:
    """Seconds since the epoch as ISO 8601 in the reader's time zone, which is named."""
    try:
        return datetime.fromtimestamp(seconds).astimezone().isoformat(timespec="seconds")
    except (ValueError, OverflowError, OSError):  # a stamp from after the year 9999
        return f"second {seconds:.0f}"


def render_columns(rows: Sequence[Sequence[str]]) -> str:
    """Rows as columns that line up."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)


def render_clock(seconds: float, now: float) -> str:
    """The time of day in the reader's time zone; of another day than now with its date."""
    moment = datetime.fromtimestamp(seconds)
    is_today = moment.date() == datetime.fromtimestamp(now).date()
    return moment.strftime("%H:%M:%S" if is_today else "%Y-%m-%d %H:%M:%S")


def render_duration(seconds: float) -> str:
    """``90 s``, ``30 min`` or ``2.5 h``."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.3g} h"
