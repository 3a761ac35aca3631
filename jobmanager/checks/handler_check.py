"""``samgrid check-handler``: checks the handlers of a module, from their declarations to one local job."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from adapters import EVENTS, Attribute, JobAdapter, Kind, Value, canonical_name
from batch_adapters.running.diagnosis import Finding, Level
from jobmanager.checks.handler_trial import Trial, find_place, run_local_job, try_request
from jobmanager.requests.attributes import COMMON_ATTRIBUTES, TYPE_ATTRIBUTE, Given, read_type
from jobmanager.requests.job_types import HandlerError, load_handlers
from jobmanager.requests.time_limit import limited
from jobmanager.site.configuration import Configuration

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}", re.ASCII)
_NUMBERS = (Kind.INTEGER, Kind.NUMBER)
_FILE = "sample"
"""The file beside the request that every attribute of a file names: a program that does nothing."""
_EVENTS_PER_LOCAL_JOB = 2
_EVENTS = 5
"""They make slices of different sizes."""
_ALMOST = 0.8
"""How alike two names are that differ by a letter or two, or by capitals and underscores."""
_fault = partial(Finding, Level.FAULT)


@dataclass(frozen=True)
class Sample:
    """A request to try a handler with; ``folder`` is for its relative file names."""

    name: str
    given: Given
    folder: Path


def check_module(
    configuration: Configuration, module: str, samples: Sequence[Sample], run_time: float | None
) -> Iterator[Finding]:
    """The findings about all handlers of a module, one after another.

    :param samples: a handler is tried with those of its type, or with one made from its declarations.
    :param run_time: seconds that a local job may take; None: no local job is run.
    :raises HandlerError: the module cannot be loaded; BadRequest: a sample names no type.
    """
    try:
        with limited(configuration.handlers.time_limit):
            handlers = load_handlers(module)
    except HandlerError as error:
        raise HandlerError(f"{error}{find_place(error.__cause__)}") from error
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
            yield from find_misspelt_methods(handler)
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
    rules = replace(configuration.decomposition, events_per_local_job=_EVENTS_PER_LOCAL_JOB, recommended_cpu_time=0)
    with TemporaryDirectory(prefix="samgrid-check-") as name:
        folder = Path(name)
        sample = Sample("a request made from the declarations", make_sample(handler, folder), folder)
        yield from _try_sample(replace(configuration, decomposition=rules), sample, run_time)


def _try_sample(configuration: Configuration, sample: Sample, run_time: float | None) -> Iterator[Finding]:
    yield Finding(Level.GOOD, f"tried with {sample.name}")
    with TemporaryDirectory(prefix="samgrid-check-") as root:
        for step in try_request(configuration, sample.given, sample.folder, Path(root)):
            if not isinstance(step, Trial):
                yield step
            elif run_time is not None:
                yield from run_local_job(step, run_time)


def find_declaration_faults(handler: type[JobAdapter]) -> Iterator[Finding]:
    """A fault for each declaration that cannot work, or lacks documentation."""
    name = getattr(handler, "jobType", None)
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        yield _fault(f"{handler.__name__}: jobType is {name!r}", 'name the type in letters, digits and "_"')
    if not (handler.__doc__ or "").strip():
        yield _fault(
            f"{handler.__name__} has no docstring", 'say in one sentence what it runs: "samgrid types" shows it'
        )
    for which in ("attributes", "siteAttributes"):
        declared = getattr(handler, which)
        if fault := _find_form_fault(which, declared):
            yield fault
            return
        yield from _find_clashes(which, declared)
        for attribute in declared:
            yield from _find_faults(f"{which}: {attribute.name}", attribute)
    request_id = handler.requestIdAttribute
    if request_id and request_id not in {attribute.name for attribute in handler.attributes}:
        yield _fault(f"requestIdAttribute: there is no attribute {request_id!r}", "name one of attributes, as declared")
    for attribute in handler.siteAttributes:
        if attribute.required:
            yield _fault(f"siteAttributes: {attribute.name} is required", "give it a default: a site need not set it")


def find_misspelt_methods(handler: type[JobAdapter]) -> Iterator[Finding]:
    """A warning for each method whose name is almost one that the job manager calls."""
    known = [name for name in dir(JobAdapter) if not name.startswith("_")]
    inherited = set(dir(handler.__base__))
    for name in (name for name, value in vars(handler).items() if callable(value) and name not in inherited):
        if meant := get_close_matches(name, known, 1, _ALMOST):
            yield Finding(Level.WARNING, f"nothing calls its method {name}", f"did you mean {meant[0]}?")


def _find_form_fault(which: str, declared: object) -> Finding | None:
    if not isinstance(declared, Sequence):
        return _fault(f"{which} is {declared!r}", "make it a tuple of adapters.Attribute, as in (EVENTS, *SLICING)")
    strange = (one for one in declared if not isinstance(one, Attribute))
    remedy = "make it an adapters.Attribute(name, doc, kind, ...)"
    return next((_fault(f"{which} holds {one!r}", remedy) for one in strange), None)


def _find_clashes(which: str, declared: Sequence[Attribute]) -> Iterator[Finding]:
    """Attributes with the same name, ignoring case and underscores, as Globus does."""
    common = COMMON_ATTRIBUTES if which == "attributes" else ()
    seen = {canonical_name(attribute.name): f"every job type has {attribute.name}" for attribute in common}
    for attribute in declared:
        name = canonical_name(attribute.name)
        if name in seen:
            yield _fault(f"{which}: {attribute.name} is taken: {seen[name]}", "choose another name")
        seen[name] = f"it is declared already, as {attribute.name}"


def _find_faults(where: str, attribute: Attribute) -> Iterator[Finding]:
    if not _NAME.fullmatch(attribute.name):
        yield _fault(f"{where} is no name", 'use letters, digits and "_"')
    if not attribute.doc.strip().endswith("."):
        yield _fault(f"{where}: its doc {attribute.doc!r} is no sentence", 'write one that ends with "."')
    if not isinstance(attribute.kind, Kind):
        yield _fault(f"{where}: its kind is {attribute.kind!r}", "use one of adapters.Kind")
        return
    if isinstance(attribute.choices, str):
        yield _fault(f"{where}: its choices are one text, {attribute.choices!r}", 'make them a tuple, as in ("a", "b")')
    if attribute.choices and attribute.kind not in (Kind.TEXT, Kind.WORDS):
        yield _fault(f"{where}: choices go with Kind.TEXT and Kind.WORDS only", "leave them out, or make it text")
    yield from _find_range_faults(where, attribute)
    yield from _find_default_faults(where, attribute)


def _find_range_faults(where: str, attribute: Attribute) -> Iterator[Finding]:
    low, high = attribute.minimum, attribute.maximum
    if (low is not None or high is not None) and attribute.kind not in _NUMBERS:
        yield _fault(f"{where}: only numbers have a minimum or maximum", "leave it out")
    if low is not None and high is not None and low > high:
        yield _fault(f"{where}: no number is from {low} to {high}", "exchange minimum and maximum")


def _find_default_faults(where: str, attribute: Attribute) -> Iterator[Finding]:
    default, kind = attribute.default, attribute.kind
    if default is None:
        return
    if attribute.required:
        yield _fault(f"{where} is required and has a default, which is never used", "leave out one of the two")
    if not isinstance(default, kind.type) or (isinstance(default, bool) and kind is not Kind.FLAG):
        remedy = f"a request that names it gives the handler {getattr(kind.type, '__name__', kind.type)}"
        yield _fault(f"{where}: the default {default!r} is not {kind.value}", remedy)
        return
    try:
        # An empty text means "not given", even if there are choices.
        if default != "" and isinstance(default, str | int | float) and not isinstance(default, bool):
            attribute.read([str(default)])
    except ValueError as error:
        yield _fault(f"{where}: its own default is refused: {error}", "choose one that the request could give")


def make_sample(handler: type[JobAdapter], folder: Path) -> Given:
    """A request with the required attributes only; makes its file in ``folder``."""
    program = folder / _FILE
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
    return ("/",) if attribute.kind in (Kind.PATH, Kind.PATHS) else (_FILE,)


def _make_number(attribute: Attribute) -> str:
    wanted = _EVENTS if canonical_name(attribute.name) == canonical_name(EVENTS.name) else 1
    low = attribute.minimum if attribute.minimum is not None else wanted
    high = attribute.maximum if attribute.maximum is not None else wanted
    return str(min(max(wanted, low), high))
