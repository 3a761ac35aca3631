"""Reads what Grid Engine's programs print: local jobs, their states, and the configuration (for ``samgrid doctor``)."""

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from signal import Signals
from typing import TYPE_CHECKING

from batch_adapters.adapter import Garbled, Job, read_range
from batch_adapters.running.diagnosis import PARALLEL_ENVIRONMENT, Ask, Finding, Level, Printed, judge, read_seconds
from batch_adapters.states import Cause, State

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

# sge_status(5): a state is a set of letters, which qstat prints in an order that is not documented ("Shs"). Ours is:
_ORDER = "dEhRqwtrsSTz"
_PREFIXES = tuple(map("".join, itertools.product(("", "d"), ("", "E"), ("", "h"), ("", "R"))))
_SUSPENDED = ("s", "S", "T", "sS", "sT", "ST", "sST")
_BODIES = {
    **dict.fromkeys(("q", "w", "qw"), State.PENDING),
    **dict.fromkeys(("t", "r", "tr"), State.ACTIVE),
    **{on + by: State.SUSPENDED for on in ("", "t", "r") for by in _SUSPENDED},
}

# sge_status(5), "failed". These jobs went back to the queue, to wait there or in the error state.
GOES_ON = frozenset(map(str, (*range(1, 12), *range(24, 37), 38)))
# 0: ended by itself; 100: by a signal, with 128 + its number as exit status.
ENDED_BY_ITSELF = ("0", "100")
_FAILED = (*map(str, range(12, 22)), "37")

STATES = {
    **{prefix + body: state for prefix in _PREFIXES for body, state in _BODIES.items()},
    "z": State.DONE,
    **{f"failed {code}": State.DONE for code in ENDED_BY_ITSELF},
    **{f"failed {code}": State.FAILED for code in _FAILED},
}
"""Native states: letters in the order of `order_letters`; and from the history ``failed`` with its code."""

CAUSES = {
    # 12 to 16 have no cause: the program had ended, and only a procedure of the site failed.
    **dict.fromkeys(("failed 18", "failed 19", "failed 20", "failed 21"), Cause.NODE_LOST),
    "failed 17": Cause.SIGNAL,
    # One of three limits; the figures may say which one.
    "failed 37": Cause.TIME_LIMIT,
    "failed 100": Cause.SIGNAL,
}

_LIMITED = ("37", "100")
"""Codes of jobs that a signal ended at a hard limit: 37 if the qmaster knew, 100 if the execution daemon did it."""
_LIMITS = {
    # complex(5): the limit that a job asks for, what qacct shows of its use, and the signal. If that ends
    # only the program, as kernel and warnings do, the job ended by itself, with the program's exit status.
    "h_rt": ("ru_wallclock", Cause.TIME_LIMIT, Signals.SIGKILL),
    "h_cpu": ("cpu", Cause.CPU_LIMIT, Signals.SIGKILL),
    "h_vmem": ("maxvmem", Cause.MEMORY_LIMIT, Signals.SIGKILL),
    "s_rt": ("ru_wallclock", Cause.TIME_LIMIT, Signals.SIGUSR1),
    "s_cpu": ("cpu", Cause.CPU_LIMIT, Signals.SIGXCPU),
    "s_vmem": ("maxvmem", Cause.MEMORY_LIMIT, Signals.SIGXCPU),
}
_FIGURE = re.compile(r"(?:(\d{1,9}):)??(?:(\d{1,9}):)?(\d{1,15}(?:\.\d{1,9})?)([kKmMgGtT]?)[Bs]{0,2}")
_UNITS = {"": 1, **{letter: 1024**power for power, pair in enumerate(("kK", "mM", "gG", "tT"), 1) for letter in pair}}

BLOCKS = {
    # Deleting it again does not help; it goes when its host answers.
    r"d\w*(?: .*)?": "qdel -f {id}, by a manager, if it stays so",
    r"\w*E\w*(?: .*)?": "qmod -cj {array}",
    r"h\w*[qw](?: .*)?": "qrls {array}",
    r"R?[qw]+ .* is disabled": "qmod -e QUEUE, by an operator; not where a calendar has disabled it (D in qstat -f)",
    r"[Rtr]*s\w*(?: .*)?": "qmod -usj {array}",
    # "qstat -f" shows a queue that was suspended by a person as s, by another queue as S, by a calendar as C.
    r"[Rtr]*S\w*(?: .*)?": "qmod -usq QUEUE, by an operator; not where another queue or a calendar has suspended it",
}
"""By letters in the order of `order_letters`: in error, held, suspended. T ends by itself, with the load."""

LEAVING = frozenset(state for state in STATES if state.startswith("d"))


def order_letters(letters: str) -> str:
    """A state as qstat prints it, spelt as in `STATES`; unknown letters come first."""
    return "".join(sorted(letters, key=_ORDER.find))


def read_queue(printed: str) -> Iterator[Job]:
    """The jobs in the output of ``qstat -xml``, where waiting tasks of an array share an entry.

    :raises Garbled, ElementTree.ParseError: it is another answer, or a torn one.
    """
    # Imported late: loading expat takes 5 ms.
    from xml.etree import ElementTree

    # Entities could use up the memory; qstat declares none.
    if "<!" in printed:
        raise Garbled(f"a declaration that qstat does not make: {printed[printed.index('<!') :][:200]!r}")
    for entry in ElementTree.fromstring(printed).iter("job_list"):
        yield from _read_entry(entry)


def _read_entry(entry: "Element") -> Iterator[Job]:
    number, letters, name = (entry.findtext(tag) or "" for tag in ("JB_job_number", "state", "JB_name"))
    if not number.isdecimal() or not letters:
        raise Garbled(f"an entry with number {number[:50]!r} and state {letters[:50]!r}")
    state = order_letters(letters)
    tasks = entry.findtext("tasks")
    # qstat(1), "ja-task-ID": 1,3,10-12:1.
    ranges = [] if tasks is None else map(read_range, tasks.split(","))
    ids = [f"{number}.{task}" for numbers in ranges for task in numbers] or [number]
    # Why a job is in error only "qstat -j" tells.
    is_held = "h" in state and "E" not in state and STATES.get(state) is State.PENDING
    for local_id in ids:
        yield Job(local_id, state, reason="held" if is_held else "", token=name)


SCHEDULING = r"(?m)^(?:scheduling info:| ) +(?!There are no messages|All queues dropped)(\S.*)"
_NOT_FOR_IT = "not contained in its hard queue list"


def read_blocks(printed: str) -> dict[str, str]:
    """What blocks tasks, by their ids, or a job's waiting tasks, by its number, from ``qstat -j`` for one job.

    Errors, and that all queues in which it may run are disabled. Other reasons end by themselves, or may.
    """
    number = re.search(r"(?m)^job_number: +(\d+)$", printed)
    if number is None:
        return {}
    # Before the reason there are a time, and sometimes the numbers of user and shepherd.
    errors = re.findall(r"(?m)^error reason +(\d+): +[\d/]{10} [\d:]{8} (?:\[\d+:\d+\]: )?(.*)$", printed)
    found = {f"{number[1]}.{task}": words for task, words in errors}
    reasons = [words for words in re.findall(SCHEDULING, printed) if _NOT_FOR_IT not in words]
    if reasons and all(words.endswith(" is disabled") for words in reasons):
        found[number[1]] = "; ".join(sorted(reasons))
    return found


def read_tokens(printed: str) -> dict[str, str]:
    """The token that each driver was given, by its job's number, from the output of ``qstat -j``."""
    return dict(re.findall(r"(?m)^job_number: +(\d+)$(?:\n(?!=====).*)*?\njob_args:.*/driver\.sh,([^\s,]+)$", printed))


def read_history(printed: str) -> Iterable[Job]:
    """The ended jobs in the output of ``qacct -j``; for jobs that ran several times, the last end.

    :raises LookupError, ValueError: a record is incomplete.
    """
    ended: dict[str, Job] = {}
    for record in re.split(r"(?m)^=+\n", printed)[1:]:
        words = {name: value.rstrip() for name, value in re.findall(r"(?m)^(\w+) +(.*)\n", record)}
        local_id, token = _read_id(words), words["jobname"]
        # "100 : assumedly after job", "137 (Killed)".
        code, exit_code = words["failed"].split()[0], int(words["exit_status"].split()[0])
        ended.pop(local_id, None)
        if code not in GOES_ON:
            reason = words["failed"].partition(":")[2].strip()
            cause, by, limit = _read_cause(code, exit_code, words)
            reason = reason or limit
            # The output has everybody's jobs of that name.
            owner = words["owner"].strip()
            ended[local_id] = Job(local_id, f"failed {code}", exit_code, reason, token, owner, cause, by)
    return ended.values()


def _read_cause(code: str, exit_code: int, words: dict[str, str]) -> tuple[Cause | None, str, str]:
    """The cause beyond ``failed``; who deleted the job (later versions), or a limit that it exceeded."""
    by = words.get("deleted_by", "NONE").partition("@")[0]
    if by not in ("NONE", ""):
        return Cause.CANCELLED_OUTSIDE, by, ""
    if code not in (*ENDED_BY_ITSELF, *_LIMITED):
        return None, "", ""
    asked = dict(re.findall(r"\b([hs]_\w+)=([^\s,]+)", f"{words.get('category')} {words.get('hard_resources')}"))
    for name, (use, cause, number) in _LIMITS.items():
        is_enforced = exit_code == 128 + number or (code in _LIMITED and number is Signals.SIGKILL)
        limit, used = _read_figure(asked.get(name, "")), _read_figure(words.get(use, ""))
        if is_enforced and limit is not None and used is not None and used >= limit:
            return cause, "", f"{name}={asked[name]}"
    return None, "", ""


def _read_figure(text: str) -> float | None:
    """Seconds or bytes: ``90``, ``0:1:30``, ``11s``, ``2000M``, ``3.344MB``; None for anything else (INFINITY)."""
    match = _FIGURE.fullmatch(text)
    if match is None:
        return None
    hours, minutes, number, unit = match.groups()
    return (int(hours or 0) * 60 + int(minutes or 0)) * 60 + float(number) * float(_UNITS[unit])


def _read_id(words: dict[str, str]) -> str:
    number, task = int(words["jobnumber"]), words["taskid"]
    return f"{number}" if task == "undefined" else f"{number}.{int(task)}"


_CONFIGURE = "run qconf -mconf as Grid Engine's administrator, and write"
_WANTED = "reporting_params accounting=true reporting=true flush_time=00:00:01 joblog=true sharelog=00:00:00"
_LATE = 5
"""Seconds by which events may be late without a warning."""
_WITHOUT_RERUNS = 'write options = ["-r", "n"] into [batch.sge] of samgrid.toml'


def diagnose(ask: Ask, environment: Mapping[str, str]) -> Iterator[Finding]:
    """Check reporting and accounting (sge_conf(5)), queues, settings that run jobs again, cores, default options."""
    settings = _read_settings(ask(["qconf", "-sconf"]).stdout)
    # A qmaster that does not answer is reported for every batch system alike.
    if settings:
        queues = re.split(r"(?m)^(?=qname )", ask(["qconf", "-sq", "*"]).stdout)
        yield from _diagnose_reporting(settings)
        yield from _diagnose_reruns(settings, queues)
        yield from _diagnose_queues(ask(["qstat", "-g", "c"]).stdout)
        yield from _diagnose_cores(ask(["qconf", "-sp", PARALLEL_ENVIRONMENT]), queues)
    yield from _diagnose_defaults(ask, environment)


def _read_settings(printed: str) -> dict[str, str]:
    """Name and value of each line; lines that end in a backslash continue."""
    return dict(re.findall(r"(?m)^([a-z]\w*) +(.*?) *$", re.sub(r"\\\n\s*", "", printed)))


def _diagnose_reporting(settings: Mapping[str, str]) -> Iterator[Finding]:
    params = dict(re.findall(r"(\w+)=([^\s,]+)", settings.get("reporting_params", "")))
    off = [name for name in ("reporting", "joblog") if params.get(name, "").lower() not in ("true", "1")]
    seconds = read_seconds(params.get("flush_time", "15"))
    if off:
        text = f"Grid Engine's reporting file does not tell of jobs ({' and '.join(off)} off): their ends come late."
        yield Finding(Level.FAULT, text, f"{_CONFIGURE} {_WANTED}")
    else:
        late = f"{seconds} s" if seconds else "a minute"
        text = "Grid Engine's reporting file tells of jobs, and at once."
        bad = f"Grid Engine's reporting file is written with a delay of up to {late} (flush_time), and so events come."
        yield judge(0 < seconds <= _LATE, text, f"{_CONFIGURE} {_WANTED}", bad)
    yield judge(
        params.get("accounting", "true").lower() in ("true", "1"),
        "Grid Engine's accounting file keeps the ends of jobs until somebody rotates it.",
        f"{_CONFIGURE} {_WANTED}",
        "Grid Engine keeps no accounting: a job that has left the queue has no second witness of its end.",
        Level.FAULT,
    )


def _diagnose_queues(printed: str) -> Iterator[Finding]:
    """A fault if no queue starts jobs, by the slots that are used, available, there, and closed (cdsuE)."""
    figures = re.findall(r"(?m)^\S+ +\S+ +(\d+) +\d+ +(\d+) +(\d+) +\d+ +(\d+) *$", printed)
    if figures and all(closed == total or used == free == "0" for used, free, total, closed in figures):
        text = "No queue of Grid Engine starts jobs: disabled, suspended, in error, or without a host that answers."
        remedy = 'see "qstat -f -explain E"; as an operator: qmod -e QUEUE, qmod -usq QUEUE or qmod -cq QUEUE'
        yield Finding(Level.FAULT, text, remedy)


def _diagnose_cores(printed: Printed, queues: Sequence[str]) -> Iterator[Finding]:
    """Check that requests can have several cores: a queue has the parallel environment (sge_pe(5))."""
    if absent := re.match(r"(\S+) is not a parallel environment", printed.stderr):
        text = f"There is no parallel environment {absent[1]}: Grid Engine refuses requests with more than one core."
        yield Finding(
            Level.WARNING,
            text,
            f"run qconf -ap {absent[1]} as its administrator, write allocation_rule $pe_slots, and {absent[1]} into the"
            ' pe_list of a queue; or, where another has that rule, parallel_environment = "ITS NAME" in [batch.sge]',
        )
    if found := re.match(r"pe_name +(\S+)$", printed.stdout, re.MULTILINE):
        lists = [" ".join(re.findall(r"(?m)^pe_list +(.*)", re.sub(r"\\\n\s*", "", queue))) for queue in queues]
        yield judge(
            any(found[1] in re.split(r"[\s,=\[\]]+", names) for names in lists),
            f"Local jobs may have several cores: queues have {found[1]}.",
            f"run qconf -mq QUEUE as its administrator, and write {found[1]} into its pe_list",
            f"No queue has the parallel environment {found[1]}: local jobs with more than one core wait for ever.",
        )


def _diagnose_reruns(settings: Mapping[str, str], queues: Sequence[str]) -> Iterator[Finding]:
    rerun = [queue.split()[1] for queue in queues if re.search(r"(?m)^rerun +.*TRUE", queue)]
    if rerun:
        text = f"Jobs in the queues {', '.join(rerun)} are started again after their node was lost (rerun TRUE)."
        yield Finding(Level.WARNING, text, f"where a program must not run twice, {_WITHOUT_RERUNS}")
    unknown = settings.get("reschedule_unknown", "0")
    if read_seconds(unknown):
        text = (
            f"Rerunnable jobs of a node that is silent for {unknown} (reschedule_unknown) are started elsewhere,"
            " though they may run on."
        )
        yield Finding(Level.WARNING, text, f"{_CONFIGURE} reschedule_unknown 00:00:00; or {_WITHOUT_RERUNS}")


def _diagnose_defaults(ask: Ask, environment: Mapping[str, str]) -> Iterator[Finding]:
    """Check the files of default submit options (sge_request(5)), which apply to our submissions, too."""
    cell = f"{environment.get('SGE_ROOT', '')}/{environment.get('SGE_CELL') or 'default'}"
    for path in (f"{cell}/common/sge_request", f"{environment.get('HOME', '')}/.sge_request"):
        lines = [line for line in ask(["cat", path]).stdout.splitlines() if not line.startswith("#")]
        if "-V" in " ".join(lines).split():
            text = f"{path} has every job inherit the whole environment of its submitter (-V), with secrets in it."
            yield Finding(Level.WARNING, text, f"take -V out of {path}")
