"""Packs a work area into a sandbox, and writes all tars: the same content gives the same bytes.

Dates, owners and other properties of the machine are left out.
"""

import hashlib
import os
import stat
import tarfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
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

FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
# Opening a named pipe in a file's place must not block.
FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK

BLOCK = 1 << 20
"""Bytes read at once; two or three blocks are in memory."""
_LARGEST = 8**11
"""A tar header has eleven octal digits for the size."""


def _render_header(name: str, kind: bytes, mode: int, size: int = 0, target: str = "") -> bytes:
    member = tarfile.TarInfo(name)
    member.type, member.mode, member.size, member.linkname = kind, mode, size, target
    return member.tobuf(tarfile.GNU_FORMAT, "utf-8")


class _Headers:
    """Headers of one kind: made by tarfile once; name, size and checksum are then filled in, which is far faster."""

    def __init__(self, kind: bytes, mode: int) -> None:
        self._kind, self._mode = kind, mode
        made = _render_header("", kind, mode)
        self._before, self._between, self._behind = made[100:124], made[135:148], made[154:]
        # The checksum counts its own field as blanks.
        self._sum = sum(self._before) + sum(self._between) + sum(b" " * 8) + sum(made[156:])

    def render(self, name: str, size: int) -> bytes:
        """The header of a member."""
        raw = name.encode(errors="surrogateescape")
        if len(raw) > tarfile.LENGTH_NAME or size >= _LARGEST:
            return _render_header(name, self._kind, self._mode, size)
        digits = b"%011o" % size
        total = b"%06o" % (self._sum + sum(raw) + sum(digits))
        return b"".join((raw.ljust(100, b"\0"), self._before, digits, self._between, total, self._behind))


class Tar:
    """Writes an uncompressed GNU tar; names are kept byte for byte, dates and owners are 0."""

    def __init__(self, write: Callable[[bytes], object]) -> None:
        self._write = write
        self._waiting: list[bytes] = []
        self._size = self._written = 0
        self._folders = _Headers(tarfile.DIRTYPE, 0o755)
        self._files = _Headers(tarfile.REGTYPE, 0o644)
        self._programs = _Headers(tarfile.REGTYPE, 0o755)

    def add_folder(self, name: str) -> None:
        """Add a folder, mode 0755."""
        self._put(self._folders.render(f"{name}/", 0))

    def add_link(self, name: str, target: str) -> None:
        self._put(_render_header(name, tarfile.SYMTYPE, 0o777, target=target))

    def add_bytes(self, name: str, content: bytes, executable: bool = False) -> None:
        """Add a file, mode 0755 or 0644."""
        header = (self._programs if executable else self._files).render(name, len(content))
        self._put(header, content, bytes(-len(content) % tarfile.BLOCKSIZE))

    def add_blocks(self, name: str, size: int, executable: bool, blocks: Iterable[bytes]) -> None:
        """Add a file of ``size`` bytes in blocks."""
        self._put((self._programs if executable else self._files).render(name, size))
        for block in blocks:
            self._put(block)
        self._put(bytes(-size % tarfile.BLOCKSIZE))

    def add_file(self, name: str, descriptor: int, size: int, executable: bool = False) -> tuple[str, str]:
        """Add a file with the next ``size`` bytes of an open file; gives their sha256 (hexadecimal), and any fault.

        If the file shrinks meanwhile, zeros are written for what is missing, so that the tar stays sound.
        """
        reader = _ExactReader(descriptor)
        if size <= BLOCK:
            content = reader.read(size)
            self.add_bytes(name, content, executable)
            return hashlib.sha256(content).hexdigest(), reader.fault
        digest = hashlib.sha256()
        self.add_blocks(name, size, executable, _hash_beside(digest.update, reader.read_blocks(size)))
        return digest.hexdigest(), reader.fault

    def end(self) -> None:
        """Write the end of the tar, padded to whole records as by GNU tar."""
        self._put(bytes(2 * tarfile.BLOCKSIZE))
        self._put(bytes(-self._size % tarfile.RECORDSIZE))
        self._flush()

    def _put(self, *parts: bytes) -> None:
        self._waiting += parts
        self._size += sum(map(len, parts))
        if self._size - self._written >= BLOCK:
            self._flush()

    def _flush(self) -> None:
        self._write(b"".join(self._waiting))
        self._waiting.clear()
        self._written = self._size


@contextmanager
def write_tar(write: Callable[[bytes], object]) -> Iterator[Tar]:
    """Give a tar whose bytes go to ``write``; it is ended if the block succeeds."""
    tar = Tar(write)
    yield tar
    tar.end()


def is_executable(status: os.stat_result) -> bool:
    """True if anybody may execute the file."""
    return bool(status.st_mode & (stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH))


def _hash_beside(update: Callable[[bytes], None], blocks: Iterable[bytes]) -> Iterator[bytes]:
    """Pass blocks on, and hash each of them in parallel: hashing takes longer than reading and writing."""
    hashing: Future[None] | None = None
    with ThreadPoolExecutor() as beside:
        for block in blocks:
            if hashing is not None:
                hashing.result()
            hashing = beside.submit(update, block)
            yield block


class _ExactReader:
    """Reads exactly as many bytes as it is asked for: zeros for those that are missing, and ``fault`` says why."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.fault = ""

    def read(self, size: int) -> bytes:
        """The next ``size`` bytes."""
        data = b""
        while len(data) < size and (chunk := self._read_some(size - len(data))):
            data += chunk
        return data.ljust(size, b"\0")

    def read_blocks(self, size: int) -> Iterator[bytes]:
        """The next ``size`` bytes in blocks."""
        return (self.read(min(BLOCK, size - at)) for at in range(0, size, BLOCK))

    def _read_some(self, size: int) -> bytes:
        if self.fault:
            return b""
        try:
            chunk = os.read(self._descriptor, size)
        except OSError as error:
            self.fault = f"could not be read to its end ({error.strerror}): the rest is zeros"
            return b""
        if not chunk:
            self.fault = "shrank while it was read: the rest is zeros"
        return chunk


OWN_FOLDER = ".samgrid"
"""The folder of the sandbox's own files."""
MANIFEST = f"{OWN_FOLDER}/manifest.sha256"
REPORT = f"{OWN_FOLDER}/samgrid-report"
SITE_FILES = f"{OWN_FOLDER}/site"
"""The folder of the files that the site adds to every sandbox."""
OUTPUT = "output"
"""The folder for a program's outputs; in the sandbox, because making it would cost the driver a process."""
# sha256sum escapes such names, and not every sha256sum can read that.
_UNPACKABLE = frozenset("\n\r\\")


@dataclass(frozen=True)
class _Entry:
    name: str
    path: Path
    status: os.stat_result
    sha256: str = ""


def write_sandbox(work_area: Path, tar: Path, limits: TarLimits, site_files: Sequence[Path] = ()) -> str:
    """Pack ``work_area`` into ``tar``; gives the tar's sha256.

    :param site_files: files and folders that are added to the folder `SITE_FILES`, under the last part of their names.
    :raises SandboxError: the content cannot be packed (devices, links out of the work area, too much of it), or the
        file system refuses; then ``tar`` is unchanged.
    """
    report = Path(__file__).with_name("samgrid-report.sh").read_bytes()
    with atomic_write(tar) as write:
        entries = [*_list_site_files(site_files), *_list_entries(work_area)]
        _check_size(entries, limits)
        entries = [_hash(entry) for entry in entries]
        digest = hashlib.sha256()

        def write_and_hash(data: bytes) -> None:
            digest.update(data)
            write(data)

        with write_tar(write_and_hash) as archive:
            archive.add_folder(OWN_FOLDER)
            archive.add_bytes(MANIFEST, _render_manifest(entries, report))
            archive.add_bytes(REPORT, report, executable=True)
            if site_files:
                archive.add_folder(SITE_FILES)
            if all(entry.name != OUTPUT for entry in entries):
                archive.add_folder(OUTPUT)
            for entry in entries:
                _add_entry(archive, entry)
        return digest.hexdigest()


def write_report(sandbox: Path) -> None:
    """Write ``samgrid-report`` into the folder of a sandbox that has nothing else in it.

    :raises OSError: it cannot be written.
    """
    report = Path(__file__).with_name("samgrid-report.sh").read_bytes()
    (sandbox / OWN_FOLDER).mkdir(mode=0o700, exist_ok=True)
    replace_file(sandbox / REPORT, report, mode=0o700)
    # The driver, written later, proves that the sandbox is complete: after a power cut, too.
    sync_folder(sandbox / OWN_FOLDER)


def _render_manifest(entries: list[_Entry], report: bytes) -> bytes:
    lines = [f"{hashlib.sha256(report).hexdigest()}  {REPORT}\n"]
    lines += [f"{entry.sha256}  {entry.name}\n" for entry in entries if entry.sha256]
    return "".join(lines).encode("utf-8", "surrogateescape")


def _list_entries(work_area: Path) -> list[_Entry]:
    if (work_area / OWN_FOLDER).is_symlink() or (work_area / OWN_FOLDER).exists():
        raise SandboxRefused(f"{work_area / OWN_FOLDER} cannot be packed: the name is the sandbox's own; rename it")
    return sorted(_walk(work_area, "", 0), key=lambda entry: entry.name)


def _list_site_files(site_files: Sequence[Path]) -> list[_Entry]:
    """The site's files and folders with all their content; links must not lead out of their folder.

    :raises SandboxError: one cannot be packed; not SandboxRefused, because the site may repair it.
    """
    entries: dict[str, _Entry] = {}
    for path in site_files:
        name = f"{SITE_FILES}/{path.name}"
        if path.name in ("", "..") or name in entries:
            raise SandboxError(f"site_files: {path} has no name of its own by which programs could find it")
        try:
            entries.update((entry.name, entry) for entry in _walk_site_file(path, name))
        except SandboxRefused as error:
            raise SandboxError(f"site_files: {error}") from error
        except OSError as error:
            raise SandboxError(f"site_files: {error.filename} cannot be read: {error.strerror}") from error
    return sorted(entries.values(), key=lambda entry: entry.name)


def _walk_site_file(path: Path, name: str) -> Iterator[_Entry]:
    entry = _Entry(name, path, path.lstat())
    if stat.S_ISLNK(entry.status.st_mode):
        raise SandboxRefused(f"{path} is a symbolic link: name what it leads to")
    _check_entry(entry, 0)
    yield entry
    if stat.S_ISDIR(entry.status.st_mode):
        yield from _walk(path, f"{name}/", 0)


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
