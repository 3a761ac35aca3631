"""Lays out the output folders of one grid job for the local jobs of another."""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from sandbox.limits import Limits, SandboxError
from sandbox.unpack import unpack


def lay_out(tar: Path, folders: Mapping[str, str], destination: Path, limits: Limits) -> None:
    """Unpack folders of an output tar, by their names in it, under new names into ``destination``: all, or nothing.

    What is there already stays; a folder that the tar does not have is left out. One process at a time.

    :raises SandboxError: the tar is not sound, or the disk does not take it.
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
            if (unpacked / name).is_dir():
                (unpacked / name).rename(chosen / new_name)
        _sync(chosen)
        chosen.rename(destination)
        shutil.rmtree(unpacked)
    except OSError as error:
        raise SandboxError(f"{destination} could not be made: {error}") from error


def _sync(top: Path) -> None:
    """Bring everything below a folder to the disk: the name that it gets then says that all of it is there."""
    for path, _, names in os.walk(top):
        files = [os.path.join(path, name) for name in names]  # noqa: PTH118 names of os.walk
        for name in [*(file for file in files if not os.path.islink(file)), path]:  # noqa: PTH114
            descriptor = os.open(name, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
