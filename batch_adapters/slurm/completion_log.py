"""The records of jobcomp/filetxt, one a line and one for each end of a job; what they leave open is in `events`."""

import re

from batch_adapters.generator.local_time import LocalStamps
from batch_adapters.generator.module import Parser, render_line

_PENDING, _FAILED, _DONE = b"1", b"4", b"8"

# JobState to state. NODE_FAIL and PREEMPTED are missing: such a job may be back in the queue, nothing here tells.
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
# All that is the users' is before "Cluster=": the array's task and the exit code, at the end, are Slurm's own.
RECORD = re.compile(
    rb"^JobId=(\d+) UserId=(?>[^\n]*?" + _STATE + rb")(?>[^\n]*? EndTime=(\d{4}-[\dT:-]{14}) NodeList=)[^\n]*"
    rb" EligibleTime=\S+(?: ArrayJobId=(\d+) ArrayTaskId=(\d+))? DerivedExitCode=\d+:\d+ ExitCode=(\d+):(\d+) $",
    re.MULTILINE,
)
"""A whole record."""

_STATE_FIELD = re.compile(_STATE)
START = re.compile(rb"^JobId=\d+ UserId=[^\n]*", re.MULTILINE)
"""The line with which a record starts; where there is a newline in a name, the record goes on behind it."""

_END = re.compile(rb" ExitCode=\d+:\d+ $", re.MULTILINE)


# Refused at the last moment (BadConstraints): the exit code, 0:1, is nobody's.
_NO_NODE = b" NodeList=(null) "
# What Slurm gives as a signal where the program never ran: its output could not be opened, for instance.
_LAUNCH_FAILURE = 53


def read_end(status: int, signal: int) -> tuple[bytes, bytes]:
    """State and exit code of a job that ended by itself: 128 + N for signal N; FAILED where it was never launched."""
    if signal == _LAUNCH_FAILURE and not status:
        return _FAILED, b"0"
    return _DONE, b"%d" % (status or (128 + signal if signal else 0))


class CompletionLog(Parser):
    """Reads the log of jobcomp/filetxt; remembers whether the last block ended inside a record."""

    def __init__(self) -> None:
        self._times = LocalStamps("YYYY-mm-ddTHH:MM:SS")
        self._inside = False

    def read_events(self, block: bytes) -> bytes:
        """The events of the block's records; what begins inside another record is part of a name."""
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
        # Where the state is there twice, one is in a name or a folder.
        if word not in _STATES or _STATE_FIELD.search(record[0], record.end(2)):
            return b""
        ended, exit_code = read_end(int(code), int(signal))
        state = _STATES[word]
        never_ran = record[0].startswith(_NO_NODE, record.end(3))
        if word == b"FAILED" and (exit_code == b"0" or ended == _FAILED or never_ran):
            state = _FAILED
        return render_line(self._times[end], b"%b_%b" % (array, task) if array else job, state, exit_code)

    def read_time(self, block: bytes) -> int | None:
        """The end of the first record's job."""
        for record in RECORD.finditer(block):
            if time := self._times[record[3]]:
                return int(time)
        return None
