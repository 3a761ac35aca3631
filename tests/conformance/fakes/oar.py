"""OAR 2.5: oarsub, oarstat and oardel, by their manual pages, for the batch system of examples/oar.toml.

Nothing of it was recorded: there was no OAR.
"""

import re
import shlex
from collections.abc import Callable, Sequence

from tests.conformance.fakes.book import BROKEN, CANCELLED, ENDED, HELD, LEAVING, PENDING, RUNNING, SUSPENDED, Job
from tests.conformance.fakes.dialect import Ask, Cancel, Options, Reply, Say, Show, Submit, UnknownCommand, want

PROGRAMS = ("oarsub", "oarstat", "oardel")
NAMES = ("oar", *PROGRAMS)
HAS_HISTORY = True

_LETTERS = {
    PENDING: "W",
    HELD: "H",
    RUNNING: "R",
    SUSPENDED: "S",
    LEAVING: "F",
    ENDED: "T",
    CANCELLED: "E",
    BROKEN: "E",
}
_HEAD = """\
Job id     Name           User           Submission Date     S Queue
---------- -------------- -------------- ------------------- - ----------
"""


def read(program: str, arguments: Sequence[str], stdin: Callable[[], str]) -> Ask:
    """See `Dialect`."""
    match program:
        case "oarsub":
            options = Options(arguments, "-n -d -O -E -q -l --project -p -t")
            want(len(options.rest) == 1, f"a command of several words {options.rest}")
            # A line for a shell.
            script = shlex.split(options.rest[0])
            return Submit(options.get("-n"), None, script, _render_submitted)
        case "oardel":
            return Cancel(lambda job: local_id(job) in arguments, _render_deleted)
    if [*arguments] == ["-V"]:
        return Say("version", Reply("OAR version : 2.5.9\n"))
    return _read_query(Options(arguments, "--format --sql -j", "-u"))


def _render_submitted(jobs: Sequence[Job]) -> Reply:
    return Reply(f"[ADMISSION RULE] Set default walltime to 7200.\nOAR_JOB_ID={jobs[0].number}\n")


def _read_query(options: Options) -> Show:
    want(options.get("--format") == "1", "a form of the answer")
    if options.has("-u"):
        return Show("queue", lambda job: job.in_queue, _render_jobs)
    if options.has("-j"):
        wanted = options.get("-j")
        return Show("status", lambda job: local_id(job) == wanted, _render_jobs)
    words = re.fullmatch(r"job_name = '([a-z0-9-]+)'( AND state IN \('Terminated', 'Error'\))?", options.get("--sql"))
    if words is None:
        raise UnknownCommand(f"--sql {options.get('--sql')}")
    name, only_ended = words[1], words[2] is not None

    def chosen(job: Job) -> bool:
        # The database keeps all of them, whatever the queue shows.
        is_known = job.is_live or not job.unrecorded
        return job.token == name and is_known and not (only_ended and (job.is_live or job.state == LEAVING))

    return Show("history" if only_ended else "find", chosen, _render_jobs)


def _render_jobs(jobs: Sequence[Job]) -> Reply:
    lines = [
        f"{job.number:<10} {job.token:<14} {'griduser':<14} 2026-11-21 05:00:00 {_LETTERS[job.state]} {'default':<10}\n"
        for job in jobs
    ]
    return Reply(_HEAD + "".join(lines) if lines else "")


def _render_deleted(jobs: Sequence[Job]) -> Reply:
    if not jobs:
        return Reply("", "You are not the right user.\n", 1)
    if not any(job.is_live for job in jobs):
        return Reply("", "This job was already killed.\n", 6)
    return Reply("".join(f"Deleting the job = {job.number} ...REGISTERED.\n" for job in jobs))


def say_down(program: str) -> Reply:
    """See `Dialect`."""
    return Reply("", "Cannot connect to database\n", 2)


def say_cut_off() -> Reply:
    """See `Dialect`: the job is in the database, and nobody is told."""
    return Reply("", "Cannot connect to executor\n", 3)


def local_id(job: Job) -> str:
    """See `Dialect`."""
    return str(job.number)


def variables(job: Job) -> dict[str, str]:
    """See `Dialect`."""
    return {"OAR_JOB_ID": str(job.number), "OAR_JOB_NAME": job.token}
