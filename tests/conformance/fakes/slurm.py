"""Slurm 22.05: sbatch, squeue, sacct, scancel and scontrol.

Texts are from tests/recorded/slurm/slurm-scenarios-info.txt, slurm-misc.txt and slurm-down.txt, and slurm-sacct.txt of
the reference; options and the letters of formats from the manual pages.
"""

import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby

from tests.conformance.fakes.book import BROKEN, CANCELLED, ENDED, HELD, LEAVING, PENDING, RUNNING, SUSPENDED, Job
from tests.conformance.fakes.dialect import Ask, Cancel, Options, Reply, Say, Show, Submit, UnknownCommand, want

PROGRAMS = ("sbatch", "squeue", "sacct", "scancel", "scontrol")
NAMES = ("slurm", "slurmctld", "slurmdbd", *PROGRAMS)
HAS_HISTORY = True

_STATES = {
    **{PENDING: "PENDING", HELD: "PENDING", RUNNING: "RUNNING", SUSPENDED: "SUSPENDED", LEAVING: "COMPLETING"},
    **{CANCELLED: "CANCELLED", BROKEN: "NODE_FAIL"},
}
_REASONS = {PENDING: "Resources", HELD: "JobHeldUser", ENDED: "None"}
_SBATCH = (
    "-J --job-name -a --array -o --output -e --error -D --chdir --export --comment -p --partition -A --account"
    " -t --time --mem -i --input --open-mode --get-user-env"
)
_SBATCH_FLAGS = "--parsable --requeue --no-requeue -Q --quiet"
_SQUEUE = "-j --jobs -n --name -t --states -u --user -O --Format"
_SQUEUE_FLAGS = "-h --noheader -r --array --me -a --all"
_SACCT = "-j --jobs --name -o --format -S --starttime -E --endtime -u --user -s --state"
_SACCT_FLAGS = "-n --noheader -P --parsable2 -X --allocations -D --duplicates"
_CONFIG = """\
Configuration data as of 2026-11-21T05:00:00
MaxArraySize            = 1001
SLURM_VERSION           = 22.05.8
"""
_UNKNOWN_ID = "slurm_load_jobs error: Invalid job id specified\n"


def read(program: str, arguments: Sequence[str], stdin: Callable[[], str]) -> Ask:
    """See `Dialect`."""
    match program, *arguments:
        case "sbatch", *_:
            return _read_submission(Options(arguments, _SBATCH, _SBATCH_FLAGS), stdin)
        case "squeue", *_:
            return _read_queue(Options(arguments, _SQUEUE, _SQUEUE_FLAGS))
        case "sacct", *_:
            return _read_history(Options(arguments, _SACCT, _SACCT_FLAGS))
        case "scancel", *ids:
            words = Options(ids, "", "-Q --quiet").rest
            return Cancel(lambda job: _is_named(job, words), lambda jobs: Reply())
        case "scontrol", "show", "config":
            return Say("limit", Reply(_CONFIG))
    raise UnknownCommand(" ".join(arguments))


def _read_submission(options: Options, stdin: Callable[[], str]) -> Submit:
    """The script comes on stdin where none is named: ``exec /bin/sh DRIVER TOKEN`` is its last line."""
    want(options.has("--parsable"), "a form of the answer")
    elements = None
    if options.has("-a", "--array"):
        words = options.get("-a", "--array").split("-")
        elements = range(int(words[0]), int(words[-1]) + 1)
    script = options.rest
    if not script:
        first, *_, last = stdin().splitlines()
        want(first == "#!/bin/sh", f"a script that begins with {first}")
        script = shlex.split(last)
    name = options.get("-J", "--job-name")
    return Submit(name, elements, script, lambda jobs: Reply(f"{jobs[0].number}\n"))


def _read_queue(options: Options) -> Show:
    want(options.has("-h", "--noheader") and options.has("-r", "--array"), "a form of the answer")
    with_ended = options.has("-t", "--states") and options.get("-t", "--states") == "all"
    columns = [column.partition(":") for column in options.get("-O", "--Format").split(",")]

    def chosen(job: Job) -> bool:
        return not job.forgotten and (with_ended or job.in_queue)

    def render(jobs: Sequence[Job]) -> Reply:
        lines = ("".join(_pad(_field(name, job), colon + width) for name, colon, width in columns) for job in jobs)
        return Reply("".join(f"{line}\n" for line in lines))

    if options.has("-n", "--name"):
        name = options.get("-n", "--name")
        return Show("find", lambda job: chosen(job) and job.token == name, render)
    if not options.has("-j", "--jobs"):
        return Show("queue", chosen, render)
    wanted = options.get("-j", "--jobs")
    want("," not in wanted, "several ids")
    return Show(
        "status",
        lambda job: chosen(job) and _is_named(job, [wanted]),
        lambda jobs: render(jobs) if jobs else Reply("", _UNKNOWN_ID, 1),
    )


def _is_named(job: Job, ids: Sequence[str]) -> bool:
    return local_id(job) in ids or str(job.number) in ids


def _pad(text: str, width: str) -> str:
    """``:30`` cuts and fills to 30 columns, 20 without; what follows the number is a suffix."""
    match = re.fullmatch(r"(?::\.?(\d*)(.*))?", width)
    want(match is not None, f"column width {width}")
    columns, suffix = (match[1], match[2] or "") if match else ("", "")
    if width and not columns:
        return text + suffix
    return text[: int(columns or 20)].ljust(int(columns or 20)) + suffix


def _field(name: str, job: Job) -> str:
    fields = {
        "jobarrayid": local_id(job),
        "state": _state(job),
        "reason": _REASONS.get(job.state, "None"),
        "name": job.token,
        "stdout": f"/results/{job.token}.%a.driver",
        # As wait(2) gives it.
        "exit_code": str((job.exit_code or 0) << 8),
    }
    if name.lower() not in fields:
        raise UnknownCommand(f"field {name}")
    return fields[name.lower()]


def _state(job: Job) -> str:
    return _STATES.get(job.state, "FAILED" if job.exit_code else "COMPLETED")


def _read_history(options: Options) -> Show:
    """sacct knows what waits and runs, too."""
    forms = (("-n", "--noheader"), ("-P", "--parsable2"), ("-X", "--allocations"))
    want(all(options.has(*form) for form in forms), "a form of the answer")
    columns = options.get("-o", "--format").split(",")
    name = options.get("--name")

    def render(jobs: Sequence[Job]) -> Reply:
        return Reply("".join("|".join(_record(name, *entry) for name in columns) + "\n" for entry in _fold(jobs)))

    return Show("history", lambda job: not job.unrecorded and job.token == name, render)


def _fold(jobs: Sequence[Job]) -> Iterator[tuple[Job, str]]:
    """Elements of an array that never started are one record, with an id such as ``422_[1-3]``."""
    for is_waiting, group in groupby(jobs, key=lambda job: not job.runs and (job.number, job.state)):
        alike = list(group)
        if is_waiting and len(alike) > 1:
            yield alike[0], f"{alike[0].number}_[{alike[0].element}-{alike[-1].element}]"
        else:
            yield from ((job, local_id(job)) for job in alike)


def _record(column: str, job: Job, words: str) -> str:
    fields = {
        "jobid": words,
        "state": "CANCELLED by 1001" if job.state == CANCELLED else _state(job),
        "exitcode": f"{job.exit_code or 0}:0",
    }
    if column.lower() not in fields:
        raise UnknownCommand(f"column {column}")
    return fields[column.lower()]


def say_down(program: str) -> Reply:
    """See `Dialect`: slurmctld is dead; sacct asks slurmdbd, and answers."""
    words = "Unable to contact slurm controller (connect failure)"
    match program:
        case "sbatch":
            return Reply("", f"sbatch: error: Batch job submission failed: {words}\n", 1)
        case "scancel":
            return Reply("", f"scancel: error: Kill job error on job id 53: {words}\n", 8)
        case "sacct":
            return Reply()
        case "scontrol":
            return Reply("", f"slurm_load_ctl_conf error: {words}\n", 1)
    return Reply("", f"slurm_load_jobs error: {words}\n", 1)


def say_cut_off() -> Reply:
    """See `Dialect`: slurmctld hung while it was asked."""
    return Reply("", "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation\n", 1)


def local_id(job: Job) -> str:
    """See `Dialect`."""
    return str(job.number) if job.element is None else f"{job.number}_{job.element}"


def variables(job: Job) -> dict[str, str]:
    """See `Dialect`."""
    # Each element has a number of its own, too: the last keeps that of the array.
    common = {"SLURM_JOB_ID": str(job.number), "SLURM_JOB_NAME": job.token}
    if job.element is None:
        return common
    raw = {"SLURM_JOB_ID": str(job.number * 1000 + job.element)}
    return {**common, **raw, "SLURM_ARRAY_JOB_ID": str(job.number), "SLURM_ARRAY_TASK_ID": str(job.element)}
