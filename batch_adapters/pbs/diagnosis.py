"""What ``samgrid doctor`` looks at in a PBS server's settings, as ``qstat -B -f`` shows them."""

import re
from collections.abc import Iterator, Mapping

from batch_adapters.diagnosis import Ask, Finding, Level

_JOB_EVENTS = 0x0008
"""The bit of log_events for what happens to jobs (pbs_server_attributes(7B), log.h)."""
_SHORTEST_MEMORY = 600
"""Seconds for which ended jobs should be remembered: some twenty looks of the job manager."""


def diagnose_pbs(ask: Ask, environment: Mapping[str, str]) -> Iterator[Finding]:
    """OpenPBS and PBS Professional: the log, the history of ended jobs, and what becomes of a lost node's jobs."""
    del environment
    settings = _read_settings(ask)
    if not settings:
        return
    yield _diagnose_log(settings)
    yield _diagnose_history(settings)
    seconds = settings.get("node_fail_requeue", "0")
    if seconds != "0":
        yield Finding(Level.GOOD, f"jobs of a node that is lost are queued again after {seconds} s (node_fail_requeue)")


def diagnose_torque(ask: Ask, environment: Mapping[str, str]) -> Iterator[Finding]:
    """Torque: the log, and how long ended jobs stay in the queue."""
    del environment
    settings = _read_settings(ask)
    if not settings:
        return
    yield _diagnose_log(settings)
    kept = int(settings.get("keep_completed", "0"))
    text = f"ended jobs stay in the queue for {kept} s (keep_completed of the server; queues may say otherwise)"
    if kept >= _SHORTEST_MEMORY:
        yield Finding(Level.GOOD, text)
    else:
        yield Finding(Level.WARNING, text, 'qmgr -c "set server keep_completed = 3600"')


def _read_settings(ask: Ask) -> dict[str, str]:
    printed = ask(["qstat", "-B", "-f"])
    return dict(re.findall(r"^ {4}(\w+) = (.*)$", printed.stdout, re.MULTILINE)) if printed.exit_code == 0 else {}


def _diagnose_log(settings: Mapping[str, str]) -> Finding:
    remedy = 'qmgr -c "set server log_events = 511"'
    mask = settings.get("log_events", "")
    if not mask.isdigit():
        return Finding(Level.WARNING, "the server does not say what it logs (log_events)", remedy)
    if not int(mask) & _JOB_EVENTS:
        return Finding(Level.FAULT, f"the server does not log what happens to jobs: log_events = {mask}", remedy)
    return Finding(Level.GOOD, f"the server logs what happens to jobs (log_events = {mask})")


def _diagnose_history(settings: Mapping[str, str]) -> Finding:
    if settings.get("job_history_enable") != "True":
        return Finding(
            Level.WARNING,
            "the server forgets jobs when they end (job_history_enable): of an end that is not in the log, only the"
            " driver's record remains",
            'qmgr -c "set server job_history_enable = True"',
        )
    # Where it is not shown, it is two weeks.
    duration = settings.get("job_history_duration", "336:00:00")
    hours, minutes, seconds = ([0, 0, 0] + [int(part) for part in re.findall(r"\d+", duration)])[-3:]
    text = f"the server remembers ended jobs for {duration} (job_history_duration)"
    if hours * 3600 + minutes * 60 + seconds >= _SHORTEST_MEMORY:
        return Finding(Level.GOOD, text)
    return Finding(Level.WARNING, text, 'qmgr -c "set server job_history_duration = 24:00:00"')
