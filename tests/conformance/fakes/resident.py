"""Answers the commands of a fake batch system from a thread of the test's own process.

Each command on PATH is a few lines of shell that tell their pid and are told how to end: an interpreter for each would
take longer than all else that the tests do. What the command was given, and where its output goes, is in /proc.
"""

import contextlib
import errno
import os
import shlex
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from tests.conformance.fakes.dialect import Reply
from tests.conformance.fakes.program import Outcome

_CLIENT = """\
#!/bin/sh
# A pipe of its own, which we write to through /proc: mkfifo would be one more process.
exec 3<<PIPE 4<&0 5>&1 6>&2
PIPE
cd {folder} && exec 3<>/proc/$$/fd/3 && echo $$ 1<>door && read -r end <&3 || exit 98
{end}"""
_END = """\
case $end in
hang) : >hangs.$$ && exec sleep 3600 ;;
die) kill -9 $$ ;;
*) exit "$end" ;;
esac
"""

_KILLED = {errno.ENOENT, errno.ESRCH, errno.EPIPE, errno.EACCES, errno.ENXIO}
"""What comes of the files and pipes of a command that has been killed meanwhile."""


class _Gone(Exception):
    """The command has been killed meanwhile: it wants no answer."""


Answer = Callable[[Sequence[str], Callable[[], str]], Outcome]
"""Of a command's words, the first of them its path, and its standard input."""


class Resident:
    """The thread, from its creation until it is closed."""

    def __init__(self, folder: Path, answer: Answer) -> None:
        """The folder is empty, and for nothing else: a command that hangs leaves a file ``hangs.PID`` there."""
        self._folder = folder
        self._answer = answer
        self.faults: list[str] = []
        """Tracebacks of what ought not to happen."""
        self._answering = threading.Lock()
        os.mkfifo(folder / "door")
        # Open for writing, too: it would be at its end whenever no command is there.
        self._door = os.open(folder / "door", os.O_RDWR)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def install(self, program: Path) -> None:
        """Write the command."""
        program.write_text(_CLIENT.format(folder=shlex.quote(str(self._folder)), end=_END))
        program.chmod(0o700)

    def run_here(self, words: Sequence[str], stdin: str) -> tuple[Reply, Sequence[str]]:
        """What a command prints, without a process for it; where it is to hang or die, the argv of one that does."""
        reply, end = self._find_outcome(words, lambda: stdin)
        script = f"cd {shlex.quote(str(self._folder))} && end={end}\n{_END}"
        return reply, () if end == "exit" else ("/bin/sh", "-c", script)

    def close(self) -> None:
        """End when the commands that have come are answered."""
        os.write(self._door, b"\n")
        self._thread.join()

    def _serve(self) -> None:
        with open(self._door, encoding="ascii") as door:
            while pid := door.readline().strip():
                try:
                    self._serve_one(Path("/proc", pid))
                except _Gone:
                    continue
                except Exception:  # noqa: BLE001 the next command must be answered; `Site.check` tells of it
                    self.faults.append(traceback.format_exc())

    def _serve_one(self, process: Path) -> None:
        _, *words = map(os.fsdecode, _read(process / "cmdline").split(b"\0"))
        if not words:
            raise _Gone("a zombie has no words any more")
        words.pop()
        # Not 0 to 2, which the shell turns elsewhere while it speaks to us.
        reply, end = self._find_outcome(words, lambda: _read(process / "fd" / "4").decode())
        _write(process / "fd" / "5", reply.stdout)
        _write(process / "fd" / "6", reply.stderr)
        _write(process / "fd" / "3", f"{reply.exit_code if end == 'exit' else end}\n")

    def _find_outcome(self, words: Sequence[str], stdin: Callable[[], str]) -> Outcome:
        try:
            with self._answering:
                return self._answer(words, stdin)
        except _Gone:
            raise
        except Exception:  # noqa: BLE001 the command must be answered; `Site.check` tells of it
            self.faults.append(traceback.format_exc())
            return Outcome(Reply("", self.faults[-1], 97))


@contextlib.contextmanager
def _notice_its_death() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in _KILLED:
            raise _Gone from error
        raise


@_notice_its_death()
def _read(path: Path) -> bytes:
    return path.read_bytes()


@_notice_its_death()
def _write(path: Path, text: str) -> None:
    """Write to a file, or to a pipe that somebody reads: where nobody does, to open it would wait for ever."""
    descriptor = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    os.set_blocking(descriptor, True)
    with open(descriptor, "w") as sink:
        sink.write(text)
