"""Files where others can write as well: opened without following a link, replaced whole or not at all."""

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO


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


def replace_file(path: Path, content: bytes, mode: int = 0o600, word: str = "", is_lasting: bool = True) -> None:
    """Put a file in the place of the one before, whole; ``mode`` counts whatever the umask.

    :param word: what its name ends with while it is written; the number of this process by default.
    :param is_lasting: it is there after a power cut, too; its name only after `sync_folder`.
    :raises OSError: it cannot be written; the one before stays, and nothing else.
    """
    aside = path.with_name(f".{path.name}.{word or os.getpid()}")
    # What is there under this name is of a process that was killed, or somebody's trap: never written into.
    aside.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with open(os.open(aside, flags, 0o600), "wb") as sink:
            sink.write(content)
            sink.flush()
            os.fchmod(sink.fileno(), mode)
            if is_lasting:
                os.fsync(sink.fileno())
        aside.replace(path)
    except BaseException:
        aside.unlink(missing_ok=True)
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
