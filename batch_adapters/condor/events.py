"""The generator's module for HTCondor: the pool's event log, or one job's own ``log =`` file, in all their formats.

Events carry the id as ``condor_submit -terse`` and ``condor_q`` spell it: ``CLUSTER.PROC``, not padded (``12.0``).
"""

import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import tzinfo
from pathlib import Path

from batch_adapters.condor.answers import REMOVED_ITSELF
from batch_adapters.generator.local_time import LocalStamps
from batch_adapters.generator.module import LogModule, LogNotKnown, Parser, remember
from batch_adapters.states import Cause, State

_CONFIG_SECONDS = 10.0

_STATES = {
    b"000": State.PENDING,  # submitted
    b"001": State.ACTIVE,  # executing; again without anything between when its shadow was lost
    b"002": State.FAILED,  # not executable; where it is held for that, or goes back to the queue, that follows
    b"004": State.PENDING,  # evicted: 009 or 012 follows where it was removed or held
    b"007": State.PENDING,  # shadow exception: back to the queue
    b"009": State.FAILED,  # aborted, which is removed
    b"010": State.SUSPENDED,
    b"011": State.ACTIVE,  # unsuspended
    b"012": State.SUSPENDED,  # held
    b"013": State.PENDING,  # released
    b"023": State.ACTIVE,  # reconnected; disconnected (022) changes nothing, the job may well run on
    b"024": State.PENDING,  # reconnection failed: back to the queue
}
_NOT_EXECUTABLE, _TERMINATED, _ABORTED = b"002", b"005", b"009"
_MOST_FAILED = 10_000
"""The number of not executable jobs that are remembered."""
_CHANGES = {number: b"%d;0" % state for number, state in _STATES.items()}

_EVENT = b"001;%b;%b.%b;%b\n"

_STAMP = rb"([0-9]{4}-[0-9]{2}-[0-9]{2}[ T][0-9:]{8}|[0-9]{2}/[0-9]{2} [0-9:]{8})(?:\.[0-9]{1,6})?(Z?)"
# A record begins at the start of a line; its first three fields are the daemon's, and text of users is indented below
# them. A negative process number means the whole cluster, which is not a job.
_CLASSIC = (
    rb"(0(?:0[0124579]|1[0-3]|2[34])) \(0*([0-9]{1,10})\.0*([0-9]{1,10})\.[0-9]{1,10}\) " + _STAMP + rb" "
    rb"(?:Job terminated\.\n\t\((?:1\) Normal termination \(return value (-?[0-9]{1,9})\)"
    rb"|0\) Abnormal termination \(signal ([0-9]{1,4})\)))?"
)
# Bounded, because the search needs memory for each line. (A possessive quantifier would need none, but around
# alternatives it does not match in Python 3.11.2.)
_JSON = rb"\{((?:\n  [^\n]*){0,999})\n\}"
# A string may span several lines; in it, "<" is written "&lt;".
_STRING = rb' *<a n="[^"\n]*"><s>'
_XML = rb"<c>((?:\n (?:" + _STRING + rb"[^<]*</s></a>|(?!" + _STRING + rb")[^\n]*)){0,999})\n</c>"
# All forms begin with the same character, so the search skips other lines quickly.
_RECORD = re.compile(rb"\n(?:" + _CLASSIC + rb"|" + _JSON + rb"|" + _XML + rb")")
_DATED = re.compile(rb'^(?:[0-9]{3} \([-.0-9]+\) |  "EventTime": "|    <a n="EventTime"><s>)' + _STAMP, re.MULTILINE)


@dataclass(frozen=True)
class _Form:
    """A way to write a ClassAd: patterns that find integers, and the time, at its outermost level."""

    numbers: re.Pattern[bytes]
    time: re.Pattern[bytes]


def _make_form(name: bytes, number: bytes, string: bytes) -> _Form:
    names = rb"(Cluster|Proc|EventTypeNumber|ReturnValue|TerminatedBySignal)"
    return _Form(
        numbers=re.compile(rb"^" + name + names + number + rb"(-?[0-9]{1,9})(?![0-9])", re.MULTILINE),
        time=re.compile(rb"^" + name + rb"EventTime" + string + _STAMP, re.MULTILINE),
    )


_JSON_FORM = _make_form(rb'  "', rb'": ', rb'": "')
_XML_FORM = _make_form(rb'    <a n="', rb'"><i>', rb'"><s>')
# The line of the reason. condor_rm appends this to whatever reason people give.
_REASON = rb'^(?:\t|  "Reason": "|    <a n="Reason"><s>)'
_REMOVED_BY = re.compile(_REASON + rb'[^\n]*\(by user ([^\s()@]+)[^\s()]*\)(?:$|"|</s>)', re.MULTILINE)
_REMOVED_ITSELF = re.compile(_REASON + re.escape(REMOVED_ITSELF.encode()).replace(b"&", rb"&(?:amp;)?"), re.MULTILINE)


def _read_id(ad: bytes, form: _Form) -> tuple[dict[bytes, bytes], bytes, bytes, bytes]:
    """All numbers of a ClassAd, and those of event, cluster and process; empty if they are missing or negative."""
    numbers = dict(form.numbers.findall(ad))
    number, cluster, proc = (numbers.get(name, b"") for name in (b"EventTypeNumber", b"Cluster", b"Proc"))
    is_whole = number.isdigit() and cluster.isdigit() and proc.isdigit()
    return numbers, number.zfill(3) if is_whole else b"", cluster, proc


def read_deletions(block: bytes) -> Iterator[tuple[bytes, bytes | Cause]]:
    """Who removed which job; the wall time limit may have."""
    text = b"\n" + block
    for record in _RECORD.finditer(text):
        number, cluster, proc, *_, json, xml = record.groups()
        if json or xml:
            _, number, cluster, proc = _read_id(json or xml, _JSON_FORM if json else _XML_FORM)
        reason = json or xml or text[record.end() : text.find(b"\n...\n", record.end())]
        if number == _ABORTED and (by := _REMOVED_BY.search(reason)):
            yield b"%b.%b" % (cluster, proc), by[1]
        elif number == _ABORTED and _REMOVED_ITSELF.search(reason):
            yield b"%b.%b" % (cluster, proc), Cause.TIME_LIMIT


def _render_change(number: bytes, code: bytes, signal: bytes) -> bytes:
    """State and exit code, or nothing if such a record does not change the state, like a 005 without an outcome."""
    if number != _TERMINATED:
        return _CHANGES.get(number, b"")
    if signal:
        code = b"%d" % (128 + int(signal))
    return b"%d;%b" % (State.DONE, code) if code else b""


class EventLog(Parser):
    """Reads records of every format, even if the format changes within the log.

    It remembers the jobs that are not executable: their next event is preceded by PENDING, which alone leads out of a
    final state.

    The classic formats have month and day (the year is the latest possible one) or an ISO date, with or without
    fractions of a second, in UTC (``Z``) or local time; ``...`` ends a record. JSON and XML are ClassAds.
    """

    def __init__(self, zone: tzinfo | None = None, now: Callable[[], float] = time.time) -> None:
        """``zone`` of local times (None: that of this process); ``now``: the clock that gives the year."""
        self._with_year = LocalStamps("YYYY-mm-dd HH:MM:SS", zone, now)
        self._without_year = LocalStamps("mm/dd HH:MM:SS", zone, now)
        self._not_executable: dict[bytes, None] = {}

    def read_events(self, block: bytes) -> bytes:
        """One event for each record that changes a job's state."""
        events = []
        for number, cluster, proc, date, zone, code, signal, json, xml in _RECORD.findall(b"\n" + block):
            if json or xml:
                events.append(self._read_ad(json or xml, _JSON_FORM if json else _XML_FORM))
            elif change := _render_change(number, code, signal):
                events.append(self._render(number, self._read_stamp(date, zone), cluster, proc, change))
        return b"".join(events)

    def _read_ad(self, ad: bytes, form: _Form) -> bytes:
        numbers, number, cluster, proc = _read_id(ad, form)
        found = form.time.search(ad)
        if found is None or not number:
            return b""
        code, signal = numbers.get(b"ReturnValue", b""), numbers.get(b"TerminatedBySignal", b"")
        change = _render_change(number, code, signal)
        stamp = self._read_stamp(found[1], found[2])
        return self._render(number, stamp, cluster, proc, change) if change else b""

    def _render(self, number: bytes, stamp: bytes, cluster: bytes, proc: bytes, change: bytes) -> bytes:
        event = _EVENT % (stamp, cluster, proc, change)
        if number == _NOT_EXECUTABLE:
            remember(self._not_executable, b"%b.%b" % (cluster, proc), None, _MOST_FAILED)
        elif self._not_executable and b"%b.%b" % (cluster, proc) in self._not_executable:
            del self._not_executable[b"%b.%b" % (cluster, proc)]
            if number != _ABORTED:
                return _EVENT % (stamp, cluster, proc, _CHANGES[b"000"]) + event
        return event

    def _read_stamp(self, date: bytes, zone: bytes) -> bytes:
        stamps = self._with_year if date[4:5] == b"-" else self._without_year
        return stamps[date + zone]

    def read_time(self, block: bytes) -> int | None:
        """The time of the first record, in the record's own format."""
        found = _DATED.search(block)
        if found is None:
            return None
        stamp = self._read_stamp(found[1], found[2])
        return int(stamp) if stamp else None


def find_log(environment: Mapping[str, str]) -> Path:
    """The EVENT_LOG of the pool's configuration; unless that is set, HTCondor writes no such log.

    :raises LogNotKnown: ``condor_config_val`` does not print it.
    """
    command = ["condor_config_val", "EVENT_LOG"]
    way_out = "set EVENT_LOG in HTCondor's configuration, or name a log with --log PATH"
    try:
        answer = subprocess.run(
            command, env=dict(environment), stdin=subprocess.DEVNULL, capture_output=True, timeout=_CONFIG_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LogNotKnown(f"condor_config_val cannot be asked for the event log ({error}): {way_out}") from error
    path = Path(os.fsdecode(answer.stdout.strip()))
    if answer.returncode or not path.is_absolute():
        raise LogNotKnown(f"condor_config_val knows no event log (exit code {answer.returncode}): {way_out}")
    return path


CONDOR = LogModule(
    name="condor",
    find_log=find_log,
    new_parser=EventLog,
    record_ends=(b"\n...\n", b"\n}\n", b"\n</c>\n"),
    file_name="EventLog",
    read_deletions=read_deletions,
)
