"""How each module of commands declares what it has, and what arguments of several commands mean."""

import argparse
import re
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Protocol

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


_AGO = re.compile(r"([0-9]{1,6})([mhdw])", re.ASCII)
_SECONDS = {"m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_LATEST = datetime(9999, 1, 1, tzinfo=UTC)


def read_since(text: str, now: float) -> float:
    """The second since 1970 that is meant: a day, a time, or so long before ``now``; UTC where no zone is given.

    :raises ValueError: with a sentence for the user.
    """
    ago = _AGO.fullmatch(text)
    if ago:
        return now - int(ago[1]) * _SECONDS[ago[2]]
    try:
        moment = datetime.fromisoformat(text)
        zoned = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        if zoned >= _LATEST:
            raise ValueError("too late")
        return zoned.timestamp()
    except (ValueError, OverflowError):
        raise ValueError(f"{text!r} is no time: say 2026-11-22, 2026-11-22T08:30, 36h or 7d") from None
