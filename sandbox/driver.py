"""Renders the driver, the script that runs one local job."""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, StrictUndefined

from sandbox.limits import SandboxRefused
from sandbox.table import LINES_PER_FILE, quote_word

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


@dataclass(frozen=True)
class DriverPlan:
    """What all local jobs of one grid job have in common; paths are absolute and seen alike by all hosts."""

    grid_job: str
    sandbox: Path
    """The folder of ``sandbox.tar`` and the submissions' tables; ``$0`` will not do, batch systems copy the script."""
    results: Path
    scratch_base: Path
    sandbox_sha256: str
    local_jobs: int
    local_id_words: str
    """The batch system's id of the job as shell words for double quotes: ``$SAMGRID_FORK_ID``."""
    index_words: str
    """The job's place in its array, likewise: ``$SAMGRID_FORK_INDEX``."""
    job_folder_words: str = ""
    """A folder that the batch system makes for the job and removes, likewise; used in place of ``scratch_base``."""
    environment: tuple[tuple[str, str], ...] = ()
    directory: str = ""
    """Where the program runs instead of the scratch folder; relative to that where not absolute."""
    stdin: str = ""
    """A name in the work area or an absolute path; nothing is ``/dev/null``."""
    max_cpu_minutes: int = 0
    max_memory_mb: int = 0
    umask: str = "077"
    """The program's own, in octal digits; what the driver writes is its account's alone."""
    copies_lines: bool = False
    """The handler reads phases out of what the program prints: its lines are put into ``results/reports``."""
    carried: bool = False
    """The sandbox lies where the batch system starts the driver; outputs go to ``results`` below, to be carried back.

    ``sandbox``, ``results`` and ``scratch_base`` are not used then.
    """

    @property
    def stdin_words(self) -> str:
        """The program's standard input as a shell word."""
        if not self.stdin or self.stdin.startswith("/"):
            return shlex.quote(self.stdin or "/dev/null")
        return '"$scratch"/' + shlex.quote(self.stdin)


def render_driver(plan: DriverPlan) -> str:
    """The driver as a POSIX shell script, to be written as UTF-8 with ``surrogateescape``.

    :raises SandboxRefused: for an environment name that no shell takes, and for NUL characters.
    """
    for name, _ in plan.environment:
        if not _NAME.fullmatch(name):
            raise SandboxRefused(f"the environment name {name!r} is none: it takes letters, digits and underscores")
    environment = Environment(undefined=StrictUndefined, trim_blocks=True, keep_trailing_newline=True)
    environment.filters["sh"] = quote_word
    template = Path(__file__).with_name("driver.sh.j2").read_text(encoding="utf-8")
    return environment.from_string(template).render(plan=plan, lines_per_file=LINES_PER_FILE)
