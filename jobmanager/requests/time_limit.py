"""Limits calls of handlers, an experiment's code: time, memory, and how often they may hang or kill their process."""

import errno
import faulthandler
import logging
import os
import re
import resource
import signal
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import FrameType

from jobmanager.requests.job_types import HandlerError, HandlerUnreachable, TooLong
from jobmanager.site.account import Account
from sandbox.files import open_own, read_text_if_there

logger = logging.getLogger(__name__)

MOST_HANGS = 3
"""A grid job's handler is given up after it has hung so often."""
MOST_DEATHS = 20
"""A handler is given up after its process has died so often: other reasons (memory, a restart) are likely before."""
MOST_UNREACHED = 1500
"""A handler is given up after it has not reached what it needs so often: with a minute between, in about a day."""
RECORDS = ("asked", "hung", "died", "unreached")
"""The files of `Asking`."""
PATIENCE = 10.0
"""Seconds after which a person who waits for a handler is told so."""
_GRACE = 5.0
"""Seconds between interrupting the code and killing its process."""
_MOMENT, _WHILE = 0.2, 2.0
"""Seconds of processor time after which a call gives way to others, for its time and for good."""
_AUTOGROUP = Path("/proc/self/autogroup")
_SHOWN_CALLS = 3
_LIMITS = [getattr(resource, f"RLIMIT_{name}") for name in ("AS", "CPU", "FSIZE", "NOFILE", "NPROC")]
_STDERR = 2
_EXITING = 0x4
"""PF_EXITING of Linux."""
_CALL = re.compile(r'  File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.*)')
"""A line of a stack as faulthandler writes it, the innermost call first."""


class HandlerHung(HandlerError):
    """A handler has hung; the message says where."""


@contextmanager
def limited(seconds: float, record: int = _STDERR) -> Iterator[None]:
    """Interrupt the block after so many seconds; only in a process's main thread.

    It gets half of the host's memory at most. With 0 there is neither limit. What it forks ends with the block.

    Code that cannot be interrupted (a library in C, a loop that catches everything) is ended with the process some
    seconds later, after its stack was written to the descriptor ``record``.

    :raises HandlerHung: the block was interrupted.
    """

    if not seconds:
        with _ending_children():
            yield
        return

    def give_up(number: int, frame: FrameType | None) -> None:
        raise TooLong(f"no end after {seconds:g} s: {_find_place(frame)}")

    try:
        before = signal.signal(signal.SIGALRM, give_up)
        faulthandler.dump_traceback_later(seconds + _GRACE, exit=True, file=record)
        signal.setitimer(signal.ITIMER_REAL, seconds)
        try:
            with _limited_memory(), _ending_children():
                yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            faulthandler.cancel_dump_traceback_later()
            signal.signal(signal.SIGALRM, before)
    except TooLong as error:
        raise HandlerHung(str(error)) from error


@contextmanager
def telling_delay(most: float) -> Iterator[None]:
    """Tell whoever waits for the block, which takes ``most`` seconds at most (0: no limit), that it takes long."""
    limit = f"; it may take {most:g} s in all" if most else ""
    words = "the handler, or what it asks, has not answered for %g s%s"
    timer = threading.Timer(PATIENCE, logger.warning, [words, PATIENCE, limit])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@contextmanager
def _giving_way(for_good: bool) -> Iterator[None]:
    """Let others use the processors first when the block, in a worker, uses them for long.

    Where the kernel shares them among sessions (sched(7), autogroup), this ends with the block. Elsewhere it looks at
    nice values, which cannot be put back: they are lowered only ``for_good``.
    """
    lowered = False

    def give_way(number: int, frame: FrameType | None) -> None:
        nonlocal lowered
        if lowered:
            os.setpriority(os.PRIO_PROCESS, 0, 19)
            signal.setitimer(signal.ITIMER_PROF, 0)
        lowered = True
        _put_autogroup(19)

    before = signal.signal(signal.SIGPROF, give_way)
    signal.siginterrupt(signal.SIGPROF, False)
    signal.setitimer(signal.ITIMER_PROF, _MOMENT, _WHILE if for_good else 0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
        if lowered:
            _put_autogroup(0)


def _put_autogroup(nice: int) -> None:
    # EAGAIN: the kernel allows few changes a second, in all.
    with suppress(OSError):
        _AUTOGROUP.write_text(str(nice))


@contextmanager
def _limited_memory() -> Iterator[None]:
    """Raise MemoryError in a block that takes half of the host's memory: without any left, others would be killed."""
    most = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (most if soft == resource.RLIM_INFINITY else min(soft, most), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


@contextmanager
def _ending_children() -> Iterator[None]:
    """End a process that the block has forked when it leaves the block: it must do nothing of ours."""
    process = os.getpid()
    try:
        yield
    finally:
        if os.getpid() != process:
            os._exit(1)


@contextmanager
def _ending_useless(record: int) -> Iterator[None]:
    """Put back what the block has lowered of the process's limits; end a process in which nothing works any more.

    So it is when the block has killed the parent, the workers' server, which takes a moment to die and to end us; and
    when it has closed the descriptor ``record``: the job database's may be a file of the block's own by now.
    """
    before = [(limit, resource.getrlimit(limit)) for limit in _LIMITS]
    parent, kept = os.getppid(), os.fstat(record)
    try:
        yield
    finally:
        try:
            if _is_killed(parent) or os.getppid() != parent:
                raise ProcessLookupError("the workers' server was killed")
            for limit, values in before:
                resource.setrlimit(limit, values)
            os.close(os.dup(_STDERR))
            if not os.path.samestat(os.fstat(record), kept):
                raise OSError(errno.EBADF, "it has closed descriptors that are not its own")
        except (OSError, ValueError) as error:
            with suppress(OSError):
                os.write(_STDERR, f"its handler has left nothing to work with: {error}\n".encode())
            os._exit(1)


def _is_killed(process: int) -> bool:
    """True if a process was killed, even if it has not ended yet (proc_pid_stat(5): its flags and pending signals)."""
    try:
        words = Path(f"/proc/{process}/stat").read_bytes().rpartition(b") ")[2].split()
    except OSError:  # it has ended, and been buried
        return False
    return bool(int(words[6]) & _EXITING or int(words[28]) >> (signal.SIGKILL - 1) & 1)


def _find_place(frame: FrameType | None) -> str:
    """The innermost calls: a handler may hang in a library's code."""
    # The innermost comes first; no source code is read, which may be on a slow disk.
    calls = islice(traceback.walk_stack(frame), _SHOWN_CALLS)
    return _render_calls((call.f_code.co_filename, str(line), call.f_code.co_name) for call, line in calls)


def _render_calls(calls: "Iterator[tuple[str, str, str]]") -> str:
    return ", called by ".join(f"{function} ({file}, line {line})" for file, line, function in calls)


@dataclass(frozen=True)
class Asking:
    """Calls of one kind of a grid job's handler, and how often it hung, or its process died, in them.

    This is kept in files, because the calling process may die with the handler. One process calls at a time.
    """

    asked: Path
    """Exists during a call; contains the stack if the process had to be killed."""
    hung: Path
    """A line for each time that it hung."""
    died: Path
    """A byte for each time that the process died, or was killed by somebody else."""
    unreached: Path
    """A byte for each time that it did not reach what it needs."""
    seconds: float
    may_be_nice: bool
    """True if the process may become nice for good."""

    @contextmanager
    def limited(self) -> Iterator[None]:
        """Call the handler in the block; raises HandlerHung: the block was interrupted, which is recorded."""
        self.asked.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._note_end()
        record = open_own(self.asked, os.O_TRUNC)
        try:
            # Before the record of the call is removed: an end here counts as a death.
            with _ending_useless(record), _giving_way(self.may_be_nice), limited(self.seconds, record):
                yield
        except HandlerHung as error:
            self._note(str(error))
            raise
        except HandlerUnreachable:
            _append(self.unreached, ".")
            raise
        finally:
            os.close(record)
            self.asked.unlink(missing_ok=True)
        self.hung.unlink(missing_ok=True)
        self.died.unlink(missing_ok=True)
        self.unreached.unlink(missing_ok=True)

    def find_hangs(self) -> list[str]:
        """Where it hung each time, since the last call that returned."""
        self._note_end()
        return read_text_if_there(self.hung).splitlines()

    def count_deaths(self) -> int:
        """How often the calling process has died, since the last call that returned."""
        self._note_end()
        return len(read_text_if_there(self.died))

    def count_unreached(self) -> int:
        """How often it has not reached what it needs, since the last call that returned."""
        return len(read_text_if_there(self.unreached))

    def _note_end(self) -> None:
        """Record how the process of the last call ended, if it did not return."""
        if not self.asked.exists():
            return
        if stack := read_text_if_there(self.asked):
            self._note_stack(stack)
        else:
            _append(self.died, ".")
        self.asked.unlink()

    def _note_stack(self, stack: str) -> None:
        found = [match for line in stack.splitlines() if (match := _CALL.match(line))]
        calls = ((match["file"], match["line"], match["function"]) for match in found[:_SHOWN_CALLS])
        self._note(f"no end after {self.seconds:g} s, and its process had to be ended: {_render_calls(calls)}")

    def _note(self, sentence: str) -> None:
        _append(self.hung, f"{' '.join(sentence.split())}\n")


def _append(file: Path, text: str) -> None:
    with open(open_own(file, os.O_APPEND), "a", encoding="utf-8", errors="replace") as stream:
        stream.write(text)


def asking(account: Account, grid_job: str, what: str, submits_to: str = "") -> Asking:
    """Calls of a grid job's handler; ``what`` is one of `places.QUESTIONS`.

    :param submits_to: the batch system to which this process submits local jobs afterwards.
    """
    asked, hung, died, unreached = (account.places.of_handler(grid_job, what, name) for name in RECORDS)
    # A queue of the embedded batch system, which we may start, and its local jobs would inherit our nice value.
    may_be_nice = submits_to != "fork"
    return Asking(asked, hung, died, unreached, account.configuration.handlers.time_limit, may_be_nice)
