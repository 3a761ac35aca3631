"""Processes as the kernel knows them: whether they run, since when, how they ended; and waiting for their ends."""

import contextlib
import functools
import os
import select
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from batch_adapters.states import State

_PR_SET_CHILD_SUBREAPER = 36
_SAME_MOMENT = 0.002
"""Seconds; the kernel gives a process' start in hundredths."""


@dataclass(frozen=True, slots=True)
class Process:
    """One process, unambiguously: pid, start in clock ticks since boot (proc(5), stat field 22), and the boot's id."""

    pid: int
    started: int
    boot: str


@functools.cache
def read_boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def read_process(pid: int, *, zombie: bool = False) -> Process | None:
    """The process that has this pid now; None if there is none or, unless ``zombie`` is True, only a zombie."""
    stat = _read_stat(pid)
    return None if stat is None or (stat.state in (b"Z", b"X") and not zombie) else stat.process


def find_session_leader(variable: bytes, until: float) -> Process | None:
    """The oldest session leader with NAME=VALUE in its environment that started before ``until`` (CLOCK_BOOTTIME)."""
    found = []
    for folder in Path("/proc").iterdir():
        pid = int(folder.name) if folder.name.isdecimal() else 0
        try:
            if pid and os.getsid(pid) == pid and variable in (folder / "environ").read_bytes().split(b"\0"):
                found.append(read_process(pid))
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
    known = [process for process in found if process and read_started_seconds(process) <= until]
    return min(known, key=lambda process: process.started, default=None)


class _Stat(NamedTuple):
    state: bytes
    parent: int
    process: Process


def _read_stat(pid: int) -> _Stat | None:
    try:
        # Called four times for each job; pathlib would take twice as long.
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            stat = file.read()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The command's name, in parentheses, may itself hold blanks and parentheses.
    state, *fields = stat[stat.rindex(b")") + 2 :].split()
    return _Stat(state, int(fields[0]), Process(pid, int(fields[18]), read_boot()))


def is_alive(process: Process) -> bool:
    """True while exactly this process runs; a zombie does not, and a reused pid is another process."""
    return process.boot == read_boot() and read_process(process.pid) == process


def is_stopped(process: Process) -> bool:
    """True while exactly this process is stopped by a signal."""
    stat = _read_stat(process.pid)
    return stat is not None and stat.process == process and stat.state == b"T"


def is_waited_for(process: Process, spool: Path) -> bool:
    """True if exactly this process is a zombie of a process that serves the spool."""
    stat = _read_stat(process.pid)
    if stat is None or stat.process != process or stat.state != b"Z":
        return False
    try:
        words = Path(f"/proc/{stat.parent}/cmdline").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError):
        return False
    # A keeper, a queue process, or a starter of an earlier version: all have this command line.
    return b"serve" in words and os.fsencode(spool) in words


def read_started_seconds(process: Process) -> float:
    """When the process started, in seconds of CLOCK_BOOTTIME."""
    return process.started / os.sysconf("SC_CLK_TCK")


def find_boottime(epoch: float) -> float:
    """Convert a time since 1970 to seconds of CLOCK_BOOTTIME."""
    while True:
        before = time.clock_gettime(time.CLOCK_BOOTTIME)
        age = time.time() - epoch
        # Repeated if we were interrupted between reading the two clocks.
        if time.clock_gettime(time.CLOCK_BOOTTIME) - before < _SAME_MOMENT:
            return before - age


def read_end(child: os.waitid_result) -> tuple[State, int]:
    """The final state and exit code of an ended child: DONE and its code, or FAILED and 128 + the signal."""
    if child.si_code == os.CLD_EXITED:
        return State.DONE, child.si_status
    return State.FAILED, 128 + child.si_status


def read_ended_child() -> os.waitid_result | None:
    """An ended child, not reaped, so that its pid is not reused; None if there is none."""
    return _read_waitable(os.P_ALL, 0)


def find_ended_children() -> list[Process]:
    """Our children that have ended and are not reaped."""
    stats = [_read_stat(int(folder.name)) for folder in Path("/proc").iterdir() if folder.name.isdecimal()]
    return [stat.process for stat in stats if stat and stat.state == b"Z" and stat.parent == os.getpid()]


def has_children() -> bool:
    """True if we have children."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def read_own_end(process: Process) -> os.waitid_result | None:
    """The end of exactly this process, not reaped; None if it has not ended or is not our child."""
    child = _read_waitable(os.P_PID, process.pid)
    stat = _read_stat(process.pid)
    return child if stat is not None and stat.process == process else None


def _read_waitable(idtype: int, number: int) -> os.waitid_result | None:
    try:
        return os.waitid(idtype, number, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return None


def run_signal_group(leader: int, number: signal.Signals) -> None:
    """Send a signal to a process group, if it still exists and we may."""
    try:
        os.killpg(leader, number)
    except (ProcessLookupError, PermissionError):
        return


def run_signal_orphans(leader: Process) -> None:
    """Kill what is left of a dead leader's group, if its number cannot belong to a new process."""
    # While a group has members, its number is not reused: so a process of that number means another group.
    if leader.boot == read_boot() and not Path(f"/proc/{leader.pid}").exists():
        run_signal_group(leader.pid, signal.SIGKILL)


def run_become_subreaper() -> None:
    """Inherit the orphans of our descendants, so that their exit codes come to us (prctl(2))."""
    import ctypes  # The keeper alone needs it; the commands start the sooner.

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"cannot become a child subreaper: {os.strerror(number)}")


class KeeperDied(Exception):
    """Our parent, the keeper, was killed: if we were killed too, the ends of our jobs would be lost."""


class ProcessWatch:
    """Waits for the ends of processes (not only of children), for our parent's end, and for a wake-up.

    Processes are known by the local ids of their jobs.
    """

    def __init__(self, wake: Path, keeper: int) -> None:
        """``keeper``: the pid that our parent has, or had."""
        # Open for writing, too: without any writer, a FIFO would always be readable.
        self._wake = os.open(wake, os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW)
        self._local_ids: dict[int, str] = {}
        self._keeper = -1
        self._poll = select.epoll()
        self._poll.register(self._wake, select.EPOLLIN)
        with contextlib.suppress(ProcessLookupError):
            self._keeper = os.pidfd_open(keeper)
            self._poll.register(self._keeper, select.EPOLLIN)
        if os.getppid() != keeper:
            self.close()
            raise KeeperDied

    def __contains__(self, local_id: str) -> bool:
        return local_id in self._local_ids.values()

    def add(self, local_id: str, process: Process) -> bool:
        """Start waiting for the end of this process; False if it has ended already."""
        try:
            pidfd = os.pidfd_open(process.pid)
        except ProcessLookupError:
            return False
        # Checked after opening: the descriptor stands for one process, and it must be the right one.
        if not is_alive(process):
            os.close(pidfd)
            return False
        self._poll.register(pidfd, select.EPOLLIN)
        self._local_ids[pidfd] = local_id
        return True

    def wait(self, seconds: float) -> tuple[bool, list[str]]:
        """Wait up to ``seconds``; gives whether we were woken, and the ids of ended jobs; raises KeeperDied."""
        ready = {descriptor for descriptor, _ in self._poll.poll(max(0.0, seconds))}
        if self._keeper in ready:
            raise KeeperDied
        if self._wake in ready:
            os.read(self._wake, 65536)
        return self._wake in ready, [self._remove(pidfd) for pidfd in ready & self._local_ids.keys()]

    def _remove(self, pidfd: int) -> str:
        self._poll.unregister(pidfd)
        os.close(pidfd)
        return self._local_ids.pop(pidfd)

    def close(self) -> None:
        """Stop waiting, and close all descriptors."""
        for pidfd in list(self._local_ids):
            self._remove(pidfd)
        self._poll.close()
        for descriptor in {self._wake, self._keeper} - {-1}:
            os.close(descriptor)
