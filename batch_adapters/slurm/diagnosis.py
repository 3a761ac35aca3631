"""What ``samgrid doctor`` looks at in Slurm's configuration: whether its log tells all, and how long ends are known."""

import re
from collections.abc import Iterator, Mapping

from batch_adapters.diagnosis import Ask, Finding, Level

RECONCILE_INTERVAL = 30
"""Seconds between two looks at the queue (slurm.conf's MinJobAge has to outlast a few)."""
_APPLY = "in slurm.conf, then: scontrol reconfigure"
_QUIET = ("quiet", "fatal", "error")


def diagnose(ask: Ask, environment: Mapping[str, str]) -> Iterator[Finding]:
    """What the controller says of its configuration (slurm.conf(5)); nothing where it does not answer."""
    del environment
    answer = ask(["scontrol", "show", "config"])
    if answer.exit_code != 0:
        return
    settings = read_settings(answer.stdout)
    yield from _diagnose_log(settings)
    yield from _diagnose_history(settings)
    yield from _diagnose_requeueing(settings)


def read_settings(printed: str) -> dict[str, str]:
    """The settings that ``scontrol show config`` prints; those that are not set are left out."""
    found = re.findall(r"^(\w+)\s+= (.*?)\s*$", printed, re.MULTILINE)
    return {name: value for name, value in found if value != "(null)"}


def _diagnose_log(settings: Mapping[str, str]) -> Iterator[Finding]:
    log = settings.get("SlurmctldLogFile")
    if log is None:
        text = "slurmctld writes no log file, so that no event can be read"
        if settings.get("JobCompType") == "jobcomp/filetxt":
            text += f"; of ends alone, {settings.get('JobCompLoc')} tells (event_log)"
        yield Finding(Level.FAULT, text, f"SlurmctldLogFile=/var/log/slurm/slurmctld.log {_APPLY}")
        return
    if (level := settings.get("SlurmctldDebug")) in _QUIET:
        text = f"{log} tells nothing of jobs: SlurmctldDebug is {level}"
        yield Finding(Level.FAULT, text, f"SlurmctldDebug=info {_APPLY}")
    else:
        yield Finding(Level.GOOD, f"{log} tells of the starts and ends of jobs: SlurmctldDebug is {level}")
    yield _diagnose_time_format(settings.get("LogTimeFormat", ""))


def _diagnose_time_format(time_format: str) -> Finding:
    remedy = f"LogTimeFormat=rfc5424_ms {_APPLY}"
    # Some versions add to its name: "iso8601_ms,format_stderr".
    name = time_format.partition(",")[0]
    if name == "clock":
        return Finding(Level.FAULT, "the log's times have no date: LogTimeFormat is clock", remedy)
    if name.startswith("rfc"):
        return Finding(Level.GOOD, f"the log's times have an offset from UTC: LogTimeFormat is {name}")
    text = f"the log's times are ambiguous when summer time ends: LogTimeFormat is {name}"
    return Finding(Level.WARNING, text, remedy)


def _diagnose_history(settings: Mapping[str, str]) -> Iterator[Finding]:
    if settings.get("AccountingStorageType") == "accounting_storage/slurmdbd":
        yield Finding(Level.GOOD, "ends are known for long after: slurmdbd keeps them")
        return
    age = _read_seconds(settings.get("MinJobAge", ""))
    text = (
        f"nothing but the queue tells how local jobs ended, for {age} s: there is no slurmdbd, and MinJobAge is {age}"
    )
    if age < 4 * RECONCILE_INTERVAL:
        yield Finding(Level.FAULT, text, f"MinJobAge=300 (the default) {_APPLY}")
    else:
        yield Finding(Level.WARNING, text, "AccountingStorageType=accounting_storage/slurmdbd in slurm.conf")


def _diagnose_requeueing(settings: Mapping[str, str]) -> Iterator[Finding]:
    if settings.get("JobRequeue") == "1":
        yield Finding(Level.GOOD, "local jobs of a node that fails run again, under their ids: JobRequeue is 1")
    else:
        text = "local jobs of a node that fails are lost: JobRequeue is 0"
        yield Finding(Level.WARNING, text, 'options = ["--requeue"] in the table [batch.slurm] of samgrid.toml')
    for name, effect in (("RequeueExit", "runs again"), ("RequeueExitHold", "waits, held, to run again")):
        if name in settings:
            text = f"a local job whose program ends with exit code {settings[name]} {effect}: {name}"
            yield Finding(Level.WARNING, text, 'options = ["--no-requeue"] in the table [batch.slurm] of samgrid.toml')


def _read_seconds(value: str) -> int:
    """``300 sec`` → 300."""
    number = value.partition(" ")[0]
    return int(number) if number.isdigit() else 0
