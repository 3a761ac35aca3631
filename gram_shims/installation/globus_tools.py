"""Programs of Globus, and perl, that check or enable what we install; where one is not there, nobody misses it."""

import os
import shutil
import subprocess
from pathlib import Path

_FOLDERS = "/usr/sbin:/usr/bin:/sbin:/bin"
_LONGEST = 60
"""Seconds; each takes a fraction of one."""


def find_tool(name: str) -> str | None:
    """Where a program is; administrators' programs are found whatever the PATH."""
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:{_FOLDERS}")


def run_tool(*command: str) -> str:
    """Run a program; what is wrong according to it, "" where nothing is."""
    environment = {"PATH": _FOLDERS, "LANG": "C.UTF-8"}
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd="/",
            env=environment, timeout=_LONGEST, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{command[0]}: {error}"
    said = " ".join(done.stdout.decode(errors="replace").split())
    return said or f"{command[0]} ended with status {done.returncode}" if done.returncode else ""


def check_rvf(file: Path) -> str | None:
    """What is wrong with an RSL validation file; None where nobody can say."""
    tool = find_tool("globus-rvf-check")
    return run_tool(tool, str(file)) if tool else None


def check_module(file: Path, library: Path) -> str | None:
    """What is wrong with a Perl module, that others in ``library`` may use; None where nobody can say."""
    tool = find_tool("perl")
    return run_tool(tool, f"-I{library}", "-c", str(file)) if tool else None


def has_gram_perl(library: Path) -> bool:
    """Whether GRAM's own Perl, on which every module of a job manager builds, is in ``library`` or on this machine."""
    tool = find_tool("perl")
    return tool is not None and not run_tool(tool, f"-I{library}", "-MGlobus::GRAM::JobManager", "-e", "1")
