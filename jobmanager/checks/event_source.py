"""Checks where events come from: is the log there, or what stands for it, and may this account read it?"""

import os
import shlex
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from batch_adapters.generator.module import LogModule, LogNotKnown, find_log_zone, find_source
from batch_adapters.generator.process import is_held
from batch_adapters.launch import command_line
from batch_adapters.registry import UnknownEventModule, find_event_module
from batch_adapters.running.batch_system import BatchSystem
from batch_adapters.running.commands import run_question
from batch_adapters.running.diagnosis import Finding, Level
from jobmanager import render_error
from jobmanager.site.account import Account
from jobmanager.site.settings import EventSource

ASK_TIME = 20.0
"""Seconds that a question of the doctor's to another program may take."""
_OTHER_SOURCES = """\
have root run a generator for all accounts (docs/event-files.md), and in samgrid.toml:
[events]
source = "day-files"
path = "/var/lib/samgrid/events/{name}"
or, where that cannot be: source = "poll\""""


def check_event_source(account: Account, system: BatchSystem) -> Iterator[Finding]:
    """What is found of it, and what to do about a fault."""
    settings = account.configuration.find_events(system.adapter.name)
    interval = account.configuration.monitor.reconcile_interval
    if settings.source is EventSource.DAY_FILES:
        yield _check_day_files(system.adapter.name, settings.path)
    elif settings.source is EventSource.POLL or not system.adapter.event_module:
        yield Finding(Level.GOOD, f"no log is read: its queue is asked every {interval:g} s")
    else:
        yield _check_log(account, system)


def _check_log(account: Account, system: BatchSystem) -> Finding:
    name = system.adapter.name
    remedy = _OTHER_SOURCES.format(name=name)
    try:
        module = find_event_module(system.adapter.event_module)
    except UnknownEventModule as error:
        return Finding(Level.FAULT, str(error), f"in samgrid.toml: [batch.{name}] event_module must be one of these")
    if not isinstance(module, LogModule):
        return Finding(Level.GOOD, f"its events come from the generator module {system.adapter.event_module}")
    settings = account.configuration.find_events(name)
    configured = settings.path or system.event_log
    if settings.prefix:
        return _run_generator(settings.prefix, system.adapter.event_module, configured)
    try:
        log = Path(configured) if configured else module.find_log(os.environ)
        source = find_source(module, log)
        newest = next((path for path in source.newest_first() if os.path.lexists(path)), None)
        finding = _judge_log(log, newest, account.places.root, remedy)
        zone = find_log_zone(module, source)
        words = f"; its times are of another zone than ours, {zone} (POSIX TZ), and are read so" if zone else ""
        return replace(finding, text=f"{finding.text}{words}")
    except (LogNotKnown, OSError) as error:
        hint = f'in samgrid.toml: [events] path = "/path/of/the/log"; or {remedy}'
        return Finding(Level.FAULT, f"its log cannot be found: {render_error(error)}", hint)


def _run_generator(prefix: Sequence[str], module: str, log: Path | str) -> Finding:
    """What becomes of a generator that another account runs: its input ends at once, and so does it, if all is well."""
    where = ("-l", str(log)) if log else ()
    program = command_line("samgrid-scheduler-event-generator", "-s", module, *where)
    printed = run_question([*prefix, *program], ASK_TIME)
    through = " ".join(prefix)
    if printed.exit_code == 0:
        return Finding(Level.GOOD, f"its log can be read through {through}")
    words = printed.stderr.strip() or f"exit code {printed.exit_code}"
    hint = f"what it must be let run (docs/event-files.md, Under another account): {shlex.join(program)}"
    return Finding(Level.FAULT, f"its log cannot be read through {through}: {words}", hint)


def _judge_log(log: Path, newest: Path | None, own: Path, remedy: str) -> Finding:
    if newest is None and log.is_relative_to(own):
        return Finding(Level.GOOD, f"its log {log} comes with the first local job")
    folder = log if log.is_dir() else log.parent
    hint = f'if it is elsewhere, in samgrid.toml: [events] path = "..."; else {remedy}'
    if newest is None and _is_missing(folder):
        return Finding(Level.FAULT, f"its log {log} cannot be there: there is no folder {folder} on this host", hint)
    if newest is None and os.access(folder, os.R_OK | os.X_OK):
        return Finding(Level.WARNING, f"its log {log} is not there (yet)", hint)
    if newest is None or not os.access(newest, os.R_OK):
        return Finding(Level.FAULT, f"its log {newest or log} cannot be read by this account", remedy)
    age = max(0.0, time.time() - newest.stat().st_mtime)
    return Finding(Level.GOOD, f"its log {newest} can be read; the last line is {age:.0f} s old")


def _is_missing(folder: Path) -> bool:
    """True where it is not there for certain: what lies in a closed folder, nobody knows."""
    try:
        folder.stat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return False


def _check_day_files(name: str, folder: Path | None) -> Finding:
    service = f"samgrid-scheduler-event-generator@{name}"
    if folder is None or not folder.is_dir():
        remedy = f'in samgrid.toml: [events] path = "/var/lib/samgrid/events/{name}" (docs/event-files.md)'
        return Finding(Level.FAULT, f"[events] path, {folder}, is no folder of day files", remedy)
    today = folder / time.strftime("%Y%m%d", time.gmtime())
    if not os.access(folder, os.R_OK | os.X_OK) or (today.exists() and not os.access(today, os.R_OK)):
        return Finding(
            Level.FAULT, f"the day files in {folder} cannot be read by this account", f"chmod -R a+rX {folder}"
        )
    if not today.exists():
        return Finding(
            Level.FAULT,
            f"{folder} has no file for today (UTC), {today.name}: the generator that fills it does not run",
            f"systemctl enable --now {service}; journalctl -u {service}",
        )
    if is_held(folder) is False:
        return Finding(
            Level.WARNING,
            f"the day files in {folder} go on until today, but no generator of ours on this host writes there now",
            f"systemctl restart {service}; journalctl -u {service}; where another host or program writes, look there",
        )
    return Finding(Level.GOOD, f"the day files in {folder} go on until today")
