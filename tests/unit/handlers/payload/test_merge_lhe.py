"""Les Houches event files: every event once, in a file that is true, or a sentence that says why not."""

import gzip
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from lxml import etree

from handlers.payload import merge_lhe
from tests.unit.handlers.event_files import ROW, render_events


def write(folder: Path, *contents: bytes) -> list[Path]:
    files = [folder / f"{number}.lhe" for number in range(1, len(contents) + 1)]
    for file, content in zip(files, contents, strict=True):
        file.write_bytes(content)
    return files


def run(folder: Path, *contents: bytes, kind: str = "plain") -> int:
    (folder / "list").write_text("".join(f"{file}\n" for file in write(folder, *contents)))
    return merge_lhe.main([kind, str(folder / "merged"), str(folder / "list")])


def merge(folder: Path, *contents: bytes) -> etree._Element:
    assert run(folder, *contents) == 0
    return etree.fromstring((folder / "merged").read_bytes())


def numbers_of(root: etree._Element) -> list[int]:
    return [int((event.text or "").split()[-1]) for event in root.iter("event")]


def test_every_event_is_there_once_and_in_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merge_lhe, "CHUNK", 7)
    root = merge(tmp_path, render_events([1, 2]), render_events([]), render_events([3]))
    assert [child.tag for child in root] == ["init", "event", "event", "event"]
    assert numbers_of(root) == [1, 2, 3]
    first = render_events([1, 2]).partition(b"</LesHouches")[0]
    assert (tmp_path / "merged").read_bytes().startswith(first), "what is the same stays as it was written"


def test_the_header_is_the_first_ones(tmp_path: Path) -> None:
    headers = [f"<header>\nseed {seed} <![CDATA[<event>]]>\n</header>\n<!-- <event> -->\n" for seed in (1, 2)]
    merge(tmp_path, *(render_events([seed], header=header) for seed, header in enumerate(headers, 1)))
    text = (tmp_path / "merged").read_text()
    assert (text.count(headers[0]), text.count("<header>")) == (1, 1)


def test_cross_sections_are_averaged_by_events(tmp_path: Path) -> None:
    rows = ["100 3 1 7\n50 1 2 8\n", "5.0d+01 1 1 8\n200 4 3 7\n"]
    root = merge(tmp_path, render_events([1, 2, 3], rows=rows[0]), render_events([4], rows=rows[1]))
    words = (root.findtext("init") or "").split()
    assert [float(word) for word in words[10:14]] == [125, pytest.approx((9**2 + 4**2) ** 0.5 / 4), 3, 7]
    assert [float(word) for word in words[14:18]] == [50, pytest.approx(10**0.5 / 4), 2, 8]


def test_groups_of_events_stay_together(tmp_path: Path) -> None:
    group = "<eventgroup>\n<event>\n# event 2\n</event>\n<event>\n# event 3\n</event>\n</eventgroup>\n"
    root = merge(tmp_path, render_events([1], behind=group), render_events([4]))
    assert [child.tag for child in root] == ["init", "event", "eventgroup", "event"]
    assert numbers_of(root) == [1, 2, 3, 4]


def test_a_gzip_file_is_read_and_written(tmp_path: Path) -> None:
    assert run(tmp_path, gzip.compress(render_events([1])), render_events([2]), kind="gzip") == 0
    assert numbers_of(etree.fromstring(gzip.decompress((tmp_path / "merged").read_bytes()))) == [1, 2]


ENTITIES = b'<!DOCTYPE a [<!ENTITY b "bbbb"><!ENTITY c "&b;&b;">]>\n'
GROUPS = '<header><initrwgt><weight id="{}"></weight></initrwgt></header>\n'


@pytest.mark.parametrize(
    ("other", "fault"),
    [
        pytest.param(render_events([], pdf=10042), "their PDF sets differ, 0 0 and 10042 10042", id="PDFs"),
        pytest.param(render_events([], rows=ROW * 2), "has two processes of one number", id="processes of one number"),
        pytest.param(render_events([], rows="1 1 1 5\n"), "their processes differ, 9999 and 5", id="processes"),
        pytest.param(
            render_events([], version="3.0"), "their versions of the format differ, 1.0 and 3.0", id="version"
        ),
        pytest.param(render_events([], header=GROUPS.format("a")), "their weights differ, none and a", id="weights"),
        pytest.param(render_events([], rows="1 1 x 5\n"), "has an <init> that is not as the format says", id="init"),
        pytest.param(render_events([], rows="nan 1 1 5\n"), "has an <init> that is not as the format says", id="NaN"),
        pytest.param(b"", "is no well-formed XML: no element found", id="empty"),
        pytest.param(render_events([1]) * 2, "junk after document element", id="concatenated before"),
        pytest.param(render_events([1])[:-30], "is no well-formed XML", id="cut off"),
        pytest.param(gzip.compress(render_events([1]))[:-9], "cannot be read to its end", id="gzip cut off"),
        pytest.param(b"\x1f\x8bdamaged", "cannot be read to its end", id="no gzip"),
        pytest.param(b"<html/>", "begins with <html>", id="other XML"),
        pytest.param(b"<LesHouchesEvents/>", "has no <init>", id="no init"),
        pytest.param(b"<LesHouchesEvents><event>1</event></LesHouchesEvents>", "has events before", id="no init first"),
        pytest.param(render_events([1], behind="<x/>"), "has a <x> behind its <init>", id="other part"),
        pytest.param(render_events([1], behind="<event/>"), "has an empty <event>", id="empty event"),
        pytest.param(
            render_events([], header="<header><event>1</event></header>"), "an <event> in a <header>", id="in"
        ),
        pytest.param(
            render_events([1]).replace(b"</init>", b'<xsecinfo neve="9"/></init>'), "would not be true", id="xsecinfo"
        ),
        pytest.param(
            b"<?xml version='1.0' encoding='utf-16'?>" + render_events([]), "is encoded in utf-16", id="UTF-16"
        ),
        pytest.param(ENTITIES + render_events([1]), "has a DOCTYPE", id="entities"),
        pytest.param(render_events([1], behind="<event>" + "<a>" * 200), "more than 100 elements", id="deep"),
    ],
)
def test_what_cannot_be_merged_is_named_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], other: bytes, fault: str
) -> None:
    assert run(tmp_path, render_events([1]), other) == 1
    stderr = capsys.readouterr().err
    assert fault in stderr
    assert str(tmp_path / "2.lhe") in stderr
    assert stderr.count("\n") == 1
    assert not (tmp_path / "merged").exists(), "what is wrong is found before anything is written"


@pytest.mark.parametrize("begin", ["<event>" + "\n" * 5000, "<!--" + "x" * 5000, "<" + "a" * 5000])
def test_an_endless_event_or_tag_takes_no_memory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, begin: str
) -> None:
    monkeypatch.setattr(merge_lhe, "MOST", 2000)
    monkeypatch.setattr(merge_lhe, "CHUNK", 100)
    assert run(tmp_path, render_events(range(100)), render_events([1], behind=begin)) == 1
    assert "more than 2000 bytes" in capsys.readouterr().err


def test_an_input_that_changes_while_it_is_copied_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = merge_lhe.average
    monkeypatch.setattr(
        merge_lhe, "average", lambda *words: (write(tmp_path, render_events([1, 2])), real(*words))[1]
    )  # fmt: skip
    assert run(tmp_path, render_events([1])) == 1
    assert "1.lhe changed while it was merged" in capsys.readouterr().err


def test_events_that_were_not_written_are_missed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merge_lhe, "write_event", lambda file, event: None)
    assert run(tmp_path, render_events([1, 2]), render_events([3])) == 1
    assert "the merged file has 0 events, and its 2 inputs have 3" in capsys.readouterr().err


def test_a_large_file_is_merged_in_little_memory(tmp_path: Path) -> None:
    padding = "x" * 1_000_000
    content = render_events([1], behind="".join(f"<event>\n{padding}\n# event 2\n</event>\n" for _ in range(25)))
    (tmp_path / "list").write_text("".join(f"{file}\n" for file in write(tmp_path, content, content)))
    words = [sys.executable, merge_lhe.__file__, "plain", str(tmp_path / "merged"), str(tmp_path / "list")]
    limit = 40_000_000  # of which an interpreter alone takes about 12

    def bound() -> None:
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))

    subprocess.run(words, check=True, preexec_fn=bound, env={**os.environ, "MALLOC_ARENA_MAX": "1"})
    assert (tmp_path / "merged").stat().st_size > 50_000_000
