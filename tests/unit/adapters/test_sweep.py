"""Sweeps: rows of parameters as they are written, files shared out, and what becomes of words with braces."""

import errno
import glob
import os
import re
from pathlib import Path
from typing import Any

import pytest

from adapters import BadSweep, RequestFile, Sweep
from adapters.sweep import read_parameters, read_sweep

ROWS = [{"mass": ("91.2",), "tag": ("Z, boson",)}, {"mass": ("80.4",), "tag": ("{mass}",)}]


@pytest.mark.parametrize(
    "text",
    [
        pytest.param('mass,tag\n91.2,"Z, boson"\n80.4,{mass}\n', id="CSV"),
        pytest.param('mass, tag\r\n\r\n91.2, "Z, boson"\r\n80.4,{mass}', id="CSV of Windows"),
        pytest.param('mass ,tag \n91.2 , "Z, boson" \n 80.4  ,{mass} ', id="CSV with spaces around commas"),
        pytest.param('{"mass": 91.2, "tag": "Z, boson"}\n\n{"tag": "{mass}", "mass": "80.4"}\n', id="JSON lines"),
    ],
)
def test_parameters_are_read_as_they_are_written(text: str) -> None:
    assert read_parameters(text) == ROWS


def test_spaces_within_quotes_and_words_stay() -> None:
    (row,) = read_parameters('a,b,c\n" x , ""y"" " ,1  2 ,5" 6 \n')
    assert row == {"a": (' x , "y" ',), "b": ("1  2",), "c": ('5" 6',)}


def test_numbers_in_json_keep_their_digits() -> None:
    (row,) = read_parameters('{"a": 1e-3, "b": 0.10, "c": 12345678901234567890123, "d": true, "e": false}')
    assert row == {"a": ("1e-3",), "b": ("0.10",), "c": ("12345678901234567890123",), "d": ("true",), "e": ("false",)}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "it is empty"),
        (" \n\n", "it is empty"),
        ('{"a": 1, "a": 2}', "line 1 has a name twice: a, a"),
        ('{"a": {"b": 1}}', "line 1: a value is a text"),
        ("a,b\n", "no rows"),
        ("a,b\n1,2\n3\n", "line 3 has too few values: 1, where the names are 2"),
        ("a,a\n1,2\n", "line 1 has a name twice: a, a"),
        ("a,1 b\n1,2\n", "line 1: '1 b' is no name of a column"),
        ("a," * 1000 + "a\n1\n", "line 1 has 1001 names, and 1000 are the most"),
        ('a\n1\n"open\n2\n\n', "line 3: a quote opens here and is never closed"),
        ('a\n"open\n2\n"3" 4\n', "line 2: ',' expected after '\"'"),
        ("a\n\0", "NUL"),
        ('{"a": 1}\n{"b": 1}', "line 2 has other names than the first: b"),
        ('{"a": 1}\n[1]', "line 2 is no JSON object"),
        ('[{"a": 1}, {"a": 2}]', "line 1 is no JSON object"),
        ('{"a": [1]}', "line 1: a value is a text, a number, true or false, but not that of a"),
        ('{"a": "\\ud800"}', "line 1: a has a character that no command line can hold"),
        ('{"a": "x\\u0000"}', "line 1: a has a character that no command line can hold"),
        ('{"a": 1}\n{"a" 1}', "line 2 is no JSON, from its character 6: Expecting ':' delimiter"),
        ("{}", "line 1: '' is no name"),
        ('{"a": ' * 100_000, "line 1 is no JSON"),
    ],
    ids=lambda text: ascii(text)[:40],
)
def test_parameters_that_cannot_be_read_are_refused_with_their_line(text: str, words: str) -> None:
    with pytest.raises(BadSweep, match=words):
        read_parameters(text)


@pytest.mark.parametrize(
    ("word", "filled"),
    [
        ("{mass}", ["80.4"]),
        ("--mass={mass}:{mass}", ["--mass=80.4:80.4"]),
        ("{tag}", ["{mass}"]),
        ("{other} {} {{mass} ${mass}", ["{other} {} {80.4 ${mass}"]),
        ("{files}", ["{files}"]),
    ],
)
def test_names_of_the_header_are_filled_in_once_and_other_braces_stay(word: str, filled: list[str]) -> None:
    assert list(Sweep(ROWS).fill_words([word], 2)) == filled


def test_the_files_of_a_local_job_are_as_many_words_or_one_with_commas() -> None:
    sweep = Sweep([{"files": ("/a", "/b")}])
    assert list(sweep.fill_words(["-i", "{files}", "in={files}"], 1)) == ["-i", "/a", "/b", "in=/a,/b"]


@pytest.mark.parametrize("text", ["a\n" + "1\n" * 5, '{"a": 1}\n' * 5], ids=["CSV", "JSON lines"])
def test_more_rows_than_any_site_takes_are_not_kept_in_memory(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adapters.sweep._MOST_ROWS", 4)
    with pytest.raises(BadSweep, match="it has more than 4 rows"):
        read_parameters(text)
    monkeypatch.setattr("adapters.sweep._MOST_ROWS", 5)
    assert len(read_parameters(text)) == 5


def ask(folder: Path, *patterns: str, parameters: str | None = None, share: int | None = None) -> Sweep | None:
    request: dict[str, Any] = {
        "parameters": RequestFile(parameters, folder / parameters) if parameters else None,
        "split_files": tuple(RequestFile(pattern, folder / pattern) for pattern in patterns),
        "files_per_local_job": share,
    }
    return read_sweep(request)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A request's folder, whose own name looks like a pattern, with five data files."""
    place = tmp_path / "[req]*"
    (place / "data" / "deep").mkdir(parents=True)
    for name in ("b.root", "a.root", "c.root", "d.txt", "deep/e.root"):
        (place / "data" / name).touch()
    return place


@pytest.mark.parametrize(
    ("patterns", "share", "groups"),
    [
        (["data/*.root"], 2, [["a.root", "b.root"], ["c.root"]]),
        (["./data//./*.root"], 2, [["a.root", "b.root"], ["c.root"]]),
        (["data/**/*.root"], 9, [["a.root", "b.root", "c.root", "deep/e.root"]]),
        (["data/d.txt", "data/*"], 3, [["d.txt", "a.root", "b.root"], ["c.root"]]),
    ],
    ids=str,
)
def test_files_are_shared_out_in_the_order_of_patterns_and_names(
    folder: Path, patterns: list[str], share: int, groups: list[list[str]]
) -> None:
    sweep = ask(folder, *patterns, share=share)
    assert sweep is not None
    assert [row["files"] for row in sweep.rows] == [[str(folder / "data" / name) for name in group] for group in groups]
    absolute = ask(Path("/"), *(str(folder.parent / "?req]?" / pattern) for pattern in patterns), share=share)
    assert absolute == sweep, "seen from anywhere"


@pytest.mark.parametrize(
    ("patterns", "parameters", "words"),
    [
        (["data/*.lhe"], None, r"split_files: no file is called 'data/\*.lhe' in "),
        (["data/deep"], None, "no file is called"),
        (["."], None, r"split_files: no file is called '\.' in "),
        (["./"], None, r"split_files: no file is called '\./' in "),
        (["data/*"], "points.csv", "do not go together"),
        ([], "points.csv", "parameters: 'points.csv' cannot be read: No such file"),
        ([], "data", "parameters: 'data' cannot be read: Is a directory"),
        ([], "pipe", "parameters: 'pipe' is no regular file"),
    ],
    ids=str,
)
def test_a_sweep_of_what_is_not_there_is_refused(
    folder: Path, patterns: list[str], parameters: str | None, words: str
) -> None:
    os.mkfifo(folder / "pipe")
    # Somebody may write later: to read it now finds less than all, or nothing.
    writer = os.open(folder / "pipe", os.O_RDWR)
    with pytest.raises(BadSweep, match=words):
        ask(folder, *patterns, parameters=parameters)
    os.close(writer)


def test_a_file_with_a_comma_in_its_name_is_refused(folder: Path) -> None:
    (folder / "data" / "x,y.root").touch()
    with pytest.raises(BadSweep, match="comma"):
        ask(folder, "data/*.root")


@pytest.mark.parametrize("pattern", ["data/*.root", "data/**/*.root", "*/*.root"])
def test_a_folder_that_cannot_be_read_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch, pattern: str) -> None:
    scan = os.scandir

    def refuse(path: str) -> Any:
        if path.endswith("/data"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return scan(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(BadSweep, match=r"split_files: '.*/data' cannot be read: Permission denied"):
        ask(folder, pattern)


@pytest.mark.parametrize("pattern", ["data/*.root", "data/f.root"])
def test_a_file_that_may_be_meant_but_cannot_be_looked_at_is_refused(folder: Path, pattern: str) -> None:
    (folder / "data" / "f.root").symlink_to("nowhere")
    with pytest.raises(BadSweep, match=r"/data/f\.root' cannot be read: No such file"):
        ask(folder, pattern)


def test_a_name_that_looks_like_a_pattern_and_matches_nothing_is_a_name(folder: Path) -> None:
    (folder / "data" / "f[1].root").touch()
    for name in ("data/f[1].root", "da[t]a/f[1].root"):
        assert ask(folder, name) == Sweep([{"files": [str(folder / "data" / "f[1].root")]}])
    (folder / "data" / "f1.root").touch()
    assert ask(folder, "data/f[1].root") == Sweep([{"files": [str(folder / "data" / "f1.root")]}])


def test_of_many_names_the_first_are_shown() -> None:
    row = {f"c{number}": ("1",) for number in range(12)}
    assert Sweep([row]).placeholders == ", ".join(f"{{c{number}}}" for number in range(10)) + ", … (2 more)"


def test_a_request_that_sweeps_nothing_has_no_sweep(folder: Path) -> None:
    assert ask(folder) is None


@pytest.mark.parametrize("pattern", ["data/*", "**/**/**/none", "data/*/x"])
def test_a_pattern_that_leads_through_too_many_files_is_refused(
    folder: Path, pattern: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("adapters.sweep._MOST_ROWS", 4)
    with pytest.raises(BadSweep, match=rf"split_files: '{re.escape(pattern)}' leads through more than 4 files"):
        ask(folder, "data/d.txt", pattern)


def test_patterns_match_what_glob_matches(folder: Path) -> None:
    (folder / "data" / ".hidden").mkdir()
    (folder / "data" / ".hidden" / "f.root").touch()
    (folder / "link").symlink_to("data")
    for pattern in (
        "**",
        "**/*.root",
        "*/**/e.root",
        "**/deep/**",
        "data/.h*/*",
        "link/[ab].root",
        "data/../link/?.txt",
    ):
        sweep = ask(folder, pattern, share=99)
        expected = glob.glob(glob.escape(str(folder)) + f"/{pattern}", recursive=True)  # noqa: PTH207
        assert sweep is not None
        assert [*sweep.rows[0]["files"]] == sorted({os.path.abspath(path) for path in expected if Path(path).is_file()})  # noqa: PTH100
