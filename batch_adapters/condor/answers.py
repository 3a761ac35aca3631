"""Reads what HTCondor's programs print: ClassAds as JSON, and the configuration (for ``samgrid doctor``)."""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from batch_adapters.adapter import Job
from batch_adapters.running.diagnosis import Ask, Finding, Level, judge, read_number
from batch_adapters.states import Cause

_WORDS = "IDLE RUNNING REMOVED COMPLETED HELD TRANSFERRING_OUTPUT SUSPENDED FAILED BLOCKED"
_NAMES = dict(enumerate(_WORDS.split(), 1))
_HELD = {
    # ATTR_HOLD_REASON_CODE, "Job ClassAd Attributes": the program, its files or its folder were not there.
    **dict.fromkeys((6, 7, 8, 14), Cause.NEVER_STARTED),
    34: Cause.MEMORY_LIMIT,
    46: Cause.TIME_LIMIT,
    47: Cause.TIME_LIMIT,
}
_LIMITS = (Cause.MEMORY_LIMIT, Cause.TIME_LIMIT)
# WANT_HOLD of the host, and the subcode of HTCondor's own policy HOLD_IF_MEMORY_EXCEEDED.
_HELD_FOR_MEMORY = (21, 102)
# condor_rm appends this to whatever reason people give.
_REMOVED_BY = re.compile(r".*\(by user ([^\s()@]+)[^\s()]*\)", re.DOTALL)
# The wall time limit, as our submit description spells it; an administrator may have put in another expression.
REMOVED_ITSELF = (
    "The job attribute PeriodicRemove expression '(JobStatus == 2 && time() - JobCurrentStartExecutingDate "
)


def read_history(printed: str) -> list[Job]:
    """The jobs in an answer; an empty output means none.

    :raises ValueError, TypeError, LookupError: it is not a list of ClassAds with id and status.
    """
    import json  # imported late: the event generator loads this package, but needs no json

    return [_read_ad(ad) for ad in json.loads(printed or "[]")]


def read_queue(printed: str) -> Iterator[Job]:
    """As `read_history`; removed jobs that are still in the queue are being removed.

    An ad without a process is that of a cluster with late materialization: its last jobs are not in the queue yet.

    :raises ValueError, TypeError, LookupError: as there.
    """
    import json

    for ad in json.loads(printed or "[]"):
        if "ProcId" not in ad:
            yield from _read_factory(ad)
            continue
        job = _read_ad(ad)
        yield replace(job, native_state="REMOVING") if job.native_state == "REMOVED" else job


def _read_factory(ad: Mapping[str, Any]) -> Iterator[Job]:
    """The jobs that are not materialized yet; whoever holds the cluster keeps them from it."""
    why = str(ad.get("JobMaterializePauseReason") or "")
    for proc in range(int(ad["JobMaterializeNextProcId"]), int(ad.get("TotalSubmitProcs", 0))):
        yield Job(
            f"{int(ad['ClusterId'])}.{proc}",
            "HELD" if ad.get("JobMaterializePaused") == 1 else "IDLE",
            reason=f"not materialized: {why}" if why else "not materialized yet",
            token=str(ad.get("SamgridToken") or ""),
        )


def _read_ad(ad: dict[str, Any]) -> Job:
    status = int(ad["JobStatus"])
    code = ad.get("ExitCode")
    # What was held at a limit had ended there, whoever removed it later.
    was_held = status == 3 and ad.get("LastJobStatus") == 5 and _read_hold(ad, "LastHoldReason") in _LIMITS
    # It may be null.
    reason = str(ad.get("HoldReason" if status == 5 else "LastHoldReason" if was_held else "RemoveReason") or "")
    # The date stays in the ad of a job that has been started again since.
    if status == 2 and (ad.get("JobDisconnectedDate") or 0) >= (ad.get("JobCurrentStartDate") or math.inf):
        reason = f"disconnected from {ad.get('RemoteHost')}"
    removed_by = _REMOVED_BY.fullmatch(reason) if status == 3 and not was_held else None
    return Job(
        local_id=f"{int(ad['ClusterId'])}.{int(ad['ProcId'])}",
        native_state=_NAMES.get(status, str(status)),
        # Not of a held job: it may have the code of a run whose outputs did not come back.
        exit_code=code if status == 4 and isinstance(code, int) and not ad.get("ExitBySignal") else None,
        reason=reason,
        token=str(ad.get("SamgridToken") or ""),
        cause=None if removed_by else _read_cause(status, reason, ad),
        by=removed_by[1] if removed_by else "",
    )


def _read_cause(status: int, reason: str, ad: dict[str, Any]) -> Cause | None:
    if status == 5:
        return _read_hold(ad, "HoldReason")
    if status == 3 and reason.startswith(REMOVED_ITSELF):
        return Cause.TIME_LIMIT
    if status == 3 and ad.get("LastJobStatus") == 5:
        return _read_hold(ad, "LastHoldReason")
    return Cause.SIGNAL if status == 4 and ad.get("ExitBySignal") else None


def _read_hold(ad: Mapping[str, Any], name: str) -> Cause | None:
    code, subcode = ad.get(f"{name}Code", 0), ad.get(f"{name}SubCode", 0)
    return Cause.MEMORY_LIMIT if (code, subcode) == _HELD_FOR_MEMORY else _HELD.get(code)


_FILE = "into a file in HTCondor's config.d folder, and run condor_reconfig as its administrator"
_BYTES_OF_JOB_IN_LOG = 1500
_BYTES_OF_JOB_IN_HISTORY = 4000
_ENOUGH_JOBS = 10_000
"""Most jobs that may end between two queries: those of a very large grid job."""


def diagnose(ask: Ask, environment: Mapping[str, str]) -> Iterator[Finding]:
    """Check that jobs can be started at all, and that event log and history are written, and kept for long enough."""
    del environment
    if ask(["id", "-u"]).stdout.strip() == "0":
        yield Finding(Level.FAULT, "HTCondor takes no jobs from root.", "use an ordinary account")
    yield from _diagnose_pool(ask)
    try:
        yield from _diagnose_log(ask)
        yield _diagnose_history(ask)
    except _NoSetting as error:
        text = f"condor_config_val does not tell HTCondor's configuration: {error}"
        yield Finding(Level.WARNING, text, "see that it runs on this host, and reads HTCondor's configuration")


class _NoSetting(Exception):
    """A setting cannot be read, so it is not known whether it is set."""


_EMPTY = {
    (): ("HTCondor's pool has no slots: no local job is started.", "condor_on -startd"),
    ("-constraint", 'SlotType =!= "Dynamic" && State =!= "Drained" && State =!= "Owner" && Start =!= false'): (
        "No slot of HTCondor's pool takes jobs: their hosts are drained, or keep them for their owners (START).",
        "condor_drain -cancel HOST, or condor_config_val -startd START",
    ),
    ("-negotiator",): (
        "HTCondor's collector knows of no negotiator (a new collector may need five minutes): without one no local job"
        " is started.",
        "condor_on -negotiator",
    ),
}
"""What it means that condor_status, with these options, lists nothing, and the command that helps."""


def _diagnose_pool(ask: Ask) -> Iterator[Finding]:
    """What keeps all jobs from being started, which ``condor_q -better-analyze`` does not tell."""
    for options, (text, command) in _EMPTY.items():
        answer = ask(["condor_status", *options, "-limit", "1", "-af", "Name"])
        if answer.exit_code != 0:
            words = " ".join((answer.stderr or answer.stdout).split())[:300]
            text, command = f"condor_status has no answer from HTCondor's collector: {words}", "condor_on -collector"
        if answer.exit_code != 0 or not answer.stdout.strip():
            yield Finding(Level.FAULT, text, f"on its host, as HTCondor's administrator: {command}")
            return


def _diagnose_log(ask: Ask) -> Iterator[Finding]:
    if not _setting(ask, "EVENT_LOG"):
        text = "HTCondor writes no event log: the ends of local jobs are found by asking, half a minute late."
        yield Finding(Level.FAULT, text, f"write EVENT_LOG = $(LOG)/EventLog {_FILE}")
        return
    rotations = _number(ask, "EVENT_LOG_MAX_ROTATIONS", 1)
    jobs = _number(ask, "EVENT_LOG_MAX_SIZE", 1_000_000) * rotations // _BYTES_OF_JOB_IN_LOG
    yield judge(
        not rotations or jobs >= _ENOUGH_JOBS,
        "The event log is written, and kept for long enough.",
        f"write EVENT_LOG_MAX_SIZE = 50000000 and EVENT_LOG_MAX_ROTATIONS = 3 {_FILE}",
        f"The event log is thrown away after the events of about {jobs} jobs, which may be before they are read.",
    )
    options = _setting(ask, "EVENT_LOG_FORMAT_OPTIONS").upper()
    if "UTC" not in options or not ({"ISO_DATE", "XML", "JSON"} & set(options.replace(",", " ").split())):
        yield Finding(
            Level.WARNING,
            "The event log's times have no time zone: in the hour that summer time repeats, they are not certain.",
            f"write EVENT_LOG_FORMAT_OPTIONS = ISO_DATE UTC SUB_SECOND {_FILE}, while no job is in the queue",
        )


def _diagnose_history(ask: Ask) -> Finding:
    if not _setting(ask, "HISTORY"):
        text = "HTCondor keeps no history: a job that has left the queue has no second witness of its end."
        return Finding(Level.FAULT, text, f"write HISTORY = $(SPOOL)/history {_FILE}")
    files = _number(ask, "MAX_HISTORY_ROTATIONS", 2)
    jobs = _number(ask, "MAX_HISTORY_LOG", 20 * 1024 * 1024) * files // _BYTES_OF_JOB_IN_HISTORY
    return judge(
        jobs >= _ENOUGH_JOBS or _setting(ask, "ENABLE_HISTORY_ROTATION").lower() in ("false", "0"),
        "HTCondor's history outlasts the interval in which we look.",
        f"write MAX_HISTORY_LOG = 50000000 and MAX_HISTORY_ROTATIONS = 3 {_FILE}",
        f"HTCondor's history forgets a job after about {jobs} others have ended.",
    )


def _setting(ask: Ask, name: str) -> str:
    """The value of a setting; empty if it is not set.

    :raises _NoSetting: it cannot be read.
    """
    answer = ask(["condor_config_val", name])
    if answer.exit_code == 0:
        return answer.stdout.strip()
    if f"Not defined: {name}" in answer.stdout + answer.stderr:
        return ""
    raise _NoSetting((answer.stderr or answer.stdout).strip()[:300])


def _number(ask: Ask, name: str, default: int) -> int:
    return read_number(_setting(ask, name), default)
