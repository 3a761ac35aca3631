"""Checks whether an installation can work, beyond comparing files; and sets up the collector's account and service.

Checks that need a program of Globus, or perl, are left out if it is not installed.
"""

import os
import pwd
import re
import shlex
import shutil
import socket
import stat
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from batch_adapters.generator.collector import SOCKET
from batch_adapters.launch import command_line
from gram_shims.installation.table import (
    COLLECTOR_ACCOUNT,
    COLLECTOR_UNIT,
    CONFIGURATION,
    EVENT_FOLDER,
    GRAM_CONFIGURATION,
    GRAM_PROGRAM,
    MODULE,
    RVF,
    InstallError,
    Registration,
    Root,
    service_file,
)
from jobmanager.site.configuration import SITE_FILE
from jobmanager.site.settings import GramSettings

_KEY = re.compile(r'^(python|launch)="(.*)"$', re.MULTILINE)
_FOLDERS = "/usr/sbin:/usr/bin:/sbin:/bin"
_LONGEST = 60
"""Time limit of a program in seconds; each takes a fraction of one."""


def find_tool(name: str) -> str | None:
    """The path of a program; administrators' programs are found whatever PATH is."""
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:{_FOLDERS}")


def run_tool(*command: str) -> str:
    """Run a program; its error message, or an empty text if it succeeds."""
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
    """The fault of an RSL validation file, or an empty text; None if it cannot be checked."""
    tool = find_tool("globus-rvf-check")
    return run_tool(tool, str(file)) if tool else None


@dataclass(frozen=True)
class Check:
    """The result of one check."""

    name: str
    fault: str = ""
    note: str = ""
    """Why it was not checked."""


def examine(root: Root, registration: Registration, settings: GramSettings) -> Iterator[Check]:
    """Check everything that jobs need to run and to end."""
    if root.is_machine:
        yield from _examine_programs(root)
        yield _check_open(root, "GRAM's job manager", Path(GRAM_PROGRAM), stat.S_IXOTH)
        yield _check_open(root, "GRAM's configuration", Path(GRAM_CONFIGURATION), stat.S_IROTH)
        if os.path.lexists(site_file := root.place(PurePosixPath(SITE_FILE))):
            yield _check_open(root, "site's configuration", site_file, stat.S_IROTH)
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
    """Check that Perl can load the module; a package may be built on a machine without GRAM's Perl modules."""
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
    """Check that somebody writes the events that GRAM reads: it would wait for them for ever."""
    folder = settings.event_folder
    if settings.event_collector is None and folder != Path(EVENT_FOLDER):
        said = f"names {folder}" if folder else "is not set"
        fault = f"[gram] event_collector is not set, and event_folder {said}, where GRAM reads {EVENT_FOLDER}"
        way_out = f'say event_collector = "{SOCKET}" there' if registration.has_collector else "see docs/gram.md"
        return Check("events", f"{fault}: {way_out}")
    return Check("events")


def _check_open(root: Root, name: str, path: Path, bits: int) -> Check:
    """Check that ordinary accounts, as which jobs run, can reach a file."""
    try:
        if (path.stat().st_mode & bits) != bits:
            return Check(name, f"{path} is closed to other accounts: chmod o+r it, or o+rx")
        above = [*path.parents, *path.resolve().parents]
        # Folders above a package's root do not count.
        folders = [folder for folder in above if folder.is_relative_to(root.folder)]
        closed = [folder for folder in folders if not folder.stat().st_mode & stat.S_IXOTH]
    except OSError as error:
        return Check(name, f"{path}: {error.strerror}")
    if closed:
        return Check(name, f"{path} cannot be reached by other accounts: the folder {closed[0]} is closed to them")
    return Check(name)


_ADD_ACCOUNT = (
    "useradd", "--system", "--user-group", "--no-create-home", "--home-dir", "/", "--shell", "/usr/sbin/nologin",
    COLLECTOR_ACCOUNT,
)  # fmt: skip
_RELOAD = ("systemctl", "daemon-reload")
_STOP = ("systemctl", "stop", COLLECTOR_UNIT.stem)
_START = (_RELOAD, ("systemctl", "restart", COLLECTOR_UNIT.stem))
"""A restart, as the program may be newer; monitors send again what was not accepted."""
_SYSTEMD_RUNS = PurePosixPath("/run/systemd/system")
"""A folder that exists while systemd runs: sd_booted(3)."""
_ACCOUNT = "collector's account"
_FOLDER = "event folder's owner"
_PATIENCE = 5.0
"""Seconds in which a newly started collector must listen."""
_LOOK = 0.05


def list_setup(root: Root) -> list[tuple[str, ...]]:
    """The commands that set up the collector and are still to be run; for a package, all of them."""
    start = _START if _has_systemd(root) or not root.is_machine else ()
    return [*_find_missing(root).values(), *start]


def stop(root: Root) -> None:
    """Stop the collector's service; raises InstallError if it cannot be stopped."""
    if has_service(root):
        run_setup(_STOP)


def has_service(root: Root) -> bool:
    """True if systemd runs here and the service is installed."""
    return _has_systemd(root) and root.place(COLLECTOR_UNIT).is_file()


def forget(root: Root) -> None:
    """Tell systemd that the file of the service has been removed."""
    if _has_systemd(root):
        run_setup(_RELOAD)


def has_account(root: Root) -> bool:
    """True if this machine has the collector's account."""
    return root.is_machine and _find_account() is not None


def examine_collector(root: Root, listener: Path | None) -> Iterator[Check]:
    """Check the collector on this machine; ``listener``: the socket that monitors connect to."""
    if not root.is_machine:
        return
    missing = _find_missing(root)
    for name in (_ACCOUNT, _FOLDER):
        yield Check(name, f"not as the collector needs it: {shlex.join(missing[name])}" if name in missing else "")
    account, today = _find_account(), root.place(EVENT_FOLDER) / time.strftime("%Y%m%d", time.gmtime())
    if account and today.is_file() and today.stat().st_uid != account.pw_uid:
        yield Check("today's events", f"{today} is somebody else's: chown {COLLECTOR_ACCOUNT} {today}")
    yield _check_listener(root, listener or SOCKET)


def _find_missing(root: Root) -> dict[str, tuple[str, ...]]:
    """What is missing, and the command that makes it."""
    missing: dict[str, tuple[str, ...]] = {}
    account = _find_account() if root.is_machine else None
    folder = root.place(EVENT_FOLDER) if root.is_machine else EVENT_FOLDER
    if account is None:
        missing[_ACCOUNT] = _ADD_ACCOUNT
    if account is None or not _is_owned(Path(folder), account.pw_uid):
        missing[_FOLDER] = ("install", "-d", "-o", COLLECTOR_ACCOUNT, "-m", "0755", str(folder))
    return missing


def _find_account() -> pwd.struct_passwd | None:
    try:
        return pwd.getpwnam(COLLECTOR_ACCOUNT)
    except KeyError:
        return None


def _is_owned(folder: Path, uid: int) -> bool:
    try:
        status = folder.stat()
    except OSError:
        return False
    return (status.st_uid, stat.S_IMODE(status.st_mode)) == (uid, 0o755)


def _check_listener(root: Root, listener: Path) -> Check:
    name, give_up = "collector", time.monotonic() + _PATIENCE
    while fault := _connect(listener):
        if time.monotonic() > give_up:
            return Check(name, f"nobody listens at {listener} ({fault}): {_explain_start(root)}")
        time.sleep(_LOOK)
    return Check(name)


def _connect(listener: Path) -> str:
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
            connection.connect(os.fspath(listener))
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _explain_start(root: Root) -> str:
    if _has_systemd(root):
        return f"systemctl start {COLLECTOR_UNIT.stem}; journalctl -u {COLLECTOR_UNIT.stem} says why it ended"
    folder = ("install", "-d", "-o", COLLECTOR_ACCOUNT, "-m", "0755", str(SOCKET.parent))
    start = ("runuser", "-u", COLLECTOR_ACCOUNT, "--", *command_line("samgrid-event-collector"))
    return f"systemd does not run here, so keep this running: {shlex.join(folder)}; {shlex.join(start)}"


def _has_systemd(root: Root) -> bool:
    return root.is_machine and root.place(_SYSTEMD_RUNS).is_dir()


def run_setup(command: tuple[str, ...]) -> None:
    """Run a command that sets something up; raises InstallError: it fails; the next installation continues there."""
    tool = find_tool(command[0])
    fault = run_tool(tool, *command[1:]) if tool else f"{command[0]} is not installed"
    if fault:
        raise InstallError(f"{shlex.join(command)}: {fault}")
