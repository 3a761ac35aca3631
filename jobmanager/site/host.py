"""Lets one host at a time work with a state folder that several hosts can see: the active host.

The first host records itself in the state folder, and stays active until a person takes over. SQLite's write-ahead log
and the monitor's socket work within one host only, so two hosts would lose each other's changes.
"""

import os
from _thread import get_native_id
from contextlib import suppress
from dataclasses import astuple, dataclass
from pathlib import Path

from jobmanager.site.places import StateFolderError, StatePlaces
from sandbox.files import make_file, open_own, read_regular, replace_file, sync_folder

STAMP_INTERVAL = 10.0
"""Seconds between two time stamps of a monitor."""
_LONGEST_SILENCE = 60.0
"""Seconds without a time stamp after which the monitor counts as dead."""
_MACHINE_ID = Path("/etc/machine-id")
_MOST = 4096


class OtherHost(StateFolderError):
    """Another host is active; the message says which, and what to do."""


@dataclass(frozen=True)
class Host:
    """A host: its name and, because copies of a machine have the same name, the id of its installation."""

    name: str
    machine: str


def find_this_host() -> Host:
    """The host that this process runs on; its id is ``-`` where machine-id(5) is missing."""
    try:
        machine = _MACHINE_ID.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        machine = ""
    return Host(os.uname().nodename or "-", machine or "-")


def find_active_host(places: StatePlaces) -> Host | None:
    """The active host; None if none has worked here yet.

    :raises OSError: the record cannot be read now. StateFolderError: it is damaged.
    """
    path = places.active_host
    try:
        words = read_regular(path, _MOST).decode(errors="replace").split()
    except FileNotFoundError:
        return None
    if len(words) != 2:
        raise StateFolderError(
            f"{path} does not say which host works here: where no other does, samgrid take-over writes it anew"
        )
    return Host(*words)


def check_host(places: StatePlaces) -> None:
    """Return if this host, or none yet, is active; raises OtherHost: another is."""
    active, here = find_active_host(places), find_this_host()
    if active not in (None, here):
        raise OtherHost(
            f"the state folder {places.root} is in use on host {active.name}, and one host at a time works with it:"
            f" go there or, if that host is down or its monitor was ended, run samgrid take-over on {here.name}"
        )


def claim_host(places: StatePlaces) -> None:
    """Make this host active if none is.

    :raises OtherHost: another host is. OSError: this cannot be recorded.
    """
    if find_active_host(places) is None:
        make_file(places.active_host, _render(find_this_host()))
    check_host(places)


def _render(host: Host) -> bytes:
    return " ".join(astuple(host)).encode() + b"\n"


def put_stamp(places: StatePlaces) -> None:
    """Called by a monitor regularly, to show that it is at work."""
    # A person may have removed the record.
    claim_host(places)
    try:
        os.utime(places.active_host)
    except OSError as error:
        error.filename = str(places.active_host)  # utime alone does not name its file
        raise


def release_stamp(places: StatePlaces) -> None:
    """Called by a monitor that ends, so that a takeover need not wait."""
    with suppress(FileNotFoundError):
        os.utime(places.active_host, (0, 0))


def measure_silence(places: StatePlaces) -> float:
    """Seconds since the last time stamp, by the clock that makes it: the file server's."""
    clock = places.active_host.with_name(f".clock.{os.uname().nodename}.{get_native_id()}")
    os.close(open_own(clock))
    try:
        os.utime(clock)
        return clock.stat().st_mtime - places.active_host.stat().st_mtime
    finally:
        clock.unlink()


def take_over(places: StatePlaces, is_fenced: bool) -> Host | None:
    """Make this host active; the previously active host, None if it was this one or there was none.

    :param is_fenced: a person has made sure that the other host can write nothing any more.
    :raises OtherHost: a monitor seems to be at work there. OSError: this cannot be recorded.
    """
    here = find_this_host()
    try:
        before = find_active_host(places)
    except StateFolderError:  # an incomplete record (full disk): its time stamp counts
        before = Host("-", "-")
    if before is None or before == here:
        claim_host(places)
        return None
    silence = measure_silence(places)
    if silence < _LONGEST_SILENCE and not is_fenced:
        raise OtherHost(
            f"host {before.name} was at work {max(silence, 0):.0f} s ago: end the monitor there, or make sure that this"
            " host can write nothing any more (power, network) and say samgrid take-over --fenced"
        )
    replace_file(places.active_host, _render(here), word=f"{here.name}.{get_native_id()}")
    release_stamp(places)
    sync_folder(places.root)
    return before
