"""The batch adapter of the embedded batch system.

Not in ``__init__``: each command is a process, and would spend a sixth of its time loading this.
"""

from dataclasses import replace

from batch_adapters.adapter import OK, Answer, BatchAdapter, Command, Lines, Meaning
from batch_adapters.naming import Naming
from batch_adapters.states import Cause, State

# 1: the spool cannot be used; 2: an argument is wrong. Anything else does not come from samgrid-fork.
_OUTCOMES = (OK, Meaning(1, "", Answer.TRANSIENT), Meaning(2, r"samgrid-fork.*: error: ", Answer.PERMANENT))

_PRINTED = "{{ results | replace('%', '%%') }}/{{ token }}.%i.driver"


def _command(*arguments: str) -> Command:
    program = ("{{ python }}", "-P", "{{ launch }}", "samgrid-fork", "--spool", "{{ fork_spool }}")
    options = ("--slots", "{{ fork_slots }}", "--grace", "{{ fork_grace }}")
    return Command((*program, *options, *arguments), outcomes=_OUTCOMES, attempts=1)


FORK = BatchAdapter(
    name="fork",
    submit=_command(
        *("submit", "--token", "{{ token }}", "--count", "{{ count }}"),
        *("--stdout", _PRINTED, "--stderr", _PRINTED),
        *("--directory", "{{ results }}", "--wall-time", "{{ max_wall_minutes }}"),
        *("--cores", "{{ cores }}"),
        *("--", "/bin/sh", "{{ driver }}", "{{ token }}"),
    ),
    naming=Naming(submitted=r"(?P<id>\S+) 1-(?P<last>\d+)", single="{id}.1", element="{id}.{n}", array=""),
    queue=_command("query"),
    find=_command("query", "--token", "{{ token }}"),
    status=_command("query", "{{ id }}"),
    read_jobs=Lines(
        r"(?P<id>(?P<token>[a-z][a-z0-9-]*)\.\d+) (?P<state>\w+) (?:-|(?P<exit>\d+))"
        r"(?: (?P<cause>[a-z-]+)(?: by (?P<by>\d+))?)?"
    ),
    cancel=_command("cancel", "{{ ids* }}"),
    # No hold for waiting jobs: suspended ones keep their slots, so none starts instead.
    suspend=_command("suspend", "{{ ids* }}"),
    resume=_command("resume", "{{ ids* }}"),
    forget=replace(_command("forget", "{{ prefixes* }}"), timeout=10),
    states={
        "queued": State.PENDING,
        "running": State.ACTIVE,
        "suspended": State.SUSPENDED,
        "ended": State.DONE,
        "cancelled": State.FAILED,
        "killed": State.FAILED,
        "lost": State.FAILED,
    },
    causes={"cancelled": Cause.CANCELLED_OUTSIDE, "killed": Cause.SIGNAL, "lost": Cause.NODE_LOST},
    local_id_words="$SAMGRID_FORK_ID",
    index_words="$SAMGRID_FORK_INDEX",
    started_words="$SAMGRID_FORK_STARTED",
    event_module="fork",
    event_log="{{ fork_spool }}/events",
    max_array=10_000,
    # It accepts each token only once, and runs on this machine.
    settle_time=0,
    outputs_lag=0,
    commands_per_minute=0,
)
