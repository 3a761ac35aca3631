"""What the job database's XML documents have in common: parsing, the schema, times and text."""

import functools
import os
import re
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

from lxml import etree

from adapters import Value
from batch_adapters.states import STATE_OF_WORD, State

_SCHEMA_FILE = Path(__file__).with_name("schema.rng")


class InvalidDocument(Exception):
    """A document that the published schema does not allow: a fault of ours, never written."""


@functools.cache
def load_schema() -> etree.RelaxNG:
    """The published RELAX NG schema, compiled."""
    return etree.RelaxNG(etree.parse(str(_SCHEMA_FILE), _parser()))


def _parser(huge: bool = False) -> etree.XMLParser:
    return etree.XMLParser(resolve_entities=False, no_network=True, load_dtd=False, huge_tree=huge)


def read_xml(data: bytes) -> etree._Element:
    """The root element of XML that we wrote: no entities, no network."""
    return etree.fromstring(data, _parser(huge=True))


def render_time(seconds: float) -> str:
    """Seconds since the epoch as ISO 8601 in UTC, whole seconds."""
    return datetime.fromtimestamp(int(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def read_time(text: str) -> float:
    """Seconds since the epoch of what `render_time` wrote."""
    return datetime.fromisoformat(text).timestamp()


@functools.cache
def _not_xml() -> re.Pattern[str]:
    """What XML cannot hold; it takes milliseconds to compile, and most processes meet nothing that is not printable."""
    return re.compile("[^\t\n\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def _fits_xml(text: str) -> bool:
    return text.isprintable() or not _not_xml().search(text)


def render_text(text: str) -> str:
    """The text with everything that XML cannot hold (control characters, broken UTF-8) replaced by U+FFFD."""
    return text if _fits_xml(text) else _not_xml().sub("\ufffd", text)


def render_ranges(numbers: Iterable[int]) -> str:
    """Numbers in short: ``1 4-6``."""
    parts: list[list[int]] = []
    for number in sorted(set(numbers)):
        if parts and parts[-1][1] == number - 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return " ".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)


def read_ranges(text: str) -> list[int]:
    """The numbers that `render_ranges` wrote."""
    found: list[int] = []
    for part in text.split():
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


class Document:
    """A typed view of one XML element; what it does not know (other namespaces) stays as it is."""

    tag: str

    def __init__(self, element: etree._Element) -> None:
        self.element = element

    def to_bytes(self) -> bytes:
        """The document as stored.

        :raises InvalidDocument: where the schema does not allow it.
        """
        schema = load_schema()
        if not schema.validate(self.element):
            raise InvalidDocument(f"{self.tag} {self.element.attrib}: {schema.error_log.last_error}")
        return etree.tostring(self.element)

    def _get(self, name: str) -> str | None:
        return self.element.get(name)

    def _set(self, name: str, value: object | None) -> None:
        if value is None:
            self.element.attrib.pop(name, "")
        else:
            self.element.set(name, render_text(str(value)))

    def _replace(self, tag: str) -> etree._Element:
        """An empty child of that name, in the place of the one that may be there."""
        self._remove(tag)
        return etree.SubElement(self.element, tag)

    def _remove(self, tag: str) -> None:
        for child in self.element.findall(tag):
            self.element.remove(child)

    @property
    def state(self) -> State:
        return STATE_OF_WORD[str(self.element.attrib["state"])]

    @state.setter
    def state(self, state: State) -> None:
        self._set("state", state.word)

    @property
    def reason(self) -> str | None:
        """Why the job failed, a sentence for people."""
        return self._get("reason")

    @reason.setter
    def reason(self, text: str | None) -> None:
        self._set("reason", text)


def put_value(parent: etree._Element, value: Value) -> None:
    """Append an RSL value to an element; bytes that XML cannot hold are percent-encoded."""
    if not isinstance(value, str):
        sequence = etree.SubElement(parent, "sequence")
        for item in value:
            put_value(sequence, item)
        return
    element = etree.SubElement(parent, "value")
    if _fits_xml(value):
        element.text = value
    else:
        from urllib.parse import quote_from_bytes  # seldom needed

        element.set("encoding", "percent")
        element.text = quote_from_bytes(os.fsencode(value), safe=" /")


def read_value(element: etree._Element) -> Value:
    """The RSL value that `put_value` wrote."""
    if element.tag == "sequence":
        return tuple(map(read_value, element))
    text = element.text or ""
    if element.get("encoding") == "percent":
        from urllib.parse import unquote_to_bytes

        return os.fsdecode(unquote_to_bytes(text))
    return text
