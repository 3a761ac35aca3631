"""The event collector: writes the grid jobs' events of all accounts of a host into one folder of day files.

Every account's GRAM job manager reads that folder, and one malformed line blocks them all. So the folder belongs to an
account of its own, which runs this program. It receives lines from the accounts' monitors (`collector_protocol`), asks
the kernel who sent them, and writes those that are well-formed and have the sender's uid in their ids. The number of
lines of each account is limited.
"""

import argparse
import contextlib
import logging
import os
import selectors
import socket
import struct
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from batch_adapters.generator.collector_protocol import LONGEST_PACKET, Receipt, read_lines, render_answers
from batch_adapters.generator.emit import keep_days, write_events_now
from batch_adapters.generator.process import leave_on_signals
from batch_adapters.states import Event
from sandbox.files import fill_closed_descriptors, kept_open, take_lock

logger = logging.getLogger("samgrid-event-collector")

FOLDER = Path("/var/lib/globus/globus-seg-samgrid")
SOCKET = Path("/run/samgrid-event-collector/socket")

_DAY_CHECK = 1.0
"""Seconds between two checks whether a new day has begun."""
_MOST_CALLERS = 8
"""Most open connections of one account, so that none uses up all of them."""
_MOST_ACCEPTED = 64
"""Most connections accepted at a time, before the open ones are served."""
_PATIENCE = 5.0
"""Seconds in which a caller must send its packet."""


@dataclass(frozen=True)
class _Caller:
    """An open connection, and when it was accepted."""

    connection: socket.socket
    uid: int
    since: float


_Request = tuple[_Caller, Sequence[Event | Receipt]]
"""One caller's lines: events to write, and receipts for lines that are not written."""


class Collector:
    """Serves the connections of a listener; requests that have arrived together are written together."""

    def __init__(self, listener: socket.socket, folder: Path) -> None:
        """``listener``: of the type SOCK_SEQPACKET, not blocking."""
        self._listener = listener
        self._folder = folder
        self._allowances = Allowances()
        self._callers: dict[int, _Caller] = {}
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)
        self._next_day_check = 0.0
        self._problem = ""

    def serve(self, patience: float = _DAY_CHECK) -> None:
        """Wait up to ``patience`` seconds for callers, and serve those that are there."""
        ready = {key.fd for key, _ in self._selector.select(patience)}
        if time.monotonic() >= self._next_day_check:
            self._keep_days()
        requests = [request for fd in ready if fd in self._callers and (request := self._read(self._callers[fd]))]
        if requests:
            self._answer(requests)
        if self._listener.fileno() in ready:
            self._accept()
        for caller in [caller for caller in self._callers.values() if time.monotonic() - caller.since > _PATIENCE]:
            self._drop(caller)

    def _keep_days(self) -> None:
        self._next_day_check = time.monotonic() + _DAY_CHECK
        try:
            keep_days(self._folder)
        except OSError as error:
            self._log_problem(f"nothing can be written: {error}")

    def _accept(self) -> None:
        callers = Counter(caller.uid for caller in self._callers.values())
        for _ in range(_MOST_ACCEPTED):
            try:
                connection, _address = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                self._log_problem(f"no connection can be accepted: {error}")
                return
            connection.setblocking(False)
            _, uid, _ = struct.unpack("iII", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
            callers[uid] += 1
            if callers[uid] > _MOST_CALLERS:
                connection.close()
                continue
            self._callers[connection.fileno()] = _Caller(connection, uid, time.monotonic())
            self._selector.register(connection, selectors.EVENT_READ)

    def _read(self, caller: _Caller) -> _Request | None:
        try:
            packet = caller.connection.recv(LONGEST_PACKET + 1)
        except OSError:
            packet = b""
        if not 0 < len(packet) <= LONGEST_PACKET:
            self._drop(caller)
            return None
        found = read_lines(packet, caller.uid)
        allowed = self._allowances.take(caller.uid, len(found), time.monotonic())
        lines = [Receipt.REFUSED if line is None else line for line in found[:allowed]]
        return caller, [*lines, *[Receipt.LATER] * (len(found) - allowed)]

    def _answer(self, requests: Sequence[_Request]) -> None:
        try:
            events = [line for _, lines in requests for line in lines if isinstance(line, Event)]
            write_events_now(self._folder, events)
            self._log_problem("")
            written = Receipt.TAKEN
        except OSError as error:
            self._log_problem(f"nothing can be written: {error}")
            written = Receipt.LATER
        for caller, lines in requests:
            answers = [line if isinstance(line, Receipt) else written for line in lines]
            refused = answers.count(Receipt.REFUSED)
            if refused:
                logger.warning("user %d: %d of %d lines refused", caller.uid, refused, len(answers))
            # A caller that has gone will send its lines again.
            with contextlib.suppress(OSError):
                caller.connection.send(render_answers(answers))
            self._drop(caller)

    def _drop(self, caller: _Caller) -> None:
        self._selector.unregister(caller.connection)
        del self._callers[caller.connection.fileno()]
        caller.connection.close()

    def _log_problem(self, problem: str) -> None:
        """Log a problem once, until it changes or ends (empty text)."""
        if problem and problem != self._problem:
            logger.warning("%s", problem)
        self._problem = problem


@contextmanager
def listening(path: Path) -> Iterator[socket.socket]:
    """A socket to which every account of the host may connect."""
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(path))
        path.chmod(0o666)
        listener.listen(1024)
        listener.setblocking(False)
        try:
            yield listener
        finally:
            path.unlink(missing_ok=True)


@contextmanager
def only_collector(folder: Path) -> Iterator[None]:
    """Hold the folder's lock.

    :raises OSError: another collector holds it, or there is no such folder.
    """
    with kept_open(os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as descriptor:
        if not take_lock(descriptor):
            raise OSError(f"another collector writes into {folder} already")
        yield


def main(argv: Sequence[str]) -> int:
    """Run the collector until SIGTERM; 1 where it cannot work."""
    parser = argparse.ArgumentParser(prog=logger.name, description=__doc__)
    parser.add_argument("-d", dest="folder", metavar="FOLDER", type=Path, default=FOLDER, help=f"default: {FOLDER}")
    parser.add_argument("-s", dest="socket", metavar="SOCKET", type=Path, default=SOCKET, help=f"default: {SOCKET}")
    options = parser.parse_args(argv)
    logging.basicConfig(format="%(name)s: %(message)s")
    fill_closed_descriptors()
    leave_on_signals()
    # The day files are for everybody to read.
    os.umask(0o022)
    try:
        # The folder's lock first, so that a running collector keeps its socket.
        with only_collector(options.folder):
            keep_days(options.folder)
            with listening(options.socket) as listener:
                collector = Collector(listener, options.folder)
                while True:
                    collector.serve()
    except OSError as error:
        print(f"{logger.name}: {error}", file=sys.stderr)
        return 1


LINES_PER_SECOND = 20.0
MOST_LINES = 1000
"""Lines that an account may send at once."""


class Allowances:
    """Limits the lines of each account: `MOST_LINES` at once, `LINES_PER_SECOND` in the long run."""

    def __init__(self) -> None:
        self._left: dict[int, tuple[float, float]] = {}

    def take(self, uid: int, wanted: int, now: float) -> int:
        """How many of the wanted lines are allowed; ``now``: seconds of the monotonic clock."""
        left, then = self._left.get(uid, (float(MOST_LINES), now))
        left = min(MOST_LINES, left + (now - then) * LINES_PER_SECOND)
        allowed = min(wanted, int(left))
        self._left[uid] = left - allowed, now
        return allowed
