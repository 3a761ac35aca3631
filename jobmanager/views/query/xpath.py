"""XPath 1.0 over the job database's documents."""

import re
from collections.abc import Iterator

from lxml import etree

_PREFIXES = {"re": "http://exslt.org/regular-expressions"}

WireItem = tuple[str, str, list[tuple[str, str]]]
"""Kind, text and fields of a `querying.Item`."""


class BadExpression(Exception):
    """An expression is wrong, or cannot be evaluated; the message does not repeat it."""


def evaluate_xpath(tree: etree._Element, expression: str) -> Iterator[WireItem]:
    """What an expression finds, with the regular expressions of EXSLT, as ``re:test``.

    :raises BadExpression: it is wrong.
    """
    try:
        found = etree.XPath(expression, namespaces=_PREFIXES)(tree)
    except (etree.XPathError, ValueError, re.error) as error:
        raise BadExpression(str(error)) from error
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
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() else str(value).replace("nan", "NaN").replace("inf", "Infinity")
    return str(value)
