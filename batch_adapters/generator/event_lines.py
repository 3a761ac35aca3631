"""Logs whose lines are events already: the fork starter's, and the day files that a generator writes with ``-d``."""

import re
from collections.abc import Mapping
from pathlib import Path

from batch_adapters.generator.module import LogModule, LogNotKnown, Parser

_TIME = re.compile(rb"^001;([0-9]{1,10});", re.MULTILINE)


class EventLines(Parser):
    """Passes lines on as they are: the core takes the well-formed ones."""

    def read_events(self, block: bytes) -> bytes:
        """The block itself."""
        return block

    def read_time(self, block: bytes) -> int | None:
        """The first event's time."""
        found = _TIME.search(block)
        return int(found[1]) if found else None


def refuse_to_guess(environment: Mapping[str, str]) -> Path:
    """Nobody but the site knows the folder of its event files."""
    del environment
    raise LogNotKnown("the folder of the event files is needed: --log FOLDER, the -d folder of the other generator")


DAY_FILES = LogModule(name="events", find_log=refuse_to_guess, new_parser=EventLines, dated_files=True)
"""Follows the folder that a generator (ours, or Globus' C program) fills with ``-d``: one file a day, by UTC date."""
