"""The scheduler event generator as a process of its own."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tests.samgrid import LAUNCH

PROGRAM = "samgrid-scheduler-event-generator"
Start = Callable[..., "subprocess.Popen[bytes]"]
"""Starts a generator with these arguments, whose input and outputs are pipes."""


@contextmanager
def starting() -> Iterator[Start]:
    """What starts generators; all of them are ended afterwards."""
    started = []

    def start(*arguments: object) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-P", str(LAUNCH), PROGRAM, *map(str, arguments)]
        pipe = subprocess.PIPE
        started.append(subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                stream.close()
