"""Reads the ClassAds that condor_q and condor_history print as JSON."""

from collections.abc import Iterator
from typing import Any

from batch_adapters.adapter import Garbled, Job

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


def read_history(printed: str) -> list[Job]:
    """The jobs of an answer; nothing printed means none.

    :raises Garbled: it is no list of ClassAds with an id and a status.
    """
    import json  # the event generator, which loads the package, needs none

    try:
        return [_read_ad(ad) for ad in json.loads(printed or "[]")]
    except (ValueError, TypeError, LookupError) as error:
        raise Garbled(f"no list of jobs ({type(error).__name__}: {error}): {printed[:200]!r}") from error


def read_queue(printed: str) -> Iterator[Job]:
    """As `read_history`; what has been removed and is still in the queue has not gone yet.

    :raises Garbled: as there.
    """
    for job in read_history(printed):
        if job.native_state == "REMOVED":
            yield Job(job.local_id, "REMOVING", job.exit_code, job.reason, job.token)
        else:
            yield job


def _read_ad(ad: dict[str, Any]) -> Job:
    status = int(ad["JobStatus"])
    code = ad.get("ExitCode")
    return Job(
        local_id=f"{int(ad['ClusterId'])}.{int(ad['ProcId'])}",
        native_state=_NAMES.get(status, str(status)),
        # A held job may have the code of a run whose outputs did not come back.
        exit_code=code if status == 4 and isinstance(code, int) and not ad.get("ExitBySignal") else None,
        # A reason that HTCondor itself cannot read is null.
        reason=str(ad.get("HoldReason" if status == 5 else "RemoveReason") or ""),
        token=str(ad.get("SamgridToken") or ""),
    )
