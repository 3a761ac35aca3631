"""``samgrid doctor``: is everything there that a batch system is used through, is what is written down as it should be;
and if not, what to put where."""

import functools
import os
import shlex
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from adapters import JobAdapter
from batch_adapters.adapter import BatchAdapter, BatchError, Command, Unreachable
from batch_adapters.registry import ADAPTERS
from batch_adapters.running.batch_system import BatchSystem
from batch_adapters.running.commands import make_environment, render_text, run_question
from batch_adapters.running.diagnosis import PARALLEL_ENVIRONMENT, Finding, Level, Printed
from batch_adapters.running.rate_limiter import RateLimited
from jobmanager import render_error, render_number
from jobmanager.checks.event_source import ASK_TIME, check_event_source
from jobmanager.checks.probe import run_probe
from jobmanager.database.database import DatabaseError
from jobmanager.monitor.client import OF_ALL, OF_EVENTS, ask_running_monitor
from jobmanager.requests.attributes import BadRequest, read_site_values, suggest
from jobmanager.requests.job_types import read_job_types
from jobmanager.requests.time_limit import limited
from jobmanager.site.account import Account, find_batch_adapter, find_batch_system
from jobmanager.site.settings import Transfer
from jobmanager.views.text import printable, render_columns, render_line

_NO_ROOM = 10**7
_LITTLE_ROOM = 10**9
"""Bytes free on a disk."""
_COMMANDS = ("submit", "queue", "find", "status", "cancel", "history", "array_limit", "version", "analyze")
_MOST = 20
"""Faults of documents that are told one by one."""
_YOUNG = 3600.0
"""Seconds in which a folder may be that of a grid job that is just being accepted."""


def choose_batch_systems(account: Account, named: str | None, wants_all: bool) -> list[str]:
    """The batch systems to look at: the named one, all that there are, or the configured one.

    :raises UnknownBatchSystem: there is none of that name.
    """
    if wants_all:
        return sorted({*ADAPTERS, *account.configuration.batch})
    name = named or account.configuration.site.batch_system
    find_batch_adapter(account, name)
    return [name]


def examine(account: Account, names: Sequence[str], probe_time: float | None) -> Iterator[Finding]:
    """What is found, as it is; with a ``probe_time`` (seconds) one tiny local job is submitted to each batch system.

    Never raises: what breaks is a finding.
    """
    if account.refusal:
        yield Finding(Level.WARNING, account.refusal)
    yield from _guard(lambda: _check_folders(account))
    yield from _guard(lambda: check_database(account))
    yield from _guard(lambda: _check_monitor(account))
    yield from _guard(lambda: _check_handlers(account))
    yield from _check_notification(account)
    yield from _check_site_files(account)
    for name in names:
        for finding in _guard(functools.partial(_examine, account, name, len(names) > 1, probe_time)):
            yield replace(finding, text=f"{name}: {finding.text}")


def render_finding(finding: Finding, hint: str = "remedy: ") -> str:
    """The finding as a line, and the remedy, if there is one, indented under it and after the hint."""
    remedy = [printable(line) for line in finding.remedy.splitlines()]
    lines = [render_columns([(f"{finding.level.value:<7}", render_line(finding.text))])]
    lines += [f"{'':<9}{hint if number == 0 else ' ' * len(hint)}{line}" for number, line in enumerate(remedy)]
    return "\n".join(lines)


def _guard(look: Callable[[], Iterable[Finding]]) -> Iterator[Finding]:
    """The findings of a look; that it fails is one, too, so that the others are made nevertheless."""
    try:
        yield from look()
    except BatchError as error:
        yield Finding(Level.FAULT, str(error))
    except OSError as error:
        yield Finding(Level.FAULT, f"this check failed: {render_error(error)}")
    except Exception as error:  # noqa: BLE001 an adapter may be a site's or an experiment's
        yield Finding(Level.FAULT, f"this check failed: {type(error).__name__}: {error}")


def _check_folders(account: Account) -> Iterator[Finding]:
    yield _check_folder("state folder", account.places.root)
    if account.places.spool is not None:
        yield _check_folder("spool folder", account.places.spool)


def _check_handlers(account: Account) -> Iterator[Finding]:
    """A fault for each job type, or module, that cannot be loaded, and for what no handler takes in [type.NAME]."""
    settings = account.configuration.handlers
    with limited(settings.time_limit):
        types, faults = read_job_types(settings.modules)
    for fault in dict.fromkeys(map(str, faults.values())):
        yield Finding(
            Level.FAULT, f"a job type cannot be used: {fault}", "mend or remove its module, then samgrid types"
        )
    if not faults:
        yield Finding(Level.GOOD, f"all {render_number(len(types), 'job type')} can be loaded")
    for name, table in account.configuration.types.items():
        if name in types:
            yield from _check_site_values(types[name], table)
        elif not faults:
            text = f"[type.{name}]: there is no job type {name}{suggest(name, types)}"
            yield Finding(Level.WARNING, text, "remove the section, or name the handler's module in [handlers] modules")


def _check_site_values(handler: type[JobAdapter], table: Mapping[str, Any]) -> Iterator[Finding]:
    try:
        read_site_values(handler, table)
    except BadRequest as error:
        for fault in error.faults:
            remedy = f"what it takes into [type.{handler.jobType}]; until then requests of this type are refused"
            yield Finding(Level.FAULT, fault, remedy)


def _check_monitor(account: Account) -> Iterator[Finding]:
    """What problems a monitor that runs, such as a generator that dies again and again: no file tells."""
    answer = ask_running_monitor(account)
    if answer is None:
        return
    # What begins with the id of a grid job is told by that grid job's status.
    problems = [line.partition(": ")[2] for line in answer.splitlines() if line.startswith((OF_ALL, OF_EVENTS))]
    for problem in problems:
        yield Finding(Level.FAULT, f"its monitor says: {problem}", f"see {account.places.monitor_log}")
    if not problems:
        yield Finding(Level.GOOD, "its monitor runs, without problems of its own")


def _check_notification(account: Account) -> Iterator[Finding]:
    command = account.configuration.notification.command
    if not command:
        return
    what = f"[notification] command {command[0]}"
    if shutil.which(command[0]) is None:
        yield Finding(Level.FAULT, f"{what} is no program that this account can run", "nobody is told until it is one")
    else:
        yield Finding(Level.GOOD, f"{what} is there: samgrid notify ID tries it")


def _check_site_files(account: Account) -> Iterator[Finding]:
    """What the site gives to grid jobs, and is not there."""
    command = account.configuration.site.dataset_command
    if command and shutil.which(command[0]) is None:
        text = f"[site] dataset_command {command[0]} is no program that this account can run"
        yield Finding(Level.FAULT, text, "requests for its datasets are refused until it is one")
    for path in account.configuration.sandbox.site_files:
        if path.is_symlink() or not os.access(path, os.R_OK):
            text = f"[sandbox] site_files {path} is no file or folder that this account can read, or is a link"
            yield Finding(Level.FAULT, text, "no grid job is submitted until it is one")


def _check_folder(title: str, folder: Path) -> Finding:
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"x")
        free = shutil.disk_usage(folder).free
    except OSError as error:
        return Finding(
            Level.FAULT, f"{title} {folder} cannot be written: {error.strerror}", f"see to the disk of {folder}"
        )
    text = f"{title} {folder} can be written; {free / 1e9:.1f} GB are free"
    if free >= _LITTLE_ROOM:
        return Finding(Level.GOOD, text)
    return Finding(Level.FAULT if free < _NO_ROOM else Level.WARNING, text, f"make room on the disk of {folder}")


def check_database(account: Account) -> Iterator[Finding]:
    """The file, the documents, the columns and the folders of an account's grid jobs."""
    path = account.places.database
    if not path.exists():
        yield Finding(Level.GOOD, f"job database {path} is made with the first grid job")
        return
    # Not every sqlite3 can recover, and what could not becomes an empty file, in which nothing is found.
    remedy = (
        "samgrid repair needs a sound file. End the monitor; put a copy of yours in place of it, its -wal and -shm\n"
        f"without a copy: sqlite3 {path} .recover | sqlite3 new.db, and put new.db there, if it has them:"
        " sqlite3 new.db 'SELECT count(*) FROM grid_job'\n"
        f"else move them and {account.places.jobs} away: a new one is begun; samgrid orphans lists what runs"
    )
    try:
        faults = account.database.checking.list_file_faults()
        if not faults:
            yield from _check_documents(account)
            yield from _check_job_folders(account)
    except DatabaseError as error:
        faults = [str(error).removeprefix(f"job database {path}: ")]
    if faults:
        yield Finding(Level.FAULT, f"job database {path} is damaged: {faults[0]}", remedy)


def _check_documents(account: Account) -> Iterator[Finding]:
    faults = list(account.database.checking.list_document_faults())
    for fault in faults[:_MOST]:
        yield Finding(Level.FAULT, fault, "samgrid repair does what can be done; all other grid jobs go on")
    if len(faults) > _MOST:
        yield Finding(Level.FAULT, f"the same or the like of {len(faults) - _MOST} other documents")
    if not faults:
        count = render_number(len(account.database.grid_jobs.overview()), "grid job")
        yield Finding(Level.GOOD, f"job database {account.places.database}: {count}, all documents are valid")


def _check_job_folders(account: Account) -> Iterator[Finding]:
    folders = {folder.name for folder in account.places.jobs.glob("[a-z]" + "[a-z0-9]" * 7) if _is_old_folder(folder)}
    rows = account.database.grid_jobs.overview()
    for name in sorted(folders.difference(row.id for row in rows)):
        folder = account.places.jobs / name
        text = f"{folder} belongs to no grid job: it was never accepted, or the job database has lost it"
        remedy = f"look for outputs in it; if none are missed: rm -r {shlex.quote(str(folder))}"
        yield Finding(Level.WARNING, text, remedy)
    for row in rows:
        folder = account.places.grid_job(row.id)
        if row.counts and not folder.is_dir():
            remedy = f"bring it back from where it was moved; or samgrid cancel {row.id}, samgrid remove {row.id}"
            yield Finding(Level.FAULT, f"grid job {row.id} ({row.state}) has no folder {folder}", remedy)


def _is_old_folder(path: Path) -> bool:
    try:
        found = path.lstat()
    except FileNotFoundError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_mtime < time.time() - _YOUNG


def _examine(account: Account, name: str, one_of_many: bool, probe_time: float | None) -> Iterator[Finding]:
    try:
        system = find_batch_system(account, name)
    except Unreachable as error:
        yield Finding(Level.WARNING, str(error))
        return
    # Somebody may have mended it in the pause of an outage.
    system.limiter.hurry(time.time())
    missing = _find_missing_programs(account, system.adapter)
    if one_of_many and len(missing) == len(_commands(system.adapter)):
        yield Finding(Level.GOOD, "not here: none of its commands is on PATH")
        return
    yield _check_programs(system.adapter, missing)
    if missing:
        return
    daemon = list(_guard(lambda: _check_daemon(system)))
    yield from daemon
    yield from _guard(lambda: check_event_source(account, system))
    yield from _guard(lambda: system.adapter.diagnose(functools.partial(_ask, system), os.environ))
    yield from _check_transfer(account, system.adapter)
    if any(finding.level is Level.FAULT for finding in daemon):
        return
    yield from _guard(lambda: [_check_arrays(system)])
    yield from _guard(lambda: [_check_history(account, system)])
    if probe_time is not None:
        yield from _guard(lambda: [run_probe(account, system, probe_time)])


def _commands(adapter: BatchAdapter) -> Mapping[str, Command]:
    found = {name: getattr(adapter, name) for name in _COMMANDS}
    known = {name: command for name, command in found.items() if command is not None}
    listings = {name: command.listing for name, command in known.items() if command.listing is not None}
    return known | {f"the ids of {name}": Command(listing.argv) for name, listing in listings.items()}


def _find_missing_programs(account: Account, adapter: BatchAdapter) -> dict[str, str]:
    """By command: its program, where that is not on PATH."""
    variables = account.batch_variables()
    programs = {name: render_text(command.argv[0], variables) for name, command in _commands(adapter).items()}
    return {name: program for name, program in programs.items() if shutil.which(program) is None}


def _check_programs(adapter: BatchAdapter, missing: Mapping[str, str]) -> Finding:
    if not missing:
        return Finding(Level.GOOD, "all its commands are on PATH")
    programs = ", ".join(dict.fromkeys(missing.values()))
    if len(missing) == len(_commands(adapter)):
        text = f"none of its commands is on PATH, so grid jobs for it wait: {programs}"
    else:
        text = f"not all of its commands are on PATH: {programs} missing"
    remedy = f"install the client commands of {adapter.name} on this host, or put their folder into PATH"
    return Finding(Level.FAULT, text, remedy)


def _check_daemon(system: BatchSystem) -> Iterator[Finding]:
    remedy = "see that its daemon runs, and that this host and account may ask it; until then no local job changes"
    try:
        version = system.version()
        # Some show those that have ended for a while.
        count = sum(1 for status in system.query() if status.state is None or not status.state.is_final)
    except BatchError as error:
        yield Finding(Level.FAULT, f"does not answer as it should: {error}", remedy)
        return
    ours = render_number(count, "local job")
    yield Finding(Level.GOOD, f"answers{': ' * bool(version)}{version}; {ours} of this account in its queue")


def _check_arrays(system: BatchSystem) -> Finding:
    most = system.max_array()
    if most == 1:
        return Finding(Level.GOOD, "has no arrays: local jobs are submitted one by one")
    return Finding(Level.GOOD, f"takes arrays of up to {most:,} local jobs")


def _check_history(account: Account, system: BatchSystem) -> Finding:
    seconds = account.configuration.monitor.reconcile_interval
    try:
        has_history = system.has_history()
    except BatchError as error:
        text = f"its history does not answer, so ends that its log does not tell are known later: {error}"
        return Finding(Level.WARNING, text, "see that it keeps one (accounting), and that this account may read it")
    if has_history:
        return Finding(Level.GOOD, f"its history answers; it must keep what ended for longer than {seconds:g} s")
    return Finding(
        Level.GOOD, "has no history of ended jobs: ends are known from its events, its queue and the drivers' records"
    )


def _check_transfer(account: Account, adapter: BatchAdapter) -> Iterator[Finding]:
    folder = account.places.jobs
    if account.configuration.sandbox.transfer is Transfer.SHARED:
        yield Finding(Level.GOOD, f"its nodes must be able to write to {folder}: samgrid doctor --probe tests it")
    elif not adapter.carries_files:
        remedy = 'in samgrid.toml: [sandbox] transfer = "shared", with a spool_folder that all nodes see'
        yield Finding(Level.FAULT, "cannot carry files to local jobs and back, as [sandbox] transfer wants", remedy)
    else:
        yield Finding(Level.GOOD, "carries files to local jobs and back")


def _ask(system: BatchSystem, argv: Sequence[str]) -> Printed:
    """Runs an adapter's own question, under the account's rate limit, also where others were not answered."""
    system.limiter.hurry(time.time())
    try:
        system.limiter.acquire()
    except RateLimited as error:
        return Printed(None, "", str(error))
    environment = system.adapter.parallel_environment
    words = [environment if word == PARALLEL_ENVIRONMENT else word for word in argv]
    return run_question(words, ASK_TIME, make_environment(system.adapter.ignored_variables))
