"""Handlers of experiments as the framework makes them, and their local jobs as the driver runs them, for unit tests."""

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from adapters import JobAdapter, Limits, PlannedJob, Site
from jobmanager.requests.attributes import read_request, read_site_values
from tests.waiting import SECONDS

Handler = TypeVar("Handler", bound=JobAdapter)


def make_handler(
    kind: type[Handler], folder: Path, table: Mapping[str, Any] | None = None, most: int = 100, **words: Any
) -> Handler:
    """The handler of a request in this folder, at a site with this table ``[type.NAME]``."""
    given = [(name, tuple(value) if isinstance(value, list) else (str(value),)) for name, value in words.items()]
    request, faults = read_request([("samgrid_type", (kind.jobType,)), *given], kind, folder)
    assert not faults
    return kind(request, Site(Limits(max_local_jobs=most), read_site_values(kind, table or {})))


def faults_of(handler: JobAdapter) -> str:
    """What the handler finds wrong with its request, a fault a line."""
    return "\n".join(handler.checkErrors())


def local_jobs(handler: JobAdapter) -> list[PlannedJob]:
    """The grid job's local jobs, without slices."""
    count = handler.getNumSubmissionTimes()
    return [PlannedJob(index, count) for index in range(1, count + 1)]


def run_local_job(
    area: Path,
    handler: JobAdapter,
    index: int = 1,
    *,
    shell: Sequence[str] = ("/bin/sh",),
    environment: Mapping[str, str] = {},
) -> subprocess.CompletedProcess[str]:
    """One local job, run in its own work area with what the driver would tell it."""
    area.mkdir()
    (area / "output").mkdir()
    handler.prepareWorkArea(area)
    _, *words = handler.getCommandAndArguments(local_jobs(handler)[index - 1])
    told = {
        "SAMGRID_GRID_JOB": "k3f00000",
        "SAMGRID_LOCAL_ID": f"123_{index}",
        "SAMGRID_INDEX": str(index),
        "SAMGRID_OUTPUT": str(area / "output"),
    }
    whole = {**os.environ, **told, **handler.getEnvironment(), **environment}
    command = [*shell, *words]
    return subprocess.run(command, cwd=area, env=whole, text=True, capture_output=True, timeout=SECONDS, check=False)
