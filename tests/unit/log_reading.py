"""What tests of the generator's modules do to a scheduler's log, and how they note what is read from it."""

from collections.abc import Iterable, Sequence
from itertools import pairwise

from batch_adapters.generator.module import Parser


def read_lines(parser: Parser, *blocks: bytes) -> list[str]:
    """The event lines of blocks that one parser reads."""
    return b"".join(map(parser.read_events, blocks)).decode().splitlines()


def collect_changes(lines: Iterable[str]) -> dict[str, str]:
    """For each job of event lines its states and exit codes in order: ``1 2 8/3``."""
    changes: dict[str, str] = {}
    for line in lines:
        kind, _, local_id, state, exit_code = line.split(";")
        assert kind == "001"
        change = f"{state}/{exit_code}" if state in "48" else state
        changes[local_id] = f"{changes[local_id]} {change}" if local_id in changes else change
    return changes


def insert(lines: Sequence[bytes], garbage: Iterable[tuple[int, bytes]]) -> bytes:
    """A log with other lines in it, each before the line of its number."""
    found = list(lines)
    for place, text in sorted(garbage, reverse=True):
        found.insert(place, text + b"\n")
    return b"".join(found)


def tear(lines: Sequence[bytes], place: int, length: int, garbage: bytes) -> bytes:
    """A log one of whose lines is so many bytes long, with garbage behind them."""
    return b"".join([*lines[:place], lines[place][:length], garbage, b"\n", *lines[place + 1 :]])


def cut(lines: Sequence[bytes], cuts: Iterable[int]) -> list[bytes]:
    """A log in blocks, cut before the lines of these numbers."""
    edges = sorted({0, len(lines), *cuts})
    return [b"".join(lines[begin:end]) for begin, end in pairwise(edges)]
