"""Queries of the job database; each runs in a child process with limits, so that no expression can do harm."""

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path
from xml.sax.saxutils import escape, quoteattr

from lxml import etree

from batch_adapters.launch import command_line
from batch_adapters.states import STATE_OF_WORD
from jobmanager import UserError
from jobmanager.database.documents import SCHEMA_FILE, render_text
from jobmanager.database.local_job import Outcome
from jobmanager.requests.attributes import suggest
from jobmanager.site.account import Account
from jobmanager.views.text import printable, render_line, render_listing, render_markup

MOST_LETTERS = 32_768
"""The longest expression that is evaluated."""

_KEPT_VARIABLES = ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "PYTHONHOME")
_MEGABYTE = 1_000_000
_LONGEST_FAULT = 500
_LOOK = 0.1
"""Seconds between two looks at how much memory a query uses."""


class QueryError(UserError):
    """An expression is wrong, or exceeded a limit; the message is one printable line with the expression."""


class Language(Enum):
    """What an expression is written in."""

    XPATH = "XPath"
    """XPath 1.0 with the regular expressions of EXSLT, as ``re:test``."""
    XQUERY = "XQuery"
    """XQuery 3.1, of which XPath 3.1 is a part: needs the extra ``xquery``."""


class ItemKind(Enum):
    """What an item of an answer is."""

    ELEMENT = "element"
    ATTRIBUTE = "attribute"
    TEXT = "text"
    VALUE = "value"
    """A number, a string, a boolean …: not a node."""


@dataclass(frozen=True)
class QueryLimits:
    """What one expression may use."""

    seconds: float = 60
    memory: int = 4_000 * _MEGABYTE
    """Bytes of its process."""
    answer: int = 256 * _MEGABYTE
    """Bytes of text."""


@dataclass(frozen=True)
class Item:
    """One item of an answer."""

    kind: ItemKind
    text: str
    """The markup of an element, the value of anything else; unchecked: it may contain terminal commands."""
    fields: tuple[tuple[str, str], ...] = ()
    """Names and values, unchecked: an element's attributes and its text as ``text()``; or the attribute itself."""


@dataclass(frozen=True)
class QueryResult:
    """What an expression found, in its order."""

    items: tuple[Item, ...]
    left_out: tuple[str, ...] = ()
    """Why grid jobs were left out: their documents cannot be read."""


def run_limited(
    account: Account,
    job_id: str | None,
    expression: str,
    language: Language = Language.XPATH,
    limits: QueryLimits = QueryLimits(),
) -> QueryResult:
    """What an expression finds in the documents of all grid jobs, or of one; any thread may call this.

    :raises QueryError: it is wrong, or exceeds the limits.
    """
    if len(expression) > MOST_LETTERS:
        raise QueryError(f"{language.value}: an expression has at most {MOST_LETTERS} letters, not {len(expression)}")
    where = f"{language.value} {_shorten(expression)}"
    path, refusal = account.database.path, account.database.refusal
    asked = {
        "database": path and str(path),
        "refusal": refusal,
        "job_id": job_id,
        "expression": expression,
        "language": language.value,
    }
    done = _run_child(json.dumps({**asked, **asdict(limits)}).encode(), limits, where)
    if done.returncode:
        raise QueryError(f"{where}: {_render_end(done.returncode, done.stderr, limits)}")
    answer = json.loads(done.stdout)
    if "fault" in answer:
        raise QueryError(f"{where}: {render_line(answer['fault'])[:_LONGEST_FAULT]}")
    return QueryResult(tuple(_read_item(*item) for item in answer["items"]), tuple(answer["left_out"]))


_NAME = re.compile(r"(?:(?<!<)/|\[|@)\s*([A-Za-z_][\w.-]*)(?![\w.-]|\s*[:($])", re.ASCII)
"""A name of an element or attribute without a prefix; not a function's, an axis', or a word before a variable."""

_BARE = re.compile(r"(?<!:)=\s*([A-Za-z_][\w.-]*)(?![\w.-]|\s*[:(/$])", re.ASCII)
"""A word that something is compared with: an element's name, as it has no quotes."""
_STATE = re.compile(r"@state\s*=\s*[\"']([\w-]+)[\"']", re.ASCII)

_NOTHING = ("", "0", "NaN", "false")
"""What functions make of no nodes."""


def check_names(expression: str, items: Sequence[Item]) -> list[str]:
    """Where nothing was found, a sentence for each name that the schema lacks; programs' own XML may have it."""
    if not all(item.kind is ItemKind.VALUE and item.text in _NOTHING for item in items):
        return []
    schema = etree.parse(SCHEMA_FILE).getroot()
    known = sorted({node.get("name", "") for node in schema.iter("{*}element", "{*}attribute")})
    unquoted = re.sub(r"\"[^\"]*\"|'[^']*'", "''", expression)
    names = dict.fromkeys(_NAME.findall(unquoted))
    hints = [f"the schema has no name {name}{suggest(name, known)}" for name in names if name not in known]
    elements = {node.get("name") for node in schema.iter("{*}element")}
    words = [word for word in dict.fromkeys(_BARE.findall(unquoted)) if word not in elements]
    hints += _check_states(dict.fromkeys(_STATE.findall(expression)))
    return hints + [f'{word} is compared as an element\'s name: the text is "{word}", with quotes' for word in words]


def _check_states(words: Iterable[str]) -> Iterator[str]:
    """A sentence for each word that no local job has as its state, although people see it as one."""
    for word in words:
        if word in {outcome.value for outcome in Outcome}:
            yield f'how a job ended is its outcome: @outcome="{word}"'
        elif word not in STATE_OF_WORD:
            yield f"there is no state {word}{suggest(word, STATE_OF_WORD)}: it is one of {', '.join(STATE_OF_WORD)}"


def _read_item(kind: str, text: str, fields: list[tuple[str, str]]) -> Item:
    return Item(ItemKind(kind), text, tuple((name, value) for name, value in fields))


def _run_child(question: bytes, limits: QueryLimits, where: str) -> "subprocess.CompletedProcess[bytes]":
    environment = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
    # So that no expression can read our secrets.
    environment["LC_ALL"] = "C.UTF-8"
    try:
        return _run_watched(command_line("samgrid-query"), input=question, env=environment, limits=limits)
    except subprocess.TimeoutExpired as error:
        raise QueryError(f"{where}: no answer within {limits.seconds:g} s") from error


def _run_watched(
    command: Sequence[str], *, input: bytes, env: Mapping[str, str], limits: QueryLimits
) -> "subprocess.CompletedProcess[bytes]":
    """The finished command; raises TimeoutExpired. It is killed if it takes more memory than it may.

    Its own limit does not count what Saxon takes for one large array.
    """
    given: bytes | None = input
    pipe, deadline = subprocess.PIPE, time.monotonic() + limits.seconds
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, env=env, cwd="/") as child:
        try:
            while True:
                try:
                    output, errors = child.communicate(given, timeout=_LOOK)
                    return subprocess.CompletedProcess(command, child.returncode, output, errors)
                except subprocess.TimeoutExpired:
                    if time.monotonic() > deadline:
                        raise
                given = None  # it goes on with what it was given
                if _count_resident(child.pid) > limits.memory:
                    child.kill()
        finally:
            child.kill()


def _count_resident(process: int) -> int:
    """Bytes of memory that a process which has not been waited for uses."""
    return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _render_end(status: int, errors: bytes, limits: QueryLimits) -> str:
    if status == -signal.SIGXCPU:
        return f"no answer within {limits.seconds:g} s"
    words = render_line(errors.decode(errors="replace"))[-_LONGEST_FAULT:]
    more = f": {words}" if words else ""
    return f"needs more than {limits.memory // _MEGABYTE} MB of memory, or nests too deep (status {status}){more}"


def _shorten(expression: str) -> str:
    shown = repr(expression)
    return shown if len(shown) <= 300 else f"{shown[:300]}…"


def render_items(result: QueryResult) -> Iterable[str]:
    """A line for each item: the markup of elements, the value of anything else."""
    for item in result.items:
        yield (_render_markup_line if item.kind is ItemKind.ELEMENT else _render_value_line)(item.text)


def render_xml(result: QueryResult) -> Iterable[str]:
    """One well-formed document, of root ``result``: elements, indented; anything else in an element of its kind."""
    yield "<result>"
    for item in result.items:
        yield render_markup("  " + (_indent(item.text) if item.kind is ItemKind.ELEMENT else _wrap(item)))
    yield "</result>"


def _indent(markup: str) -> str:
    """The same XML with elements on separate lines, unless there is text between them."""
    try:
        element = etree.fromstring(markup, etree.XMLParser(huge_tree=True, resolve_entities=False))
    except etree.XMLSyntaxError:  # a comment, say
        return markup
    texts = (text for node in element.iter() if len(node) for text in (node.text, *(child.tail for child in node)))
    if any((text or "").strip() for text in texts):
        return markup
    etree.indent(element, level=1)
    return etree.tostring(element, encoding="unicode")


def render_table(result: QueryResult) -> Iterable[str]:
    """A row for each item: its attributes, or its value, under their names."""
    names, cells = make_cells(result.items)
    return render_listing(names, cells).splitlines() if cells else ["nothing found"]


def make_cells(items: Sequence[Item]) -> tuple[list[str], list[list[str]]]:
    """The heading of a table of items, and a row for each: its attributes, or its value, under their names."""
    rows = [dict(item.fields) or {"value": item.text} for item in items]
    names = list(dict.fromkeys(name for row in rows for name in row))
    return [*map(render_line, names)], [[render_line(row.get(name, "")) for name in names] for row in rows]


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
    name = f" name={quoteattr(render_text(item.fields[0][0]))}" if item.kind is ItemKind.ATTRIBUTE else ""
    return f"<{kind}{name}>{escape(render_text(item.text))}</{kind}>"
