"""One request of a handler, taken through everything but a batch system, in a folder of its own.

All steps are the job manager's own. Those that must give the same result each time are taken twice. At the end the
first local job is run by the driver that would run it on a worker node.
"""

import hashlib
import os
import signal
import subprocess
import tarfile
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from adapters import JobAdapter, PlannedJob
from batch_adapters.running.diagnosis import Finding, Level
from jobmanager import render_error, render_number
from jobmanager.completion.collection import read_last_output
from jobmanager.database.grid_job import GridJob
from jobmanager.requests.acceptance import check_steps, find_warnings
from jobmanager.requests.attributes import BadRequest, Given
from jobmanager.requests.job_types import (
    HANDLER_FAILURES,
    HandlerError,
    Interrupted,
    blaming,
    render_failure,
    render_value,
)
from jobmanager.requests.request_handler import check_errors, count_local_jobs, find_steps, make_adapter
from jobmanager.requests.time_limit import HandlerHung, limited
from jobmanager.run_grid_job import cut_grid_job
from jobmanager.site.account import Account
from jobmanager.site.configuration import Configuration
from jobmanager.site.places import StatePlaces
from jobmanager.site.settings import Transfer
from jobmanager.states.program_reports import LINES_TIME_LIMIT, check_phase
from jobmanager.submission.packing import find_entries, pack_sandbox
from sandbox.driver import write_submission_table
from sandbox.files import SandboxError
from sandbox.pack import OUTPUT, OWN_FOLDER
from sandbox.status import DriverStatus, PhaseStatus, fetch_status, render_stem

GRID_JOB = "trialjob"
_T = TypeVar("_T")
_SHOWN_WORDS = 200
_SHOWN_NAMES = 10
_LOCAL_ID = "1.1"
_TOKEN = "trial"
_ROOT = Path(__file__).resolve().parents[2]
_NOT_THE_AUTHORS = (f"{_ROOT}/jobmanager/", f"{_ROOT}/adapters/", f"{Path(os.__file__).parent}/", "<frozen ")
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
"""Lines that any program may print, and no handler may fail on."""


@dataclass(frozen=True)
class Trial:
    """A request as it would be accepted, and its local jobs."""

    account: Account
    job: GridJob
    adapter: JobAdapter
    local_jobs: Sequence[PlannedJob]


class Failed(Exception):
    """The trial cannot go on; the finding says why."""

    def __init__(self, text: str, remedy: str) -> None:
        super().__init__(text)
        self.finding = Finding(Level.FAULT, text, remedy)


def try_request(configuration: Configuration, given: Given, folder: Path, root: Path) -> Iterator[Finding | Trial]:
    """Decompose and pack a request twice; findings, and finally the trial, ready to be run.

    :param folder: for the request's relative file names; root: an empty folder for all files that are made.
    """
    try:
        seconds = configuration.handlers.time_limit
        with limited(seconds):
            first, second = (_begin(configuration, given, folder, root / name) for name in ("first", "second"))
            if steps := find_steps(first.adapter):
                check_steps(first.account, given, steps, folder)
            warnings = find_warnings(first.adapter)
        yield from (Finding(Level.WARNING, text, "who submits is told") for text in warnings)
        if steps:
            names = ", ".join(step.name for step in steps)
            yield Finding(Level.GOOD, f"{len(steps)} steps: {names}; each is tried with a request of its own type")
            return
        with limited(seconds):
            findings = [_compare_slices(first, second), _compare_commands(first, second)]
        yield from findings
        yield _compare_sandboxes(first, second)
        yield first
    except Failed as failed:
        yield failed.finding
    except BadRequest as error:
        for fault in error.faults:
            yield Finding(Level.FAULT, f"the request is refused: {fault}", "give a good one: --request FILE.rsl")
    except HandlerHung as error:
        yield Finding(Level.FAULT, f"the handler hangs: {error}", "[handlers] time_limit is how long it may take")
    except HandlerError as error:
        remedy = "docs/handlers.md says what each method gets, gives, and may raise"
        yield Finding(Level.FAULT, f"{error}{find_place(error.__cause__)}", remedy)
    except (SandboxError, OSError) as error:
        yield Finding(
            Level.FAULT,
            f"the sandbox cannot be made: {render_error(error)}",
            "see getCommandAndArguments, prepareWorkArea, getEnvironment",
        )


def _begin(configuration: Configuration, given: Given, folder: Path, root: Path) -> Trial:
    account = Account(StatePlaces(root), _configure(configuration, root))
    for path in (root / "scratch", account.places.sandbox(GRID_JOB), account.places.results(GRID_JOB)):
        path.mkdir(mode=0o700, parents=True)
    adapter = make_adapter(account, given, folder)
    check_errors(adapter)
    job = GridJob.new(GRID_JOB, adapter.jobType, "trial", "fork", 0)
    job.put_request(given, folder)
    count, size = _ask(partial(count_local_jobs, adapter)), _ask(adapter.getSize)
    job.put_slices(count, size, adapter.request.get("seed") or 1, adapter.sweep.digest if adapter.sweep else None)
    return Trial(account, job, adapter, cut_grid_job(job))


def _configure(configuration: Configuration, root: Path) -> Configuration:
    sandbox = replace(
        configuration.sandbox, scratch_folder=root / "scratch", spool_folder=None, transfer=Transfer.SHARED
    )
    return replace(configuration, sandbox=sandbox)


def _compare_slices(first: Trial, second: Trial) -> Finding:
    """Check that every event is in one slice, and that both cuts are the same."""
    if first.local_jobs != second.local_jobs:
        counts = f"{len(first.local_jobs)} local jobs, then {len(second.local_jobs)}"
        raise Failed(f"the same request was cut differently: {counts}", "getNumSubmissionTimes must not guess")
    size, count = first.adapter.getSize(), render_number(len(first.local_jobs), "local job")
    if size is None:
        return Finding(Level.GOOD, count)
    next_event = 1
    for part in (local_job.slice for local_job in first.local_jobs):
        if part is None or part.events < 1 or part.first_event != next_event:
            raise Failed(f"the slices leave a gap, or overlap, at event {next_event}", "see getNumSubmissionTimes")
        next_event += part.events
    if next_event != size + 1:
        raise Failed(f"the slices end at event {next_event - 1}, not {size}", "see getSize and getNumSubmissionTimes")
    return Finding(Level.GOOD, f"{count}, whose slices hold each of {size} events once")


def _compare_commands(first: Trial, second: Trial) -> Finding:
    """Check that command lines are lists of words, and the same twice."""
    tables = [find_entries(trial.adapter, trial.job, trial.local_jobs) for trial in (first, second)]
    for index, (entry, again) in enumerate(zip(*tables, strict=True), 1):
        if entry != again:
            raise Failed(
                f"local job {index}: getCommandAndArguments gave {list(entry.command)}, then {list(again.command)}",
                "use nothing but the request, the site and the local job: no clock, no chance",
            )
    return Finding(Level.GOOD, f"command line of local job 1: {' '.join(tables[0][0].command)[:_SHOWN_WORDS]}")


def _compare_sandboxes(first: Trial, second: Trial) -> Finding:
    """Check that both sandboxes have the same content."""
    for trial in (first, second):
        pack_sandbox(trial.account, trial.job, trial.adapter, trial.local_jobs)
    tars = [trial.account.places.sandbox_tar(GRID_JOB) for trial in (first, second)]
    contents, again = map(_read_tar, tars)
    if contents != again:
        names = sorted(name for name in contents | again if contents.get(name) != again.get(name))
        raise Failed(
            f"prepareWorkArea made {', '.join(names[:_SHOWN_NAMES])} differently the second time",
            "use nothing but the request and the site: no clock, no chance, no set in an order of its own",
        )
    own = sorted(name for name in contents if name != OUTPUT and not name.startswith(OWN_FOLDER))
    shown = ", ".join(own[:_SHOWN_NAMES]) or "nothing of its own"
    return Finding(Level.GOOD, f"sandbox of {tars[0].stat().st_size} bytes, the same twice: {shown}")


def _read_tar(tar: Path) -> dict[str, str]:
    """By name: mode and sha256 of each file in a tar, and the type of other members."""
    with tarfile.open(tar) as archive:
        return {member.name: f"{member.mode:o} {_describe_content(archive, member)}" for member in archive}


def _describe_content(archive: tarfile.TarFile, member: tarfile.TarInfo) -> str:
    if not member.isfile():
        return f"{member.type!r} {member.linkname}"
    return hashlib.file_digest(archive.extractfile(member), "sha256").hexdigest()  # type: ignore[arg-type]


def _ask(question: Callable[[], _T]) -> _T:
    """The handler's answer; its exceptions become HandlerError."""
    with blaming("the handler failed"):
        return question()


def find_place(error: BaseException | None) -> str:
    """The last place in the author's code, if any, from which an error comes."""
    frames = traceback.extract_tb(error.__traceback__) if error is not None else []
    places = [f" (at {frame.filename}, line {frame.lineno})" for frame in frames if _is_the_authors(frame.filename)]
    return places[-1] if places else ""


def _is_the_authors(file: str) -> bool:
    # Installed packages may lie below the standard library, and so may we.
    return not file.startswith(_NOT_THE_AUTHORS) or "/site-packages/" in file.removeprefix(str(_ROOT))


def run_local_job(trial: Trial, patience: float) -> Iterator[Finding]:
    """Run the first local job of a trial, and check what came back.

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
    """True if the driver ended by itself."""
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
    known = {phase.name: phase for phase in status.phases}
    if type(trial.adapter).getPhaseOfLine is not JobAdapter.getPhaseOfLine:
        lines = _read_lines(stdout)
        read, faults = _ask_about_lines(trial, lines)
        faults = faults or _ask_about_lines(trial, _HOSTILE_LINES)[1]
        yield from faults
        if not (faults or read):
            yield Finding(Level.WARNING, f"getPhaseOfLine finds no phase in the {len(lines)} lines that it printed")
        known |= read
    phases = [f"{phase.name} {phase.done}/{phase.total} {phase.unit}".strip() for phase in known.values()]
    if phases:
        yield Finding(Level.GOOD, f"phases: {', '.join(phases)}")
    else:
        remedy = "samgrid-report phase NAME DONE/TOTAL: people see how far it is"
        yield Finding(Level.WARNING, "it reported no phases", remedy)


def _ask_about_lines(trial: Trial, lines: Sequence[str]) -> tuple[dict[str, PhaseStatus], list[Finding]]:
    """The last value for each phase in the lines; and a fault for the first line on which the handler fails."""
    phases: dict[str, PhaseStatus] = {}
    line = ""
    try:
        with limited(min(trial.account.configuration.handlers.time_limit, LINES_TIME_LIMIT)):
            for line in lines:
                answer = trial.adapter.getPhaseOfLine(line)
                if answer is not None:
                    phase = check_phase(answer)
                    phases[phase.name] = phase
    except Interrupted:
        raise
    except HANDLER_FAILURES as error:
        shown = repr(line) if len(line) <= _LONGEST_SHOWN else f"{line[:_LONGEST_SHOWN]!r}…"
        text = f"getPhaseOfLine about the line {shown}: {render_failure(error)}"
        return phases, [Finding(Level.FAULT, text, "give an adapters.Phase, or None: it is asked about every line")]
    return phases, []


def _read_lines(stdout: Path) -> list[str]:
    """The lines that the program printed, read as in production."""
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
    found = [output] if output.is_dir() else []
    empty = output.with_name("empty")
    empty.mkdir()
    try:
        with limited(trial.account.configuration.handlers.time_limit):
            summary = trial.adapter.getSummary(found)
            trial.adapter.getSummary([*found, empty])
    except Interrupted:
        raise
    except HANDLER_FAILURES as error:
        text = f"getSummary failed: {render_failure(error)}{find_place(error)}"
        return Finding(Level.FAULT, text, "outputs may be missing or torn: it must bear that")
    words = [*summary.keys(), *summary.values()] if isinstance(summary, Mapping) else [None]
    if not all(isinstance(word, str) for word in words):
        return Finding(Level.FAULT, f"getSummary gave {render_value(summary)}", "give a dict from text to text")
    return Finding(Level.GOOD, "summary: " + (", ".join(f"{n}: {text}" for n, text in summary.items()) or "none"))
