"""Can the events of a batch system be had as the configuration says? The part of ``samgrid doctor`` about logs."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

from batch_adapters.diagnosis import Finding, Level
from batch_adapters.generator.module import LogModule, LogNotKnown, find_source
from batch_adapters.generator.registry import UnknownModule, find_module
from batch_adapters.running.batch_system import BatchSystem
from jobmanager.site.account import Account
from jobmanager.site.settings import EventSource

_OTHER_SOURCES = """\
have root run a generator for all accounts (docs/event-files.md), and in samgrid.toml:
[events]
source = "day-files"
path = "/var/lib/samgrid/events/{name}"
or, where that cannot be: source = "poll\""""


def look_at_event_source(account: Account, system: BatchSystem) -> Iterator[Finding]:
    """Is the log, or what stands for it, there, and may this account read it?"""
    settings = account.configuration.events
    interval = account.configuration.monitor.reconcile_interval
    if settings.source is EventSource.DAY_FILES:
        yield _look_at_day_files(system.adapter.name, settings.path)
    elif settings.source is EventSource.POLL or not system.adapter.event_module:
        yield Finding(Level.GOOD, f"no log is read: its queue is asked every {interval:g} s")
    else:
        yield _look_at_log(account, system)


def _look_at_log(account: Account, system: BatchSystem) -> Finding:
    name = system.adapter.name
    remedy = _OTHER_SOURCES.format(name=name)
    try:
        module = find_module(system.adapter.event_module)
    except UnknownModule as error:
        return Finding(Level.FAULT, str(error), f"in samgrid.toml: [batch.{name}] event_module must be one of these")
    if not isinstance(module, LogModule):
        return Finding(Level.GOOD, f"its events come from the generator module {system.adapter.event_module}")
    configured = account.configuration.events.path or system.event_log
    try:
        log = Path(configured) if configured else module.find_log(os.environ)
        newest = next((path for path in find_source(module, log).newest_first() if os.path.lexists(path)), None)
        return _judge_log(log, newest, account.places.root, remedy)
    except (LogNotKnown, OSError) as error:
        hint = f'in samgrid.toml: [events] path = "/path/of/the/log"; or {remedy}'
        return Finding(Level.FAULT, f"its log cannot be found: {error}", hint)


def _judge_log(log: Path, newest: Path | None, own: Path, remedy: str) -> Finding:
    if newest is None and log.is_relative_to(own):
        return Finding(Level.GOOD, f"its log {log} comes with the first local job")
    if newest is None and os.access(log if log.is_dir() else log.parent, os.R_OK | os.X_OK):
        hint = f'if it is elsewhere, in samgrid.toml: [events] path = "..."; else {remedy}'
        return Finding(Level.WARNING, f"its log {log} is not there (yet)", hint)
    if newest is None or not os.access(newest, os.R_OK):
        return Finding(Level.FAULT, f"its log {newest or log} cannot be read by this account", remedy)
    age = max(0.0, time.time() - newest.stat().st_mtime)
    return Finding(Level.GOOD, f"its log {newest} can be read; the last line is {age:.0f} s old")


def _look_at_day_files(name: str, folder: Path | None) -> Finding:
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
    return Finding(Level.GOOD, f"the day files in {folder} go on until today")
