"""Who ended local jobs in the batch system, where its history does not say: its log's own words."""

import logging
import os
from collections.abc import Container, Mapping
from pathlib import Path

from batch_adapters.generator.module import LogModule, LogNotKnown
from batch_adapters.registry import find_event_module
from jobmanager.site.account import Account, find_batch_system
from jobmanager.site.settings import EventSource

logger = logging.getLogger(__name__)

_EARLIER = 86_400
"""Seconds: the log's local times may be of another zone than ours."""


def find_deletions(account: Account, batch: str, ids: Container[str], since: int) -> Mapping[str, str]:
    """Which of these jobs and arrays somebody deleted since then, and who; nothing where we do not read the log."""
    settings = account.configuration.find_events(batch)
    system = find_batch_system(account, batch)
    if settings.source is not EventSource.LOG or settings.prefix or not system.adapter.event_module:
        return {}
    module = find_event_module(system.adapter.event_module)
    if not isinstance(module, LogModule):
        return {}
    configured = settings.path or system.event_log
    try:
        log = Path(configured) if configured else module.find_log(os.environ)
        return module.find_deletions(log, ids, since - _EARLIER)
    except (LogNotKnown, OSError) as error:
        logger.info("%s: its log does not say who deleted local jobs: %s", batch, error)
        return {}
