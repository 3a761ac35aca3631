"""``samgrid`` as a program: says so if a handler's code has ended the process, which otherwise nobody would notice."""

import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from types import FrameType

from jobmanager.commands import cli

_ASKING = ("submit", "run", "resubmit", "recover", "types", "check-handler", "doctor", "advertise")
"""Commands that run handlers' code in their own process."""


def main(argv: list[str]) -> int:
    """Run one command, as `cli.main`."""
    if not argv or argv[0] not in _ASKING:
        return cli.main(argv)
    name = f"samgrid {argv[0]}"
    run = partial(_run_apart, name, partial(cli.main, argv))
    return cli.run_command(name, partial(_run_in_folder, run)) if argv[0] == "check-handler" else run()


def _run_in_folder(run: Callable[[], int]) -> int:
    """Run a command whose temporary files are in a folder that is removed when it has ended, whoever has ended it."""
    import tempfile

    with tempfile.TemporaryDirectory(prefix="samgrid-check-") as tempfile.tempdir:
        return run()


def _run_apart(name: str, run: Callable[[], int]) -> int:
    """Run a command in a child, because an experiment's code may end its process, and somebody must say so."""
    from batch_adapters.running.commands import die_with_parent
    from jobmanager.requests.job_types import Interrupted

    def interrupt(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # pressed again, it ends code that does not hear of it
        raise Interrupted

    reading_end, writing_end = os.pipe()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # until both are ready for it
    child = os.fork()
    if child == 0:
        die_with_parent()
        if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # as in the background of a script
            signal.signal(signal.SIGINT, interrupt)
        try:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            return run()
        finally:
            os.write(writing_end, b"ended as it should")
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the child gets it, too, and ends by it
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    while os.WIFSTOPPED(ended := os.waitpid(child, os.WUNTRACED)[1]):
        if os.WSTOPSIG(ended) == signal.SIGSTOP:  # a handler has done this: who presses Ctrl-Z stops us, too
            os.kill(child, signal.SIGCONT)
    status = os.waitstatus_to_exitcode(ended)
    os.set_blocking(reading_end, False)  # a handler's children may hold the other end
    try:
        os.read(reading_end, 1)
    except BlockingIOError:
        how = f"signal {-status}" if status < 0 else f"exit status {status}"
        print(f"{name}: a handler's code has ended the process that asked it, with {how}", file=sys.stderr)
        return 1
    return status
