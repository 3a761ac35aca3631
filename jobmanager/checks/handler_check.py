"""Checks the handlers of a module: declarations, decomposition, command lines, sandbox, and one local job."""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from adapters import JobAdapter
from batch_adapters.diagnosis import Finding, Level
from jobmanager.checks.handler_declarations import find_declaration_faults
from jobmanager.checks.handler_run import EVENTS_PER_LOCAL_JOB, make_sample, run_local_job
from jobmanager.checks.handler_trial import Trial, try_request
from jobmanager.control.removal import remove_folder
from jobmanager.requests.attributes import Given, read_type
from jobmanager.requests.job_types import load_handlers
from jobmanager.requests.time_limit import limited
from jobmanager.site.configuration import Configuration


@dataclass(frozen=True)
class Sample:
    """A request to try a handler with; ``folder`` is where its file names start."""

    name: str
    given: Given
    folder: Path


def check_module(
    configuration: Configuration, module: str, samples: Sequence[Sample], run_time: float | None
) -> Iterator[Finding]:
    """The findings of all handlers of a module, as they are made.

    :param samples: a handler is tried with those of its type, or with one made from its declarations.
    :param run_time: seconds that a local job may take; None: none is run.
    :raises HandlerError: the module cannot be loaded; BadRequest: a sample names no type.
    """
    with limited(configuration.handlers.time_limit):
        handlers = load_handlers(module)
    modules = (*configuration.handlers.modules, module)
    configuration = replace(configuration, handlers=replace(configuration.handlers, modules=modules))
    types = [str(getattr(handler, "jobType", "")) for handler in handlers]
    for name in sorted(set(types)):
        if types.count(name) > 1:
            yield Finding(Level.FAULT, f"{types.count(name)} handlers have the jobType {name!r}", "give each its own")
    for sample in samples:
        if read_type(sample.given) not in types:
            text = f"{sample.name} is of type {read_type(sample.given)}"
            yield Finding(Level.FAULT, text, f"this module has {', '.join(types)}")
    for handler in handlers:
        faults = list(find_declaration_faults(handler))
        yield from faults
        if not faults:
            count = len(handler.attributes) + len(handler.siteAttributes)
            yield Finding(Level.GOOD, f"job type {handler.jobType}: {count} attributes, declared well")
            yield from _try_samples(configuration, handler, samples, run_time)


def _try_samples(
    configuration: Configuration, handler: type[JobAdapter], samples: Sequence[Sample], run_time: float | None
) -> Iterator[Finding]:
    own = [sample for sample in samples if read_type(sample.given) == handler.jobType]
    for sample in own:
        yield from _try_sample(configuration, sample, run_time)
    if own:
        return
    # So that few events make several slices, whatever the site says.
    rules = replace(configuration.decomposition, events_per_local_job=EVENTS_PER_LOCAL_JOB, recommended_cpu_time=0)
    with _temporary_folder() as folder:
        sample = Sample("a request made from the declarations", make_sample(handler, folder), folder)
        yield from _try_sample(replace(configuration, decomposition=rules), sample, run_time)


def _try_sample(configuration: Configuration, sample: Sample, run_time: float | None) -> Iterator[Finding]:
    yield Finding(Level.GOOD, f"tried with {sample.name}")
    with _temporary_folder() as root:
        for step in try_request(configuration, sample.given, sample.folder, root):
            if not isinstance(step, Trial):
                yield step
            elif run_time is not None:
                yield from run_local_job(step, run_time)


@contextmanager
def _temporary_folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="samgrid-check-"))
    try:
        yield folder
    finally:
        remove_folder(folder)
