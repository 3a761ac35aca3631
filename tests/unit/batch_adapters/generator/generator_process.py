"""The scheduler event generator as a process of its own."""

import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tests.samgrid import LAUNCH
from tests.waiting import SECONDS

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


def read(process: "subprocess.Popen[bytes]", is_enough: Callable[[bytes], bool]) -> bytes:
    """What it prints until that is enough, or it ends."""
    assert process.stdout is not None
    data, end = b"", time.monotonic() + SECONDS
    while not is_enough(data):
        assert select.select([process.stdout], [], [], max(0.0, end - time.monotonic()))[0], data
        chunk = os.read(process.stdout.fileno(), 65_536)
        if not chunk:
            break
        data += chunk
    return data


def close_input(process: "subprocess.Popen[bytes]") -> int:
    """Let its input end; its exit status."""
    assert process.stdin is not None
    process.stdin.close()
    return process.wait(SECONDS)


def read_errors(process: "subprocess.Popen[bytes]") -> str:
    """What it said on stderr, once it has ended."""
    assert process.stderr is not None
    return process.stderr.read().decode()
