"""Finds and makes the handler of a request, and asks it about the request."""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from adapters import BadSweep, JobAdapter, Limits, RequestFile, Site, Step, TooLarge, check_order, check_sizes
from adapters.sweep import SPLIT_FILES
from jobmanager.requests.attributes import NOTIFY, BadRequest, Given, find_type, read_request, read_site_values
from jobmanager.requests.datasets import Datasets
from jobmanager.requests.job_types import HandlerError, HandlerUnreachable, blaming, find_job_type, read_texts
from jobmanager.site.account import Account

_LONGEST_NAME = 200
LONGEST_COMMAND_LINE = 2_000_000
"""Characters: Linux runs no program with more bytes of arguments and environment than a quarter of its stack, 2 MiB."""
MOST_LETTERS = 300_000_000
"""Characters in the command lines of all local jobs, because their table is made in memory."""
_ADDRESS = re.compile(r"[A-Za-z0-9][A-Za-z0-9@._+-]{0,253}", re.ASCII)
"""Mail programs treat "-x" as an option, "|x" as a program and "a/b" as a file."""
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


def make_adapter(account: Account, given: Given, folder: Path, grid_job: str = "") -> JobAdapter:
    """The handler of a request, with typed values of the request and the site.

    :param grid_job: the request's grid job, if there is one.
    :raises BadRequest: with all faults.
    """
    adapter, faults = read_adapter(account, given, folder, datasets=Datasets.read(account, grid_job))
    if faults:
        # If a check fails because of a faulty attribute, its own faults are left out.
        with suppress(HandlerError):
            faults = [*faults, *_find_faults(adapter)]
        raise BadRequest(faults)
    return adapter


def read_adapter(
    account: Account,
    given: Given,
    folder: Path,
    handler: type[JobAdapter] | None = None,
    datasets: Datasets | None = None,
) -> tuple[JobAdapter, list[str]]:
    """The handler of a request, and the faults of its attributes, which get their defaults.

    :param handler: its class, if that is known; finding it executes the site's modules.
    :param datasets: datasets that the site's command has listed before.
    """
    configuration = account.configuration
    handler = handler or find_handler(account, given)
    request, faults = read_request(given, handler, folder)
    values = read_site_values(handler, configuration.types.get(handler.jobType, {}))
    rules = configuration.decomposition
    limits = Limits(
        *(rules.events_per_local_job, rules.recommended_cpu_time * 60, rules.max_cpu_time * 60, rules.max_local_jobs),
        configuration.sandbox.max_input_size * 1_000_000,
    )
    datasets = datasets or Datasets(configuration.site)
    site = Site(limits, values, datasets.find if datasets.are_listed else None)
    with blaming(f"handler {handler.jobType}"):
        return _make_adapter(handler, request, site), faults


def _make_adapter(handler: type[JobAdapter], request: Mapping[str, object], site: Site) -> JobAdapter:
    """A handler's object; an ``__init__`` of its own that replaces the inherited one is a HandlerError."""
    rule = "its __init__ must take request and site, and call super().__init__(request, site)"
    broken = f"handler {handler.jobType}: {rule}"
    try:
        adapter = handler(request, site)
    except TypeError as error:
        if error.__traceback__ and error.__traceback__.tb_next:  # its own code was reached
            raise
        raise HandlerError(broken) from error
    if not {"request", "site"} <= vars(adapter).keys():
        raise HandlerError(broken)
    return adapter


def find_handler(account: Account, given: Given) -> type[JobAdapter]:
    """The class of a request's handler; raises BadRequest: there is no such job type."""
    attribute, name = find_type(given)
    try:
        return find_job_type(name, account.configuration.handlers.modules)
    except HandlerUnreachable:
        raise
    except HandlerError as error:
        raise BadRequest([f"{attribute}: {error}"]) from error


def find_steps(adapter: JobAdapter) -> Sequence[Step]:
    """The steps of a structured grid job of this handler; empty for other job types.

    :raises HandlerError: the handler failed.
    """
    with blaming(f"handler {adapter.jobType}"):
        steps = [_read_step(step) for step in adapter.getSteps()]
        faults = check_order(steps)
    if faults:
        raise HandlerError(f"handler {adapter.jobType}: getSteps: {'; '.join(faults)}")
    return steps


def _read_step(step: object) -> Step:
    """A step as it is declared: lists do as well as tuples."""
    if not isinstance(step, Step):
        raise TypeError(f"getSteps gave {step!r}, which is no adapters.Step")
    request = _freeze(step.request)
    if not (isinstance(request, tuple) and all(map(_is_relation, request))):
        raise TypeError(
            f"getSteps: the request of {step.name!r} is no tuple of attributes, each with a tuple of its values, as in"
            ' (("samgrid_type", ("command",)), ("count", ("3",)))'
        )
    return replace(step, request=request)


def _freeze(given: object) -> object:
    return tuple(map(_freeze, given)) if isinstance(given, list | tuple) else given


def _is_relation(given: object) -> bool:
    if not (isinstance(given, tuple) and len(given) == 2):
        return False
    name, values = given
    return isinstance(name, str) and isinstance(values, tuple) and _is_value(values)


def _is_value(given: object) -> bool:
    return isinstance(given, str) or (isinstance(given, tuple) and all(map(_is_value, given)))


def count_local_jobs(adapter: JobAdapter) -> int:
    """The number of local jobs that a handler asks for.

    :raises BadRequest: the site's limit is lower; HandlerError: the number is impossible.
    """
    with blaming(f"handler {adapter.jobType}"):
        try:
            size = find_size(adapter)
            count = adapter.getNumSubmissionTimes() if adapter.sweep is None else len(adapter.sweep.rows)
            _check_number(adapter, "getNumSubmissionTimes", count)
        except TooLarge as error:
            raise BadRequest([str(error)]) from error
    most = adapter.site.limits.max_local_jobs
    if count > most:
        raise BadRequest([f"the request makes {count} local jobs, but this site takes at most {most}: ask for fewer"])
    if count < 1 or (size is not None and count > size):
        raise HandlerError(f"handler {adapter.jobType} asks for {count} local jobs for a size of {size}")
    return count


def find_size(adapter: JobAdapter) -> int | None:
    """The grid job's size in events, as the handler says it; raises HandlerError: it is no number."""
    with blaming(f"handler {adapter.jobType}"):
        size = adapter.getSize()
        _check_number(adapter, "getSize", 1 if size is None else size)
    return size


def _check_number(adapter: JobAdapter, method: str, number: object) -> None:
    """Refuse anything but an int."""
    if type(number) is not int:
        raise HandlerError(f"handler {adapter.jobType}: {method} gave {number!r}, which is no whole number")
    if abs(number) >= 1 << 63:
        raise HandlerError(f"handler {adapter.jobType}: {method} gave a number of {number.bit_length()} bits")


def check_errors(adapter: JobAdapter) -> None:
    """Refuse what is wrong with the request beyond its attributes' types.

    :raises BadRequest: with all faults.
    """
    if faults := _find_faults(adapter):
        raise BadRequest(faults)


def _find_faults(adapter: JobAdapter) -> list[str]:
    """The faults that the handler finds, and those of common attributes."""
    with blaming(f"handler {adapter.jobType}"):
        faults = read_texts("checkErrors", adapter.checkErrors())
    faults += [
        f"environment: {name!r} is no variable's name: it takes letters, digits and underscores"
        for name, _ in adapter.request["environment"]
        if not _VARIABLE.fullmatch(name)
    ]
    name = adapter.request["name"]
    if name is not None and (len(name) > _LONGEST_NAME or not name.isprintable() or not name.strip()):
        faults.append(f"name must be at most {_LONGEST_NAME} printable characters, in one line, and not blank")
    faults += [
        f"{NOTIFY}: {word!r} is no address: that begins with a letter or a digit, and takes @ . _ + and - beside these"
        for word in adapter.request[NOTIFY]
        if not _ADDRESS.fullmatch(word)
    ]
    stdin = adapter.request["stdin"]
    if stdin is not None and not os.path.isfile(stdin.path):  # noqa: PTH113 Path's raises for a name too long
        faults.append(f"stdin: no such file, or no file: {stdin.path}")
    elif stdin is not None and not os.access(stdin.path, os.R_OK):
        faults.append(f"stdin: {stdin.path} cannot be read: Permission denied")
    directory = run_directory(adapter.request)
    if directory and not adapter.usesDirectory:
        faults.append(f"directory does not go with {adapter.jobType}: its programs run in the scratch folder")
    elif directory and not os.path.isdir(directory):  # noqa: PTH112 as above
        faults.append(f"directory: no such folder: {directory}")
    faults += _find_sweep_faults(adapter)
    faults += check_sizes(_find_travelling_files(adapter.request), adapter.site.limits)
    return list(dict.fromkeys(faults))


def _find_sweep_faults(adapter: JobAdapter) -> list[str]:
    try:
        sweep = adapter.sweep
    except BadSweep as error:
        return [str(error)]
    if sweep is None:
        return []
    faults = []
    if adapter.request.get("count", 1) != 1:
        faults.append("count does not go with parameters or split_files, which say how many local jobs there are")
    texts = [*adapter.request.get("arguments", ()), *(value for _, value in adapter.request["environment"])]
    if "arguments" in adapter.request and not any(map(sweep.is_in, texts)):
        faults.append(f"all local jobs would do the same: no argument and no variable has {sweep.placeholders}")
    return [*faults, *_find_size_faults(list(sweep.count_letters(texts)))]


def _find_size_faults(sizes: Sequence[int]) -> Iterator[str]:
    what, longest, together = "arguments and environment of", max(sizes), sum(sizes)
    if longest > LONGEST_COMMAND_LINE:
        number, most = sizes.index(longest) + 1, LONGEST_COMMAND_LINE
        yield f"{what} local job {number} would have {longest:,} characters: at most {most:,}"
    elif together > MOST_LETTERS:
        yield f"{what} all local jobs would have {together:,} characters, of {MOST_LETTERS:,} at most"


def _find_travelling_files(request: Mapping[str, Any]) -> Iterator[RequestFile]:
    for value in (value for name, value in request.items() if name != SPLIT_FILES.name):
        for item in value if isinstance(value, tuple) else (value,):
            if isinstance(item, RequestFile) and item.travels:
                yield item


def run_directory(request: Mapping[str, Any]) -> Path | None:
    """The folder for programs in the request, relative to home as in GRAM; None: a scratch folder."""
    return Path.home() / request["directory"] if request["directory"] else None
