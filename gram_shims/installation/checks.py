"""Whether an installation can work: what ``samgrid gram status`` looks at beyond the files themselves."""

import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gram_shims.installation.files import (
    CONFIGURATION,
    EVENT_FOLDER,
    GRAM_CONFIGURATION,
    GRAM_PROGRAM,
    MODULE,
    RVF,
    Registration,
    service_file,
)
from gram_shims.installation.globus_tools import check_module, check_rvf, has_gram_perl
from gram_shims.installation.manifest import Root
from jobmanager.site.settings import GramSettings

_KEY = re.compile(r'^(python|launch)="(.*)"$', re.MULTILINE)


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
    yield _weigh("RSL validation file", check_rvf(root.place(RVF)), "globus-rvf-check is not installed")
    if registration.uses_events:
        yield _check_open(root, "event folder", root.place(EVENT_FOLDER), stat.S_IROTH | stat.S_IXOTH)
        yield _check_settings(settings)


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
    name, library = "Perl module", root.place(MODULE.parents[3])
    fault = check_module(root.place(MODULE), library)
    if fault and not root.is_machine and not has_gram_perl(library):
        return Check(name, note="not checked: globus-gram-job-manager-scripts is not installed")
    return _weigh(name, fault, "perl is not installed")


def _check_settings(settings: GramSettings) -> Check:
    """GRAM that reads events never polls: where nobody writes them, it waits for ever."""
    folder = settings.event_folder
    if settings.event_collector is None and folder != Path(EVENT_FOLDER):
        said = f"names {folder}" if folder else "is not set"
        fault = f"[gram] event_collector is not set, and event_folder {said}, where GRAM reads {EVENT_FOLDER}"
        return Check("events", f"{fault}: see docs/gram.md")
    return Check("events")


def _weigh(name: str, fault: str | None, reason: str) -> Check:
    return Check(name, note=f"not checked: {reason}") if fault is None else Check(name, fault)


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
