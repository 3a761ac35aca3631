"""XML that an experiment's program reports of its local job: taken into the document, or refused with a reason."""

from lxml import etree

MOST_BYTES = 65536
_MOST_DEPTH = 64
_ID = "{http://www.w3.org/XML/1998/namespace}id"
_OF_THE_W3C = "http://www.w3.org/"


class RefusedXml(ValueError):
    """What was reported cannot stand in a document; one sentence says why."""


def read_foreign_xml(data: bytes) -> etree._Element:
    """The root element of a report.

    :raises RefusedXml: it is not well-formed, too large or too deep, has a document type, or an element that could be
        taken for one of ours, or by a browser for a part of a page.
    """
    if len(data) > MOST_BYTES:
        raise RefusedXml(f"longer than {MOST_BYTES} bytes")
    parser = etree.XMLParser(resolve_entities=False, no_network=True, load_dtd=False, remove_pis=True)
    try:
        root = etree.fromstring(data, parser)
    except (etree.XMLSyntaxError, ValueError) as error:
        raise RefusedXml(f"not well-formed: {error}") from error
    # lxml looks at the last fault only, so a namespace may be wrong where a relative one, which may be, comes later.
    for fault in parser.error_log:
        if fault.type != etree.ErrorTypes.WAR_NS_URI_RELATIVE:
            raise RefusedXml(f"not well-formed: {fault.message}, line {fault.line}")
    if root.getroottree().docinfo.internalDTD is not None:
        raise RefusedXml("a document type is not taken")
    for element in root.iter(etree.Element):
        _check(element)
    root.tail = None
    try:
        etree.fromstring(etree.tostring(root, encoding="UTF-8"), parser)
    except etree.XMLSyntaxError as error:
        raise RefusedXml(f"cannot be read back: {error}") from error
    return root


def _check(element: etree._Element) -> None:
    namespace = etree.QName(element).namespace
    if not namespace:
        raise RefusedXml(
            f"the element {etree.QName(element).localname} is in no namespace: say xmlns=… on the first one"
        )
    if namespace.startswith(_OF_THE_W3C):
        raise RefusedXml(f"the namespace {namespace} is not the experiment's own")
    if _ID in element.attrib:
        # Other documents may say the same, and no parser would take all of them together any more.
        raise RefusedXml("xml:id is not taken: use an attribute of another name")
    if sum(1 for _ in element.iterancestors()) >= _MOST_DEPTH:
        raise RefusedXml(f"more than {_MOST_DEPTH} elements inside each other")
