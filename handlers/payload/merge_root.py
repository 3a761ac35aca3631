"""Merges ROOT files: ``merge_root.py OUTPUT INPUT...`` sums histograms, appends trees and RNTuples.

It needs only Python and uproot; for RNTuples, an uproot that can write them. An object that it cannot merge faithfully
(another class, a branch that uproot cannot write) is an error: a site then configures ROOT's hadd as merge command.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

CHUNK = "50 MB"
"""The part of a tree that is in memory at once."""
DIMENSIONS = {f"TH{number}{kind}": number for number in (1, 2) for kind in "CSIFD"}
SUMS = (
    ("fEntries", "fTsumw", "fTsumw2", "fTsumwx", "fTsumwx2"),
    ("fTsumwy", "fTsumwy2", "fTsumwxy"),
)
"""The statistics that TH1 sums in addition to its bins, and those that only TH2 has."""


class MergeError(Exception):
    """Why the files cannot be merged, in one line."""


class HistogramSum:
    """The sum of histograms: bins, variances and statistics; axes and title are those of the first."""

    def __init__(self, name: str, first: Any) -> None:
        self.name, self.kind, self.first = name, first.classname, first
        self.dimensions = DIMENSIONS[self.kind]
        self.values: Any = 0.0
        self.variances: Any = 0.0
        self.statistics = {sums: 0.0 for part in SUMS[: self.dimensions] for sums in part}

    def add(self, histogram: Any) -> None:
        """Add a histogram; raises MergeError if its bins differ."""
        for axis in range(self.dimensions):
            if histogram.axis(axis).edges().tolist() != self.first.axis(axis).edges().tolist():
                raise MergeError(f"the histograms {self.name} have different bins")
            if histogram.axis(axis).labels() != self.first.axis(axis).labels():
                raise MergeError(f"the histograms {self.name} have different labels at their bins")
        self.values = self.values + histogram.values(flow=True).astype("f8")
        self.variances = self.variances + histogram.variances(flow=True)
        self.statistics = {name: value + histogram.member(name) for name, value in self.statistics.items()}

    def write(self, output: Any) -> None:
        """Write the sum into a file, as a histogram of the first one's class."""
        from uproot.writing.identify import to_TH1x, to_TH2x

        make = to_TH1x if self.dimensions == 1 else to_TH2x
        output[self.name] = make(
            fName=self.first.member("fName"),
            fTitle=self.first.member("fTitle"),
            # ROOT's order of bins, under- and overflow included, is the other way round than numpy's.
            data=self.values.T.ravel().astype(self.first.values(flow=True).dtype),
            fSumw2=self.variances.T.ravel(),
            **self.statistics,
            **{axis: self.first.member(axis) for axis in ("fXaxis", "fYaxis")[: self.dimensions]},
        )


class AppendedTree:
    """A tree that is being written; all inputs must have the same branches."""

    def __init__(self, name: str, first: Any, output: Any) -> None:
        import awkward

        self.name, self.kind = name, first.classname
        self.types = {branch.name: branch.typename for branch in first.branches}
        leaves = {branch.name: branch.count_leaf for branch in first.branches}
        counters = {branch: leaf.member("fName") for branch, leaf in leaves.items() if leaf is not None}
        # uproot itself writes the branches that hold the lengths of others.
        self.branches = [branch for branch in leaves if branch not in counters.values()]
        none = first.arrays(self.branches, entry_stop=0)
        types = {branch: awkward.type(none[branch]).content for branch in self.branches}
        self.tree = output.mktree(
            name, types, title=first.title, counter_name=lambda branch: counters.get(branch, f"n{branch}")
        )

    def add(self, tree: Any) -> None:
        """Append the entries of a tree; raises MergeError if its branches differ."""
        if {branch.name: branch.typename for branch in tree.branches} != self.types:
            raise MergeError(f"the trees {self.name} have different branches")
        for chunk in tree.iterate(self.branches, step_size=CHUNK):
            self.tree.extend({branch: chunk[branch] for branch in self.branches})


class AppendedNtuple:
    """An RNTuple that is being written; all inputs must have the same fields."""

    def __init__(self, name: str, first: Any, output: Any) -> None:
        if not hasattr(output, "mkrntuple"):
            raise MergeError(f"{name} is an RNTuple, which this uproot cannot write: install a newer one (5.7 can)")
        self.name, self.kind = name, first.classname
        self.types = self._read_types(first)
        self.entries = 0
        self.ntuple = output.mkrntuple(name, first.arrays(entry_stop=0).layout.form, first.description)

    @staticmethod
    def _read_types(ntuple: Any) -> list[tuple[str, str]]:
        return [(name, ntuple[name].typename) for name in ntuple.keys()]  # noqa: SIM118 it is no mapping

    def add(self, ntuple: Any) -> None:
        """Append the entries of an RNTuple; raises MergeError if its fields differ."""
        if self._read_types(ntuple) != self.types:
            raise MergeError(f"the RNTuples {self.name} have different fields")
        for chunk in ntuple.iterate(step_size=CHUNK):
            self.ntuple.extend(chunk)
        self.entries += ntuple.num_entries

    def check(self, written: Any) -> None:
        """Raise MergeError if the written RNTuple differs from its inputs: uproot writes some types as others."""
        if written.num_entries != self.entries:
            raise MergeError(f"the RNTuple {self.name} has {written.num_entries} entries, and its parts {self.entries}")
        for (name, read), (_, found) in zip(self.types, self._read_types(written), strict=True):
            if read != found:
                raise MergeError(
                    f"{self.name}: the field {name} is {read or 'a record'}, and would become {found or 'a record'}: "
                    "configure a merge_command (hadd)"
                )


Part = HistogramSum | AppendedTree | AppendedNtuple
APPENDED: dict[str, type[AppendedTree] | type[AppendedNtuple]] = {
    "TTree": AppendedTree,
    "ROOT::RNTuple": AppendedNtuple,
}


def merge(output: str, inputs: Sequence[str]) -> None:
    """Write the merged file, with one input open at a time; raises MergeError."""
    import uproot

    found: dict[str, Part] = {}
    with uproot.recreate(output) as merged:
        for name in inputs:
            # A name alone would not do: uproot reads "A:B" as the object B in the file A.
            with uproot.open({name: None}) as file:
                check_whole(name, file)
                merge_file(file, found, merged)
        for part in found.values():
            if isinstance(part, HistogramSum):
                part.write(merged)
    with uproot.open({output: None}) as written:
        for name, part in found.items():
            if isinstance(part, AppendedNtuple):
                part.check(written[name])


def check_whole(name: str, file: Any) -> None:
    """Raise MergeError for a file that was cut short or never closed, in which uproot may simply find nothing."""
    size, end = Path(name).stat().st_size, file.file.fEND
    if size < end:
        raise MergeError(f"{name} was cut short: it has {size} bytes, and had {end}")
    if file.fSeekKeys == 0:
        raise MergeError(f"{name} was not closed by the program that wrote it: it has no list of what is in it")


def merge_file(file: Any, found: dict[str, Part], merged: Any) -> None:
    """Add every object of one file; raises MergeError for one that cannot be merged."""
    for name, kind in file.classnames(recursive=True, cycle=False).items():
        if kind in ("TDirectory", "TDirectoryFile"):
            continue
        if kind not in DIMENSIONS and kind not in APPENDED:
            raise MergeError(f"{name} is a {kind}, which cannot be merged here: configure a merge_command (hadd)")
        content = file[name]
        if name not in found:
            make = APPENDED.get(kind)
            found[name] = make(name, content, merged) if make else HistogramSum(name, content)
        part = found[name]
        if part.kind != kind:
            raise MergeError(f"{name} is a {part.kind} in one file and a {kind} in another")
        part.add(content)


def main(words: Sequence[str]) -> int:
    """Merge; 1 with one line on stderr where it cannot be done."""
    try:
        import uproot  # noqa: F401 checked before anything is read
    except ImportError as error:
        print(f"merge_root.py: {sys.executable} cannot import uproot ({error}): pip install uproot", file=sys.stderr)
        return 1
    try:
        merge(words[0], words[1:])
    except Exception as error:  # noqa: BLE001 uproot raises many kinds for what it cannot read or write
        text = " ".join(str(error).split()) or type(error).__name__
        print(f"merge_root.py: {text}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
