"""Checks of ``samgrid doctor`` on a PBS server's settings, as ``qstat -B -f`` shows them."""

import re
from collections.abc import Iterator, Mapping

from batch_adapters.diagnosis import SHORTEST_MEMORY, Ask, Finding, Level, judge, read_number, read_seconds

_JOB_EVENTS = 0x0008
"""The bit of log_events for events of jobs (pbs_server_attributes(7B), log.h)."""


def diagnose_pbs(ask: Ask, environment: Mapping[str, str]) -> Iterator[Finding]:
    """OpenPBS and PBS Professional: log, history, scheduling, default queue, and requeueing of a lost node's jobs."""
    del environment
    settings = _read_settings(ask, "-B")
    if not settings:
        return
    yield _diagnose_log(settings)
    yield _diagnose_history(settings)
    if settings.get("scheduling") == "False":
        yield Finding(Level.FAULT, "the server starts no jobs (scheduling)", _set("server scheduling = True"))
    name = settings.get("default_queue", "")
    queue = _read_settings(ask, "-Q", name) if name else {}
    for switch, fault in (("enabled", "takes no jobs"), ("started", "starts no jobs")):
        if queue.get(switch) == "False":
            text = f"its default queue {name} {fault} ({switch})"
            yield Finding(Level.FAULT, text, _set(f"queue {name} {switch} = True"))
    seconds = settings.get("node_fail_requeue", "0")
    if seconds != "0":
        yield Finding(Level.GOOD, f"jobs of a node that is lost are queued again after {seconds} s (node_fail_requeue)")


def diagnose_torque(ask: Ask, environment: Mapping[str, str]) -> Iterator[Finding]:
    """Torque: the log, and how long ended jobs stay in the queue."""
    del environment
    if settings := _read_settings(ask, "-B"):
        yield _diagnose_log(settings)
        kept = read_number(settings.get("keep_completed", "0"))
        text = f"ended jobs stay in the queue for {kept} s (keep_completed of the server; queues may say otherwise)"
        yield judge(kept >= SHORTEST_MEMORY, text, _set("server keep_completed = 3600"))


def _read_settings(ask: Ask, *what: str) -> dict[str, str]:
    printed = ask(["qstat", "-f", *what])
    return dict(re.findall(r"^ {4}(\w+) = (.*)$", printed.stdout, re.MULTILINE)) if printed.exit_code == 0 else {}


def _set(what: str) -> str:
    return f'qmgr -c "set {what}"'


def _diagnose_log(settings: Mapping[str, str]) -> Finding:
    remedy = _set("server log_events = 511")
    mask = settings.get("log_events", "")
    if not re.fullmatch(r"\d{1,18}", mask, re.ASCII):
        return Finding(Level.WARNING, "the server does not say what it logs (log_events)", remedy)
    return judge(
        bool(int(mask) & _JOB_EVENTS),
        f"the server logs what happens to jobs (log_events = {mask})",
        remedy,
        f"the server does not log what happens to jobs: log_events = {mask}",
        Level.FAULT,
    )


def _diagnose_history(settings: Mapping[str, str]) -> Finding:
    if settings.get("job_history_enable") != "True":
        return Finding(
            Level.WARNING,
            "the server forgets jobs when they end (job_history_enable): of an end that is not in the log, only the"
            " driver's record remains",
            _set("server job_history_enable = True"),
        )
    # The default, two weeks, is not shown.
    duration = settings.get("job_history_duration", "336:00:00")
    text = f"the server remembers ended jobs for {duration} (job_history_duration)"
    return judge(read_seconds(duration) >= SHORTEST_MEMORY, text, _set("server job_history_duration = 24:00:00"))
