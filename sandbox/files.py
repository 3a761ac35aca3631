"""Files where others can write as well: opened without following a link, written whole or not at all, and locks.

The one module for this, at the ground: everything of ours may import it.
"""

import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

MAX_DEPTH = 64
"""Folders inside folders: each level costs a file descriptor while it is read, and a path ends at 4096 bytes."""


@dataclass(frozen=True)
class TarLimits:
    """How much one tar may hold: entries (files, folders and links) and bytes of file content."""

    max_files: int
    max_bytes: int


class SandboxError(Exception):
    """A sandbox or an output could not be made or unpacked; one sentence for people, nothing half-made is left."""


class SandboxRefused(SandboxError):
    """What is to be packed can never be: trying again is of no use before somebody has changed it."""


def stays_inside(target: str, depth: int) -> bool:
    """True where a symbolic link lying ``depth`` folders below the top cannot lead above the top.

    ``..`` counts only at the front, where it climbs real folders: behind a name it could climb out
    through another link, as in ``link-to-top/../outside``.
    """
    if not target or target.startswith("/"):
        return False
    parts = [part for part in target.split("/") if part not in ("", ".")]
    climbs = next((at for at, part in enumerate(parts) if part != ".."), len(parts))
    return climbs <= depth and ".." not in parts[climbs:]


def open_regular(path: Path, folder: int | None = None) -> BinaryIO:
    """A regular file, open for reading; ``path`` is seen from the open ``folder``, if that is given.

    A link or a FIFO under its name, which a local job may have put there, is neither followed nor waited for.

    :raises OSError: it is not there, or is something else.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "no regular file", str(path))
    return open(descriptor, "rb")


def open_unlinked(path: Path) -> BinaryIO:
    """The same where the folder that it lies in may be no link either: local jobs can put links there.

    :raises OSError: it is not there, or is something else.
    """
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        return open_regular(Path(path.name), folder)
    finally:
        os.close(folder)


def open_own(path: Path, flags: int = 0) -> int:
    """A descriptor of a file of ours to be written, made where it is missing (0600); ``flags`` beside these.

    :raises OSError: it cannot be opened, or is a symbolic link.
    """
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | flags, 0o600)


def take_lock(descriptor: int, wait: bool = False) -> bool:
    """Lock an open file or folder; False where another process holds the lock, and we do not wait for it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    return True


@contextmanager
def locked(path: Path, wait: bool = False) -> Iterator[int | None]:
    """Hold a lock file while the block lasts: its descriptor, or None where another process holds it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        yield descriptor if take_lock(descriptor, wait) else None
    finally:
        os.close(descriptor)


def replace_file(path: Path, content: bytes, mode: int = 0o600, word: str = "", is_lasting: bool = True) -> None:
    """Put a file in the place of the one before, whole; ``mode`` counts whatever the umask.

    :param word: what its name ends with while it is written; the number of this process by default.
    :param is_lasting: it is there after a power cut, too; its name only after `sync_folder`.
    :raises OSError: it cannot be written; the one before stays, and nothing else.
    """
    temporary = path.with_name(f".{path.name}.{word or os.getpid()}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        # What is there under this name is of a process that was killed, or somebody's trap: never written into.
        temporary.unlink(missing_ok=True)
        with open(os.open(temporary, flags, 0o600), "wb") as sink:
            sink.write(content)
            sink.flush()
            os.fchmod(sink.fileno(), mode)
            if is_lasting:
                os.fsync(sink.fileno())
        temporary.replace(path)
    except BaseException as error:
        with suppress(OSError):
            temporary.unlink()
        if isinstance(error, OSError):
            error.filename, error.filename2 = str(path), None
        raise


def sync_folder(folder: Path) -> None:
    """Return when the names of a folder's files are on the disk.

    :raises OSError: they are not, or nobody can say.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class Sink:
    """Takes the bytes of one file."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def write(self, data: bytes) -> None:
        """Write all of ``data``; raises OSError where the disk takes less."""
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(self._descriptor, rest) :]


@contextmanager
def atomic_write(target: Path) -> Iterator[Sink]:
    """Give a sink whose content becomes ``target`` (mode 0600) when the block ends well, and vanishes when not.

    The content waits under ``NAME.tmp`` in the same folder; what a killed process left there is written over.

    :raises SandboxError: where the file system refuses, or another process is writing the same target.
    """
    # A device, a folder: a name that was mistaken.
    if os.path.lexists(target) and not (target.is_file() or target.is_symlink()):
        raise SandboxError(f"{target} is there, and is no file")
    temporary = target.with_name(target.name + ".tmp")
    descriptor = _open_locked(temporary, target)
    try:
        sink = Sink(descriptor)
        yield sink
        os.fsync(descriptor)
        temporary.replace(target)
        sync_folder(target.parent)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        # What was to be read may be what is not there.
        other = f": {error.filename}" if error.filename not in (None, str(temporary)) else ""
        raise SandboxError(f"{target} could not be written: {error.strerror}{other}") from error
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)


def _open_locked(temporary: Path, target: Path) -> int:
    try:
        descriptor = open_own(temporary)
    except OSError as error:
        raise SandboxError(f"{target} could not be written: {error.strerror}") from error
    try:
        # The file may have been renamed to its final name between opening and locking: that one is not ours to cut.
        if not take_lock(descriptor) or not os.path.samestat(os.fstat(descriptor), os.lstat(temporary)):
            raise BlockingIOError
        os.ftruncate(descriptor, 0)
    except OSError as error:
        os.close(descriptor)
        raise SandboxError(f"{target} is being written by another process; try again when it has ended") from error
    return descriptor
