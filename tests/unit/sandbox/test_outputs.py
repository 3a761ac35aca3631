"""The outputs of one step become the inputs of the next: all of them, or none."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from sandbox.gather import write_output
from sandbox.limits import Limits, SandboxError
from sandbox.outputs import lay_out

LIMITS = Limits(100, 10**6)
JOB = "k3f9zq2m"
FOLDERS = {f"{JOB}/{JOB}.{index}.output": f"{index}" for index in (1, 2)}


@pytest.fixture
def tar(room: Path) -> Path:
    """What two local jobs brought back, of which the second left no output."""
    results = room / "results"
    output = results / f"{JOB}.1.output"
    (output / "deep").mkdir(parents=True)
    (output / "events").write_text("1 2 3\n")
    (output / "deep" / "more").write_text("4\n")
    (output / "link").symlink_to("nowhere")
    write_output(JOB, results, ["1", "2"], {}, room / "out.tar", LIMITS)
    return room / "out.tar"


def names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_the_outputs_lie_under_their_new_names_and_what_is_not_there_is_left_out(tar: Path, room: Path) -> None:
    place = room / "not" / "yet" / "inputs"
    lay_out(tar, FOLDERS, place, LIMITS)
    assert names(place) == ["1", "1/deep", "1/deep/more", "1/events", "1/link"]
    assert (place / "1" / "events").read_text() == "1 2 3\n"
    assert place.stat().st_mode & 0o777 == 0o700
    assert names(place.parent) == ["inputs", *(f"inputs/{name}" for name in names(place))], "nothing else stays"


def test_what_was_laid_out_stays_as_it_is(tar: Path, room: Path) -> None:
    lay_out(tar, FOLDERS, room / "inputs", LIMITS)
    tar.unlink()
    lay_out(tar, FOLDERS, room / "inputs", LIMITS)
    assert "1/events" in names(room / "inputs")


def test_what_a_kill_left_is_done_anew(tar: Path, room: Path) -> None:
    for word in ("unpacked", "chosen"):
        (room / f".inputs.{word}" / "1").mkdir(parents=True)
        (room / f".inputs.{word}" / "1" / "half").touch()
    lay_out(tar, FOLDERS, room / "inputs", LIMITS)
    assert names(room / "inputs") == ["1", "1/deep", "1/deep/more", "1/events", "1/link"]
    assert list(room.glob(".inputs*")) == []


def test_a_tar_that_is_not_sound_gives_nothing(room: Path) -> None:
    (room / "out.tar").write_text("nonsense")
    with pytest.raises(SandboxError, match="no sound tar file"):
        lay_out(room / "out.tar", FOLDERS, room / "inputs", LIMITS)
    assert not (room / "inputs").exists()


def test_a_folder_that_cannot_be_made_is_an_error(tar: Path, room: Path) -> None:
    (room / "file").touch()
    with pytest.raises(SandboxError, match=r"file/inputs could not be made: .*Not a directory"):
        lay_out(tar, FOLDERS, room / "file" / "inputs", LIMITS)


def test_all_of_it_is_on_the_disk_before_it_gets_its_name(
    tar: Path, room: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: dict[int, str] = {}
    real: Callable[[int], None] = os.fsync

    def fsync(descriptor: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))  # noqa: PTH115 of a number
        synced[path.stat().st_ino] = path.parts[-1]
        assert not (room / "inputs").exists()
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 no path
    lay_out(tar, FOLDERS, room / "inputs", LIMITS)
    laid_out = [room / "inputs", *(path for path in (room / "inputs").rglob("*") if not path.is_symlink())]
    assert {path.stat().st_ino for path in laid_out} <= synced.keys()
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208 no path
