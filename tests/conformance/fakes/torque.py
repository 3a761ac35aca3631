"""Torque 6.1: qsub, qstat, qselect and qdel.

Its words are those of its manual pages and source; what it shares with OpenPBS was measured there. Nothing of it was
recorded, as no real Torque was at hand.
"""

import getpass
import re
import shlex
from collections.abc import Callable, Sequence

from tests.conformance.fakes import pbs
from tests.conformance.fakes.book import BROKEN, CANCELLED, ENDED, HELD, LEAVING, PENDING, RUNNING, SUSPENDED, Job
from tests.conformance.fakes.dialect import Ask, Cancel, Options, Reply, Say, Show, Submit, want

PROGRAMS = pbs.PROGRAMS
NAMES = ("torque", *pbs.NAMES)
HAS_HISTORY = False
local_id = pbs.local_id

_LETTERS = {
    PENDING: "Q",
    HELD: "H",
    RUNNING: "R",
    LEAVING: "E",
    SUSPENDED: "S",
    CANCELLED: "C",
    ENDED: "C",
    BROKEN: "C",
}


def read(program: str, arguments: Sequence[str], stdin: Callable[[], str]) -> Ask:
    """See `Dialect`."""
    match program:
        case "qsub":
            return _read_submission(Options(arguments, "-N -m -j -q -l -o -e -A -t -W -v", "-h"), stdin())
        case "qdel":
            want(len(arguments) == 1, "several ids")
            wanted = arguments[0]
            return Cancel(lambda job: _is_named(job, wanted), lambda jobs: _render_deleted(jobs, wanted))
        case "qselect":
            want(list(arguments) == ["-u", getpass.getuser()], "everybody's jobs: others may have any number of them")
            return Show("queue", _is_shown, lambda jobs: Reply("".join(f"{local_id(job)}\n" for job in jobs)))
    if "-B" in arguments:
        return Say("version", Reply("Server: vm\n    server_state = Active\n    pbs_version = 6.1.2\n"))
    options = Options(arguments, "", "-t -f -x")
    want(all(map(options.has, ("-t", "-f", "-x"))), "a form of the answer")
    want(bool(options.rest), "everybody's jobs: others may have any number of them")
    ids = options.rest

    def render(jobs: Sequence[Job]) -> Reply:
        """A list for each id."""
        found = {one: [job for job in jobs if _is_named(job, one)] for one in ids}
        unknown = "".join(f"qstat: Unknown Job Id Error {one}\n" for one in ids if not found[one])
        return Reply("".join(_render_jobs(found[one]).stdout for one in ids), unknown, 153 if unknown else 0)

    kind = "status" if len(ids) == 1 and "[]" not in ids[0] else "details"
    return Show(kind, lambda job: _is_shown(job) and any(_is_named(job, one) for one in ids), render)


def _read_submission(options: Options, script: str) -> Submit:
    """The script comes on stdin: ``exec /bin/sh DRIVER TOKEN``."""
    want(not options.rest, f"a script file {options.rest}")
    elements = None
    if options.has("-t"):
        first, last = map(int, options.get("-t").split("-"))
        elements = range(first, last + 1)
    brackets = "" if elements is None else "[]"
    return Submit(
        options.get("-N"), elements, shlex.split(script), lambda jobs: Reply(f"{jobs[0].number}{brackets}.vm\n")
    )


def _is_shown(job: Job) -> bool:
    """Ended jobs for keep_completed seconds."""
    return not job.forgotten


def _render_jobs(jobs: Sequence[Job]) -> Reply:
    return Reply("<Data>" + "".join(map(_render_job, jobs)) + "</Data>\n" if jobs else "")


def _render_job(job: Job) -> str:
    attributes = {
        "Job_Id": local_id(job),
        "Job_Name": job.token if job.element is None else f"{job.token}-{job.element}",
        "Job_Owner": f"{getpass.getuser()}@localhost",
        "job_state": _LETTERS[job.state],
        "Hold_Types": "u" if job.state == HELD else "n",
        **{ENDED: {"exit_status": str(job.exit_code)}, CANCELLED: {"exit_status": "271"}}.get(job.state, {}),
        **({"exit_status": "-2"} if job.state == BROKEN else {}),
    }
    return "<Job>" + "".join(f"<{name}>{value}</{name}>" for name, value in attributes.items()) + "</Job>"


def _is_named(job: Job, wanted: str) -> bool:
    return wanted in (local_id(job), re.sub(r"\[\d+\]", "[]", local_id(job)))


def _render_deleted(jobs: Sequence[Job], wanted: str) -> Reply:
    if any(job.is_live for job in jobs):
        return Reply()
    if jobs:
        return Reply("", f"qdel: Request invalid for state of job MSG=invalid state for job - COMPLETE {wanted}\n", 170)
    return Reply("", f"qdel: Unknown Job Id {wanted}\n", 153)


def say_down(program: str) -> Reply:
    """See `Dialect`."""
    return Reply("", f"{program}: cannot connect to server vm (errno=111) Connection refused\n", 111)


def say_cut_off() -> Reply:
    """See `Dialect`: as OpenPBS."""
    return pbs.say_cut_off()


def variables(job: Job) -> dict[str, str]:
    """See `Dialect`."""
    index = {} if job.element is None else {"PBS_ARRAYID": str(job.element)}
    return {"PBS_JOBID": local_id(job), "PBS_JOBNAME": job.token, **index}
