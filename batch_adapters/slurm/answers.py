"""Reads what Slurm's programs print: local jobs, and the configuration (for ``samgrid doctor``)."""

import re
from collections.abc import Iterator, Mapping, Sequence

from batch_adapters.adapter import Garbled, Job, read_range
from batch_adapters.naming import find_token
from batch_adapters.running.diagnosis import Ask, Finding, Level, judge, read_number
from batch_adapters.states import Cause

# squeue escapes neither path nor name, which may have line breaks and even look like records: each ends with its id.
_QUEUED = re.compile(
    r"(?P<id>\d+(?:_\d+)?)\|(?P<state>[A-Z_]+)\|(?:(?P<wait>\d+)|(?P<exit>\d+):(?P<signal>\d+))"
    r"\|(?P<reason>[^|\n]*)\|(?P<path_name>.*?)\|(?P=id)\n",
    re.DOTALL,
)
# Tasks that never started are one record: 422_[1,3-9,12-18:2%4]; "CANCELLED by 1001".
_ENDED = re.compile(
    r"(?P<id>\d+)(?:_(?P<task>\d+)|_\[(?P<tasks>[^\]\n]*)\])?\|(?P<state>[A-Z_]+)(?: by (?P<by>\d+))?"
    r"\|(?P<exit>\d+):(?P<signal>\d+)\n"
)
NEVER_STARTED = "FAILED to start"
"""The native state of jobs that Slurm calls FAILED although they never ran a program."""
LAUNCH_FAILURE = 53
"""The signal that Slurm reports if the program never ran, for example because its output could not be opened."""
_ENDED_ITSELF = re.compile(r"None|NonZeroExitCode|JobLaunchFailure|RaisedSignal.*")
"""Reasons of a job whose program ended; 22.05 says JobLaunchFailure for a signal, too."""


def read_jobs(printed: str) -> Iterator[Job]:
    """The jobs in squeue's ``JobArrayID:|,State:|,exit_code:|,Reason:|,StdOut:|,Name:|,JobArrayID:``.

    :raises Garbled: there is anything before, between or after the records, or the last one is torn.
    """
    for match in _read_records(_QUEUED, printed):
        # One number, as of wait(2), or two, as from Slurm 23.02 on.
        wait = int(match["wait"] or 0)
        status, signal = int(match["exit"] or wait >> 8), int(match["signal"] or wait & 0x7F)
        ended_itself = _ENDED_ITSELF.fullmatch(match["reason"]) is not None
        state, exit_code, cause = _read_end(match["state"], status, signal, ended_itself)
        reason = "" if match["reason"] == "None" else match["reason"]
        token = find_token(match["path_name"]) or match["path_name"].rpartition("|")[2]
        yield Job(match["id"], state, exit_code, reason, token, cause=cause)


def read_history(printed: str) -> Iterator[Job]:
    """The jobs in sacct's ``JobID,State,ExitCode``, also those that wait or run.

    :raises Garbled: as `read_jobs` does.
    """
    for match in _read_records(_ENDED, printed):
        state, exit_code, cause = _read_end(match["state"], int(match["exit"]), int(match["signal"]))
        for local_id in _read_ids(match):
            yield Job(local_id, state, exit_code, cause=cause, by=match["by"] or "")


def _read_records(pattern: re.Pattern[str], printed: str) -> Iterator[re.Match[str]]:
    position = 0
    while position < len(printed):
        match = pattern.match(printed, position)
        if match is None:
            raise Garbled(f"what was not expected: {printed[position : position + 200]!r}")
        yield match
        position = match.end()


def _read_end(state: str, status: int, signal: int, ended_itself: bool = True) -> tuple[str, int | None, Cause | None]:
    """Native state, exit code and cause; the code is the program's only if it is COMPLETED or FAILED."""
    if state == "COMPLETED":
        return state, status, None
    if state != "FAILED":
        return state, None, None
    if signal == LAUNCH_FAILURE or not ended_itself:
        return NEVER_STARTED, None, None
    return (state, 128 + signal, Cause.SIGNAL) if signal else (state, status, None)


def _read_ids(match: re.Match[str]) -> Iterator[str]:
    if match["tasks"] is None:
        yield match["id"] if match["task"] is None else f"{match['id']}_{match['task']}"
        return
    for part in match["tasks"].partition("%")[0].split(","):
        # A long expression is cut short, and ends in dots: the rest is not in the answer.
        if re.fullmatch(r"[\d:-]+", part):
            yield from (f"{match['id']}_{task}" for task in read_range(part))


RECONCILE_INTERVAL = 30
"""Seconds between two queries of the queue; slurm.conf's MinJobAge must be some times longer."""
_APPLY = "in slurm.conf, then: scontrol reconfigure"
_QUIET = ("quiet", "fatal", "error")


def diagnose(ask: Ask, environment: Mapping[str, str]) -> Iterator[Finding]:
    """Check the controller's configuration (slurm.conf(5)); nothing if it does not answer."""
    del environment
    settings = read_settings(ask(["scontrol", "show", "config"]).stdout)
    if not settings:
        return
    yield from _diagnose_log(settings)
    yield from _diagnose_history(settings)
    yield from _diagnose_requeueing(settings)
    nodes = ask(["sinfo", "--noheader", "--format=%P|%a|%t|%d"])
    if nodes.exit_code == 0 and (found := [*_NODES.finditer(nodes.stdout)]):
        yield from _diagnose_nodes(found)
        yield _judge_disks(found)


def read_settings(printed: str) -> dict[str, str]:
    """The settings that ``scontrol show config`` prints, without those that are not set."""
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
    level = settings.get("SlurmctldDebug")
    text = f"{log} tells of the starts and ends of jobs: SlurmctldDebug is {level}"
    bad = f"{log} tells nothing of jobs: SlurmctldDebug is {level}"
    yield judge(level not in _QUIET, text, f"SlurmctldDebug=info {_APPLY}", bad, Level.FAULT)
    yield _diagnose_time_format(settings.get("LogTimeFormat", ""))


def _diagnose_time_format(time_format: str) -> Finding:
    remedy = f"LogTimeFormat=rfc5424_ms {_APPLY}"
    # Some versions add a second word: "iso8601_ms,format_stderr".
    name = time_format.partition(",")[0]
    if name == "clock":
        return Finding(Level.FAULT, "the log's times have no date: LogTimeFormat is clock", remedy)
    text = f"the log's times have an offset from UTC: LogTimeFormat is {name}"
    bad = f"the log's times are ambiguous when summer time ends: LogTimeFormat is {name}"
    return judge(name.startswith("rfc"), text, remedy, bad)


def _diagnose_history(settings: Mapping[str, str]) -> Iterator[Finding]:
    if settings.get("AccountingStorageType") == "accounting_storage/slurmdbd":
        yield Finding(Level.GOOD, "ends are known for long after: slurmdbd keeps them")
        return
    # "300 sec"
    age = read_number(settings.get("MinJobAge", "").partition(" ")[0])
    text = (
        f"nothing but the queue tells how local jobs ended, for {age} s: there is no slurmdbd, and MinJobAge is {age}"
    )
    if age < 4 * RECONCILE_INTERVAL:
        yield Finding(Level.FAULT, text, f"MinJobAge=300 (the default) {_APPLY}")
    else:
        yield Finding(Level.WARNING, text, "AccountingStorageType=accounting_storage/slurmdbd in slurm.conf")


def _diagnose_requeueing(settings: Mapping[str, str]) -> Iterator[Finding]:
    yield judge(
        settings.get("JobRequeue") == "1",
        "local jobs of a node that fails run again, under their ids: JobRequeue is 1",
        'options = ["--requeue"] in the table [batch.slurm] of samgrid.toml',
        "local jobs of a node that fails are lost: JobRequeue is 0",
    )
    for name, effect in (("RequeueExit", "runs again"), ("RequeueExitHold", "waits, held, to run again")):
        if name in settings:
            text = f"a local job whose program ends with exit code {settings[name]} {effect}: {name}"
            yield Finding(Level.WARNING, text, 'options = ["--no-requeue"] in the table [batch.slurm] of samgrid.toml')


# One line for equal nodes of a partition. The default partition has an asterisk, as have the states of nodes that do
# not answer; a disk (MB) has a plus if some nodes have more.
_NODES = re.compile(
    r"^(?P<partition>[^|\n]+?)(?P<default>\*?)\|(?P<open>\w+)\|(?P<state>[^|\n]+)\|(?P<disk>\d+)\+?$",
    re.MULTILINE | re.ASCII,
)
_USELESS = re.compile(r"(?:down|drain|drng|fail|maint|inval|unk|n/a).*|.*\*")


def _diagnose_nodes(nodes: Sequence[re.Match[str]]) -> Iterator[Finding]:
    """Check that local jobs can be started at all."""
    closed = dict.fromkeys(f"{one['partition']} is {one['open']}" for one in nodes if one["open"] != "up")
    remedy = "scontrol update PartitionName=NAME State=UP, by an administrator"
    if all(one["open"] != "up" for one in nodes):
        yield Finding(Level.FAULT, f"no partition starts local jobs: {', '.join(closed)}", remedy)
    elif all(_USELESS.fullmatch(one["state"]) for one in nodes if one["open"] == "up"):
        text = "no node can start local jobs: all are down, drained or do not answer"
        yield Finding(
            Level.FAULT, text, "sinfo -R; then scontrol update NodeName=NAME State=RESUME, by an administrator"
        )
    elif any(one["default"] and one["open"] != "up" for one in nodes):
        text = f"local jobs without a queue are not started, as the default partition is closed: {', '.join(closed)}"
        yield Finding(Level.WARNING, text, remedy)


def _judge_disks(nodes: Sequence[re.Match[str]]) -> Finding:
    """Whether requests can have ``max_disk``."""
    largest = max(read_number(one["disk"]) for one in nodes)
    text = f"local jobs may have max_disk up to {largest} MB: TmpDisk of the largest nodes"
    bad = "requests with max_disk are refused: no node has a temporary disk, TmpDisk is 0"
    return judge(largest > 0, text, f"TmpDisk=MEGABYTES behind the NodeName of each node {_APPLY}", bad)
