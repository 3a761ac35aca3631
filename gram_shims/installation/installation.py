"""Installs a table of files, all of it or nothing, and removes it again.

A manifest lists every file with its checksum, every link and every folder, so that nothing else is ever removed.
"""

import enum
import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from gram_shims.installation.checks import find_tool, run_tool
from gram_shims.installation.table import EVENT_FOLDER, SERVICES, InstallError, Registration, Root, Table
from sandbox.files import replace_file

MANIFEST = PurePosixPath("/var/lib/samgrid/gram-installed.json")
_LINK = "-> "
_FOLDER = "folder"
_UNFINISHED = "samgrid-new"
"""Ends the name of a file while it is written."""
_DAY_FILE = re.compile(r"[0-9]{8}", re.ASCII)


class Found(enum.Enum):
    """What is found at a path of the table."""

    NOTHING = "missing"
    CURRENT = "unchanged"
    OURS = "outdated"
    FOREIGN = "changed"


@dataclass(frozen=True)
class Manifest:
    """What was installed."""

    registration: Registration
    marks: Mapping[PurePosixPath, tuple[str, ...]]
    """For each file, link and folder that was made, its `_mark`; two while a file is being replaced."""

    @property
    def folders(self) -> list[PurePosixPath]:
        """The folders that were made, outer ones first."""
        return [path for path, marks in self.marks.items() if _FOLDER in marks]


NOTHING_YET = Manifest(Registration(), {})


def read_manifest(root: Root) -> Manifest | None:
    """What was installed; None: nothing.

    :raises InstallError: the manifest is damaged.
    """
    place = root.place(MANIFEST)
    try:
        return _read(json.loads(place.read_bytes()))
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InstallError(f"{place} does not say what was installed: put it back from a backup") from error


def _read(found: Any) -> Manifest:
    has_collector = found.get("collector") is True
    registration = Registration(tuple(found["services"]), found["events"] is True, str(found["state"]), has_collector)
    marks = {path: tuple(sums) for path, sums in found["files"].items()}
    marks |= {path: (_LINK + target,) for path, target in found["links"].items()}
    marks |= dict.fromkeys(found["folders"], (_FOLDER,))
    return Manifest(registration, {_read_place(path): texts for path, texts in marks.items()})


def _read_place(text: str) -> PurePosixPath:
    path = PurePosixPath(text)
    if path.root != "/" or ".." in path.parts:
        raise ValueError(f"{text} is no place in a file system")
    return path


def render_manifest(manifest: Manifest) -> bytes:
    """The file that `read_manifest` reads."""
    files = {str(path): marks for path, marks in sorted(manifest.marks.items()) if _FOLDER not in marks}
    links = {path: marks[0].removeprefix(_LINK) for path, marks in files.items() if marks[0].startswith(_LINK)}
    content = {
        "services": list(manifest.registration.services),
        "events": manifest.registration.uses_events,
        "state": manifest.registration.state,
        "collector": manifest.registration.has_collector,
        "files": {path: marks for path, marks in files.items() if path not in links},
        "links": links,
        "folders": [str(folder) for folder in manifest.folders],
    }
    return (json.dumps(content, indent=2) + "\n").encode()


def make_manifest(root: Root, old: Manifest, registration: Registration, table: Table) -> Manifest:
    """The manifest after an installation: the old one's content and the table's."""
    wanted = {path: (_mark(entry),) for path, entry in table.items() if entry is not None}
    return Manifest(
        registration, {**old.marks, **wanted, **dict.fromkeys(find_missing_folders(root, table), (_FOLDER,))}
    )


def find_missing_folders(root: Root, table: Table) -> list[PurePosixPath]:
    """The folders that must be made, outer ones first."""
    wanted = {parent for path in (*table, MANIFEST) for parent in path.parents}
    wanted |= {path for path, entry in table.items() if entry is None}
    missing = {folder for folder in wanted if not root.place(folder).is_dir()}
    return sorted(missing, key=lambda folder: len(folder.parts))


def compare(root: Root, old: Manifest, table: Table) -> dict[PurePosixPath, Found]:
    """What is found at each path of the table."""
    return {path: _compare(root, old, path, _mark(entry)) for path, entry in table.items()}


def _compare(root: Root, old: Manifest, path: PurePosixPath, wanted: str = "") -> Found:
    place = root.place(path)
    if not os.path.lexists(place):
        return Found.NOTHING
    if wanted == _FOLDER and place.is_dir():
        return Found.CURRENT
    found = ""
    if place.is_symlink():
        found = _mark(str(place.readlink()))
    elif place.is_file():
        found = _mark(place.read_bytes())
    if found and found == wanted:
        return Found.CURRENT
    return Found.OURS if found in old.marks.get(path, ()) else Found.FOREIGN


def _mark(entry: bytes | str | None) -> str:
    """A short form of content: the SHA-256 of a file, the target of a link."""
    if entry is None:
        return _FOLDER
    return hashlib.sha256(entry).hexdigest() if isinstance(entry, bytes) else _LINK + entry


def put_in_place(root: Root, old: Manifest, new: Manifest, table: Table, found: Mapping[PurePosixPath, Found]) -> None:
    """Install what is missing. If that fails, a first installation is undone.

    A later one leaves what it has done, which the manifest knows, so that the next one can continue.

    :raises InstallError, OSError: it failed.
    """
    for place in _find_unfinished(root, new):
        place.unlink()
    missing = [path for path, state in found.items() if state is not Found.CURRENT]
    if old == new and not missing:
        return
    # Until all is installed, a file may be the old or the new one; the registration is the old one.
    both = {path: tuple(dict.fromkeys((*old.marks.get(path, ()), *marks))) for path, marks in new.marks.items()}
    passing = Manifest((new if old == NOTHING_YET else old).registration, both)
    try:
        _make_folders(root, [folder for folder in new.folders if folder in MANIFEST.parents])
        _write(root, MANIFEST, render_manifest(passing))
        _make_folders(root, new.folders)
        for path in missing:
            _put(root, path, table[path])
        _write(root, MANIFEST, render_manifest(new))
    except (InstallError, OSError):
        if old == NOTHING_YET:
            remove(root, passing, plan_removal(root, passing))
        raise


@dataclass(frozen=True)
class Removal:
    """What an uninstallation removes, in this order, and what it leaves."""

    going: tuple[Path, ...]
    changed: tuple[Path, ...]
    """Changed since, or put there by somebody else."""
    day_files: tuple[Path, ...]
    """Day files with events: running GRAM job managers read them, and there is no other copy."""


def plan_removal(root: Root, manifest: Manifest) -> Removal:
    """Decide what is removed of everything in a manifest."""
    found = {path: _compare(root, manifest, path) for path, marks in manifest.marks.items() if _FOLDER not in marks}
    going = [root.place(path) for path, state in found.items() if state is Found.OURS]
    going += _find_unfinished(root, manifest)
    changed = [root.place(path) for path, state in found.items() if state is Found.FOREIGN]
    day_files: list[Path] = []
    for place in _list_folder(root.place(EVENT_FOLDER)) if EVENT_FOLDER in manifest.folders else ():
        if not _DAY_FILE.fullmatch(place.name) or place.is_symlink() or not place.is_file():
            changed.append(place)
        else:
            (day_files if place.stat().st_size else going).append(place)
    # The manifest goes last, then the folders above it, so that an interrupted removal can be continued.
    above = set(MANIFEST.parents)
    _add_empty_folders(root, going, [folder for folder in manifest.folders if folder not in above])
    going.append(root.place(MANIFEST))
    _add_empty_folders(root, going, [folder for folder in manifest.folders if folder in above])
    return Removal(tuple(going), tuple(changed), tuple(day_files))


def _find_unfinished(root: Root, manifest: Manifest) -> list[Path]:
    """What a killed installation has left of the files that it was writing."""
    places = (root.place(path.parent / f".{path.name}.{_UNFINISHED}") for path in (*manifest.marks, MANIFEST))
    return [place for place in places if place.is_file()]


def _list_folder(place: Path) -> list[Path]:
    return [] if place.is_symlink() or not place.is_dir() else sorted(place.iterdir())


def _add_empty_folders(root: Root, going: list[Path], folders: Iterable[PurePosixPath]) -> None:
    """Add the folders that will be empty then, inner ones first."""
    for folder in sorted(folders, key=lambda folder: len(folder.parts), reverse=True):
        place = root.place(folder)
        if place.is_dir() and not place.is_symlink() and set(place.iterdir()) <= set(going):
            going.append(place)


def remove(root: Root, manifest: Manifest, removal: Removal) -> None:
    """Carry out a removal; raises InstallError, OSError: not all could be removed; the next call continues."""
    links = [path for path in manifest.marks if path.parent == SERVICES and root.place(path).is_symlink()]
    for path in links if (tool := _find_admin(root)) else ():
        if root.place(path) in removal.going and (fault := run_tool(tool, "-d", path.name)):
            raise InstallError(f"{path.name} cannot be disabled: {fault}")
    for place in removal.going:
        if place.is_dir() and not place.is_symlink():
            # Something may have been put there meanwhile.
            if not any(place.iterdir()):
                place.rmdir()
        else:
            place.unlink(missing_ok=True)


def _write(root: Root, path: PurePosixPath, content: bytes) -> None:
    replace_file(root.place(path), content, 0o644, word=_UNFINISHED)


def _make_folders(root: Root, folders: Iterable[PurePosixPath]) -> None:
    for place in map(root.place, folders):
        if not place.is_dir():
            place.mkdir()
            # Whatever the umask: all accounts must read it.
            place.chmod(0o755)


def _put(root: Root, path: PurePosixPath, entry: bytes | str | None) -> None:
    if isinstance(entry, bytes):
        _write(root, path, entry)
    elif entry is not None:
        # Services are enabled by the gatekeeper's own program, if it is installed.
        tool = _find_admin(root) if path.parent == SERVICES else ""
        if not tool:
            root.place(path).symlink_to(entry)
        elif fault := run_tool(tool, "-e", path.name):
            raise InstallError(f"{path.name} cannot be enabled: {fault}")


def _find_admin(root: Root) -> str:
    return (find_tool("globus-gatekeeper-admin") or "") if root.is_machine else ""
