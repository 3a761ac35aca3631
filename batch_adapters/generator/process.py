"""The generator as a process: in the background, with a file that holds its process id."""

import contextlib
import fcntl
import gc
import os
import signal
from pathlib import Path
from types import FrameType

from sandbox.files import take_lock


def fill_closed_descriptors() -> None:
    """Put the null device where standard input, output or error is closed, so that no log gets its number."""
    while (fd := os.open(os.devnull, os.O_RDONLY)) <= 2:
        os.set_inheritable(fd, True)
    os.close(fd)


def keep_freed_memory() -> None:
    """Let glibc keep the memory of one block of a log for the next (mallopt(3): M_MMAP_THRESHOLD).

    Else it hands it back to the kernel after each block and gets it again page by page, 4 % of the time on a long log.
    """
    # The size of a large piece that is freed becomes the threshold; its pages are never touched.
    bytes(16 << 20)


def collect_garbage_rarely() -> None:
    """Let Python look for cycles only when far more is alive than the events of one block of a log.

    Else it looks at each of them in vain, 20 % of the time on LSF's log.
    """
    gc.set_threshold(100_000)


def hold_folder(path: Path) -> None:
    """Let `is_held` see that somebody writes there, until this process ends, however it does."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    with contextlib.suppress(OSError):  # a file system without locks
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)


def is_held(path: Path) -> bool | None:
    """Whether a generator of this host writes there now; None where nobody can tell."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return not take_lock(fd)
    except OSError:
        return None
    finally:
        os.close(fd)


def run_in_background(pid_file: Path | None, keep_output: bool) -> None:
    """Go on in a child in a session of its own; the caller's process ends when the pid file is written.

    :raises OSError: the pid file cannot be written; nothing is left running.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child:
        os.close(reader)
        _release_child(child, writer, pid_file)
        os._exit(0)
    os.close(writer)
    # The end of file without a byte says that the pid file could not be written.
    if not os.read(reader, 1):
        os._exit(1)
    os.close(reader)
    os.setsid()
    os.chdir("/")
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 2) if keep_output else (0, 1, 2):
        os.dup2(null, fd)
    os.close(null)


def _release_child(child: int, writer: int, pid_file: Path | None) -> None:
    try:
        if pid_file is not None:
            write_pid_file(pid_file, child)
        os.write(writer, b"g")
    finally:
        os.close(writer)


def write_pid_file(path: Path, pid: int) -> None:
    """Write the process id, with a newline, in place of whatever the file held.

    :raises OSError: it cannot be written, or is a symbolic link.
    """
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    try:
        os.write(fd, b"%d\n" % pid)
    finally:
        os.close(fd)


def remove_pid_file(path: Path) -> None:
    """Remove the file, where it still holds our own process id."""
    with contextlib.suppress(FileNotFoundError):
        if path.read_text(errors="replace").strip() == str(os.getpid()):
            path.unlink()


def leave_on_signals() -> None:
    """Let SIGTERM and SIGINT end the program as an exit does, so that its pid file goes with it."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _leave)


def _leave(number: int, frame: FrameType | None) -> None:
    del frame
    raise SystemExit(128 + number)
