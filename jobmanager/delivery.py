"""Hands the outputs of a grid job to whoever asked: the tar to a path of the request, standard output to GRAM."""

import logging
import os
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import BinaryIO

from adapters import canonical_name
from jobmanager.account import Account
from jobmanager.grid_job import GramOrigin, GridJob
from jobmanager.local_job import LocalJob
from sandbox.gather import render_stem

logger = logging.getLogger(__name__)

STDOUT = "stdout"
"""What ``samgrid_output`` says for the job's standard output under GRAM."""
_MOST_REASONS = 1000


def deliver_outputs(account: Account, job: GridJob, local_jobs: Sequence[LocalJob]) -> str:
    """Write what is wanted beside the tar; a sentence for each file that could not be, which is the request's fault.

    :raises OSError: there is no room now.
    """
    wanted = _find_word(job, "samgrid_output")
    faults = []
    if wanted and wanted != STDOUT:
        folder = Path.home() / _find_word(job, "directory")
        faults.append(_deliver(folder / wanted, [account.places.output(job.identity)]))
    origin = job.origin
    if origin is not None:
        faults += _deliver_to_gram(account, job, origin, local_jobs, wanted == STDOUT)
    return "; ".join(filter(None, faults))


def _find_word(job: GridJob, attribute: str) -> str:
    """The request's own word for an attribute, the last where it has several; empty where it has none."""
    name = canonical_name(attribute)
    words = [values for given, values in job.request() if canonical_name(given) == name]
    return str(words[-1][0]) if words and len(words[-1]) == 1 else ""


def _deliver_to_gram(
    account: Account, job: GridJob, origin: GramOrigin, local_jobs: Sequence[LocalJob], wants_tar: bool
) -> list[str]:
    stdout, stderr = Path(origin.stdout), Path(origin.stderr)
    if origin.is_plain:
        return [
            _deliver(stdout, _find_texts(account, job, local_jobs, "stdout")),
            _deliver(stderr, _find_texts(account, job, local_jobs, "stderr")),
        ]
    report = [_render_report(account, job, local_jobs)]
    reasons = [_render_reasons(local_jobs)]
    if wants_tar:
        return [_deliver(stdout, [account.places.output(job.identity)]), _deliver(stderr, [*report, *reasons])]
    return [_deliver(stdout, report), _deliver(stderr, reasons)]


def _find_texts(account: Account, job: GridJob, local_jobs: Iterable[LocalJob], kind: str) -> list[Path]:
    results = account.places.results(job.identity)
    names = [f"{render_stem(job.identity, str(local.local_id))}.{kind}" for local in local_jobs if local.local_id]
    files = [results / name for name in names]
    return [file for file in files if file.is_file() and not file.is_symlink()]


def _render_report(account: Account, job: GridJob, local_jobs: Sequence[LocalJob]) -> bytes:
    succeeded = sum(1 for local_job in local_jobs if local_job.succeeded)
    lines = [
        f"grid job {job.identity} ({job.job_type}): {succeeded} of {job.count} local jobs succeeded",
        *(f"{name}: {text}" for name, text in job.summary().items()),
        f"output: {account.places.output(job.identity)}",
    ]
    return "".join(f"{line}\n" for line in lines).encode(errors="surrogateescape")


def _render_reasons(local_jobs: Iterable[LocalJob]) -> bytes:
    failed = [job for job in local_jobs if not job.succeeded]
    lines = [f"local job {job.index} ({job.local_id or 'never submitted'}): {job.reason}" for job in failed]
    if len(lines) > _MOST_REASONS:
        lines = [*lines[:_MOST_REASONS], f"and {len(lines) - _MOST_REASONS} more"]
    return "".join(f"{line}\n" for line in lines).encode(errors="replace")


def _deliver(target: Path, parts: Iterable[Path | bytes]) -> str:
    """Write parts one after another into a file of the user's; what kept us from it, if that will not go away."""
    try:
        descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)
        with open(descriptor, "wb") as sink:
            if target.is_file():
                sink.truncate(0)
            for part in parts:
                _write(part, sink)
    except (FileNotFoundError, PermissionError, NotADirectoryError, IsADirectoryError) as error:
        logger.warning("not delivered to %s: %s", target, error.strerror)
        return f"not delivered to {target}: {error.strerror}"
    return ""


def _write(part: Path | bytes, sink: BinaryIO) -> None:
    if isinstance(part, bytes):
        sink.write(part)
        return
    with open(part, "rb") as source:
        shutil.copyfileobj(source, sink, 1 << 20)
