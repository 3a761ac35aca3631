"""How our processes log: one line a record, times in UTC."""

import logging
import os
import time
from functools import partial
from pathlib import Path

from sandbox.files import open_own


def log_to(handler: logging.Handler, grid_job: str = "") -> None:
    """Log INFO and up through this handler, in place of any other; each message names the grid job first, if any."""
    formatter = logging.Formatter("%(asctime)s.%(msecs)03dZ %(levelname)s %(message)s", "%Y-%m-%dT%H:%M:%S")
    formatter.converter = time.gmtime
    handler.setFormatter(formatter)
    if grid_job:
        handler.addFilter(partial(_name, grid_job))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)


def _name(grid_job: str, record: logging.LogRecord) -> bool:
    """Put the id in front of what is said by those who do not know for whom they work."""
    try:
        words = record.getMessage()
    except Exception:  # noqa: BLE001 - a handler's call with wrong arguments, which logging itself reports
        return True
    if not words.startswith(grid_job):
        record.msg, record.args = f"{grid_job} {words}", ()
    return True


def append_line(path: Path, line: str) -> None:
    """Add a line to a log that another process may write to; raises OSError: it cannot be written."""
    with open(open_own(path, os.O_APPEND), "a", encoding="utf-8") as stream:
        stream.write(f"{line}\n")
