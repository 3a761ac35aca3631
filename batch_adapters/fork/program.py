"""How one process of a start request begins: directory, files, claim, exec."""

import contextlib
import errno
import functools
import os
import signal
from collections.abc import Iterator
from pathlib import Path

from batch_adapters.fork.jobs import CLAIM_FLAGS
from batch_adapters.fork.protocol import GramError, StartRequest, render_wire

CLAIM_VARIABLE = b"SAMGRID_FORK_CLAIM"
"""By which a job is found that nobody has written down the process of."""
_APPEND = os.O_WRONLY | os.O_APPEND | os.O_CREAT
_FILE_MODE = 0o666
_SHORTAGES = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE)
"""The machine cannot start a process now."""


class StartRefused(Exception):
    """A process could not become the program: the GRAM error and why; not for good where it may be tried again."""

    def __init__(self, error: GramError, reason: str, *, for_good: bool = True) -> None:
        super().__init__(reason)
        self.error = error
        self.for_good = for_good


def run_program(request: StartRequest, number: int, claim: Path | None) -> int:
    """Start process NUMBER (from 0) of a request in a session of its own; returns its pid or raises StartRefused.

    The claim is made by the new process itself, right before its exec: what has one is running, or has run. It is no
    fork of ours, which would cost a copy of this interpreter's memory, but shares it until its exec (vfork).
    """
    executable = render_wire(request.executable)
    arguments = [executable, *map(render_wire, request.arguments)]
    environment = {render_wire(name): render_wire(value) for name, value in request.environment}
    if claim is not None:
        environment[CLAIM_VARIABLE] = os.fsencode(claim)
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
    # The exec resets what is handled; what is ignored (by Python, or by whoever started us) would stay ignored.
    return tuple(number for number in signal.valid_signals() if signal.getsignal(number) is signal.SIG_IGN)


@contextlib.contextmanager
def _open(path: str, flags: int, refused: GramError) -> Iterator[int]:
    try:
        descriptor = os.open(render_wire(path), flags, _FILE_MODE)
    except OSError as error:
        raise _refusal(refused, error) from error
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _refusal(refused: GramError, error: OSError) -> StartRefused:
    if error.errno in _SHORTAGES:
        return StartRefused(refused, str(error), for_good=False)
    name = error.filename
    path = name.decode("utf-8", "surrogateescape") if isinstance(name, bytes) else name
    return StartRefused(refused, f"{path}: {error.strerror}")
