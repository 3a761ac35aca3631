"""What people and programs read of a query's answer: harmless lines, whatever is in the documents."""

import re
from collections.abc import Callable, Iterable, Mapping
from xml.sax.saxutils import escape, quoteattr

from jobmanager.database.documents import render_text
from jobmanager.views.grid_jobs import printable, render_columns, render_line, render_markup
from jobmanager.views.query.runner import Item, Kind, QueryResult

_WIDEST = 80


def render_items(result: QueryResult) -> Iterable[str]:
    """A line per item: the markup of elements, the value of anything else."""
    return (_render_markup_line(i.text) if i.kind is Kind.ELEMENT else _render_value_line(i.text) for i in result.items)


def render_xml(result: QueryResult) -> Iterable[str]:
    """One well-formed document, of root ``result``: elements as they are, anything else in an element of its kind."""
    yield "<result>"
    for item in result.items:
        yield render_markup(item.text if item.kind is Kind.ELEMENT else _wrap(item))
    yield "</result>"


def render_table(result: QueryResult) -> Iterable[str]:
    """A row per item: its attributes, or its value, under their names; long ones are cut."""
    rows = [dict(item.fields) or {"value": item.text} for item in result.items]
    names = list(dict.fromkeys(name for row in rows for name in row))
    cells = [[_cut(row.get(name, "")) for name in names] for row in rows]
    return render_columns([[_cut(name) for name in names], *cells]).splitlines() if rows else ["nothing found"]


RENDERERS: Mapping[str, Callable[[QueryResult], Iterable[str]]] = {
    "text": render_items,
    "table": render_table,
    "xml": render_xml,
}


def _render_markup_line(markup: str) -> str:
    """The same XML without line breaks: in text and attributes a character reference says the same."""
    return render_markup(markup).replace("\n", "&#10;").replace("\t", "&#9;")


def _render_value_line(value: str) -> str:
    return printable(re.sub(r"\s", " ", value))


def _wrap(item: Item) -> str:
    kind = item.kind.value
    name = f" name={quoteattr(render_text(item.fields[0][0]))}" if item.kind is Kind.ATTRIBUTE else ""
    return f"<{kind}{name}>{escape(render_text(item.text))}</{kind}>"


def _cut(text: str) -> str:
    line = render_line(text[: 2 * _WIDEST])
    return line if len(line) <= _WIDEST else f"{line[: _WIDEST - 1]}…"
