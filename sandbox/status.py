"""Reads a local job's status file, which its driver and its program write."""

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sandbox.files import open_unlinked

DRIVER_FAILED = 125
"""Exit code of a driver that could not run its program or bring its outputs back."""
MAX_PHASES = 100
"""Further phases are ignored."""
MAX_OUTPUTS = 100
"""Files of one phase; further ones are ignored."""
MAX_CAUGHT = 100
"""Further signals are ignored."""
MAX_LOST = 21
"""Lines about lost outputs: the driver writes twenty, and one with the number of further ones."""
_WARNINGS = ("USR1", "USR2")
_SAME_MOMENT = 5
"""Seconds between a program's end and a signal that may have caused it: a batch system signals the processes of a job
one after another, which was seen to take two seconds on a busy host."""
_HEAD = 512 * 1024
_TAIL = 16 * 1024


@dataclass(frozen=True)
class PhaseStatus:
    """A named step of a local job: ``done`` of ``total``, in ``unit`` where the program gave one."""

    name: str
    done: int
    total: int
    unit: str = ""
    outputs: tuple[str, ...] = ()
    """Names of the files that it has written, relative to the folder of outputs."""
    begun: int = field(default=0, compare=False)
    changed: int = field(default=0, compare=False)
    """When it began and when it last changed, in seconds since 1970; 0: not known."""


@dataclass(frozen=True)
class CaughtSignal:
    """A signal (``TERM``) that the driver received at ``time``, ``after_end`` seconds after its program had ended."""

    signal: str
    time: int
    after_end: int | None = None
    """None while the program ran."""


@dataclass(frozen=True)
class DriverStatus:
    """What is known of the last run of a local job; times in seconds since 1970, None: not recorded.

    ``end`` proves that the program ended and that its outputs came back, except those in ``lost``. ``problem`` proves
    that the driver failed, not the program.
    """

    start: int | None = None
    end: int | None = None
    exit_code: int | None = None
    signal: str | None = None
    host: str | None = None
    pid: int | None = None
    scratch: str | None = None
    """Its scratch folder on that host; None also for one without a printable name."""
    again: int | None = None
    """When the batch system last started it again after this run's end; the program was not run again then."""
    index: int | None = None
    """The local job's index in the grid job, from 1."""
    token: str | None = None
    """The token of its submission."""
    cpu_seconds: float | None = None
    problem: str | None = None
    phases: tuple[PhaseStatus, ...] = ()
    caught: tuple[CaughtSignal, ...] = ()
    """The first :data:`MAX_CAUGHT`, in their order."""
    lost: tuple[str, ...] = ()
    """What could not be brought back, and why, as ``output/name: Permission denied``."""

    @property
    def interruption(self) -> str | None:
        """The signal that asked the driver to end while the program ran, or at the moment of its end.

        Even a program that ended with exit code 0 may have ended because of that signal.
        """
        ending = (
            caught.signal
            for caught in self.caught
            if caught.signal not in _WARNINGS and (caught.after_end is None or caught.after_end <= _SAME_MOMENT)
        )
        return next(ending, None)

    @property
    def warning(self) -> str | None:
        """The warning that the program was sent while it ran; whoever deletes a job may have it warned first."""
        return next(
            (caught.signal for caught in self.caught if caught.signal in _WARNINGS and not caught.after_end), None
        )


def _read_text(value: bytes) -> str:
    # XML, where the text goes, permits no control characters.
    text = value[:500].decode(errors="replace")
    return text if text.isprintable() else "".join(letter if letter.isprintable() else "?" for letter in text)


_FIELDS: dict[bytes, tuple[str, re.Pattern[bytes], Callable[[bytes], Any]]] = {
    b"start": ("start", re.compile(rb"\d{1,11}"), int),
    b"host": ("host", re.compile(rb"[!-~]{1,255}"), _read_text),
    b"scratch": ("scratch", re.compile(rb"/[ -~]{1,400}"), _read_text),
    b"pid": ("pid", re.compile(rb"\d{1,9}"), int),
    b"again": ("again", re.compile(rb"\d{1,11}"), int),
    b"index": ("index", re.compile(rb"\d{1,9}"), int),
    b"token": ("token", re.compile(rb"[a-z][a-z0-9-]{0,63}"), _read_text),
    b"cpu": ("cpu_seconds", re.compile(rb"\d{1,12}(\.\d{1,6})?"), float),
    b"signal": ("signal", re.compile(rb"[A-Z0-9+-]{1,12}"), _read_text),
    b"exit": ("exit_code", re.compile(rb"\d{1,3}"), int),
    b"end": ("end", re.compile(rb"\d{1,11}"), int),
    b"problem": ("problem", re.compile(rb".+"), _read_text),
}
_START = re.compile(rb"start \d{1,11}")
_CAUGHT = re.compile(rb"([A-Z0-9]{1,10}) (\d{1,11})(?: (\d{1,9}))?")
_PHASE = re.compile(rb"([A-Za-z0-9_.-]{1,40}) (\d{1,15}) (\d{1,15})(?: ([A-Za-z0-9_.-]{1,20}))?")
_OUTPUT = re.compile(rb"([A-Za-z0-9_.-]{1,40}) ([A-Za-z0-9_.+=,@%/-]{1,200})")


def read_status(data: bytes) -> DriverStatus:
    """The status in a file's content: that of the last run. Torn, unknown and malformed lines are ignored."""
    fields: dict[str, Any] = {}
    phases: dict[str, PhaseStatus] = {}
    outputs: dict[str, dict[str, None]] = {}
    caught: list[CaughtSignal] = []
    lost: list[str] = []
    # What follows the last line break is still being written.
    lines = data.split(b"\n")[:-1]
    last_start = max((number for number, line in enumerate(lines) if _START.fullmatch(line)), default=0)
    for line in lines[last_start:]:
        key, _, value = line.partition(b" ")
        if key == b"phase":
            _note_phase(phases, value)
        elif key == b"output" and (match := _OUTPUT.fullmatch(value)):
            _note_output(outputs, *(part.decode() for part in match.groups()))
        elif key == b"caught" and (match := _CAUGHT.fullmatch(value)) and len(caught) < MAX_CAUGHT:
            if "end" in fields:
                continue  # by a driver that was started again, and has not noted its start
            name, at, ago = match.groups()
            caught.append(CaughtSignal(name.decode(), int(at), None if ago is None else int(ago)))
        elif key == b"lost" and value and len(lost) < MAX_LOST:
            lost.append(_read_text(value))
        elif key in _FIELDS and _FIELDS[key][1].fullmatch(value):
            name, _, convert = _FIELDS[key]
            fields[name] = convert(value)
            if key in (b"scratch", b"end"):
                fields.pop("problem", None)  # It waited for room, and there was some in the end.
    reported = tuple(replace(phase, outputs=tuple(outputs.get(phase.name, ()))) for phase in phases.values())
    return DriverStatus(**fields, phases=reported, caught=tuple(caught), lost=tuple(lost))


def read_phase(value: bytes) -> PhaseStatus | None:
    """The phase in ``NAME DONE TOTAL [UNIT]``; None for anything else."""
    match = _PHASE.fullmatch(value)
    if match is None:
        return None
    name, done, total, unit = match.groups(b"")
    return PhaseStatus(name.decode(), int(done), int(total), unit.decode())


def _note_phase(phases: dict[str, PhaseStatus], value: bytes) -> None:
    phase = read_phase(value)
    if phase is not None and (phase.name in phases or len(phases) < MAX_PHASES):
        phases[phase.name] = phase


def _note_output(outputs: dict[str, dict[str, None]], phase: str, name: str) -> None:
    if phase in outputs or len(outputs) < MAX_PHASES:
        names = outputs.setdefault(phase, {})
        if len(names) < MAX_OUTPUTS:
            names[name] = None


def fetch_status(file: Path) -> DriverStatus:
    """The status in ``file``, empty if there is no file yet; of a huge file the first and the last part are read.

    :raises OSError: it exists but cannot be read, is not a regular file, or lies in a folder that is a link.
    """
    try:
        stream = open_unlinked(file)
    except FileNotFoundError:
        return DriverStatus()
    with stream:
        size = os.fstat(stream.fileno()).st_size
        data = stream.read(_HEAD)
        if size > _HEAD:
            stream.seek(max(_HEAD, size - _TAIL))
            # Of the two lines that are cut, nothing is kept: together they might look like one line.
            data = data.rpartition(b"\n")[0] + b"\n" + stream.read(_TAIL).partition(b"\n")[2]
    return read_status(data)


def render_stem(grid_job: str, local_id: str) -> str:
    """The beginning of the names of a local job's outputs, as the driver makes them."""
    return f"{grid_job}.{local_id.replace('/', '_')}"
