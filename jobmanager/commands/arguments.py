"""How each module of commands declares what it has, and what arguments of several commands mean."""

import argparse
import re
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Protocol

from jobmanager.database.database import STANDINGS, Choice, Database

JOB_HELP = "id of a grid job, or as much of it as is unique, or its name"

Run = Callable[[argparse.Namespace], int]
"""Runs a command; the exit status."""


class AddCommand(Protocol):
    """Adds a command to the command line."""

    def __call__(self, name: str, run: Run, doc: str, more: str = "") -> argparse.ArgumentParser:
        """The command's parser, which has ``--state-dir``; ``doc`` is a sentence, ``more`` the rest of its help."""


class AddForJobs(Protocol):
    """Adds a command about grid jobs to the command line."""

    def __call__(self, name: str, run: Run, doc: str, more: str = "") -> argparse.ArgumentParser:
        """The command's parser, which has ``--state-dir``, and what `find_grid_jobs` reads."""


def add_choice(command: argparse.ArgumentParser, state: str = "grid jobs in this state") -> None:
    """What grid jobs are chosen by: ids, and options which they must fit all."""
    command.add_argument("id", metavar="ID", nargs="*", help=f"{JOB_HELP}; several, or options instead")
    command.add_argument("--name", metavar="PATTERN", help="grid jobs of this name: * and ? as in the shell")
    command.add_argument("--type", metavar="TYPE", help="grid jobs of this job type")
    command.add_argument("--state", metavar="STATE", choices=STANDINGS, help=f"{state}: {', '.join(STANDINGS)}")
    command.add_argument("--user", metavar="USER", help="grid jobs of this owner")
    command.add_argument("--since", metavar="TIME", type=read_time, help="grid jobs submitted since then")
    command.set_defaults(refuse=command.error)


def read_choice(options: argparse.Namespace) -> Choice:
    """What the options choose."""
    return Choice(options.type, options.state, options.user, options.since, options.name)


def find_grid_jobs(options: argparse.Namespace, database: Database) -> list[str]:
    """The grid jobs that are meant; where none is said, that is wrong usage, which ends the program.

    :raises UnknownJob: nothing is like that, or an id or a name fits several.
    """
    choice = read_choice(options)
    if not options.id and choice == Choice():
        options.refuse("say which grid jobs: ids or names, or options such as --state and --name")
    return database.grid_jobs.choose(options.id, choice)


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
