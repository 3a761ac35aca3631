"""Text for people: safe on a terminal, in columns that fit it, with readable times and durations."""

import os
import re
import sys
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from unicodedata import combining, east_asian_width

from jobmanager.database.times import render_time

_COMMANDS = re.compile("[\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    """The text without anything that a terminal could interpret as a command."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in text)


def render_line(text: str) -> str:
    """The text as one printable line."""
    return printable(" ".join(text.split()))


def render_markup(markup: str) -> str:
    """The same XML with character references for characters that a terminal might interpret."""
    return _COMMANDS.sub(lambda found: f"&#{ord(found[0])};", markup)


def render_moment(seconds: float) -> str:
    """Seconds since the epoch as documents, lists and logs have them: ``2026-11-22T08:30:00Z``."""
    try:
        return render_time(seconds)
    except (ValueError, OverflowError, OSError):  # a stamp from after the year 9999
        return f"second {seconds:.0f}"


def is_terminal() -> bool:
    """True if standard output is a terminal; it may be closed, or replaced by another object."""
    return bool(getattr(sys.stdout, "isatty", bool)())


def terminal_width() -> int | None:
    """The width of the terminal on standard output; None if it is not a terminal."""
    if not is_terminal():
        return None
    named = os.environ.get("COLUMNS", "")  # POSIX: takes precedence over the terminal's own answer
    width = int(named) if named.isascii() and named.isdigit() else os.get_terminal_size(sys.stdout.fileno()).columns
    return width or None


def render_listing(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Rows as columns under a heading; if the terminal is too narrow, a block for each row, without empty cells."""
    table = [heading, *rows]
    width = terminal_width()
    if width is None or _fit_widths(table, width) is not None:
        return render_columns(table)
    blocks = ([(name, cell) for name, cell in zip(heading, row, strict=True) if cell] for row in rows)
    return "\n\n".join(map(render_columns, blocks))


def render_columns(rows: Sequence[Sequence[str]]) -> str:
    """Rows as aligned columns; on a terminal they wrap at words, and nothing is cut."""
    width = terminal_width()
    widths = _fit_widths(rows, width)
    lines = (_render_row(row, widths) if widths else _fill("  ".join(row), width or 0) for row in rows)
    return "\n".join(line.rstrip() for of_row in lines for line in of_row)


_GAP = 2
_HANGING = "    "
_LAST = 16
"""The minimum width of the last column, even with longer words: a wrapped path can still be copied."""


def _measure(text: str) -> int:
    """The width of the text on a terminal: two for a Chinese character, zero for a combining accent."""
    if text.isascii():
        return len(text)
    return sum(0 if combining(letter) else 1 + (east_asian_width(letter) in "WF") for letter in text)


def _split(cell: str) -> list[str]:
    """The words of a cell, the first with its leading blanks, which indent it or align a number."""
    return re.findall(r"^\s*\S+|\S+", cell) or [""]


def _fit_widths(rows: Sequence[Sequence[str]], most: int | None) -> list[int] | None:
    """The columns' widths, at most ``most`` in total; None if the longest words do not fit."""
    columns = list(zip(*rows, strict=True))
    widths = [max(map(_measure, column)) for column in columns]
    if most is None:
        return widths
    room = most - _GAP * (len(columns) - 1)
    if sum(widths) <= room:
        return widths
    least = [max(_measure(word) for cell in column for word in _split(cell)) for column in columns]
    least[-1] = min(least[-1], _LAST)
    if sum(least) > room:
        return None
    widths = [max(min(width, room), low) for width, low in zip(widths, least, strict=True)]
    while sum(widths) > room:
        spare = [width if width > low else 0 for width, low in zip(widths, least, strict=True)]
        widths[spare.index(max(spare))] -= 1
    return widths


def _render_row(row: Sequence[str], widths: Sequence[int]) -> Iterator[str]:
    cells = [_fill(cell, width, "") for cell, width in zip(row, widths, strict=True)]
    for parts in zip_longest(*cells, fillvalue=""):
        padded = (part + " " * (width - _measure(part)) for part, width in zip(parts, widths, strict=True))
        yield (" " * _GAP).join(padded)


def _fill(text: str, width: int, hanging: str = _HANGING) -> list[str]:
    """Lines of at most that width (unless a word is longer), all but the first with a hanging indent."""
    if _measure(text) <= width:
        return [text]
    first, *words = _split(text)
    lines = [first]
    for word in words:
        if _measure(lines[-1]) + 1 + _measure(word) <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(hanging + word)
    return lines


def render_duration(seconds: float) -> str:
    """``90 s``, ``30 min`` or ``2.5 h``."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.3g} h"
