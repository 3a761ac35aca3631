"""LSF 10.1: bsub, bjobs, bkill, bparams and lsid.

Texts are those of tests/recorded/lsf/documented.txt, options those of IBM's Command Reference: there was no LSF to be
recorded.
"""

import re
from collections.abc import Callable, Sequence

from tests.conformance.fakes.book import BROKEN, CANCELLED, ENDED, HELD, LEAVING, PENDING, RUNNING, SUSPENDED, Job
from tests.conformance.fakes.dialect import Ask, Cancel, Options, Reply, Say, Show, Submit, UnknownCommand, want

PROGRAMS = ("bsub", "bjobs", "bkill", "bparams", "lsid")
NAMES = ("lsf", "mbatchd", *PROGRAMS)
HAS_HISTORY = False

_STATES = {
    **{PENDING: "PEND", HELD: "PSUSP", RUNNING: "RUN", SUSPENDED: "USUSP", LEAVING: "RUN"},
    **{CANCELLED: "EXIT", BROKEN: "EXIT"},
}
_ENDS = {CANCELLED: "TERM_OWNER: job killed by owner", BROKEN: "TERM_UNKNOWN: unknown reason"}
_WAITS = {
    PENDING: "Job's resource requirements not satisfied;",
    HELD: "Job was suspended by the user while pending;",
}


def read(program: str, arguments: Sequence[str], stdin: Callable[[], str]) -> Ask:
    """See `Dialect`."""
    match program:
        case "bsub":
            return _read_submission(Options(arguments, "-J -env -o -e -cwd -q -P -c -W -M -R", "-H -rn"))
        case "bjobs":
            return _read_query(Options(arguments, "-o -J -u", "-a -noheader"))
        case "bkill":
            want(all(re.fullmatch(r"\d+(\[\d+\])?", word) for word in arguments), f"ids {arguments}")
            return Cancel(lambda job: _is_named(job, arguments), lambda jobs: _render_killed(jobs, arguments))
        case "bparams":
            want([*arguments] == ["-a"], f"arguments {arguments}")
            return Say("limit", Reply("lsb.params configuration\n\tCLEAN_PERIOD = 3600\n\tMAX_JOB_ARRAY_SIZE = 1000\n"))
    return Say("version", Reply("IBM Spectrum LSF Standard 10.1.0.12, Jun 10 2021\n"))


def _read_submission(options: Options) -> Submit:
    name = re.fullmatch(r"([^\[]+)(?:\[(\d+)-(\d+)\])?", options.get("-J"))
    if name is None:
        raise UnknownCommand(f"name {options.get('-J')}")
    elements = range(int(name[2]), int(name[3]) + 1) if name[2] else None
    return Submit(
        name[1],
        elements,
        options.rest,
        lambda jobs: Reply(f"Job <{jobs[0].number}> is submitted to default queue <normal>.\n"),
    )


def _read_query(options: Options) -> Show:
    want(options.has("-noheader") and options.has("-a"), "a form of the answer")
    text, _, delimiter = options.get("-o").partition(" delimiter=")
    want(delimiter == "'|'", f"fields {options.get('-o')}")
    columns = text.split()

    def render(jobs: Sequence[Job], nothing: str = "No job found") -> Reply:
        lines = ("|".join(_field(column, job) for column in columns) for job in jobs)
        return Reply("".join(f"{line}\n" for line in lines)) if jobs else Reply("", f"{nothing}\n", 255)

    if options.has("-J"):
        name = options.get("-J")
        return Show(
            "find",
            lambda job: not job.forgotten and job.token == name,
            lambda jobs: render(jobs, f"Job <{name}> is not found"),
        )
    if not options.rest:
        return Show("queue", lambda job: not job.forgotten, render)
    (wanted,) = options.rest
    return Show(
        "status",
        lambda job: not job.forgotten and _is_named(job, [wanted]),
        lambda jobs: render(jobs, f"Job <{wanted}> is not found"),
    )


def _field(column: str, job: Job) -> str:
    fields = {
        "jobid": str(job.number),
        "jobindex": str(job.element or 0),
        "stat": _STATES.get(job.state, "EXIT" if job.exit_code else "DONE"),
        "exit_code": str(job.exit_code) if job.state == ENDED and job.exit_code else "-",
        "job_name": job.token if job.element is None else f"{job.token}[{job.element}]",
        "exit_reason": _ENDS.get(job.state, "-"),
        "pend_reason": _WAITS.get(job.state, "-"),
    }
    if column not in fields:
        raise UnknownCommand(f"field {column}")
    return fields[column]


def _is_named(job: Job, ids: Sequence[str]) -> bool:
    return local_id(job) in ids or str(job.number) in ids


def _render_killed(jobs: Sequence[Job], ids: Sequence[str]) -> Reply:
    killed, failed = [], []
    for word in ids:
        of_word = [job for job in jobs if _is_named(job, [word])]
        if any(job.is_live for job in of_word):
            killed.append(f"Job <{word}> is being terminated\n")
        else:
            why = "Job has already finished" if of_word else "No matching job found"
            failed.append(f"Job <{word}>: {why}\n")
    return Reply("".join(killed), "".join(failed), 255 if failed else 0)


def say_down(program: str) -> Reply:
    """See `Dialect`."""
    words = {
        "bsub": "batch daemon not responding ... still trying",
        "bkill": "LSF daemon (LIM) not responding ... still trying",
        "lsid": "ls_getclustername: LIM is down; try later",
    }
    return Reply("", words.get(program, "LSF is down. Please wait ...") + "\n", 255)


def say_cut_off() -> Reply:
    """See `Dialect`: bsub goes on trying, and may be given up meanwhile."""
    return Reply("", "batch daemon not responding ... still trying\n", 255)


def local_id(job: Job) -> str:
    """See `Dialect`."""
    return str(job.number) if job.element is None else f"{job.number}[{job.element}]"


def variables(job: Job) -> dict[str, str]:
    """See `Dialect`."""
    return {"LSB_JOBID": str(job.number), "LSB_JOBINDEX": str(job.element or 0), "LSB_JOBNAME": job.token}
