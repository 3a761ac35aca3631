"""Files of a request: checks their size, and copies them into the work area."""

import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

from .attributes import RequestFile
from .job_adapter import Limits, TooLarge


class UnusableFile(ValueError):
    """A file of a request that cannot be copied, now or later; the message is one sentence for people."""


def check_sizes(files: Iterable[RequestFile], limits: Limits) -> list[str]:
    """One fault if the files that would be copied into the work area are together larger than the site permits."""
    paths = {file.path for file in files}
    size = sum(os.path.getsize(path) for path in paths if os.path.isfile(path))  # noqa: PTH113, PTH202 never raises
    return [_render_fault(f"have {size} bytes together", limits)] if size > limits.max_input_size else []


def copy_files(files: Iterable[tuple[Path, Path]], limits: Limits) -> None:
    """Copy files with their modes, each to its target, and make the folders for them.

    The size is checked before anything is copied, and again while copying: files in /proc and /sys have no size.

    :raises TooLarge: together they are larger than the site permits.
    :raises UnusableFile: one is not a regular file, or reading it would block.
    """
    pairs = list(files)
    if sum(source.stat().st_size for source, _ in pairs) > limits.max_input_size:
        raise TooLarge(_render_fault("are too large", limits))
    left = limits.max_input_size
    for source, target in pairs:
        target.parent.mkdir(parents=True, exist_ok=True)
        with open_input(source) as stream, open(target, "wb", opener=_open_new) as sink:
            os.fchmod(sink.fileno(), stat.S_IMODE(os.fstat(stream.fileno()).st_mode))
            while chunk := _read(stream, source):
                left -= len(chunk)
                if left < 0:
                    raise TooLarge(_render_fault("are too large", limits))
                sink.write(chunk)


def open_input(path: Path) -> BinaryIO:
    """Open a regular file for reading; never blocks, as opening a named pipe would.

    :raises UnusableFile: it is not a regular file; OSError: it cannot be opened.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise UnusableFile(f"{str(path)!r} is not a regular file")
    return open(descriptor, "rb")


def _open_new(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


def _read(stream: BinaryIO, path: Path) -> bytes:
    try:
        return os.read(stream.fileno(), 1 << 20)
    except BlockingIOError as error:
        raise UnusableFile(f"{str(path)!r} cannot be copied: it is a stream, which has no end") from error


def _render_fault(what: str, limits: Limits) -> str:
    most = f"this site takes {limits.max_input_size} bytes ([sandbox] max_input_size)"
    return f"the files that travel with the request {what}: {most}; bring fewer or smaller ones"
