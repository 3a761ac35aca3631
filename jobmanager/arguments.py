"""How each module of commands declares what it has, and what arguments of several commands mean."""

import argparse
import time
from collections.abc import Callable
from typing import Protocol

from jobmanager.spans import read_since

JOB_HELP = "id of a grid job, or as much of it as is unique"

Run = Callable[[argparse.Namespace], int]
"""Runs a command; the exit status."""


class AddCommand(Protocol):
    """Adds a command to the command line."""

    def __call__(self, name: str, run: Run, doc: str, more: str = "") -> argparse.ArgumentParser:
        """The command's parser, which has ``--state-dir``; ``doc`` is a sentence, ``more`` the rest of its help."""


class AddForJob(Protocol):
    """Adds a command about a grid job, or several (``nargs`` as in argparse), to the command line."""

    def __call__(
        self, name: str, run: Run, doc: str, more: str = "", nargs: str | None = None
    ) -> argparse.ArgumentParser:
        """The command's parser, which has ``--state-dir`` and ``id``."""


def read_time(text: str) -> float:
    """The second since 1970 that an argument means."""
    try:
        return read_since(text, time.time())
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def read_seconds(text: str) -> float:
    """A number of seconds, up to a day."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 1 <= seconds <= 86400:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds from 1 to 86400")
    return seconds
