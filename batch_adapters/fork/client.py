"""The queue's end of its fork starter, a fork of the queue process itself."""

import logging
import os
import select
from collections.abc import Sequence
from pathlib import Path

from batch_adapters.fork.jobs import JobEnd
from batch_adapters.fork.protocol import (
    NotStarted,
    Started,
    StartRequest,
    read_answer,
    read_wire,
    render_start_request,
    render_wire,
)
from batch_adapters.fork.spool import Spool
from batch_adapters.fork.starter import run_starter
from batch_adapters.states import read_event
from sandbox.files import locked

log = logging.getLogger(__name__)


class StarterDied(Exception):
    """Nobody answers any more: the claims tell what was started."""


class StarterClient:
    """One fork starter process of a spool, our child, which tells in lines what it has started and what has ended."""

    def __init__(self, spool: Spool) -> None:
        (request, self._input), (self.output, answer) = os.pipe(), os.pipe()
        os.set_blocking(self._input, False)
        self._unread = b""
        self._ends: dict[str, JobEnd] = {}
        try:
            pid = os.fork()
        except OSError:
            self.close()
            raise
        else:
            if pid == 0:
                _become_starter(spool, request, answer)
        finally:
            os.close(request)
            os.close(answer)

    def start(self, requests: Sequence[StartRequest]) -> list[Started | NotStarted]:
        """Ask for jobs, and wait for the answer to each; raises StarterDied."""
        data = b"".join(render_wire(render_start_request(request)) for request in requests)
        answers: list[Started | NotStarted] = []
        poll = select.poll()
        poll.register(self.output, select.POLLIN)
        poll.register(self._input, select.POLLOUT)
        while len(answers) < len(requests):
            # First: it may be waiting for us to read, and read nothing itself meanwhile.
            if self.output in dict(poll.poll()):
                answers += self._read()
                continue
            data = data[self._write(data) :]
            if not data:
                poll.unregister(self._input)
        return answers

    def _write(self, data: bytes) -> int:
        try:
            return os.write(self._input, data)
        except BlockingIOError:
            return 0
        except BrokenPipeError as error:
            raise StarterDied from error

    def read_ends(self) -> dict[str, JobEnd]:
        """What has ended, by local id, once `output` is readable; raises StarterDied."""
        self._read()
        return self.take_ends()

    def take_ends(self) -> dict[str, JobEnd]:
        """What was told of ends while an answer was awaited."""
        ends, self._ends = self._ends, {}
        return ends

    def _read(self) -> list[Started | NotStarted]:
        data = os.read(self.output, 65536)
        if not data:
            raise StarterDied
        *lines, self._unread = (self._unread + data).split(b"\n")
        answers = []
        for line in map(read_wire, lines):
            event = read_event(line)
            if event is None:
                answers.append(read_answer(line))
            else:
                self._ends[event.local_id] = JobEnd(event.state, event.exit_code, event.timestamp)
        return answers

    def close(self) -> None:
        """Tell the starter to start nothing any more; it stays until its jobs have ended."""
        os.close(self._input)
        os.close(self.output)


def _become_starter(spool: Spool, request: int, answer: int) -> None:
    status = 1
    try:
        os.dup2(request, 0)
        os.dup2(answer, 1)
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        # ps shows who is who: they have one command line.
        Path("/proc/self/comm").write_text("samgrid-starter", encoding="ascii")
        run_starter(spool.events, spool.run, locked(spool.starter_lock, wait=True))
        status = 0
    except Exception:
        log.exception("the fork starter ends")
    finally:
        # Whatever went wrong, this process must never go on as a second queue.
        os._exit(status)
