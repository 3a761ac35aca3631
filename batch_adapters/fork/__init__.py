"""The batch system that travels with us: local jobs as processes of this machine, in a number of slots."""

import re
from collections.abc import Iterable, Mapping

from batch_adapters.adapter import OK, BatchAdapter, Command, Garbled, Outcome, Refused, Submission, Unreachable
from batch_adapters.states import State

# 1: the spool could not be read or written; 2: an argument is wrong. Whatever else comes is not from samgrid-fork.
_OUTCOMES = (OK, Outcome(1, "", Unreachable), Outcome(2, r"samgrid-fork.*: error: ", Refused))
_PROGRAM = (
    *("{{ python }}", "-P", "{{ launch }}", "samgrid-fork", "--spool", "{{ fork_spool }}"),
    *("--slots", "{{ fork_slots }}", "--grace", "{{ fork_grace }}"),
)


def read_submitted(printed: str, submission: Submission) -> Mapping[int, str]:
    """The ids ``TOKEN.INDEX`` of an array that ``samgrid-fork submit`` took."""
    match = re.fullmatch(r"(\S+) (\d+)-(\d+)\n", printed)
    if match is None or match[1] != submission.token:
        raise Garbled(f"samgrid-fork submit printed {printed[:200]!r}")
    return {index: f"{match[1]}.{index}" for index in range(int(match[2]), int(match[3]) + 1)}


def read_jobs(printed: str) -> Iterable[tuple[str, str, int | None]]:
    """Id, native state and exit code from the lines of ``samgrid-fork query``."""
    for line in printed.splitlines(keepends=True):
        match = re.fullmatch(r"([a-z][a-z0-9-]*\.\d+) (\w+) (-|\d+)\n", line)
        if match is None:
            raise Garbled(f"samgrid-fork query printed {line[:200]!r}")
        yield match[1], match[2], None if match[3] == "-" else int(match[3])


FORK = BatchAdapter(
    name="fork",
    submit=Command(
        (
            *(*_PROGRAM, "submit", "--token", "{{ token }}", "--array", "{{ first }}-{{ last }}"),
            *(
                "--stdout",
                "{{ log_folder }}/{{ token }}.%i.driver",
                "--stderr",
                "{{ log_folder }}/{{ token }}.%i.driver",
            ),
            *(
                "--directory",
                "{{ log_folder }}",
                "--wall-time",
                "{{ max_wall_minutes }}",
                "--",
                "/bin/sh",
                "{{ driver }}",
            ),
        ),
        outcomes=_OUTCOMES,
    ),
    read_submitted=read_submitted,
    query=Command((*_PROGRAM, "query"), outcomes=_OUTCOMES),
    find=Command((*_PROGRAM, "query", "--token", "{{ token }}"), outcomes=_OUTCOMES),
    read_jobs=read_jobs,
    cancel=Command((*_PROGRAM, "cancel", "{{ ids* }}"), outcomes=_OUTCOMES),
    states={
        "queued": State.PENDING,
        "running": State.ACTIVE,
        "ended": State.DONE,
        "cancelled": State.FAILED,
        "killed": State.FAILED,
        "lost": State.FAILED,
    },
    local_id_words="$SAMGRID_FORK_ID",
    index_words="$SAMGRID_FORK_INDEX",
    event_log="{{ fork_spool }}/events",
    max_array=10_000,
)
