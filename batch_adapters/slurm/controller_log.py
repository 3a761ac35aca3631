"""Reads slurmctld.log (SlurmctldDebug=info): the lines that change a job's state.

Ids of events are those that sbatch and ``squeue -o %i`` print: ``2``, and ``10_3`` for an array's task (never its raw
id 13). It has everything but the following, for which the queue has to be queried:

- The size of an array is not logged. Its submission is one event with the bare id ``10``; a task is first seen when it
  starts. If the whole array is cancelled, each task seen gets an event, and the bare id gets one for all others. If
  some tasks are cancelled (``10_[2-5]``, as ``scancel -u USER`` names waiting ones), each gets an event, up to 10 000,
  even one that the array does not have. Cancelling a task by its raw id gives none.
- For a cancelled job only the request is logged, not the end, and before Slurm checks whether the job exists, who owns
  it and which signal is meant. So the request is an event (FAILED) only for jobs known to be alive, and is taken back
  (PENDING, then the state before) if a refusal follows. A job that later ends by itself was only sent a signal
  (``scancel -s``): it gets PENDING, then its end. So this FAILED is certain only once the queue confirms it. A job
  submitted long before the generator started is not known to be alive and gets no event.
- From Slurm 26.05 on, starts by the backfill scheduler are not logged: such a job is PENDING until it ends.
- A held job is PENDING: hold and release are no events. What a controller forgot when it was killed is not logged.
- A ``done`` without the exit code before it (at the very start of a log) is no event.

A line is matched from its stamp to its newline, and no matched line contains text of users. But Slurm seems to escape
nothing: whoever gets a newline into a logged text can write lines of their own.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from itertools import chain, islice

from batch_adapters.generator.local_time import LocalStamps
from batch_adapters.generator.module import Parser, remember, render_line
from batch_adapters.slurm.answers import LAUNCH_FAILURE
from batch_adapters.states import Cause

_PENDING, _ACTIVE, _FAILED, _DONE, _SUSPENDED = b"1", b"2", b"4", b"8", b"16"
# Most remembered jobs that are alive, and most entries of each other kind; the oldest is forgotten first.
_MOST_JOBS = 100_000
_MOST_OTHERS = 10_000
# Few, because a refusal follows its request within a few lines, and a request may name thousands of tasks.
_MOST_REQUESTS = 100

_COMPLETED = b"_job_complete: JobId="
_CANCELLED = b"_slurm_rpc_kill_job: REQUEST_KILL_JOB JobId="
_REFUSED = b"_slurm_rpc_kill_job: job_str_signal() uid="
_MISSING = b"Batch JobId="
# The text before the job's id; the beginning of that behind it ("": none); the method that handles the line.
_LINES = (
    # Slurm 25.11 writes SLUID=... before InitPrio=...
    (b"_slurm_rpc_submit_batch_job: JobId=", b" ", "_queue"),
    (b"sched: Allocate JobId=", b" NodeList=", "_start"),
    (b"sched/backfill: _start_job: Started JobId=", b" in ", "_start"),
    (_COMPLETED, b" ", "_complete"),
    (b"_job_complete: requeue JobId=", b" ", "_requeue"),
    (b"Requeuing JobId=", b"", "_requeue"),
    (b"requeue job JobId=", b" due to failure of node ", "_requeue"),
    (b"preempted JobId=", b" has been ", "_preempt"),
    # It could not be requeued (--no-requeue); the first is the gang scheduler's.
    (b"_preempt_job_dequeue: preempted JobId=", b" had to be killed", "_fail"),
    (b"slurm_job_preempt: preempted JobId=", b" had to be killed", "_fail"),
    (b"Time limit exhausted for JobId=", b"", "_fail"),
    (b"Reservation ended for JobId=", b"", "_fail"),
    # On a failed node, a node that was down at the start of slurmctld, or a partition that is no more.
    (b"Killing JobId=", b" on ", "_fail"),
    (b"error: Killing JobId=", b" on defunct partition ", "_fail"),
    # A node's daemon came back without it.
    (_MISSING, b" missing from batch node ", "_lose"),
    (b"_kill_dependent: Job dependency can't be satisfied, cancelling JobId=", b"", "_fail"),
    (b"deadline_ok: JobId=", b" with time_", "_fail"),
    (b"_slurm_rpc_suspend(suspend) for ", b" usec=", "_suspend"),
    (b"_slurm_rpc_suspend(resume) for ", b" usec=", "_resume"),
    (_CANCELLED, b" uid ", "_cancel"),
    # Not a job's id: the number of the user.
    (_REFUSED, b" JobId=", "_refuse"),
)
# How a job ends by itself or by Slurm, or is queued again: the text before its id, and the beginning of that behind it.
_OTHER_ENDS = {head: rest for head, rest, action in _LINES if action in ("_fail", "_requeue", "_preempt")}
_OTHER_ENDS[_COMPLETED] = b" done"
# The milliseconds may be followed by an offset (rfc5424_ms) or the name of a thread (thread_id), such as worker[2].
_STAMP = rb"\[([^].\n]++)(?:\.\d{3}([^][\n]*+(?:\[\d+\] +0x[\da-f]++)?))?\] "
# Groups: stamp's two, beginning, id, raw id of an array's task (or which of its tasks are meant), rest of the line.
_LINE = re.compile(
    rb"\n" + _STAMP + rb"(" + b"|".join(re.escape(head) for head, _, _ in _LINES) + rb")"
    rb"(\d+(?:_\d+)?)((?:\(\d+\)|_\*|_\[[\d,:%-]++\])?)(| [^\n]*)(?=\n)"
)
STAMPED = re.compile(rb"^" + _STAMP, re.MULTILINE)
"""The beginning of a line of slurmctld.log with its time stamp."""

_SHORT_STAMP = re.compile(rb"([A-Z][a-z]{2}) ([ \d]\d [\d:]{8})")
_MONTHS = {
    name: b"%02d" % number for number, name in enumerate(b"Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split(), 1)
}
# How a job ends that is missing from its node: Slurm's exit code for it looks like signal 1.
_LOST = (_FAILED, b"0")
_ENDING = re.compile(
    rb" (?:(WEXITSTATUS|WTERMSIG) (\d{1,3})|OOM failure|cancelled by (?:interactive user|node failure))"
)
_REFUSAL = re.compile(rb" JobId=(\d+(?:_\d+|_\[[\d,:%-]++\])?) sig=\d+ returned: ([^\n]*)")
# One of several tasks did not exist: the others were cancelled.
_SOME_TASKS_GONE = b"Invalid job id specified"
_TASKS = re.compile(rb"(\d{1,9})(?:-(\d{1,9})(?::(\d{1,9}))?)?")

_Action = Callable[[bytes, bytes, bytes, bytes], bytes]


class ControllerLog(Parser):
    """Reads slurmctld.log; remembers living jobs, exit codes of jobs about to end, and unconfirmed cancellations."""

    def __init__(self) -> None:
        self._times = LocalStamps("YYYY-mm-ddTHH:MM:SS")
        self._short_times = LocalStamps("mm dd HH:MM:SS")
        self._actions: dict[bytes, tuple[bytes, _Action]] = {
            head: (rest, getattr(self, action)) for head, rest, action in _LINES
        }
        self._alive: dict[bytes, bytes] = {}
        self._tasks: dict[bytes, set[bytes]] = {}
        self._ended_tasks: dict[bytes, bytes] = {}
        self._endings: dict[bytes, tuple[bytes, bytes]] = {}
        self._doubtful: dict[bytes, bytes] = {}
        self._requests: dict[bytes, tuple[bytes, ...]] = {}

    def read_events(self, block: bytes) -> bytes:
        """The events of the block's lines."""
        events = []
        times, actions = self._times, self._actions
        for second, zone, head, job, raw, rest in _LINE.findall(b"\n" + block):
            time = times[second + zone] or self._read_short_stamp(second)
            expected, action = actions[head]
            if time and (rest.startswith(expected) if expected else not rest):
                events.append(action(time, job, raw, rest))
        return b"".join(events)

    def read_time(self, block: bytes) -> int | None:
        """The first stamp's time."""
        for found in STAMPED.finditer(block):
            second, zone = found.groups(b"")
            if time := self._times[second + zone] or self._read_short_stamp(second):
                return int(time)
        return None

    def _read_short_stamp(self, stamp: bytes) -> bytes:
        found = _SHORT_STAMP.fullmatch(stamp)
        return self._short_times[_MONTHS.get(found[1], b"") + b" " + found[2]] if found else b""

    def _queue(self, time: bytes, job: bytes, raw: bytes, rest: bytes) -> bytes:
        self._live(job, _PENDING)
        return render_line(time, job, _PENDING)

    def _start(self, time: bytes, job: bytes, raw: bytes, rest: bytes) -> bytes:
        if raw:
            array = job.partition(b"_")[0]
            # The last task of an array to start gets the number of the array: no task waits any more.
            if raw == b"(%b)" % array:
                self._forget(array)
            if array in self._doubtful and job not in self._alive:
                self._doubtful.setdefault(job, _PENDING)
        if job in self._doubtful:
            # It started while the request to cancel it was being processed.
            self._doubtful[job] = _ACTIVE
            return b""
        self._live(job, _ACTIVE)
        return render_line(time, job, _ACTIVE)

    def _complete(self, time: bytes, job: bytes, raw: bytes, rest: bytes) -> bytes:
        if rest != b" done":
            # Only "done" means the end: the earlier run of a job that is queued again logs these lines, too.
            if self._endings.get(job) is not _LOST and (ending := _read_ending(rest)):
                remember(self._endings, job, ending, _MOST_OTHERS)
            return b""
        found = self._endings.pop(job, None)
        if found is None and self._alive.get(job) == _PENDING:
            return b""
        # A job that ends by itself was not cancelled; only PENDING leads out of a final state.
        revival = render_line(time, job, _PENDING) if job in self._doubtful else b""
        self._end(job)
        return revival + render_line(time, job, *found) if found else b""

    def _lose(self, time: bytes, job: bytes, raw: bytes, rest: bytes) -> bytes:
        remember(self._endings, job, _LOST, _MOST_OTHERS)
        return b""

    def _requeue(self, time: bytes, job: bytes, raw: bytes, rest: bytes) -> bytes:
        # The "done" that follows is that of the earlier run.
        self._endings.pop(job, None)
        if self._alive.get(job) == _PENDING:
            return b""
        self._live(job, _PENDING)
        return render_line(time, job, _PENDING)

    def _preempt(self, time: bytes, job: bytes, raw: bytes, rest: bytes) -> bytes:
        if rest.startswith(b" has been requeued"):
            return self._requeue(time, job, raw, rest)
        return self._fail(time, job, raw, rest) if rest.startswith(b" has been killed") else b""

    def _fail(self, time: bytes, job: bytes, raw: bytes, rest: bytes) -> bytes:
        self._end(job)
        return render_line(time, job, _FAILED)

    def _suspend(self, time: bytes, job: bytes, raw: bytes, rest: bytes, state: bytes = _SUSPENDED) -> bytes:
        running = (one for one in self._tasks.get(job, ()) if self._alive[one] != _PENDING)
        jobs = sorted(running) or [job]
        for one in jobs:
            self._live(one, state)
        return b"".join(render_line(time, one, state) for one in jobs)

    def _resume(self, time: bytes, job: bytes, raw: bytes, rest: bytes) -> bytes:
        return self._suspend(time, job, raw, rest, _ACTIVE)

    def _cancel(self, time: bytes, job: bytes, raw: bytes, rest: bytes) -> bytes:
        named = _read_tasks(job, raw) if raw.startswith(b"_[") else (job,)
        jobs = tuple(dict.fromkeys(one for name in named for one in self._find_alive(name)))
        for one in jobs:
            state = self._forget(one) or _PENDING
            remember(self._doubtful, one, state, _MOST_OTHERS)
        remember(self._requests, b"%b%b%b" % (job, raw, rest), jobs, _MOST_REQUESTS)
        return b"".join(render_line(time, one, _FAILED) for one in jobs)

    def _find_alive(self, job: bytes) -> tuple[bytes, ...]:
        array, _, task = job.partition(b"_")
        if task and job not in self._ended_tasks and job not in self._doubtful:
            # A task that has not been seen waits with its array.
            return (job,) if job in self._alive or array in self._alive else ()
        return (*([job] if job in self._alive else []), *sorted(self._tasks.get(job, ())))

    def _refuse(self, time: bytes, user: bytes, raw: bytes, rest: bytes) -> bytes:
        found = _REFUSAL.fullmatch(rest)
        if found is None:
            return b""
        lines = []
        jobs = self._requests.pop(b"%b uid %b" % (found[1], user), ())
        if found[1].endswith(b"]") and found[2] == _SOME_TASKS_GONE:
            return b""
        for job in jobs:
            if state := self._doubtful.get(job):
                self._live(job, state)
                lines += [render_line(time, job, step) for step in dict.fromkeys((_PENDING, state))]
        return b"".join(lines)

    def _live(self, job: bytes, state: bytes) -> None:
        self._alive[job] = state
        if job in self._doubtful:
            del self._doubtful[job]
        if b"_" in job:
            self._tasks.setdefault(job.partition(b"_")[0], set()).add(job)
        if len(self._alive) > _MOST_JOBS:
            self._forget(next(iter(self._alive)))

    def _end(self, job: bytes) -> None:
        self._doubtful.pop(job, None)
        self._forget(job)
        if b"_" in job:
            remember(self._ended_tasks, job, b"", _MOST_OTHERS)

    def _forget(self, job: bytes) -> bytes | None:
        array, _, task = job.partition(b"_")
        if task and (tasks := self._tasks.get(array)):
            tasks.discard(job)
            if not tasks:
                del self._tasks[array]
        return self._alive.pop(job, None)


def _read_tasks(array: bytes, tasks: bytes) -> Iterator[bytes]:
    """The ids of tasks as in ``_[1,4-10:3%2]``, where 3 is a step and 2 how many may run at once."""
    parts = tasks[2:-1].partition(b"%")[0].split(b",")
    spans = (found.groups() for found in map(_TASKS.fullmatch, parts) if found)
    numbers = (range(int(first), int(last or first) + 1, int(step or 1) or 1) for first, last, step in spans)
    return (b"%b_%d" % (array, number) for number in islice(chain.from_iterable(numbers), _MOST_OTHERS))


@lru_cache(maxsize=1024)
def _read_ending(text: bytes) -> tuple[bytes, bytes] | None:
    found = _ENDING.fullmatch(text)
    if found is None:
        return None
    word, number = found.groups()
    if word is None:
        return _FAILED, b"0"
    return read_end(int(number), 0) if word == b"WEXITSTATUS" else read_end(0, int(number))


def read_end(status: int, signal: int) -> tuple[bytes, bytes]:
    """State and exit code of a job that ended by itself: 128 + N for signal N; FAILED if it was never launched."""
    if signal == LAUNCH_FAILURE and not status:
        return _FAILED, b"0"
    return _DONE, b"%d" % (status or (128 + signal if signal else 0))


_LIMITS = {
    b"Time limit exhausted for JobId=": Cause.TIME_LIMIT,
    b"Reservation ended for JobId=": Cause.TIME_LIMIT,
    b"deadline_ok: JobId=": Cause.TIME_LIMIT,
    b"Killing JobId=": Cause.NODE_LOST,
    b"error: Killing JobId=": Cause.NODE_LOST,
    b"preempted JobId=": Cause.CANCELLED_OUTSIDE,
    b"_preempt_job_dequeue: preempted JobId=": Cause.CANCELLED_OUTSIDE,
    b"slurm_job_preempt: preempted JobId=": Cause.CANCELLED_OUTSIDE,
}
"""Why a job ended, by the line that tells of its end."""


def read_deletions(block: bytes) -> Iterator[tuple[bytes, bytes | Cause]]:
    """Who cancelled which job, by number, or what else ended it; what ended by itself later was only sent a signal."""
    lines = [line[2:] for line in _LINE.findall(b"\n" + block)]
    requested = {_read_request(job, raw, rest) for head, job, raw, rest in lines if head == _CANCELLED}
    refusals = ((user, _REFUSAL.fullmatch(rest)) for head, user, _, rest in lines if head == _REFUSED)
    refused = {(found[1], user) for user, found in refusals if found and found[2] == b"Access/permission denied"}
    # The block before this one may end with a request that is refused here.
    yield from ((one, b"") for name, _ in refused - requested for one in _read_jobs(name))
    told: dict[bytes, Cause] = {}  # before the end's own line; a job that is queued again may end for another reason
    for head, job, raw, rest in lines:
        if head == _MISSING:
            told[job] = Cause.NODE_LOST
        elif head == _COMPLETED and rest == b" OOM failure":
            told[job] = Cause.MEMORY_LIMIT
        elif head in _OTHER_ENDS and rest.startswith(_OTHER_ENDS[head]):
            before, again = told.pop(job, b""), rest.startswith(b" has been requeued")
            yield job, b"" if again else before if head == _COMPLETED else _LIMITS.get(head, b"")
        elif head == _CANCELLED and rest.startswith(b" uid "):
            name, user = _read_request(job, raw, rest)
            if (name, user) not in refused:
                yield from ((one, user) for one in _read_jobs(name))


def _read_request(job: bytes, raw: bytes, rest: bytes) -> tuple[bytes, bytes]:
    """What is to be cancelled, as a refusal names it, and the user."""
    return job + raw if raw.startswith(b"_[") else job, rest.removeprefix(b" uid ")


def _read_jobs(name: bytes) -> Iterable[bytes]:
    array, bracket, _ = name.partition(b"_[")
    return _read_tasks(array, name[len(array) :]) if bracket else (name,)
