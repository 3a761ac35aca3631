"""Steps 3 and 4 of a grid job: packs its command lines and work area into the sandbox, once for all local jobs."""

import errno
import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from pathlib import Path

from adapters import BadSweep, JobAdapter, PlannedJob, RequestFile, Sweep, TooLarge, UnusableFile, copy_files
from jobmanager import render_number
from jobmanager.database.grid_job import GridJob
from jobmanager.requests.credentials import KINDS
from jobmanager.requests.job_types import HandlerError, HandlerUnreachable, blaming, render_value
from jobmanager.requests.request_handler import LONGEST_COMMAND_LINE, MOST_LETTERS, run_directory
from jobmanager.requests.time_limit import asking
from jobmanager.site.account import Account, find_batch_adapter
from jobmanager.site.settings import Transfer
from jobmanager.submission.credential_copies import find_copies
from sandbox.driver import OWN_VARIABLES, DriverPlan, LocalJobEntry, render_driver, render_table
from sandbox.files import SandboxRefused, TarLimits, atomic_write, remove_folder
from sandbox.pack import write_report, write_sandbox

logger = logging.getLogger(__name__)

_STDIN = ".samgrid-stdin"
_FULL = (errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EROFS)
"""Errors of a disk, probably our own: what waits for it is never given up."""


def pack_sandbox(account: Account, job: GridJob, adapter: JobAdapter, local_jobs: Sequence[PlannedJob]) -> None:
    """Write sandbox, table of command lines and driver of a grid job, unless an earlier worker has.

    The driver is written last: if it exists, everything does.

    :raises HandlerError: the handler failed.
    :raises SandboxError, OSError: something cannot be packed, or the disk is full; nothing incomplete is left.
    """
    places = account.places
    if places.driver(job.job_id).exists():
        return
    work_area = places.work_area(job.job_id)
    _remove(work_area)
    work_area.mkdir(mode=0o700)
    try:
        with asking(account, job.job_id, "pack", job.batch).limited():
            entries, environment = _ask_handler(adapter, job, local_jobs, work_area)
        for folder in (work_area, places.sandbox(job.job_id)):
            if folder.is_symlink() or not (folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)):
                raise HandlerError(f"handler {adapter.jobType} has removed, replaced or closed the folder {folder}")
        stdin = _bring_stdin(adapter, work_area)
        settings = account.configuration.sandbox
        limits = TarLimits(settings.max_input_files, settings.max_input_size * 1_000_000)
        digest = write_sandbox(work_area, places.sandbox_tar(job.job_id), limits, settings.site_files)
        is_bare = _is_bare(account, work_area)
        if is_bare:
            write_report(places.sandbox(job.job_id))
    finally:
        _remove(work_area)
    _write_file(places.local_jobs(job.job_id), render_table(entries))
    plan = _plan(account, job, adapter, environment, stdin)
    driver = render_driver(replace(plan, sandbox_sha256=digest, is_bare=is_bare))
    _write_file(places.driver(job.job_id), os.fsencode(driver))
    logger.info("%s packed for %s", job.job_id, render_number(len(local_jobs), "local job"))


def remove_half_made(account: Account, grid_job: str) -> None:
    """Remove an incomplete sandbox: its worker was killed, or its request refused."""
    places = account.places
    _remove(places.work_area(grid_job))
    if not places.driver(grid_job).exists():
        _remove(places.sandbox(grid_job))


def _ask_handler(
    adapter: JobAdapter, job: GridJob, local_jobs: Sequence[PlannedJob], work_area: Path
) -> tuple[list[LocalJobEntry], Mapping[str, str]]:
    """Have the handler fill the work area; the command lines and variables of the local jobs."""
    with _blaming(adapter):
        entries = _find_entries(adapter, job, local_jobs)
        adapter.prepareWorkArea(work_area)
        return entries, _check_environment(adapter.getEnvironment())


def find_entries(adapter: JobAdapter, job: GridJob, local_jobs: Sequence[PlannedJob]) -> list[LocalJobEntry]:
    """The command line of each local job, and the variables that are its own.

    :raises HandlerError: the handler failed.
    :raises SandboxRefused: there were other rows, or files, when the request was accepted.
    """
    with _blaming(adapter):
        _check_environment(adapter.getEnvironment())
        return _find_entries(adapter, job, local_jobs)


@contextmanager
def _blaming(adapter: JobAdapter) -> Iterator[None]:
    """Turn exceptions of the block into errors that blame the handler or its request."""
    try:
        with blaming(f"handler {adapter.jobType}"):
            yield
    except HandlerError as error:
        cause = error.__cause__
        if isinstance(cause, SandboxRefused) or (isinstance(cause, OSError) and cause.errno in _FULL):
            raise cause from None
        if isinstance(cause, BadSweep | TooLarge | UnusableFile):
            raise SandboxRefused(str(cause)) from cause
        if not isinstance(error, HandlerUnreachable):  # that is logged where it is counted
            # The traceback is for the grid job's log; people see one line.
            logger.info("%s's handler failed", adapter.jobType, exc_info=cause)
        raise


def _find_entries(adapter: JobAdapter, job: GridJob, local_jobs: Sequence[PlannedJob]) -> list[LocalJobEntry]:
    sweep = adapter.sweep
    if sweep is not None:
        sweep.check_digest(job.sweep_digest)
    entries, letters = [], 0
    for local_job in local_jobs:
        entries.append(_entry(adapter, sweep, local_job))
        length = sum(map(len, (*entries[-1].command, *chain(*entries[-1].environment))))
        if length > LONGEST_COMMAND_LINE:
            raise SandboxRefused(
                f"the command line of local job {local_job.index} has {length:,} characters: at most"
                f" {LONGEST_COMMAND_LINE:,}, so put what is long into a file"
            )
        letters += length
        if letters > MOST_LETTERS:
            raise SandboxRefused(
                f"all command lines together have more than {MOST_LETTERS:,} characters: put what is long into a file"
            )
    return entries


def _command(words: Sequence[str]) -> tuple[str, ...]:
    if isinstance(words, str | bytes) or not isinstance(words, Iterable):
        raise TypeError(f"getCommandAndArguments gave {render_value(words)}, which is no list of words")
    words = tuple(words)
    _check_texts("getCommandAndArguments", words)
    return words


def _check_environment(variables: Mapping[str, str]) -> Mapping[str, str]:
    if not isinstance(variables, Mapping):
        raise TypeError(f"getEnvironment gave {render_value(variables)}, which is no dict from text to text")
    _check_texts("getEnvironment", tuple(chain(*variables.items())))
    if own := sorted(OWN_VARIABLES.intersection(variables)):
        raise ValueError(f"getEnvironment gave {', '.join(own)}, which the job manager sets")
    return variables


def _check_texts(method: str, texts: Sequence[str]) -> None:
    for text in texts:
        if not isinstance(text, str):
            raise TypeError(f"{method} gave {text!r}, which is no text")
    try:
        os.fsencode("".join(texts))  # at once: there may be a million local jobs
    except UnicodeEncodeError as error:
        culprit = next(text for text in texts if error.object[error.start] in text)
        raise ValueError(f"{method} gave {culprit!r}, which no program can be given") from error


def _entry(adapter: JobAdapter, sweep: Sweep | None, local_job: PlannedJob) -> LocalJobEntry:
    command, index = _command(adapter.getCommandAndArguments(local_job)), local_job.index
    environment: tuple[tuple[str, str], ...] = ()
    if sweep is not None:
        command = (*command[:1], *sweep.fill_words(command[1:], index))
        swept = [(name, text) for name, text in adapter.request["environment"] if sweep.is_in(text)]
        environment = tuple((name, sweep.fill(text, index)) for name, text in swept)
    part = local_job.slice
    first_event, events, seed = (part.first_event, part.events, part.seed) if part else (None, None, None)
    return LocalJobEntry(command, first_event, events, seed, environment)


def _bring_stdin(adapter: JobAdapter, work_area: Path) -> str:
    """The program's standard input for the driver; a file beside the request is copied into the work area."""
    stdin: RequestFile | None = adapter.request["stdin"]
    if stdin is None:
        return ""
    if not stdin.travels:
        return str(stdin.path)
    try:
        copy_files([(stdin.path, work_area / _STDIN)], adapter.site.limits)
    except (TooLarge, UnusableFile) as error:
        raise SandboxRefused(f"stdin: {error}") from error
    return _STDIN


def _plan(
    account: Account, job: GridJob, adapter: JobAdapter, environment: Mapping[str, str], stdin: str
) -> DriverPlan:
    request = adapter.request
    batch = find_batch_adapter(account, job.batch)
    scratch_folder = account.configuration.sandbox.scratch_folder
    is_carried = account.configuration.sandbox.transfer is Transfer.BATCH_SYSTEM
    copies = {KINDS[name].variable: copy for name, copy in find_copies(account, job.job_id).items()}
    variables = [(name, value) for name, value in request["environment"] if name not in copies]
    variables += [] if is_carried else [(name, str(copy)) for name, copy in copies.items()]
    return DriverPlan(
        grid_job=job.job_id,
        sandbox=account.places.sandbox(job.job_id),
        results=account.places.results(job.job_id),
        scratch_base=scratch_folder or Path("/tmp"),
        sandbox_sha256="",
        local_jobs=job.slice_count,
        local_id_words=batch.local_id_words,
        index_words=batch.index_words,
        started_words=batch.started_words,
        host_words=batch.host_words,
        job_folder_words="" if scratch_folder else batch.job_folder_words,
        environment=(*environment.items(), *variables),
        directory=str(run_directory(request) or ""),
        stdin=stdin,
        max_cpu_minutes=request["max_cpu_time"] or 0,
        max_memory_mb=request["max_memory"] or 0,
        cores=request["cores"] or 1,
        # A plain job writes files for the user, as under GRAM's own job managers.
        copies_lines=type(adapter).getPhaseOfLine is not JobAdapter.getPhaseOfLine,
        has_site_files=bool(account.configuration.sandbox.site_files),
        carried=is_carried,
        fetch_words=batch.fetch_words if is_carried else "",
        carried_credentials=tuple((name, copy.name) for name, copy in copies.items()) if is_carried else (),
        umask="022" if job.origin is not None and job.origin.is_plain else "077",
    )


def _is_bare(account: Account, work_area: Path) -> bool:
    """True if a driver needs nothing but samgrid-report, which is then on its PATH without unpacking anything."""
    settings = account.configuration.sandbox
    is_shared = settings.transfer is not Transfer.BATCH_SYSTEM
    is_empty = not settings.site_files and not any(work_area.iterdir())
    return is_shared and ":" not in str(work_area) and is_empty


def _remove(folder: Path) -> None:
    """Remove a folder, or the link that a handler has put in its place."""
    if folder.is_symlink():
        folder.unlink()
    remove_folder(folder)


def _write_file(path: Path, data: bytes) -> None:
    with atomic_write(path) as write:
        write(data)
