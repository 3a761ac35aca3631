"""Gathers what the local jobs of a grid job brought back into one tar."""

import errno
import hashlib
import json
import os
import stat
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from sandbox.files import MAX_DEPTH, SandboxError, TarLimits, atomic_write, kept_open, stays_inside
from sandbox.pack import BLOCK, FILE_FLAGS, FOLDER_FLAGS, Tar, is_executable, write_tar
from sandbox.status import render_stem
from sandbox.unpack import forget_members

EXPECTED = ("stdout", "stderr", "status")
"""What every local job that ended brings back; ``output`` only if the program wrote something into it."""
NO_FOLDER = "the results folder has become a link or a file: nothing of it was gathered"
MOST_HOLES = 1 << 30
"""Most bytes of holes in sparse files that are written, as zeros, into one tar: holes cost a program nothing."""
_SPARE = 1 << 20
"""Bytes that must stay free on the disk, for the job database."""
_OVERHEAD = 1024
"""Bytes of a tar entry's header and padding."""
_KINDS = {stat.S_IFIFO: "a named pipe", stat.S_IFSOCK: "a socket"}
_render_json = json.JSONEncoder().encode
"""As `json.dumps`, which takes half as long again to find this out."""


@dataclass(frozen=True, slots=True)
class End:
    """How a local job ended, as the manifest lists it; without an id it was never submitted."""

    index: int
    local_id: str | None
    outcome: str
    cause: str | None
    lost: tuple[str, ...] = ()
    """The outputs that its driver could not bring back, and why."""
    has_files: bool = True
    """False: another local job of the grid job had the same id, and the files are the other's."""


@dataclass(frozen=True)
class Gathered:
    """A summary of the tar; its ``manifest.json`` has all details."""

    files: int
    complete: bytes
    """For each local job, in their order: 1 if its output folder is in the tar with all its content, else 0."""


Extra = bytes | BinaryIO
"""The content of a file that the job manager adds: bytes, or a file open at its beginning."""


def write_output(
    grid_job: str,
    results: Path,
    ends: Callable[[], Iterable[End]],
    extras: Mapping[str, Extra],
    tar: Path,
    limits: TarLimits,
    title: str | None = None,
) -> Gathered:
    """Write one tar with the outputs of local jobs in ``results``, the extras, and a manifest that says how they ended.

    The same content gives the same bytes: local jobs are in the order of ``ends``, names below them are sorted, dates
    and owners are 0. Files that cannot be taken are listed in the manifest. Memory does not grow with the number of
    local jobs. ``title`` is the name that people gave the grid job.

    :raises SandboxError: ``results`` cannot be read, or the tar cannot be written; nothing half-made is left.
    """

    def list_paths() -> Iterator[str]:
        stems = (render_stem(grid_job, end.local_id) for end in ends() if end.local_id is not None)
        return (f"{results}/{stem}.{what}" for stem in stems for what in (*EXPECTED, "output"))

    return _write(grid_job, extras, tar, limits, list_paths, lambda found: _add_results(found, results, ends()), title)


def write_bundle(
    grid_job: str,
    parts: Mapping[str, Path],
    extras: Mapping[str, Extra],
    tar: Path,
    limits: TarLimits,
    title: str | None,
) -> Gathered:
    """Write one tar with the content of other grid jobs' tars, each in a folder of the name that it has in ``parts``.

    :raises SandboxError: as `write_output`.
    """
    paths = list(map(str, parts.values()))
    return _write(grid_job, extras, tar, limits, lambda: paths, lambda found: _add_parts(found, parts), title)


def _write(
    grid_job: str,
    extras: Mapping[str, Extra],
    tar: Path,
    limits: TarLimits,
    list_paths: Callable[[], Iterable[str]],
    add: "Callable[[_Gathering], bytes]",
    title: str | None,
) -> Gathered:
    for name in extras:
        if "/" in name or name in ("", ".", "..", "manifest.json"):
            raise SandboxError(f"{name!r} cannot be a file of the output's own: it must be a plain name")
    with atomic_write(tar) as write, ExitStack() as stack:
        _check_room(tar.parent, limits, list_paths)
        lists = {name: _List(stack.enter_context(tempfile.TemporaryFile(dir=tar.parent))) for name in _LISTS}
        with write_tar(write) as archive:
            gathering = _Gathering(archive, grid_job, limits, lists)
            archive.add_folder(grid_job)
            for name in sorted(extras):
                gathering.add_extra(name, extras[name])
            complete = add(gathering)
            manifest = _render_manifest(grid_job, title, lists)
            archive.add_blocks(f"{grid_job}/manifest.json", sum(map(len, manifest)), False, _blocks_of(manifest))
    return Gathered(lists["files"].count, complete)


def _check_room(folder: Path, limits: TarLimits, list_paths: Callable[[], Iterable[str]]) -> None:
    """Check that there is room for these entries before anything is written: a full disk holds up everybody."""
    disk = os.statvfs(folder)
    free = disk.f_bavail * disk.f_frsize
    # No need to measure files if the largest permitted tar would fit.
    if free < limits.max_bytes + _SPARE and (needed := sum(map(_measure_entry, list_paths()))) + _SPARE > free:
        raise SandboxError(
            f"the outputs need {needed} bytes of room on the disk of {folder}, where {free} are free: they stay where"
            " they are until there is room"
        )


def _measure_entry(path: str) -> int:
    """Bytes on the disk of an entry and everything below; what cannot be read counts 0, and is refused later."""
    size = 0
    # A list, not recursion: trees may be very deep.
    paths = [path]
    while paths:
        found = paths.pop()
        try:
            status = os.lstat(found)
            if stat.S_ISDIR(status.st_mode):
                paths += [f"{found}/{name}" for name in os.listdir(found)]  # noqa: PTH208 for many, plain names
        except OSError:
            continue
        size += _OVERHEAD + (min(status.st_size, status.st_blocks * 512) if stat.S_ISREG(status.st_mode) else 0)
    return size


def count_holes(descriptor: int, status: os.stat_result) -> int:
    """Bytes of a file that were never written; beyond `MOST_HOLES` not all are counted."""
    if status.st_blocks * 512 >= status.st_size:
        return 0
    at = holes = 0
    try:
        # One hole too many is enough to refuse it, and a file may have millions.
        while at < status.st_size and holes <= MOST_HOLES:
            data = os.lseek(descriptor, at, os.SEEK_DATA)
            holes += data - at
            at = os.lseek(descriptor, data, os.SEEK_HOLE)
    except OSError as error:
        # ENXIO: only a hole follows. Any other error: this file system has no holes.
        holes = holes + status.st_size - at if error.errno == errno.ENXIO else 0
    os.lseek(descriptor, 0, os.SEEK_SET)
    return holes


def render_too_sparse(size: int, target: str) -> str:
    """Why a file with more holes than `MOST_HOLES` is not written into the target."""
    return f"a sparse file, {size} bytes long: at most {MOST_HOLES} bytes of holes are written into {target}, as zeros"


def _add_parts(gathering: "_Gathering", parts: Mapping[str, Path]) -> bytes:
    for name, file in sorted(parts.items()):
        with kept_open(os.open(file.parent, FOLDER_FLAGS)) as folder:
            gathering.add_part(folder, file.name, name)
    return b""


def _add_results(gathering: "_Gathering", results: Path, ends: Iterable[End]) -> bytes:
    try:
        folder = os.open(results, FOLDER_FLAGS)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENOTDIR):
            raise
        gathering.refuse(results.name, NO_FOLDER)
        return bytes(gathering.note_end(end, EXPECTED) for end in ends)
    with kept_open(folder):
        return bytes(gathering.add_local_job(folder, end) for end in ends)


class _List:
    """One of the manifest's lists; its items, one per line, are kept on the disk, as there may be millions."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.count = 0

    def add(self, item: str) -> None:
        """Append an item, which is JSON."""
        self._file.write(f"{',' if self.count else ''}\n  {item}".encode())
        self.count += 1

    def __len__(self) -> int:
        return self._file.seek(0, os.SEEK_END)

    def __iter__(self) -> Iterator[bytes]:
        self._file.seek(0)
        while block := self._file.read(BLOCK):
            yield block


_LISTS = ("local_jobs", "files", "missing", "refused")


def _render_manifest(grid_job: str, title: str | None, lists: Mapping[str, _List]) -> "list[_List | bytes]":
    """The manifest in parts: JSON with one line per item of a list."""
    parts: list[_List | bytes] = [f'{{\n "grid_job": {_render_json(grid_job)}'.encode()]
    parts += [f',\n "name": {_render_json(title)}'.encode()] if title else []
    for name, items in lists.items():
        parts += [f',\n "{name}": ['.encode(), items, b"\n ]" if items.count else b"]"]
    return [*parts, b"\n}\n"]


def _blocks_of(parts: "Iterable[_List | bytes]") -> Iterator[bytes]:
    for part in parts:
        yield from (part,) if isinstance(part, bytes) else part


class _Gathering:
    """Fills the tar. Every name is opened relative to its open folder, so that no link is followed."""

    def __init__(self, archive: Tar, grid_job: str, limits: TarLimits, lists: Mapping[str, _List]) -> None:
        self._grid_job = grid_job
        self._archive = archive
        self._local_jobs, self._files, self._missing, self._refused = (lists[name] for name in _LISTS)
        self._limits = limits
        self._files_left = limits.max_files
        self._bytes_left = limits.max_bytes
        self._holes_left = MOST_HOLES

    def add_extra(self, name: str, content: Extra) -> None:
        """Add a file of the job manager; limits do not apply to it."""
        path = f"{self._grid_job}/{name}"
        if isinstance(content, bytes):
            size, sha256 = len(content), hashlib.sha256(content).hexdigest()
            self._archive.add_bytes(path, content)
        else:
            size = os.fstat(content.fileno()).st_size
            sha256, _ = self._archive.add_file(path, content.fileno(), size)
        self._note_file(name, size, sha256)

    def add_local_job(self, folder: int, end: End) -> bool:
        """Add a local job's files from an open folder; True if there is an output folder and all of it was added."""
        if end.local_id is None or not end.has_files:
            return self.note_end(end, EXPECTED)
        stem = render_stem(self._grid_job, end.local_id)
        lacking = [what for what in EXPECTED if not self._add_entry(folder, f"{stem}.{what}")]
        refused = self._refused.count
        has_output = self._add_entry(folder, f"{stem}.output")
        self.note_end(end, (*lacking, *end.lost))
        return has_output and self._refused.count == refused

    def note_end(self, end: End, missing: Sequence[str]) -> bool:
        """Note how a local job ended, and which of its files are missing; gives False, for `add_local_job`."""
        names = ("index", "local_id", "outcome", "cause")
        self._local_jobs.add(_render_json({name: getattr(end, name) for name in names}))
        if end.local_id is not None and missing:
            self._missing.add(_render_json({"local_id": end.local_id, "what": missing}))
        return False

    def add_part(self, parent: int, name: str, folder: str) -> None:
        """Add the content of the tar ``name`` in an open folder to a folder of this tar."""
        self._archive.add_folder(f"{self._grid_job}/{folder}")
        path = f"{folder}/{name}"
        descriptor = self._open(parent, name, path, FILE_FLAGS)
        if descriptor is None:
            return
        # Unbuffered, because members are read from the descriptor.
        with open(descriptor, "rb", buffering=0) as file:
            try:
                with tarfile.open(fileobj=file, mode="r:", encoding="utf-8") as part:
                    self._add_members(part, descriptor, folder, path)
            except (OSError, tarfile.TarError) as error:
                self.refuse(path, f"is no sound tar file: {error}")

    def _add_members(self, part: tarfile.TarFile, descriptor: int, folder: str, path: str) -> None:
        while member := part.next():
            forget_members(part)
            # The top folder is replaced by ours.
            _, _, rest = member.name.partition("/")
            if not rest:
                continue
            if not self._files_left:
                self.refuse(path, f"its entries would pass the limit max_files = {self._limits.max_files}")
                return
            self._files_left -= 1
            self._add_member(member, descriptor, f"{folder}/{rest}")
        # tarfile takes a damaged header for the end.
        if os.pread(descriptor, tarfile.BLOCKSIZE, part.offset) != bytes(tarfile.BLOCKSIZE):
            self.refuse(path, f"is damaged or cut short at byte {part.offset}")

    def _add_member(self, member: tarfile.TarInfo, descriptor: int, path: str) -> None:
        if path.count("/") + 2 > MAX_DEPTH:
            self.refuse(path, f"more than {MAX_DEPTH} folders deep")
        elif member.isdir():
            self._archive.add_folder(f"{self._grid_job}/{path}")
        elif member.issym():
            # It lies as deep in its output folder as before, so it is still safe.
            self._archive.add_link(f"{self._grid_job}/{path}", member.linkname)
        elif not self._is_too_large(path, member.size):
            os.lseek(descriptor, member.offset_data, os.SEEK_SET)
            self._add_bytes(descriptor, path, member.size, executable=bool(member.mode & stat.S_IXUSR))

    def _add_entry(self, folder: int, name: str, path: str = "", depth: int = 0) -> bool:
        """Add or refuse ``name``, ``depth`` folders below the results; False if there is no such entry."""
        path = path or name
        try:
            status = os.stat(name, dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            return False
        except OSError as error:
            self.refuse(path, str(error.strerror))
            return True
        kind = stat.S_IFMT(status.st_mode)
        if kind == stat.S_IFREG:
            self._add_file(folder, name, path)
        elif kind == stat.S_IFDIR:
            self._add_folder(folder, name, path, depth)
        elif kind == stat.S_IFLNK:
            self._add_link(folder, name, path, depth)
        else:
            self.refuse(path, _KINDS.get(kind, "a device"))
        return True

    def _note_file(self, path: str, size: int, sha256: str) -> None:
        self._files.add(f'{{"path": {_render_json(path)}, "size": {size}, "sha256": "{sha256}"}}')

    def refuse(self, path: str, reason: str) -> None:
        """Note that an entry is not in the tar, and why."""
        self._refused.add(_render_json({"path": path, "reason": reason}))

    def _open(self, folder: int, name: str, path: str, flags: int) -> int | None:
        try:
            return os.open(name, flags, dir_fd=folder)
        except OSError as error:
            self.refuse(path, str(error.strerror))
            return None

    def _add_file(self, folder: int, name: str, path: str) -> None:
        descriptor = self._open(folder, name, path, FILE_FLAGS)
        if descriptor is None:
            return
        try:
            self._add_content(descriptor, path)
        finally:
            os.close(descriptor)  # `kept_open` would take a tenth of a small file's time

    def _add_content(self, descriptor: int, path: str) -> None:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            self.refuse(path, "changed its kind while it was read")
            return
        if self._is_too_large(path, status.st_size):
            return
        holes = count_holes(descriptor, status)
        if holes > self._holes_left:
            self.refuse(path, render_too_sparse(status.st_size, "a tar"))
            return
        self._holes_left -= holes
        self._add_bytes(descriptor, path, status.st_size, executable=is_executable(status))

    def _is_too_large(self, path: str, size: int) -> bool:
        """True if a file would exceed the limit; it is refused then."""
        if size > self._bytes_left:
            self.refuse(path, f"its {size} bytes would pass the limit max_bytes = {self._limits.max_bytes}")
            return True
        return False

    def _add_bytes(self, descriptor: int, path: str, size: int, *, executable: bool) -> None:
        """Add a file with the next ``size`` bytes of an open file."""
        self._bytes_left -= size
        sha256, fault = self._archive.add_file(f"{self._grid_job}/{path}", descriptor, size, executable)
        self._note_file(path, size, sha256)
        if fault:
            self.refuse(path, fault)

    def _add_folder(self, parent: int, name: str, path: str, depth: int) -> None:
        # In the tar, the grid job's folder and the output folder come above it, and an entry below.
        if depth + 3 > MAX_DEPTH:
            self.refuse(path, f"more than {MAX_DEPTH} folders deep")
            return
        descriptor = self._open(parent, name, path, FOLDER_FLAGS)
        if descriptor is not None:
            with kept_open(descriptor):
                self._add_names(descriptor, path, depth)

    def _add_names(self, folder: int, path: str, depth: int) -> None:
        with os.scandir(folder) as entries:
            found = [(entry.name, _is_file(entry)) for entry in islice(entries, self._files_left + 1)]
        if len(found) > self._files_left:
            self.refuse(path, f"its entries would pass the limit max_files = {self._limits.max_files}")
            return
        self._files_left -= len(found)
        self._archive.add_folder(f"{self._grid_job}/{path}")
        for name, is_file in sorted(found):
            # Most are files: `_add_entry` would ask once more what they are.
            if is_file:
                self._add_file(folder, name, f"{path}/{name}")
            else:
                self._add_entry(folder, name, f"{path}/{name}", depth + 1)

    def _add_link(self, folder: int, name: str, path: str, depth: int) -> None:
        try:
            target = os.readlink(name, dir_fd=folder)
        except OSError as error:
            self.refuse(path, str(error.strerror))
            return
        # The output folder itself lies at depth 0: a link in its place always leads out.
        if stays_inside(target, depth - 1):
            self._archive.add_link(f"{self._grid_job}/{path}", target)
        else:
            self.refuse(path, "a link that leads out of its output folder")


def _is_file(entry: os.DirEntry[str]) -> bool:
    """True for a regular file; False also if the file system does not say."""
    try:
        return entry.is_file(follow_symlinks=False)
    except OSError:
        return False
