"""What a sandbox or an output may measure, and the error that says so."""

from dataclasses import dataclass

MAX_DEPTH = 64
"""Folders inside folders: each level costs a file descriptor while it is read, and a path ends at 4096 bytes."""


@dataclass(frozen=True)
class Limits:
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
