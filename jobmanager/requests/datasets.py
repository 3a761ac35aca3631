"""Datasets, as the site's command lists them: once for each grid job, so that it is always cut in the same way."""

import errno
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

from adapters import UnknownDataset
from jobmanager.site.account import Account
from jobmanager.site.settings import SiteSettings
from sandbox.files import read_regular, replace_file

_NAME = "{name}"
"""The placeholder for the dataset's name in the command."""
_MOST_FILES = 100_000
_LONGEST_NAME = 4096
_LONGEST_WORDS = 300


@dataclass
class Datasets:
    """The datasets that the site's command has listed, and the command for others."""

    settings: SiteSettings
    known: dict[str, Sequence[str]] = field(default_factory=dict)
    """Names of files by dataset."""

    @classmethod
    def read(cls, account: Account, grid_job: str = "") -> Self:
        """What was listed for a grid job; nothing for a new one.

        :raises OSError: the lists cannot be read.
        """
        settings = account.configuration.site
        if not grid_job:
            return cls(settings)
        file = account.places.datasets(grid_job)
        try:
            return cls(settings, json.loads(read_regular(file)))
        except FileNotFoundError:
            return cls(settings)
        except ValueError as error:
            raise OSError(errno.EINVAL, "the lists of its datasets are damaged", str(file)) from error

    @property
    def are_listed(self) -> bool:
        """False if there are no datasets and no command."""
        return bool(self.settings.dataset_command or self.known)

    def find(self, name: str) -> Sequence[str]:
        """The names of a dataset's files; raises UnknownDataset: the command does not give them."""
        if name not in self.known:
            self.known[name] = _ask(self.settings, name)
        return self.known[name]


def keep_lists(account: Account, grid_job: str, known: Mapping[str, Sequence[str]]) -> None:
    """Store the lists for a grid job; raises OSError: they cannot be written."""
    if known:
        account.places.grid_job(grid_job).mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(account.places.datasets(grid_job), json.dumps(known).encode())


def _ask(settings: SiteSettings, name: str) -> Sequence[str]:
    from batch_adapters.running.commands import run_question  # rarely needed, and loading takes time

    command = settings.dataset_command
    if not any(_NAME in word for word in command[1:]):
        raise UnknownDataset(f"[site] dataset_command names no program with an argument that has {_NAME}")
    if not name.isprintable() or name.startswith("-") or len(name) > _LONGEST_NAME:
        raise UnknownDataset("a dataset's name is printable, and begins with no dash")
    done = run_question([word.replace(_NAME, name) for word in command], settings.dataset_time_limit)
    if done.exit_code == 0:
        return read_list(done.stdout)
    words = " ".join((done.stderr or done.stdout).split())[-_LONGEST_WORDS:]
    ended = "" if done.exit_code is None else f"{command[0]} ended with exit code {done.exit_code}: "
    raise UnknownDataset(f"{ended}{words or 'it said nothing'}")


def read_list(text: str) -> Sequence[str]:
    """The names of files in what the command printed, one a line.

    :raises UnknownDataset: it printed something else, or too much.
    """
    names = [line.strip(" ") for line in text.split("\n") if line]
    if len(names) > _MOST_FILES:
        raise UnknownDataset(f"its command lists more than {_MOST_FILES} files")
    for number, name in enumerate(names, 1):
        # Invalid UTF-8 has been replaced by this character.
        if not name or len(name) > _LONGEST_NAME or not name.isprintable() or "\ufffd" in name:
            raise UnknownDataset(f"line {number} of what its command printed is no file's name: {name[:60]!r}")
    return names
