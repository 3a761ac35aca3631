"""Runs one local job of a handler's trial, by the driver that would run it on a worker node."""

import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from adapters import EVENTS, Attribute, JobAdapter, Kind, Value, canonical_name
from batch_adapters.diagnosis import Finding, Level
from jobmanager.checks.handler_trial import GRID_JOB, Trial
from jobmanager.completion.collection import read_last_output
from jobmanager.requests.attributes import TYPE_ATTRIBUTE, Given
from jobmanager.requests.job_types import HANDLER_FAILURES
from jobmanager.requests.time_limit import limited
from jobmanager.states.program_reports import check_phase
from sandbox.driver import write_submission_table
from sandbox.status import DriverStatus, PhaseStatus, fetch_status, render_stem

_LOCAL_ID = "1.1"
_TOKEN = "trial"
_SHOWN_FILES = 10
_LONGEST_SHOWN = 60
_MOST_BYTES = 2 * 1024 * 1024
_HOSTILE_LINES = (
    "",
    " ",
    "\r",
    "\x00\x1b[2J",
    "\ufffd\u202e",
    "Event",
    "Event of",
    "1 of 0",
    "-1/-1",
    "9" * 5000,
    "a" * 65536,
)
"""What any program may print: nothing must break."""


def run_local_job(trial: Trial, patience: float) -> Iterator[Finding]:
    """Run the first local job of a trial, and say what came back.

    :param patience: seconds after which it is killed.
    """
    places = trial.account.places
    stem = places.results(GRID_JOB) / render_stem(GRID_JOB, _LOCAL_ID)
    write_submission_table(places.local_jobs(GRID_JOB), _TOKEN, [1])
    if not _run_driver(places.driver(GRID_JOB), places.results(GRID_JOB), patience):
        yield Finding(Level.FAULT, f"local job 1 was killed after {patience:g} s", "give it longer: --run-time SECONDS")
        return
    status = fetch_status(stem.with_name(f"{stem.name}.status"))
    if status.exit_code != 0:
        reason = status.problem or f"the program ended with exit code {status.exit_code}"
        words = read_last_output(stem.with_name(f"{stem.name}.stderr"))
        yield Finding(Level.FAULT, f"local job 1: {reason}", f"its last words: {words}" if words else "")
        return
    for line in status.lost:
        yield Finding(Level.FAULT, f"local job 1: did not come back: {line}", "it must be readable for its own account")
    yield Finding(Level.GOOD, f"local job 1 ended with exit code 0 after {status.cpu_seconds or 0:g} s of CPU time")
    yield from _describe_phases(trial, status, stem.with_name(f"{stem.name}.stdout"))
    output = stem.with_name(f"{stem.name}.output")
    yield _describe_output(output)
    yield _describe_summary(trial, output)


def _run_driver(driver: Path, folder: Path, patience: float) -> bool:
    """True when the driver ended by itself."""
    environment = {**os.environ, "SAMGRID_FORK_ID": _LOCAL_ID, "SAMGRID_FORK_INDEX": "1", "SAMGRID_FORK_STARTED": ""}
    process = subprocess.Popen(
        ["/bin/sh", str(driver), _TOKEN],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        process.wait(patience)
        return True
    except subprocess.TimeoutExpired:
        return False
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _describe_phases(trial: Trial, status: DriverStatus, stdout: Path) -> Iterator[Finding]:
    told = {phase.name: phase for phase in status.phases}
    if type(trial.adapter).getPhaseOfLine is not JobAdapter.getPhaseOfLine:
        lines = _read_lines(stdout)
        read, faults = _ask_about_lines(trial, lines)
        faults = faults or _ask_about_lines(trial, _HOSTILE_LINES)[1]
        yield from faults
        if not (faults or read):
            yield Finding(Level.WARNING, f"getPhaseOfLine finds no phase in the {len(lines)} lines that it printed")
        told |= read
    phases = [f"{phase.name} {phase.done}/{phase.total} {phase.unit}".strip() for phase in told.values()]
    if phases:
        yield Finding(Level.GOOD, f"phases: {', '.join(phases)}")
    else:
        remedy = "samgrid-report phase NAME DONE/TOTAL: people see how far it is"
        yield Finding(Level.WARNING, "it told no phases", remedy)


def _ask_about_lines(trial: Trial, lines: Sequence[str]) -> tuple[dict[str, PhaseStatus], list[Finding]]:
    """The last word on each phase that the lines tell of; a fault for the first line that it cannot bear."""
    told: dict[str, PhaseStatus] = {}
    line = ""
    try:
        with limited(trial.account.configuration.handlers.time_limit):
            for line in lines:
                answer = trial.adapter.getPhaseOfLine(line)
                if answer is not None:
                    phase = check_phase(answer)
                    told[phase.name] = phase
    except HANDLER_FAILURES as error:
        shown = repr(line) if len(line) <= _LONGEST_SHOWN else f"{line[:_LONGEST_SHOWN]!r}…"
        text = f"getPhaseOfLine about the line {shown}: {type(error).__name__}: {error}"
        return told, [Finding(Level.FAULT, text, "give an adapters.Phase, or None: it is asked about every line")]
    return told, []


def _read_lines(stdout: Path) -> list[str]:
    """What the program printed, as production reads it."""
    if not stdout.is_file():
        return []
    with open(stdout, "rb") as stream:
        return stream.read(_MOST_BYTES).decode(errors="replace").split("\n")


def _describe_output(output: Path) -> Finding:
    found = sorted(path for path in output.rglob("*") if path.is_file() and not path.is_symlink())
    if not found:
        return Finding(Level.WARNING, "it left no file in output/", "what is not there does not come back")
    names = [f"{path.relative_to(output)} ({path.stat().st_size} bytes)" for path in found]
    more = f" and {len(names) - _SHOWN_FILES} more" if len(names) > _SHOWN_FILES else ""
    return Finding(Level.GOOD, f"output: {', '.join(names[:_SHOWN_FILES])}{more}")


def _describe_summary(trial: Trial, output: Path) -> Finding:
    try:
        with limited(trial.account.configuration.handlers.time_limit):
            summary = trial.adapter.getSummary([output] if output.is_dir() else [])
    except HANDLER_FAILURES as error:
        text = f"getSummary failed: {type(error).__name__}: {error}"
        return Finding(Level.FAULT, text, "outputs may be missing or torn: it must bear that")
    words = [*summary.keys(), *summary.values()] if isinstance(summary, Mapping) else [None]
    if not all(isinstance(word, str) for word in words):
        return Finding(Level.FAULT, f"getSummary gave {summary!r}", "give a dict from text to text")
    return Finding(Level.GOOD, "summary: " + (", ".join(f"{n}: {text}" for n, text in summary.items()) or "none"))


FILE = "sample"
"""The file beside the request that every attribute of a file names: a program that does nothing."""
EVENTS_PER_LOCAL_JOB = 2
_EVENTS = 5
"""They make slices of different sizes."""


def make_sample(handler: type[JobAdapter], folder: Path) -> Given:
    """A request with the required attributes only, its file put into ``folder``."""
    program = folder / FILE
    program.write_text("#!/bin/sh\n")
    program.chmod(0o700)
    required = [(attribute.name, _make_values(attribute)) for attribute in handler.attributes if attribute.required]
    return [(TYPE_ATTRIBUTE.name, (handler.jobType,)), *required]


def _make_values(attribute: Attribute) -> tuple[Value, ...]:
    if attribute.choices:
        return (attribute.choices[0],)
    if attribute.kind in (Kind.INTEGER, Kind.NUMBER):
        return (_make_number(attribute),)
    if attribute.kind is Kind.FLAG:
        return ("no",)
    if attribute.kind is Kind.PAIRS:
        return (("NAME", "value"),)
    return ("/",) if attribute.kind in (Kind.PATH, Kind.PATHS) else (FILE,)


def _make_number(attribute: Attribute) -> str:
    wanted = _EVENTS if canonical_name(attribute.name) == canonical_name(EVENTS.name) else 1
    low = attribute.minimum if attribute.minimum is not None else wanted
    high = attribute.maximum if attribute.maximum is not None else wanted
    return str(min(max(wanted, low), high))
