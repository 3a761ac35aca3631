"""What was installed: every file with its checksums, every link and folder, so that nothing else is ever removed."""

import contextlib
import enum
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from gram_shims.installation.files import InstallError, Registration, Wanted

MANIFEST = PurePosixPath("/var/lib/samgrid/gram-installed.json")


class Found(enum.Enum):
    """What is in the place of a file or link of ours."""

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


@dataclass(frozen=True)
class Root:
    """The file system that we install into: the machine's own, or one in a folder, which will be a package's."""

    folder: Path

    @property
    def is_machine(self) -> bool:
        """True for the file system of this machine."""
        return self.folder == Path("/")

    def place(self, path: PurePosixPath) -> Path:
        """Where a file is now that will be seen as ``path``."""
        return self.folder / path.relative_to("/")

    def seen(self, path: Path) -> str:
        """The name under which a file that is ``path`` now will be seen."""
        inside = not self.is_machine and path.is_relative_to(self.folder)
        return f"/{path.relative_to(self.folder)}" if inside else str(path)


def digest(content: bytes) -> str:
    """The checksum of a file's content."""
    return hashlib.sha256(content).hexdigest()


def look_at_file(root: Root, path: PurePosixPath, known: Iterable[str], wanted: bytes | None) -> Found:
    """What is in a file's place; ``known`` are the checksums of what we have put there."""
    place = root.place(path)
    if not os.path.lexists(place):
        return Found.NOTHING
    if place.is_symlink() or not place.is_file():
        return Found.FOREIGN
    content = place.read_bytes()
    if content == wanted:
        return Found.CURRENT
    return Found.OURS if digest(content) in known else Found.FOREIGN


def look_at_link(root: Root, path: PurePosixPath, target: str) -> Found:
    """What is in the place of a link to ``target``."""
    place = root.place(path)
    if not os.path.lexists(place):
        return Found.NOTHING
    is_ours = place.is_symlink() and str(place.readlink()) == target
    return Found.CURRENT if is_ours else Found.FOREIGN


def find_missing_folders(root: Root, wanted: Wanted) -> list[PurePosixPath]:
    """The folders that are to be made, those above first."""
    parents = [parent for path in (*wanted.files, *wanted.links, MANIFEST) for parent in path.parents]
    inner = [parent for folder in wanted.folders for parent in (folder, *folder.parents)]
    missing = {folder for folder in (*parents, *inner) if not root.place(folder).is_dir()}
    return sorted(missing, key=lambda folder: len(folder.parts))


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
    registration = Registration(tuple(found["services"]), found["events"] is True, str(found["state"]))
    files = {PurePosixPath(path): tuple(sums) for path, sums in found["files"].items()}
    links = {PurePosixPath(path): str(target) for path, target in found["links"].items()}
    return Manifest(registration, files, links, tuple(map(PurePosixPath, found["folders"])))


def render_manifest(manifest: Manifest) -> bytes:
    """The file that `read_manifest` reads."""
    content = {
        "services": list(manifest.registration.services),
        "events": manifest.registration.uses_events,
        "state": manifest.registration.state,
        "files": {str(path): list(sums) for path, sums in sorted(manifest.files.items())},
        "links": {str(path): target for path, target in sorted(manifest.links.items())},
        "folders": [str(folder) for folder in manifest.folders],
    }
    return (json.dumps(content, indent=2) + "\n").encode()


@contextlib.contextmanager
def prepared(contents: Mapping[Path, bytes]) -> Iterator[Mapping[Path, Path]]:
    """The contents in full beside their places, each to be renamed; what was not renamed is gone afterwards."""
    beside = {place: place.with_name(f".{place.name}.samgrid-new") for place in contents}
    try:
        for place, content in contents.items():
            _write(beside[place], content)
        yield beside
    finally:
        for file in beside.values():
            file.unlink(missing_ok=True)


def _write(file: Path, content: bytes) -> None:
    file.unlink(missing_ok=True)
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(descriptor, "wb") as stream:
        stream.write(content)
        stream.flush()
        os.fchmod(descriptor, 0o644)
        os.fsync(descriptor)
