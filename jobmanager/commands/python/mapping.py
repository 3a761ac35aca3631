"""A Python function over a list, a local job for each item: what ``map`` does here, a grid job does elsewhere."""

import errno
import os
import pickle
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from jobmanager import UserError
from jobmanager.commands.python import call

from .handles import BadArgument, JobHandle, submit

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")
_FUNCTION, _RESULT, _TRACEBACK = "function.pickle", "result.pickle", "traceback.txt"
_LONGEST_TRACEBACK = 1 << 20
_OWN_ATTRIBUTES = ("samgrid_type", "executable", "arguments", "input_files", "count", "directory")


class CallFailed(UserError):
    """A call of a mapped function has given no result; the message is its traceback, or says why there is none."""

    def __init__(self, number: int, why: str) -> None:
        super().__init__(f"item {number}: {why}")
        self.number = number
        """Of the item, from 1, as of its local job."""


@dataclass(frozen=True)
class MapHandle(JobHandle, Generic[_Result]):
    """A grid job whose local jobs are calls of a function."""

    folder: str
    """Where function and items lie, and where the outputs are unpacked."""

    def results(self, *, return_exceptions: bool = False, timeout: float | None = None) -> list[_Result]:
        """Wait until all calls have ended; what they have returned, in the order of the items.

        :param return_exceptions: a call that has failed gives its `CallFailed` in place of a result.
        :param timeout: in seconds.
        :raises CallFailed: of the first item whose call has failed.
        :raises CannotGoOn, TimeoutError: as `wait`.
        """
        self.wait(timeout=timeout)
        _check_owner(Path(self.folder))
        outputs = self.outputs(self.folder)
        results: list[Any] = []
        for local_job in self.local_jobs():
            output = outputs.get(local_job.number)
            pickled = _read(output, _RESULT) if local_job.succeeded else None
            complaint = _read(output, _TRACEBACK, _LONGEST_TRACEBACK)
            text = complaint.decode(errors="replace") if complaint else local_job.reason or "it has left no result"
            if pickled is not None:
                try:
                    results.append(pickle.loads(pickled))
                    continue
                except Exception as error:  # noqa: BLE001 whatever unpickling calls; the other results are there
                    text = f"its result cannot be loaded here: {type(error).__name__}: {error}"
            failure = CallFailed(local_job.number, text)
            if not return_exceptions:
                raise failure
            results.append(failure)
        return results


def _read(output: Path | None, name: str, most: int = -1) -> bytes | None:
    """What a call has left under a name; nothing where that is a link, or another account's."""
    from sandbox.files import open_unlinked

    with suppress(OSError):
        if output is not None:
            with open_unlinked(output / name) as stream:
                return stream.read(most) if os.fstat(stream.fileno()).st_uid == os.geteuid() else None
    return None


def _check_owner(folder: Path) -> None:
    """Refuse what somebody else could have put there: a pickle is a program, and would run as us."""
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, "is no folder", str(folder))
    if status.st_uid not in (0, os.geteuid()) or status.st_mode & (stat.S_IWOTH | stat.S_ISVTX) == stat.S_IWOTH:
        raise PermissionError(errno.EPERM, "others can put what they like there, which would run as you", str(folder))


def submit_map(
    function: Callable[[_Item], _Result],
    items: Iterable[_Item],
    *,
    folder: str | os.PathLike[str],
    name: str | None = None,
    state_dir: str | os.PathLike[str] | None = None,
    **attributes: object,
) -> MapHandle[_Result]:
    """Submit a grid job in which each local job calls the function with one of the items.

    Function, items and results travel as cloudpickle makes them (extra ``python``). Local jobs run this interpreter:
    their hosts must have it at the same place, with the modules that the function imports.

    :param folder: gets a new folder for function, items and results; nobody removes that but you.
    :param attributes: of the request, such as ``max_wall_time=60`` or ``retries=2``.
    :raises BadRequest: it is refused; ``faults`` has a sentence for each fault, and nothing has been created.
    :raises BadArgument: the function is none.
    :raises PermissionError: others own the folder, or all may write to it.
    :raises ImportError: there is no cloudpickle.
    """
    import cloudpickle

    from adapters import canonical_name
    from jobmanager.requests.attributes import BadRequest

    own_names = {*map(canonical_name, _OWN_ATTRIBUTES)}
    if taken := [name for name in attributes if canonical_name(name) in own_names]:
        raise BadRequest([f"{name}: submit_map says that itself" for name in taken])
    if not callable(function):
        raise BadArgument(f"submit_map calls a function, but {function!r} is none")
    pickled = [cloudpickle.dumps(item) for item in items]
    if not pickled:
        raise BadRequest(["there are no items: submit_map needs one for each local job"])
    content = pickle.dumps((cloudpickle.dumps(function), pickled))
    Path(folder).mkdir(parents=True, exist_ok=True)
    _check_owner(Path(folder).resolve())
    own = Path(tempfile.mkdtemp(dir=Path(folder).resolve(), prefix="map-"))
    (own / _FUNCTION).write_bytes(content)
    request = {
        **attributes,
        "samgrid_type": "command",
        "executable": sys.executable,
        "arguments": ["-P", call.__file__, _FUNCTION],
        "input_files": [_FUNCTION],
        "count": len(pickled),
    }
    try:
        job = submit(request, name=name, folder=own, state_dir=state_dir)
    except BaseException:
        shutil.rmtree(own)
        raise
    return MapHandle(job.id, job.state_dir, str(own))
