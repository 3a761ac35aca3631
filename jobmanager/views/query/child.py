"""The child process of one query: reads it from standard input, and writes the answer to standard output as JSON."""

import functools
import json
import math
import os
import re
import resource
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path as FilePath

from lxml import etree

from jobmanager.database.database import DamagedDocument, Database, DatabaseError
from jobmanager.views.query.selection import Path, read_selection
from sandbox.files import empty_descriptors

_PREFIXES = {"re": "http://exslt.org/regular-expressions"}

WireItem = tuple[str, str, list[tuple[str, str]]]
"""Kind, text and fields of a `jobmanager.views.query.query.Item`."""


class BadExpression(Exception):
    """An expression is wrong, or cannot be evaluated; the message does not repeat it."""


def evaluate_xpath(tree: etree._Element, expression: str) -> Iterator[WireItem]:
    """What an expression finds, with the regular expressions of EXSLT, as ``re:test``.

    :raises BadExpression: it is wrong.
    """
    if expression.strip() == "/":
        expression = "/*"  # lxml has no node for the document itself
    try:
        found = etree.XPath(expression, namespaces=_PREFIXES)(tree)
    except (etree.XPathError, ValueError, TypeError, re.error) as error:
        more = ": XPath 1.0 has none of this name, XQuery 3.1 may" if "Unregistered function" in str(error) else ""
        raise BadExpression(f"{error}{more}") from error
    if isinstance(found, list):
        yield from map(_read_node, found)
    else:
        yield "value", _render_value(found), []


def _read_node(node: object) -> WireItem:
    if isinstance(node, etree._Element):
        return "element", etree.tostring(node, encoding="unicode", with_tail=False), _read_fields(node)
    if isinstance(node, etree._ElementUnicodeResult) and node.attrname:
        return "attribute", str(node), [(str(node.attrname), str(node))]
    return "text", str(node), []


def _read_fields(element: etree._Element) -> list[tuple[str, str]]:
    fields = [(str(name), str(value)) for name, value in element.attrib.items()]
    return [*fields, ("text()", element.text)] if element.text and not len(element) else fields


def _render_value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and math.isfinite(value):
        return f"{Decimal(repr(value)):f}".removesuffix(".0")  # repr alone would say 1e-07
    return str(value).replace("nan", "NaN").replace("inf", "Infinity") if isinstance(value, float) else str(value)


_FEATURE = "http://saxon.sf.net/feature/"

_ITEMS = """
declare variable $found external;

declare function local:name($node) {
  if (namespace-uri($node)) then "{" || namespace-uri($node) || "}" || local-name($node) else name($node)
};

declare function local:item($item) {
  typeswitch ($item)
    case attribute() return ["attribute", string($item), [[local:name($item), string($item)]]]
    case text() return ["text", string($item), []]
    case node() return ["element", serialize($item, map {"omit-xml-declaration": true()}),
      array { $item/@* ! [local:name(.), string(.)], $item/text()[not(../*)] ! ["text()", string(.)] }]
    case xs:double | xs:float return
      let $text := string($item)
      return ["value", if (abs($item) lt xs:double("INF")) then xs:double($text) else $text, []]
    case xs:anyAtomicType return ["value", string($item), []]
    default return ["value", serialize($item, map {"method": "adaptive"}), []]
};

serialize(array { $found ! local:item(.) }, map {"method": "json"})
"""
"""Each item as kind, text and fields, in JSON: Saxon's own text of a node has blanks that the node has not, and its
text of a number may be 1.997424E6."""


def prepare_xquery(tree: etree._Element) -> Callable[[str], Iterable[WireItem]]:
    """What evaluates an expression; it raises BadExpression for one that is wrong.

    :raises BadExpression: the extra is not installed.
    """
    try:
        import saxonche
    except ModuleNotFoundError as error:
        raise BadExpression(
            "needs the package saxonche, which is not installed: pip install 'samgrid-jobmanager[xquery]'"
        ) from error
    processor = saxonche.PySaxonProcessor(license=False)
    # No Java, no reading or writing of documents; not all of Saxon obeys, so the process is sealed, too.
    processor.set_configuration_property(_FEATURE + "allow-external-functions", "false")
    processor.set_configuration_property(_FEATURE + "allowedProtocols", "")
    root = processor.parse_xml(xml_text=etree.tostring(tree, encoding="unicode")).children[0]

    def run(text: str, found: saxonche.PyXdmValue | None = None) -> saxonche.PyXdmValue:
        query = processor.new_xquery_processor()
        query.set_context(xdm_item=root)
        if found is not None:
            query.set_parameter("found", found)
        query.set_query_content(text)
        # None is what Saxon gives for an empty sequence.
        value = query.run_query_to_value()
        return processor.empty_sequence() if value is None else value

    def evaluate(expression: str) -> Iterable[WireItem]:
        try:
            items = json.loads(run(_ITEMS, run(expression)).head.string_value)
        except (saxonche.PySaxonApiError, ValueError) as error:
            raise BadExpression(str(error)) from error
        return [(kind, _render_value(text), fields) for kind, text, fields in items]

    return evaluate


@dataclass(frozen=True)
class Question:
    """The query and its limits (see `jobmanager.views.query.query.QueryLimits`)."""

    database: str | None
    job_id: str | None
    expression: str
    language: str
    memory: int
    seconds: float
    answer: int
    refusal: str = ""
    """Why nothing may be written, see `Database`."""


class AnswerTooLarge(Exception):
    """The answer is larger than it may be."""


def main(argv: Sequence[str] = ()) -> int:
    question = Question(**json.load(sys.stdin.buffer))
    _limit(question)
    with os.fdopen(os.dup(sys.stdout.fileno()), "w") as stream:
        stream.write(_answer(question))
    return 0


def _limit(question: Question) -> None:
    # Not RLIMIT_AS: Saxon reserves 32 GB of addresses, of which it uses hardly any.
    resource.setrlimit(resource.RLIMIT_DATA, (question.memory, question.memory))
    # Ends the process even if the caller has been killed.
    seconds = math.ceil(question.seconds)
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _answer(question: Question) -> str:
    left_out: list[str] = []
    try:
        items = find_by_columns(question, left_out)
        if items is None:
            evaluate = _prepare(question, lambda damage: left_out.append(str(damage)))
            _seal()
            items = _take(evaluate(question.expression), question.answer)
        return json.dumps({"items": items, "left_out": left_out})
    except (BadExpression, DatabaseError, AnswerTooLarge) as error:
        return json.dumps({"fault": str(error)})
    except MemoryError:
        return json.dumps({"fault": f"needs more than {question.memory // 1_000_000} MB of memory"})


def find_by_columns(question: Question, left_out: list[str]) -> list[WireItem] | None:
    """What is found document by document; None if the whole tree is needed, or a damaged document is found."""
    selection = read_selection(question.expression) if question.language == "XPath" else None
    if selection is None:
        return None
    with closing(_open(question)) as database, database.moment():
        try:
            if isinstance(selection, Path):
                items = _take(map(_read_node, selection.find(database, question.job_id)), question.answer)
            else:
                expression = selection.render(database, question.job_id)
                items = list(evaluate_xpath(etree.Element("jobs"), expression))
        except DamagedDocument:
            return None
        known = database.quarantine.list()
        left_out += [why.problem for name, why in known.items() if question.job_id in (None, name)]
    return items


def _open(question: Question) -> Database:
    return Database(None if question.database is None else FilePath(question.database), question.refusal)


def _prepare(question: Question, leave_out: Callable[[DamagedDocument], object]) -> Callable[[str], Iterable[WireItem]]:
    """The function that evaluates an expression, with everything that it needs in memory."""
    with closing(_open(question)) as database:
        tree = database.to_xml(question.job_id, leave_out)
    if question.language == "XPath":
        return functools.partial(evaluate_xpath, tree)
    return prepare_xquery(tree)


def _seal() -> None:
    """From now on, no file or connection can be opened, and nothing is printed."""
    empty_descriptors(sys.stdout.fileno(), sys.stderr.fileno())
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))


def _take(items: Iterable[WireItem], most: int) -> list[WireItem]:
    taken, size = [], 0
    for item in items:
        size += len(item[1]) + sum(len(name) + len(value) for name, value in item[2])
        if size > most:
            raise AnswerTooLarge(f"the answer has more than {most} letters: ask for less, or count")
        taken.append(item)
    return taken
