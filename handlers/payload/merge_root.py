"""Merges ROOT files: ``merge_root.py OUTPUT INPUT...`` sums histograms and appends trees, with uproot.

It needs Python and uproot only. What it cannot merge faithfully (other classes, branches that uproot cannot write) is
an error that names it: a site then configures ROOT's own hadd as the merge command.
"""

import sys
from collections.abc import Sequence
from typing import Any

CHUNK = "50 MB"
"""So much of a tree is in memory at once."""
DIMENSIONS = {f"TH{number}{kind}": number for number in (1, 2) for kind in "CSIFD"}
SUMS = (
    ("fEntries", "fTsumw", "fTsumw2", "fTsumwx", "fTsumwx2"),
    ("fTsumwy", "fTsumwy2", "fTsumwxy"),
)
"""What TH1 adds up beside its bins, and what TH2 adds to that."""


class MergeError(Exception):
    """Why the files cannot be merged, in one line."""


def find_objects(files: Sequence[Any]) -> dict[str, str]:
    """Every object of the files by its path: the class, which has to be the same in all of them."""
    found: dict[str, str] = {}
    for file in files:
        for name, kind in file.classnames(recursive=True, cycle=False).items():
            if found.setdefault(name, kind) != kind:
                raise MergeError(f"{name} is a {found[name]} in one file and a {kind} in {file.file_path}")
    for name, kind in found.items():
        if kind not in {*DIMENSIONS, "TTree", "TDirectory", "TDirectoryFile"}:
            raise MergeError(f"{name} is a {kind}, which cannot be merged here: configure a merge_command (hadd)")
    return found


def sum_histograms(histograms: Sequence[Any], name: str) -> Any:
    """One histogram with the bins, their variances and the statistics of all; axes and title are the first one's."""
    from uproot.writing.identify import to_TH1x, to_TH2x

    first = histograms[0]
    dimensions = DIMENSIONS[first.classname]
    for axis in range(dimensions):
        edges = first.axis(axis).edges().tolist()
        if any(other.axis(axis).edges().tolist() != edges for other in histograms):
            raise MergeError(f"the histograms {name} have different bins")
    # ROOT's order of bins, under- and overflow included, is the other way round than numpy's.
    values = sum(one.values(flow=True).astype("f8") for one in histograms)
    variances = sum(one.variances(flow=True) for one in histograms)
    statistics = {sums: sum(one.member(sums) for one in histograms) for part in SUMS[:dimensions] for sums in part}
    axes = {axis: first.member(axis) for axis in ("fXaxis", "fYaxis")[:dimensions]}
    make = to_TH1x if dimensions == 1 else to_TH2x
    return make(
        fName=first.member("fName"),
        fTitle=first.member("fTitle"),
        data=values.T.ravel().astype(first.values(flow=True).dtype),
        fSumw2=variances.T.ravel(),
        **statistics,
        **axes,
    )


def append_trees(output: Any, trees: Sequence[Any], name: str) -> None:
    """Write the entries of all trees, one after the other, into one tree of the same branches."""
    import awkward

    first = trees[0]
    leaves = {branch.name: branch.count_leaf for branch in first.branches}
    counters = {branch: leaf.member("fName") for branch, leaf in leaves.items() if leaf is not None}
    # uproot writes the branches that count others by itself.
    branches = [branch for branch in leaves if branch not in counters.values()]
    for tree in trees:
        if {branch.name: branch.typename for branch in tree.branches} != {b.name: b.typename for b in first.branches}:
            raise MergeError(f"the trees {name} have different branches")
    none = first.arrays(branches, entry_stop=0)
    types = {branch: awkward.type(none[branch]).content for branch in branches}
    made = output.mktree(name, types, title=first.title, counter_name=lambda branch: counters.get(branch, f"n{branch}"))
    for tree in trees:
        for chunk in tree.iterate(branches, step_size=CHUNK):
            made.extend({branch: chunk[branch] for branch in branches})


def merge(output: str, inputs: Sequence[str]) -> None:
    """Write the merged file; raises MergeError."""
    import uproot

    files = [uproot.open(name) for name in inputs]
    with uproot.recreate(output) as merged:
        for name, kind in find_objects(files).items():
            # A name of the file alone, never a path of ROOT's: "A:B" would be a tree of another file.
            parts = [file[name] for file in files if name in file.keys(recursive=True, cycle=False)]
            if kind in DIMENSIONS:
                merged[name] = sum_histograms(parts, name)
            elif kind == "TTree":
                append_trees(merged, parts, name)


def main(words: Sequence[str]) -> int:
    """Merge; 1 with one line on stderr where it cannot be done."""
    try:
        import uproot  # noqa: F401 looked for before anything is read
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
