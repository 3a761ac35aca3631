"""Logs for the benchmark, modelled line by line on recordings of real systems, and the events that they tell.

Deterministic: the same call writes the same bytes. The events are written down while the log is made, by the maker's
own knowledge of each job's life; nothing of the generator is used. All times are UTC.
"""

import itertools
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

# 2026-01-01 00:00:00 UTC; a log of ten million lines still ends on the same day.
_BEGIN = 1_767_225_600
_STEPS_PER_SECOND = 16
_EXIT_CODES = (0, 0, 0, 1, 0, 3, 137)


@dataclass(frozen=True)
class Job:
    """One job at one moment of its life."""

    number: int
    seconds: int

    @property
    def exit_code(self) -> int:
        """What it ends with."""
        return _EXIT_CODES[self.number % len(_EXIT_CODES)]


@dataclass(frozen=True)
class Entry:
    """What a scheduler writes at one moment: text of so many lines, and the event in it, if any."""

    text: str
    lines: int
    event: str = ""


@dataclass(frozen=True)
class Log:
    """A log as it was written, and what must come out."""

    path: Path
    """The file."""
    expected: Path
    """The event lines."""
    units: int
    """Lines; on HTCondor, records."""
    events: int


@dataclass(frozen=True)
class Maker:
    """A scheduler's log: the lives of its jobs (age in steps → what happens), and how each step is written."""

    lives: tuple[Mapping[int, str], ...]
    render: Callable[[str, Job], Entry]
    file_name: str
    header: str = ""
    counts_records: bool = False


def write_log(maker: Maker, folder: Path, units: int) -> Log:
    """Write a log of at least so many lines (records) and its expected events into the folder."""
    log = Log(folder / maker.file_name, folder / "expected", 0, 0)
    written = events = 0
    with log.path.open("w") as text, log.expected.open("w") as expected:
        text.write(maker.header)
        for entry in _iterate_entries(maker):
            text.write(entry.text)
            written += 1 if maker.counts_records else entry.lines
            if entry.event:
                expected.write(entry.event)
                events += 1
            if written >= units:
                break
    return Log(log.path, log.expected, written, events)


def _iterate_entries(maker: Maker) -> Iterator[Entry]:
    """The jobs' lives side by side: a new job at each step, and at each step what the jobs before it are at."""
    ages = range(1 + max(max(life) for life in maker.lives))
    for step in itertools.count(1):
        seconds = _BEGIN + step // _STEPS_PER_SECOND
        for age in ages:
            number = step - age
            what = maker.lives[number % len(maker.lives)].get(age) if number > 0 else None
            if what is not None:
                yield maker.render(what, Job(number, seconds))


@lru_cache(8)
def _render_time(layout: str, seconds: int) -> str:
    return time.strftime(layout, time.gmtime(seconds))


def _render_event(job: Job, local_id: str, state: int, exit_code: int = 0) -> str:
    return f"001;{job.seconds};{local_id};{state};{exit_code}\n"


_RESOURCES = (
    "resources_used.cpupercent=0 resources_used.cput=00:00:00 resources_used.mem=0kb resources_used.ncpus=1"
    " resources_used.vmem=0kb resources_used.walltime=00:00:01"
)
_PBS_LINES = {
    "queue": (
        "0100;{server};Req;;Type 1 request received from griduser@localhost, sock=15",
        "0100;{server};Job;{id};enqueuing into workq, state Q hop 1",
        "0008;{server};Job;{id};Job Queued at request of griduser@localhost, owner = griduser@localhost,"
        " job name = k3f9zq2m-1, queue = workq",
        "0100;{server};Req;;Type 49 request received from Scheduler@localhost, sock=14",
    ),
    "run": (
        "0100;{server};Req;;Type 15 request received from Scheduler@localhost, sock=14",
        "0008;{server};Job;{id};Job Run at request of Scheduler@localhost on exec_vnode (vm:ncpus=1)",
        "0008;{server};Job;{id};Job Modified at request of Scheduler@localhost",
        "0100;{server};Req;;Type 21 request received from Scheduler@localhost, sock=14",
    ),
    "end": (
        "0080;{server};Job;{id};Obit received momhop:1 serverhop:1 state:R substate:42",
        "0010;{server};Job;{id};Exit_status={code} " + _RESOURCES,
        "0100;{server};Job;{id};dequeuing from workq, state E",
        "0100;{server};Req;;Type 21 request received from Scheduler@localhost, sock=14",
    ),
    # As Torque words it: the only deletion that Globus' C program understands.
    "delete": (
        "0100;{server};Req;;Type 6 request received from griduser@localhost, sock=15",
        "0080;{server};Job;{id};delete job request received",
        "0008;{server};Job;{id};Job deleted at request of griduser@localhost",
        "0100;{server};Job;{id};dequeuing from workq, state E",
    ),
}
_PBS_TEXTS = {what: "".join("{time};" + line + "\n" for line in lines) for what, lines in _PBS_LINES.items()}
_PBS_STATES = {"queue": 1, "run": 2, "end": 8, "delete": 4}


def _render_pbs(what: str, job: Job) -> Entry:
    local_id = f"{job.number}.vm"
    stamp = _render_time("%m/%d/%Y %H:%M:%S", job.seconds)
    text = _PBS_TEXTS[what].format(time=stamp, server="Server@localhost", id=local_id, code=job.exit_code)
    exit_code = job.exit_code if what == "end" else 0
    return Entry(text, 4, _render_event(job, local_id, _PBS_STATES[what], exit_code))


_PLAIN_LIFE = {0: "queue", 3: "run", 9: "end"}
_DELETED_LIFE = {0: "queue", 2: "delete"}
PBS = Maker(
    lives=(*(_PLAIN_LIFE,) * 9, _DELETED_LIFE),
    render=_render_pbs,
    file_name=time.strftime("%Y%m%d", time.gmtime(_BEGIN)),
)
"""A server log with all of its classes on: every fourth line bears an event, of four kinds."""


def _render_fork(what: str, job: Job) -> Entry:
    exit_code = job.exit_code if what == "end" else 0
    event = _render_event(job, f"k3f9zq2m-{job.number // 1000}.{job.number % 1000}", _PBS_STATES[what], exit_code)
    return Entry(event, 1, event)


FORK = Maker(lives=(_PLAIN_LIFE,), render=_render_fork, file_name="events")
"""The fork starter's log: every line is an event."""

# As in lsb.events(5) of LSF 6: its JOB_STATUS ends with exitInfo, as Globus' C program wants it.
_LSF_HEAD = '"{type}" "6.1" {time} {id} '
_LSF_LINES = {
    "queue": (
        _LSF_HEAD.replace("{type}", "JOB_NEW") + "1001 33816578 1 {time} 0 0 -65535 0 0 "
        '"griduser" -1 -1 -1 -1 -1 -1 -1 -1 -1 -1 "" 0.00 18 "normal" "" "node1" "/home/griduser/work" "" "/dev/null" '
        '"/home/griduser/work/out" "" "/home/griduser" "{time}.{id}" 0 "" "" "k3f9zq2m-1" "#!/bin/sh;sleep 1;exit 3" '
        '0 "" "default" 1 "LINUX86" "/bin/sh" 0 0 "" "" ""',
    ),
    "run": (
        _LSF_HEAD.replace("{type}", "JOB_START") + '4 0 0 60.0 1 "node1" "" "" 0 "" 0',
        _LSF_HEAD.replace("{type}", "JOB_START_ACCEPT") + "4711 4711 0",
        _LSF_HEAD.replace("{type}", "JOB_EXECUTE")
        + '1001 4711 "/home/griduser/work" "/home/griduser" "griduser" 4711 0 "" -1 "" 0',
    ),
    "end": (
        _LSF_HEAD.replace("{type}", "JOB_STATUS") + "{status} 0 0 0.1280 {time} 1 "
        "0.123456 0.004567 5236 0 0 0 0 12 3456 0 0 8 16 0 0 120 12 1 -1 {wait} 0 0",
    ),
    "clean": (_LSF_HEAD.replace("{type}", "JOB_CLEAN") + "0",),
}
_LSF_TEXTS = {what: "".join(line + "\n" for line in lines) for what, lines in _LSF_LINES.items()}


def _render_lsf(what: str, job: Job) -> Entry:
    code = job.exit_code
    status = 32 if code else 64
    text = _LSF_TEXTS[what].format(time=job.seconds, id=job.number, status=status, wait=code << 8)
    state = _PBS_STATES.get(what)
    event = _render_event(job, str(job.number), state, code if what == "end" else 0) if state else ""
    return Entry(text, len(_LSF_LINES[what]), event)


LSF = Maker(
    lives=({**_PLAIN_LIFE, 11: "clean"},),
    render=_render_lsf,
    file_name="lsb.events",
    # The offset of the first record. Globus' C program never gets beyond a "#0".
    header="#3\n",
)
"""The records that mbatchd writes for a plain job: every second one bears an event."""

_CONDOR_USAGE = "".join(f"\t\tUsr 0 00:00:00, Sys 0 00:00:00  -  Run {place} Usage\n" for place in ("Remote", "Local"))
_CONDOR_BYTES = "".join(f"\t0  -  Run Bytes {way} By Job\n" for way in ("Sent", "Received"))
_CONDOR_RESOURCES = "".join(
    f"\t{line}\n"
    for line in (
        "Partitionable Resources :    Usage  Request Allocated ",
        "   Cpus                 :                 1         1 ",
        "   Disk (KB)            :      125        1      2048 ",
        "   GPUs                 :                           0 ",
        "   Memory (MB)          :        0       16       128 ",
        "   TimeExecute (s)      :        0                    ",
        "   TimeSlotBusy (s)     :        0                    ",
    )
)
_CONDOR_TEXTS = {
    "queue": "Job submitted from host: <127.0.0.1:19618?addrs=127.0.0.1-19618&alias=127-0-0-1.lab&noUDP"
    "&sock=schedd_19798_ac80>\n",
    "run": "Job executing on host: <127.0.0.1:19618?addrs=127.0.0.1-19618&alias=127-0-0-1.lab&noUDP"
    "&sock=startd_19798_ac80>\n\tSlotName: slot1_1@127-0-0-1.lab\n"
    '\tCondorScratchDir = "/var/lib/condor/execute/dir_{id}"\n'
    "\tCpus = 1\n\tDisk = 2048\n\tGPUs = 0\n\tMemory = 128\n",
    "image": "Image size of job updated: 125\n\t0  -  MemoryUsage of job (MB)\n\t0  -  ResidentSetSize of job (KB)\n",
    "end": "Job terminated.\n\t(1) Normal termination (return value {code})\n"
    + _CONDOR_USAGE
    + _CONDOR_USAGE.replace("Run", "Total")
    + _CONDOR_BYTES
    + _CONDOR_BYTES.replace("Run", "Total")
    + _CONDOR_RESOURCES
    + "\n\tJob terminated of its own accord at {iso}Z with exit-code {code}.\n",
    "evict": "Job was evicted.\n\t(0) CPU times\n" + _CONDOR_USAGE + _CONDOR_BYTES + _CONDOR_RESOURCES,
    "remove": "Job was aborted.\n\tvia condor_rm (by user griduser)\n",
    "hold": "Job was held.\n\tvia condor_hold (by user griduser)\n\tCode 1 Subcode 0\n",
    "release": "Job was released.\n\tvia condor_release (by user griduser)\n",
}
_CONDOR_NUMBERS = {
    **{"queue": "000", "run": "001", "evict": "004", "end": "005"},
    **{"image": "006", "remove": "009", "hold": "012", "release": "013"},
}
_CONDOR_STATES = {"queue": 1, "run": 2, "evict": 1, "end": 8, "remove": 4, "hold": 16, "release": 1}


def _render_condor(what: str, job: Job) -> Entry:
    stamp = _render_time("%Y-%m-%d %H:%M:%S", job.seconds)
    head = f"{_CONDOR_NUMBERS[what]} ({job.number:03}.000.000) {stamp} "
    body = _CONDOR_TEXTS[what].format(id=job.number, code=job.exit_code, iso=stamp.replace(" ", "T"))
    text = head + body + "...\n"
    state = _CONDOR_STATES.get(what)
    event = _render_event(job, f"{job.number}.0", state, job.exit_code if what == "end" else 0) if state else ""
    return Entry(text, text.count("\n"), event)


_CONDOR_LIFE = {0: "queue", 2: "run", 4: "image", 9: "end"}
CONDOR = Maker(
    lives=(
        *(_CONDOR_LIFE,) * 8,
        {0: "queue", 1: "hold", 5: "release", 6: "run", 7: "image", 10: "end"},
        {0: "queue", 2: "run", 5: "evict", 6: "remove"},
    ),
    render=_render_condor,
    file_name="EventLog",
    counts_records=True,
)
"""The classic event log with ISO dates: of ten jobs one is held for a while and one is removed."""

MAKERS = {"pbs": PBS, "fork": FORK, "lsf": LSF, "condor": CONDOR}
"""By the generator's name of the scheduler."""


def start_log(scheduler: str, folder: Path) -> Path:
    """A log of today's name with the first job in it, to append to."""
    maker = MAKERS[scheduler]
    path = folder / (time.strftime("%Y%m%d", time.gmtime()) if scheduler == "pbs" else maker.file_name)
    path.write_text(maker.header + maker.render("queue", Job(1, int(time.time()) - 60)).text)
    return path


def render_probe(scheduler: str, number: int, seconds: int) -> tuple[bytes, bytes]:
    """What the scheduler writes when that job is queued, and the ``;ID;`` that its event has."""
    entry = MAKERS[scheduler].render("queue", Job(number, seconds))
    return entry.text.encode(), b";%b;" % entry.event.split(";")[2].encode()
