"""Files that a request names: what can be wrong with them."""

from pathlib import PurePosixPath

from adapters import RequestFile


def find_file_faults(role: str, file: RequestFile) -> list[str]:
    """What is wrong with a file that a request names; ``role`` says in the messages what it is there for."""
    if file.travels and ".." in PurePosixPath(file.name).parts:
        return [f"{role} {file.name!r} must lie beside the request or below it: '..' is not allowed"]
    if file.path.is_dir():
        return [f"{role} {file.name!r} is a directory"]
    if not file.path.exists():
        return [f"{role} {file.name!r} was not found" + (f" in {file.path.parent}" if file.travels else "")]
    if not file.path.is_file():
        return [f"{role} {file.name!r} is not a regular file"]
    return []
