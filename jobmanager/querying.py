"""XPath questions to the job database."""

from lxml import etree

from jobmanager.database import Database


def run_query(database: Database, identity: str | None, xpath: str) -> str:
    """What an XPath 1.0 expression finds, as text: numbers, strings and booleans as they are, nodes a line each.

    :raises ValueError: the expression is wrong.
    """
    try:
        expression = etree.XPath(xpath)
    except etree.XPathError as error:
        raise ValueError(f"XPath {xpath!r}: {error}") from error
    try:
        result = expression(database.to_xml(identity))
    except etree.XPathError as error:
        raise ValueError(f"XPath {xpath!r}: {error}") from error
    if not isinstance(result, list):
        return f"{_render_atom(result)}\n"
    return "".join(f"{_render_node(node)}\n" for node in result)


def _render_atom(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


def _render_node(node: object) -> str:
    if isinstance(node, etree._Element):
        return etree.tostring(node, encoding="unicode", with_tail=False)
    return str(node)
