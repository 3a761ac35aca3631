"""Reads what the driver and the program wrote into a local job's status file."""

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
"""More named steps than that are of no use to people; later names are ignored."""
MAX_OUTPUTS = 100
"""Files that a phase can name; later ones are ignored."""
MAX_CAUGHT = 100
"""More signals say nothing new."""
MAX_LOST = 21
"""Lines about what did not come back: the driver writes twenty, and how many more there are."""
_WARNINGS = ("USR1", "USR2")
_SAME_MOMENT = 1
"""Seconds between the end of a program and a signal that may have ended it: clocks tell whole ones."""
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
    """Names of the files that it has made, in the folder of the outputs."""
    begun: int = field(default=0, compare=False)
    changed: int = field(default=0, compare=False)
    """When it began, and when anything of it last changed, in seconds since 1970, where that is kept."""


@dataclass(frozen=True)
class CaughtSignal:
    """A signal (``TERM``) that the driver was sent at ``time``, ``after_end`` seconds after its program had ended."""

    signal: str
    time: int
    after_end: int | None = None
    """None while the program ran."""


@dataclass(frozen=True)
class DriverStatus:
    """What is known of the last run of a local job; times in seconds since 1970, None where nothing was written.

    ``end`` proves that the program ended and its outputs are back, but for those that are ``lost``; ``problem`` that
    the driver failed, not the program.
    """

    start: int | None = None
    end: int | None = None
    exit_code: int | None = None
    signal: str | None = None
    host: str | None = None
    pid: int | None = None
    scratch: str | None = None
    """Its scratch folder on that host; None where that has no plain name."""
    again: int | None = None
    """When the batch system last started it again after this run had come to its end: the program was not run again."""
    index: int | None = None
    """Which of the grid job's local jobs it is, from 1."""
    token: str | None = None
    """Name of the submission it came with."""
    cpu_seconds: float | None = None
    problem: str | None = None
    phases: tuple[PhaseStatus, ...] = ()
    caught: tuple[CaughtSignal, ...] = ()
    """In their order; of more than :data:`MAX_CAUGHT` the first."""
    lost: tuple[str, ...] = ()
    """What could not be brought back, and why, as ``output/name: Permission denied``."""

    @property
    def interruption(self) -> str | None:
        """The signal that told the driver to end while its program ran, or at the moment at which that ended.

        A program may end well because of that: one whose children were sent the signal before it, or that obeyed.
        """
        ending = (
            caught.signal
            for caught in self.caught
            if caught.signal not in _WARNINGS and (caught.after_end is None or caught.after_end <= _SAME_MOMENT)
        )
        return next(ending, None)


def _read_text(value: bytes) -> str:
    # The text will stand in XML, which takes no control characters.
    return "".join(letter if letter.isprintable() else "?" for letter in value[:500].decode(errors="replace"))


_FIELDS: dict[bytes, tuple[str, re.Pattern[bytes], Callable[[bytes], Any]]] = {
    b"start": ("start", re.compile(rb"\d{1,12}"), int),
    b"host": ("host", re.compile(rb"[!-~]{1,255}"), _read_text),
    b"scratch": ("scratch", re.compile(rb"/[ -~]{1,400}"), _read_text),
    b"pid": ("pid", re.compile(rb"\d{1,9}"), int),
    b"again": ("again", re.compile(rb"\d{1,12}"), int),
    b"index": ("index", re.compile(rb"\d{1,9}"), int),
    b"token": ("token", re.compile(rb"[a-z][a-z0-9-]{0,63}"), _read_text),
    b"cpu": ("cpu_seconds", re.compile(rb"\d{1,12}(\.\d{1,6})?"), float),
    b"signal": ("signal", re.compile(rb"[A-Z0-9+-]{1,12}"), _read_text),
    b"exit": ("exit_code", re.compile(rb"\d{1,3}"), int),
    b"end": ("end", re.compile(rb"\d{1,12}"), int),
    b"problem": ("problem", re.compile(rb".+"), _read_text),
}
_CAUGHT = re.compile(rb"([A-Z0-9]{1,10}) (\d{1,12})(?: (\d{1,9}))?")
_PHASE = re.compile(rb"([A-Za-z0-9_.-]{1,40}) (\d{1,15}) (\d{1,15})(?: ([A-Za-z0-9_.-]{1,20}))?")

_OUTPUT = re.compile(rb"([A-Za-z0-9_.-]{1,40}) ([A-Za-z0-9_.+=,@%/-]{1,200})")


def read_status(data: bytes) -> DriverStatus:
    """The status that a file's content gives; lines that are torn, unknown or garbage do not count.

    A later ``start`` (the batch system ran the local job again) forgets everything before it.
    """
    fields: dict[str, Any] = {}
    phases: dict[str, PhaseStatus] = {}
    outputs: dict[str, dict[str, None]] = {}
    caught: list[CaughtSignal] = []
    lost: list[str] = []
    # What follows the last line break is still being written.
    for line in data.split(b"\n")[:-1]:
        key, _, value = line.partition(b" ")
        if key == b"phase":
            _note_phase(phases, value)
        elif key == b"output" and (match := _OUTPUT.fullmatch(value)):
            _note_output(outputs, *(part.decode() for part in match.groups()))
        elif key == b"caught" and (match := _CAUGHT.fullmatch(value)) and len(caught) < MAX_CAUGHT:
            name, at, ago = match.groups()
            caught.append(CaughtSignal(name.decode(), int(at), None if ago is None else int(ago)))
        elif key == b"lost" and value and len(lost) < MAX_LOST:
            lost.append(_read_text(value))
        elif key in _FIELDS and _FIELDS[key][1].fullmatch(value):
            if key == b"start":
                fields.clear()
                phases.clear()
                outputs.clear()
                caught.clear()
                lost.clear()
            name, _, convert = _FIELDS[key]
            fields[name] = convert(value)
    told = tuple(replace(phase, outputs=tuple(outputs.get(phase.name, ()))) for phase in phases.values())
    return DriverStatus(**fields, phases=told, caught=tuple(caught), lost=tuple(lost))


def read_phase(value: bytes) -> PhaseStatus | None:
    """The phase of ``NAME DONE TOTAL [UNIT]``; None where it is none."""
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
    """The status in ``file``, empty where there is none yet; of a huge file its first and last part.

    :raises OSError: it is there but cannot be read, is anything else but a file, or lies in a folder that is a link.
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
            # The cuts leave two torn lines, which must not make one that looks whole.
            data = data.rpartition(b"\n")[0] + b"\n" + stream.read(_TAIL).partition(b"\n")[2]
    return read_status(data)


def render_stem(grid_job: str, local_id: str) -> str:
    """The beginning of the names of what a local job brings back, as the driver makes it."""
    return f"{grid_job}.{local_id.replace('/', '_')}"
