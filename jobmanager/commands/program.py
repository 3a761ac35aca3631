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
    return _run_apart(f"samgrid {argv[0]}", partial(cli.main, argv))


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
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    os.set_blocking(reading_end, False)  # a handler's children may hold the other end
    try:
        os.read(reading_end, 1)
    except BlockingIOError:
        how = f"signal {-status}" if status < 0 else f"exit status {status}"
        print(f"{name}: a handler's code has ended the process that asked it, with {how}", file=sys.stderr)
        return 1
    return status
