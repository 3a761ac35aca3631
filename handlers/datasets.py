"""Datasets: names of sets of files that the site keeps for an experiment."""

import os
from collections.abc import Iterable
from pathlib import Path

from adapters import Attribute, Site

DATASETS = Attribute(
    "datasets",
    "Folder of the site's datasets: NAME/ holds the files of a dataset, or NAME.list names them, "
    "an absolute path a line.",
    default="",
)
"""The site attribute of job types that read datasets."""


class NoFiles(ValueError):
    """The files that a request asks for cannot be had; a sentence for people."""


def find_dataset(site: Site, job_type: str, name: str) -> tuple[Path, ...]:
    """The files of a dataset, one at least: those of its folder sorted, those of its list as listed.

    :raises NoFiles: naming the dataset.
    """
    if not site.values.get("datasets"):
        raise NoFiles(f"dataset {name!r}: this site has no datasets ([type.{job_type}] datasets names their folder)")
    folder = Path(site.values["datasets"])
    if "/" in name or name in (".", "..") or not name.isprintable():
        raise NoFiles(f"dataset {name!r}: a dataset's name is one word without slashes")
    try:
        files = _list_folder(folder / name) if (folder / name).is_dir() else _read_list(folder, name)
    except OSError as error:
        raise NoFiles(f"dataset {name!r}: {error.filename!r} cannot be read: {error.strerror}") from error
    if not files:
        raise NoFiles(f"dataset {name!r} has no files")
    _check_files(name, files)
    return files


def _list_folder(folder: Path) -> tuple[Path, ...]:
    """Every file below, also those that the site keeps elsewhere and has links to here."""
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


def _check_files(name: str, files: Iterable[Path]) -> None:
    known = set()
    for file in files:
        if not file.is_absolute():
            raise NoFiles(f"dataset {name!r} lists {str(file)!r}: a list names absolute paths")
        if file in known:
            raise NoFiles(f"dataset {name!r} lists {str(file)!r} twice")
        if not file.is_file():
            raise NoFiles(f"dataset {name!r}: there is no file {str(file)!r}")
        known.add(file)
