"""How one process of a start request begins: fork, claim, directory, files, exec, and the report if that fails."""

import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from batch_adapters.fork.processes import Process, read_process
from batch_adapters.fork.protocol import GramError, StartRequest, render_wire
from batch_adapters.fork.records import render_claim, write_claim

# What the shell exits with where a program is not found, or cannot be run.
NOT_FOUND, CANNOT_RUN = 127, 126
_FILE_MODE = 0o666


@dataclass(frozen=True, slots=True)
class Claim:
    """The record that a job's process must make before it becomes the program, and the starter it names."""

    record: Path
    starter: Process


class StartRefused(Exception):
    """A process could not become the program: the GRAM error and why; `pid`: it made its claim and is to be reaped."""

    def __init__(self, error: GramError, reason: str, pid: int | None = None) -> None:
        super().__init__(reason)
        self.error = error
        self.pid = pid


def run_job(request: StartRequest, number: int, claim: Claim | None) -> int:
    """Start process NUMBER (from 0) of a request in a session of its own; returns its pid or raises StartRefused."""
    reader, writer = os.pipe()
    try:
        pid = os.fork()
    except OSError as error:
        os.close(reader)
        os.close(writer)
        raise StartRefused(GramError.JOB_EXECUTION_FAILED, f"cannot fork: {error.strerror}") from error
    if pid == 0:
        _become_job(request, number, claim, writer)
    os.close(writer)
    # The pipe closes without a word when the exec succeeds.
    with open(reader, encoding="utf-8", errors="surrogateescape") as pipe:
        report = pipe.read()
    if report:
        _raise_refusal(report, pid)
    if claim is not None and not claim.record.exists():
        os.waitpid(pid, 0)
        raise StartRefused(GramError.JOB_EXECUTION_FAILED, "its process was killed before it had claimed the job")
    return pid


def _raise_refusal(report: str, pid: int) -> NoReturn:
    error, claimed, reason = report.split(" ", 2)
    if claimed == "unclaimed":
        os.waitpid(pid, 0)
        raise StartRefused(GramError(int(error)), reason)
    raise StartRefused(GramError(int(error)), reason, pid)


def _become_job(request: StartRequest, number: int, claim: Claim | None, writer: int) -> NoReturn:
    status, claimed = CANNOT_RUN, "unclaimed"
    try:
        os.setsid()
        _restore_signals()
        if claim is not None:
            _write_claim(claim)
            claimed = "claimed"
        _enter(request, number, writer)
        _execute(request)
    except StartRefused as refusal:
        status = NOT_FOUND if refusal.error is GramError.EXECUTABLE_NOT_FOUND else CANNOT_RUN
        os.write(writer, render_wire(f"{int(refusal.error)} {claimed} {refusal}"))
    except (OSError, ValueError) as error:
        os.write(writer, render_wire(f"{int(GramError.JOB_EXECUTION_FAILED)} {claimed} {error}"))
    finally:
        # Whatever went wrong, this process must never go on as a second starter.
        os._exit(status)


def _restore_signals() -> None:
    # The exec resets what is handled; what is ignored (by Python, or by whoever started us) would stay ignored.
    for number in signal.valid_signals():
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _write_claim(claim: Claim) -> None:
    process = read_process(os.getpid())
    if process is None:
        raise StartRefused(GramError.JOB_EXECUTION_FAILED, "cannot read /proc/self/stat; is /proc mounted?")
    if not write_claim(claim.record, render_claim(process, claim.starter), durable=True):
        raise StartRefused(GramError.JOB_EXECUTION_FAILED, "already started or cancelled: it has a record")


def _enter(request: StartRequest, number: int, writer: int) -> None:
    """Take up the directory and the standard files of the job, and let go of every other descriptor."""
    try:
        os.chdir(render_wire(request.directory))
    except OSError as error:
        raise _refusal(GramError.BAD_DIRECTORY, error) from error
    append = os.O_WRONLY | os.O_APPEND | os.O_CREAT
    _redirect(0, request.stdin, os.O_RDONLY, GramError.STDIN_NOT_FOUND)
    _redirect(1, request.stdout[number] if request.stdout else os.devnull, append, GramError.OPENING_STDOUT)
    _redirect(2, request.stderr[number] if request.stderr else os.devnull, append, GramError.OPENING_STDERR)
    os.closerange(3, writer)
    os.closerange(writer + 1, os.sysconf("SC_OPEN_MAX"))


def _redirect(target: int, path: str, flags: int, refused: GramError) -> None:
    try:
        descriptor = os.open(render_wire(path), flags, _FILE_MODE)
    except OSError as error:
        raise _refusal(refused, error) from error
    os.dup2(descriptor, target)


def _execute(request: StartRequest) -> NoReturn:
    executable = render_wire(request.executable)
    arguments = [executable, *map(render_wire, request.arguments)]
    environment = {render_wire(name): render_wire(value) for name, value in request.environment}
    try:
        os.execve(executable, arguments, environment)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise _refusal(GramError.EXECUTABLE_NOT_FOUND, error) from error
    except PermissionError as error:
        raise _refusal(GramError.EXECUTABLE_PERMISSIONS, error) from error


def _refusal(refused: GramError, error: OSError) -> StartRefused:
    name = error.filename
    path = name.decode("utf-8", "surrogateescape") if isinstance(name, bytes) else name
    return StartRefused(refused, f"{path}: {error.strerror}")
