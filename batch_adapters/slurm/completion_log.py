"""Reads the log of Slurm's plugin jobcomp/filetxt: one record for each end of a job.

It has only ends, and not that of a single pending task that was cancelled. Its NODE_FAIL and PREEMPTED are no events,
because it does not show whether the job was queued again.

Slurm escapes nothing, so every user can get a line break, and text like a record's, into this log by a job's name. A
record that begins inside another is skipped, but a name that first completes its own record looks like two jobs. If
users are not trusted, use slurmctld.log, which has no names.
"""

import re

from batch_adapters.generator.local_time import LocalStamps
from batch_adapters.generator.module import Parser, render_line

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
RECORD = re.compile(
    rb"^JobId=(\d+) UserId=(?>[^\n]*?" + _STATE + rb")(?>[^\n]*? EndTime=(\d{4}-[\dT:-]{14}) NodeList=)[^\n]*"
    rb" EligibleTime=\S+(?: ArrayJobId=(\d+) ArrayTaskId=(\d+))? DerivedExitCode=\d+:\d+ ExitCode=(\d+):(\d+) $",
    re.MULTILINE,
)
"""A whole record."""

_STATE_FIELD = re.compile(_STATE)
START = re.compile(rb"^JobId=\d+ UserId=[^\n]*", re.MULTILINE)
"""The first line of a record; if a name contains a newline, the record continues on the next line."""

_END = re.compile(rb" ExitCode=\d+:\d+ $", re.MULTILINE)


# Refused at the last moment (BadConstraints): the exit code 0:1 is not that of a program.
_NO_NODE = b" NodeList=(null) "
# The signal that Slurm reports if the program never ran, for example because its output could not be opened.
_LAUNCH_FAILURE = 53


def read_end(status: int, signal: int) -> tuple[bytes, bytes]:
    """State and exit code of a job that ended by itself: 128 + N for signal N; FAILED if it was never launched."""
    if signal == _LAUNCH_FAILURE and not status:
        return _FAILED, b"0"
    return _DONE, b"%d" % (status or (128 + signal if signal else 0))


class CompletionLog(Parser):
    """Reads the log of jobcomp/filetxt; remembers whether the last block ended inside a record."""

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
            start = START.search(block, place)
            if start is None:
                return b"".join(events)
            place = start.end()
            if record := RECORD.fullmatch(start[0]):
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
        for record in RECORD.finditer(block):
            if time := self._times[record[3]]:
                return int(time)
        return None
