"""XQuery 3.1 over the job database's documents, by Saxon."""

import json
from collections.abc import Callable, Iterable

from lxml import etree

from jobmanager.views.query.xpath import BadExpression, WireItem

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
    case xs:anyAtomicType return ["value", string($item), []]
    default return ["value", serialize($item, map {"method": "adaptive"}), []]
};

serialize(array { $found ! local:item(.) }, map {"method": "json"})
"""
"""Each item as kind, text and fields, in JSON: Saxon's own text of a node has blanks that the node has not."""


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
    # No Java, no documents written, none read: not all of Saxon keeps to that, therefore the program is sealed, too.
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
            items: list[WireItem] = json.loads(run(_ITEMS, run(expression)).head.string_value)
        except (saxonche.PySaxonApiError, ValueError) as error:
            raise BadExpression(str(error)) from error
        return items

    return evaluate
