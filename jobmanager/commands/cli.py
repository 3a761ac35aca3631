"""The command line for people: ``samgrid COMMAND``."""

import argparse
import logging
import os
import re
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from jobmanager.commands import accounting as accounting_commands
from jobmanager.commands import batch_system as batch_commands
from jobmanager.commands import grid_jobs as commands
from jobmanager.commands import query as query_commands
from jobmanager.commands import service as service_commands
from jobmanager.commands.arguments import Run, add_choice
from jobmanager.database.database import DatabaseError, UnknownJob
from jobmanager.requests.attributes import BadRequest, suggest
from jobmanager.requests.job_types import HandlerError
from jobmanager.site.configuration import ConfigurationError
from jobmanager.site.places import StateFolderError

if TYPE_CHECKING:
    _Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

_USER_ERRORS = (
    BadRequest, ConfigurationError, DatabaseError, HandlerError, OSError, StateFolderError, UnknownJob,
    commands.CommandError,
)  # fmt: skip

_MODULES = (commands, query_commands, batch_commands, accounting_commands, service_commands)
"""In the order of the help."""

SETUP = Path(__file__).parents[2] / "setup.cfg"
"""There in a clone only."""

_DESCRIPTION = """\
Run grid jobs: one request becomes many local jobs in a batch system, and their outputs come back as one tar file.

  samgrid run examples/drell-yan.rsl      submit, watch, and show the output
  samgrid submit FILE                     submit only: prints the grid job's id
  samgrid status                          all grid jobs, with their local jobs by state
  samgrid gram install|uninstall|status   as root: register with a Globus gatekeeper
"""


def main(argv: list[str]) -> int:
    """Run one command; errors of the user's, or of the machine, are one clear line each and exit status 1."""
    options = _parse(argv)
    logging.basicConfig(level=logging.WARNING, format="samgrid: %(message)s", stream=sys.stderr)
    return run_command(f"samgrid {options.command}", partial(options.run, options))


def run_command(name: str, run: Callable[[], int]) -> int:
    """Run one command of that name; its exit status."""
    try:
        status = run()
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read our output has enough of it; the interpreter must not try to write the rest at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except _USER_ERRORS as error:
        from jobmanager.views.text import printable

        for line in _describe(error).splitlines():
            print(f"{name}: {printable(line)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return status


def _describe(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename is not None:
        return f"{os.fsdecode(error.filename)}: {error.strerror}"
    return str(error)


def _parse(argv: list[str]) -> argparse.Namespace:
    """What the words say; wrong usage ends the program, and says what may have been meant."""
    parser, commands = _make_parser()
    if argv and not argv[0].startswith("-") and argv[0] not in commands:
        parser.error(f"there is no command {argv[0]!r}{suggest(argv[0], commands)}")
    options, unknown = parser.parse_known_args(argv)
    if unknown:
        command = commands[options.command]
        option = next((word for word in unknown if word.startswith("-")), "").partition("=")[0]
        known = re.findall(r"--[\w-]+", command.format_usage())
        command.error(f"unrecognized arguments: {' '.join(unknown)}{suggest(option, known)}")
    return options


def _make_parser() -> tuple[argparse.ArgumentParser, Mapping[str, argparse.ArgumentParser]]:
    """The parser, and those of the commands by their names."""
    parser = argparse.ArgumentParser(
        prog="samgrid", description=_DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--version", action=_ShowVersion, nargs=0, help="show the version and exit")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for module in _MODULES:
        module.add_commands(partial(_add, subparsers), partial(_add_for_jobs, subparsers))
    return parser, subparsers.choices


class _ShowVersion(argparse.Action):
    """Looks for the version only when it is asked for."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        print(f"samgrid {read_version(SETUP)}")
        parser.exit()


def read_version(setup: Path) -> str:
    """The version of this tree, where ``setup`` is its setup.cfg, else of the installed package."""
    from configparser import ConfigParser
    from importlib.metadata import version

    config = ConfigParser()
    if config.read(setup, encoding="utf-8"):
        return config["metadata"]["version"]
    return version("samgrid-jobmanager")


def _add(subparsers: "_Subparsers", name: str, run: Run, doc: str, more: str = "") -> argparse.ArgumentParser:
    command = subparsers.add_parser(
        name, help=doc, description=f"{doc}\n\n{more}", formatter_class=argparse.RawDescriptionHelpFormatter
    )
    command.add_argument(
        "--state-dir",
        metavar="DIR",
        help="state folder of the account (default: $SAMGRID_STATE, else $XDG_STATE_HOME/samgrid, "
        "else ~/.local/state/samgrid)",
    )
    command.set_defaults(run=run)
    return command


def _add_for_jobs(subparsers: "_Subparsers", name: str, run: Run, doc: str, more: str = "") -> argparse.ArgumentParser:
    command = _add(subparsers, name, run, doc, more)
    add_choice(command)
    return command
