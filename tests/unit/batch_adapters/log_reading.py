"""How tests of the generator's modules note what is read from a scheduler's log."""

from collections.abc import Iterable

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
