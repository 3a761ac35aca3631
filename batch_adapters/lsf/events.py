"""The generator's module for LSF: reads mbatchd's lsb.events, and OpenLava's.

Ids are as bsub prints and bjobs takes them: ``101``; elements of an array ``101[3]``.
"""

import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from batch_adapters.generator.module import LogModule, LogNotKnown, Parser, forget_oldest

# A record is one line: "TYPE" "VERSION" TIME fields…; strings are in double quotes, with quotes in them doubled
# (lsb.events(5)). So no line within a user's text begins with exactly one double quote, as records do.
# A number; a character class of one range is the fastest.
_FIELD = rb" [!-~]++"
_STRING = rb'(?: "[^"\n]*+(?:""[^"\n]*+)*+")'
_END = rb"(?=[ \n])"
# "VERSION" TIME job; the last two are one group, because an event begins with both, and each group costs time.
_VERSION, _TIME, _JOB = rb'" "[^"\n]*+" ', rb"[0-9]{1,10}+", rb"[0-9]{1,18}+"
_HEAD = _VERSION + rb"(" + _TIME + rb" " + _JOB + rb")"
# status pid pgid factor number hosts… pre-exec post-exec flags [user group] idx
_START = _FIELD * 4 + rb" [0-9]++" + _STRING + rb"++ -?[0-9]++" + _STRING + rb"?+ ([0-9]{1,9}+)" + _END
# jStatus reason subreasons cpuTime endTime ru [19 fields of usage] exitStatus idx [exitInfo]
_USAGE = rb" (?:0|1" + _FIELD * 19 + rb")"
_STATUS = rb" ([0-9]{1,9}+)" + _FIELD * 4 + _USAGE + rb" (-?[0-9]{1,9}+) ([0-9]{1,9}+)(?: ([0-9]{1,9}+))?" + _END
# One branch for each frequent type and one for all rare types: conditions would cost time on each record.
_EVENT = re.compile(
    rb'\n"JOB_(?:NEW%b|START%b|STATUS%b|((?:REQUEUE|SIGNAL|EXCEPT(?:ION)?)" [^\n]*+))'
    % (_HEAD + _END, _HEAD + _START, _HEAD + _STATUS)
)
_RARE = re.compile(rb"([A-Z]++)%b(%b) (%b)%b(.*+)" % (_VERSION, _TIME, _JOB, _END))
_REQUEUE = re.compile(rb" ([0-9]{1,9}+)(?: |$)")
# userId runCount symbol idx
_KILL = re.compile(rb' -?[0-9]++ -?[0-9]++ "(?:KILL|DELETEJOB)" ([0-9]{1,9}+)(?: |$)')
# exceptMask actMask timeEvent exceptInfo idx
_EXCEPTION = re.compile(rb" ([0-9]{1,9}+) ([0-9]{1,9}+) [0-9]++ -?[0-9]++ ([0-9]{1,9}+)(?: |$)")
_HEADER = re.compile(rb"# ?([0-9]{1,10}+)[ \t]*\n")
_DATED = re.compile(rb'\n"JOB_[A-Z0-9_]++" "[^"\n]*+" ([0-9]{1,10}+) ')

# With spaces between the fields, as in the log: they become semicolons in all events of a block at once.
_PENDING, _ACTIVE, _SUSPENDED, _DONE = b" 1 0\n", b" 2 0\n", b" 16 0\n", b" 8 0\n"
_ENDED = b"exit"
# Bits of jStatus (lsbatch.h); the first one that is set decides. A job on an unreachable host keeps its state.
_STATES = (
    (0x1_0000, b""),
    (0x40, _DONE),
    (0x20, _ENDED),
    (0x200 | 0x01, _PENDING),
    (0x02 | 0x08 | 0x10, _SUSPENDED),
    (0x04, _ACTIVE),
)
# exitInfo of a job that LSF did not end: TERM_UNKNOWN, TERM_EXTERNAL_SIGNAL; missing in OpenLava and the oldest LSF.
_OWN_END = (b"", b"0", b"17")
# exceptMask: cantrun, hostfail, startfail.
_NOT_THE_JOB = 0x10 | 0x20 | 0x40
_CANNOT_RUN = 0x10
_ACTION_KILL, _ACTION_RERUN = 0x01, 0x04
# A smaller number in the first line is the length of the copies; a larger one is the time of the switch.
_FIRST_TIME = 1_000_000_000
_MOST_KILLED = 100_000
# The number of bytes last read that are kept to recognize copies of them.
_TAIL = 1 << 16


@lru_cache(256)
def _read_state(native: bytes) -> bytes:
    bits = int(native)
    return next((event for mask, event in _STATES if bits & mask), b"")


@lru_cache(256)
def _render_end(exit_status: bytes, reason: bytes, killed: bool) -> bytes:
    # A wait status, as of wait(2).
    status = int(exit_status) & 0xFFFF
    exit_code = 128 + (status & 0x7F) if status & 0x7F else status >> 8
    if killed or reason not in _OWN_END or exit_code == 0:
        return b" 4 %d\n" % exit_code
    return b" 8 %d\n" % exit_code


def _name(job: bytes, index: bytes) -> bytes:
    return job if index == b"0" else b"%b[%b]" % (job, index)


def _job_of(head: bytes) -> bytes:
    """The job of ``TIME job``."""
    return head.partition(b" ")[2]


class LsbEvents(Parser):
    """Reads lsb.events.

    JOB_SIGNAL and JOB_EXCEPT change no state; the JOB_STATUS that follows does. They are remembered (for the latest
    100 000 jobs), because an EXIT after a kill, or by an exception that was not the job's fault, is FAILED. If a job
    can never run (cantrun) and LSF takes no action, no JOB_STATUS follows, so it is FAILED at once; if it starts after
    all, PENDING comes first, which alone leads out of a final state. Any other EXIT is DONE with the exit code, unless
    exitInfo says that LSF ended the job, or the code is 0: then no process ended. The end of a job is reported again
    when its post-processing ends. The id of a whole array is only ever PENDING.

    When mbatchd switches its log, the old records move to a new file, lsb.events.1, and the log begins with copies of
    those that mbatchd still needs (up to the offset in the first line). Copies of records read before are skipped: up
    to the last record read; if that one was not copied, or was incomplete, all that are older or among the latest read.
    """

    def __init__(self) -> None:
        """A parser that has seen nothing yet."""
        self._killed: dict[bytes, None] = {}
        self._unable: dict[bytes, None] = {}
        self._last_time = 0
        self._last = b""
        self._tail = b""
        self._copied = 0

    def read_events(self, block: bytes) -> bytes:
        """The events in a block of whole records; see `Parser`."""
        if header := _HEADER.match(block):
            self._copied = int(header[1])
        records = b"\n" + (self._skip_copies(block) if self._copied else block)
        parts: list[bytes] = []
        killed = self._killed
        for new, start, start_index, status, native, exit_status, index, reason, rare in _EVENT.findall(records):
            if new:
                if killed:
                    killed.pop(_job_of(new), None)
                parts += (b"001 ", new, _PENDING)
            elif start:
                head = start if start_index == b"0" else _name(start, start_index)
                if self._unable:
                    parts += self._revive(head)
                parts += (b"001 ", head, _ACTIVE)
            elif status:
                head = status if index == b"0" else _name(status, index)
                change = _read_state(native)
                if change is _ENDED:
                    was_killed = bool(killed) and (_job_of(status) in killed or _job_of(head) in killed)
                    change = _render_end(exit_status, reason, was_killed)
                if change:
                    parts += (b"001 ", head, change)
            else:
                parts += self._read_rare(rare)
        self._remember(records)
        return b"".join(parts).replace(b" ", b";")

    def _read_rare(self, text: bytes) -> tuple[bytes, ...]:
        record = _RARE.match(text)
        if record is None:
            return ()
        kind, stamp, job, rest = record.groups()
        if kind == b"SIGNAL":
            if found := _KILL.match(rest):
                self._killed[_name(job, found[1])] = None
        elif kind == b"REQUEUE":
            if found := _REQUEUE.match(rest):
                local_id = _name(job, found[1])
                self._killed.pop(local_id, None)
                return b"001 ", stamp, b" ", local_id, _PENDING
        elif (found := _EXCEPTION.match(rest)) and (int(found[1]) & _NOT_THE_JOB or int(found[2]) & _ACTION_KILL):
            local_id = _name(job, found[3])
            self._killed[local_id] = None
            if int(found[1]) & _CANNOT_RUN and not int(found[2]) & (_ACTION_KILL | _ACTION_RERUN):
                self._unable[local_id] = None
                return b"001 ", stamp, b" ", local_id, b" 4 0\n"
        return ()

    def _revive(self, head: bytes) -> tuple[bytes, ...]:
        local_id = _job_of(head)
        if local_id not in self._unable:
            return ()
        del self._unable[local_id]
        self._killed.pop(local_id, None)
        return b"001 ", head, _PENDING

    def _skip_copies(self, block: bytes) -> bytes:
        # Skip nothing behind the offset in the header, so that a clock that was wrong for a moment does not hide the
        # rest. In a file that was switched away the number is a time: any record of it may have been read.
        end = block.rfind(b"\n", 0, self._copied) + 1
        copies = b"\n" + block[:end]
        self._copied = max(0, self._copied - len(block))
        if self._last and (found := copies.rfind(self._last)) >= 0:
            self._copied = 0
            return block[found + len(self._last) - 1 :]
        unread = self._find_unread(copies)
        if unread is None:
            return block[end:]
        self._copied = 0
        return block[unread:]

    def _find_unread(self, copies: bytes) -> int | None:
        unread = None
        for record in _DATED.finditer(copies):
            if int(record[1]) < self._last_time:
                continue
            if copies[record.start() : copies.index(b"\n", record.end()) + 1] in self._tail:
                unread = None
            elif unread is None:
                unread = record.start()
        return unread

    def _remember(self, records: bytes) -> None:
        self._tail = (self._tail + records[-_TAIL:])[-_TAIL:]
        end = len(records)
        while (begin := records.rfind(b'\n"JOB_', 0, end)) >= 0:
            if latest := _DATED.match(records, begin):
                self._last_time = int(latest[1])
                self._last = records[begin : records.index(b"\n", latest.end()) + 1]
                break
            end = begin
        for memory in (self._killed, self._unable):
            forget_oldest(memory, _MOST_KILLED)

    def read_time(self, block: bytes) -> int | None:
        """The time of the first job record that is not a copy."""
        header = _HEADER.match(block)
        copied = int(header[1]) if header else 0
        found = _DATED.search(b"\n" + block, copied if copied < _FIRST_TIME else 0)
        return int(found[1]) if found else None


_SHARED = re.compile(r"^\s*LSB_SHAREDIR\s*=\s*[\"']?([^\s\"'#]+)", re.MULTILINE)


def find_log(environment: Mapping[str, str]) -> Path:
    """``logdir/lsb.events`` of the only cluster below LSB_SHAREDIR (environment, or ``$LSF_ENVDIR/lsf.conf``).

    :raises LogNotKnown: LSB_SHAREDIR is not known, or there is not exactly one cluster.
    """
    shared = environment.get("LSB_SHAREDIR")
    configuration = Path(environment.get("LSF_ENVDIR", "/etc")) / "lsf.conf"
    if not shared and configuration.is_file():
        found = _SHARED.search(configuration.read_text(errors="replace"))
        shared = found[1] if found else None
    if not shared:
        raise LogNotKnown(
            f"LSF's log is not known: no LSB_SHAREDIR, none in {configuration}; set it, or name it with --log PATH"
        )
    # LSF has a folder for each cluster; OpenLava has no such level.
    folders = [folder for folder in (*Path(shared).glob("*/logdir"), Path(shared) / "logdir") if folder.is_dir()]
    if len(folders) != 1:
        raise LogNotKnown(f"{len(folders)} clusters have a log below {shared}: name one with --log PATH")
    return folders[0] / "lsb.events"


LSF = LogModule(name="lsf", find_log=find_log, new_parser=LsbEvents, file_name="lsb.events")
"""The event log of this host's LSF cluster, with its older parts ``lsb.events.1`` (newest) … ``.N``."""
