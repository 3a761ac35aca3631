"""The generator's module for Slurm: it reads slurmctld.log, or the log of jobcomp/filetxt.

The first records show which of the two it is. Every LogTimeFormat but ``clock``, which has no date, can be read; times
without an offset are local. What each log does not tell, `controller_log` and `CompletionLog` say.
"""

import re
from collections.abc import Mapping
from pathlib import Path

from batch_adapters.generator.local_time import LocalStamps
from batch_adapters.generator.module import LogModule, LogNotKnown, Parser, render_line
from batch_adapters.slurm.controller_log import STAMPED, ControllerLog, read_deletions, read_end

_PENDING, _FAILED, _DONE = b"1", b"4", b"8"
# JobState to state. NODE_FAIL and PREEMPTED are missing: such a job may have been queued again.
_STATES = {
    b"PENDING": _PENDING,
    b"COMPLETED": _DONE,
    b"FAILED": _DONE,
    b"CANCELLED": _FAILED,
    b"TIMEOUT": _FAILED,
    b"DEADLINE": _FAILED,
    b"OUT_OF_MEMORY": _FAILED,
    b"BOOT_FAIL": _FAILED,
}
_STATE = rb" JobState=([A-Z_]+) Partition="
# All text of users is before "Cluster=": the array's task and the exit code at the end are written by Slurm.
_RECORD = re.compile(
    rb"^JobId=(\d+) UserId=(?>[^\n]*?" + _STATE + rb")(?>[^\n]*? EndTime=(\d{4}-[\dT:-]{14}) NodeList=)[^\n]*"
    rb" EligibleTime=\S+(?: ArrayJobId=(\d+) ArrayTaskId=(\d+))? DerivedExitCode=\d+:\d+ ExitCode=(\d+):(\d+) $",
    re.MULTILINE,
)
_STATE_FIELD = re.compile(_STATE)
# The first line of a record; if a name contains a newline, the record continues on the next line.
_START = re.compile(rb"^JobId=\d+ UserId=[^\n]*", re.MULTILINE)
_END = re.compile(rb" ExitCode=\d+:\d+ $", re.MULTILINE)
# Refused at the last moment (BadConstraints): the exit code 0:1 is not that of a program.
_NO_NODE = b" NodeList=(null) "


class CompletionLog(Parser):
    """Reads the log of jobcomp/filetxt, one record for each end of a job.

    It has only ends, and not that of a single pending task that was cancelled. Its NODE_FAIL and PREEMPTED are no
    events, because it does not show whether the job was queued again.

    Slurm escapes nothing, so every user can get a line break, and text like a record's, into this log by a job's name.
    A record that begins inside another is skipped, so it is remembered whether the last block ended inside a record;
    but a name that first completes its own record looks like two jobs. If users are not trusted, use slurmctld.log,
    which has no names.
    """

    def __init__(self) -> None:
        self._times = LocalStamps("YYYY-mm-ddTHH:MM:SS")
        self._inside = False

    def read_events(self, block: bytes) -> bytes:
        """The events of the block's records; text that begins inside another record is part of a name."""
        events: list[bytes] = []
        place = 0
        while True:
            if self._inside:
                end = _END.search(block, place)
                if end is None:
                    return b"".join(events)
                self._inside = False
                place = end.end()
            start = _START.search(block, place)
            if start is None:
                return b"".join(events)
            place = start.end()
            if record := _RECORD.fullmatch(start[0]):
                events.append(self._read_record(record))
            else:
                self._inside = _END.search(start[0]) is None

    def _read_record(self, record: re.Match[bytes]) -> bytes:
        job, word, end, array, task, code, signal = record.groups()
        # If the state is there twice, one is part of a name or a folder.
        if word not in _STATES or _STATE_FIELD.search(record[0], record.end(2)):
            return b""
        ended, exit_code = read_end(int(code), int(signal))
        state = _STATES[word]
        never_ran = record[0].startswith(_NO_NODE, record.end(3))
        if word == b"FAILED" and (exit_code == b"0" or ended == _FAILED or never_ran):
            state = _FAILED
        return render_line(self._times[end], b"%b_%b" % (array, task) if array else job, state, exit_code)

    def read_time(self, block: bytes) -> int | None:
        """When the first record's job ended."""
        for record in _RECORD.finditer(block):
            if time := self._times[record[3]]:
                return int(time)
        return None


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
    stamped, start = STAMPED.search(block), _START.search(block)
    # By the name of a job, users can put lines of slurmctld.log into the log of jobcomp/filetxt.
    if start and (stamped is None or start.start() < stamped.start() or _RECORD.search(block)):
        return CompletionLog()
    return ControllerLog() if stamped else None


_CONFIGURED = re.compile(r"^[ \t]*SlurmctldLogFile[ \t]*=[ \t]*([^\s#]+)", re.MULTILINE | re.IGNORECASE)


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
