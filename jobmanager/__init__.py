"""What decides: requests, submission, states, the database, the daemon, the command line, the status page.

Its rooms have an order, and each imports only those below it: tests/packaging/test_imports.py lists them.
"""

import os
from pathlib import Path

SETUP = Path(__file__).parents[1] / "setup.cfg"
"""Exists only in a clone."""


class UserError(Exception):
    """Something that a person can understand and act on: the command line prints the message, without a traceback."""


def render_error(error: Exception) -> str:
    """What an error says to people; for the system's, the file and what is wrong with it."""
    if isinstance(error, OSError) and isinstance(error.filename, str | bytes | os.PathLike):  # or a descriptor's number
        return f"{os.fsdecode(error.filename)}: {error.strerror}"
    return (isinstance(error, OSError) and error.strerror) or str(error)


def render_number(number: int, noun: str) -> str:
    """So many of something: ``1 local job``, ``1,200 local jobs``."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def read_version(setup: Path = SETUP) -> str:
    """The version of this tree, as its setup.cfg says; without one, that of the installed package."""
    from configparser import ConfigParser
    from importlib.metadata import version

    config = ConfigParser()
    if config.read(setup, encoding="utf-8"):
        return config["metadata"]["version"]
    return version("samgrid-jobmanager")
