"""What the collector needs beside its files: an account of its own, which owns the event folder, and to be started."""

import os
import pwd
import shlex
import socket
import stat
import time
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from batch_adapters.generator.collector import SOCKET
from batch_adapters.launch import command_line
from gram_shims.installation.checks import Check, find_tool, run_tool
from gram_shims.installation.table import COLLECTOR_ACCOUNT, COLLECTOR_UNIT, EVENT_FOLDER, InstallError, Root

_ADD_ACCOUNT = (
    "useradd", "--system", "--user-group", "--no-create-home", "--home-dir", "/", "--shell", "/usr/sbin/nologin",
    COLLECTOR_ACCOUNT,
)  # fmt: skip
_RELOAD = ("systemctl", "daemon-reload")
_STOP = ("systemctl", "stop", COLLECTOR_UNIT.stem)
_START = (_RELOAD, ("systemctl", "restart", COLLECTOR_UNIT.stem))
"""A restart, because the program may be a newer one; monitors tell again what was not taken."""
_SYSTEMD_RUNS = PurePosixPath("/run/systemd/system")
"""A folder that is there for as long as systemd runs: sd_booted(3)."""
_ACCOUNT = "collector's account"
_FOLDER = "event folder's owner"
_PATIENCE = 5.0
"""Seconds in which a collector that was just started listens."""
_LOOK = 0.05


def find_setup(root: Root) -> list[tuple[str, ...]]:
    """The commands that are still to be run; for a package all, on each machine that it comes to."""
    start = _START if _has_systemd(root) or not root.is_machine else ()
    return [*_find_missing(root).values(), *start]


def run_setup(root: Root) -> Iterator[str]:
    """Run them, each as it is asked for; yields each that has been run.

    :raises InstallError: one fails; the next installation goes on there.
    """
    for command in find_setup(root):
        _run(command)
        yield shlex.join(command)


def stop(root: Root) -> None:
    """Stop the service before its file is removed.

    :raises InstallError: it goes on.
    """
    if has_service(root):
        _run(_STOP)


def has_service(root: Root) -> bool:
    """True where systemd runs and knows, or will know, the service."""
    return _has_systemd(root) and root.place(COLLECTOR_UNIT).is_file()


def forget(root: Root) -> None:
    """Have systemd see that the file of the service has been removed."""
    if _has_systemd(root):
        _run(_RELOAD)


def has_account(root: Root) -> bool:
    """True where this machine has the collector's account."""
    return root.is_machine and _find_account() is not None


def examine_collector(root: Root, listener: Path | None) -> Iterator[Check]:
    """What of it is missing on this machine; ``listener``: the socket on which the monitors look for it."""
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
    """By what is missing, the command that makes it."""
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


def _run(command: tuple[str, ...]) -> None:
    tool = find_tool(command[0])
    fault = run_tool(tool, *command[1:]) if tool else f"{command[0]} is not installed"
    if fault:
        raise InstallError(f"{shlex.join(command)}: {fault}")
