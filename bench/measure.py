"""Runs one program on one log and says what it took: time, CPU, memory, and whether its events were right."""

import os
import random
import select
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from make_logs import render_probe
from programs import Program

# Neither program is silent for that long while it has events to tell.
_PATIENCE = 60.0
_CHUNK = 1 << 16
_MEAN_PAUSE = 0.06


@dataclass(frozen=True)
class Run:
    """One run over a whole log."""

    seconds: float
    """From the start of the process to its last event, read from a pipe."""
    cpu_seconds: float
    """User and system time of the whole process, to its end."""
    peak_kib: int
    """The highest resident memory."""
    fault: str
    """Empty where the events were byte by byte the expected ones."""


class _Process:
    """A generator with pipes at its standard input and output."""

    def __init__(self, program: Program) -> None:
        environment = {**os.environ, "TZ": "UTC"}
        pipe = subprocess.PIPE
        # The C program says on standard error that its standard input ended.
        self.child = subprocess.Popen(
            program.argv, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, bufsize=0, env=environment
        )
        assert self.child.stdout is not None
        self._stdout = self.child.stdout.fileno()

    def read(self, patience: float) -> bytes:
        """What it prints next; empty when it says nothing for so many seconds, or has ended."""
        ready, _, _ = select.select([self._stdout], [], [], patience)
        return os.read(self._stdout, _CHUNK) if ready else b""

    def read_peak(self) -> int:
        """Its highest resident memory so far, in KiB (VmHWM: of this program alone, not of us who forked it)."""
        status = Path(f"/proc/{self.child.pid}/status").read_text()
        return next((int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:")), 0)

    def end(self) -> float:
        """Close its standard input and wait for its end; its CPU seconds."""
        assert self.child.stdin is not None
        self.child.stdin.close()
        while self.read(_PATIENCE):
            pass
        _, status, usage = os.wait4(self.child.pid, 0)
        self.child.returncode = os.waitstatus_to_exitcode(status)
        return usage.ru_utime + usage.ru_stime


@contextmanager
def _start(program: Program) -> Iterator[_Process]:
    process = _Process(program)
    try:
        yield process
    finally:
        if process.child.returncode is None:
            process.child.kill()
            process.child.wait()
        for pipe in (process.child.stdin, process.child.stdout):
            if pipe is not None:
                pipe.close()


def run_whole_log(program: Program, expected: Path) -> Run:
    """Let it tell the events of a log from the beginning."""
    with expected.open("rb", buffering=0) as wanted:
        begin = time.monotonic()
        with _start(program) as process:
            fault = _compare(process, wanted, expected.stat().st_size)
            seconds = time.monotonic() - begin
            peak = process.read_peak()
            return Run(seconds, process.end(), peak, fault)


def _compare(process: _Process, wanted: IO[bytes], size: int) -> str:
    done = 0
    while done < size:
        got = process.read(_PATIENCE)
        if not got:
            return f"stopped after {done} of {size} bytes"
        if got != wanted.read(len(got)):
            return f"differs within {len(got)} bytes from byte {done}"
        done += len(got)
    return ""


class _Probes:
    """Lines appended to a log at random moments, and when their events came."""

    def __init__(self, process: _Process, scheduler: str, file: IO[bytes]) -> None:
        self._process = process
        self._scheduler = scheduler
        self._file = file
        self._number = 0
        self._output = b""
        self._waiting: dict[bytes, float] = {}
        self.latencies: list[float] = []

    def append(self) -> None:
        """Append what the scheduler writes for one more queued job, in one write."""
        self._number += 1
        text, mark = render_probe(self._scheduler, self._number, int(time.time()))
        self._waiting[mark] = time.monotonic()
        self._file.write(text)

    def collect(self, patience: float) -> None:
        """Wait that long for output; note which lines it tells."""
        got = self._process.read(patience)
        arrived = time.monotonic()
        *lines, self._output = (self._output + got).split(b"\n")
        for line in lines:
            began = self._waiting.pop(b";%b;" % line.split(b";")[2], None)
            if began is not None:
                self.latencies.append(arrived - began)

    def collect_rest(self) -> None:
        """Wait for every line's event.

        :raises TimeoutError: one does not come.
        """
        end = time.monotonic() + _PATIENCE
        while self._waiting:
            if time.monotonic() > end:
                raise TimeoutError(f"{self._scheduler}: {len(self._waiting)} events did not come in {_PATIENCE:.0f} s")
            self.collect(1.0)


def run_latency(program: Program, scheduler: str, log: Path, count: int) -> tuple[float, ...]:
    """Seconds from just before a line is appended to its event on standard output, for so many lines.

    The lines come at random moments, whether the earlier ones have been told or not.
    """
    moments = random.Random(count)
    with log.open("ab", buffering=0) as file, _start(program) as process:
        probes = _Probes(process, scheduler, file)
        # The first tells that the program has started.
        probes.append()
        probes.collect_rest()
        for _ in range(count):
            due = time.monotonic() + moments.expovariate(1 / _MEAN_PAUSE)
            while (left := due - time.monotonic()) > 0:
                probes.collect(left)
            probes.append()
        probes.collect_rest()
        process.end()
        return tuple(probes.latencies[1:])
