"""Reads what qstat prints: jobs as JSON from OpenPBS and PBS Professional, as XML from Torque; a server's settings.

Jobs are never read from the text form, which does not escape line breaks: any user's environment could look like a job.
"""

import re
from collections.abc import Iterator, Mapping

from batch_adapters.adapter import Garbled, Job
from batch_adapters.naming import find_token
from batch_adapters.running.diagnosis import SHORTEST_MEMORY, Ask, Finding, Level, judge, read_number, read_seconds
from batch_adapters.states import Cause, State

_RUNNING = frozenset("BERSU")
# Comments that are not a reason.
_NO_REASON = re.compile(r"Job (?:run|Array Began) at .*|Subjob finished")
_ENDED = frozenset("CFX")
# In Torque, elements of an array have their own names.
_TOKEN = re.compile(r"([a-z][a-z0-9]{7}-[0-9a-z]+)(?:\[\d+\]|-\d+)?", re.ASCII)
_ELEMENT = re.compile(r"(\d+)\[\d+\](.*)")
_BORROWED = " without a start"
_REFUSED = " refused"


_NEVER_STARTED = dict.fromkeys((-1, -2, -3, -7), Cause.NEVER_STARTED)
_MOM_LOST = dict.fromkeys((-4, -5, -6), Cause.NODE_LOST)
# Negative exit statuses: JOB_EXEC_… in job.h of OpenPBS 23.06 (to -30) and PBS Professional.
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
"""An exit status above these is a signal: 128 and its number from a shell, 256 and its number from the server."""
_TERMINATED_BY = re.compile(r".* and terminated by ([^\s@]+)(?:@\S*)?")


def list_causes(letters: str) -> dict[str, Cause]:
    """Causes by native state, for ended jobs whose exit status does not say more."""
    causes = {letter + " deleted": Cause.CANCELLED_OUTSIDE for letter in letters}
    causes |= {letter + " failed": Cause.NEVER_STARTED for letter in letters}
    causes |= {letter + _REFUSED: Cause.REFUSED for letter in letters}
    # While the array runs, elements that were deleted before their start look like this, and, on a server without
    # history, also ended ones.
    causes |= {letter + _BORROWED: Cause.NEVER_STARTED for letter in letters}
    # F, after the end of the array, is shown only by servers with a history, which forget no job that has run.
    return causes | ({"F" + _BORROWED: Cause.CANCELLED_OUTSIDE} if "F" in letters else {})


def list_ended_states(letters: str) -> dict[str, State]:
    """The states of ended jobs: PBS has one letter for all ends; we append words from other attributes."""
    failures = (" deleted", " failed", _REFUSED, _BORROWED)
    failed = {letter + word: State.FAILED for letter in letters for word in failures}
    return dict.fromkeys(letters, State.DONE) | failed


def read_json_jobs(printed: str) -> Iterator[Job]:
    """The local jobs in the output of ``qstat -t -f -F json``; empty output: none.

    :raises Garbled, JSONDecodeError: it is another answer.
    """
    if not printed:
        return
    import json

    # strict=False: control characters in users' variables are not escaped.
    answer = json.loads(printed, strict=False)
    jobs = answer.get("Jobs", {}) if isinstance(answer, dict) else None
    if not isinstance(jobs, dict) or not all(isinstance(job, dict) for job in jobs.values()):
        raise Garbled(f"no list of jobs: {printed[:200]!r}")
    yield from _read_jobs({name: _forget_borrowed(name, job) for name, job in jobs.items()}, PBS_CAUSES)


def _forget_borrowed(local_id: str, attributes: Mapping[str, object]) -> Mapping[str, object]:
    """Only the attributes that are the job's own.

    For elements without their own data the server shows the array's (status_subjob in stat_job.c): for waiting ones,
    for ones that never started and, on a server without history, for ended ones. Exit status, substate and start are
    then those of some other element. What they depended on they have in common.
    """
    letter = str(attributes.get("job_state"))
    if letter not in _ENDED or "run_count" in attributes:
        return attributes
    own = {name: value for name, value in attributes.items() if name in ("Job_Name", "Job_Owner", "Output_Path")}
    # Finished (92 in job.h), but still held for a dependency, which could not be met any more.
    if str(attributes.get("substate")) == "92" and "depend" in attributes and "s" in str(attributes.get("Hold_Types")):
        return {**own, "job_state": f"{letter}{_REFUSED}", "comment": f"depend={attributes['depend']}"}
    return {**own, "job_state": f"{letter}{_BORROWED}"} if _ELEMENT.fullmatch(local_id) else attributes


def read_xml_jobs(printed: str) -> Iterator[Job]:
    """The local jobs in the output of Torque's ``qstat -t -f -x``; empty output: none.

    :raises Garbled, ElementTree.ParseError: it is another answer.
    """
    if not printed.strip():
        return
    from xml.etree import ElementTree

    if "<!" in printed:
        raise Garbled("XML with declarations, which qstat does not print")
    # One list per requested id.
    lists = list(ElementTree.fromstring(f"<Lists>{re.sub(r'<[?]xml[^>]*[?]>', '', printed)}</Lists>"))
    if not lists or any(each.tag != "Data" for each in lists):
        raise Garbled(f"no list of jobs: {printed[:200]!r}")
    jobs = {job.findtext("Job_Id", ""): {item.tag: item.text or "" for item in job} for each in lists for job in each}
    yield from _read_jobs(jobs, TORQUE_CAUSES)


def _read_jobs(jobs: Mapping[str, Mapping[str, object]], causes: Mapping[int, Cause]) -> Iterator[Job]:
    for local_id, attributes in jobs.items():
        if "[]" in local_id:
            continue
        exit_status = _read_exit_status(attributes)
        state = _read_state(attributes, exit_status)
        # What an element waits for may be an attribute of the array only; an array's end is not its elements' end.
        array = {} if state[:1] in _ENDED else jobs.get(_ELEMENT.sub(r"\1[]\2", local_id), {})
        deleted_by = _TERMINATED_BY.fullmatch(str(attributes.get("comment"))) if state.endswith(" deleted") else None
        yield Job(
            local_id=local_id,
            native_state=state,
            exit_code=exit_status if exit_status is not None and exit_status >= 0 else None,
            reason="" if attributes.get("job_state") in _RUNNING else _read_reason(attributes) or _read_reason(array),
            token=_read_token(attributes),
            owner=str(attributes.get("Job_Owner", "")).partition("@")[0],
            cause=_read_cause(state, exit_status, causes),
            by=deleted_by[1] if deleted_by else "",
        )


def _read_token(attributes: Mapping[str, object]) -> str:
    name = str(attributes.get("Job_Name"))
    found = _TOKEN.fullmatch(name)
    return find_token(str(attributes.get("Output_Path"))) or (found[1] if found else name)


def _read_exit_status(attributes: Mapping[str, object]) -> int | None:
    text = str(attributes.get("Exit_status", attributes.get("exit_status", "")))
    return int(text) if re.fullmatch(r"-?\d{1,9}", text, re.ASCII) else None


def _read_state(attributes: Mapping[str, object], exit_status: int | None) -> str:
    letter = str(attributes.get("job_state"))
    if letter not in _ENDED:
        return letter
    # 91 is JOB_SUBSTATE_TERMINATED (job.h): deleted, whatever its exit status. With only the comment, the job may have
    # ended before the deletion reached it.
    is_terminated = _TERMINATED_BY.fullmatch(str(attributes.get("comment"))) is not None
    if str(attributes.get("substate")) == "91" or (is_terminated and (exit_status or 0) >= _SIGNALS):
        return f"{letter} deleted"
    # No exit status: PBS gave it up before it ran. Negative: PBS ended it or could not run it (job.h, JOB_EXEC_FAIL1…).
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
    # Elements of a held array show state Q.
    kinds = str(attributes.get("Hold_Types", "n"))
    held = f"held ({kinds})" if kinds != "n" else ""
    return ": ".join(text for text in (held, "" if _NO_REASON.fullmatch(comment) else comment) if text)


_JOB_EVENTS = 0x0008
"""The bit of log_events for events of jobs (pbs_server_attributes(7B), log.h)."""


def diagnose_pbs(ask: Ask, environment: Mapping[str, str]) -> Iterator[Finding]:
    """OpenPBS and PBS Professional: log, history, schedulers, default queue, and requeueing of a lost node's jobs."""
    del environment
    settings = _read_settings(ask, "-B")
    if not settings:
        return
    yield _diagnose_log(settings)
    yield _diagnose_history(settings)
    if settings.get("scheduling") == "False":
        yield Finding(Level.FAULT, "the server starts no jobs (scheduling)", _set("server scheduling = True"))
    # A site may have several, for different queues.
    schedulers = ask(["qmgr", "-c", "list sched"]).stdout
    for name in re.findall(r"^Sched (\S+)\n(?: .*\n)*? +state = down$", schedulers, re.MULTILINE):
        text = f"its scheduler {name} does not run, so jobs wait"
        yield Finding(Level.FAULT, text, "start pbs_sched on its host")
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
