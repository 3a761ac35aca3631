"""HTCondor 23.9: condor_submit, condor_q, condor_history, condor_rm and condor_config_val.

Texts are from tests/recorded/condor/condor-scenarios.txt and condor-down.txt, options and submit commands from the
manual pages of 23.x.
"""

import json
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests.conformance.fakes.book import BROKEN, CANCELLED, ENDED, HELD, LEAVING, PENDING, RUNNING, SUSPENDED, Job
from tests.conformance.fakes.dialect import Ask, Cancel, Reply, Say, Show, Submit, UnknownCommand, want

PROGRAMS = ("condor_submit", "condor_q", "condor_history", "condor_rm", "condor_config_val")
NAMES = ("condor", "htcondor", "schedd", *PROGRAMS)
HAS_HISTORY = True

_STATUS = {PENDING: 1, RUNNING: 2, CANCELLED: 3, LEAVING: 3, BROKEN: 3, ENDED: 4, HELD: 5, SUSPENDED: 7}
_COMMANDS = frozenset(
    (
        *("universe", "executable", "transfer_executable", "arguments", "initialdir", "output", "error"),
        *("should_transfer_files", "transfer_input_files", "transfer_output_files", "getenv", "environment"),
        *("batch_name", "accounting_group", "request_memory", "periodic_remove"),
    )
)
_SCHEDD = {"MAX_JOBS_PER_SUBMISSION": "20000", "CONDOR_VERSION": "23.9.6"}


def read(program: str, arguments: Sequence[str], stdin: Callable[[], str]) -> Ask:
    """See `Dialect`."""
    match program:
        case "condor_submit":
            want([*arguments] == ["-terse", "-"], f"arguments {arguments}")
            return _read_description(stdin())
        case "condor_rm":
            return _read_removal(arguments)
        case "condor_config_val" if [*arguments] == ["EVENT_LOG"]:
            return Say("log", Reply("", "Not defined: EVENT_LOG\n", 1))
        case "condor_config_val":
            want(len(arguments) == 2 and arguments[0] == "-schedd", f"arguments {arguments}")
            kind = "limit" if arguments[1].startswith("MAX_") else "version"
            return Say(kind, Reply(_SCHEDD[arguments[1]] + "\n"))
    return _read_query(program, arguments)


def _read_description(text: str) -> Submit:
    """condor_submit(1): lines ``name = value``, names with a dot or of own making are attributes and macros."""
    *lines, queue = [line for line in text.splitlines() if line.strip()]
    values = {name.strip(): value.strip() for name, _, value in (line.partition("=") for line in lines)}
    unknown = {name for name in values if "." not in name and not name.startswith("samgrid_")} - _COMMANDS
    want(not unknown, f"submit commands {unknown}")
    count = re.fullmatch(r"queue (\d+)", queue)
    want(count is not None, f"the last line {queue}")
    words = values["arguments"]
    want(words.startswith('"') and words.endswith('"'), f"arguments {words}")
    script = shlex.split(words[1:-1])
    if "transfer_input_files" in values:
        script[0] = next(path for path in _find_files(values, 0) if Path(path).name == script[0])
    elements = range(int(count[1]) if count else 0)

    def render(jobs: Sequence[Job]) -> Reply:
        return Reply(f"{jobs[0].number}.0 - {jobs[0].number}.{len(elements) - 1}\n")

    token = json.loads(values["My.SamgridToken"])
    return Submit(token, elements, script, render, lambda element: _find_files(values, element))


def _find_files(values: Mapping[str, str], process: int) -> tuple[str, ...]:
    """What is carried to one process; ``$INT(NAME)`` is a whole number, of ``$(Process)`` divided by another."""
    if "transfer_input_files" not in values:
        return ()
    want(values["transfer_output_files"] == "results/, last/", "what is carried back")
    divisor = values["samgrid_table"].removeprefix("$(Process) / ")
    listed = values["transfer_input_files"].replace("$INT(samgrid_table)", str(process // int(divisor)))
    return tuple(listed.split(", "))


def _read_query(program: str, arguments: Sequence[str]) -> Show:
    """``-constraint EXPRESSION`` or an id, then ``-json -attributes A,B``."""
    if program == "condor_history":
        *arguments, since_flag, since = arguments
        want(since_flag == "-since" and since.startswith("EnteredCurrentStatus < time() - "), "all of the history")
    *who, json_flag, attributes_flag, columns = arguments
    if who[0] == "-factory":  # late materialization, which nothing here uses
        return Show("waiting", lambda job: False, lambda jobs: Reply(""))
    want((json_flag, attributes_flag) == ("-json", "-attributes"), f"arguments {arguments}")
    is_history = program == "condor_history"

    def is_there(job: Job) -> bool:
        return not job.in_queue and not job.is_live and not job.unrecorded if is_history else job.in_queue

    def render(jobs: Sequence[Job]) -> Reply:
        return Reply(_render_ads(jobs, columns.split(","), always=is_history))

    want(len(who) == 2 and who[0] == "-constraint", f"arguments {arguments}")
    ours = r'\(SamgridToken isnt undefined \|\| regexp\("driver\[\.\]sh", Arguments\)\)'
    if cluster := re.fullmatch(rf"ClusterId == (\d+) && {ours}", who[1]):
        return Show("status", lambda job: is_there(job) and str(job.number) == cluster[1], render)
    if who[1] == "SamgridToken isnt undefined":
        return Show("queue", is_there, render)
    token = re.fullmatch(r'SamgridToken == "([a-z0-9-]+)"', who[1])
    if token is None:
        raise UnknownCommand(f"constraint {who[1]}")
    wanted = token[1]
    return Show("history" if is_history else "find", lambda job: is_there(job) and job.token == wanted, render)


def _render_ads(jobs: Sequence[Job], columns: Sequence[str], always: bool) -> str:
    """condor_q prints nothing for no jobs, condor_history an empty list."""
    if not jobs and not always:
        return ""
    ads = [json.dumps(_ad(job, columns), indent=2, sort_keys=True) for job in jobs]
    return "[\n" + "".join(f"{ad}\n" for ad in "\n,\n".join(ads).split("\n") if ad) + "]\n"


def _ad(job: Job, columns: Sequence[str]) -> dict[str, object]:
    ad: dict[str, object] = {
        "ClusterId": job.number,
        "ProcId": job.element,
        "JobStatus": _STATUS[job.state],
        "ExitBySignal": False,
        "SamgridToken": job.token,
    }
    if job.state == ENDED:
        ad["ExitCode"] = job.exit_code
    if job.state == HELD:
        ad["HoldReason"] = "via condor_hold (by user griduser)"
    if job.state in (CANCELLED, LEAVING):
        ad["RemoveReason"] = "via condor_rm (by user griduser)"
    return {name: value for name, value in ad.items() if name in columns}


def _read_removal(arguments: Sequence[str]) -> Cancel:
    option, constraint = arguments
    terms = re.fullmatch(
        r'\(regexp\("\^\(\?:([^"]+)\)", SamgridToken\)'
        r' \|\| regexp\("driver\[\.\]sh\'\? \(\?:\1\)", Arguments\)\) =\?= true && \((.+)\)',
        constraint,
    )
    want(option == "-constraint" and terms is not None, f"arguments {arguments}")
    assert terms is not None
    procs = r"\(ProcId \?: JobMaterializeNextProcId\) >= (\d+) && \(ProcId \?: TotalSubmitProcs - 1\) <= (\d+)"
    form = re.compile(rf"ClusterId == (\d+)(?: && {procs})?")
    known = [form.fullmatch(term) for term in terms[2].split(" || ")]
    want(None not in known, f"constraint {constraint}")
    wanted = [(int(m[1]), int(m[2] or 0), int(m[3] or 10**9)) for m in known if m]

    prefixes = tuple(terms[1].split("|"))

    def is_named(job: Job) -> bool:
        has_id = any(job.number == n and first <= (job.element or 0) <= last for n, first, last in wanted)
        return job.is_live and has_id and job.token.startswith(prefixes)

    def render(jobs: Sequence[Job]) -> Reply:
        if jobs:
            return Reply(f"All jobs matching constraint ({constraint}) have been marked for removal\n")
        return Reply("", f"\nCouldn't find/remove all jobs matching constraint ({constraint})\n", 1)

    return Cancel(is_named, render)


def say_down(program: str) -> Reply:
    """See `Dialect`: the schedd is killed."""
    where = "<127.0.0.1:21041?alias=127-0-0-1.lab>"
    match program:
        case "condor_submit":
            words = "\nERROR: Failed to connect to local queue manager\nSECMAN:2011:Connection closed\n"
        case "condor_q":
            words = f"\n-- Failed to fetch ads from: {where} : 127-0-0-1.lab\nCEDAR:6001:Failed to connect to {where}\n"
        case "condor_rm":
            words = "SECMAN:2007:Failed to end classad message.\nNo result found for job 27.0\n"
        case "condor_config_val":
            words = "Can't send end of message\nNot defined: CONDOR_VERSION\n"
        case _:
            # It reads a file.
            return Reply("[\n]\n")
    return Reply("", words, 1)


def say_cut_off() -> Reply:
    """See `Dialect`: the schedd died while it was asked."""
    return Reply(
        "", "\nERROR: Failed to commit job submission into the queue.\nSECMAN:2007:Failed to end classad message.\n", 1
    )


def local_id(job: Job) -> str:
    """See `Dialect`."""
    return f"{job.number}.{job.element}"


def variables(job: Job) -> dict[str, str]:
    """See `Dialect`: what the submit description puts into the environment."""
    return {"SAMGRID_CONDOR_ID": local_id(job), "SAMGRID_CONDOR_POSITION": str(job.position)}
