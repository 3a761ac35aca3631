"""The command line for people: ``samgrid COMMAND``."""

import argparse
import logging
import os
import re
import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from batch_adapters.states import STATE_OF_WORD, State
from jobmanager import (
    accounting_commands,
    batch_commands,
    commands,
    handler_commands,
    query_commands,
    repeat_commands,
    web_commands,
)
from jobmanager.configuration import ConfigurationError
from jobmanager.database import DatabaseError, UnknownJob
from jobmanager.job_types import HandlerError
from jobmanager.places import StateFolderError
from jobmanager.request import BadRequest

if TYPE_CHECKING:
    _Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

_USER_ERRORS = (
    BadRequest, ConfigurationError, DatabaseError, HandlerError, OSError, StateFolderError, UnknownJob,
    commands.CommandError,
)  # fmt: skip

_DESCRIPTION = """\
Run grid jobs: one request becomes many local jobs in a batch system, and their outputs come back as one tar file.

  samgrid run examples/drell-yan.rsl      submit, watch, and show the output
  samgrid submit FILE                     submit only: prints the grid job's id
  samgrid status                          all grid jobs, with their local jobs by state
  samgrid gram install|uninstall|status   as root: register with a Globus gatekeeper
"""


def main(argv: list[str]) -> int:
    """Run one command; errors of the user's, or of the machine, are one clear line each and exit status 1."""
    options = _make_parser().parse_args(argv)
    logging.basicConfig(level=logging.WARNING, format="samgrid: %(message)s", stream=sys.stderr)
    try:
        status: int = options.run(options)
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read our output has enough of it; the interpreter must not try to write the rest at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except _USER_ERRORS as error:
        for line in _describe(error).splitlines():
            print(f"samgrid {options.command}: {line}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return status


def _describe(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename is not None:
        return f"{os.fsdecode(error.filename)}: {error.strerror}"
    return str(error)


def _make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="samgrid", description=_DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    add, add_for_job = partial(_add, subparsers), partial(_add_for_job, subparsers)
    _add_file(add("submit", commands.submit, "Submit a grid job and print its id.", commands.SUBMIT_HELP))
    run = add("run", commands.run, "Submit a grid job, watch it, and show its output.", commands.RUN_HELP)
    _add_file(run)
    add_for_job("watch", commands.watch, "Show a grid job's progress until it ends.", commands.WATCH_HELP)
    status = add_for_job("status", commands.status, "List grid jobs.", commands.STATUS_HELP, optional=True)
    _add_choice(status)
    output = add_for_job("output", commands.output, "Show a grid job's output tar.", commands.OUTPUT_HELP)
    output.add_argument("--extract", metavar="DIR", help="unpack it, safely, into a new folder DIR")
    add_for_job("cancel", commands.cancel, "Cancel a grid job.", commands.CANCEL_HELP)
    _add_batch_commands(add)
    _add_query_commands(add)
    accounting_commands.add_commands(add)
    handler_commands.add_commands(add)
    repeat_commands.add_commands(add)
    web_commands.add_commands(add)
    types = add("types", commands.types, "List the job types, or the attributes of one.")
    types.add_argument("type", metavar="TYPE", nargs="?", help="a job type")
    add("config", commands.config, "Print every configuration value and where it came from.", commands.CONFIG_HELP)
    monitor = add("monitor", commands.monitor, "Run the job state monitor in the foreground.", commands.MONITOR_HELP)
    monitor.add_argument("--stay", action="store_true", help="do not end when there is nothing to do")
    return parser


def _add_choice(status: argparse.ArgumentParser) -> None:
    formats = ("table", "json", "xml")
    status.add_argument("--format", choices=formats, default="table", help="what to print (default: table)")
    status.add_argument("--type", metavar="TYPE", help="grid jobs of this job type")
    status.add_argument(
        "--state", metavar="STATE", type=_read_state, help=f"grid jobs in this state: {', '.join(STATE_OF_WORD)}"
    )
    status.add_argument("--user", metavar="USER", help="grid jobs of this owner")
    status.add_argument(
        "--since", metavar="TIME", type=accounting_commands.read_time, help="grid jobs submitted since then"
    )


def _read_state(text: str) -> State:
    if text not in STATE_OF_WORD:
        raise argparse.ArgumentTypeError(f"{text!r} is no state: they are {', '.join(STATE_OF_WORD)}")
    return STATE_OF_WORD[text]


def _add_query_commands(add: Callable[..., argparse.ArgumentParser]) -> None:
    query = add("query", query_commands.query, "Ask the job database a question in XPath.", query_commands.QUERY_HELP)
    query.add_argument("--job", metavar="ID", help="look at this grid job only")
    query.add_argument("--xquery", action="store_true", help="EXPRESSION is XQuery 3.1, or XPath 3.1: needs saxonche")
    query.add_argument(
        "--format", choices=("text", "table", "xml"), default="text", help="what to print (default: text)"
    )
    query.add_argument(
        "--timeout",
        metavar="SECONDS",
        type=_read_seconds,
        default=60.0,
        help="how long the answer may take (default: 60)",
    )
    query.add_argument("expression", metavar="EXPRESSION")
    log = add(
        "log", query_commands.log, "Show the log of a grid job, or what a local job printed.", query_commands.LOG_HELP
    )
    log.add_argument("id", metavar="ID[/NUMBER]", help="id of a grid job, and number of a local job from 1")
    log.add_argument(
        "--lines",
        metavar="N",
        type=_read_count,
        help="the last N lines (default: the whole log, 100 of what a local job printed)",
    )
    export = add("export", query_commands.export, "Write the job database as XML files.", query_commands.EXPORT_HELP)
    export.add_argument("folder", metavar="DIR", help="a new folder, or an empty one")


def _read_count(text: str) -> int:
    if not re.fullmatch(r"[1-9]\d{0,6}", text, re.ASCII):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of lines from 1 to 9999999")
    return int(text)


def _read_seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 1 <= seconds <= 86400:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds from 1 to 86400")
    return seconds


def _add_batch_commands(add: Callable[..., argparse.ArgumentParser]) -> None:
    explain = add(
        "explain",
        batch_commands.explain,
        "Say what is known of a local job, and from what.",
        batch_commands.EXPLAIN_HELP,
    )
    explain.add_argument(
        "job", metavar="LOCALID|GRIDID/NUMBER", help="the batch system's id, or grid job and number from 1"
    )
    explain.add_argument("--no-ask", dest="ask", action="store_false", help="run no command of the batch system")
    orphans = add(
        "orphans",
        batch_commands.orphans,
        "List local jobs that carry our tokens, but that no grid job owns.",
        batch_commands.ORPHANS_HELP,
    )
    orphans.add_argument("tokens", metavar="TOKEN", nargs="*", help="only those of this submission")
    orphans.add_argument("--reap", action="store_true", help="cancel those that are listed")
    doctor = add(
        "doctor",
        batch_commands.doctor,
        "Look for what is wrong with batch systems and folders.",
        batch_commands.DOCTOR_HELP,
    )
    which = doctor.add_mutually_exclusive_group()
    which.add_argument("batch_system", metavar="BATCH_SYSTEM", nargs="?", help="default: the configured one")
    which.add_argument("--all", action="store_true", help="every batch system that there is an adapter for")
    doctor.add_argument("--probe", action="store_true", help="submit one tiny job, which writes into the spool folder")
    doctor.add_argument(
        "--probe-time",
        metavar="SECONDS",
        type=_read_seconds,
        default=120.0,
        help="how long to wait for it (default: 120)",
    )


def _add(
    subparsers: "_Subparsers", name: str, run: Callable[[argparse.Namespace], int], doc: str, more: str = ""
) -> argparse.ArgumentParser:
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


def _add_for_job(
    subparsers: "_Subparsers",
    name: str,
    run: Callable[[argparse.Namespace], int],
    doc: str,
    more: str = "",
    optional: bool = False,
) -> argparse.ArgumentParser:
    command = _add(subparsers, name, run, doc, more)
    command.add_argument(
        "id", metavar="ID", nargs="?" if optional else None, help="id of a grid job, or as much of it as is unique"
    )
    return command


def _add_file(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "file", metavar="FILE", help='request in RSL, or an old job description file; "-" reads standard input'
    )
