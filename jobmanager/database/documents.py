"""What all XML documents of the job database share: parsing, schema, attributes and text."""

import functools
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Generic, TypeVar

from lxml import etree

from adapters import Value
from batch_adapters.states import STATE_OF_WORD
from jobmanager.database.sqlite import DamagedDocument
from jobmanager.database.times import read_time, render_time

SCHEMA_FILE = Path(__file__).with_name("schema.rng")


class InvalidDocument(Exception):
    """A document that the published schema does not allow, or that could not be read again: our bug, never stored."""


@functools.cache
def load_schema() -> etree.RelaxNG:
    """The published RELAX NG schema, compiled."""
    return etree.RelaxNG(etree.parse(str(SCHEMA_FILE), _parser()))


@functools.cache  # making a parser takes as long as parsing a document
def _parser(huge: bool = False) -> etree.XMLParser:
    return etree.XMLParser(resolve_entities=False, no_network=True, load_dtd=False, huge_tree=huge)


def read_document(tag: str, data: bytes, grid_job: str, number: int = 0) -> etree._Element:
    """The root element of a stored document: of a grid job, or of its local job with that number.

    :raises DamagedDocument: it cannot be read.
    """
    try:
        root = read_xml(data)
    except (etree.XMLSyntaxError, TypeError, ValueError) as error:
        raise DamagedDocument(grid_job, number, error) from error
    if root.tag != tag:
        raise DamagedDocument(grid_job, number, f"<{root.tag}> where <{tag}> should be")
    return root


def read_xml(data: bytes) -> etree._Element:
    """The root element of XML that we wrote; no entities, no network."""
    return etree.fromstring(data, _parser(huge=True))


@functools.cache
def _not_xml() -> re.Pattern[str]:
    """Characters that XML cannot hold; compiled when needed, because that takes milliseconds."""
    return re.compile("[^\t\n\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def _fits_xml(text: str) -> bool:
    return text.isprintable() or not _not_xml().search(text)


def render_text(text: str) -> str:
    """The text with everything that XML cannot hold (control characters, broken UTF-8) replaced by U+FFFD."""
    return text if _fits_xml(text) else _not_xml().sub("\ufffd", text)


def render_ranges(numbers: Iterable[int]) -> str:
    """Numbers as ranges: ``1 4-6``."""
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


T = TypeVar("T")
_NONE: Final = object()


class Field(Generic[T]):
    """An XML attribute of a document's root, or of one of its children, as a Python value; setting None removes it."""

    def __init__(self, kind: "AttributeType[T]", name: str, absent: object, child: str) -> None:
        self._read, self._render = kind.read, kind.render
        self._name, self._absent, self._child = name, absent, child

    def __get__(self, document: "Document", owner: object = None) -> T:
        element = document.element.find(self._child) if self._child else document.element
        text = None if element is None else element.get(self._name)
        if text is not None:
            return self._read(text)
        if self._absent is _NONE:
            raise InvalidDocument(f"{document.tag} {document.element.attrib} has no attribute {self._name}")
        return self._absent  # type: ignore[return-value]

    def __set__(self, document: "Document", value: T) -> None:
        element = document.element.find(self._child) if self._child else document.element
        if value is not None:
            if element is None:
                raise InvalidDocument(f"{document.tag} {document.element.attrib} has no {self._child}")
            element.set(self._name, self._render(value))
        elif element is not None:
            element.attrib.pop(self._name, "")


@dataclass(frozen=True)
class AttributeType(Generic[T]):
    """How values of one type are written in attributes; ``child`` names a child of the document's root."""

    read: Callable[[str], T]
    render: Callable[[T], str]

    def required(self, name: str, child: str = "") -> Field[T]:
        """An attribute that every document must have."""
        return Field(self, name, _NONE, child)

    def optional(self, name: str, child: str = "") -> Field[T | None]:
        """An attribute that is None if it is missing."""
        return Field[T | None](self, name, None, child)  # type: ignore[arg-type]

    def otherwise(self, name: str, value: T, child: str = "") -> Field[T]:
        """An attribute that has this value if it is missing."""
        return Field(self, name, value, child)


TEXT = AttributeType(str, render_text)
NUMBER = AttributeType(int, str)
FRACTION = AttributeType(float, str)
STATE = AttributeType(STATE_OF_WORD.__getitem__, lambda state: state.word)
TIME = AttributeType[int](read_time, render_time)
"""Seconds since 1970."""


class Document:
    """A typed view of one XML element; unknown content (other namespaces) is kept."""

    tag: str

    def __init__(self, element: etree._Element) -> None:
        self.element = element

    state = STATE.required("state")
    reason = TEXT.optional("reason")
    """Why the job failed, a sentence for people."""

    def to_bytes(self) -> bytes:
        """The document as it is stored; raises InvalidDocument: the schema does not allow it."""
        schema = load_schema()
        if not schema.validate(self.element):
            raise InvalidDocument(f"{self.tag} {self.element.attrib}: {schema.error_log.last_error}")
        # UTF-8, because names of elements cannot contain character references.
        data = etree.tostring(self.element, encoding="UTF-8")
        if any(str(child.tag).startswith("{") for child in self.element.iterchildren(etree.Element)):
            _check_readable(self.tag, data)
        return data

    def _replace(self, tag: str) -> etree._Element:
        """A new empty child of that name, in place of an existing one."""
        self._remove(tag)
        return etree.SubElement(self.element, tag)

    def _remove(self, tag: str) -> bool:
        """Remove all children of that name; True if there were any."""
        found = [child for child in self.element if child.tag == tag]
        for child in found:
            self.element.remove(child)
        return bool(found)


def _check_readable(tag: str, data: bytes) -> None:
    """Check documents with an experiment's own elements; for all documents, this would cost half as much time again."""
    try:
        read_xml(data)
    except etree.XMLSyntaxError as error:
        raise InvalidDocument(f"{tag} cannot be read back: {error}") from error


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
