"""The entry of every program of this project: puts the project's folders on the module path, then calls ``main``.

Modules are named as strings, so that this module imports nothing of ours and every other can start programs.
"""

import gc
import os
import sys
import time
from importlib import import_module
from pathlib import Path

PROGRAMS = {
    "samgrid": "jobmanager.commands.program",
    "samgrid gram": "gram_shims.installation.install",
    "samgrid-monitor": "jobmanager.monitor.monitor",
    "samgrid-worker": "jobmanager.monitor.worker",
    "samgrid-query": "jobmanager.views.query.child",
    "samgrid-notify": "jobmanager.views.notification",
    "samgrid-fork": "batch_adapters.fork.commands",
    "samgrid-fork-starter": "batch_adapters.fork.starter",
    "samgrid-scheduler-event-generator": "batch_adapters.generator.main",
    # Globus' name for it, by a link in a folder of its own: docs/event-files.md.
    "globus-scheduler-event-generator": "batch_adapters.generator.main",
    "samgrid-event-collector": "batch_adapters.generator.collector",
    "samgrid-gram": "gram_shims.program",
    **{f"globus-script-samgrid-{script}": "gram_shims.scripts" for script in ("submit", "poll", "rm", "signal")},
}
"""Name of each program, and the module whose ``main`` takes its arguments."""

LAUNCH = Path(__file__).resolve()
UPGRADE = 5.0
"""Seconds after which an upgrade has put all its files in place."""


class Installation:
    """Notices an upgrade: what a running process has not loaded yet then does not fit what it has."""

    def __init__(self) -> None:
        self._found: tuple[float, int] | None = None
        self.is_replaced()

    def is_replaced(self) -> bool:
        """True if another version is in place; False while it is being installed, or if nothing is there any more."""
        try:
            status = LAUNCH.stat()
        except OSError:
            return False
        if time.time() - status.st_ctime <= UPGRADE:
            return False
        # Files of a package built anew may have the old ones' times. Where numbers of files do not last (some network
        # and FUSE file systems), this sees upgrades that are none, and processes start anew more often than needed.
        found = (status.st_mtime, status.st_ino)
        if self._found is None:
            self._found = found
        return found != self._found


def command_line(name: str, *arguments: str) -> list[str]:
    """What starts one of our programs (``-P``: this folder does not become part of the module path)."""
    return [sys.executable, "-P", os.fspath(LAUNCH), name, *arguments]


def run() -> int:
    """Run the program that the first word names; the exit status is its result."""
    sys.path.insert(0, os.fspath(LAUNCH.parents[1]))
    name, arguments = Path(sys.argv[0]).name, sys.argv[1:]
    # Where a shell completes a word, there are no arguments, but COMP_LINE has our name and what is before that word.
    words = arguments or f"{os.environ.get('COMP_LINE', '')}_".split()[1:-1]
    if name == "samgrid" and words[:1] == ["gram"]:
        name, arguments = "samgrid gram", arguments[1:]
    if sys.getfilesystemencoding() != "utf-8":
        # Files and names are UTF-8 to all our programs, whatever the locale.
        os.execv(sys.executable, [sys.executable, "-X", "utf8", *command_line(name, *arguments)[1:]])
    try:
        # Nothing that is loaded becomes garbage; collecting would cost a tenth of the time.
        gc.disable()
        main = import_module(PROGRAMS[name]).main
        gc.enable()
        status: int = main(arguments)
    except KeyboardInterrupt:
        return 130
    finally:
        # Spares the collection at the end, a sixth of the time of a short command.
        gc.freeze()
    return status


if __name__ == "__main__":
    # As a console script: the name, and the arguments.
    del sys.argv[0]
    sys.exit(run())
