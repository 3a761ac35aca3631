"""Checks files that a request names; finds input files and datasets, and shares them out among the local jobs."""

import os
import stat
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

from adapters import Attribute, JobAdapter, Kind, PlannedJob, RequestFile, Site, TooLarge, UnknownDataset, copy_files


def check_file(role: str, file: RequestFile) -> list[str]:
    """The faults of a file that a request names; ``role`` names its purpose in the messages."""
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


DATASETS = Attribute(
    "datasets",
    "Folder of the site's datasets: NAME/ holds the files of a dataset, or NAME.list names them, "
    "an absolute path a line.",
    default="",
)
"""The site attribute of job types that read datasets."""


class NoFiles(ValueError):
    """Input files are missing or unusable; the message is one sentence for people."""


def find_dataset(site: Site, job_type: str, name: str) -> tuple[Path, ...]:
    """The files of a dataset, at least one: the sorted files of its folder, or those of its list in their order.

    A dataset that is not in the site's folder of datasets may be listed by the site's command.

    :raises NoFiles: naming the dataset.
    """
    folder = site.values.get("datasets")
    is_word = "/" not in name and name not in (".", "..") and name.isprintable()
    if site.findDataset is not None and not (folder and is_word and _has_dataset(Path(folder), name)):
        try:
            files = tuple(map(Path, site.findDataset(name)))
        except UnknownDataset as error:
            raise NoFiles(f"dataset {name!r}: {error}") from error
    else:
        files = _find_in_folder(folder, job_type, name, is_word)
    if not files:
        raise NoFiles(f"dataset {name!r} has no files")
    _check_dataset(name, files)
    return files


def _has_dataset(folder: Path, name: str) -> bool:
    return os.path.isdir(folder / name) or os.path.isfile(folder / f"{name}.list")  # noqa: PTH112, PTH113 never raise


def _find_in_folder(folder: str | None, job_type: str, name: str, is_word: bool) -> tuple[Path, ...]:
    if not folder:
        raise NoFiles(
            f"dataset {name!r}: this site has no datasets ([type.{job_type}] datasets names their folder,"
            " or [site] dataset_command a command that lists them)"
        )
    if not is_word:
        raise NoFiles(f"dataset {name!r}: a dataset's name is one word without slashes")
    path = Path(folder, name)
    try:
        return _list_dataset(path) if path.is_dir() else _read_list(path.parent, name)
    except OSError as error:
        raise NoFiles(f"dataset {name!r}: {error.filename!r} cannot be read: {error.strerror}") from error


def _list_dataset(folder: Path) -> tuple[Path, ...]:
    """Every file below a folder, including symbolic links to files elsewhere."""
    found = (Path(parent) / name for parent, _, names in os.walk(folder, onerror=_raise) for name in names)
    return tuple(sorted(found))


def _raise(error: OSError) -> None:
    raise error


def _read_list(folder: Path, name: str) -> tuple[Path, ...]:
    file = folder / f"{name}.list"
    if not file.is_file():
        raise NoFiles(f"dataset {name!r} was not found: there is neither a folder {folder / name} nor a file {file}")
    lines = (os.fsdecode(line).strip() for line in file.read_bytes().split(b"\n"))
    return tuple(Path(line) for line in lines if line and not line.startswith("#"))


def _check_dataset(name: str, files: Iterable[Path]) -> None:
    known = set()
    for file in files:
        if not file.is_absolute():
            raise NoFiles(f"dataset {name!r} lists {str(file)!r}: a list names absolute paths")
        if file in known:
            raise NoFiles(f"dataset {name!r} lists {str(file)!r} twice")
        if not os.path.isfile(file):  # noqa: PTH113 Path's raises for a name too long
            raise NoFiles(f"dataset {name!r}: there is no file {str(file)!r}")
        known.add(file)


LIST = "inputs.list"
READER = Path(__file__).parent / "payload" / "inputs.sh"
"""The shell functions with which payloads read the list of inputs."""
_MOST_ENTRIES = 1_000_000
"""Below a folder of inputs: no site takes more local jobs."""
_WAYS = ("input_dataset", "input_files", "input_folder")

INPUT_ATTRIBUTES = (
    Attribute("input_dataset", "Dataset of the input files.", default=""),
    Attribute("input_files", "The input files: absolute, or beside the request.", Kind.FILES, default=()),
    Attribute("input_folder", "Absolute path of a folder: every file below it is an input.", default=""),
    Attribute("input_pattern", "Which files of the folder are meant, by their names: * and ? as in the shell.",
              default="*"),
)  # fmt: skip
"""The ways to name the inputs; a request uses one of them."""


@dataclass(frozen=True)
class Input:
    """One input file: ``name`` is its path in the local job, ``size`` is in bytes."""

    path: Path
    name: str
    size: int


Groups = Sequence[Sequence[Input]]
"""The inputs of each local job."""


def find_inputs(request: Mapping[str, Any], site: Site, job_type: str) -> tuple[Input, ...]:
    """The input files of a request, sorted by name.

    :raises NoFiles: with a sentence about the first fault.
    """
    ways = [way for way in _WAYS if request[way]]
    if len(ways) != 1:
        found = f"not by {' and '.join(ways)}" if ways else "none of them is there"
        raise NoFiles(f"the inputs are named by one of input_dataset, input_files and input_folder: {found}")
    if ways == ["input_files"]:
        inputs = _list_files(request["input_files"])
    elif ways == ["input_dataset"]:
        inputs = [_read_input(path) for path in find_dataset(site, job_type, request["input_dataset"])]
    else:
        inputs = _list_folder(request["input_folder"], request["input_pattern"])
    _check_names(inputs)
    return tuple(sorted(inputs, key=lambda one: one.name))


class InputsAdapter(JobAdapter):
    """A job type whose local jobs each read a group of input files."""

    @abstractmethod
    def cutGroups(self, inputs: Sequence[Input]) -> Groups:
        """Divide the inputs, in their order, among the local jobs."""

    @cached_property
    def groups(self) -> Groups:
        """The inputs of each local job; raises NoFiles."""
        return self.cutGroups(find_inputs(self.request, self.site, self.jobType))

    def getNumSubmissionTimes(self) -> int:
        most = self.site.limits.max_local_jobs
        if len(self.groups) > most:
            raise TooLarge(
                f"the inputs make {len(self.groups)} local jobs, but this site takes at most {most}: "
                "name fewer inputs, or more for each local job"
            )
        return len(self.groups)

    def pickGroup(self, localJob: PlannedJob) -> Sequence[Input]:
        """The inputs of one local job.

        :raises NoFiles: the inputs have changed, so that the number of local jobs would be another one.
        """
        if len(self.groups) != localJob.count:
            raise NoFiles(
                "the inputs have changed since the request was accepted: the number of local jobs was "
                f"{localJob.count}, and is {len(self.groups)} now; submit it again"
            )
        return self.groups[localJob.index - 1]

    def writeInputs(self, workArea: Path) -> None:
        """Write the list of each local job's inputs, and copy inputs with relative names into the work area."""
        inputs = [(index, one) for index, group in enumerate(self.groups, 1) for one in group]
        write_lines(workArea / LIST, (f"{index} {one.size} {one.name}" for index, one in inputs))
        travelling = [(one.path, workArea / one.name) for _, one in inputs if not one.name.startswith("/")]
        copy_files(travelling, self.site.limits)


def write_lines(file: Path, lines: Iterable[str]) -> None:
    """Write one name per line; names that are not UTF-8 are kept byte for byte."""
    file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", errors="surrogateescape")


def _list_files(files: Iterable[RequestFile]) -> list[Input]:
    faults = [fault for file in files for fault in check_file("input file", file)]
    if faults:
        raise NoFiles("; ".join(faults))
    names = [str(PurePosixPath("inputs") / file.name) if file.travels else file.name for file in files]
    return [_read_input(file.path, name) for file, name in zip(files, names, strict=True)]


def _read_input(path: Path, name: str = "") -> Input:
    try:
        return Input(path, name or str(path), path.stat().st_size)
    except OSError as error:
        raise NoFiles(f"the input {str(path)!r} cannot be read: {error.strerror}") from error


def _list_folder(folder: str, pattern: str) -> list[Input]:
    if not folder.startswith("/"):
        raise NoFiles(f"input_folder must be an absolute path, not {folder!r}")
    if not os.path.isdir(folder):  # noqa: PTH112 Path's raises for a name too long
        raise NoFiles(f"input_folder: there is no folder {folder!r}")
    inputs, looks = [], 0
    for parent, folders, names in os.walk(folder, onerror=_refuse):
        looks += len(folders) + len(names)
        if looks > _MOST_ENTRIES:
            raise NoFiles(
                f"input_folder: more than {_MOST_ENTRIES} files and folders are below {folder!r}:"
                " name a folder further down"
            )
        # The driver writes outputs under such names until they are complete.
        folders[:] = [name for name in folders if not name.startswith(".")]
        inputs += [_read_input(Path(parent, name)) for name in names if _is_wanted(Path(parent, name), pattern)]
    if not inputs:
        raise NoFiles(f"input_folder: no file below {folder!r} is called {pattern!r}")
    return inputs


def _is_wanted(path: Path, pattern: str) -> bool:
    """True for a regular file of a wanted name; a link may lead anywhere, so it is not."""
    named = fnmatchcase(path.name, pattern) and not path.name.startswith(".")
    return named and stat.S_ISREG(path.lstat().st_mode)


def _refuse(error: OSError) -> None:
    raise NoFiles(f"input_folder: {error.filename!r} cannot be read: {error.strerror}") from error


def _check_names(inputs: Iterable[Input]) -> None:
    known = set()
    for one in inputs:
        # The lists of inputs have a name a line; the ini file puts a comma between them.
        if "," in one.name or any(letter < " " or letter == "\x7f" for letter in one.name):
            raise NoFiles(f"the input {one.name!r} has a comma or a control character in its name: rename it")
        if one.name in known:
            raise NoFiles(f"the input {one.name!r} is named twice")
        known.add(one.name)
