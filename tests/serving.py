"""``samgrid web`` in a process of its own, for the tests that look at it."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from tests.samgrid import LAUNCH, Samgrid


@dataclass(frozen=True)
class Serving:
    """The process, its port, and the line that it printed: the address that opens the pages."""

    process: subprocess.Popen[str]
    port: int
    line: str

    @property
    def address(self) -> str:
        """Where the pages are."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def entrance(self) -> str:
        """What a browser has to open first."""
        return self.line.strip()

    @property
    def token(self) -> str:
        """What opens the pages to programs."""
        return self.entrance.partition("?token=")[2]


@contextlib.contextmanager
def serving(samgrid: Samgrid, *options: str, port: int = 0) -> Iterator[Serving]:
    """The pages of an account, until the end of the block."""
    command = [sys.executable, "-P", str(LAUNCH), "samgrid", "web", "--listen", f"127.0.0.1:{port}", *options]
    with subprocess.Popen(command, env=samgrid.environment(), text=True, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            yield Serving(process, int(line.split(":")[2].partition("/")[0]), line)
        finally:
            process.kill()
