"""What is loaded of what mapped calls have left: a pickle is a program."""

import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jobmanager import UserError
from jobmanager.commands.python.mapping import CallFailed, MapHandle


@pytest.fixture
def mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MapHandle[Any]:
    """One call, which has succeeded and left nothing yet in ``tmp_path/output``."""
    (tmp_path / "output").mkdir()
    local_job = SimpleNamespace(number=1, succeeded=True, reason=None)
    monkeypatch.setattr(MapHandle, "wait", lambda self, timeout: None)
    monkeypatch.setattr(MapHandle, "outputs", lambda self, folder: {1: tmp_path / "output"})
    monkeypatch.setattr(MapHandle, "local_jobs", lambda self: [local_job])
    return MapHandle("aaaaaaaa", str(tmp_path), str(tmp_path))


def test_what_a_call_has_left_is_its_result(mapped: MapHandle[Any], tmp_path: Path) -> None:
    (tmp_path / "output" / "result.pickle").write_bytes(pickle.dumps(3))
    assert mapped.results() == [3]


@pytest.mark.parametrize("linked", ["output", "output/result.pickle"])
def test_no_result_is_loaded_through_a_link(mapped: MapHandle[Any], tmp_path: Path, linked: str) -> None:
    (tmp_path / "output" / "result.pickle").write_bytes(pickle.dumps(3))
    (tmp_path / linked).rename(tmp_path / "elsewhere")
    (tmp_path / linked).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CallFailed, match="it has left no result"):
        mapped.results()


def test_no_result_of_another_account_is_loaded(
    mapped: MapHandle[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "output" / "result.pickle").write_bytes(pickle.dumps(3))
    monkeypatch.setattr("os.geteuid", lambda: tmp_path.stat().st_uid + 1)
    with pytest.raises((CallFailed, PermissionError)):
        mapped.results()


def test_a_traceback_may_hold_anything(mapped: MapHandle[Any], tmp_path: Path) -> None:
    (tmp_path / "output" / "traceback.txt").write_bytes(b"\xff\n")
    with pytest.raises(CallFailed, match="\ufffd") as failed:
        mapped.results()
    assert isinstance(failed.value, UserError), "docs/python.md: catch that to catch them all"
