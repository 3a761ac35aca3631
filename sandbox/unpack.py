"""Reads output tars: unpacks them safely, lays out their folders for another grid job, and reads their manifest."""

import errno
import io
import json
import os
import shutil
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from sandbox.files import MAX_DEPTH, SandboxError, TarLimits, kept_open, open_regular, stays_inside

# An extended header holds a name or two; tarfile would read one of any size into memory.
_LONGEST_READ = 1 << 20
# Per entry: a header, its padding, and an extended header for a long name.
_OVERHEAD = 4096


def unpack(tar: Path, destination: Path, limits: TarLimits) -> None:
    """Unpack an uncompressed tar into ``destination``, a new or empty folder: all of it, or nothing.

    Files get mode 0600, executable ones 0700, folders 0700; the tar's owners and dates are ignored.

    :raises SandboxError: naming the member and what is wrong with it; then ``destination`` is unchanged.
    """
    try:
        temporary = Path(tempfile.mkdtemp(prefix=destination.name + ".tmp", dir=destination.parent))
    except OSError as error:
        raise SandboxError(f"{destination} could not be made: {error.strerror}") from error
    try:
        _unpack_into(tar, temporary, limits)
        temporary.rename(destination)
    except _DAMAGE as error:
        raise SandboxError(f"{tar} is no sound tar file: {error}") from error
    except OSError as error:
        if error.errno in _TAKEN and os.path.lexists(destination):
            message = f"{destination} is there, and is no empty folder: name a new one"
            raise SandboxError(message) from error
        raise SandboxError(f"{tar} could not be unpacked into {destination}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


# What rename(2) says if the destination is not an empty folder, or is ".".
_TAKEN = (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR, errno.EBUSY)

# What tarfile raises for damaged headers, by its source; RecursionError for a chain of extended headers.
_DAMAGE = (tarfile.TarError, ValueError, IndexError, OverflowError, EOFError, RecursionError)


def _unpack_into(tar: Path, folder: Path, limits: TarLimits) -> None:
    try:
        opened = open_regular(tar)
    except OSError as error:
        raise SandboxError(f"{tar} cannot be read: {error.strerror}") from error
    with _CarefulFile(opened.detach()) as file:
        size = os.fstat(file.fileno()).st_size
        if size > limits.max_bytes + (limits.max_files + 4) * _OVERHEAD:
            raise SandboxError(f"{tar} is too large ({size} bytes): the limit max_bytes is {limits.max_bytes}")
        with tarfile.open(fileobj=file, mode="r:", encoding="utf-8") as archive:
            unpacking = _Unpacking(archive, folder, limits)
            while member := archive.next():
                forget_members(archive)
                unpacking.add(member)
        file.seek(archive.offset)
        # tarfile takes a damaged header for the end.
        if file.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
            raise SandboxError(f"{tar} is damaged or cut short at byte {archive.offset}")


class _CarefulFile(io.BufferedReader):
    """The tar file as tarfile reads it: a damaged header cannot make it read much at once, or endlessly."""

    def read(self, size: int | None = -1, /) -> bytes:
        if size is None or not 0 <= size <= _LONGEST_READ:
            raise tarfile.ReadError(f"a header claims {size} bytes")
        return super().read(size)


class _Unpacking:
    """Writes members into a folder that nobody else changes, so that entries keep the type they were created with."""

    def __init__(self, archive: tarfile.TarFile, folder: Path, limits: TarLimits) -> None:
        self._archive = archive
        self._folder = folder
        self._limits = limits
        self._kinds: dict[tuple[str, ...], bytes] = {(): tarfile.DIRTYPE}
        self._bytes_left = limits.max_bytes

    def add(self, member: tarfile.TarInfo) -> None:
        """Unpack one member or raise SandboxError."""
        if not 0 <= member.size <= self._bytes_left:
            raise _refusal(member, f"{member.size} bytes would pass the limit max_bytes = {self._limits.max_bytes}")
        self._bytes_left -= member.size
        self._make(member, _read_parts(member.name))
        # Without the folder itself.
        if len(self._kinds) - 1 > self._limits.max_files:
            raise _refusal(member, f"there are more entries than the limit max_files = {self._limits.max_files}")

    def _make(self, member: tarfile.TarInfo, parts: tuple[str, ...]) -> None:
        if member.isdir():
            self._make_folders(parts)
            return
        self._make_folders(parts[:-1])
        if parts in self._kinds:
            raise _refusal(member, "it is there already")
        if member.issym():
            self._add_symlink(member, parts)
        elif member.islnk():
            self._add_hardlink(member, parts)
        elif member.isreg() and not member.issparse() and (source := self._archive.extractfile(member)):
            self._add_file(source, parts, 0o700 if member.mode & 0o111 else 0o600)
        else:
            raise _refusal(member, "it is no plain file, folder or link")

    def _make_folders(self, parts: tuple[str, ...]) -> None:
        for depth, _ in enumerate(parts, 1):
            path = parts[:depth]
            if path not in self._kinds:
                self._path(path).mkdir(mode=0o700)
                self._kinds[path] = tarfile.DIRTYPE
            elif self._kinds[path] != tarfile.DIRTYPE:
                raise SandboxError(f"{'/'.join(parts)!r} in the tar is refused: {'/'.join(path)!r} is no folder")

    def _add_symlink(self, member: tarfile.TarInfo, parts: tuple[str, ...]) -> None:
        if not stays_inside(member.linkname, len(parts) - 1):
            raise _refusal(member, f"a link to {member.linkname!r} leads out of the folder")
        self._path(parts).symlink_to(member.linkname)
        self._kinds[parts] = tarfile.SYMTYPE

    def _add_hardlink(self, member: tarfile.TarInfo, parts: tuple[str, ...]) -> None:
        target = _read_parts(member.linkname)
        if self._kinds.get(target) != tarfile.REGTYPE:
            raise _refusal(member, f"a hard link to {member.linkname!r}, which is no file before it in the tar")
        os.link(self._path(target), self._path(parts))
        self._kinds[parts] = tarfile.REGTYPE

    def _add_file(self, source: IO[bytes], parts: tuple[str, ...], mode: int) -> None:
        descriptor = os.open(self._path(parts), os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with source, open(descriptor, "wb") as file:
            shutil.copyfileobj(source, file)
        self._kinds[parts] = tarfile.REGTYPE

    def _path(self, parts: tuple[str, ...]) -> Path:
        return self._folder.joinpath(*parts)


def _read_parts(name: str) -> tuple[str, ...]:
    parts = tuple(part for part in name.split("/") if part not in ("", "."))
    if not name or name.startswith("/") or ".." in parts or len(parts) > MAX_DEPTH:
        raise SandboxError(f"{name[:200]!r} in the tar is refused: the name leads out of the folder or too deep")
    return parts


def _refusal(member: tarfile.TarInfo, reason: str) -> SandboxError:
    return SandboxError(f"{member.name[:200]!r} in the tar is refused: {reason}")


def lay_out(tar: Path, folders: Mapping[str, str], destination: Path, limits: TarLimits) -> None:
    """Unpack folders of an output tar into ``destination``, renamed as ``folders`` (old name: new name) says.

    All, or nothing; nothing is done if ``destination`` exists. Folders that are not in the tar are left out. Only one
    process may do it at a time.

    :raises SandboxError: the tar is damaged, or the disk is full.
    """
    if destination.exists():
        return
    unpacked, chosen = (destination.with_name(f".{destination.name}.{word}") for word in ("unpacked", "chosen"))
    try:
        for folder in (unpacked, chosen):
            shutil.rmtree(folder, ignore_errors=True)
        chosen.mkdir(mode=0o700, parents=True)
        unpack(tar, unpacked, limits)
        for name, new_name in folders.items():
            # From its new place a link would lead elsewhere.
            if (unpacked / name).is_dir() and not (unpacked / name).is_symlink():
                (unpacked / name).rename(chosen / new_name)
        sync_tree(chosen)
        chosen.rename(destination)
        shutil.rmtree(unpacked)
    except OSError as error:
        raise SandboxError(f"{destination} could not be made: {error}") from error


def sync_tree(top: Path) -> None:
    """Write everything below a folder to the disk, so that a later rename proves that it is complete."""
    for path, _, names in os.walk(top):
        files = [os.path.join(path, name) for name in names]  # noqa: PTH118 names of os.walk
        for name in [*(file for file in files if not os.path.islink(file)), path]:  # noqa: PTH114
            with kept_open(os.open(name, os.O_RDONLY)) as descriptor:
                os.fsync(descriptor)


def read_manifest(tar: Path, grid_job: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The items of an output tar's manifest, one after another, each with the name of its list.

    :raises OSError, ValueError, LookupError, tarfile.TarError: it is missing or damaged.
    """
    with open_regular(tar) as file, tarfile.open(fileobj=file) as archive:
        while (member := archive.next()) and member.name != f"{grid_job}/manifest.json":
            forget_members(archive)
        manifest = archive.extractfile(member) if member else None
        if manifest is None:
            raise LookupError("there is no manifest.json in it")
        yield from _read_items(manifest)


def forget_members(archive: tarfile.TarFile) -> None:
    """Save memory: tarfile would keep every member that it has read."""
    archive.members.clear()  # type: ignore[attr-defined]


def _read_items(manifest: IO[bytes]) -> Iterator[tuple[str, dict[str, Any]]]:
    name, item, line = "", b"", b""
    # Earlier versions wrote an item in several lines.
    for line in manifest:
        if line.startswith(b' "'):
            name = line.split(b'"')[1].decode()
        elif line.startswith(b"  "):
            item += line
            if line.startswith((b"  }", b'  {"')):
                yield name, json.loads(item.rstrip().removesuffix(b","))
                item = b""
    if line != b"}\n":
        raise ValueError("its manifest.json is cut short")
