"""Accepts or refuses a request while its sender waits; nothing is created for a bad one."""

import logging
import os
import pwd
import random
import re
import string
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from adapters import BadSweep, JobAdapter, Step, Sweep, canonical_name, read_needs
from adapters.job_adapter import HIGHEST_SEED
from adapters.sweep import SPLIT_FILES
from batch_adapters.registry import UnknownBatchSystem, check_name
from jobmanager import render_number
from jobmanager.database.documents import render_text
from jobmanager.database.grid_job import CredentialEntry, GramOrigin, GridJob
from jobmanager.database.times import read_time
from jobmanager.requests.attributes import (
    COMMON_ATTRIBUTES,
    DRIVER_VARIABLES,
    NOTIFY,
    BadRequest,
    Given,
    find_output_file,
    find_parent_faults,
    find_values,
    render_step_request,
)
from jobmanager.requests.credentials import KINDS, PROXY, BadCredential, find_credential_faults, read_content
from jobmanager.requests.datasets import Datasets, keep_lists
from jobmanager.requests.job_types import HandlerError, HandlerUnreachable, blaming, read_texts
from jobmanager.requests.request_handler import (
    check_errors,
    count_local_jobs,
    find_handler,
    find_size,
    find_steps,
    read_adapter,
)
from jobmanager.requests.time_limit import limited, telling_delay
from jobmanager.site.account import Account, find_batch_adapter
from jobmanager.site.settings import Transfer

logger = logging.getLogger(__name__)

_TAKEN = {"queue": "queue", "project": "project", "cores": "cores", "gpus": "gpus", "max_disk": "max_disk_mb"}
"""Attributes that a batch system may not support, and the variables of its submit command."""


def accept_grid_job(
    account: Account, given: Given, folder: Path, origin: GramOrigin | None = None, proxy: str = ""
) -> str:
    """Check a request, fix how it is cut, and register it; the new grid job's id.

    If GRAM has sent the request before (by its uniqid), this is the id of the existing grid job.

    :param folder: where the request's relative file names start.
    :param proxy: the file of GRAM's proxy for the job, which its programs get if the request names none.
    :raises BadRequest: with all faults; nothing has been created.
    :raises HandlerError: the handler failed or hung; nothing has been created.
    """
    if origin is not None and (known := account.database.grid_jobs.find_uniqid(origin.uniqid)):
        return known
    seconds = account.handler_time_limit
    try:
        with telling_delay(seconds), limited(seconds):
            job = prepare_grid_job(account, given, folder)
    except HandlerUnreachable as error:
        raise HandlerUnreachable(f"{error}: not accepted now, submit it again later") from error.__cause__
    if find_values(given, NOTIFY) and not account.configuration.notification.command:
        logger.warning("%s: nobody is notified, as the configuration names no [notification] command", NOTIFY)
    if origin is not None:
        job.put_origin(origin)
    refuse_faults_of_now(job)
    if proxy and not find_values(given, PROXY.attribute):
        _put_default(job, Path(proxy))
    with account.database.transaction():
        # Another process may have accepted the same request meanwhile.
        if origin is not None and (known := account.database.grid_jobs.find_uniqid(origin.uniqid)):
            return known
        add_grid_job(account, job)
    logger.info("%s accepted: %s, %s", job.job_id, job.job_type, render_number(job.count, "local job"))
    return job.job_id


def _put_default(job: GridJob, proxy: Path) -> None:
    """Store GRAM's proxy as a credential, if it can be used: the request did not ask for it."""
    try:
        read_content(proxy)
    except BadCredential as error:
        logger.info("%s: the proxy that GRAM gave is not handed on: %s", job.job_id, error)
        return
    job.put_credentials([*job.credentials, CredentialEntry(PROXY.attribute, str(proxy), is_gram_default=True)])


def refuse_faults_of_now(job: GridJob) -> None:
    """Refuse what would otherwise be found out only when most of the work is done.

    :raises BadRequest: the output tar cannot be written where it is wanted, or credentials cannot be used.
    """
    sources = {entry.name: Path(entry.source) for entry in job.credentials}
    if faults := [*find_credential_faults(sources, time.time()), *_find_output_faults(job)]:
        raise BadRequest(faults)


def _find_output_faults(job: GridJob) -> list[str]:
    file = find_output_file(job.request(), job.request_folder, through_gram=job.origin is not None)
    if file is None:
        return []
    # A link may name a file that does not exist yet.
    place = os.path.realpath(file)
    folder = os.path.dirname(place)  # noqa: PTH120 Path's methods raise for impossible names
    if os.path.isdir(place):  # noqa: PTH112
        return [f"samgrid_output: {place} is a folder"]
    if os.path.exists(place) and not os.path.isfile(place):  # noqa: PTH110, PTH113
        return [f"samgrid_output: {place} is there, and is no file"]
    if os.path.exists(place):  # noqa: PTH110
        return [] if os.access(place, os.W_OK) else [f"samgrid_output: you may not write {place}"]
    if not os.path.isdir(folder):  # noqa: PTH112
        return [f"samgrid_output: no such folder, or none that you may enter: {folder}"]
    if len(os.fsencode(os.path.basename(place))) > os.pathconf(folder, "PC_NAME_MAX"):  # noqa: PTH119
        return [f"samgrid_output: no file can have so long a name: {place}"]
    return [] if os.access(folder, os.W_OK | os.X_OK) else [f"samgrid_output: {folder} takes no files"]


def add_grid_job(account: Account, job: GridJob) -> None:
    """Register a new grid job, inside the caller's transaction.

    :raises OSError: its lists of datasets cannot be written.
    """
    keep_lists(account, job.job_id, job.listed_datasets)
    account.database.grid_jobs.put(job)
    # The generator's first run must not miss what happens between now and its start.
    account.database.events.put_generator_time(job.batch, int(read_time(job.submitted)))


def prepare_grid_job(
    account: Account, given: Given, folder: Path, first: GridJob | None = None, *, warns: bool = True
) -> GridJob:
    """The document of a new grid job, not stored yet: its request checked, its slices or steps fixed.

    :param first: the grid job that it repeats, with the same datasets and rows.
    :param warns: whether what will have no effect is told, as it is of steps with their parent.
    :raises BadRequest: with all faults.
    """
    datasets = Datasets.read(account, first.job_id if first else "")
    adapter, faults = read_adapter(account, given, folder, datasets=datasets)
    _check_declarations(type(adapter))
    faults = [*_gather(faults, lambda: check_errors(adapter)), *_find_batch_faults(account, adapter)]
    steps: list[Step] = []
    faults = _gather(
        faults,
        lambda: steps.extend(find_steps(adapter)),
        lambda: check_steps(account, given, steps, folder, faults),
    )
    if faults:
        raise BadRequest(faults)
    if render_text(str(folder)) != str(folder):
        raise BadRequest([f"the request's folder {str(folder)!r} has characters that no XML can hold: rename it"])
    job_id = _new_job_id(account)
    owner = pwd.getpwuid(os.getuid()).pw_name
    job = GridJob.new(job_id, adapter.jobType, owner, account.configuration.site.batch_system, time.time())
    job.put_request(given, folder)
    if steps:
        job.put_steps(step.name for step in steps)
        job.put_needs(read_needs(steps))
    else:
        count = count_local_jobs(adapter)
        seed = adapter.request.get("seed") or random.Random(job_id).randint(1, HIGHEST_SEED)
        digest = _find_digest(adapter.sweep, first) if adapter.sweep else None
        job.put_slices(count, find_size(adapter), seed, digest)
    job.listed_datasets = datasets.known
    job.repeats = first.job_id if first else None
    job.name = adapter.request["name"]
    job.min_success = adapter.request["min_success"]
    job.retries = adapter.request["retries"]
    job.retry_on = adapter.request["retry_on"] or None
    job.fail_fast = adapter.request["fail_fast"] or None
    job.max_pending_minutes = adapter.request["max_pending_time"]
    named = {name: adapter.request[name] for name in KINDS if adapter.request[name]}
    job.put_credentials(CredentialEntry(name, str(path)) for name, path in named.items())
    if warns:
        for warning in (*find_warnings(adapter), *_find_retry_warnings(account, adapter.request)):
            logger.warning("%s", warning)
    return job


def _gather(faults: Sequence[str], *checks: Callable[[], object]) -> list[str]:
    """These faults and those that the checks find, so that all are told at once."""
    found = list(faults)
    for check in checks:
        try:
            check()
        except BadRequest as error:
            found += error.faults
        except HandlerError:
            # A handler may fail because of a fault that is known.
            if not found:
                raise
    return list(dict.fromkeys(found))


def _check_declarations(handler: type[JobAdapter]) -> None:
    """Refuse a handler with an attribute that all job types have by now: it would mean something else."""
    common = {canonical_name(attribute.name) for attribute in COMMON_ATTRIBUTES}
    taken = [attribute.name for attribute in handler.attributes if canonical_name(attribute.name) in common]
    if taken:
        raise BadRequest([f"job type {handler.jobType} declares {name}, which every job type has" for name in taken])


def _find_digest(sweep: Sweep, first: GridJob | None) -> str:
    try:
        if first is not None:
            sweep.check_digest(first.sweep_digest)
    except BadSweep as error:
        raise BadRequest([str(error)]) from error
    return sweep.digest


def check_steps(account: Account, given: Given, steps: Sequence[Step], folder: Path, known: Sequence[str] = ()) -> None:
    """Check the requests of a structured grid job's steps.

    For a step with an input that does not exist yet, only declarations are checked: its handler may read the input.

    :param known: faults of the whole, which steps inherit.
    :raises BadRequest: with all faults and their steps.
    """
    faults = find_parent_faults(given) if steps else []
    for step in steps:
        try:
            _check_step(account, given, step, folder)
        except BadRequest as error:
            faults += [f"step {step.name}: {fault}" for fault in error.faults if fault not in known]
        except HandlerError as error:
            faults.append(f"step {step.name}: {error}")
    if faults:
        raise BadRequest(faults)


def _check_step(account: Account, given: Given, step: Step, folder: Path) -> None:
    handler = find_handler(account, step.request)
    # The input folder is not read now.
    given = render_step_request(given, step, Path("/") if step.input_step else None, handler)
    adapter, faults = read_adapter(account, given, folder, handler)
    if not faults and find_steps(adapter):
        raise BadRequest(["a step cannot have steps itself"])
    of_content = (lambda: check_errors(adapter), lambda: count_local_jobs(adapter)) if not step.input_step else ()
    if faults := [*_gather(faults, *of_content), *_find_batch_faults(account, adapter)]:
        raise BadRequest(faults)
    if not step.input_step:
        for warning in find_warnings(adapter):
            logger.warning("step %s: %s", step.name, warning)


def find_warnings(adapter: JobAdapter) -> list[str]:
    """Warnings of the handler, and about placeholders."""
    with blaming(f"handler {adapter.jobType}"):
        warnings = read_texts("findWarnings", adapter.findWarnings())
    sweep = adapter.sweep
    if sweep and (unknown := sweep.find_unknown(adapter.request.get("arguments", ()))):
        warnings = [
            *warnings,
            f"arguments: not replaced: {', '.join(unknown)}; local jobs differ by {sweep.placeholders}",
        ]
    return [*warnings, *_find_environment_warnings([name for name, _ in adapter.request["environment"]])]


def _find_environment_warnings(names: Sequence[str]) -> Iterator[str]:
    """Warnings about variables that programs will not find as they were given."""
    for name, count in Counter(names).items():
        if name in DRIVER_VARIABLES:
            yield f"environment: {name} is the job manager's: where it sets one, programs find that"
        elif count > 1:
            yield f"environment: {name} is given {count} times: the last value counts"


def _find_retry_warnings(account: Account, request: Mapping[str, Any]) -> Iterator[str]:
    """Warnings about attributes of retries that have no effect."""
    needs = {
        "retry_on": ("retries",),
        "retry_memory_factor": ("retries", "max_memory"),
        "retry_time_factor": ("retries", "max_wall_time max_cpu_time"),
        "retry_elsewhere": ("retries",),
    }
    defaults = {attribute.name: attribute.default for attribute in COMMON_ATTRIBUTES}
    for name in (name for name in needs if request[name] != defaults[name]):
        for need in needs[name]:
            if not any(map(request.__getitem__, need.split())):
                yield f"{name} changes nothing without {need.replace(' ', ' or ')}"
    batch = account.configuration.site.batch_system
    if request["retry_elsewhere"] and not find_batch_adapter(account, batch).takes("excluded_host"):
        yield f"retry_elsewhere changes nothing: the batch system {batch} cannot avoid a host"


def _find_batch_faults(account: Account, adapter: JobAdapter) -> Iterator[str]:
    """What the site's configuration has wrong, its batch system cannot do, or the site does not permit."""
    configuration, request = account.configuration, adapter.request
    name = configuration.site.batch_system
    try:
        check_name(name, configuration.batch)
    except UnknownBatchSystem as error:
        yield f"configuration [site] batch_system: {error}"
        return
    is_carried = configuration.sandbox.transfer is Transfer.BATCH_SYSTEM
    wanted, options = [word for word in _TAKEN if request[word]], request["batch_options"]
    if is_carried or wanted or options:
        batch = find_batch_adapter(account, name)  # slow to load
        if is_carried and not batch.carries_files:
            yield f"configuration [sandbox] transfer: {name} cannot carry files; say shared, with a spool_folder"
        permitted = ", ".join(batch.request_options) or "none"
        for word in options:
            if not any(re.fullmatch(known, word) for known in batch.request_options):  # some would be dangerous
                yield f"batch_options: {word!r} is not permitted: [batch.{name}] request_options permits {permitted}"
        for word in wanted:
            if not batch.takes(_TAKEN[word]):
                yield f"{word}: the batch system {name} has no option for it: leave it out"
    # The sweep itself is not read here: files of a step with an input may not exist yet.
    if is_carried and SPLIT_FILES in adapter.attributes and any(file.travels for file in request["split_files"]):
        yield "split_files: no file system is shared here: give absolute names that all hosts know"
    if name == "fork" and (request["cores"] or 1) > account.fork_slots:
        yield f"cores: a local job wants {request['cores']}, but the batch system fork has {account.fork_slots} slots"


def _new_job_id(account: Account) -> str:
    """A new id; its length is fixed, so that no id is a prefix of another."""
    chance = random.SystemRandom()
    while True:
        letters = string.ascii_lowercase + string.digits
        job_id = chance.choice(string.ascii_lowercase) + "".join(chance.choices(letters, k=7))
        if not account.database.grid_jobs.has(job_id):
            return job_id
