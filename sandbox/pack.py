"""Packs a work area into a sandbox: a tar that is the same, byte for byte, for the same work area; and all our tars.

A tar carries nothing of the machine it was made on.
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
# A named pipe put in a file's place must not make the open wait for its writer.
FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK

BLOCK = 1 << 20
"""Bytes of a file that are in memory at once, two or three times."""
_LARGEST = 8**11
"""A header has eleven octal digits for a size."""


def _render_header(name: str, kind: bytes, mode: int, size: int = 0, target: str = "") -> bytes:
    member = tarfile.TarInfo(name)
    member.type, member.mode, member.size, member.linkname = kind, mode, size, target
    return member.tobuf(tarfile.GNU_FORMAT, "utf-8")


class _Headers:
    """Headers of one kind as tarfile makes them: most are one that it has made, with another name, size and sum."""

    def __init__(self, kind: bytes, mode: int) -> None:
        self._kind, self._mode = kind, mode
        made = _render_header("", kind, mode)
        self._before, self._between, self._behind = made[100:124], made[135:148], made[154:]
        # In a sum there are blanks where the sum will be.
        self._sum = sum(self._before) + sum(self._between) + sum(b" " * 8) + sum(made[156:])

    def render(self, name: str, size: int) -> bytes:
        """The header of a member of that name and size."""
        raw = name.encode(errors="surrogateescape")
        if len(raw) > tarfile.LENGTH_NAME or size >= _LARGEST:
            return _render_header(name, self._kind, self._mode, size)
        digits = b"%011o" % size
        total = b"%06o" % (self._sum + sum(raw) + sum(digits))
        return b"".join((raw.ljust(100, b"\0"), self._before, digits, self._between, total, self._behind))


class Tar:
    """An uncompressed GNU tar as it grows; names are kept byte by byte, dates and owners are 0."""

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
        """Add a symbolic link."""
        self._put(_render_header(name, tarfile.SYMTYPE, 0o777, target=target))

    def add_bytes(self, name: str, content: bytes, executable: bool = False) -> None:
        """Add a file whose content is at hand, mode 0755 or 0644."""
        header = (self._programs if executable else self._files).render(name, len(content))
        self._put(header, content, bytes(-len(content) % tarfile.BLOCKSIZE))

    def add_blocks(self, name: str, size: int, executable: bool, blocks: Iterable[bytes]) -> None:
        """Add a file of ``size`` bytes that come block by block."""
        self._put((self._programs if executable else self._files).render(name, size))
        for block in blocks:
            self._put(block)
        self._put(bytes(-size % tarfile.BLOCKSIZE))

    def add_file(self, name: str, descriptor: int, size: int, executable: bool = False) -> tuple[str, str]:
        """Add a file with the next bytes of an open one; their sha256 in hexadecimal, and what is wrong with them.

        There are as many as the header promises, whatever becomes of the file meanwhile: what is missing is zeros.
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
        """Write what ends a tar, in whole records as GNU tar does."""
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
    """Give a tar whose bytes go to ``write``, and end it where the block ends well."""
    tar = Tar(write)
    yield tar
    tar.end()


def is_executable(status: os.stat_result) -> bool:
    """True where anybody may execute the file."""
    return bool(status.st_mode & (stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH))


def _hash_beside(update: Callable[[bytes], None], blocks: Iterable[bytes]) -> Iterator[bytes]:
    """Pass blocks on; each is hashed, which takes longest, while it is written and the next one is read."""
    hashing: Future[None] | None = None
    with ThreadPoolExecutor() as beside:
        for block in blocks:
            if hashing is not None:
                hashing.result()
            hashing = beside.submit(update, block)
            yield block


class _ExactReader:
    """Reads as many bytes as it is asked for; what is missing is made up with zeros, and ``fault`` says why."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.fault = ""

    def read(self, size: int) -> bytes:
        """The next ``size`` bytes, never fewer."""
        data = b""
        while len(data) < size and (chunk := self._read_some(size - len(data))):
            data += chunk
        return data.ljust(size, b"\0")

    def read_blocks(self, size: int) -> Iterator[bytes]:
        """The same block by block."""
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
"""The sandbox's own files, beside those of the work area."""
MANIFEST = f"{OWN_FOLDER}/manifest.sha256"
REPORT = f"{OWN_FOLDER}/samgrid-report"
SITE_FILES = f"{OWN_FOLDER}/site"
"""Where programs find what the site puts into every sandbox."""
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


def write_sandbox(work_area: Path, tar: Path, limits: TarLimits, site_files: Sequence[Path] = ()) -> str:
    """Pack ``work_area`` into ``tar`` and give the tar's sha256.

    :param site_files: files and folders that go into the folder `SITE_FILES`, by the last part of their names.
    :raises SandboxError: for what cannot travel (devices, links out of the work area, too much), and where the
        file system refuses; then ``tar`` is as it was before.
    """
    report = Path(__file__).with_name("samgrid-report.sh").read_bytes()
    with atomic_write(tar) as sink:
        entries = [*_list_site_files(site_files), *_list_entries(work_area)]
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
            if site_files:
                archive.add_folder(SITE_FILES)
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


def _list_site_files(site_files: Sequence[Path]) -> list[_Entry]:
    """The site's files and folders with all that is in these; no link may lead out of the folder that it lies in.

    :raises SandboxError: one cannot be packed now; it is not the request's fault, and the site may mend it.
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
