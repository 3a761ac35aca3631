"""Writes a file whole or not at all."""

import fcntl
import hashlib
import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from sandbox.files import sync_folder
from sandbox.limits import SandboxError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class Sink(io.BufferedIOBase):
    """Takes the bytes of one file and their sha256."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._digest = hashlib.sha256()

    def write(self, data: "ReadableBuffer", /) -> int:
        """Write all of ``data``; raises OSError where the disk takes less."""
        self._digest.update(data)
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(self._descriptor, rest) :]
        return len(memoryview(data))

    @property
    def sha256(self) -> str:
        """The sha256 of everything written so far, in hexadecimal."""
        return self._digest.hexdigest()


@contextmanager
def write_aside(target: Path) -> Iterator[Sink]:
    """Give a sink whose content becomes ``target`` (mode 0600) when the block ends well, and vanishes when not.

    The content waits under ``NAME.tmp`` in the same folder; what a killed process left there is written over.

    :raises SandboxError: where the file system refuses, or another process is writing the same target.
    """
    temporary = target.with_name(target.name + ".tmp")
    descriptor = _open_locked(temporary)
    try:
        sink = Sink(descriptor)
        yield sink
        os.fsync(descriptor)
        temporary.replace(target)
        sync_folder(target.parent)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise SandboxError(f"{target} could not be written: {error}") from error
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)


def _open_locked(temporary: Path) -> int:
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise SandboxError(f"{temporary} could not be opened: {error}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # The file may have been renamed to its final name between opening and locking: that one is not ours to cut.
        if not os.path.samestat(os.fstat(descriptor), os.lstat(temporary)):
            raise BlockingIOError
        os.ftruncate(descriptor, 0)
    except OSError as error:
        os.close(descriptor)
        raise SandboxError(f"{temporary} is being written by another process; try again when it has ended") from error
    return descriptor
