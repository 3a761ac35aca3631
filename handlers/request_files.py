"""Files that a request names: what can be wrong with them."""

import stat
from pathlib import PurePosixPath

from adapters import RequestFile


def find_file_faults(role: str, file: RequestFile) -> list[str]:
    """What is wrong with a file that a request names; ``role`` says in the messages what it is there for."""
    if file.travels and ".." in PurePosixPath(file.name).parts:
        return [f"{role} {file.name!r} must lie beside the request or below it: '..' is not allowed"]
    try:
        mode = file.path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return [f"{role} {file.name!r} was not found" + (f" in {file.path.parent}" if file.travels else "")]
    except OSError as error:
        return [f"{role} {file.name!r} cannot be read: {error.strerror}"]
    if stat.S_ISDIR(mode):
        return [f"{role} {file.name!r} is a directory"]
    if not stat.S_ISREG(mode):
        return [f"{role} {file.name!r} is not a regular file"]
    return []
