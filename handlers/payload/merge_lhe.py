"""Merges Les Houches event files: ``merge_lhe.py plain|gzip OUTPUT LIST``; LIST has one input file name per line.

It needs only Python. The merged file has the header of the first input, and every event byte for byte. Each event is
read three times (counted and compared, copied, counted in the output), with at most `MOST` bytes in memory. An input
that is not well-formed XML, or that would make the merged file untrue, is an error that names the input.
"""

import gzip
import math
import os
import re
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO
from xml.parsers import expat

CHUNK = 1 << 18
"""Bytes read at once."""
MOST = 1 << 26
"""Most bytes of the header, or of one event: a hostile file must not use up the memory."""
MOST_PROCESSES = 10_000
DEEPEST = 100
"""Most XML elements nested in each other."""
ENCODINGS = ("UTF-8", "US-ASCII", "ISO-8859-1")
"""Encodings in which all that matters here, which is ASCII, is the same as in UTF-8."""
ROOT = "LesHouchesEvents"
EVENTS = ("event", "eventgroup")
BEAMS = {"beams": slice(0, 2), "beam energies": slice(2, 4), "PDF groups": slice(4, 6), "PDF sets": slice(6, 8),
         "weighting strategies": slice(8, 9)}  # fmt: skip
"""The meaning of the numbers in the first line of <init>."""


File = IO[bytes] | gzip.GzipFile
Processes = Mapping[str, tuple[str, ...]]
"""Cross section, its error and the highest weight of each process, by its number; in pb."""


class MergeError(Exception):
    """Why the files cannot be merged, in one line."""


@dataclass(frozen=True)
class Head:
    """A file up to the end of its <init>; numbers are kept as written."""

    before: bytes
    beams: tuple[str, ...]
    processes: Processes
    behind: bytes
    version: str
    weights: tuple[str, ...]
    """The ids of the weights that every event has."""

    def render(self, processes: Processes) -> bytes:
        """The same with other cross sections."""
        lines = [" ".join(self.beams), *(" ".join((*words, name)) for name, words in processes.items())]
        return self.before + "\n".join(["", *lines]).encode() + self.behind


class EventFile:
    """Parses one file; calls ``take_head`` once, and then ``take_event`` for each event."""

    def __init__(self, name: str, take_head: Callable[[Head], None], take_event: Callable[[bytes], None]) -> None:
        self.name, self.events = name, 0
        self._take_head, self._take_event = take_head, take_event
        self._window, self._base = bytearray(), 0
        self._begin: int | None = 0
        """Where the head, or the event, that is being read begins; None: between events."""
        self._done = 0
        """Where the last head or event ended."""
        self._has_head = False
        self._path: list[str] = []
        self._init_at, self._version = 0, ""
        self._weights: list[str] = []
        self._parser = expat.ParserCreate("utf-8")
        self._parser.XmlDeclHandler = self._check_encoding
        self._parser.StartElementHandler = self._start
        self._parser.EndElementHandler = self._end
        # Entities can be declared only there.
        self._parser.StartDoctypeDeclHandler = self._refuse_doctype

    def read(self) -> int:
        """Read the file to its end; gives the number of its events.

        :raises MergeError: naming the file.
        """
        try:
            with open_events(self.name) as file:
                while data := file.read(CHUNK):
                    self._window += data
                    self._parser.Parse(data)
                    self._forget()
            self._parser.Parse(b"", True)
        except expat.ExpatError as error:
            raise self._fault(f"is no well-formed XML: {error}") from error
        except (OSError, EOFError, zlib.error) as error:
            raise self._fault(f"cannot be read to its end: {error}") from error
        if not self._has_head:
            raise self._fault("has no <init>")
        return self.events

    def _fault(self, text: str) -> MergeError:
        return MergeError(f"{self.name} {text}")

    def _check_encoding(self, _version: str, encoding: str | None, _standalone: int) -> None:
        if (encoding or "UTF-8").upper() not in ENCODINGS:
            raise self._fault(f"is encoded in {encoding}, not in one of {', '.join(ENCODINGS)}")

    def _refuse_doctype(self, *_: object) -> None:
        raise self._fault("has a DOCTYPE, which no event file needs and which may declare entities")

    def _forget(self) -> None:
        """Drop what is no longer needed; within a tag not every expat can tell its position, so all of that stays."""
        at = self._done if self._begin is None else self._begin
        del self._window[: at - self._base]
        self._base = at
        if len(self._window) > MOST:
            raise self._fault(f"has a header, an event or a tag of more than {MOST} bytes")

    def _start(self, name: str, attributes: Mapping[str, str]) -> None:
        self._path.append(name)
        if len(self._path) > DEEPEST:
            raise self._fault(f"has more than {DEEPEST} elements in each other")
        if len(self._path) == 1:
            if name != ROOT:
                raise self._fault(f"is no Les Houches event file: it begins with <{name}>")
            self._version = attributes.get("version", "")
        elif len(self._path) == 2:
            self._start_part(name)
        elif name == "weight" and "initrwgt" in self._path:
            self._weights.append(attributes.get("id", ""))
        elif name == "xsecinfo" and not self._has_head:
            raise self._fault("has an <xsecinfo>, which would not be true of the merged file")
        if name == "event":
            if len(self._path) > 2 and self._path[1:] != ["eventgroup", "event"]:
                raise self._fault(f"has an <event> in a <{self._path[-2]}>")
            self.events += 1

    def _start_part(self, name: str) -> None:
        if not self._has_head:
            if name in EVENTS:
                raise self._fault("has events before its <init>")
            self._init_at = self._parser.CurrentByteIndex
        elif name in EVENTS:
            self._begin = self._parser.CurrentByteIndex
        else:
            raise self._fault(f"has a <{name}> behind its <init>, which cannot be merged")

    def _end(self, name: str) -> None:
        depth = len(self._path)
        self._path.pop()
        if depth != 2 or (name != "init" and not self._has_head):
            return
        at = self._parser.CurrentByteIndex - self._base
        if not self._window.startswith(f"</{name}".encode(), at):
            raise self._fault(f"has an empty <{name}>")
        end = self._window.index(b">", at) + 1
        begin = (self._begin or 0) - self._base
        piece = bytes(self._window[begin:end])
        self._begin, self._done = None, self._base + end
        if self._has_head:
            self._take_event(piece)
        else:
            self._has_head = True
            self._take_head(self._read_head(piece))

    def _read_head(self, piece: bytes) -> Head:
        """The head; raises MergeError where its <init> is not as the format says."""
        begin = piece.index(b">", self._init_at) + 1
        words = re.compile(rb"[^\s<]+").finditer(piece, begin)
        try:
            beams = tuple(match[0].decode("ascii") for match in islice(words, 10))
            count = int([read_number(word) for word in beams][9])
            if not 1 <= count <= MOST_PROCESSES:
                raise ValueError(count)
            numbers = list(islice(words, 4 * count))
            texts = [match[0].decode("ascii") for match in numbers]
            if len([read_number(text) for text in texts]) < 4 * count:
                raise ValueError(count)
        except (ValueError, IndexError, OverflowError) as error:
            raise self._fault("has an <init> that is not as the format says") from error
        processes = {texts[at + 3]: tuple(texts[at : at + 3]) for at in range(0, len(texts), 4)}
        if len(processes) < count:
            raise self._fault("has two processes of one number in its <init>")
        return Head(piece[:begin], beams, processes, piece[numbers[-1].end() :], self._version, tuple(self._weights))


def open_events(name: str) -> File:
    """The file, open for reading; a gzip file is known by its first bytes."""
    with Path(name).open("rb") as file:
        compressed = file.read(2) == b"\x1f\x8b"
    return gzip.open(name) if compressed else Path(name).open("rb")


def read_number(text: str) -> float:
    """A finite number, also as Fortran writes it; raises ValueError."""
    number = float(text.replace("d", "e").replace("D", "e"))
    if "_" in text or not math.isfinite(number):
        raise ValueError(text)
    return number


def check_agreement(first: str, head: Head, other: str, found: Head) -> None:
    """Raise MergeError for the first difference that forbids merging two files."""
    pairs: Iterator[tuple[str, Sequence[str], Sequence[str]]] = (
        (what, head.beams[part], found.beams[part]) for what, part in BEAMS.items()
    )
    for what, ours, theirs in pairs:
        if list(map(read_number, ours)) != list(map(read_number, theirs)):
            raise _disagree(first, other, what, ours, theirs)
    for what, ours, theirs in (
        ("processes", sorted(head.processes), sorted(found.processes)),
        ("versions of the format", [head.version], [found.version]),
        ("weights", head.weights, found.weights),
    ):
        if list(ours) != list(theirs):
            raise _disagree(first, other, what, ours, theirs)


def _disagree(first: str, other: str, what: str, ours: Sequence[str], theirs: Sequence[str]) -> MergeError:
    texts = [" ".join(words)[:60] or "none" for words in (ours, theirs)]
    return MergeError(f"{first} and {other} cannot be merged: their {what} differ, {texts[0]} and {texts[1]}")


def average(found: Sequence[Processes], events: Sequence[int]) -> Processes:
    """The processes of the merged file: cross sections weighted by the number of events, and the highest weight."""
    processes = {}
    for name, words in found[0].items():
        rows = [[read_number(word) for word in one[name]] for one in found]
        if not sum(events) or all(row == rows[0] for row in rows):
            processes[name] = words
            continue
        shares = [count / sum(events) for count in events]
        section = sum(row[0] * share for row, share in zip(rows, shares, strict=True))
        error = math.hypot(*(row[1] * share for row, share in zip(rows, shares, strict=True)))
        processes[name] = tuple(f"{number:.6e}" for number in (section, error, max(row[2] for row in rows)))
    return processes


def merge(output: str, inputs: Sequence[str], *, compressed: bool) -> None:
    """Write the merged file; raises MergeError."""
    heads: list[Head] = []
    processes, events = [], []
    for name in inputs:
        events.append(EventFile(name, heads.append, lambda _: None).read())
        check_agreement(inputs[0], heads[0], name, heads[-1])
        processes.append(heads[-1].processes)
        del heads[1:]  # they may be large
    with gzip.GzipFile(output, "wb", mtime=0) if compressed else Path(output).open("wb") as file:
        file.write(heads[0].render(average(processes, events)) + b"\n")
        for name, count in zip(inputs, events, strict=True):
            if EventFile(name, lambda _: None, lambda event: write_event(file, event)).read() != count:
                raise MergeError(f"{name} changed while it was merged")
        file.write(f"</{ROOT}>\n".encode())
    written = EventFile(output, lambda _: None, lambda _: None).read()
    if written != sum(events):
        raise MergeError(f"the merged file has {written} events, and its {len(inputs)} inputs have {sum(events)}")


def write_event(file: File, event: bytes) -> None:
    """Append an event, and the end of its line."""
    file.write(event + b"\n")


def main(words: Sequence[str]) -> int:
    """Merge; 1 with one line on stderr where it cannot be done."""
    kind, output, names = words
    try:
        inputs = [os.fsdecode(line) for line in Path(names).read_bytes().split(b"\n") if line]
        merge(output, inputs, compressed=kind == "gzip")
    except (MergeError, OSError) as error:
        print(f"merge_lhe.py: {' '.join(str(error).split())}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
