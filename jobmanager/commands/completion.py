"""What a shell completes, by argcomplete: commands, options and their choices, files, grid jobs, and job types."""

import argparse
from collections.abc import Iterable, Mapping
from typing import Any

from argcomplete import autocomplete
from argcomplete.completers import FilesCompleter

from jobmanager.commands.arguments import account_of
from jobmanager.requests.job_types import KNOWN_TYPES

_OF_GRID_JOBS = ("id", "job")
_OF_FILES = ("file", "folder", "extract", "module", "request", "token_file", "state_dir")
_MOST = 100
"""Grid jobs that are completed, the newest."""


def complete(parser: argparse.ArgumentParser) -> None:
    """Answer the shell, as argcomplete's script for it asks, and end the program."""
    completer: Any = _complete  # a function will do, whatever argcomplete declares
    autocomplete(parser, default_completer=completer)


def _complete(
    prefix: str, action: argparse.Action, parsed_args: argparse.Namespace, **_: object
) -> Iterable[str] | Mapping[str, str]:
    if action.dest in _OF_GRID_JOBS:
        return _find_grid_jobs(parsed_args)
    if action.dest == "type":
        return KNOWN_TYPES
    return FilesCompleter()(prefix) if action.dest in _OF_FILES else ()


def _find_grid_jobs(options: argparse.Namespace) -> Mapping[str, str]:
    """Ids and names, each with what says more of it, where the shell shows that."""
    from jobmanager.database.database import Choice

    rows = account_of(options).database.grid_jobs.page(Choice(), 0, _MOST)
    ids = {row.id: " ".join(filter(None, (row.outcome or row.state, row.name))) for row in rows}
    return {**ids, **{row.name: row.id for row in rows if row.name}}
