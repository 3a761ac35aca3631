"""Modules: how they are found, and what the core does for them."""

import re
import tomllib
from pathlib import Path

import pytest

from batch_adapters import registry
from batch_adapters.fork.events import FORK
from batch_adapters.generator.follow import DatedFiles, RotatedFile
from batch_adapters.generator.module import (
    DAY_FILES,
    FeedSettings,
    LogModule,
    LogNotKnown,
    Parser,
    ReadyLines,
    find_source,
    render_line,
)
from batch_adapters.registry import EVENT_MODULES, UnknownEventModule, find_event_module


class Remembering(Parser):
    """Gives each record the number of records that it has seen."""

    def __init__(self) -> None:
        self.seen = 0

    def read_events(self, block: bytes) -> bytes:
        events = []
        for _ in block.splitlines():
            self.seen += 1
            events.append(render_line(b"%d" % self.seen, b"a", b"2"))
        return b"".join(events)


@pytest.mark.parametrize("name", sorted(EVENT_MODULES))
def test_every_known_module_is_there(name: str) -> None:
    module = find_event_module(name)
    assert isinstance(module, LogModule) is (name != "poll")


def test_an_unknown_module_is_refused_with_the_known_ones_named() -> None:
    with pytest.raises(UnknownEventModule, match=r'no module "loadleveler": known are .*fork'):
        find_event_module("loadleveler")


def make_package(folder: Path, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    metadata = folder / "experiment-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: experiment\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text(f"[{registry.ENTRY_POINTS}]\nours = {value}\n")
    monkeypatch.syspath_prepend(folder)


def test_an_entry_point_adds_a_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_package(tmp_path, monkeypatch, "batch_adapters.fork.events:FORK")
    assert find_event_module("ours") is FORK
    with pytest.raises(UnknownEventModule, match=r"known are .*ours"):
        find_event_module("theirs")


def test_the_module_of_the_documentation_reads_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[3] / "docs" / "event-files.md").read_text()
    files = dict(re.findall(r"(?ms)^```\w+ (\S+)\n(.*?)^```$", page))
    (tmp_path / "toy_events.py").write_text(files["toy_events.py"])
    groups = tomllib.loads(files["pyproject.toml"])["project"]["entry-points"]
    make_package(tmp_path, monkeypatch, groups[registry.ENTRY_POINTS]["toy"])
    log = tmp_path / "jobs"
    log.write_bytes(b"7 12 submitted\n8 12 started\nnoise\n9 12 ended 3\n10 13 sub")
    feed = find_event_module("ours").open_feed(FeedSettings(log, 1, {}))
    assert b"".join(feed.read_events(True)) == b"001;7;12;1;0\n001;8;12;2;0\n001;9;12;8;3\n"


def test_an_entry_point_that_leads_nowhere_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_package(tmp_path, monkeypatch, "no_such_package:X")
    with pytest.raises(UnknownEventModule, match=r'"ours" \(no_such_package:X\) cannot be loaded'):
        find_event_module("ours")


@pytest.mark.parametrize("since", [None, 0])
def test_a_parser_has_seen_the_records_before_the_start(tmp_path: Path, since: int | None) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"x\n" * 7)
    module = LogModule("remembering", lambda _: log, Remembering)
    feed = module.open_feed(FeedSettings(None, since, {}))
    with log.open("ab") as file:
        file.write(b"x\n")
    assert b"".join(feed.read_events(True)) == b"001;8;a;2;0\n"


@pytest.mark.parametrize(
    ("module", "given", "expected"),
    [
        pytest.param(FORK, "folder", "folder/events", id="folder-of-a-file"),
        pytest.param(FORK, "file", "file", id="file"),
        pytest.param(FORK, "missing", "missing", id="missing-file"),
        pytest.param(DAY_FILES, "file", "file", id="one-day"),
        pytest.param(DAY_FILES, "folder", None, id="folder-of-days"),
        pytest.param(DAY_FILES, "missing", None, id="missing-folder-of-days"),
    ],
)
def test_a_path_names_a_file_or_its_folder(tmp_path: Path, module: LogModule, given: str, expected: str | None) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    source = find_source(module, tmp_path / given)
    if expected is None:
        assert isinstance(source, DatedFiles)
    else:
        assert isinstance(source, RotatedFile)
        assert next(source.newest_first()) == tmp_path / expected


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"SAMGRID_STATE": "/s", "HOME": "/h"}, "/s/fork/events"),
        ({"XDG_STATE_HOME": "/x", "HOME": "/h"}, "/x/samgrid/fork/events"),
        ({"HOME": "/h"}, "/h/.local/state/samgrid/fork/events"),
    ],
)
def test_the_fork_log_is_in_the_accounts_state_folder(environment: dict[str, str], expected: str) -> None:
    assert FORK.find_log(environment) == Path(expected)


def test_without_a_home_the_fork_log_must_be_named() -> None:
    with pytest.raises(LogNotKnown, match="--log"):
        FORK.find_log({})


def test_the_time_of_a_block_is_that_of_its_first_event() -> None:
    assert ReadyLines().read_time(b"torn;1\n001;17;a;1;0\n001;18;a;2;0\n") == 17
    assert ReadyLines().read_time(b"nothing\n") is None
