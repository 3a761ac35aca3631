"""What an attempt at a local job is given: more memory or time than the one before, where that may have lacked it."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from batch_adapters.states import Cause
from jobmanager.database.local_job import LocalJob

# A program that gets no memory may end with any exit code, and a batch system may kill it without a word.
_MAY_LACK_MEMORY = (Cause.MEMORY_LIMIT, Cause.SIGNAL, Cause.EXIT_CODE)
_MAY_LACK_TIME = (Cause.TIME_LIMIT, Cause.CPU_LIMIT, Cause.SIGNAL)
_MOST = 10_000_000
"""Minutes that a request may ask for, and more MB than any host has."""
_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*", re.ASCII)


@dataclass(frozen=True)
class Needs:
    """What the local jobs of one array have in common; 0: no limit is asked for."""

    is_retry: bool
    memory_mb: int
    cpu_minutes: int
    wall_minutes: int
    excluded_host: str
    """First part of the name of the host that the attempt before ran on; empty where that may do it again."""


def find_needs(job: LocalJob, request: Mapping[str, Any]) -> Needs:
    """What the present attempt is given, by the request and by how the ones before ended."""
    past = job.earlier_attempts()
    causes = [attempt.cause for attempt in past]
    memory_growth = request["retry_memory_factor"] ** sum(cause in _MAY_LACK_MEMORY for cause in causes)
    time_growth = request["retry_time_factor"] ** sum(cause in _MAY_LACK_TIME for cause in causes)
    host = _HOST.match(past[-1].host or "") if past and request["retry_elsewhere"] else None
    return Needs(
        is_retry=bool(past),
        memory_mb=_grow(request["max_memory"], memory_growth),
        cpu_minutes=_grow(request["max_cpu_time"], time_growth),
        wall_minutes=_grow(request["max_wall_time"], time_growth),
        excluded_host=host[0] if host else "",
    )


def _grow(limit: int | None, growth: float) -> int:
    return max(limit or 0, math.ceil(min((limit or 0) * growth, _MOST)))
