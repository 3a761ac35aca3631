"""The command line for people: ``samgrid COMMAND``."""

import argparse
import gc
import io
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from jobmanager import UserError, render_error
from jobmanager.commands import accounting, batch_system, control, grid_jobs, query, service
from jobmanager.commands.arguments import Declare, Run, account_of, read_name

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

    _Subparsers = argparse._SubParsersAction["_Parser"]

_MODULES = (grid_jobs, control, query, batch_system, accounting, service)
"""In the order of the help."""
_SILENT = ("status",)
"""Commands that load nothing that logs, to be fast."""

_DESCRIPTION = """\
Run grid jobs: one request becomes many local jobs in a batch system, and their outputs come back as one tar file.

  samgrid run examples/drell-yan.rsl      submit, watch, and show the output
  samgrid submit FILE                     submit only: prints the grid job's id
  samgrid status                          all grid jobs, with their local jobs by state
"""


def main(argv: list[str]) -> int:
    """Run one command; errors of the user's, or of the machine, are one clear line each and exit status 1."""
    if "_ARGCOMPLETE" in os.environ:
        from argcomplete import autocomplete

        completer: Any = _complete  # a function will do, whatever argcomplete declares
        autocomplete(make_whole_parser(), default_completer=completer)
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115 closed by whoever started us
    # As in `batch_adapters.launch`: a command loads more than the command line.
    gc.set_threshold(50_000)
    encoding = None
    # `launch.run` says UTF-8; terminals have the locale's, or what the person says.
    if "utf8" in sys._xoptions and "PYTHONIOENCODING" not in os.environ:
        from locale import getencoding

        encoding = getencoding()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A letter that the terminal does not have shall keep nothing back.
            stream.reconfigure(encoding=encoding, errors="replace")
    options = _parse(argv)
    if options.command not in _SILENT:
        import logging

        logging.basicConfig(level=logging.WARNING, format="samgrid: %(message)s", stream=sys.stderr)
    return run_command(f"samgrid {options.command}", partial(options.run, options))


def run_command(name: str, run: Callable[[], int]) -> int:
    """Run one command of that name; its exit status."""
    try:
        status = run()
        sys.stdout.flush()
    except BrokenPipeError:  # whoever read our output has enough of it
        _drop_unprinted()
        return 1
    except KeyboardInterrupt:
        return 130
    except (UserError, OSError) as error:
        from jobmanager.views.text import printable

        for line in render_error(error).splitlines():
            print(f"{name}: {printable(line)}", file=sys.stderr)
        _drop_unprinted()
        return 1
    return status


def _drop_unprinted() -> None:
    """What cannot be printed the interpreter must not try again at its end: that would be an exit status of its own."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def make_whole_parser() -> argparse.ArgumentParser:
    """The parser with the arguments of every command, as the manual page needs it."""
    _, commands = _make_parser([])
    return _make_parser(list(commands))[0]


def _parse(argv: list[str]) -> argparse.Namespace:
    """What the words say; wrong usage ends the program, and says what may have been meant."""
    parser, commands = _make_parser(argv)
    if not argv:
        parser.error("say a command: samgrid --help lists them")
    first = argv[0]
    if first.startswith("-"):
        if not any(option.startswith(first) for option in ("-h", "--help", "--version")):
            parser.error(f"the command comes before its options: samgrid COMMAND {first}")
    elif first not in commands:
        meant = _suggest(first, commands) or ": samgrid --help lists them"
        parser.error(f"there is no command {first!r}{meant}")
    options, unknown = parser.parse_known_args(argv)
    if isinstance(ids := getattr(options, "id", None), list) and not any(word.startswith("-") for word in unknown):
        # argparse takes those on one side of an option only; its own way out knows neither "--" nor doctor's choices.
        ids += map(read_name, unknown)
        return options
    if unknown:
        command = commands[options.command]
        option = next((word for word in unknown if word.startswith("-")), "").partition("=")[0]
        known = re.findall(r"--[\w-]+", command.format_usage())
        command.error(f"unrecognized arguments: {' '.join(unknown)}{_suggest(option, known)}")
    return options


def _suggest(word: str, known: Iterable[str]) -> str:
    from jobmanager.requests.attributes import suggest

    return suggest(word, known)


def _make_parser(words: Sequence[str]) -> tuple[argparse.ArgumentParser, Mapping[str, argparse.ArgumentParser]]:
    """The parser, and those of the commands by their names; only those among ``words`` have arguments."""
    parser = _Parser(prog="samgrid", description=_DESCRIPTION, formatter_class=_HelpFormatter)
    parser.add_argument("--version", action=_ShowVersion, nargs=0, help="show the version and exit")
    # Of other commands the list has the name and the first sentence. A parser each would make all a twentieth slower.
    others = _Parser(add_help=False)
    make: Any = lambda is_meant, **rules: _Parser(**rules) if is_meant else others  # noqa: E731 as if it were a class
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=make)
    for module in _MODULES:
        module.add_commands(partial(_add, subparsers, words))
    # For help, manual page and shells: `batch_adapters.launch` runs it.
    doc = "As root: register with a Globus gatekeeper (install, uninstall, status)."
    usage = "samgrid gram install|uninstall|status [--help]"
    subparsers.add_parser("gram", is_meant="gram" in words, help=doc, description=doc, usage=usage, add_help=False)
    return parser, subparsers.choices


class _HelpFormatter(argparse.HelpFormatter):
    """Fills paragraphs to the terminal's width; a sentence's end may end one, and indented lines are to be copied."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        joined = re.sub(r"^(\S.*[^\s.:])\n(?=\S)", r"\1 ", text, flags=re.MULTILINE)
        lines = ([line] if line[:1] in ("", " ") else self._split_lines(line, width) for line in joined.splitlines())
        return "\n".join(line for of_line in lines for line in of_line)

    def _split_lines(self, text: str, width: int) -> list[str]:
        from textwrap import wrap

        return wrap(" ".join(text.split()), width, break_long_words=False, break_on_hyphens=False)


class _ShowVersion(argparse.Action):
    """Looks for the version only when it is asked for."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from jobmanager import read_version

        parser.exit(_show(parser.prog, f"samgrid {read_version()}\n"))


class _Parser(argparse.ArgumentParser):
    """Tells where its help cannot be printed, which argparse keeps to itself."""

    def print_help(self, file: "SupportsWrite[str] | None" = None) -> None:
        if file is not None:
            super().print_help(file)
        elif status := _show(self.prog, self.format_help()):
            self.exit(status)


def _show(name: str, text: str) -> int:
    def run() -> int:
        sys.stdout.write(text)
        return 0

    return run_command(name, run)


def _add(
    subparsers: "_Subparsers", words: Sequence[str], name: str, run: Run, doc: str, more: str = "", *declare: Declare
) -> None:
    command = subparsers.add_parser(
        name, is_meant=name in words, help=doc, description=f"{doc}\n\n{more}", formatter_class=_HelpFormatter
    )
    if name not in words:
        return
    command.set_defaults(run=run, refuse=command.error)
    command.add_argument(
        "--state-dir",
        metavar="DIR",
        help="state folder of the account (default: $SAMGRID_STATE, else $XDG_STATE_HOME/samgrid, "
        "else ~/.local/state/samgrid)",
    )
    for add_arguments in declare:
        add_arguments(command)


_OF_GRID_JOBS = ("id", "job")
_OF_FILES = ("file", "folder", "extract", "module", "request", "token_file", "state_dir")
_MOST_COMPLETED = 100
"""Grid jobs that are completed, the newest."""


def _complete(
    prefix: str, action: argparse.Action, parsed_args: argparse.Namespace, **_: object
) -> Iterable[str] | Mapping[str, str]:
    """What a shell completes: files, grid jobs and job types; argcomplete itself knows commands and options."""
    if action.dest in _OF_GRID_JOBS:
        return _find_grid_jobs(parsed_args)
    if action.dest == "type":
        from jobmanager.requests.job_types import KNOWN_TYPES

        return KNOWN_TYPES
    from argcomplete.completers import FilesCompleter

    return FilesCompleter()(prefix) if action.dest in _OF_FILES else ()


def _find_grid_jobs(options: argparse.Namespace) -> Mapping[str, str]:
    """Ids and names, each with what says more of it, where the shell shows that."""
    from jobmanager.database.database import Choice

    rows = account_of(options).database.grid_jobs.page(Choice(), 0, _MOST_COMPLETED)
    ids = {row.id: " ".join(filter(None, (row.outcome or row.state, row.name))) for row in rows}
    return {**ids, **{row.name: row.id for row in rows if row.name}}
