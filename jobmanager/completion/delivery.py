"""Delivers the outputs of a grid job: the tar to the path in the request, standard output to GRAM."""

import errno
import itertools
import logging
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from batch_adapters.states import State
from jobmanager.database.grid_job import GramOrigin, GridJob
from jobmanager.requests.attributes import STDOUT, find_output_file, find_word
from jobmanager.site.account import Account
from sandbox.files import open_unlinked
from sandbox.gather import MOST_HOLES, count_holes, render_too_sparse
from sandbox.status import render_stem

logger = logging.getLogger(__name__)

_MOST_REASONS = 1000
_FAULTS = frozenset(
    {
        *(errno.ENOENT, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP),
        # A pipe that nobody reads fast enough; a file system that will never accept it.
        *(errno.ENXIO, errno.EAGAIN, errno.EPIPE, errno.EROFS, errno.EFBIG),
    }
)
"""Errors for which writing a file is not tried again."""


@dataclass(frozen=True)
class _File:
    """What is to be written into a user's file after its first ``size`` bytes."""

    target: Path
    size: int
    parts: Sequence[Path | bytes]


def measure_files(job: GridJob) -> tuple[int, int] | None:
    """Sizes of GRAM's files of standard output and error, in bytes; recorded before anything is delivered to them.

    Not at acceptance: until the end, other jobs and this one's programs may write to the same files.
    """
    origin = job.origin
    return (_measure(Path(origin.stdout)), _measure(Path(origin.stderr))) if origin else None


def deliver_outputs(account: Account, job: GridJob) -> str:
    """Write the files that the request wants; a sentence for each that can never be written.

    :param job: with the recorded sizes of GRAM's files (`measure_files`), so that this can be repeated.
    :raises OSError: there is no disk space now.
    """
    origin, request = job.origin, job.request()
    wanted = find_output_file(request, job.request_folder, through_gram=origin is not None)
    faults = _deliver([_File(wanted, 0, [account.places.output(job.job_id)])]) if wanted else []
    if origin is not None:
        faults += _deliver_to_gram(account, job, origin, find_word(request, "samgrid_output") == STDOUT)
    return "; ".join(filter(None, faults))


def _deliver_to_gram(account: Account, job: GridJob, origin: GramOrigin, wants_tar: bool) -> list[str]:
    wants_tar = wants_tar and not origin.is_plain
    assert job.sizes_before is not None
    stdout_size, stderr_size = job.sizes_before
    stdout, stderr = _make_parts(account, job, origin, wants_tar)
    files = (
        # Text is appended, as by GRAM's own job managers; a tar must be alone in its file.
        _File(Path(origin.stdout), 0 if wants_tar else stdout_size, stdout),
        _File(Path(origin.stderr), stderr_size, stderr),
    )
    # Once GRAM knows that a job is cancelled, it removes the job's folder.
    return _deliver([file for file in files if not job.was_cancelled or os.path.lexists(file.target.parent)])


def _measure(path: Path) -> int:
    """Bytes in a file; 0 if there is no regular file that we may see: the delivery will say why."""
    return os.path.getsize(path) if os.path.isfile(path) else 0  # noqa: PTH113, PTH202 Path's raise where we may not look


def _make_parts(
    account: Account, job: GridJob, origin: GramOrigin, wants_tar: bool
) -> tuple[Sequence[Path | bytes], Sequence[Path | bytes]]:
    """The parts of standard output and standard error."""
    if origin.is_plain:
        return _find_texts(account, job, "stdout"), _find_texts(account, job, "stderr")
    parts = {step.name: account.database.grid_jobs.get(step.grid_job) for step in job.steps if step.grid_job}
    report = _render_report(account, job, parts)
    reasons = _render_reasons(account, job, parts)
    if wants_tar:
        return [account.places.output(job.job_id)], [report, reasons]
    return [report], [reasons]


def _find_texts(account: Account, job: GridJob, kind: str) -> list[Path]:
    results = account.places.results(job.job_id)
    ids = (local_job.local_id for local_job in account.database.local_jobs.lines(job.job_id) if local_job.local_id)
    files = (results / f"{render_stem(job.job_id, local_id)}.{kind}" for local_id in ids)
    return [file for file in files if file.is_file() and not file.is_symlink()]


def _render_report(account: Account, job: GridJob, parts: Mapping[str, GridJob]) -> bytes:
    succeeded = account.database.local_jobs.count_ends(job.job_id)["succeeded"]
    done = sum(1 for part in parts.values() if part.state is State.DONE)
    success = f"{done} of {len(job.steps)} steps" if job.steps else f"{succeeded} of {job.count} local jobs"
    lines = [
        f"grid job {job.job_id} ({job.job_type}): {success} succeeded",
        *([f"name: {job.name}"] if job.name else []),
        *(f"{name}: {text}" for name, text in job.summary().items()),
        f"output: {account.places.output(job.job_id)}",
    ]
    return "".join(f"{line}\n" for line in lines).encode(errors="surrogateescape")


def _render_reasons(account: Account, job: GridJob, parts: Mapping[str, GridJob]) -> bytes:
    failed = (line for line in account.database.local_jobs.lines(job.job_id) if not line.succeeded)
    of_steps = [f"step {name} ({part.job_id}): {part.reason}" for name, part in parts.items() if part.reason]
    of_local_jobs = (f"local job {line.index} ({line.local_id or 'never submitted'}): {line.reason}" for line in failed)
    reasons = itertools.chain(of_steps, of_local_jobs)
    lines = list(itertools.islice(reasons, _MOST_REASONS))
    if more := sum(1 for _ in reasons):
        lines.append(f"and {more} more")
    return "".join(f"{line}\n" for line in lines).encode()


def _deliver(files: Sequence[_File]) -> list[str]:
    """Write a user's files; a sentence for each that can never be written.

    All are truncated before one is written: two names may mean the same file.
    """
    # Never extended: if somebody has shortened a file meanwhile, no zeros are added.
    faults = [_append(file.target, [], file.size) for file in files if _measure(file.target) > file.size]
    faults += [_append(file.target, file.parts) for file in files]
    return list(dict.fromkeys(filter(None, faults)))


def _append(target: Path, parts: Iterable[Path | bytes], size: int | None = None) -> str:
    """Append parts to a file, truncated to ``size`` bytes if that is given; what could not be written, and why."""
    try:
        kept, faults = _leave_out_sparse(parts)
        descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)
        with open(descriptor, "wb") as sink:
            if size is not None:
                sink.truncate(size)
            for part in kept:
                _write(part, sink)
    except OSError as error:
        # A device without space will never have any.
        if error.errno not in _FAULTS and not target.is_char_device():
            raise
        logger.warning("not delivered to %s: %s", target, error.strerror)
        return f"not delivered to {target}: {error.strerror}"
    return "; ".join(f"not delivered to {target}: {fault}" for fault in faults)


def _leave_out_sparse(parts: Iterable[Path | bytes]) -> tuple[list[Path | bytes], list[str]]:
    """The parts to be written, and a sentence for each sparse file with too many holes, as in the tar."""
    kept: list[Path | bytes] = []
    faults = []
    holes_left = MOST_HOLES
    for part in parts:
        if isinstance(part, Path):
            with open_unlinked(part) as source:
                status = os.fstat(source.fileno())
                holes = count_holes(source.fileno(), status)
            if holes > holes_left:
                faults.append(f"{part.name} is {render_too_sparse(status.st_size, 'a file')}")
                continue
            holes_left -= holes
        kept.append(part)
    return kept, faults


def _write(part: Path | bytes, sink: BinaryIO) -> None:
    if isinstance(part, bytes):
        sink.write(part)
        return
    with open_unlinked(part) as source:
        shutil.copyfileobj(source, sink)
