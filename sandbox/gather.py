"""Gathers what the local jobs of a grid job brought back into one tar."""

import errno
import hashlib
import json
import os
import stat
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from sandbox.files import MAX_DEPTH, Limits, SandboxError, atomic_write, stays_inside
from sandbox.members import (
    FILE_FLAGS,
    FOLDER_FLAGS,
    ExactReader,
    add_bytes,
    file_member,
    folder_member,
    is_executable,
    link_member,
    write_tar,
)

EXPECTED = ("stdout", "stderr", "status")
"""What every local job that ended has; the folder ``output`` is there only when the program left something in it."""
NO_FOLDER = "the results folder has become a link or a file: nothing of it was gathered"
MOST_HOLES = 1 << 30
"""Bytes of holes in sparse files that are written into one file as zeros: a hole costs a program nothing."""
_SPARE = 1 << 20
"""Bytes that stay free on the disk, for the job database."""
_OVERHEAD = 1024
"""Bytes in a tar for an entry's header and padding."""
_KINDS = {stat.S_IFIFO: "a named pipe", stat.S_IFSOCK: "a socket"}


@dataclass(frozen=True)
class Content:
    """One file of the tar; ``path`` is relative to the folder named after the grid job, ``size`` in bytes."""

    path: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class End:
    """How a local job ended, in the job manager's words; without an id it was never submitted."""

    index: int
    local_id: str | None
    outcome: str
    cause: str | None
    lost: tuple[str, ...] = ()
    """What of its outputs its driver could not bring back, and why."""


@dataclass(frozen=True, slots=True)
class Missing:
    """A local job that did not bring back all of `EXPECTED`, or not all that it left."""

    local_id: str
    what: tuple[str, ...]


@dataclass(frozen=True)
class Refused:
    """Something a local job left that the tar does not hold, or not as it was."""

    path: str
    reason: str


@dataclass(frozen=True)
class Gathered:
    """What the tar holds and what it lacks; the same stands in its ``manifest.json``."""

    sha256: str
    files: tuple[Content, ...]
    missing: tuple[Missing, ...]
    refused: tuple[Refused, ...]


Extra = bytes | BinaryIO
"""A file of the job manager's own: its content, or a file open at its beginning."""


def render_stem(grid_job: str, local_id: str) -> str:
    """The beginning of the names of what a local job brings back, as the driver makes it."""
    return f"{grid_job}.{local_id.replace('/', '_')}"


def write_output(
    grid_job: str,
    results: Path,
    ends: Iterable[End],
    extras: Mapping[str, Extra],
    tar: Path,
    limits: Limits,
    title: str | None = None,
) -> Gathered:
    """Write everything that local jobs left in ``results``, and the extras, into one tar, and how they ended.

    ``title`` is what people call the grid job.

    The same content gives the same bytes: names are sorted, dates and owners are 0. What cannot be taken is listed,
    not an error.

    :raises SandboxError: where ``results`` cannot be read or the tar not be written; nothing half-made is left.
    """
    ends = list(ends)
    expected = {end.local_id: end.lost for end in ends if end.local_id is not None}

    def measure() -> int:
        stems = (render_stem(grid_job, local_id) for local_id in expected)
        return sum(_measure_entry(results / f"{stem}.{what}") for stem in stems for what in (*EXPECTED, "output"))

    def add(found: _Gathering) -> tuple[Missing, ...]:
        return _add_results(found, results, expected)

    return _write(grid_job, extras, tar, limits, measure, add, ends, title)


def write_bundle(
    grid_job: str,
    parts: Mapping[str, Path],
    extras: Mapping[str, Extra],
    tar: Path,
    limits: Limits,
    title: str | None = None,
) -> Gathered:
    """Write what is in the tars of other grid jobs, each in a folder of the name that ``parts`` gives it, into one tar.

    :raises SandboxError: as `write_output`.
    """

    def measure() -> int:
        return sum(map(_measure_entry, parts.values()))

    return _write(grid_job, extras, tar, limits, measure, lambda found: _add_parts(found, parts), (), title)


def _write(
    grid_job: str,
    extras: Mapping[str, Extra],
    tar: Path,
    limits: Limits,
    measure: Callable[[], int],
    add: "Callable[[_Gathering], tuple[Missing, ...]]",
    ends: Iterable[End],
    title: str | None,
) -> Gathered:
    for name in extras:
        if "/" in name or name in ("", ".", "..", "manifest.json"):
            raise SandboxError(f"{name!r} cannot be a file of the output's own: it must be a plain name")
    with atomic_write(tar) as sink:
        _check_room(tar.parent, limits, measure)
        with write_tar(sink) as archive:
            gathering = _Gathering(archive, grid_job, limits)
            archive.addfile(folder_member(grid_job))
            for name in sorted(extras):
                gathering.add_extra(name, extras[name])
            missing = add(gathering)
            gathering.files.sort(key=lambda content: content.path)
            with tempfile.TemporaryFile(dir=tar.parent) as manifest:
                manifest.writelines(_render_manifest(gathering, missing, ends, title))
                size = manifest.tell()
                manifest.seek(0)
                archive.addfile(file_member(f"{grid_job}/manifest.json", size, executable=False), manifest)
        return Gathered(sink.sha256, tuple(gathering.files), missing, tuple(gathering.refused))


def _check_room(folder: Path, limits: Limits, measure: Callable[[], int]) -> None:
    """Ask for room before anything is written: a disk that is filled in vain holds up everybody."""
    disk = os.statvfs(folder)
    free = disk.f_bavail * disk.f_frsize
    # Where all that may be would fit, nobody need look at each file.
    if free < limits.max_bytes + _SPARE and (needed := measure()) + _SPARE > free:
        raise SandboxError(
            f"the outputs need {needed} bytes of room on the disk of {folder}, where {free} are free: they stay where"
            " they are until there is room"
        )


def _measure_entry(path: Path) -> int:
    """Bytes that an entry, with all below, takes on the disk; what cannot be read takes none, and is refused later."""
    size = 0
    paths = [path]
    # The list grows as folders are found: a deep tree must not end us.
    for found in paths:
        try:
            status = found.lstat()
            if stat.S_ISDIR(status.st_mode):
                paths += found.iterdir()
        except OSError:
            continue
        size += _OVERHEAD + (min(status.st_size, status.st_blocks * 512) if stat.S_ISREG(status.st_mode) else 0)
    return size


def count_holes(descriptor: int, status: os.stat_result) -> int:
    """Bytes of a file that were never written, at least as far as they pass `MOST_HOLES`."""
    if status.st_blocks * 512 >= status.st_size:
        return 0
    at = holes = 0
    try:
        while at < status.st_size and holes <= MOST_HOLES:
            data = os.lseek(descriptor, at, os.SEEK_DATA)
            holes += data - at
            at = os.lseek(descriptor, data, os.SEEK_HOLE)
    except OSError as error:
        # Behind the last data there is only a hole; any other error: the file system knows no holes.
        holes = holes + status.st_size - at if error.errno == errno.ENXIO else 0
    os.lseek(descriptor, 0, os.SEEK_SET)
    return holes


def render_too_sparse(size: int, target: str) -> str:
    """Why a file whose holes pass `MOST_HOLES` is not written into the target."""
    return f"a sparse file, {size} bytes long: at most {MOST_HOLES} bytes of holes are written into {target}, as zeros"


def _add_parts(gathering: "_Gathering", parts: Mapping[str, Path]) -> tuple[Missing, ...]:
    for name, file in sorted(parts.items()):
        folder = os.open(file.parent, FOLDER_FLAGS)
        try:
            gathering.add_part(folder, file.name, name)
        finally:
            os.close(folder)
    return ()


def _add_results(
    gathering: "_Gathering", results: Path, expected: Mapping[str, tuple[str, ...]]
) -> tuple[Missing, ...]:
    missing = []
    try:
        folder = os.open(results, FOLDER_FLAGS)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENOTDIR):
            raise
        gathering.refuse(results.name, NO_FOLDER)
        return tuple(Missing(local_id, EXPECTED) for local_id in sorted(expected))
    try:
        for local_id, lost in sorted(expected.items()):
            stem = render_stem(gathering.grid_job, local_id)
            names = {what: f"{stem}.{what}" for what in (*EXPECTED, "output")}
            there = [what for what, name in names.items() if gathering.add_entry(folder, name, name, 0)]
            if lacking := (*(what for what in EXPECTED if what not in there), *lost):
                missing.append(Missing(local_id, lacking))
    finally:
        os.close(folder)
    return tuple(missing)


def _render_manifest(
    gathering: "_Gathering", missing: tuple[Missing, ...], ends: Iterable[End], title: str | None
) -> Iterator[bytes]:
    """JSON part by part, an item of a list after the other: they may be millions."""
    lists: Mapping[str, Iterable[Mapping[str, object]]] = {
        "local_jobs": (
            {name: getattr(end, name) for name in ("index", "local_id", "outcome", "cause")} for end in ends
        ),
        "files": map(asdict, gathering.files),
        "missing": map(asdict, missing),
        "refused": map(asdict, gathering.refused),
    }
    yield f'{{\n "grid_job": {json.dumps(gathering.grid_job)}'.encode()
    yield f',\n "name": {json.dumps(title)}'.encode() if title else b""
    for name, items in lists.items():
        yield f',\n "{name}": ['.encode()
        end = "]"
        for number, item in enumerate(items):
            text = json.dumps(item, indent=1).replace("\n", "\n  ")
            yield f"{',' if number else ''}\n  {text}".encode()
            end = "\n ]"
        yield end.encode()
    yield b"\n}\n"


class _Gathering:
    """The tar as it grows. Every name is opened below its folder's descriptor, so no link put there is followed."""

    def __init__(self, archive: tarfile.TarFile, grid_job: str, limits: Limits) -> None:
        self.grid_job = grid_job
        self.files: list[Content] = []
        self.refused: list[Refused] = []
        self._archive = archive
        self._limits = limits
        self._files_left = limits.max_files
        self._bytes_left = limits.max_bytes
        self._holes_left = MOST_HOLES

    def add_extra(self, name: str, content: Extra) -> None:
        """Add a file of the job manager's own, for which the limits are not."""
        if isinstance(content, bytes):
            add_bytes(self._archive, f"{self.grid_job}/{name}", content)
            self.files.append(Content(name, len(content), hashlib.sha256(content).hexdigest()))
            return
        size, reader = os.fstat(content.fileno()).st_size, ExactReader(content.fileno())
        self._archive.addfile(file_member(f"{self.grid_job}/{name}", size, executable=False), reader)
        self.files.append(Content(name, size, reader.sha256))

    def add_part(self, parent: int, name: str, folder: str) -> None:
        """Add what the tar ``name`` of an open folder holds into a folder of this tar."""
        self._archive.addfile(folder_member(f"{self.grid_job}/{folder}"))
        path = f"{folder}/{name}"
        descriptor = self._open(parent, name, path, FILE_FLAGS)
        if descriptor is None:
            return
        # Without a buffer, as a member's content is read from the descriptor.
        with open(descriptor, "rb", buffering=0) as file:
            try:
                with tarfile.open(fileobj=file, mode="r:", encoding="utf-8") as part:
                    self._add_members(part, descriptor, folder, path)
            except (OSError, tarfile.TarError) as error:
                self.refuse(path, f"is no sound tar file: {error}")

    def _add_members(self, part: tarfile.TarFile, descriptor: int, folder: str, path: str) -> None:
        for member in part:
            # In place of the part's own folder there is ours.
            _, _, rest = member.name.partition("/")
            if not rest:
                continue
            if not self._files_left:
                self.refuse(path, f"its entries would pass the limit max_files = {self._limits.max_files}")
                return
            self._files_left -= 1
            self._add_member(member, descriptor, f"{folder}/{rest}")
        # tarfile takes a header that it cannot read for the end.
        if os.pread(descriptor, tarfile.BLOCKSIZE, part.offset) != bytes(tarfile.BLOCKSIZE):
            self.refuse(path, f"is damaged or cut short at byte {part.offset}")

    def _add_member(self, member: tarfile.TarInfo, descriptor: int, path: str) -> None:
        if path.count("/") + 2 > MAX_DEPTH:
            self.refuse(path, f"more than {MAX_DEPTH} folders deep")
        elif member.isdir():
            self._archive.addfile(folder_member(f"{self.grid_job}/{path}"))
        elif member.issym():
            # It lies as deep in its output folder as it did.
            self._archive.addfile(link_member(f"{self.grid_job}/{path}", member.linkname))
        elif not self._is_too_large(path, member.size):
            os.lseek(descriptor, member.offset_data, os.SEEK_SET)
            self._add_bytes(descriptor, path, member.size, executable=bool(member.mode & stat.S_IXUSR))

    def add_entry(self, folder: int, name: str, path: str, depth: int) -> bool:
        """Add or refuse ``name``, found ``depth`` folders below the results; False where there is no such entry."""
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

    def refuse(self, path: str, reason: str) -> None:
        """Note what the tar does not hold."""
        self.refused.append(Refused(path, reason))

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
            os.close(descriptor)

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
        """True where a file would pass the limit; then it is refused."""
        if size > self._bytes_left:
            self.refuse(path, f"its {size} bytes would pass the limit max_bytes = {self._limits.max_bytes}")
            return True
        return False

    def _add_bytes(self, descriptor: int, path: str, size: int, *, executable: bool) -> None:
        """Add a file with the next bytes of an open one."""
        self._bytes_left -= size
        reader = ExactReader(descriptor)
        self._archive.addfile(file_member(f"{self.grid_job}/{path}", size, executable), reader)
        self.files.append(Content(path, size, reader.sha256))
        if reader.fault:
            self.refuse(path, reader.fault)

    def _add_folder(self, parent: int, name: str, path: str, depth: int) -> None:
        # In the tar, the grid job's folder and this one lie above, and an entry below.
        if depth + 3 > MAX_DEPTH:
            self.refuse(path, f"more than {MAX_DEPTH} folders deep")
            return
        descriptor = self._open(parent, name, path, FOLDER_FLAGS)
        if descriptor is None:
            return
        try:
            self._add_names(descriptor, path, depth)
        finally:
            os.close(descriptor)

    def _add_names(self, folder: int, path: str, depth: int) -> None:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in islice(entries, self._files_left + 1)]
        if len(names) > self._files_left:
            self.refuse(path, f"its entries would pass the limit max_files = {self._limits.max_files}")
            return
        self._files_left -= len(names)
        self._archive.addfile(folder_member(f"{self.grid_job}/{path}"))
        for name in sorted(names):
            self.add_entry(folder, name, f"{path}/{name}", depth + 1)

    def _add_link(self, folder: int, name: str, path: str, depth: int) -> None:
        try:
            target = os.readlink(name, dir_fd=folder)
        except OSError as error:
            self.refuse(path, str(error.strerror))
            return
        # The output folder itself lies at depth 0: a link in its place always leads out.
        if stays_inside(target, depth - 1):
            self._archive.addfile(link_member(f"{self.grid_job}/{path}", target))
        else:
            self.refuse(path, "a link that leads out of its output folder")
