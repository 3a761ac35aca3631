"""What qstat says of jobs: JSON from OpenPBS and PBS Professional, XML from Torque; never the text form.

The text form shows values with their line breaks as they are, so that any user's environment can be a job in it.
"""

import re
from collections.abc import Iterator, Mapping

from batch_adapters.adapter import Garbled, Job
from batch_adapters.states import Cause, State

_RUNNING = frozenset("BERSU")
# A comment that is no reason for anything.
_STARTED = re.compile(r"Job (?:run|Array Began) at .*")
_ENDED = frozenset("CFX")
# Torque gives each element of an array a name of its own.
_TOKEN = re.compile(r"([a-z][a-z0-9]{7}-[0-9a-z]+)(?:\[\d+\]|-\d+)?", re.ASCII)
_ELEMENT = re.compile(r"(\d+)\[\d+\](.*)")
_BORROWED = " without a start"


_NEVER_STARTED = dict.fromkeys((-1, -2, -3, -7), Cause.NEVER_STARTED)
_MOM_LOST = dict.fromkeys((-4, -5, -6), Cause.NODE_LOST)
# JOB_EXEC_… in job.h of OpenPBS 23.06 (to -30) and PBS Professional: what an exit status below zero means.
PBS_CAUSES = {
    **_NEVER_STARTED,
    **_MOM_LOST,
    **dict.fromkeys((-10, -13, -16, -17, -21, -22, -23, -30), Cause.NEVER_STARTED),
    **dict.fromkeys((-14, -15, -20, -32), Cause.NODE_LOST),
    **dict.fromkeys((-11, -12, -18, -19), Cause.CANCELLED_OUTSIDE),
    **dict.fromkeys((-24, -25, -28), Cause.CPU_LIMIT),
    **dict.fromkeys((-26, -27, -31), Cause.MEMORY_LIMIT),
    -29: Cause.TIME_LIMIT,
}
# In pbs_job.h of Torque 6.
TORQUE_CAUSES = {
    **_NEVER_STARTED,
    **_MOM_LOST,
    **dict.fromkeys((-8, -9, -13, -14), Cause.NEVER_STARTED),
    -10: Cause.MEMORY_LIMIT,
    -11: Cause.TIME_LIMIT,
    -12: Cause.CPU_LIMIT,
}
_SIGNALS, _SIGNALLED = 128, 256
"""From here on an exit status is what a shell made of a signal, or it is the server's: this and the signal's number."""
_TERMINATED_BY = re.compile(r".* and terminated by ([^\s@]+)(?:@\S*)?")


def list_causes(letters: str) -> dict[str, Cause]:
    """Why jobs in these states ended, where their exit status does not say more."""
    causes = {letter + " deleted": Cause.CANCELLED_OUTSIDE for letter in letters}
    # A dependency that failed.
    causes |= {letter + " failed": Cause.NEVER_STARTED for letter in letters}
    # While its array goes on, one that was deleted before its start is answered like this and, on a server without
    # history, one that has ended.
    causes |= {letter + _BORROWED: Cause.NEVER_STARTED for letter in letters}
    # When its array has ended it is a server with history, and that forgets none that has run.
    return causes | ({"F" + _BORROWED: Cause.CANCELLED_OUTSIDE} if "F" in letters else {})


def list_ended_states(letters: str) -> dict[str, State]:
    """The states of ended jobs: PBS has one letter for all ends alike; the words we add are from other attributes."""
    ends = {"": State.DONE, " deleted": State.FAILED, " failed": State.FAILED, _BORROWED: State.FAILED}
    return {letter + word: state for letter in letters for word, state in ends.items()}


def read_json_jobs(printed: str) -> Iterator[Job]:
    """The local jobs, by their names, in what ``qstat -t -f -F json`` printed; nothing printed: none.

    :raises Garbled, JSONDecodeError: it is no such answer.
    """
    if not printed:
        return
    import json

    # Control characters that users have in their variables are not escaped.
    answer = json.loads(printed, strict=False)
    jobs = answer.get("Jobs", {}) if isinstance(answer, dict) else None
    if not isinstance(jobs, dict) or not all(isinstance(job, dict) for job in jobs.values()):
        raise Garbled(f"no list of jobs: {printed[:200]!r}")
    yield from _read_jobs({name: _forget_borrowed(name, job) for name, job in jobs.items()}, PBS_CAUSES)


def _forget_borrowed(local_id: str, attributes: Mapping[str, object]) -> Mapping[str, object]:
    """The attributes that are the job's own.

    Of an element without an object of its own the server tells the array's (status_subjob in stat_job.c): of one that
    still waits, of one that never started and, where the server keeps no history, of one that has ended. Such an end
    looks like that of some other element: exit status, substate and start are not to be believed.
    """
    if (
        _ELEMENT.fullmatch(local_id) is None
        or "run_count" in attributes
        or str(attributes.get("job_state")) not in _ENDED
    ):
        return attributes
    own = {name: value for name, value in attributes.items() if name in ("Job_Name", "Job_Owner")}
    return {**own, "job_state": f"{attributes['job_state']}{_BORROWED}"}


def read_xml_jobs(printed: str) -> Iterator[Job]:
    """The local jobs, by their names, in what Torque's ``qstat -t -f -x`` printed; nothing printed: none.

    :raises Garbled, ElementTree.ParseError: it is no such answer.
    """
    if not printed.strip():
        return
    from xml.etree import ElementTree

    if "<!" in printed:
        raise Garbled("XML with declarations, which qstat does not print")
    # A list for each id that was asked about.
    lists = list(ElementTree.fromstring(f"<Lists>{re.sub(r'<[?]xml[^>]*[?]>', '', printed)}</Lists>"))
    if not lists or any(each.tag != "Data" for each in lists):
        raise Garbled(f"no list of jobs: {printed[:200]!r}")
    jobs = {job.findtext("Job_Id", ""): {item.tag: item.text or "" for item in job} for each in lists for job in each}
    yield from _read_jobs(jobs, TORQUE_CAUSES)


def _read_jobs(jobs: Mapping[str, Mapping[str, object]], causes: Mapping[int, Cause]) -> Iterator[Job]:
    for local_id, attributes in jobs.items():
        name = _TOKEN.fullmatch(str(attributes.get("Job_Name")))
        if name is None or "[]" in local_id:
            continue
        # What an element does not say, its array may.
        array = jobs.get(_ELEMENT.sub(r"\1[]\2", local_id), {})
        exit_status = _read_exit_status(attributes)
        state = _read_state(attributes, exit_status)
        deleted_by = _TERMINATED_BY.fullmatch(str(attributes.get("comment"))) if state.endswith(" deleted") else None
        yield Job(
            local_id=local_id,
            native_state=state,
            exit_code=exit_status if exit_status is not None and exit_status >= 0 else None,
            reason="" if attributes.get("job_state") in _RUNNING else _read_reason(attributes) or _read_reason(array),
            token=name[1],
            owner=str(attributes.get("Job_Owner", "")).partition("@")[0],
            cause=_read_cause(state, exit_status, causes),
            by=deleted_by[1] if deleted_by else "",
        )


def _read_exit_status(attributes: Mapping[str, object]) -> int | None:
    text = str(attributes.get("Exit_status", attributes.get("exit_status", "")))
    return int(text) if re.fullmatch(r"-?\d{1,9}", text, re.ASCII) else None


def _read_state(attributes: Mapping[str, object], exit_status: int | None) -> str:
    letter = str(attributes.get("job_state"))
    if letter not in _ENDED:
        return letter
    # JOB_SUBSTATE_TERMINATED (job.h): deleted, whatever its exit status became then. One that has the comment alone was
    # deleted, too, but it may have ended before that reached it.
    is_terminated = _TERMINATED_BY.fullmatch(str(attributes.get("comment"))) is not None
    if str(attributes.get("substate")) == "91" or (is_terminated and (exit_status or 0) >= _SIGNALS):
        return f"{letter} deleted"
    # A failed dependency leaves no exit status; below zero: PBS ended it, or could not run it (job.h, JOB_EXEC_FAIL1…).
    return letter if exit_status is not None and exit_status >= 0 else f"{letter} failed"


def _read_cause(state: str, exit_status: int | None, causes: Mapping[int, Cause]) -> Cause | None:
    if exit_status is None or state[:1] not in _ENDED:
        return None
    if state in _ENDED:
        return Cause.SIGNAL if exit_status > _SIGNALLED else None
    return causes.get(exit_status)


def _read_reason(attributes: Mapping[str, object]) -> str:
    comment = str(attributes.get("comment", ""))
    if str(attributes.get("job_state"))[:1] in _ENDED:
        return comment
    # Elements of an array that is held say Q.
    kinds = str(attributes.get("Hold_Types", "n"))
    held = f"held ({kinds})" if kinds != "n" else ""
    return ": ".join(text for text in (held, "" if _STARTED.fullmatch(comment) else comment) if text)
