"""Reads the ClassAds that condor_q and condor_history print as JSON."""

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from batch_adapters.adapter import Job
from batch_adapters.states import Cause

_NAMES = {
    1: "IDLE",
    2: "RUNNING",
    3: "REMOVED",
    4: "COMPLETED",
    5: "HELD",
    6: "TRANSFERRING_OUTPUT",
    7: "SUSPENDED",
    8: "FAILED",
    9: "BLOCKED",
}


_HELD = {
    # ATTR_HOLD_REASON_CODE, "Job ClassAd Attributes": the program, its files or its folder were not there.
    **dict.fromkeys((6, 7, 8, 14), Cause.NEVER_STARTED),
    34: Cause.MEMORY_LIMIT,
    46: Cause.TIME_LIMIT,
    47: Cause.TIME_LIMIT,
}
# The end of the text is condor_rm's own, whatever people give as a reason before it.
_REMOVED_BY = re.compile(r".*\(by user ([^\s()@]+)[^\s()]*\)", re.DOTALL)
# The submit description's own expression is the limit of the wall time.
_REMOVED_ITSELF = "The job attribute PeriodicRemove expression "


def read_history(printed: str) -> list[Job]:
    """The jobs of an answer; nothing printed means none.

    :raises ValueError, TypeError, LookupError: it is no list of ClassAds with an id and a status.
    """
    import json  # the event generator, which loads the package, needs none

    return [_read_ad(ad) for ad in json.loads(printed or "[]")]


def read_queue(printed: str) -> Iterator[Job]:
    """As `read_history`; what has been removed and is still in the queue has not gone yet.

    :raises ValueError, TypeError, LookupError: as there.
    """
    for job in read_history(printed):
        if job.native_state == "REMOVED":
            yield replace(job, native_state="REMOVING")
        else:
            yield job


def _read_ad(ad: dict[str, Any]) -> Job:
    status = int(ad["JobStatus"])
    code = ad.get("ExitCode")
    # A reason that HTCondor itself cannot read is null.
    reason = str(ad.get("HoldReason" if status == 5 else "RemoveReason") or "")
    removed_by = _REMOVED_BY.fullmatch(reason) if status == 3 else None
    return Job(
        local_id=f"{int(ad['ClusterId'])}.{int(ad['ProcId'])}",
        native_state=_NAMES.get(status, str(status)),
        # A held job may have the code of a run whose outputs did not come back.
        exit_code=code if status == 4 and isinstance(code, int) and not ad.get("ExitBySignal") else None,
        reason=reason,
        token=str(ad.get("SamgridToken") or ""),
        cause=_read_cause(status, reason, ad),
        by=removed_by[1] if removed_by else "",
    )


def _read_cause(status: int, reason: str, ad: dict[str, Any]) -> Cause | None:
    if status == 5:
        return _HELD.get(ad.get("HoldReasonCode", 0))
    if status == 3 and reason.startswith(_REMOVED_ITSELF):
        return Cause.TIME_LIMIT
    return Cause.SIGNAL if status == 4 and ad.get("ExitBySignal") else None
