"""OpenPBS 23.06: qsub, qstat, qselect and qdel, with the history of jobs on.

Texts are from tests/recorded/pbs/pbs-transcript.txt, pbs-history.txt and samples/pbs-serverdown.txt of the reference,
options from the manual pages qsub(1B), qstat(1B), qselect(1B) and qdel(1B).
"""

import getpass
import json
import re
from collections.abc import Callable, Sequence
from itertools import groupby

from tests.conformance.fakes.book import BROKEN, CANCELLED, ENDED, HELD, LEAVING, PENDING, RUNNING, SUSPENDED, Job
from tests.conformance.fakes.dialect import Ask, Cancel, Options, Reply, Say, Show, Submit, want

PROGRAMS = ("qsub", "qstat", "qselect", "qdel")
NAMES = ("pbs", "openpbs")
HAS_HISTORY = True

_LETTERS = {
    PENDING: "Q",
    HELD: "H",
    RUNNING: "R",
    LEAVING: "E",
    SUSPENDED: "S",
    CANCELLED: "F",
    ENDED: "F",
    BROKEN: "F",
}
# job.h: finished, failed, deleted.
_SUBSTATES = {ENDED: 92, BROKEN: 93, CANCELLED: 91}
_STARTED = "Sun Nov 22 17:24:30 2026"
_SERVER = """\
Server: vm
    server_state = Active
    server_host = localhost
    total_jobs = 0
    default_queue = workq
    max_array_size = 10000
    pbs_version = 23.06.06
"""


def read(program: str, arguments: Sequence[str], stdin: Callable[[], str]) -> Ask:
    """See `Dialect`."""
    match program:
        case "qsub":
            return _read_submission(Options(arguments, "-N -m -j -q -l -o -e -P -A -J -W -v", "-f -h"))
        case "qdel":
            want(len(arguments) == 1, "several ids: a known and an unknown one in one call crash the server")
            return Cancel(
                lambda job: not job.unrecorded and _is_named(job, arguments[0]),
                lambda jobs: _render_deleted(jobs, arguments[0]),
            )
        case "qselect":
            return _read_selection(Options(arguments, "-u -N", "-x"))
    return _read_query(Options(arguments, "-F", "-t -f -x -B -E"))


def _read_submission(options: Options) -> Submit:
    elements = None
    if options.has("-J"):
        first, last = map(int, options.get("-J").split("-"))
        want(first < last, "an array of one")
        elements = range(first, last + 1)
    want(options.rest[0] == "/bin/sh", f"the program {options.rest}")
    return Submit(
        options.get("-N"),
        elements,
        options.rest,
        lambda jobs: Reply(f"{jobs[0].number}{'[]' if elements else ''}.vm\n"),
    )


def _read_selection(options: Options) -> Ask:
    """Ids, of arrays as wholes."""
    want(options.get("-u") == getpass.getuser(), "everybody's jobs: others may have any number of them")
    with_ended, named = options.has("-x"), options.has("-N")
    token = options.get("-N") if named else ""

    def render(jobs: Sequence[Job]) -> Reply:
        shown = _render_jobs(jobs, with_ended).items()
        ids = [name for name, job in shown if ("[]" in name) == ("[" in name) and token in ("", job["Job_Name"])]
        return Reply("".join(f"{name}\n" for name in ids))

    return Show("history" if with_ended else "find" if named else "queue", lambda job: True, render)


def _read_query(options: Options) -> Ask:
    if options.has("-B"):
        return Say("limit", Reply(_SERVER))
    want(options.has("-f") and options.has("-t") and options.get("-F") == "json", "a form of the answer")
    with_ended = options.has("-x")
    want(bool(options.rest), "everybody's jobs: others may have any number of them")
    wanted, *more = options.rest
    want(not more or options.has("-E"), "several ids: -F json shows the first only")

    def render(jobs: Sequence[Job]) -> Reply:
        shown = _render_jobs(jobs, with_ended)
        asked = {name: job for name, job in shown.items() if {name, _array_of(name)} & {*options.rest}}
        if asked:
            return _render_answer(asked)
        if any(_is_named(job, wanted) for job in jobs):
            words = f"qstat: {wanted} Job has finished, use -x or -H to obtain historical job information\n"
            return _render_answer({})._replace(stderr=words, exit_code=35)
        return _render_answer({})._replace(stderr=f"qstat: Unknown Job Id {wanted}\n", exit_code=153)

    return Show("details" if options.has("-E") else "status", lambda job: True, render)


def _array_of(name: str) -> str:
    return re.sub(r"\[\d*\]", "[]", name)


def _render_answer(jobs: dict[str, dict[str, object]]) -> Reply:
    head = {"timestamp": 1795217927, "pbs_version": "23.06.06", "pbs_server": "vm"}
    return Reply(json.dumps({**head, "Jobs": jobs} if jobs else head, indent="\t") + "\n")


def _render_jobs(jobs: Sequence[Job], with_ended: bool) -> dict[str, dict[str, object]]:
    """Elements that have ended are shown, with an X, as long as their array has others.

    One that never started has no object of its own: the server tells its array's attributes (pbs.md of the reference).
    """
    shown: dict[str, dict[str, object]] = {}
    for _, group in groupby(jobs, key=lambda job: (job.number, job.appears)):
        elements = list(group)
        in_queue = any(job.in_queue for job in elements)
        if elements[0].element is not None and (in_queue or with_ended):
            shown[f"{elements[0].number}[].vm"] = _attributes(elements[0], "B" if in_queue else "F")
        for job in elements:
            letter = "X" if in_queue and not job.in_queue else _LETTERS[job.state]
            if in_queue or (with_ended and not job.unrecorded):
                is_borrowed = job.element is not None and not job.runs and letter in "FX"
                own = _attributes(job, letter)
                shown[local_id(job)] = {**own, **_attributes_of_array(elements)} if is_borrowed else own
    return shown


def _attributes_of_array(elements: Sequence[Job]) -> dict[str, object]:
    """Those that an element without an object has from its array; its state and comment are its own."""
    substate = 91 if elements[-1].state == CANCELLED else 92
    status = 1 if any(job.exit_code for job in elements) else 0
    return {"substate": substate, "Exit_status": status, "stime": _STARTED, "comment": "Subjob finished"}


def _attributes(job: Job, letter: str) -> dict[str, object]:
    attributes: dict[str, object] = {
        "Job_Name": job.token,
        "Job_Owner": f"{getpass.getuser()}@localhost",
        "job_state": letter,
        "queue": "workq",
        "server": "vm",
        "Hold_Types": "u" if job.state == HELD else "n",
        "substate": _SUBSTATES.get(job.state, 42),
    }
    if letter in "FX" and job.state == ENDED:
        attributes["Exit_status"] = job.exit_code
    if letter in "FX" and job.state == BROKEN:
        attributes["Exit_status"] = -2
    if job.state == CANCELLED and job.runs:
        attributes["Exit_status"] = 271
    if job.runs:
        attributes |= {"run_count": job.runs, "stime": _STARTED}
    return attributes


def _is_named(job: Job, wanted: str) -> bool:
    span = re.fullmatch(r"(\d+)\[(\d+)-(\d+)\]\.vm", wanted)
    if span is not None:
        number, first, last = map(int, span.groups())
        return job.number == number and job.element is not None and first <= job.element <= last
    return wanted in (local_id(job), f"{job.number}[].vm" if job.element is not None else "")


def _render_deleted(jobs: Sequence[Job], wanted: str) -> Reply:
    if any(job.is_live for job in jobs):
        return Reply()
    if jobs:
        return Reply("", f"qdel: Job has finished {wanted}\n", 35)
    return Reply("", f"qdel: Unknown Job Id {wanted}\n", 153)


def say_down(program: str) -> Reply:
    """See `Dialect`: no server at its port."""
    match program:
        case "qdel":
            return Reply("", "Connection refused\nCouldn't connect to cluster: vm\n", 162)
        case "qsub":
            return Reply("", "Connection refused\nqsub: cannot connect to server vm (errno=15010)\n", 162)
        case "qselect":
            return Reply("", "Connection refused\nqselect: cannot connect to server vm (errno=15010)\n", 162)
    return _render_answer({})._replace(
        stderr="Connection refused\nqstat: cannot connect to server vm (errno=15010)\n", exit_code=255
    )


def say_cut_off() -> Reply:
    """See `Dialect`: the server died while it was asked."""
    return Reply("", "qsub: End of File\n", 1)


def local_id(job: Job) -> str:
    """See `Dialect`."""
    return f"{job.number}.vm" if job.element is None else f"{job.number}[{job.element}].vm"


def variables(job: Job) -> dict[str, str]:
    """See `Dialect`."""
    index = {} if job.element is None else {"PBS_ARRAY_INDEX": str(job.element)}
    return {"PBS_JOBID": local_id(job), "PBS_JOBNAME": job.token, **index}
