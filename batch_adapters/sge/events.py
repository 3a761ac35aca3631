"""The generator's module for Grid Engine: its ``reporting`` file, or an ``accounting`` file, which has only ends.

Needs ``reporting_params reporting=true joblog=true``; events come ``flush_time`` (15 s by default) late.
Ids are those of ``qstat`` and ``qdel``: ``10.3`` for an array's task, ``10`` for any other job, and for an array as a
whole, whose only event is its submission (PENDING).

A job in the error state (Eqw) is PENDING, like one that is held: it stays in the queue until somebody clears or
deletes it, and clearing is not logged. A job suspended with its queue (``qmod -sq``) stays ACTIVE: only the queue's
state is logged. The end of a job is the qmaster's ``finished`` record; its outcome is in the ``acct`` record before it.
A job that somebody deletes has FAILED, whatever it did before it died; an accounting file does not show the deletion,
there it is DONE with 137.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from batch_adapters.generator.module import LogModule, LogNotKnown, Parser, remember, render_line
from batch_adapters.sge.answers import ENDED_BY_ITSELF, GOES_ON
from batch_adapters.states import Cause

_PENDING, _ACTIVE, _FAILED, _DONE, _SUSPENDED = b"1", b"2", b"4", b"8", b"16"
_STATES = {
    b"pending": _PENDING,
    b"restart": _PENDING,
    b"delivered": _ACTIVE,
    b"unsuspended": _ACTIVE,
    b"suspended": _SUSPENDED,
}

# accounting(5): fields 6 job, 11 end time, 12 failed, 13 exit status, 36 task, 42 task of a parallel job. Field 40, the
# category, may contain colons, so field 42 is counted from the end; releases before 6.2 end with field 43.
_FIELD = rb"[^:\n]*+:"
_ACCOUNT = (
    _FIELD * 5
    + rb"([0-9]{1,10}):"
    + _FIELD * 4
    + rb"([0-9]{1,10}):([0-9]{1,3}):([0-9]{1,9}):"
    # Repeated as text: twice as fast as a repeat count.
    + _FIELD * 22
    + rb"(?:0|([0-9]{1,10})):[^\n]*:NONE:[0-9.]++(?::[0-9]++:[0-9]++)?(?=\n)"
)
# reporting(5). Up to three daemons record each step of a job; the master does so always, and once.
# The scheduler's ``deleted`` with state T only removes a job that has finished.
_RECORD = re.compile(
    rb"\n[0-9]{10}:(?:job_log:([0-9]{10}):"
    rb"(pending|delivered|suspended|unsuspended"
    rb"|(?:restart|finished)(?=:[0-9]++:[0-9]++:NONE:[a-z]*+:master:)"
    rb"|deleted(?=:[0-9]++:[0-9]++:NONE:[a-z]*+:))"
    rb":([0-9]{1,10}):(?:-1|0|([0-9]{1,10})):NONE:"
    rb"|acct:" + _ACCOUNT + rb")"
)
_DELETION = re.compile(
    rb"^[0-9]{10}:job_log:[0-9]{10}:deleted:([0-9]{1,10}):(?:-1|0|([0-9]{1,10})):NONE:[a-z]*:([^:\n]+):", re.MULTILINE
)
_DAEMONS = (b"execution daemon", b"scheduler", b"master")
_ENDED = re.compile(rb"\n(?![0-9]{10}:)" + _ACCOUNT)
_RECORDED = re.compile(rb"^[0-9]{10}:acct:" + _ACCOUNT, re.MULTILINE)
_DATED = re.compile(rb"\n([0-9]{10}):[a-z_]+:")

_GOES_ON = frozenset(code.encode() for code in GOES_ON)
_LIMITED = b"37"
"""At a limit that the qmaster knew: mostly of time."""
_NORMAL = frozenset(code.encode() for code in ENDED_BY_ITSELF)

# Most jobs remembered that run, wait to be deleted or are about to finish. A job that is forgotten gets a second
# ACTIVE before DONE, or the wrong one of the two final states.
_MOST_JOBS = 50_000


class GridEngineLog(Parser):
    """Reads either file; the first record shows which it is."""

    def __init__(self) -> None:
        self._is_reporting = False
        self._latest_end = 0
        self._started: dict[bytes, bool] = {}
        self._deleted: dict[bytes, bool] = {}
        self._outcomes: dict[bytes, tuple[bytes, bytes]] = {}

    def read_events(self, block: bytes) -> bytes:
        """The events of whole lines; see `Parser`."""
        lines = b"\n" + block
        self._is_reporting = self._is_reporting or _DATED.search(lines) is not None
        return b"".join(self._read_reporting(lines) if self._is_reporting else self._read_accounting(lines))

    def read_time(self, block: bytes) -> int | None:
        """When the first record was written; in an accounting file, when its job ended."""
        lines = b"\n" + block
        if found := _DATED.search(lines):
            return int(found[1])
        return next((int(record[2]) for record in _ENDED.finditer(lines) if int(record[2])), None)

    def _read_reporting(self, lines: bytes) -> list[bytes]:
        events = []
        for stamp, word, job, task, ended, _, failed, exit_code, ended_task in _RECORD.findall(lines):
            if ended:
                if failed not in _GOES_ON:
                    remember(self._outcomes, _render_id(ended, ended_task), (failed, exit_code), _MOST_JOBS)
                continue
            local_id = b"%b.%b" % (job, task) if task else job
            if word == b"finished":
                events.append(self._render_end(stamp, local_id))
            elif word == b"deleted":
                remember(self._deleted, local_id, True, _MOST_JOBS)
            else:
                if word == b"delivered":
                    remember(self._started, local_id, True, _MOST_JOBS)
                elif word == b"restart":
                    self._started.pop(local_id, None)
                    self._outcomes.pop(local_id, None)
                events.append(render_line(stamp, local_id, _STATES[word]))
        return events

    def _render_end(self, stamp: bytes, local_id: bytes) -> bytes:
        started = self._started.pop(local_id, False)
        deleted = self._deleted.pop(local_id, False)
        # A job without an ``acct`` record never ran, or its outcome is unknown.
        failed, exit_code = self._outcomes.pop(local_id, (b"", b"0"))
        if deleted or failed not in _NORMAL:
            return render_line(stamp, local_id, _FAILED, exit_code)
        done = render_line(stamp, local_id, _DONE, exit_code)
        # A job may end before the execution daemon has reported its start.
        return done if started else render_line(stamp, local_id, _ACTIVE) + done

    def _read_accounting(self, lines: bytes) -> list[bytes]:
        events = []
        for job, end, failed, exit_code, task in _ENDED.findall(lines):
            # In the order in which the qmaster hears of the ends, some late, some without a time. Times must not go
            # back: a reader that continues from the latest time it has seen would miss such an event.
            self._latest_end = max(self._latest_end, int(end))
            if failed not in _GOES_ON and self._latest_end:
                state = _DONE if failed in _NORMAL else _FAILED
                events.append(render_line(b"%d" % self._latest_end, _render_id(job, task), state, exit_code))
        return events


def _render_id(job: bytes, task: bytes) -> bytes:
    return b"%b.%b" % (job, task) if task else job


def read_deletions(block: bytes) -> Iterator[tuple[bytes, bytes | Cause]]:
    """Who, or what limit, ended which job; the steps of daemons are left out.

    A job that was renamed is in the history under a name that is not known.
    """
    for job, _, failed, _, task in _RECORDED.findall(block):
        if failed == _LIMITED:
            yield _render_id(job, task), Cause.TIME_LIMIT
    for job, task, user in _DELETION.findall(block):
        if user not in _DAEMONS:
            yield _render_id(job, task), user


def find_log(environment: Mapping[str, str]) -> Path:
    """``$SGE_ROOT/$SGE_CELL/common/reporting``; without SGE_CELL, the cell ``default``."""
    if root := environment.get("SGE_ROOT"):
        return Path(root) / (environment.get("SGE_CELL") or "default") / "common" / "reporting"
    raise LogNotKnown("Grid Engine's reporting file is not known: set SGE_ROOT, or name it with --log PATH")


SGE = LogModule(
    name="sge",
    find_log=find_log,
    new_parser=GridEngineLog,
    file_name="reporting",
    read_deletions=read_deletions,
)
