"""Job types that merge: which files become one, and how the payload makes it."""

import gzip
import os
import shutil
import sys
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lxml import etree

from adapters import TooLarge
from handlers.inputs import Input, NoFiles
from handlers.merge import CdfConcatenateAdapter, DzeroMergeAdapter, FileKind, cut_groups, read_ending, read_kind
from tests.unit.handlers.event_files import render_events
from tests.unit.handlers.experiments import faults_of, local_jobs, make_handler, run_local_job

SIZES = st.lists(st.integers(0, 100))


def inputs_of(sizes: Sequence[int]) -> list[Input]:
    return [Input(Path(f"/{number}"), f"/{number}", size) for number, size in enumerate(sizes)]


@given(SIZES, st.integers(1, 120))
def test_every_input_is_in_exactly_one_group_and_in_its_place(sizes: list[int], target: int) -> None:
    inputs = inputs_of(sizes)
    assert [one for group in cut_groups(inputs, target) for one in group] == inputs


@given(SIZES, st.integers(1, 120))
def test_a_group_is_as_large_as_it_can_be_and_no_larger(sizes: list[int], target: int) -> None:
    groups = list(cut_groups(inputs_of(sizes), target))
    totals = [sum(one.size for one in group) for group in groups]
    assert all(total <= target or len(group) == 1 for total, group in zip(totals, groups, strict=True))
    firsts = [group[0].size for group in groups[1:]]
    assert all(total + first > target for total, first in zip(totals[:-1], firsts, strict=True))


@pytest.mark.parametrize(
    ("name", "ending"),
    [("a.root", ".root"), ("a.7.evt.gz", ".evt.gz"), ("a.gz", ".gz"), ("run.007", ""), ("a", ""), ("a.1.gz", ".gz")],
)
def test_a_merged_file_is_called_like_its_inputs(name: str, ending: str) -> None:
    assert read_ending(name) == ending


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of small files of each kind, and of what is no input."""
    place = tmp_path / "data"
    (place / "sub").mkdir(parents=True)
    (place / ".k3f.1.output.node.77").mkdir()
    (place / ".k3f.1.output.node.77" / "half.txt").write_text("half")
    for name, content in {
        "b.txt": b"b\n",
        "a.txt": b"a\n",
        "sub/c.txt": b"c\n",
        "sub/d.gz": gzip.compress(b"d\n"),
    }.items():
        (place / name).write_bytes(content)
    (place / ".hidden.txt").write_text("hidden")
    (place / "link.txt").symlink_to("/etc/hostname")
    return place


def names(handler: DzeroMergeAdapter | CdfConcatenateAdapter) -> list[list[str]]:
    return [[one.name for one in group] for group in handler.groups]


def test_the_inputs_are_the_files_of_a_folder_and_below_that_match(folder: Path) -> None:
    handler = make_handler(DzeroMergeAdapter, folder, input_folder=folder, input_pattern="*.txt")
    assert names(handler) == [[f"{folder}/a.txt", f"{folder}/b.txt", f"{folder}/sub/c.txt"]]


def test_a_folder_with_too_many_entries_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("handlers.inputs._MOST_ENTRIES", 6)
    handler = make_handler(DzeroMergeAdapter, folder, input_folder=folder, input_pattern="*.txt")
    refusal = f"input_folder: more than 6 files and folders are below '{folder}': name a folder further down"
    assert refusal in faults_of(handler)


@pytest.mark.parametrize("way", ["folder", "list"])
def test_the_inputs_are_the_files_of_a_dataset(folder: Path, way: str) -> None:
    if way == "list":
        (folder.parent / "set.list").write_text(f"\n# two\n{folder}/b.txt\n {folder}/a.txt\n")
    else:
        (folder.parent / "set").mkdir()
        (folder.parent / "set" / "a.txt").symlink_to(folder / "a.txt")
        (folder.parent / "set" / "b.txt").symlink_to(folder / "b.txt")
    handler = make_handler(
        DzeroMergeAdapter, folder, {"datasets": str(folder.parent)}, input_dataset="set", concatenate="yes"
    )
    assert [Path(name).name for name in names(handler)[0]] == ["a.txt", "b.txt"]
    assert not faults_of(handler)


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        pytest.param({}, "named by one of input_dataset, input_files and input_folder: none of them", id="none"),
        pytest.param(
            {"input_folder": "{folder}", "input_files": ["b.txt"]},
            "named by one of input_dataset, input_files and input_folder: not by input_files and input_folder",
            id="two ways",
        ),
        pytest.param({"input_folder": "data"}, "must be an absolute path, not 'data'", id="relative folder"),
        pytest.param({"input_folder": "/no/where"}, "there is no folder '/no/where'", id="no folder"),
        pytest.param({"input_folder": "{folder}", "input_pattern": "*.root"}, "is called '*.root'", id="no such file"),
        pytest.param({"input_folder": "{folder}"}, "a.txt' is a plain file and '{folder}/sub/d.gz' a gzip", id="mixed"),
        pytest.param({"input_files": ["a.txt", "no.txt"]}, "input file 'no.txt' was not found", id="no file"),
        pytest.param({"input_files": ["a.txt", "./a.txt"]}, "the input 'inputs/a.txt' is named twice", id="twice"),
        pytest.param({"input_files": ["../x"]}, "'..' is not allowed", id="outside"),
        pytest.param({"input_dataset": "set"}, "[type.dzero_merge] datasets names their folder", id="no datasets"),
        pytest.param({"input_files": ["a.txt"], "output_name": "a/b"}, "output_name must be letters", id="name"),
        pytest.param({"input_files": ["a\nb"]}, "'inputs/a\\nb' has a comma or a control character", id="line break"),
    ],
)
def test_a_fault_of_the_inputs_is_one_sentence(folder: Path, words: dict[str, Any], fault: str) -> None:
    if "a\nb" in words.get("input_files", ()):
        (folder / "a\nb").touch()
    filled: dict[str, Any] = {name: str(folder) if value == "{folder}" else value for name, value in words.items()}
    text = faults_of(make_handler(DzeroMergeAdapter, folder, concatenate="yes", **filled))
    assert fault.replace("{folder}", str(folder)) in text
    assert text.count("\n") == 0


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("gone", "dataset 'gone' was not found: there is neither a folder"),
        ("../data", "a dataset's name is one word without slashes"),
        ("empty", "dataset 'empty' has no files"),
        ("relative", "lists 'a.txt': a list names absolute paths"),
        ("lost", "there is no file '/no/where'"),
        ("twice", "lists '/etc/hostname' twice"),
    ],
)
def test_a_fault_of_a_dataset_names_it(folder: Path, name: str, fault: str) -> None:
    lists = {"relative": "a.txt\n", "lost": "/no/where\n", "twice": "/etc/hostname\n/etc/hostname\n"}
    for list_name, text in lists.items():
        (folder / f"{list_name}.list").write_text(text)
    (folder / "empty").mkdir()
    assert fault in faults_of(make_handler(DzeroMergeAdapter, folder, {"datasets": str(folder)}, input_dataset=name))


LHE = b"<LesHouchesEvents>\n"


@pytest.mark.parametrize(
    ("name", "content", "kind"),
    [
        pytest.param("a", LHE, FileKind.LHE, id="content"),
        pytest.param("a", b"<?xml version='1.0'?>\n<!-- made by us -->\n" + LHE, FileKind.LHE, id="behind a comment"),
        pytest.param("a.dat", gzip.compress(LHE), FileKind.LHE, id="gzip"),
        pytest.param("a.lhe", b"", FileKind.LHE, id="ending"),
        pytest.param("a.lhe.gz", b"\x1f\x8bdamaged", FileKind.LHE, id="ending of a damaged one"),
        pytest.param("a", b"<!---->" * 600, FileKind.PLAIN, id="comments only"),
        pytest.param("a", b"see <LesHouchesEvents>", FileKind.PLAIN, id="text about it"),
        pytest.param("a.gz", b"\x1f\x8bdamaged", FileKind.GZIP, id="damaged gzip"),
    ],
)
def test_a_format_is_known_by_content_or_ending(tmp_path: Path, name: str, content: bytes, kind: FileKind) -> None:
    (tmp_path / name).write_bytes(content)
    assert read_kind(tmp_path / name) is kind


@pytest.mark.parametrize("name", ["a.txt", "sub/d.gz"])
def test_files_of_an_unknown_format_are_put_together_only_where_the_request_says_so(folder: Path, name: str) -> None:
    refusal = (
        f"'inputs/{name}' is neither an LHE file nor a ROOT file, and how to merge others is not known here: "
        "(concatenate = yes) puts them one after the other"
    )
    assert faults_of(make_handler(CdfConcatenateAdapter, folder, input_files=[name])) == refusal
    assert not faults_of(make_handler(CdfConcatenateAdapter, folder, input_files=[name], concatenate="yes"))


def test_more_merged_files_than_the_site_takes_are_refused(folder: Path) -> None:
    words: dict[str, Any] = {"input_folder": folder, "input_pattern": "*.txt", "target_size": 0.000001}
    with pytest.raises(TooLarge, match="3 local jobs, but this site takes at most 2"):
        make_handler(DzeroMergeAdapter, folder, most=2, **words).getNumSubmissionTimes()


def test_inputs_that_have_changed_since_the_request_was_accepted_are_not_merged(folder: Path) -> None:
    words: dict[str, Any] = {"input_folder": folder, "input_pattern": "*.txt", "target_size": 0.000001}
    jobs = local_jobs(make_handler(DzeroMergeAdapter, folder, **words))
    (folder / "a.txt").unlink()
    later = make_handler(DzeroMergeAdapter, folder, **words)
    with pytest.raises(NoFiles, match=r"inputs have changed .* the number of local jobs was 3, and is 2 now"):
        later.getCommandAndArguments(jobs[0])


SHELLS = [[found] for name in ("dash", "bash") if (found := shutil.which(name))]


class TestPayload:
    @pytest.mark.parametrize("shell", SHELLS, ids=str)
    def test_plain_files_become_one_with_a_list_of_them(self, folder: Path, tmp_path: Path, shell: list[str]) -> None:
        handler = make_handler(CdfConcatenateAdapter, folder, input_files=["b.txt", f"{folder}/a.txt", "sub/c.txt"])
        done = run_local_job(tmp_path / "area", handler, shell=shell)
        assert (done.returncode, done.stderr) == (0, "")
        assert (tmp_path / "area/output/merged-1.txt").read_text() == "a\nb\nc\n"
        listed = f"2 {folder}/a.txt\n2 inputs/b.txt\n2 inputs/sub/c.txt\n"
        assert (tmp_path / "area/output/merged-1.txt.inputs").read_text() == listed
        assert handler.getSummary([tmp_path / "area/output"]) == {"inputs": "3 files", "merged": "1 file, 6 bytes"}

    def test_a_huge_list_is_not_taken_into_memory(self, folder: Path, tmp_path: Path) -> None:
        handler = make_handler(CdfConcatenateAdapter, folder, input_files=["b.txt"])
        with (tmp_path / "merged-1.txt.inputs").open("wb") as file:
            file.write(b"1 a\n2 b\n")
            file.truncate(1 << 27)
        tracemalloc.start()
        try:
            assert handler.getSummary([tmp_path])["inputs"] == "2 files"
            assert tracemalloc.get_traced_memory()[1] < 1 << 24
        finally:
            tracemalloc.stop()

    def test_odd_names_are_read_as_they_are(self, folder: Path, tmp_path: Path) -> None:
        odd = ["-n", " a  b ", "$HOME", "*", "é\\x", os.fsdecode(b"\xff")]
        (folder / "odd").mkdir()
        for name in odd:
            (folder / "odd" / name).write_text(f"<{name.encode(errors='replace')!r}>\n")
        handler = make_handler(DzeroMergeAdapter, folder, input_folder=folder / "odd")
        done = run_local_job(tmp_path / "area", handler)
        assert (done.returncode, done.stderr) == (0, "")
        assert (tmp_path / "area/output/merged-1").read_text().count("\n") == len(odd)

    def test_an_input_that_has_shrunk_is_named_and_nothing_is_left(self, folder: Path, tmp_path: Path) -> None:
        handler = make_handler(DzeroMergeAdapter, folder, input_folder=folder, input_pattern="*.txt")
        assert handler.groups
        (folder / "b.txt").write_text("b")
        done = run_local_job(tmp_path / "area", handler)
        assert done.returncode == 1
        assert done.stderr == f"merge.sh: the input {folder}/b.txt is damaged: it has 1 bytes, not 2\n"
        assert not list((tmp_path / "area/output").iterdir())

    def test_a_damaged_gzip_file_is_named_in_one_line(self, folder: Path, tmp_path: Path) -> None:
        (folder / "sub/e.gz").write_bytes((folder / "sub/d.gz").read_bytes()[:-1] + b"\x01")
        handler = make_handler(DzeroMergeAdapter, folder, input_folder=folder, input_pattern="*.gz")
        done = run_local_job(tmp_path / "area", handler)
        assert done.returncode == 1
        assert done.stderr.startswith(f"merge.sh: the input {folder}/sub/e.gz is damaged:")
        assert done.stderr.count("\n") == 1

    def test_the_sites_command_takes_the_place_of_the_built_in_merge(self, folder: Path, tmp_path: Path) -> None:
        script = 'out=$1; shift; echo "$# files" >"$out"; cat -- "$@" >>"$out"'
        table = {"merge_command": ["/bin/sh", "-c", script, "merge", "{output}", "{inputs}"]}
        handler = make_handler(DzeroMergeAdapter, folder, table, input_folder=folder, input_pattern="[ad].*")
        assert not faults_of(handler), "the command may know what to do with files of two kinds"
        assert run_local_job(tmp_path / "area", handler).returncode == 0
        assert (tmp_path / "area/output/merged-1.txt").read_bytes().startswith(b"2 files\na\n\x1f\x8b")

    @pytest.mark.parametrize(
        ("command", "message"), [("false", "ended with exit code 1"), ("true", "wrote no output")]
    )  # fmt: skip
    def test_a_command_that_fails_is_named(self, folder: Path, tmp_path: Path, command: str, message: str) -> None:
        table = {"merge_command": [command, "{output}", "{inputs}"]}
        done = run_local_job(
            tmp_path / "area", make_handler(DzeroMergeAdapter, folder, table, input_files=["a.txt"])
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (1, f"merge.sh: the merge command {command} {message}\n")

    def test_inputs_for_the_sites_command_are_looked_for_as_well(self, folder: Path) -> None:
        table = {"merge_command": ["hadd", "{output}", "{inputs}"]}
        assert "there is no folder '/no'" in faults_of(
            make_handler(DzeroMergeAdapter, folder, table, input_folder="/no")
        )

    def test_a_command_without_its_places_is_a_fault_of_the_configuration(self, folder: Path) -> None:
        handler = make_handler(DzeroMergeAdapter, folder, {"merge_command": ["hadd"]}, input_files=["a.txt"])
        assert faults_of(handler) == "[type.dzero_merge] merge_command must have the words {output} and {inputs}"

    def test_event_files_become_one_that_is_compressed_as_they_are(self, folder: Path, tmp_path: Path) -> None:
        for number in (1, 2):
            (folder / f"{number}.lhe.gz").write_bytes(gzip.compress(render_events([number, number])))
        handler = make_handler(CdfConcatenateAdapter, folder, input_folder=folder, input_pattern="*.lhe.gz")
        assert not faults_of(handler)
        done = run_local_job(tmp_path / "area", handler)
        assert (done.returncode, done.stderr) == (0, "")
        root = etree.fromstring(gzip.decompress((tmp_path / "area/output/merged-1.lhe.gz").read_bytes()))
        assert [(event.text or "").split()[-1] for event in root.iter("event")] == ["1", "1", "2", "2"]
        assert handler.getSummary([tmp_path / "area/output"])["inputs"] == "2 files"

    def test_what_people_are_shown_is_why_event_files_cannot_be_merged(self, folder: Path, tmp_path: Path) -> None:
        (folder / "1.lhe").write_bytes(render_events([1]))
        (folder / "2.lhe").write_bytes(render_events([2], energy=6500))
        handler = make_handler(CdfConcatenateAdapter, folder, input_folder=folder, input_pattern="*.lhe")
        done = run_local_job(tmp_path / "area", handler)
        assert done.returncode == 1
        assert done.stderr == (
            f"merge_lhe.py: {folder}/1.lhe and {folder}/2.lhe cannot be merged: their beam energies differ, "
            "980 980 and 6500 6500\n"
        )
        assert not list((tmp_path / "area/output").iterdir())

    def test_a_python_without_uproot_is_told_how_to_get_it(self, folder: Path, tmp_path: Path) -> None:
        (folder / "a.root").write_bytes(b"root, but no more")
        (tmp_path / "uproot.py").write_text("raise ImportError('not here')\n")
        handler = make_handler(DzeroMergeAdapter, folder, {"python": sys.executable}, input_files=["a.root"])
        done = run_local_job(tmp_path / "area", handler, environment={"PYTHONPATH": str(tmp_path)})
        assert done.returncode == 1
        assert "cannot import uproot (not here): pip install uproot" in done.stderr

    def test_root_files_without_uproot_are_refused_before_anything_runs(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (folder / "a.root").write_bytes(b"root, but no more")
        monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
        assert "ROOT files are merged with uproot, which is not installed" in faults_of(
            make_handler(DzeroMergeAdapter, folder, input_files=["a.root"])
        )
