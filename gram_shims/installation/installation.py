"""Puts an installation in its place, whole or not at all, and takes it away again."""

import os
import re
from collections.abc import Container, Iterator, Mapping
from dataclasses import replace
from pathlib import Path, PurePosixPath

from gram_shims.installation.files import EVENT_FOLDER, InstallError, Wanted
from gram_shims.installation.globus_tools import find_tool, run_tool
from gram_shims.installation.manifest import (
    MANIFEST,
    Found,
    Manifest,
    Root,
    look_at_file,
    look_at_link,
    prepared,
    render_manifest,
)

_DAY_FILE = re.compile(r"[0-9]{8}", re.ASCII)


def look(root: Root, old: Manifest | None, wanted: Wanted) -> dict[PurePosixPath, Found]:
    """What is in each place now."""
    known = old.files if old else {}
    found = {path: look_at_file(root, path, known.get(path, ()), content) for path, content in wanted.files.items()}
    found |= {path: look_at_link(root, path, target) for path, target in wanted.links.items()}
    for folder in wanted.folders:
        place = root.place(folder)
        present = Found.CURRENT if place.is_dir() else Found.FOREIGN
        found[folder] = present if os.path.lexists(place) else Found.NOTHING
    return found


def put_in_place(
    root: Root, old: Manifest | None, new: Manifest, wanted: Wanted, found: Mapping[PurePosixPath, Found]
) -> None:
    """All that is not there yet; where that fails, nothing is left of a first installation.

    What is left of a later one is known to be ours, so that the next can go on.

    :raises InstallError, OSError: it is not in place.
    """
    if old == new and all(state is Found.CURRENT for state in found.values()):
        return
    before = old.files if old else {}
    both = {path: tuple(dict.fromkeys((*before.get(path, ()), *sums))) for path, sums in new.files.items()}
    passing = replace(old or new, files=both, links=new.links, folders=new.folders)
    try:
        _make_folders(root, passing, set(MANIFEST.parents))
        _write_files({root.place(MANIFEST): render_manifest(passing)})
        _make_folders(root, passing, set(passing.folders))
        _write_files({root.place(path): wanted.files[path] for path in _find_changed(found, wanted.files)})
        _enable(root, {path: wanted.links[path] for path in _find_changed(found, wanted.links)})
        _write_files({root.place(MANIFEST): render_manifest(new)})
    except (InstallError, OSError):
        if old is None:
            remove(root, passing)
        raise


def remove(root: Root, manifest: Manifest) -> list[Path]:
    """Remove what a manifest tells of; what is left in place, because somebody changed it.

    :raises InstallError, OSError: not all could be removed; the next call goes on.
    """
    left = [root.place(path) for path in _disable(root, manifest.links)]
    for path, sums in manifest.files.items():
        state = look_at_file(root, path, sums, None)
        if state is Found.OURS:
            root.place(path).unlink()
        elif state is Found.FOREIGN:
            left.append(root.place(path))
    if EVENT_FOLDER in manifest.folders:
        left += _remove_day_files(root.place(EVENT_FOLDER))
    # The manifest goes last, so that whoever is interrupted can go on; and then the folders above it.
    _remove_folders(root, manifest)
    root.place(MANIFEST).unlink(missing_ok=True)
    _remove_folders(root, manifest)
    return left


def _find_changed(found: Mapping[PurePosixPath, Found], paths: Mapping[PurePosixPath, object]) -> list[PurePosixPath]:
    return [path for path in paths if found[path] is not Found.CURRENT]


def _make_folders(root: Root, manifest: Manifest, which: Container[PurePosixPath]) -> None:
    for folder in manifest.folders:
        place = root.place(folder)
        if folder in which and not place.is_dir():
            place.mkdir()
            # Whatever the umask: every account's job manager reads here.
            place.chmod(0o755)


def _write_files(contents: Mapping[Path, bytes]) -> None:
    with prepared(contents) as beside:
        for place, file in beside.items():
            file.replace(place)


def _enable(root: Root, links: Mapping[PurePosixPath, str]) -> None:
    tool = find_tool("globus-gatekeeper-admin") if root.is_machine else None
    for path, target in links.items():
        if tool is None:
            root.place(path).symlink_to(target)
        elif fault := run_tool(tool, "-e", path.name):
            raise InstallError(f"{path.name} cannot be enabled: {fault}")


def _disable(root: Root, links: Mapping[PurePosixPath, str]) -> Iterator[PurePosixPath]:
    """Disable every service; the links that now are somebody else's."""
    tool = find_tool("globus-gatekeeper-admin") if root.is_machine else None
    for path, target in links.items():
        state = look_at_link(root, path, target)
        if state is Found.FOREIGN:
            yield path
        elif state is Found.CURRENT and tool is None:
            root.place(path).unlink()
        elif state is Found.CURRENT and (fault := run_tool(str(tool), "-d", path.name)):
            raise InstallError(f"{path.name} cannot be disabled: {fault}")


def _remove_day_files(folder: Path) -> list[Path]:
    """Remove the events from a folder that we made; what else there is in it."""
    if folder.is_symlink() or not folder.is_dir():
        return []
    for file in list(folder.iterdir()):
        if _DAY_FILE.fullmatch(file.name) and not file.is_dir():
            file.unlink()
    return list(folder.iterdir())


def _remove_folders(root: Root, manifest: Manifest) -> None:
    for folder in sorted(manifest.folders, key=lambda folder: len(folder.parts), reverse=True):
        place = root.place(folder)
        if place.is_dir() and not place.is_symlink() and not any(place.iterdir()):
            place.rmdir()
