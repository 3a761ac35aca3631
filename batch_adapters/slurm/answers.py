"""Reads what squeue and sacct print."""

import re
from collections.abc import Iterator

from batch_adapters.adapter import Garbled, Job, read_range
from batch_adapters.states import Cause

# squeue does not escape names: one may hold line breaks, and what looks like a record. Ours end with their own id.
_QUEUED = re.compile(
    r"(?P<id>\d+(?:_\d+)?)\|(?P<state>[A-Z_]+)\|(?P<wait>\d+)\|(?P<reason>[^|\n]*)\|(?P<token>.*?)\|(?P=id)\n",
    re.DOTALL,
)
# Tasks that never started are one record: 422_[1,3-9,12-18:2%4]; "CANCELLED by 1001".
_ENDED = re.compile(
    r"(?P<id>\d+)(?:_(?P<task>\d+)|_\[(?P<tasks>[^\]\n]*)\])?\|(?P<state>[A-Z_]+)(?: by (?P<by>\d+))?"
    r"\|(?P<exit>\d+):(?P<signal>\d+)\n"
)
_RANGE = re.compile(r"(\d+)(?:-(\d+)(?::(\d+))?)?")
NEVER_STARTED = "FAILED to start"
"""For jobs that Slurm calls FAILED although no program of theirs ended."""
_LAUNCH_FAILURE = 53
_ENDED_ITSELF = re.compile(r"None|NonZeroExitCode|JobLaunchFailure|RaisedSignal.*")
"""Reasons of a job whose program ended; JobLaunchFailure is what 22.05 calls a signal, and a launch failure, too."""


def read_jobs(printed: str) -> Iterator[Job]:
    """The jobs in squeue's ``JobArrayID:|,State:|,exit_code:|,Reason:|,Name:|,JobArrayID:``; the code is wait(2)'s.

    :raises Garbled: anything stands before, between or after the records, or the last one is torn.
    """
    for match in _read_records(_QUEUED, printed):
        wait = int(match["wait"])
        ended_itself = _ENDED_ITSELF.fullmatch(match["reason"]) is not None
        state, exit_code, cause = _read_end(match["state"], wait >> 8, wait & 0x7F, ended_itself)
        reason = "" if match["reason"] == "None" else match["reason"]
        yield Job(match["id"], state, exit_code, reason, match["token"], cause=cause)


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
    """Native state, exit code and what that says of the cause; in other states it says nothing of the program."""
    if state == "COMPLETED":
        return state, status, None
    if state != "FAILED":
        return state, None, None
    if signal == _LAUNCH_FAILURE or not ended_itself:
        return NEVER_STARTED, None, None
    return (state, 128 + signal, Cause.SIGNAL) if signal else (state, status, None)


def _read_ids(match: re.Match[str]) -> Iterator[str]:
    if match["tasks"] is None:
        yield match["id"] if match["task"] is None else f"{match['id']}_{match['task']}"
        return
    # A long expression is cut short, and ends in dots: what is cut, and what follows, is not in the answer.
    ranges = (_RANGE.fullmatch(part) for part in match["tasks"].partition("%")[0].split(","))
    for first, last, step in (found.groups() for found in ranges if found):
        for task in read_range(first, last, step):
            yield f"{match['id']}_{task}"
