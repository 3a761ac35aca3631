"""How our processes log: one line a record, times in UTC."""

import logging
import os
import time
from pathlib import Path


def log_to(handler: logging.Handler) -> None:
    """Log INFO and up through this handler, in place of any other."""
    formatter = logging.Formatter("%(asctime)s.%(msecs)03dZ %(levelname)s %(message)s", "%Y-%m-%dT%H:%M:%S")
    formatter.converter = time.gmtime
    handler.setFormatter(formatter)
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)


def append_line(path: Path, line: str) -> None:
    """Add a line to a log that another process may write to.

    :raises OSError: it cannot be written.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with open(descriptor, "a", encoding="utf-8") as stream:
        stream.write(f"{line}\n")
