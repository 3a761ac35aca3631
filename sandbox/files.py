"""Files in folders where others can write: opened without following links, locked, replaced atomically, removed.

Every folder of the project may import this module: nothing else does these things.
"""

import errno
import fcntl
import itertools
import os
import stat
from _thread import get_native_id  # threading takes longer to load
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path

MAX_DEPTH = 64
"""Nested folders: each level needs a file descriptor while it is read, and a path has at most 4096 bytes."""


_TRAPS = {errno.ELOOP: "symbolic links are not followed", errno.ENXIO: "no regular file"}
"""What is in the place of a file, in better words than the system's."""


@dataclass(frozen=True)
class TarLimits:
    """The most entries (files, folders and links), and bytes of file content, in one tar."""

    max_files: int
    max_bytes: int


class SandboxError(Exception):
    """A tar could not be made or unpacked, and nothing half-made is left; the message is one sentence for people."""


class SandboxRefused(SandboxError):
    """The content cannot be packed; trying again is useless until somebody has changed it."""


def stays_inside(target: str, depth: int) -> bool:
    """True if a symbolic link ``depth`` folders below the top cannot lead above the top.

    ``..`` is allowed only at the front, where it climbs real folders: after a name it could climb out through another
    link, as in ``link-to-top/../outside``.
    """
    if not target or target.startswith("/"):
        return False
    parts = [part for part in target.split("/") if part not in ("", ".")]
    climbs = next((at for at, part in enumerate(parts) if part != ".."), len(parts))
    return climbs <= depth and ".." not in parts[climbs:]


@contextmanager
def kept_open(descriptor: int) -> Iterator[int]:
    """Give an open descriptor, and close it at the end of the block."""
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def open_regular(path: Path, folder: int | None = None) -> BufferedReader:
    """Open a regular file for reading; ``path`` is relative to the open ``folder``, if that is given.

    A local job may have put a link or a named pipe there: links are not followed, pipes do not block.

    :raises OSError: it does not exist, or is not a regular file.
    """
    return open(_open_file(path, os.O_RDONLY, folder), "rb")


def read_regular(path: Path, most: int = -1) -> bytes:
    """The content of a file, or so many bytes of it, opened as `open_regular` does."""
    with open_regular(path) as stream:
        return stream.read(most)


def read_text_if_there(path: Path) -> str:
    """The text of a file that is read as `read_regular` does; empty where there is none."""
    try:
        return read_regular(path).decode(errors="replace")
    except FileNotFoundError:
        return ""


def _open_file(path: Path, flags: int, folder: int | None = None) -> int:
    """Open a regular file at once or not at all; one that is made is ours alone."""
    try:
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600, dir_fd=folder)
    except OSError as error:
        error.strerror = _TRAPS.get(error.errno or 0, error.strerror)
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "no regular file", str(path))
    return descriptor


def open_folder(path: Path) -> int:
    """A descriptor of a folder; raises OSError: it is not there, or is something else, a link for example."""
    try:
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except NotADirectoryError as error:
        error.strerror = "no folder, or a link to one"
        raise


def open_unlinked(path: Path) -> BufferedReader:
    """As `open_regular`; the folder of the file must not be a link either.

    :raises OSError: it does not exist, or is not a regular file.
    """
    with kept_open(open_folder(path.parent)) as folder:
        try:
            return open_regular(Path(path.name), folder)
        except OSError as error:
            error.filename = str(path)
            raise


def open_own(path: Path, flags: int = 0) -> int:
    """Open a file of this account for writing, with further ``flags``; it is created (mode 0600) if it is missing.

    :raises OSError: it cannot be opened, is not a regular file, or belongs to another account, which could read it.
    """
    while True:
        try:
            descriptor = _open_file(path, flags | os.O_WRONLY)
        except FileNotFoundError:
            # No check of a new file: network file systems may give it another owner.
            with suppress(FileExistsError):
                return _open_file(path, flags | os.O_WRONLY | os.O_CREAT | os.O_EXCL)
            continue
        if os.fstat(descriptor).st_uid == os.geteuid():
            return descriptor
        os.close(descriptor)
        raise OSError(errno.EPERM, f"no regular file of user {os.geteuid()}", str(path))


def check_replaceable(path: Path) -> None:
    """Refuse to replace a device, a pipe, a folder or a link: the name is mistaken, or somebody has set a trap.

    :raises OSError: the path is one of these.
    """
    with suppress(FileNotFoundError):
        if not stat.S_ISREG(path.lstat().st_mode):
            raise OSError(errno.EEXIST, "is there, and is no regular file", str(path))


def take_lock(descriptor: int, wait: bool = False) -> bool:
    """Lock an open file or folder; False if another process holds the lock and ``wait`` is False."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    return True


@contextmanager
def locked(path: Path, wait: bool = False) -> Iterator[int | None]:
    """Hold a lock file during the block: gives its descriptor, or None if another process holds the lock.

    :raises OSError: it cannot be made, or something else is in its place.
    """
    with kept_open(_open_file(path, os.O_RDWR | os.O_CREAT)) as descriptor:
        yield descriptor if take_lock(descriptor, wait) else None


def replace_file(path: Path, content: bytes, mode: int = 0o600, word: str = "", is_lasting: bool = True) -> None:
    """Replace a file atomically; ``mode`` applies whatever the umask.

    :param word: ending of the temporary file's name; by default the id of this thread, unique on this host.
    :param is_lasting: the content survives a power cut; its name does only after `sync_folder`.
    :raises OSError: it cannot be written; the old file stays.
    """
    temporary = path.with_name(f".{path.name}.{word or get_native_id()}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        # A file of this name is left over from a killed process, or is somebody's trap: it is never written into.
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


def make_file(path: Path, content: bytes, is_lasting: bool = True) -> None:
    """Make a file with this content at once, unless there is one of that name; see `replace_file`.

    :raises OSError: it cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.uname().nodename}.{get_native_id()}")
    replace_file(temporary, content, is_lasting=is_lasting)
    try:
        # Only one of several processes, or hosts, can make the link, even on NFS.
        with suppress(FileExistsError):
            path.hardlink_to(temporary)
    finally:
        temporary.unlink()


def empty_descriptors(*descriptors: int) -> None:
    """From now on nothing can be read from these, and what is written to them is lost."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in descriptors:
        os.dup2(nothing, descriptor)
    os.close(nothing)


def fill_closed_descriptors() -> None:
    """Open the null device for closed standard descriptors, so that none of our files gets such a number.

    Only for reading: what would be lost must fail.
    """
    while (descriptor := os.open(os.devnull, os.O_RDONLY)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)


def sync_folder(folder: Path) -> None:
    """Return when the names of a folder's files are on the disk; raises OSError: they may not be."""
    with kept_open(os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as descriptor:
        os.fsync(descriptor)


@contextmanager
def atomic_write(target: Path) -> Iterator[Callable[[bytes], None]]:
    """Give a function that writes bytes, which become ``target`` (mode 0600) if the block succeeds.

    Until then they are in ``NAME.tmp`` in the same folder; what a killed process left there is overwritten. A
    pipe or a link in the target's place is replaced, as a program may have put it there: for names that people give,
    call `check_replaceable` first.

    :raises SandboxError: the file system refuses, or another process is writing the same target.
    """
    temporary = target.with_name(target.name + ".tmp")
    descriptor = _open_locked(temporary, target)

    def write(data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(descriptor, rest) :]

    try:
        yield write
        os.fsync(descriptor)
        temporary.replace(target)
        # In a folder where others can write, they may have put theirs in the place of what we have written.
        if not os.path.samestat(os.fstat(descriptor), target.lstat()):
            raise OSError(errno.EEXIST, "somebody has put something else in its place", str(temporary))
        sync_folder(target.parent)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink()
        # The error may be about another file, which the block was reading.
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
        where = f": {temporary}" if os.path.lexists(temporary) else ""
        raise SandboxError(f"{target} could not be written: {error.strerror}{where}") from error
    try:
        # Between opening and locking it may have become the target: then it must not be truncated.
        status = os.fstat(descriptor)
        # With a second name it may be any file of this account, to which somebody made a hard link.
        if not take_lock(descriptor) or not os.path.samestat(status, os.lstat(temporary)) or status.st_nlink > 1:
            raise BlockingIOError
        os.ftruncate(descriptor, 0)
    except OSError as error:
        os.close(descriptor)
        raise SandboxError(f"{target} is being written by another process; try again when it has ended") from error
    return descriptor


def remove_folder(folder: Path, parent: int | None = None) -> int:
    """Remove a folder with all that is in it, closed folders and very deep ones included; gives the bytes of its files.

    ``folder`` is relative to the open folder ``parent``, if that is given. A link or a file of that name stays.

    :raises OSError: something in it cannot be removed.
    """
    try:
        top = _open_closed(str(folder), parent)
    except (FileNotFoundError, NotADirectoryError):
        return 0
    with kept_open(top):
        size = _empty(top)
    os.rmdir(folder, dir_fd=parent)
    return size


def _empty(top: int) -> int:
    """Remove everything in an open folder; gives the bytes of its files."""
    size, names = _remove_files(top)
    free_names = (f".{os.urandom(8).hex()}" for _ in itertools.repeat(None))
    while names:
        name = names.pop()
        with kept_open(_open_closed(name, top)) as folder:
            inner_size, inner_names = _remove_files(folder)
            size += inner_size
            # Moved to the top: folders may be nested more deeply than a path, or open files, can reach.
            for inner_name in inner_names:
                os.close(_open_closed(inner_name, folder))
                names.append(next(free_names))
                os.rename(inner_name, names[-1], src_dir_fd=folder, dst_dir_fd=top)
        os.rmdir(name, dir_fd=top)
    return size


def _open_closed(name: str, parent: int | None) -> int:
    """Open a folder, also one without permissions, and let us in from now on; a link is never followed."""
    with kept_open(os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)) as found:
        os.chmod(f"/proc/self/fd/{found}", stat.S_IRWXU)  # noqa: PTH101 what is open itself
        return os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=found)


def _remove_files(folder: int) -> tuple[int, list[str]]:
    """Remove all but the folders from an open folder; gives the bytes, and the names of the folders."""
    size, names = 0, []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                names.append(entry.name)
            else:
                size += entry.stat(follow_symlinks=False).st_size
                os.unlink(entry.name, dir_fd=folder)
    return size, names
