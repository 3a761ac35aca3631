"""Gathering the outputs of a grid job into one tar."""

import gzip
import hashlib
import json
import os
import socket
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from sandbox import gather
from sandbox.files import MAX_DEPTH, SandboxError, TarLimits
from sandbox.gather import End, Extra, write_bundle, write_output
from sandbox.unpack import unpack
from tests.conftest import file_size_limit

LIMITS = TarLimits(100, 10**6)
JOB = "k3f9zq2m"


@pytest.fixture
def results(room: Path) -> Path:
    folder = room / "results"
    output = folder / f"{JOB}.t-1.1.output"
    (output / "deep" / "empty").mkdir(parents=True)
    for what, text in (("stdout", "hello\n"), ("stderr", ""), ("status", "start 1\n")):
        (folder / f"{JOB}.t-1.1.{what}").write_text(text)
    (output / "events").write_text("1 2 3\n")
    (output / "tool").write_text("#!/bin/sh\n")
    (output / "tool").chmod(0o700)
    (output / "deep" / "link").symlink_to("../events")
    Path(os.fsdecode(os.fsencode(output) + b"/raw\xff\nname")).write_text("raw")
    (folder / f".{JOB}.t-1.1.output.host.77").mkdir()
    return folder


class Content(NamedTuple):
    path: str
    size: int
    sha256: str


class Missing(NamedTuple):
    local_id: str
    what: tuple[str, ...]


class Refused(NamedTuple):
    path: str
    reason: str


@dataclass(frozen=True)
class Told:
    """What was gathered, as the manifest tells it, and of which local jobs the output folder is complete."""

    files: tuple[Content, ...]
    missing: tuple[Missing, ...]
    refused: tuple[Refused, ...]
    complete: bytes


def read_told(tar: Path, complete: bytes) -> Told:
    manifest = load_manifest(tar)
    missing = tuple(Missing(item["local_id"], tuple(item["what"])) for item in manifest["missing"])
    files = tuple(Content(**item) for item in manifest["files"])
    return Told(files, missing, tuple(Refused(**item) for item in manifest["refused"]), complete)


def write(
    results: Path, ends: Sequence[End], extras: Mapping[str, Extra], tar: Path, limits: TarLimits = LIMITS
) -> Told:
    gathered = write_output(JOB, results, lambda: ends, extras, tar, limits)
    told = read_told(tar, gathered.complete)
    assert gathered.files == len(told.files)
    return told


def collect(results: Path, *expected: str, limits: TarLimits = LIMITS, name: str = "out.tar") -> Told:
    ends = [End(index, name, "succeeded", None) for index, name in enumerate(expected or ("t-1.1",), 1)]
    return write(results, ends, {}, results.parent / name, limits)


def test_the_manifest_has_the_grid_jobs_name(results: Path) -> None:
    write_output(JOB, results, list, {}, results.parent / "out.tar", LIMITS, 'tune "7"')
    assert load_manifest(results.parent / "out.tar")["name"] == 'tune "7"'


def test_people_can_read_the_manifest_line_by_line(results: Path) -> None:
    collect(results)
    with tarfile.open(results.parent / "out.tar", "r:") as archive:
        member = archive.extractfile(f"{JOB}/manifest.json")
        assert member is not None
        lines = member.read().decode().splitlines()
    assert lines[:3] == ["{", f' "grid_job": "{JOB}",', ' "local_jobs": [']
    assert lines[3:5] == ['  {"index": 1, "local_id": "t-1.1", "outcome": "succeeded", "cause": null}', " ],"]
    assert lines[5:7] == [' "files": [', f'  {{"path": "{JOB}.t-1.1.stdout", "size": 6, "sha256": "{SHA256}"}},']
    assert lines[-4:] == [" ],", ' "missing": [],', ' "refused": []', "}"]


def load_manifest(tar: Path) -> Any:
    with tarfile.open(tar, "r:") as archive:
        member = archive.extractfile(f"{JOB}/manifest.json")
        assert member is not None
        return json.load(member)


OUTPUT = f"{JOB}.t-1.1.output"
SHA256 = hashlib.sha256(b"hello\n").hexdigest()
MODES = {
    "job.xml": 0o644, f"{JOB}.t-1.1.stdout": 0o644, OUTPUT: 0o755, f"{OUTPUT}/deep/link": 0o777,
    f"{OUTPUT}/events": 0o644, f"{OUTPUT}/tool": 0o755, "manifest.json": 0o644,
}  # fmt: skip


@pytest.mark.parametrize("mode", [0o701, 0o610, 0o601], ids=oct)
def test_what_anybody_may_execute_everybody_may(results: Path, mode: int) -> None:
    (results / OUTPUT / "events").chmod(mode)
    collect(results)
    with tarfile.open(results.parent / "out.tar", "r:") as archive:
        assert archive.getmember(f"{JOB}/{OUTPUT}/events").mode == 0o755


def test_everything_of_a_local_job_is_in_the_tar_and_in_its_manifest(results: Path) -> None:
    tar = results.parent / "out.tar"
    gathered = write(results, [End(1, "t-1.1", "failed", "exit-code")], {"job.xml": b"<x/>", "a.log": b""}, tar)
    output = f"{JOB}.t-1.1.output"
    with tarfile.open(tar, "r:") as archive:
        texts = [f"{JOB}.t-1.1.{what}" for what in ("stdout", "stderr", "status")]
        left = ("deep", "deep/empty", "deep/link", "events", "raw\udcff\nname", "tool")
        names = [JOB, "a.log", "job.xml", *texts, output, *(f"{output}/{name}" for name in left), "manifest.json"]
        assert [name.removeprefix(f"{JOB}/") for name in archive.getnames()] == names
        assert {(member.uid, member.gid, member.mtime) for member in archive} == {(0, 0, 0)}
        assert {name: archive.getmember(f"{JOB}/{name}").mode for name in MODES} == MODES
    assert Content(f"{output}/events", 6, hashlib.sha256(b"1 2 3\n").hexdigest()) in gathered.files
    assert Content("job.xml", 4, hashlib.sha256(b"<x/>").hexdigest()) in gathered.files
    with tarfile.open(tar, "r:") as archive:
        names = [member.name.removeprefix(f"{JOB}/") for member in archive if member.isfile()]
    assert [content.path for content in gathered.files] == names[:-1]
    assert (gathered.missing, gathered.refused, gathered.complete) == ((), (), b"\1")
    manifest = load_manifest(tar)
    assert manifest["grid_job"] == JOB
    assert manifest["local_jobs"] == [{"index": 1, "local_id": "t-1.1", "outcome": "failed", "cause": "exit-code"}]
    assert tar.stat().st_mode & 0o777 == 0o600


def test_the_same_results_give_the_same_bytes(results: Path) -> None:
    first = collect(results, "t-1.1", "t-1.2")
    os.utime(results / f"{JOB}.t-1.1.stdout", (1, 1))
    assert collect(results, "t-1.1", "t-1.2", name="again.tar") == first
    assert (results.parent / "out.tar").read_bytes() == (results.parent / "again.tar").read_bytes()


def test_a_file_of_the_job_managers_own_may_be_an_open_one(results: Path) -> None:
    tars = results.parent / "bytes.tar", results.parent / "file.tar"
    (results.parent / "job.xml").write_bytes(b"<x/>")
    gathered = write(results, [], {"job.xml": b"<x/>"}, tars[0])
    with open(results.parent / "job.xml", "rb") as file:
        assert write(results, [], {"job.xml": file}, tars[1]) == gathered
    assert tars[0].read_bytes() == tars[1].read_bytes()


def test_what_waits_for_its_place_in_the_tar_waits_on_the_same_disk(
    results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(results.parent / "no" / "such"))
    assert collect(results).refused == ()


def test_what_was_gathered_can_be_unpacked(results: Path) -> None:
    collect(results)
    unpack(results.parent / "out.tar", results.parent / "place", LIMITS)
    output = results.parent / "place" / JOB / f"{JOB}.t-1.1.output"
    assert (output / "deep" / "link").read_text() == "1 2 3\n"
    assert os.access(output / "tool", os.X_OK)


def test_what_is_missing_is_listed(results: Path) -> None:
    (results / f"{JOB}.t-1.1.stderr").unlink()
    gathered = collect(results, "t-1.1", "t/9")
    assert gathered.missing == (Missing("t-1.1", ("stderr",)), Missing("t/9", ("stdout", "stderr", "status")))
    assert load_manifest(results.parent / "out.tar")["missing"][0] == {"local_id": "t-1.1", "what": ["stderr"]}


def test_what_the_driver_could_not_bring_back_is_missing(results: Path) -> None:
    ends = [
        End(1, "t-1.1", "failed", "outputs-missing", ("output/a: Permission denied",)),
        End(2, "t-1.2", "failed", None),
        End(3, "t-1.1", "failed", None, has_files=False),
    ]
    tar = results.parent / "out.tar"
    assert write(results, ends, {}, tar).missing == (
        Missing("t-1.1", ("output/a: Permission denied",)),
        Missing("t-1.2", ("stdout", "stderr", "status")),
        Missing("t-1.1", ("stdout", "stderr", "status")),
    )


def test_whole_is_an_output_folder_of_which_nothing_was_left_behind(results: Path) -> None:
    (results / f"{JOB}.t-1.2.output").mkdir()
    (results / f"{JOB}.t-1.3.output").mkdir()
    os.mkfifo(results / f"{JOB}.t-1.3.output" / "pipe")
    os.mkfifo(results / f"{JOB}.t-1.2.stdout")
    ends = [End(number, name, "failed", None) for number, name in enumerate(("t-1.3", None, "t-1.2", "t-1.1", "t-1.4"))]
    assert write(results, ends, {}, results.parent / "out.tar").complete == bytes([0, 0, 1, 1, 0])


def test_a_local_id_with_a_slash_is_found_where_the_driver_put_it(results: Path) -> None:
    (results / f"{JOB}.a_b.stdout").write_text("x")
    assert collect(results, "a/b").missing == (Missing("a/b", ("stderr", "status")),)


def test_what_cannot_be_looked_at_is_listed_and_not_missing(results: Path) -> None:
    local_id = "n" * 300
    gathered = collect(results, local_id)
    names = [f"{JOB}.{local_id}.{what}" for what in ("stdout", "stderr", "status", "output")]
    assert gathered.refused == tuple(Refused(name, "File name too long") for name in names)
    assert gathered.missing == ()


def test_where_the_folder_of_results_is_none_all_is_missing(results: Path) -> None:
    results.rename(results.parent / "elsewhere")
    results.symlink_to("elsewhere")
    told = write(results, [End(1, "t-1.1", "failed", None), End(2, None, "failed", None)], {}, results.parent / "a.tar")
    assert told.missing == (Missing("t-1.1", ("stdout", "stderr", "status")),)
    assert (told.files, told.refused, told.complete) == ((), (Refused("results", gather.NO_FOLDER),), bytes(2))


def test_where_a_folder_does_not_say_what_is_in_it_each_entry_is_looked_at(
    results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.scandir

    def refuse(follow_symlinks: bool) -> bool:
        raise PermissionError(13, "Permission denied")

    @contextmanager
    def scandir(folder: int) -> Iterator[Iterator[SimpleNamespace]]:
        with real(folder) as entries:
            yield (SimpleNamespace(name=entry.name, is_file=refuse) for entry in entries)

    as_told = collect(results)
    monkeypatch.setattr(os, "scandir", scandir)
    assert collect(results) == as_told


# --- one tar of what the tars of steps hold


def bundle(room: Path, limits: TarLimits = LIMITS, **parts: Path) -> Told:
    gathered = write_bundle(JOB, parts, {"job.xml": b"<x/>"}, room / "out.tar", limits, "all of it")
    return read_told(room / "out.tar", gathered.complete)


def write_part(room: Path, name: str, text: str = "made") -> Path:
    """The tar of a step with one local job, which left a program, a link to it and a folder."""
    output = room / name / f"{name}.1.output"
    (output / "deep").mkdir(parents=True)
    (output / "prögram").write_text(text)
    (output / "prögram").chmod(0o755)
    (output / "deep" / "link").symlink_to("../prögram")
    end = End(1, "1", "succeeded", None)
    write_output(name, room / name, lambda: [end], {}, room / f"{name}.tar", LIMITS)
    return room / f"{name}.tar"


def test_what_each_part_holds_lies_in_a_folder_of_its_name(room: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make, again = write_part(room, "k1"), write_part(room, "k2", "read")
    with monkeypatch.context() as other_locale:
        other_locale.setattr(tarfile.TarFile, "encoding", "latin-1")
        gathered = bundle(room, make=make, again=again)
    names = ["", "/k{}.1.output", "/k{}.1.output/deep", "/k{}.1.output/deep/link", "/k{}.1.output/prögram"]
    held = [f"/{part}{name.format(number)}" for part, number in (("again", 2), ("make", 1)) for name in names]
    held[5:5] = ["/again/manifest.json"]
    with tarfile.open(room / "out.tar", "r:") as archive:
        expected = ["", "/job.xml", *held, "/make/manifest.json", "/manifest.json"]
        assert archive.getnames() == [JOB + name for name in expected]
        assert archive.getmember(f"{JOB}/make/manifest.json").mode == 0o644
    unpack(room / "out.tar", room / "out", LIMITS)
    top = room / "out" / JOB
    assert (top / "make/k1.1.output/deep/link").read_text() == "made"
    assert os.access(top / "make/k1.1.output/prögram", os.X_OK)
    (program,) = (content for content in gathered.files if content.path == "again/k2.1.output/prögram")
    assert (program.size, program.sha256) == (4, hashlib.sha256(b"read").hexdigest())
    assert (gathered.missing, gathered.refused, gathered.complete) == ((), (), b"")
    assert load_manifest(room / "out.tar")["name"] == "all of it"


def test_a_part_that_is_not_there_or_is_a_link_is_listed(room: Path) -> None:
    (room / "k2.tar").symlink_to(write_part(room, "k3"))
    gathered = bundle(room, make=room / "k1.tar", again=room / "k2.tar")
    assert gathered.refused == (
        Refused("again/k2.tar", "Too many levels of symbolic links"),
        Refused("make/k1.tar", "No such file or directory"),
    )


def test_a_part_that_is_damaged_or_cut_short_is_listed_and_what_is_sound_is_taken(room: Path) -> None:
    parts = [write_part(room, f"k{number}") for number in range(3)]
    parts[0].write_text("no tar")
    content = bytearray(parts[1].read_bytes())
    at = content.index(b"k1/manifest.json")
    content[at] ^= 1
    parts[1].write_bytes(content)
    os.truncate(parts[2], parts[2].read_bytes().index(b"made") + 2)
    gathered = bundle(room, one=parts[0], two=parts[1], zoo=parts[2])
    assert [(refused.path, refused.reason.partition(":")[0]) for refused in gathered.refused] == [
        ("one/k0.tar", "is no sound tar file"),
        ("two/k1.tar", f"is damaged or cut short at byte {at}"),
        ("zoo/k2.1.output/prögram", "shrank while it was read"),
        ("zoo/k2.tar", "is no sound tar file"),
    ]
    with tarfile.open(room / "out.tar", "r:") as archive:
        assert f"{JOB}/two/k1.1.output/prögram" in archive.getnames()
        assert archive.getnames()[-1] == f"{JOB}/manifest.json"


def test_a_part_that_is_compressed_is_no_tar(room: Path) -> None:
    tar = write_part(room, "k1")
    tar.write_bytes(gzip.compress(tar.read_bytes()))
    (refused,) = bundle(room, make=tar).refused
    assert refused.reason.startswith("is no sound tar file")


def test_parts_pass_no_limit_of_the_whole(room: Path) -> None:
    tar = write_part(room, "k1")
    assert bundle(room, TarLimits(3, 10**6), make=tar).refused == (
        Refused("make/k1.tar", "its entries would pass the limit max_files = 3"),
    )
    refused = bundle(room, TarLimits(100, 3), make=tar).refused
    assert refused[0] == Refused("make/k1.1.output/prögram", "its 4 bytes would pass the limit max_bytes = 3")


def test_a_part_as_deep_as_can_be_leaves_a_tar_that_can_be_unpacked(room: Path) -> None:
    deepest = room / "k1" / "k1.1.output" / Path(*["d"] * (MAX_DEPTH - 3))
    deepest.mkdir(parents=True)
    (deepest / "file").touch()
    write_output("k1", room / "k1", lambda: [End(1, "1", "succeeded", None)], {}, room / "k1.tar", LIMITS)
    assert all("folders deep" in refused.reason for refused in bundle(room, make=room / "k1.tar").refused)
    with tarfile.open(room / "out.tar", "r:") as archive:
        assert max(name.count("/") + 1 for name in archive.getnames()) == MAX_DEPTH
    unpack(room / "out.tar", room / "out", LIMITS)


# --- what programs may leave


def put_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as bound:
        here = os.open(".", os.O_RDONLY)
        os.chdir(path.parent)
        bound.bind(path.name)
        os.fchdir(here)
        os.close(here)


def put_sparse_file(path: Path, size: int = 10**12) -> None:
    path.touch()
    os.truncate(path, size)


HOSTILE: dict[str, tuple[Callable[[Path], object], str]] = {
    "absolute link": (lambda path: path.symlink_to("/etc/passwd"), "a link that leads out of its output folder"),
    "link upwards": (lambda path: path.symlink_to("../x"), "a link that leads out of its output folder"),
    "link through a link": (lambda path: path.symlink_to("deep/../../x"), "a link that leads out of its output folder"),
    "named pipe": (os.mkfifo, "a named pipe"),
    "socket": (put_socket, "a socket"),
    "too large": (lambda path: path.write_bytes(bytes(10**6)), "its 1000000 bytes would pass the limit max_bytes"),
    "sparse": (put_sparse_file, "its 1000000000000 bytes would pass the limit max_bytes"),
}


@pytest.mark.parametrize(("make", "reason"), HOSTILE.values(), ids=HOSTILE.keys())
def test_what_cannot_be_taken_is_listed_and_the_rest_is_taken(
    results: Path, make: Callable[[Path], object], reason: str
) -> None:
    path = f"{JOB}.t-1.1.output/culprit"
    make(results / path)
    gathered = collect(results)
    (refused,) = gathered.refused
    assert refused.path == path
    assert reason in refused.reason
    assert load_manifest(results.parent / "out.tar")["refused"] == [refused._asdict()]
    assert f"{JOB}.t-1.1.output/tool" in {content.path for content in gathered.files}


def test_holes_are_taken_only_as_far_as_they_are_small(results: Path) -> None:
    for name, size in (("a", 2 << 20), ("b", 90 << 30), ("c", 3 << 20)):
        put_sparse_file(results / OUTPUT / name, size)
    with open(results / OUTPUT / "a", "r+b") as file:
        file.seek(1 << 20)
        file.write(b"data")
    gathered = collect(results, limits=TarLimits(100, 100_000_000_000))
    (refused,) = (one for one in gathered.refused if one.path.endswith("/b"))
    most = "at most 1073741824 bytes of holes are written into a tar, as zeros"
    assert refused == Refused(f"{OUTPUT}/b", f"a sparse file, 96636764160 bytes long: {most}")
    with tarfile.open(results.parent / "out.tar", "r:") as archive:
        member = archive.extractfile(f"{JOB}/{OUTPUT}/a")
        assert member is not None
        assert member.read() == bytes(1 << 20) + b"data" + bytes((1 << 20) - 4)
    assert (results.parent / "out.tar").stat().st_size < 10 << 20


BLOCK = 4096


@pytest.mark.parametrize(
    ("layout", "holes"),
    [
        pytest.param(".#..#.", 4, id="before, between and behind"),
        pytest.param("#.", 1, id="behind"),
        pytest.param(".#.", 2, id="before and behind"),
        pytest.param("#" * 512 + ".", 1, id="a small part"),
    ],
)
def test_all_holes_of_a_file_count(results: Path, monkeypatch: pytest.MonkeyPatch, layout: str, holes: int) -> None:
    put_sparse_file(results / OUTPUT / "a", BLOCK * len(layout))
    with open(results / OUTPUT / "a", "r+b") as file:
        for number, kind in enumerate(layout):
            file.seek(number * BLOCK)
            file.write(b"x" * BLOCK if kind == "#" else b"")
    monkeypatch.setattr(gather, "MOST_HOLES", holes * BLOCK)
    assert collect(results, limits=TarLimits(100, 10**7)).refused == ()
    for fewer in (1, BLOCK):
        monkeypatch.setattr(gather, "MOST_HOLES", holes * BLOCK - fewer)
        assert [refused.path for refused in collect(results, limits=TarLimits(100, 10**7)).refused] == [f"{OUTPUT}/a"]


def test_the_holes_of_all_files_count_together(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b"):
        put_sparse_file(results / OUTPUT / name, BLOCK)
    monkeypatch.setattr(gather, "MOST_HOLES", 2 * BLOCK - 1)
    assert [refused.path for refused in collect(results).refused] == [f"{OUTPUT}/b"]


def test_room_that_was_taken_is_no_hole(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open(results / OUTPUT / "reserved", "wb") as file:
        os.posix_fallocate(file.fileno(), 0, BLOCK)
    monkeypatch.setattr(gather, "MOST_HOLES", 0)
    assert collect(results).refused == ()


def test_where_nobody_can_tell_holes_there_are_none(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.lseek

    def seek(descriptor: int, position: int, whence: int) -> int:
        if whence == os.SEEK_DATA:
            raise OSError(22, "Invalid argument")
        return real(descriptor, position, whence)

    put_sparse_file(results / OUTPUT / "a", BLOCK)
    monkeypatch.setattr(os, "lseek", seek)
    monkeypatch.setattr(gather, "MOST_HOLES", 0)
    assert collect(results).refused == ()


class _Disk:
    f_frsize = 2

    def __init__(self, free: int) -> None:
        self.f_bavail = free // 2


def test_room_is_asked_for_before_anything_is_written(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (results / OUTPUT / "large").write_bytes(b"x" * 900_000)
    tar = results.parent / "out.tar"
    monkeypatch.setattr(os, "statvfs", lambda path: _Disk((1 << 20) + 900_000))
    with (
        file_size_limit(0),
        pytest.raises(SandboxError, match=r"need 9\d{5} bytes of room on the disk of .*room, where 19"),
    ):
        collect(results)
    assert not list(results.parent.glob("out.tar*"))
    monkeypatch.setattr(os, "statvfs", lambda path: _Disk((1 << 20) + 920_000))
    put_sparse_file(results / OUTPUT / "sparse")
    assert f"{OUTPUT}/large" in {content.path for content in collect(results).files}
    assert tar.exists()


def test_each_entry_needs_room_for_its_header_and_for_what_it_has_on_the_disk(
    results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = {OUTPUT: 4096, "empty": 4096, "link": 9, "events": 10_000, "tool": 3_000}
    real = os.lstat

    def lstat(path: str) -> SimpleNamespace | os.stat_result:
        name = Path(path).name
        if name == "deep":
            raise PermissionError(13, "Permission denied")
        if name == "out.tar.tmp":
            return real(path)
        return SimpleNamespace(st_mode=real(path).st_mode, st_size=sizes.get(name, 0), st_blocks=8)

    (results / OUTPUT / "more" / "empty").mkdir(parents=True)
    (results / OUTPUT / "more" / "link").symlink_to("nowhere")
    monkeypatch.setattr(os, "lstat", lstat)
    # Three texts, the output folder with events, tool, a raw name and more, and in that empty and link.
    needed = 10 * 1024 + 8 * 512 + 3_000
    monkeypatch.setattr(os, "statvfs", lambda path: _Disk((1 << 20) + needed - 2))
    with pytest.raises(SandboxError, match=f"the outputs need {needed} bytes of room"):
        collect(results)
    monkeypatch.setattr(os, "statvfs", lambda path: _Disk((1 << 20) + needed))
    assert collect(results).refused == ()


def test_where_all_that_may_be_would_fit_nothing_is_measured(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gather, "_measure_entry", None)
    monkeypatch.setattr(os, "statvfs", lambda path: _Disk((1 << 20) + LIMITS.max_bytes))
    assert collect(results).refused == ()


def test_room_for_the_tars_of_steps_is_asked_for(room: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (room / "k1.tar").write_bytes(b"x" * 900_000)
    monkeypatch.setattr(os, "statvfs", lambda path: _Disk(1 << 20))
    with pytest.raises(SandboxError, match=r"free: they stay where they are until there is room$"):
        bundle(room, make=room / "k1.tar")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes devices")
def test_a_device_is_refused(results: Path) -> None:
    try:
        os.mknod(results / f"{JOB}.t-1.1.output" / "null", 0o600 | 0o020000, os.makedev(1, 3))
    except PermissionError:
        pytest.skip("this container makes no devices")
    assert collect(results).refused[0].reason == "a device"


@pytest.mark.parametrize("what", ["stdout", "status", "output"])
def test_a_link_in_place_of_what_the_driver_writes_is_refused(results: Path, what: str) -> None:
    path = results / f"{JOB}.t-1.1.{what}"
    path.rename(results / "elsewhere")
    path.symlink_to("elsewhere")
    gathered = collect(results)
    assert gathered.refused == (Refused(path.name, "a link that leads out of its output folder"),)
    assert gathered.missing == ()


def test_a_folder_with_too_many_entries_is_left_out_whole(results: Path) -> None:
    output = results / f"{JOB}.t-1.1.output"
    for number in range(20):
        (output / "deep" / f"{number}").touch()
    gathered = collect(results, limits=TarLimits(10, 10**6))
    assert gathered.refused == (Refused(f"{output.name}/deep", "its entries would pass the limit max_files = 10"),)
    assert f"{output.name}/tool" in {content.path for content in gathered.files}


def test_no_more_names_are_read_than_show_that_there_are_too_many(
    results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.scandir

    @contextmanager
    def scandir(folder: int) -> Iterator[Iterator[os.DirEntry[str]]]:
        with real(folder) as entries:
            yield (entry for number, entry in enumerate(entries) if number < 2 or pytest.fail("read on"))

    monkeypatch.setattr(os, "scandir", scandir)
    (refused,) = collect(results, limits=TarLimits(1, 10**6)).refused
    assert refused == Refused(OUTPUT, "its entries would pass the limit max_files = 1")


def test_as_many_entries_and_bytes_are_taken_as_may_be(results: Path) -> None:
    own = [results / f"{JOB}.t-1.1.{what}" for what in ("stdout", "stderr", "status")]
    files = [*own, *(path for path in results.rglob("*.output/**/*") if path.is_file() and not path.is_symlink())]
    size = sum(path.stat().st_size for path in files)
    assert collect(results, limits=TarLimits(6, size)).refused == ()
    assert [refused.reason for refused in collect(results, limits=TarLimits(6, size - 1)).refused] == [
        f"its 10 bytes would pass the limit max_bytes = {size - 1}"
    ]


def test_entries_of_all_folders_count_together(results: Path) -> None:
    (refused,) = collect(results, limits=TarLimits(5, 10**6)).refused
    assert refused == Refused(f"{JOB}.t-1.1.output/deep", "its entries would pass the limit max_files = 5")


def test_a_bottomless_folder_is_cut_and_what_is_taken_can_be_unpacked(results: Path) -> None:
    path = results / f"{JOB}.t-1.1.output"
    for _ in range(100):
        path = path / "d"
        path.mkdir()
        (path / "f").touch()
    (refused,) = collect(results, limits=TarLimits(1000, 10**6)).refused
    assert refused == Refused(f"{JOB}.t-1.1.output" + "/d" * 62, "more than 64 folders deep")
    with tarfile.open(results.parent / "out.tar", "r:") as archive:
        assert max(name.count("/") + 1 for name in archive.getnames()) == 64
    unpack(results.parent / "out.tar", results.parent / "place", TarLimits(1000, 10**6))


def test_a_link_that_is_none_any_more_at_the_last_moment_is_listed(
    results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = results / f"{JOB}.t-1.1.output" / "deep" / "link"
    real = os.readlink

    def swapping(path: Any, *, dir_fd: int | None = None) -> Any:
        link.unlink()
        link.touch()
        return real(path, dir_fd=dir_fd)

    monkeypatch.setattr(os, "readlink", swapping)
    assert collect(results).refused == (Refused(f"{JOB}.t-1.1.output/deep/link", "Invalid argument"),)


def swap_when_opened(monkeypatch: pytest.MonkeyPatch, name: str, swap: Callable[[], object]) -> None:
    """Do something to a file between its being looked at and its being opened."""
    real = os.open

    def swapping(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if path == name:
            swap()
        return real(path, flags, mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", swapping)


@pytest.mark.parametrize(
    ("name", "put", "reason"),
    [
        ("events", lambda place: place.symlink_to("/etc/passwd"), "Too many levels of symbolic links"),
        ("events", os.mkfifo, "changed its kind while it was read"),
        ("deep", Path.touch, "Not a directory"),
        ("deep", lambda place: place.symlink_to("/etc"), "Not a directory"),
    ],
    ids=["a link to a file", "a named pipe", "a file", "a link to a folder"],
)
def test_what_is_put_in_an_entrys_place_at_the_last_moment_is_listed_and_not_followed(
    results: Path, monkeypatch: pytest.MonkeyPatch, name: str, put: Callable[[Path], object], reason: str
) -> None:
    victim = results / OUTPUT / name

    def swap() -> None:
        victim.rename(results / "moved")
        put(victim)

    swap_when_opened(monkeypatch, name, swap)
    assert collect(results).refused == (Refused(f"{OUTPUT}/{name}", reason),)
    assert b"root:" not in (results.parent / "out.tar").read_bytes()


@pytest.mark.parametrize(("size", "listed"), [(3, True), (2_000_000, False)], ids=["shrinking", "growing"])
def test_a_file_that_changes_while_it_is_read_does_not_break_the_tar(
    results: Path, monkeypatch: pytest.MonkeyPatch, size: int, listed: bool
) -> None:
    victim = results / f"{JOB}.t-1.1.output" / "events"
    victim.write_bytes(b"e" * 200_000)
    real = os.fstat

    def changing(descriptor: int) -> os.stat_result:
        status = real(descriptor)
        if status.st_size == 200_000:
            os.truncate(victim, size)
        return status

    monkeypatch.setattr(os, "fstat", changing)
    gathered = collect(results)
    path = f"{JOB}.t-1.1.output/events"
    assert [(refused.path, refused.reason) for refused in gathered.refused] == (
        [(path, "shrank while it was read: the rest is zeros")] if listed else []
    )
    with tarfile.open(results.parent / "out.tar", "r:") as archive:
        assert archive.getnames()[-1] == f"{JOB}/manifest.json"
        member = archive.extractfile(f"{JOB}/{path}")
        assert member is not None
        data = member.read()
    assert data == (b"e" * min(size, 200_000)).ljust(200_000, b"\0")
    assert hashlib.sha256(data).hexdigest() in {content.sha256 for content in gathered.files}


def test_a_disk_that_gives_little_at_a_time_gives_it_all(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = os.urandom(50_000)
    (results / OUTPUT / "events").write_bytes(content)
    real = os.read
    monkeypatch.setattr(os, "read", lambda descriptor, size: real(descriptor, min(size, 1000)))
    assert Content(f"{OUTPUT}/events", 50_000, hashlib.sha256(content).hexdigest()) in collect(results).files


def test_a_read_error_is_listed(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(descriptor: int, size: int) -> bytes:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "read", fail)
    assert "Input/output error" in collect(results).refused[0].reason


def test_a_full_disk_is_one_clear_error_and_leaves_nothing_half_made(results: Path) -> None:
    (results / f"{JOB}.t-1.1.output" / "big").write_bytes(os.urandom(300_000))
    with file_size_limit(150_000), pytest.raises(SandboxError, match=r"out\.tar could not be written: .*too large"):
        collect(results)
    assert [path.name for path in results.parent.iterdir()] == ["results"]
    assert collect(results).refused == ()


def test_what_a_killed_writer_left_is_written_over(results: Path) -> None:
    (results.parent / "out.tar.tmp").write_bytes(bytes(10**6))
    collect(results)
    assert (results.parent / "out.tar").stat().st_size < 100_000
    assert not (results.parent / "out.tar.tmp").exists()


def test_missing_results_are_an_error(room: Path) -> None:
    with pytest.raises(SandboxError, match=r"could not be written.*results"):
        collect(room / "results")


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/a", "manifest.json"])
def test_an_extra_has_a_plain_name(results: Path, name: str) -> None:
    with pytest.raises(SandboxError, match="plain name"):
        write(results, [], {name: b""}, results.parent / "out.tar")
