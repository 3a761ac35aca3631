"""Renders the templates: every text is escaped, and has no control characters."""

import getpass
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urlencode

import jinja2
from starlette.responses import HTMLResponse

from jobmanager.views.text import render_line

_LONGEST = 200


def _line(text: object, longest: int = _LONGEST) -> str:
    """A text as one line of bounded length, without control characters."""
    shown = render_line(str(text)[: longest + 1])
    return shown if len(shown) <= longest else f"{shown[:longest]}…"


def _text(text: str) -> str:
    """A text of several lines without other control characters."""
    lines = text.replace("\r\n", "\n")
    return "".join(letter if letter.isprintable() or letter in "\n\t" else "\ufffd" for letter in lines)


def _moment(seconds: float, form: str = "%Y-%m-%d %H:%M:%S") -> str:
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime(form)
    except (ValueError, OverflowError, OSError):  # a stamp from after the year 9999
        return f"second {seconds:.0f}"


def render_duration(seconds: float | None) -> str:
    """A duration in its two largest units; empty if it is not known."""
    if seconds is None:
        return ""
    whole = max(0, round(seconds))
    days, hours, minutes = whole // 86400, whole // 3600 % 24, whole // 60 % 60
    if days:
        return f"{days} d {hours} h"
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {whole % 60} s" if minutes else f"{whole} s"


def _bytes(size: int) -> str:
    value = float(size)
    for unit in ("bytes", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "bytes" else f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} TB"


class Templates:
    """The page templates of one site."""

    def __init__(self, site: str) -> None:
        self._environment = jinja2.Environment(
            loader=jinja2.FileSystemLoader(Path(__file__).with_name("templates")),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._environment.globals.update(site=site, user=getpass.getuser())
        self._environment.filters.update(
            line=_line,
            text=_text,
            moment=_moment,
            iso=lambda seconds: _moment(seconds, "%Y-%m-%dT%H:%M:%SZ"),
            clock=lambda seconds: _moment(seconds, "%H:%M:%S"),
            duration=render_duration,
            bytes=_bytes,
            number="{:,}".format,
        )

    def render(self, template: str, page: object, status: int = 200) -> HTMLResponse:
        """Render a page from a dataclass, which is ``page`` in the template."""
        text = self._environment.get_template(template).render(page=page)
        # A lone surrogate, from a name that is not UTF-8, cannot be encoded.
        return HTMLResponse(text.encode("utf-8", "replace"), status)


@dataclass(frozen=True)
class Sorting:
    """What a table is sorted by; in an address, ``-`` before it means descending."""

    column: str
    is_descending: bool
    parameters: Mapping[str, str]
    anchor: str = ""

    def direction(self, column: str) -> str | None:
        """ARIA's word for the direction; None if the table is not sorted by that column."""
        return None if column != self.column else "descending" if self.is_descending else "ascending"

    def address(self, column: str) -> str:
        """The address of the table sorted by a column; for the present column, in the other direction."""
        minus = "-" if column == self.column and not self.is_descending else ""
        others = {name: value for name, value in self.parameters.items() if name not in ("sort", "page")}
        return f"?{urlencode({**others, 'sort': minus + column})}{self.anchor}"


def read_sorting(parameters: Mapping[str, str], columns: Iterable[str], usual: str, anchor: str = "") -> Sorting:
    """The order in a request, or the usual one."""
    asked = parameters.get("sort", "")
    word = asked if asked.removeprefix("-") in columns else usual
    return Sorting(word.removeprefix("-"), word.startswith("-"), dict(parameters), anchor)


@dataclass(frozen=True)
class Paging:
    """Which page of a long table is shown; pages count from 1."""

    label: str
    page: int
    last: int
    size: int
    parameters: Mapping[str, str]
    anchor: str = ""

    @property
    def first(self) -> int:
        """The first row, counted from 0."""
        return (self.page - 1) * self.size

    def address(self, page: int) -> str:
        """Another page of the same table."""
        return f"?{urlencode({**self.parameters, 'page': page})}{self.anchor}"


def read_paging(label: str, parameters: Mapping[str, str], count: int, size: int, anchor: str = "") -> Paging:
    """The page in a request, or the nearest existing one."""
    asked = parameters.get("page", "1")
    last = max(1, -(-count // size))
    page = int(asked) if asked.isascii() and asked.isdigit() and len(asked) < 9 else 1
    return Paging(label, min(max(page, 1), last), last, size, dict(parameters), anchor)
