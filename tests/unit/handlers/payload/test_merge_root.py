"""ROOT files merged with uproot: nothing is lost, nothing counted twice, and what cannot be merged is named."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from handlers.payload import merge_root
from tests.extras import Later, need

uproot, awkward, numpy = map(Later, ("uproot", "awkward", "numpy"))
HISTOGRAM = Path(__file__).parents[3] / "recorded" / "root" / "histogram.root"


@pytest.fixture(autouse=True)
def _need_uproot() -> None:
    need("uproot")


def write(path: Path, objects: Mapping[str, Any]) -> str:
    """A ROOT file with these objects."""
    with uproot.recreate(path) as file:
        for name, content in objects.items():
            file[name] = content
    return str(path)


def write_events(path: Path, jets: list[list[float]], first: int = 0) -> str:
    """A ROOT file with a tree whose two branches of lists share their counter."""
    with uproot.recreate(path) as file:
        types = {"number": "int32", "pt": "var * float32", "eta": "var * float32"}
        file.mktree("all/events", types, title="Events", counter_name=lambda _: "njets")
        lists = awkward.values_astype(awkward.Array(jets), "float32")
        numbers = numpy.arange(first, first + len(jets), dtype="int32")
        file["all/events"].extend({"number": numbers, "pt": lists, "eta": -lists})
    return str(path)


def merge(tmp_path: Path, *names: str) -> Any:
    assert merge_root.main([str(tmp_path / "merged"), *names]) == 0
    return uproot.open(tmp_path / "merged")


def test_trees_are_appended_with_their_lists_and_counters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merge_root, "CHUNK", 2)
    first = write_events(tmp_path / "1", [[1], [2, 3], [], [4]])
    second = write_events(tmp_path / "2", [[5]], 4)
    merged = merge(tmp_path, first, second)["all/events"]
    assert merged.title == "Events"
    assert merged.keys() == ["number", "njets", "pt", "eta"]
    assert merged["number"].array().tolist() == [0, 1, 2, 3, 4]
    assert merged["pt"].array().tolist() == [[1], [2, 3], [], [4], [5]]
    assert merged["eta"].array().tolist() == [[-1], [-2, -3], [], [-4], [-5]]
    assert merged["njets"].array().tolist() == [1, 2, 0, 1, 1]


def test_a_tree_without_entries_stays_a_tree(tmp_path: Path) -> None:
    with uproot.recreate(tmp_path / "1") as file:
        file.mktree("t", {"x": "float64"})
    merged = merge(tmp_path, str(tmp_path / "1"), str(tmp_path / "1"))
    assert (merged["t"].num_entries, merged["t"].keys()) == (0, ["x"])


def test_two_trees_of_each_file_do_not_mix(tmp_path: Path) -> None:
    names = []
    for number in range(3):
        names.append(str(tmp_path / f"{number}"))
        with uproot.recreate(names[-1]) as file:
            for tree in ("data", "runs"):
                file.mktree(tree, {tree: "float64"})
                file[tree].extend({tree: numpy.array([float(number)] * (number + 1))})
    merged = merge(tmp_path, *names)
    assert [merged[tree][tree].array().tolist() for tree in ("data", "runs")] == [[0, 1, 1, 2, 2, 2]] * 2


def test_histograms_are_summed_with_their_errors_and_statistics(tmp_path: Path) -> None:
    values = [numpy.array([-5, 0.5, 0.6, 1.5, 9]), numpy.array([0.4, 1.1])]
    names = [write(tmp_path / str(n), {"h": numpy.histogram(v, 2, (0, 2))}) for n, v in enumerate(values)]
    merged = merge(tmp_path, *names)["h"]
    assert merged.values().tolist() == [3, 2]
    assert merged.variances().tolist() == [3, 2]
    assert merged.axis().edges().tolist() == [0, 1, 2]
    entries = [uproot.open(name)["h"].member("fEntries") for name in names]
    assert merged.member("fEntries") == sum(entries) == 5
    assert merged.classname == "TH1D"


def test_underflow_overflow_and_weights_are_summed(tmp_path: Path) -> None:
    from uproot.writing.identify import to_TAxis, to_TH1x

    axis = to_TAxis("xaxis", "GeV", 2, 0, 2)
    bins, squares = numpy.array([1.0, 2, 3, 4]), numpy.array([1.0, 4, 9, 16])
    histogram = to_TH1x("h", "Mass", bins, 10, 5, 13, 7, 11, squares, axis)
    merged = merge(tmp_path, *[write(tmp_path / name, {"h": histogram}) for name in "12"])["h"]
    assert merged.values(flow=True).tolist() == [2, 4, 6, 8]
    assert merged.variances(flow=True).tolist() == [2, 8, 18, 32]
    assert [merged.member(name) for name in merge_root.SUMS[0]] == [20, 10, 26, 14, 22]
    assert (merged.title, merged.axis().member("fTitle")) == ("Mass", "GeV")


def test_histograms_of_two_dimensions_keep_their_axes(tmp_path: Path) -> None:
    x, y = numpy.array([0.5, 0.5, 1.5]), numpy.array([10.0, 20, 30])
    content = numpy.histogram2d(x, y, bins=[2, 3], range=[[0, 2], [5, 35]])
    merged = merge(tmp_path, *[write(tmp_path / name, {"d/h": content}) for name in "123"])["d/h"]
    assert merged.values().tolist() == (3 * content[0]).tolist()
    assert merged.axis(1).edges().tolist() == [5, 15, 25, 35]


def test_an_object_of_one_file_only_is_there(tmp_path: Path) -> None:
    content = numpy.histogram([0.5], 2, (0, 2))
    merged = merge(tmp_path, write(tmp_path / "1", {"a": content}), write(tmp_path / "2:b", {"b": content}))
    assert (merged["a"].values().tolist(), merged["b"].values().tolist()) == ([1, 0], [1, 0])


def test_bins_with_labels_are_summed_only_where_the_labels_are_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cuts = write(tmp_path / "1", {"cuts": histogram_with_labels("jets", "trigger")})
    merged = merge(tmp_path, cuts, cuts)["cuts"]
    assert (merged.axis().labels(), merged.values().tolist()) == (["jets", "trigger"], [2, 4])
    other = write(tmp_path / "2", {"cuts": histogram_with_labels("trigger", "jets")})
    assert merge_root.main([str(tmp_path / "merged"), cuts, other]) == 1
    assert "the histograms cuts have different labels" in capsys.readouterr().err


def histogram_with_labels(*labels: str) -> Any:
    from uproot.writing.identify import to_TAxis, to_TH1x, to_THashList, to_TObjString

    words = [to_TObjString(label) for label in labels]
    for number, word in enumerate(words, 1):
        word.base(uproot.models.TObject.Model_TObject)[0].members["@fUniqueID"] = number
    axis = to_TAxis("xaxis", "", 2, 0, 2, fLabels=to_THashList(words))
    bins = numpy.array([0.0, 1, 2, 0])
    return to_TH1x("cuts", "Cuts", bins, 3, 3, 3, 1, 1, bins, axis)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        pytest.param(lambda: {"a": numpy.histogram([0], 3, (0, 2))}, "the histograms a have different bins", id="bins"),
        pytest.param(lambda: {"a": numpy.histogram2d([0], [0], 2)}, "a is a TH1D in one file and a TH2D", id="class"),
        pytest.param(lambda: {"b": "text"}, "b is a TObjString, which cannot be merged here: configure", id="text"),
        pytest.param(None, "merge_root.py: ", id="no ROOT file"),
    ],
)
def test_what_cannot_be_merged_is_named_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], other: Callable[[], Mapping[str, Any]] | None, message: str
) -> None:
    first = write(tmp_path / "1", {"a": numpy.histogram([0.5], 2, (0, 2))})
    if other is None:
        (tmp_path / "2").write_bytes(b"root, but no more")
    else:
        write(tmp_path / "2", other())
    assert merge_root.main([str(tmp_path / "merged"), first, str(tmp_path / "2")]) == 1
    stderr = capsys.readouterr().err
    assert message in stderr
    assert stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: data[: len(data) // 2], "was cut short: it has {half} bytes, and had {size}"),
        (lambda data: data[:-1], "was cut short: "),
        # fSeekKeys, as ROOT leaves it until the file is closed.
        (lambda data: data[:190] + bytes(4) + data[194:], "was not closed by the program that wrote it"),
    ],
    ids=["half", "one byte less", "not closed"],
)
def test_a_file_that_is_not_whole_is_named_though_nothing_seems_to_be_in_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: Callable[[bytes], bytes], message: str
) -> None:
    data = HISTOGRAM.read_bytes()
    (tmp_path / "1").write_bytes(data)
    (tmp_path / "2").write_bytes(damage(data))
    assert merge_root.main([str(tmp_path / "merged"), str(tmp_path / "1"), str(tmp_path / "2")]) == 1
    sizes = {"half": len(data) // 2, "size": len(data)}
    assert f"merge_root.py: {tmp_path}/2 {message.format(**sizes)}" in capsys.readouterr().err


def test_trees_of_different_branches_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, branch in (("1", "x"), ("2", "y")):
        with uproot.recreate(tmp_path / name) as file:
            file.mktree("t", {branch: "int32"})
            file["t"].extend({branch: numpy.array([1], "int32")})
    assert merge_root.main([str(tmp_path / "merged"), str(tmp_path / "1"), str(tmp_path / "2")]) == 1
    assert "the trees t have different branches" in capsys.readouterr().err


def write_ntuple(path: Path, entries: list[dict[str, Any]]) -> str:
    array = awkward.Array(entries)
    with uproot.recreate(path) as file:
        if not hasattr(file, "mkrntuple"):
            pytest.skip("this uproot writes no RNTuples")
        file.mkrntuple("all/events", array.layout.form, "Events").extend(array)
    return str(path)


JETS: list[dict[str, Any]] = [
    {"run": 1, "pt": [1.5, 2.0], "tag": "two", "jets": [{"mass": 3.0, "flavour": 5}]},
    {"run": 2, "pt": [4.0], "tag": "", "jets": [{"mass": 1.0, "flavour": 1}, {"mass": 2.0, "flavour": 2}]},
    {"run": 3, "pt": [0.5], "tag": "one", "jets": [{"mass": 7.0, "flavour": 4}]},
]


def test_rntuples_are_appended(tmp_path: Path) -> None:
    parts = [write_ntuple(tmp_path / str(number), JETS[:number]) for number in (1, 3)]
    merged = merge(tmp_path, *parts)["all/events"]
    assert (merged.classname, merged.description) == ("ROOT::RNTuple", "Events")
    assert merged.arrays().tolist() == [JETS[0], *JETS]


def test_rntuples_of_different_fields_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parts = [write_ntuple(tmp_path / "1", JETS), write_ntuple(tmp_path / "2", [{"run": 1.5}])]
    assert merge_root.main([str(tmp_path / "merged"), *parts]) == 1
    assert capsys.readouterr().err == "merge_root.py: the RNTuples all/events have different fields\n"


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        (
            "types",
            [("run", "Run_t")],
            "the field run is Run_t, and would become std::int64_t: configure a merge_command",
        ),
        ("entries", 7, "the RNTuple all/events has 1 entries, and its parts 7"),
    ],
)
def test_an_rntuple_that_was_not_written_as_it_was_is_named(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    value: Any,
    message: str,
) -> None:
    real = merge_root.AppendedNtuple.check

    def check(part: merge_root.AppendedNtuple, written: Any) -> None:
        setattr(part, name, value)
        real(part, written)

    monkeypatch.setattr(merge_root.AppendedNtuple, "check", check)
    assert merge_root.main([str(tmp_path / "merged"), write_ntuple(tmp_path / "1", [{"run": 1}])]) == 1
    assert message in capsys.readouterr().err


def test_an_uproot_that_writes_no_rntuples_is_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    part = write_ntuple(tmp_path / "1", JETS)
    monkeypatch.delattr(uproot.WritableDirectory, "mkrntuple")
    assert merge_root.main([str(tmp_path / "merged"), part]) == 1
    assert "all/events is an RNTuple, which this uproot cannot write: install a newer one" in capsys.readouterr().err
