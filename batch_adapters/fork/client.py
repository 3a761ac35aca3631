"""The queue's end of one fork starter: asks, and hears one answer at a time."""

import contextlib
import subprocess
from typing import IO

from batch_adapters.fork.protocol import (
    Refused,
    Started,
    StartRequest,
    read_answer,
    read_wire,
    render_start_request,
    render_wire,
)
from batch_adapters.fork.spool import Spool
from batch_adapters.launch import command_line


class StarterClient:
    """One fork starter process of a spool, our child."""

    def __init__(self, spool: Spool) -> None:
        argv = [*command_line("samgrid-fork-starter"), str(spool.events), "--records", str(spool.jobs)]
        self._process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._input = _existing(self._process.stdin)
        self._output = _existing(self._process.stdout)

    def start(self, request: StartRequest) -> Started | Refused | None:
        """Ask for one job; None where the starter died before it answered: the record tells if it started."""
        try:
            self._input.write(render_wire(render_start_request(request)))
            self._input.flush()
        except BrokenPipeError:
            return None
        line = self._output.readline()
        return read_answer(read_wire(line)) if line.endswith(b"\n") else None

    def close(self) -> None:
        """Tell the starter to start nothing any more; it stays until its jobs have ended."""
        # Closing writes what is left of a request that a dead starter did not read.
        with contextlib.suppress(BrokenPipeError):
            self._input.close()
        self._output.close()
        # The queue reaps all its children itself; Popen must not wait for a pid that may be another's by then.
        self._process.returncode = 0


def _existing(pipe: IO[bytes] | None) -> IO[bytes]:
    if pipe is None:
        raise RuntimeError("Popen made no pipe")
    return pipe
