"""Job types ``dzero_merge`` and ``cdf_concatenate``: many small files become few large ones."""

import enum
import importlib.util
import re
import shutil
import stat
import sys
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from adapters import Attribute, Kind, PlannedJob, UnusableFile, open_input
from handlers.inputs import DATASETS, INPUT_ATTRIBUTES, READER, Groups, Input, InputsAdapter, NoFiles

PAYLOAD = Path(__file__).parent / "payload" / "merge.sh"
LHE_PAYLOAD = Path(__file__).parent / "payload" / "merge_lhe.py"
ROOT_PAYLOAD = Path(__file__).parent / "payload" / "merge_root.py"
_LHE = re.compile(rb"(?:\xef\xbb\xbf)?(?>\s+|<\?[^>]*>|<!--(?>.*?-->))*+<LesHouchesEvents\b", re.DOTALL)
_HEAD = 4096
"""Bytes from which the kind of a file is read."""
_BLOCK = 1 << 20
_ENDING = re.compile(r"(\.[A-Za-z]\w*)?(\.gz)?", re.ASCII)


class FileKind(enum.Enum):
    """The format of a file; PLAIN and GZIP stand for all formats that are not known here."""

    PLAIN = "plain"
    GZIP = "gzip"
    LHE = "Les Houches"
    ROOT = "root"


def merge_attributes(target_size: float) -> tuple[Attribute, ...]:
    """The attributes of a job type that merges files up to a size in MB."""
    return (
        *INPUT_ATTRIBUTES,
        Attribute("target_size", "Files are merged up to this size; 1 MB is 10^6 bytes.", Kind.NUMBER, "MB",
                  default=target_size, minimum=0.000001),
        Attribute("concatenate", "Whether files of a format that is not known here are put one after the other; "
                  "otherwise they are refused.", Kind.FLAG, default=False),
        Attribute("output_name", "What the names of the merged files begin with.", default="merged"),
    )  # fmt: skip


class DzeroMergeAdapter(InputsAdapter):
    """Merges D0 files of one request to the size that is stored.

    Les Houches event files are merged by a payload, ROOT files by uproot, others by the site's own command.
    """

    jobType = "dzero_merge"
    requestIdAttribute = "runjob_requestid"
    usesDirectory = False
    attributes = (
        Attribute("runjob_requestid", "Id of the request whose files are merged.", Kind.INTEGER, minimum=1),
        *merge_attributes(1000),
    )
    siteAttributes = (
        DATASETS,
        Attribute("merge_command", "Merge program and its words, in place of the built-in merge: {output} is the file "
                  "to be written, {inputs} stands for the files to be read.", Kind.WORDS, default=()),
        Attribute("python", "Python program on the worker nodes that merges LHE files and, where it can import uproot, "
                  "ROOT files; by default the one that runs the job manager.", default=""),
    )  # fmt: skip

    def cutGroups(self, inputs: Sequence[Input]) -> Groups:
        return list(cut_groups(inputs, round(self.request["target_size"] * 1e6)))

    def checkErrors(self) -> Iterable[str]:
        command, name = self.site.values["merge_command"], self.request["output_name"]
        faults = []
        if command and not {"{output}", "{inputs}"} <= set(command):
            faults.append(f"[type.{self.jobType}] merge_command must have the words {{output}} and {{inputs}}")
        if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,100}", name, re.ASCII):
            faults.append(f"output_name must be letters, digits and any of _ . + -, not {name!r}")
        try:
            groups = self.groups
            return [*faults, *(() if command else self._check_kinds(groups))]
        except NoFiles as error:
            return [*faults, str(error)]

    def prepareWorkArea(self, workArea: Path) -> None:
        self.writeInputs(workArea)
        for payload in (PAYLOAD, LHE_PAYLOAD, ROOT_PAYLOAD, READER):
            shutil.copyfile(payload, workArea / payload.name)

    def getCommandAndArguments(self, localJob: PlannedJob) -> Sequence[str]:
        group = self.pickGroup(localJob)
        name = f"{self.request['output_name']}-{localJob.index}{read_ending(group[0].path.name)}"
        words = ["/bin/sh", f"./{PAYLOAD.name}", name]
        if command := self.site.values["merge_command"]:
            return [*words, "command", *fill_in(command, group)]
        kind = read_kind(group[0].path)
        python = self.site.values["python"] or sys.executable
        if kind is FileKind.LHE:
            written = "gzip" if name.endswith(".gz") else "plain"
            return [*words, "payload", python, f"./{LHE_PAYLOAD.name}", written, "merged", "inputs.names"]
        if kind is FileKind.ROOT:
            return [*words, "payload", python, f"./{ROOT_PAYLOAD.name}", *fill_in(("{output}", "{inputs}"), group)]
        return [*words, kind.value]

    def getSummary(self, outputs: Sequence[Path]) -> Mapping[str, str]:
        lists = [file for folder in outputs for file in folder.glob("*.inputs") if _is_file(file)]
        inputs = sum(map(_count_lines, lists))
        merged = [file.with_suffix("") for file in lists if _is_file(file.with_suffix(""))]
        size = sum(file.stat().st_size for file in merged)
        return {"inputs": _count_files(inputs), "merged": f"{_count_files(len(merged))}, {size:,} bytes"}

    def _check_kinds(self, groups: Groups) -> list[str]:
        faults = [fault for group in groups for fault in check_mixture(group)]
        first = {read_kind(group[0].path): group[0] for group in reversed(groups)}
        unknown = first.get(FileKind.PLAIN) or first.get(FileKind.GZIP)
        if unknown and not self.request["concatenate"]:
            faults.append(
                f"{unknown.name!r} is neither an LHE file nor a ROOT file, and how to merge others is not known "
                "here: (concatenate = yes) puts them one after the other"
            )
        has_uproot = bool(self.site.values["python"]) or importlib.util.find_spec("uproot") is not None
        if not has_uproot and FileKind.ROOT in first:
            faults.append(
                "ROOT files are merged with uproot, which is not installed: install uproot, or name a python that has "
                f"it, or a merge_command, in [type.{self.jobType}]"
            )
        return faults


class CdfConcatenateAdapter(DzeroMergeAdapter):
    """Merges CDF files of one request to the size that is stored."""

    jobType = "cdf_concatenate"
    requestIdAttribute = "request_id"
    attributes = (
        Attribute("request_id", "Id of the request whose files are merged.", Kind.INTEGER, minimum=1),
        *merge_attributes(2000),
    )


def cut_groups(inputs: Iterable[Input], target: int) -> Iterator[tuple[Input, ...]]:
    """The inputs, in their order, in groups of at most ``target`` bytes; a larger file is a group of its own."""
    group: list[Input] = []
    size = 0
    for one in inputs:
        if group and size + one.size > target:
            yield tuple(group)
            group, size = [], 0
        group.append(one)
        size += one.size
    if group:
        yield tuple(group)


def check_mixture(group: Sequence[Input]) -> list[str]:
    """One fault if the files of a group are of two kinds; raises NoFiles if one cannot be read."""
    first, *others = group
    kind = read_kind(first.path)
    for other in others:
        if (found := read_kind(other.path)) is not kind:
            words = f"{first.name!r} is a {kind.value} file and {other.name!r} a {found.value} file"
            return [f"{words}: they cannot be merged into one"]
    return []


def read_kind(path: Path) -> FileKind:
    """The kind of a file, from its first bytes or its ending; raises NoFiles if it cannot be read."""
    try:
        with open_input(path) as file:
            first = file.read(_HEAD) or b""
    except UnusableFile as error:
        raise NoFiles(f"the input {error}") from error
    except OSError as error:
        raise NoFiles(f"the input {str(path)!r} cannot be read: {error.strerror}") from error
    if first.startswith(b"root"):
        return FileKind.ROOT
    if read_ending(path.name) in (".lhe", ".lhe.gz") or _LHE.match(unzip(first)):
        return FileKind.LHE
    return FileKind.GZIP if first.startswith(b"\x1f\x8b") else FileKind.PLAIN


def unzip(first: bytes) -> bytes:
    """The first bytes of a file; those of a gzip file are decompressed."""
    try:
        return zlib.decompressobj(wbits=31).decompress(first, _HEAD) if first.startswith(b"\x1f\x8b") else first
    except zlib.error:
        return b""


def read_ending(name: str) -> str:
    """The ending of a merged file's name, from the name of an input: ``.evt.gz`` for ``a.7.evt.gz``."""
    return next(name[at:] for at in range(len(name) + 1) if _ENDING.fullmatch(name, at))


def fill_in(command: Iterable[str], group: Iterable[Input]) -> list[str]:
    """The site's merge command, with a group of inputs filled in."""
    words: list[str] = []
    for word in command:
        words += [one.name for one in group] if word == "{inputs}" else [word.replace("{output}", "merged")]
    return words


def _count_lines(file: Path) -> int:
    with open_input(file) as stream:
        return sum(block.count(b"\n") for block in iter(lambda: stream.read(_BLOCK), b""))


def _count_files(number: int) -> str:
    return f"{number:,} file{'s' * (number != 1)}"


def _is_file(path: Path) -> bool:
    return path.exists() and stat.S_ISREG(path.lstat().st_mode)
