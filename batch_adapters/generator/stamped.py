"""Events of our own making, written into a folder of day files as they happen: with the time of now."""

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from batch_adapters.generator.emit import EventFolder
from batch_adapters.states import Event, render_event


def write_events_now(path: Path, events: Sequence[Event]) -> None:
    """Append events to today's file (UTC), stamped with the present second, and see that they are on the disk.

    There must be no other writer. What is torn, by whom and whenever, is cut off first.

    :raises OSError: some of them may not have been written.
    """
    # Opened each time: a folder that was removed and made again meanwhile is no trouble then.
    folder = EventFolder(path)
    now = int(time.time())
    try:
        folder.write("".join(render_event(replace(event, timestamp=now)) for event in events).encode())
    finally:
        folder.close()


def keep_days(path: Path) -> None:
    """See that today has its file, and the days that were missed since the newest one: a day without blinds GRAM.

    :raises OSError: they cannot be made.
    """
    EventFolder(path).close()
