"""How each module of commands declares what it has, and what arguments of several commands mean."""

import argparse
import os
import re
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from jobmanager.database.database import Choice, Database
    from jobmanager.site.account import Account

JOB_HELP = "a grid job: its id, a unique beginning of its id, or its name"

Run = Callable[[argparse.Namespace], int]
"""Runs a command; the exit status."""


Declare = Callable[[argparse.ArgumentParser], object]
"""Adds a command's arguments; called for the command that is run, and for no other."""


class AddCommand(Protocol):
    """Adds a command, which has ``--state-dir``, to the command line."""

    def __call__(self, name: str, run: Run, doc: str, more: str = "", *declare: Declare) -> None:
        """``doc`` is a sentence, ``more`` the rest of its help."""


def argument(*names: str, **rules: Any) -> Declare:
    """One argument, as `ArgumentParser.add_argument` takes it."""
    return lambda command: command.add_argument(*names, **rules)


def declare_choice(command: argparse.ArgumentParser) -> None:
    """What grid jobs are chosen by: ids, and options which they must fit all."""
    from jobmanager.database.database import STANDINGS

    ids_help = f"{JOB_HELP}; may be repeated; or select by options"
    command.add_argument("id", metavar="ID", nargs="*", type=read_name, help=ids_help)
    name_help = "all grid jobs with this name; * and ? as in the shell"
    command.add_argument("--name", metavar="PATTERN", type=read_name, help=name_help)
    command.add_argument("--type", metavar="TYPE", help="grid jobs of this job type")
    states = ", ".join(STANDINGS)
    command.add_argument("--state", metavar="STATE", choices=STANDINGS, help=f"grid jobs in this state: {states}")
    command.add_argument("--user", metavar="USER", help="grid jobs of this owner")
    command.add_argument("--since", metavar="TIME", type=read_time, help="grid jobs submitted since then")


def read_choice(options: argparse.Namespace) -> "Choice":
    """What the options choose."""
    from jobmanager.database.database import Choice

    return Choice(options.type, options.state, options.user, options.since, options.name)


def find_grid_jobs(options: argparse.Namespace, database: "Database") -> list[str]:
    """The grid jobs that are meant; where none is said, that is wrong usage, which ends the program.

    :raises UnknownJob: nothing is like that, or an id or a name fits several.
    """
    choice = read_choice(options)
    if not options.id and choice.is_empty:
        options.refuse("say which grid jobs: ids or names, or options such as --state and --name")
    return database.grid_jobs.choose(options.id, choice)


def account_of(options: argparse.Namespace) -> "Account":
    """The account that is meant, to ask it something: nothing is made."""
    from jobmanager.site.account import open_account

    return open_account(options.state_dir, create=False)


def open_account_of(options: argparse.Namespace, to_change: bool = True) -> "Account":
    """The account that is meant; its state folder is made if need be.

    :param to_change: False: another host may be the active one; what is read is a copy then.
    """
    from jobmanager.site.account import open_account

    may_change = to_change or not account_of(options).refusal
    return open_account(options.state_dir, create=may_change)


def read_name(text: str) -> str:
    """An id or a name as it was typed: not in UTF-8, as our programs take it, where the terminal has other letters."""
    try:
        text.encode()
    except UnicodeEncodeError:
        from locale import getencoding

        return os.fsencode(text).decode(getencoding(), "surrogateescape")
    return text


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


def read_since(text: str, now: float) -> float:
    """The second since 1970 that is meant: a day, a time, or so long before ``now``; UTC where no zone is given.

    :raises ValueError: with a sentence for the user.
    """
    from datetime import UTC, datetime

    ago = _AGO.fullmatch(text)
    if ago:
        return now - int(ago[1]) * _SECONDS[ago[2]]
    try:
        moment = datetime.fromisoformat(text)
        zoned = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        if zoned >= datetime(9999, 1, 1, tzinfo=UTC):
            raise ValueError("too late")
        return zoned.timestamp()
    except (ValueError, OverflowError):
        raise ValueError(f"{text!r} is no time: say 2026-11-22, 2026-11-22T08:30, 36h or 7d") from None
