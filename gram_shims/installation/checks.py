"""Whether an installation can work: what ``samgrid gram status`` looks at beyond the files themselves.

Programs of Globus, and perl, help; where one is not there, nobody misses it.
"""

import os
import re
import shutil
import stat
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from batch_adapters.generator.collector import SOCKET
from gram_shims.installation.table import (
    CONFIGURATION,
    EVENT_FOLDER,
    GRAM_CONFIGURATION,
    GRAM_PROGRAM,
    MODULE,
    RVF,
    Registration,
    Root,
    service_file,
)
from jobmanager.site.settings import GramSettings

_KEY = re.compile(r'^(python|launch)="(.*)"$', re.MULTILINE)
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


@dataclass(frozen=True)
class Check:
    """One thing that was looked at."""

    name: str
    fault: str = ""
    note: str = ""
    """Why nothing can be said."""


def examine(root: Root, registration: Registration, settings: GramSettings) -> Iterator[Check]:
    """Each thing without which no job would run, or none would ever end."""
    if root.is_machine:
        yield from _examine_programs(root)
        yield _check_open(root, "GRAM's job manager", Path(GRAM_PROGRAM), stat.S_IXOTH)
        yield _check_open(root, "GRAM's configuration", Path(GRAM_CONFIGURATION), stat.S_IROTH)
    for service in registration.services:
        yield _check_service(root, service)
    yield _check_module(root)
    yield _check_rvf(root)
    if registration.uses_events:
        yield _check_open(root, "event folder", root.place(EVENT_FOLDER), stat.S_IROTH | stat.S_IXOTH)
        yield _check_settings(registration, settings)


def _examine_programs(root: Root) -> Iterator[Check]:
    place = root.place(CONFIGURATION)
    text = place.read_text(errors="surrogateescape") if place.is_file() else ""
    found = dict(_KEY.findall(text))
    for key, bits in (("python", stat.S_IXOTH), ("launch", stat.S_IROTH)):
        if key in found:
            yield _check_open(root, key, Path(found[key]), bits)
        else:
            yield Check(key, f'{place} has no line {key}="…": install again')


def _check_service(root: Root, service: str) -> Check:
    place = root.place(service_file(service))
    check = _check_open(root, f"service {service}", place, stat.S_IROTH)
    if not check.fault and place.read_bytes().count(b"\n") != 1:
        return Check(check.name, f"{place} is not one line, as the gatekeeper wants it")
    return check


def _check_module(root: Root) -> Check:
    """A machine without GRAM's own Perl runs no job; a package may be made where it is not."""
    name, perl, library = "Perl module", find_tool("perl"), f"-I{root.place(MODULE.parents[3])}"
    if perl is None:
        return Check(name, note="not checked: perl is not installed")
    fault = run_tool(perl, library, "-c", str(root.place(MODULE)))
    if fault and not root.is_machine and run_tool(perl, library, "-MGlobus::GRAM::JobManager", "-e", "1"):
        return Check(name, note="not checked: globus-gram-job-manager-scripts is not installed")
    return Check(name, fault)


def _check_rvf(root: Root) -> Check:
    fault = check_rvf(root.place(RVF))
    note = "not checked: globus-rvf-check is not installed" if fault is None else ""
    return Check("RSL validation file", fault or "", note)


def _check_settings(registration: Registration, settings: GramSettings) -> Check:
    """GRAM that reads events never polls: where nobody writes them, it waits for ever."""
    folder = settings.event_folder
    if settings.event_collector is None and folder != Path(EVENT_FOLDER):
        said = f"names {folder}" if folder else "is not set"
        fault = f"[gram] event_collector is not set, and event_folder {said}, where GRAM reads {EVENT_FOLDER}"
        way_out = f'say event_collector = "{SOCKET}" there' if registration.has_collector else "see docs/gram.md"
        return Check("events", f"{fault}: {way_out}")
    return Check("events")


def _check_open(root: Root, name: str, path: Path, bits: int) -> Check:
    """Jobs run as ordinary accounts, and whoever installs us may see more than they do."""
    try:
        if (path.stat().st_mode & bits) != bits:
            return Check(name, f"{path} is closed to other accounts: chmod o+r it, or o+rx")
        above = [*path.parents, *path.resolve().parents]
        # What is above the folder that will be a package says nothing of the machine it will be on.
        folders = [folder for folder in above if folder.is_relative_to(root.folder)]
        closed = [folder for folder in folders if not folder.stat().st_mode & stat.S_IXOTH]
    except OSError as error:
        return Check(name, f"{path}: {error.strerror}")
    if closed:
        return Check(name, f"{path} cannot be reached by other accounts: the folder {closed[0]} is closed to them")
    return Check(name)
