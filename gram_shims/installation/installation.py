"""Puts a table in its place, whole or not at all, and takes it away again: what was put is kept in a manifest.

The manifest has every file with its checksums, every link and folder, so that nothing else is ever removed.
"""

import enum
import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from gram_shims.installation.checks import find_tool, run_tool
from gram_shims.installation.table import EVENT_FOLDER, SERVICES, InstallError, Registration, Root, Table
from sandbox.files import replace_file

MANIFEST = PurePosixPath("/var/lib/samgrid/gram-installed.json")
_DAY_FILE = re.compile(r"[0-9]{8}", re.ASCII)


class Found(enum.Enum):
    """What is in the place of something of ours."""

    NOTHING = "missing"
    CURRENT = "unchanged"
    OURS = "outdated"
    FOREIGN = "changed"


@dataclass(frozen=True)
class Manifest:
    """What was installed, and how."""

    registration: Registration
    files: Mapping[PurePosixPath, tuple[str, ...]]
    """SHA-256 of each file; two while one is being replaced by the other."""
    links: Mapping[PurePosixPath, str]
    folders: tuple[PurePosixPath, ...]
    """Those that were made."""


NOTHING_YET = Manifest(Registration(), {}, {}, ())


def read_manifest(root: Root) -> Manifest | None:
    """What was installed; None where nothing was.

    :raises InstallError: it cannot be known.
    """
    place = root.place(MANIFEST)
    try:
        return _read(json.loads(place.read_bytes()))
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InstallError(f"{place} does not say what was installed: put it back from a backup") from error


def _read(found: Any) -> Manifest:
    has_collector = found.get("collector") is True
    registration = Registration(tuple(found["services"]), found["events"] is True, str(found["state"]), has_collector)
    files = {PurePosixPath(path): tuple(sums) for path, sums in found["files"].items()}
    links = {PurePosixPath(path): str(target) for path, target in found["links"].items()}
    return Manifest(registration, files, links, tuple(map(PurePosixPath, found["folders"])))


def render_manifest(manifest: Manifest) -> bytes:
    """The file that `read_manifest` reads."""
    content = {
        "services": list(manifest.registration.services),
        "events": manifest.registration.uses_events,
        "state": manifest.registration.state,
        "collector": manifest.registration.has_collector,
        "files": {str(path): list(sums) for path, sums in sorted(manifest.files.items())},
        "links": {str(path): target for path, target in sorted(manifest.links.items())},
        "folders": [str(folder) for folder in manifest.folders],
    }
    return (json.dumps(content, indent=2) + "\n").encode()


def make_manifest(root: Root, old: Manifest, registration: Registration, table: Table) -> Manifest:
    """What there will be: what was there before, and what is wanted now."""
    files = {path: (_digest(content),) for path, content in table.files.items()}
    folders = dict.fromkeys((*old.folders, *find_missing_folders(root, table)))
    return Manifest(registration, {**old.files, **files}, {**old.links, **table.links}, tuple(folders))


def find_missing_folders(root: Root, table: Table) -> list[PurePosixPath]:
    """The folders that are to be made, those above first."""
    parents = [parent for path in (*table.files, *table.links, *table.folders, MANIFEST) for parent in path.parents]
    missing = {folder for folder in (*parents, *table.folders) if not root.place(folder).is_dir()}
    return sorted(missing, key=lambda folder: len(folder.parts))


def look(root: Root, old: Manifest, table: Table) -> dict[PurePosixPath, Found]:
    """What is in each place of the table now."""
    files = {path: _look_at_file(root, old, path, content) for path, content in table.files.items()}
    links = {path: _look_at_link(root, path, target) for path, target in table.links.items()}
    return files | links | {folder: _look_at_folder(root.place(folder)) for folder in table.folders}


def look_at_installed(root: Root, manifest: Manifest) -> dict[PurePosixPath, Found]:
    """What is in each place now where a file or link was put."""
    links = {path: _look_at_link(root, path, target) for path, target in manifest.links.items()}
    return links | {path: _look_at_file(root, manifest, path) for path in manifest.files}


def _look_at_file(root: Root, old: Manifest, path: PurePosixPath, wanted: bytes | None = None) -> Found:
    place = root.place(path)
    if not os.path.lexists(place):
        return Found.NOTHING
    if place.is_symlink() or not place.is_file():
        return Found.FOREIGN
    content = place.read_bytes()
    if content == wanted:
        return Found.CURRENT
    return Found.OURS if _digest(content) in old.files.get(path, ()) else Found.FOREIGN


def _look_at_link(root: Root, path: PurePosixPath, target: str) -> Found:
    place = root.place(path)
    if not os.path.lexists(place):
        return Found.NOTHING
    is_ours = place.is_symlink() and str(place.readlink()) == target
    return Found.CURRENT if is_ours else Found.FOREIGN


def _look_at_folder(place: Path) -> Found:
    if not os.path.lexists(place):
        return Found.NOTHING
    return Found.CURRENT if place.is_dir() else Found.FOREIGN


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def put_in_place(root: Root, old: Manifest, new: Manifest, table: Table, found: Mapping[PurePosixPath, Found]) -> None:
    """All that is not there yet; where that fails, nothing is left of a first installation.

    What is left of a later one is known to be ours, so that the next can go on.

    :raises InstallError, OSError: it is not in place.
    """
    missing = [path for path, state in found.items() if state is not Found.CURRENT]
    if old == new and not missing:
        return
    # Until all is in place, a file may be the one before or the one to come; who said what is as before.
    both = {path: tuple(dict.fromkeys((*old.files.get(path, ()), *sums))) for path, sums in new.files.items()}
    passing = replace(new, files=both, registration=(new if old == NOTHING_YET else old).registration)
    try:
        _make_folders(root, [folder for folder in new.folders if folder in MANIFEST.parents])
        _write(root, MANIFEST, render_manifest(passing))
        _make_folders(root, new.folders)
        for path in [path for path in table.files if path in missing]:
            _write(root, path, table.files[path])
        _enable(root, {path: target for path, target in table.links.items() if path in missing})
        _write(root, MANIFEST, render_manifest(new))
    except (InstallError, OSError):
        if old == NOTHING_YET:
            remove(root, passing, find_removal(root, passing))
        raise


@dataclass(frozen=True)
class Removal:
    """What an uninstallation does: what goes, in that order, and what stays in place."""

    going: tuple[Path, ...]
    changed: tuple[Path, ...]
    """Somebody changed these since, or put them where we did."""
    day_files: tuple[Path, ...]
    """Those with events: GRAM's job managers that still run read them, and there is no other copy."""


def find_removal(root: Root, manifest: Manifest) -> Removal:
    """What becomes of everything that a manifest tells of."""
    found = look_at_installed(root, manifest)
    going = [root.place(path) for path, state in found.items() if state in (Found.CURRENT, Found.OURS)]
    changed = [root.place(path) for path, state in found.items() if state is Found.FOREIGN]
    day_files: list[Path] = []
    for place in _list_folder(root.place(EVENT_FOLDER)) if EVENT_FOLDER in manifest.folders else ():
        if not _DAY_FILE.fullmatch(place.name) or place.is_symlink() or not place.is_file():
            changed.append(place)
        else:
            (day_files if place.stat().st_size else going).append(place)
    # The manifest goes last, so that whoever is interrupted can go on; and then the folders above it.
    above = set(MANIFEST.parents)
    _add_empty_folders(root, going, [folder for folder in manifest.folders if folder not in above])
    going.append(root.place(MANIFEST))
    _add_empty_folders(root, going, [folder for folder in manifest.folders if folder in above])
    return Removal(tuple(going), tuple(changed), tuple(day_files))


def _list_folder(place: Path) -> list[Path]:
    return [] if place.is_symlink() or not place.is_dir() else sorted(place.iterdir())


def _add_empty_folders(root: Root, going: list[Path], folders: Iterable[PurePosixPath]) -> None:
    """Add the folders in which nothing is left then, those below first."""
    for folder in sorted(folders, key=lambda folder: len(folder.parts), reverse=True):
        place = root.place(folder)
        if place.is_dir() and not place.is_symlink() and set(place.iterdir()) <= set(going):
            going.append(place)


def remove(root: Root, manifest: Manifest, removal: Removal) -> None:
    """Remove what goes.

    :raises InstallError, OSError: not all could be removed; the next call goes on.
    """
    _disable(root, [path for path in manifest.links if root.place(path) in removal.going])
    for place in removal.going:
        if place.is_dir() and not place.is_symlink():
            # Somebody may have put something there since.
            if not any(place.iterdir()):
                place.rmdir()
        else:
            place.unlink(missing_ok=True)


def _write(root: Root, path: PurePosixPath, content: bytes) -> None:
    replace_file(root.place(path), content, 0o644, word="samgrid-new")


def _make_folders(root: Root, folders: Iterable[PurePosixPath]) -> None:
    for place in map(root.place, folders):
        if not place.is_dir():
            place.mkdir()
            # Whatever the umask: every account's job manager reads here.
            place.chmod(0o755)


def _enable(root: Root, links: Mapping[PurePosixPath, str]) -> None:
    tool = find_tool("globus-gatekeeper-admin") if root.is_machine else None
    for path, target in links.items():
        if tool is None or path.parent != SERVICES:
            root.place(path).symlink_to(target)
        elif fault := run_tool(tool, "-e", path.name):
            raise InstallError(f"{path.name} cannot be enabled: {fault}")


def _disable(root: Root, links: Iterable[PurePosixPath]) -> None:
    """Have the gatekeeper's own program do it, where there is one."""
    tool = find_tool("globus-gatekeeper-admin") if root.is_machine else None
    for path in links:
        if tool and path.parent == SERVICES and (fault := run_tool(tool, "-d", path.name)):
            raise InstallError(f"{path.name} cannot be disabled: {fault}")
