"""Grid Engine 8.1.9: qsub, qstat, qacct, qdel and qconf.

Texts are from tests/recorded/sge (sge-scenarios.txt, sge-down.txt and the adapter's own recordings), options from
sge_submit(1), qstat(1), qacct(1) and qdel(1).
"""

import os
import pwd
import re
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby

from tests.conformance.fakes.book import BROKEN, CANCELLED, ENDED, HELD, LEAVING, PENDING, RUNNING, SUSPENDED, Job
from tests.conformance.fakes.dialect import Ask, Cancel, Options, Reply, Say, Show, Submit, UnknownCommand, want

PROGRAMS = ("qsub", "qstat", "qacct", "qdel", "qconf")
NAMES = ("sge", "qmaster", "qacct", "qconf")
HAS_HISTORY = True

_STATES = {PENDING: "qw", HELD: "hqw", RUNNING: "r", SUSPENDED: "s", LEAVING: "dr"}
_LIST = """\
    <job_list state="{kind}">
      <JB_job_number>{job.number}</JB_job_number>
      <JAT_prio>0.50000</JAT_prio>
      <JB_name>{job.token}</JB_name>
      <JB_owner>griduser</JB_owner>
      <state>{state}</state>
      <queue_name></queue_name>
      <slots>1</slots>
      <tasks>{tasks}</tasks>
    </job_list>
"""
_ACCOUNT = """\
==============================================================
qname        all.q
hostname     vm
owner        {owner}
jobname      {job.token}
jobnumber    {job.number}
taskid       {task}
qsub_time    Sat Nov 21 04:56:59 2026
start_time   Sat Nov 21 04:56:59 2026
end_time     Sat Nov 21 04:57:06 2026
failed       {failed}
exit_status  {exit_status}
cpu          0.003s
"""


def read(program: str, arguments: Sequence[str], stdin: Callable[[], str]) -> Ask:
    """See `Dialect`."""
    match program, *arguments:
        case "qsub", *_:
            return _read_submission(Options(arguments, "-N -t -wd -o -e -j -b -shell -q -l -P -S -A -r", "-terse -h"))
        case "qstat", "-help":
            return Say("version", Reply("SGE 8.1.9\nusage: qstat [options]\n"))
        case "qstat", "-j", number:
            return Say("why", Reply(f"{'=' * 62}\njob_number:                 {number}\n"))
        case "qstat", *_:
            options = Options(arguments, "-u", "-xml")
            want(options.has("-xml") and options.get("-u") == "$user" and not options.rest, "a form of the answer")
            return Show("queue", lambda job: job.in_queue, _render_queue)
        case "qacct", "-j", name:
            return Show(
                "history", lambda job: _has_record(job) and job.token == name, lambda jobs: _account(jobs, name)
            )
        case "qdel", *ids:
            want(all(re.fullmatch(r"\d+(\.\d+)?", word) for word in ids), f"ids {ids}")
            return Cancel(lambda job: _is_named(job, ids), lambda jobs: _render_deleted(jobs, ids))
        case "qconf", "-sconf":
            return Say(
                "limit", Reply("#global:\nmax_aj_instances             2000\nmax_aj_tasks                 75000\n")
            )
    raise UnknownCommand(" ".join(arguments))


def _read_submission(options: Options) -> Submit:
    want(options.has("-terse") and options.get("-b") == "y", "a form of the command")
    elements = None
    if options.has("-t"):
        first, last = map(int, options.get("-t").split("-"))
        elements = range(first, last + 1)

    def render(jobs: Sequence[Job]) -> Reply:
        tasks = "" if elements is None else f".{elements[0]}-{elements[-1]}:1"
        return Reply(f"{jobs[0].number}{tasks}\n")

    return Submit(options.get("-N"), elements, options.rest, render)


def _render_queue(jobs: Sequence[Job]) -> Reply:
    """Tasks that wait, all alike, are one entry; those that run have one each."""
    running = [job for job in jobs if job.state not in (PENDING, HELD)]
    waiting = [job for job in jobs if job.state in (PENDING, HELD)]
    entries = "".join(
        _LIST.format(kind="running", job=job, state=_STATES[job.state], tasks=job.element) for job in running
    )
    folded = "".join(_fold(group) for _, group in groupby(waiting, key=lambda job: (job.number, job.state, job.token)))
    return Reply(
        "<?xml version='1.0'?>\n"
        '<job_info  xmlns:xsd="http://arc.liv.ac.uk/repos/darcs/sge/source/dist/util/resources/schemas/qstat/qstat.xsd">\n'
        f"  <queue_info>\n{entries}  </queue_info>\n  <job_info>\n{folded}  </job_info>\n</job_info>\n"
    )


def _fold(jobs: Iterable[Job]) -> str:
    """``1-4:1``, ``1,2`` or ``3``."""
    first, *others = jobs
    numbers = [job.element for job in (first, *others)]
    tasks = f"{numbers[0]}-{numbers[-1]}:1" if len(numbers) > 2 else ",".join(map(str, numbers))
    return _LIST.format(kind="pending", job=first, state=_STATES[first.state], tasks=tasks)


def _has_record(job: Job) -> bool:
    """A job that never ran has none."""
    return job.state in (ENDED, CANCELLED, BROKEN) and job.runs > 0 and not job.unrecorded


def _account(jobs: Sequence[Job], name: str) -> Reply:
    if not jobs:
        return Reply("", f"error: job name {name} not found\n", 1)
    ends = {ENDED: "0", CANCELLED: "100 : assumedly after job", BROKEN: "100 : assumedly after job"}
    return Reply(
        "".join(
            _ACCOUNT.format(
                owner=pwd.getpwuid(os.geteuid()).pw_name,
                job=job,
                task="undefined" if job.element is None else job.element,
                failed=ends[job.state],
                exit_status=job.exit_code if job.state == ENDED else "137                  (Killed)",
            )
            for job in jobs
        )
    )


def _is_named(job: Job, ids: Sequence[str]) -> bool:
    return job.is_live and (local_id(job) in ids or str(job.number) in ids)


def _render_deleted(jobs: Sequence[Job], ids: Sequence[str]) -> Reply:
    lines = []
    for word in ids:
        number, _, task = word.partition(".")
        of_word = [job for job in jobs if str(job.number) == number and task in ("", str(job.element))]
        waiting = [job for job in of_word if job.state in (PENDING, HELD)]
        if not of_word:
            lines.append(
                f'job "{number}" task "{task}" does not exist' if task else f'denied: job "{word}" does not exist'
            )
        elif task == "" and waiting == of_word:
            lines.append(f"griduser has deleted job {word}")
        else:
            lines += [f"griduser has deleted job-array task {local_id(job)}" for job in waiting]
            running = [job for job in of_word if job not in waiting]
            lines += [f"griduser has registered the job-array task {local_id(job)} for deletion" for job in running]
    missing = any("does not exist" in line for line in lines)
    return Reply("".join(f"{line}\n" for line in lines), "", int(missing))


def say_down(program: str) -> Reply:
    """See `Dialect`: the qmaster is killed; qacct reads a file, qstat -help nothing."""
    refused = "error: commlib error: got select error (Connection refused)\n"
    unable = 'unable to send message to qmaster using port 6444 on host "vm": got send error\n'
    match program:
        case "qsub":
            return Reply("", f"{refused}Unable to run job: {unable}Exiting.\n", 1)
        case "qdel":
            return Reply(unable, refused, 1)
        case "qacct":
            return Reply("", "error: job name k3f9zq2m-1 not found\n", 1)
    return Reply("", f"{refused}error: {unable}", 1)


def say_cut_off() -> Reply:
    """See `Dialect`: the qmaster died while it was asked."""
    return Reply(
        "",
        'error: commlib error: got read error (closing "vm/qmaster/1")\n'
        'Unable to run job: unable to send message to qmaster using port 6444 on host "vm": got send error\nExiting.\n',
        1,
    )


def local_id(job: Job) -> str:
    """See `Dialect`."""
    return str(job.number) if job.element is None else f"{job.number}.{job.element}"


def variables(job: Job) -> dict[str, str]:
    """See `Dialect`."""
    return {"JOB_ID": str(job.number), "SGE_TASK_ID": "undefined" if job.element is None else str(job.element)}
