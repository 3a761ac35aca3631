"""How many local jobs a grid job becomes, and which events each of them makes."""

from dataclasses import dataclass

HIGHEST_SEED = 900_000_000
"""Pythia 8 takes seeds from 1 to this number; other generators take at least as many."""


@dataclass(frozen=True)
class Limits:
    """What the site says of one local job; CPU times in seconds, 0 where the site says nothing."""

    events_per_local_job: int = 250
    recommended_cpu_time: float = 0
    max_cpu_time: float = 0
    max_local_jobs: int = 100_000


@dataclass(frozen=True)
class Slice:
    """The part of a grid job's events that one local job makes; events are numbered from 1."""

    first_event: int
    events: int
    seed: int


class TooLarge(ValueError):
    """The grid job cannot be cut so that the site would take it."""


def count_local_jobs(events: int, cpu_per_event: float, events_per_local_job: int, limits: Limits) -> int:
    """The number of local jobs for so many events, from the first of these that is known.

    The request's own events per local job; its CPU seconds per event against the site's recommended,
    else maximum, CPU time; the site's rule of thumb. The maximum CPU time binds in every case.

    :raises TooLarge: naming the limit and the way out.
    """
    share = events_per_local_job or _recommended_share(cpu_per_event, limits)
    if cpu_per_event and limits.max_cpu_time:
        share = min(share, int(limits.max_cpu_time // cpu_per_event))
        if share < 1:
            raise TooLarge(
                f"one event takes {cpu_per_event:g} s of CPU, but a local job may take {limits.max_cpu_time:g} s here"
            )
    count = -(-events // share)
    if count > limits.max_local_jobs:
        raise TooLarge(
            f"{events} events at {share} a local job make {count} local jobs, but this site takes at most "
            f"{limits.max_local_jobs}: ask for fewer events or for more events a local job"
        )
    return count


def _recommended_share(cpu_per_event: float, limits: Limits) -> int:
    cpu_time = limits.recommended_cpu_time or limits.max_cpu_time
    if cpu_per_event and cpu_time:
        return max(1, int(cpu_time // cpu_per_event))
    return limits.events_per_local_job


def cut_slice(index: int, count: int, events: int, seed: int) -> Slice:
    """Slice number ``index`` (from 1) of ``count``: together they hold each event once, sizes differ by at most 1."""
    before = (index - 1) * events // count
    behind = index * events // count
    return Slice(before + 1, behind - before, (seed + index - 2) % HIGHEST_SEED + 1)
