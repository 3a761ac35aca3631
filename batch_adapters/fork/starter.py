"""The fork starter, modelled on globus-fork-starter: it starts jobs on request, as their parent.

`samgrid-fork-starter LOG` reads 100 messages, answers 101 or 102, and writes 001 lines to LOG. Once its
standard input or output is closed it starts nothing more, but runs until all its jobs have ended.

The queue process starts its jobs in the same way (`run_program`), but by itself.
"""

import contextlib
import errno
import functools
import os
import select
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from batch_adapters.fork.processes import read_end, read_ended_child, run_signal_group
from batch_adapters.fork.protocol import (
    StartRefused,
    StartRequest,
    read_start_request,
    read_tag,
    read_wire,
    render_refusal,
    render_started,
    render_wire,
)
from batch_adapters.fork.spool import CLAIM_FLAGS, write_events
from batch_adapters.states import Event, GramError, State
from sandbox.files import fill_closed_descriptors, kept_open

CLAIM_VARIABLE = b"SAMGRID_FORK_CLAIM"
"""Environment variable by which the process of a job is found if it was not recorded."""
_APPEND = os.O_WRONLY | os.O_APPEND | os.O_CREAT
_FILE_MODE = 0o666
_SHORTAGES = (
    *(errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EDQUOT),
    *(errno.EIO, errno.EROFS, errno.ESTALE),
)
"""Errors that mean: the machine, or its disk, cannot start a process now."""


def run_program(request: StartRequest, number: int, claim: Path | None = None) -> int:
    """Start process NUMBER (from 0) of a request in a session of its own; returns its pid or raises StartRefused.

    The new process itself creates the claim right before its exec: a job with a claim is running or has run. It is
    made by vfork, which does not copy the memory of this interpreter.
    """
    executable = render_wire(request.executable)
    arguments = [executable, *map(render_wire, request.arguments)]
    environment = {render_wire(name): render_wire(value) for name, value in request.environment}
    if claim is not None:
        environment |= {CLAIM_VARIABLE: os.fsencode(claim), b"SAMGRID_FORK_STARTED": b"%d" % time.time()}
    with contextlib.ExitStack() as files:
        try:
            os.chdir(render_wire(request.directory))
        except OSError as error:
            raise _refusal(GramError.BAD_DIRECTORY, error) from error
        stdout = request.stdout[number] if request.stdout else os.devnull
        stderr = request.stderr[number] if request.stderr else os.devnull
        actions = [
            *([(os.POSIX_SPAWN_OPEN, 0, os.fspath(claim), CLAIM_FLAGS, 0o600)] if claim else []),
            (os.POSIX_SPAWN_DUP2, files.enter_context(_open(request.stdin, os.O_RDONLY, GramError.STDIN_NOT_FOUND)), 0),
            (os.POSIX_SPAWN_DUP2, files.enter_context(_open(stdout, _APPEND, GramError.OPENING_STDOUT)), 1),
            (os.POSIX_SPAWN_DUP2, files.enter_context(_open(stderr, _APPEND, GramError.OPENING_STDERR)), 2),
        ]
        try:
            return os.posix_spawn(
                executable,
                arguments,
                environment,
                file_actions=actions,
                setsid=True,
                setsigmask=(),
                setsigdef=_find_ignored(),
            )
        except (FileNotFoundError, NotADirectoryError) as error:
            raise _refusal(GramError.EXECUTABLE_NOT_FOUND, error) from error
        except PermissionError as error:
            raise _refusal(GramError.EXECUTABLE_PERMISSIONS, error) from error
        except (OSError, ValueError, MemoryError) as error:
            is_short = isinstance(error, MemoryError) or getattr(error, "errno", None) in _SHORTAGES
            reason = f"{request.executable}: {error}"
            raise StartRefused(GramError.JOB_EXECUTION_FAILED, reason, for_good=not is_short) from error
        finally:
            os.chdir("/")


@functools.cache
def _find_ignored() -> tuple[int, ...]:
    # exec resets handled signals, but ignored ones (by Python or by our parent) would stay ignored.
    return tuple(number for number in signal.valid_signals() if signal.getsignal(number) is signal.SIG_IGN)


@contextlib.contextmanager
def _open(path: str, flags: int, refused: GramError) -> Iterator[int]:
    try:
        # Non-blocking: another program may have put a named pipe in the file's place.
        descriptor = os.open(render_wire(path), flags | (os.O_NONBLOCK if flags & os.O_WRONLY else 0), _FILE_MODE)
        os.set_blocking(descriptor, True)
    except OSError as error:
        raise _refusal(refused, error) from error
    with kept_open(descriptor):
        yield descriptor


def _refusal(refused: GramError, error: OSError) -> StartRefused:
    if error.errno in _SHORTAGES:
        return StartRefused(refused, str(error), for_good=False)
    name = error.filename
    path = name.decode("utf-8", "surrogateescape") if isinstance(name, bytes) else name
    return StartRefused(refused, f"{path}: {error.strerror}")


RETRY_MILLISECONDS = 1000
_USAGE = "usage: samgrid-fork-starter LOG"


class Starter:
    """The jobs of one fork starter process; in the log their ids are their pids."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._jobs: set[int] = set()
        self._unwritten: list[Event] = []
        self._late = False
        self._input = b""
        self._accepting = True

    def run(self, woken: int) -> None:
        """Start jobs until standard input or output is closed, and log ends until all jobs have ended."""
        poll = select.poll()
        poll.register(0, select.POLLIN)
        poll.register(1, 0)
        poll.register(woken, select.POLLIN)
        while self._accepting or self._jobs or self._unwritten:
            ready = dict(poll.poll(RETRY_MILLISECONDS if self._late else None))
            if woken in ready:
                os.read(woken, 4096)
            if self._accepting and ready.keys() & {0, 1}:
                self._accepting = 1 not in ready
                if self._accepting:
                    self._read_input()
                if not self._accepting:
                    poll.unregister(0)
                    poll.unregister(1)
            self._write_ends()

    def _read_input(self) -> None:
        data = os.read(0, 65536)
        *lines, self._input = (self._input + data).split(b"\n")
        for line in lines:
            if self._accepting and not _is_output_closed():
                self._say(self._start(read_wire(line)))
        if not data:
            self._accepting = False

    def _say(self, text: str) -> None:
        data = render_wire(text)
        try:
            while self._accepting and data:
                data = data[os.write(1, data) :]
        except OSError:  # nobody reads it any more, or it was closed from the beginning
            self._accepting = False

    def _start(self, line: str) -> str:
        """Start the jobs of a 100 message, all or none of them; the answer."""
        pids: list[int] = []
        try:
            request = read_start_request(line)
            for number in range(request.count):
                pids.append(run_program(request, number))
        except StartRefused as refusal:
            for pid in pids:
                run_signal_group(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            return render_refusal(read_tag(line), refusal)
        self._jobs.update(pids)
        self._unwritten += [Event(int(time.time()), str(pid), State.ACTIVE) for pid in pids]
        self._write_events()
        return render_started(request.tag, pids)

    def _write_events(self, *ends: Event) -> None:
        """Log the waiting ACTIVE events and the ends; sets `_late` if that must be tried again."""
        self._late = False
        if not (self._unwritten or ends):
            return
        try:
            write_events(self._log, (*self._unwritten, *ends))
            self._unwritten.clear()
        except OSError as error:
            self._late = True
            _complain(f"cannot write to the log, trying again: {error}")

    def _write_ends(self) -> None:
        self._write_events()
        while not self._late and (child := read_ended_child()) is not None:
            # It stays a zombie until its end is logged: if we die before, its new parent can still read the exit code.
            run_signal_group(child.si_pid, signal.SIGKILL)
            if child.si_pid in self._jobs:
                self._write_events(Event(int(time.time()), str(child.si_pid), *read_end(child)))
                if self._late:
                    return
                self._jobs.remove(child.si_pid)
            os.waitpid(child.si_pid, 0)


def _complain(sentence: str) -> None:
    # Our parent may have closed our standard error; that must not end us.
    with contextlib.suppress(OSError):
        os.write(2, f"{sentence}\n".encode())


def _is_output_closed() -> bool:
    poll = select.poll()
    poll.register(1, 0)
    return bool(poll.poll(0))


def _make_wakeup() -> int:
    """A descriptor that becomes readable when a child ends."""
    reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    # We may have inherited "ignore", with which the kernel would reap our children.
    signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGCHLD,))
    return reader


def main(argv: Sequence[str]) -> int:
    """Run the fork starter; exit status 2 for wrong arguments, 1 where the log cannot be used."""
    if list(argv) in (["-h"], ["--help"]):
        print(f"{_USAGE}\n\n{__doc__}")
        return 0
    if len(argv) != 1 or argv[0].startswith("-"):
        print(_USAGE, file=sys.stderr)
        return 2
    log = Path(argv[0]).absolute()
    try:
        write_events(log, [])
    except OSError as error:
        print(f"cannot write to the scheduler log {argv[0]}: {error.strerror}", file=sys.stderr)
        return 1
    fill_closed_descriptors()
    # What our parent left open, every job would inherit.
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    Starter(log).run(_make_wakeup())
    return 0
