"""Which host works for an account whose state folder several hosts see: one at a time, the active host.

The first one notes itself in the state folder, and stays it until a person takes over. SQLite's write-ahead log and
the monitor's socket work within one host only, so two would lose what the other writes.
"""

import os
from contextlib import suppress
from dataclasses import astuple, dataclass
from pathlib import Path

from jobmanager.site.places import StateFolderError, StatePlaces
from sandbox.files import open_own, replace_file, sync_folder

STAMP_INTERVAL = 10.0
"""Seconds between two stamps of a monitor."""
_LONGEST_SILENCE = 60.0
"""Seconds without a stamp after which nobody believes that a monitor is at work."""
_MACHINE_ID = Path("/etc/machine-id")
_MOST = 4096


class OtherHost(StateFolderError):
    """Another host is the active one; the sentence says which, and the way out."""


@dataclass(frozen=True)
class Host:
    """A host by its name and, as copies of a machine have the same name, the id that its installation has."""

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
    """The active host; None where none has worked here yet.

    :raises OSError: the note cannot be read now. StateFolderError: it is none.
    """
    path = places.active_host
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        words = os.read(descriptor, _MOST).decode(errors="replace").split()
    finally:
        os.close(descriptor)
    if len(words) != 2:
        raise StateFolderError(
            f"{path} does not say which host works here: where no other does, samgrid take-over writes it anew"
        )
    return Host(*words)


def check_host(places: StatePlaces) -> None:
    """Return where this host, or none yet, is the active one.

    :raises OtherHost: another is.
    """
    active, here = find_active_host(places), find_this_host()
    if active not in (None, here):
        raise OtherHost(
            f"the state folder {places.root} is in use on host {active.name}, and one host at a time works with it:"
            f" go there or, if that host is down or its monitor was ended, run samgrid take-over on {here.name}"
        )


def claim_host(places: StatePlaces) -> None:
    """Make this host the active one where there is none yet.

    :raises OtherHost: another is. OSError: it cannot be noted.
    """
    if find_active_host(places) is None:
        path = places.active_host
        temporary = _name_beside(path)
        replace_file(temporary, _render(find_this_host()))
        try:
            # A link is made once, also by two hosts on NFS.
            with suppress(FileExistsError):
                path.hardlink_to(temporary)
        finally:
            temporary.unlink()
    check_host(places)


def _name_beside(path: Path) -> Path:
    """A name that no other process uses, on whatever host."""
    return path.with_name(f".{path.name}.{os.uname().nodename}.{os.getpid()}")


def _render(host: Host) -> bytes:
    return " ".join(astuple(host)).encode() + b"\n"


def put_stamp(places: StatePlaces) -> None:
    """Called by a monitor now and then: it is at work."""
    # A person may have removed the note.
    claim_host(places)
    os.utime(places.active_host)


def release_stamp(places: StatePlaces) -> None:
    """Called by a monitor that ends: nobody need wait for its silence."""
    with suppress(FileNotFoundError):
        os.utime(places.active_host, (0, 0))


def measure_silence(places: StatePlaces) -> float:
    """Seconds since the last stamp, by the clock that stamps it: that of the file server."""
    clock = _name_beside(places.active_host)
    os.close(open_own(clock))
    try:
        os.utime(clock)
        return clock.stat().st_mtime - places.active_host.stat().st_mtime
    finally:
        clock.unlink()


def take_over(places: StatePlaces, is_fenced: bool) -> Host | None:
    """Make this host the active one; the one that was, None where it was this one or nobody.

    :param is_fenced: a person knows that the other can write nothing any more, whatever its stamp says.
    :raises OtherHost: a monitor is at work there, as far as is known. OSError: it cannot be noted.
    """
    here = find_this_host()
    try:
        before = find_active_host(places)
    except StateFolderError:  # half a note, on a disk that was full: its stamp counts
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
    replace_file(places.active_host, _render(here), word=f"{here.name}.{os.getpid()}")
    release_stamp(places)
    sync_folder(places.root)
    return before
