"""Packs a work area into a sandbox: a tar that is the same, byte for byte, for the same work area."""

import hashlib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from sandbox.files import (
    MAX_DEPTH,
    SandboxError,
    SandboxRefused,
    TarLimits,
    atomic_write,
    replace_file,
    stays_inside,
    sync_folder,
)
from sandbox.members import FILE_FLAGS, Tar, is_executable, write_tar

OWN_FOLDER = ".samgrid"
"""The sandbox's own files, beside those of the work area."""
MANIFEST = f"{OWN_FOLDER}/manifest.sha256"
REPORT = f"{OWN_FOLDER}/samgrid-report"
OUTPUT = "output"
"""Where a program leaves what is to come back: in each sandbox, as a driver would need a process to make it."""
# sha256sum writes such names in an escaped form that not every sha256sum reads back.
_UNPACKABLE = frozenset("\n\r\\")


@dataclass(frozen=True)
class _Entry:
    name: str
    path: Path
    status: os.stat_result
    sha256: str = ""


def write_sandbox(work_area: Path, tar: Path, limits: TarLimits) -> str:
    """Pack ``work_area`` into ``tar`` and give the tar's sha256.

    :raises SandboxError: for what cannot travel (devices, links out of the work area, too much), and where the
        file system refuses; then ``tar`` is as it was before.
    """
    report = Path(__file__).with_name("samgrid-report.sh").read_bytes()
    with atomic_write(tar) as sink:
        entries = _list_entries(work_area)
        _check_size(entries, limits)
        entries = [_hash(entry) for entry in entries]
        digest = hashlib.sha256()

        def write(data: bytes) -> None:
            digest.update(data)
            sink.write(data)

        with write_tar(write) as archive:
            archive.add_folder(OWN_FOLDER)
            archive.add_bytes(MANIFEST, _render_manifest(entries, report))
            archive.add_bytes(REPORT, report, executable=True)
            if all(entry.name != OUTPUT for entry in entries):
                archive.add_folder(OUTPUT)
            for entry in entries:
                _add_entry(archive, entry)
        return digest.hexdigest()


def write_report(sandbox: Path) -> str:
    """Lay ``samgrid-report`` into the folder of a sandbox that holds nothing else, and give its sha256.

    :raises OSError: it cannot be written.
    """
    report = Path(__file__).with_name("samgrid-report.sh").read_bytes()
    (sandbox / OWN_FOLDER).mkdir(mode=0o700, exist_ok=True)
    replace_file(sandbox / REPORT, report, mode=0o700)
    # The driver, written after it, says that all is there: it must outlive no power cut without this.
    sync_folder(sandbox / OWN_FOLDER)
    return hashlib.sha256(report).hexdigest()


def _render_manifest(entries: list[_Entry], report: bytes) -> bytes:
    lines = [f"{hashlib.sha256(report).hexdigest()}  {REPORT}\n"]
    lines += [f"{entry.sha256}  {entry.name}\n" for entry in entries if entry.sha256]
    return "".join(lines).encode("utf-8", "surrogateescape")


def _list_entries(work_area: Path) -> list[_Entry]:
    if (work_area / OWN_FOLDER).is_symlink() or (work_area / OWN_FOLDER).exists():
        raise SandboxRefused(f"{work_area / OWN_FOLDER} cannot be packed: the name is the sandbox's own; rename it")
    return sorted(_walk(work_area, "", 0), key=lambda entry: entry.name)


def _walk(folder: Path, prefix: str, depth: int) -> Iterator[_Entry]:
    if depth > MAX_DEPTH:
        raise SandboxRefused(f"{folder} cannot be packed: it lies deeper than {MAX_DEPTH} folders")
    for path in folder.iterdir():
        entry = _Entry(prefix + path.name, path, path.lstat())
        _check_entry(entry, depth)
        yield entry
        if stat.S_ISDIR(entry.status.st_mode):
            yield from _walk(path, f"{entry.name}/", depth + 1)


def _check_entry(entry: _Entry, depth: int) -> None:
    mode = entry.status.st_mode
    if _UNPACKABLE & set(entry.name):
        raise SandboxRefused(f"{entry.name!r} cannot be packed: a name may hold no line break and no backslash")
    if stat.S_ISLNK(mode) and not stays_inside(str(entry.path.readlink()), depth):
        raise SandboxRefused(
            f"{entry.path} cannot be packed: the link leads out of the work area; copy what it points to"
        )
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode)):
        raise SandboxRefused(f"{entry.path} cannot be packed: it is no file, folder or link")


def _check_size(entries: list[_Entry], limits: TarLimits) -> None:
    size = sum(entry.status.st_size for entry in entries if stat.S_ISREG(entry.status.st_mode))
    if len(entries) > limits.max_files:
        raise SandboxRefused(f"the work area holds {len(entries)} entries; the limit max_files is {limits.max_files}")
    if size > limits.max_bytes:
        raise SandboxRefused(f"the work area holds {size} bytes; the limit max_bytes is {limits.max_bytes}")


def _hash(entry: _Entry) -> _Entry:
    if not stat.S_ISREG(entry.status.st_mode):
        return entry
    with open(os.open(entry.path, FILE_FLAGS), "rb") as file:
        return replace(entry, sha256=hashlib.file_digest(file, "sha256").hexdigest())


def _add_entry(archive: Tar, entry: _Entry) -> None:
    if stat.S_ISDIR(entry.status.st_mode):
        archive.add_folder(entry.name)
    elif stat.S_ISLNK(entry.status.st_mode):
        archive.add_link(entry.name, str(entry.path.readlink()))
    else:
        _add_file(archive, entry)


def _add_file(archive: Tar, entry: _Entry) -> None:
    with open(os.open(entry.path, FILE_FLAGS), "rb", buffering=0) as file:
        size, executable = entry.status.st_size, is_executable(entry.status)
        sha256, _ = archive.add_file(entry.name, file.fileno(), size, executable)
    if sha256 != entry.sha256:
        raise SandboxError(f"{entry.path} changed while it was being packed; try again when nothing writes to it")
