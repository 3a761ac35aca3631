"""Runs our programs in processes of their own that a server forks, with everything loaded.

An interpreter's start and end cost ten times what most commands do. What a program gets and gives is as in
`subprocess.run`, but for the variables that the interpreter itself reads at its start (``PYTHONPATH``).
"""

import functools
import gc
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [] if str(ROOT) in sys.path else [str(ROOT)]

from batch_adapters import launch  # noqa: E402
from tests.samgrid import Samgrid  # noqa: E402
from tests.waiting import SECONDS  # noqa: E402

_LONGEST = 1 << 17
_PRELOADED = (
    *("jobmanager.commands.cli", "jobmanager.requests.acceptance", "jobmanager.checks.handler_check"),
    *("jobmanager.views.export", "jobmanager.views.query.child", "jobmanager.views.watching"),
    *("lark", "lxml.etree", "rich.progress"),
)
"""What commands import."""


def run_forked(
    command: Sequence[str],
    *,
    input: bytes,
    env: Mapping[str, str],
    cwd: str = "",
    start: Callable[[bytes, list[int]], int] | None = None,
    **_: object,
) -> "subprocess.CompletedProcess[bytes]":
    """What `subprocess.run` returns of a command line that `launch.command_line` makes."""
    files = [os.memfd_create(name) for name in ("stdin", "stdout", "stderr")]
    words = command[command.index(os.fspath(launch.LAUNCH)) + 1 :]
    try:
        os.pwrite(files[0], input, 0)
        message = json.dumps([words, cwd or str(Path.cwd()), _umask(), {**env}]).encode()
        status = (start or _server().run)(message, files)
        stdout, stderr = (os.pread(file, os.fstat(file).st_size, 0) for file in files[1:])
    finally:
        for file in files:
            os.close(file)
    return subprocess.CompletedProcess(command, status, stdout, stderr)


@dataclass(frozen=True)
class ForkedSamgrid(Samgrid):
    """``samgrid`` on one state folder; ``inside``: what a command begins with that runs it elsewhere."""

    inside: tuple[str, ...] = ()

    def __call__(self, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """The finished command."""
        command = launch.command_line("samgrid", *arguments)
        done = run_forked(command, input=stdin.encode(), env=self.environment(), start=_server(*self.inside).run)
        return subprocess.CompletedProcess(arguments, done.returncode, done.stdout.decode(), done.stderr.decode())


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


class _Server:
    """The test's side of the process that forks."""

    def __init__(self, inside: Sequence[str]) -> None:
        self._connection, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [*inside, sys.executable, "-P", __file__],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                start_new_session=True,
            )

    def run(self, message: bytes, files: list[int]) -> int:
        """The exit status of one command; where there is none in time, or at all, the next one gets a new server."""
        self._connection.settimeout(SECONDS)
        try:
            socket.send_fds(self._connection, [message], files)
            return int(self._connection.recv(_LONGEST))
        except (OSError, ValueError):  # no answer in time, or none any more
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            _server.cache_clear()
            raise


@functools.cache
def _server(*inside: str) -> _Server:
    return _Server(inside)


def serve() -> None:
    """Fork for each message, until there is nobody to send one."""
    for name in _PRELOADED:
        importlib.import_module(name)
    # A query's own process is forked from the command's.
    forking = functools.partial(run_forked, start=_run_child)
    vars(importlib.import_module("jobmanager.views.query.query"))["_run_watched"] = forking
    gc.freeze()
    with socket.socket(fileno=os.dup(0)) as connection:
        while True:
            message, files, _, _ = socket.recv_fds(connection, _LONGEST, 3, socket.MSG_CMSG_CLOEXEC)
            if not message:
                return
            status = _run_child(message, files, connection.fileno())
            for file in files:
                os.close(file)
            connection.send(str(status).encode())


def _run_child(message: bytes, files: list[int], *unwanted: int) -> int:
    child = os.fork()
    if child == 0:
        for file in unwanted:
            os.close(file)
        _become_command(message, files)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _become_command(message: bytes, files: list[int]) -> NoReturn:
    sys.argv, folder, mask, environment = json.loads(message)
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.chdir(folder)
    os.umask(mask)
    os.environ.clear()
    os.environ.update(environment)
    status: object = 1
    try:
        status = launch.run()
    except SystemExit as end:
        status = end.code
    except BaseException:  # noqa: BLE001 as the interpreter would
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status if isinstance(status, int) else int(status is not None))


if __name__ == "__main__":
    serve()
