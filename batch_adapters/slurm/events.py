"""The generator's module for Slurm: it reads slurmctld.log, or the log of jobcomp/filetxt.

The first records show which of the two it is. Every LogTimeFormat but ``clock``, which has no date, can be read; times
without an offset are local. What each log does not tell is said by the module that reads it.
"""

import re
from collections.abc import Mapping
from pathlib import Path

from batch_adapters.generator.module import LogModule, LogNotKnown, Parser
from batch_adapters.slurm.completion_log import RECORD, START, CompletionLog
from batch_adapters.slurm.controller_log import STAMPED, ControllerLog, read_deletions

_CONFIGURED = re.compile(r"^[ \t]*SlurmctldLogFile[ \t]*=[ \t]*([^\s#]+)", re.MULTILINE | re.IGNORECASE)


class SlurmLog(Parser):
    """Reads whichever of the two logs it is given."""

    def __init__(self) -> None:
        self._log: Parser | None = None

    def read_events(self, block: bytes) -> bytes:
        """The events of the block; see the docstring of this module."""
        if self._log is None:
            self._log = _find_kind(block)
        return self._log.read_events(block) if self._log else b""

    def read_time(self, block: bytes) -> int | None:
        """When the first line was written, or the first record's job ended."""
        log = self._log or _find_kind(block)
        return log.read_time(block) if log else None


def _find_kind(block: bytes) -> Parser | None:
    stamped, start = STAMPED.search(block), START.search(block)
    # By the name of a job, users can put lines of slurmctld.log into the log of jobcomp/filetxt.
    if start and (stamped is None or start.start() < stamped.start() or RECORD.search(block)):
        return CompletionLog()
    return ControllerLog() if stamped else None


def find_log(environment: Mapping[str, str]) -> Path:
    """The ``SlurmctldLogFile`` of ``$SLURM_CONF``, by default /etc/slurm/slurm.conf."""
    settings = Path(environment.get("SLURM_CONF") or "/etc/slurm/slurm.conf")
    try:
        found = _CONFIGURED.search(settings.read_text(errors="replace"))
    except OSError as error:
        raise LogNotKnown(f"Slurm's log is not known ({error}): set SLURM_CONF, or name it with --log PATH") from error
    if found is None:
        raise LogNotKnown(f"{settings} has no SlurmctldLogFile: name the log with --log PATH")
    return Path(found[1].strip('"'))


SLURM = LogModule(
    name="slurm",
    find_log=find_log,
    new_parser=SlurmLog,
    file_name="slurmctld.log",
    read_deletions=read_deletions,
)
