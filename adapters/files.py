"""Files that a request brings: what they may measure, and how they come into the work area."""

import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

from .attributes import RequestFile
from .job_adapter import Limits, TooLarge


class UnusableFile(ValueError):
    """A file of a request that can never be copied; a sentence for people."""


def find_size_faults(files: Iterable[RequestFile], limits: Limits) -> list[str]:
    """A fault where files that are to be copied into the work area are larger together than the site takes."""
    paths = {file.path for file in files}
    size = sum(os.path.getsize(path) for path in paths if os.path.isfile(path))  # noqa: PTH113, PTH202 never raises
    return [_render_fault(f"have {size} bytes together", limits)] if size > limits.max_input_size else []


def copy_files(files: Iterable[tuple[Path, Path]], limits: Limits) -> None:
    """Copy files with their modes, each to its target; folders are made.

    What they measure is looked at before anything is copied, and counted while it is: files of the kernel have no size.

    :raises TooLarge: they are larger together than the site takes.
    :raises UnusableFile: one is no regular file, or reading it would wait for something.
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
    """A regular file, open for reading; nothing else is waited for.

    :raises UnusableFile: it is something else; OSError: it cannot be opened.
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
