"""Unpacking tars that nobody vouches for."""

import contextlib
import gzip
import io
import json
import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sandbox.files import SandboxError, TarLimits
from sandbox.gather import End, write_output
from sandbox.unpack import _Unpacking, lay_out, read_manifest, unpack
from tests.conftest import file_size_limit
from tests.descriptors import open_descriptors
from tests.unit.traps import TRAPS

LIMITS = TarLimits(20, 10_000)
Member = tuple[tarfile.TarInfo, bytes]


def file(name: str, content: bytes = b"x", mode: int = 0o644) -> Member:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    member.mode = mode
    return member, content


def entry(name: str, kind: bytes, target: str = "", size: int = 0) -> Member:
    member = tarfile.TarInfo(name)
    member.type = kind
    member.linkname = target
    member.size = size
    return member, b""


def folder(name: str) -> Member:
    return entry(name, tarfile.DIRTYPE)


def link(name: str, target: str) -> Member:
    return entry(name, tarfile.SYMTYPE, target)


def hard_link(name: str, target: str) -> Member:
    return entry(name, tarfile.LNKTYPE, target)


def render_tar(*members: Member) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for member, content in members:
            tar.addfile(member, io.BytesIO(content) if content else None)
    return buffer.getvalue()


def render_cut_tar(*members: Member) -> bytes:
    """A tar whose last header promises more than follows."""
    return b"".join(member.tobuf(tarfile.GNU_FORMAT) + content for member, content in members)


def render_pax(path: str) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        member, content = file("innocent")
        member.pax_headers = {"path": path}
        tar.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def render_long_header(kind: bytes, size: int) -> bytes:
    header = entry("././@LongLink", kind, size=max(size, 0))[0]
    buffer = bytearray(header.tobuf(tarfile.GNU_FORMAT))
    if size < 0:
        buffer[124:136] = b"\xff" * 12  # -1 in base 256
        buffer[148:156] = b" " * 8
        buffer[148:156] = b"%06o\0 " % sum(buffer)
    return bytes(buffer)


def render_pax_comment(size: int) -> bytes:
    """A header of this many bytes that says nothing of interest."""
    words = b"%d comment=" % size
    content = words.ljust(size - 1, b"x") + b"\n"
    return entry("pax", tarfile.XHDTYPE, size=size)[0].tobuf(tarfile.GNU_FORMAT) + content.ljust(
        -(-size // 512) * 512, b"\0"
    )


GOOD = render_tar(file("a", b"x" * 700), folder("d"), link("d/l", "../a"), hard_link("h", "a"), file("n" * 150))


HOSTILE: dict[str, tuple[bytes, str]] = {
    "absolute name": (render_tar(file("/tmp/x")), "out of the folder"),
    "dot dot": (render_tar(file("a/../../x")), "out of the folder"),
    "dot dot alone": (render_tar(folder("..")), "out of the folder"),
    "absolute name in a pax header": (render_pax("/tmp/x"), "out of the folder"),
    "NUL in a pax header": (render_pax("a\0b"), "no sound tar file"),
    "absolute link": (render_tar(link("l", "/etc")), "leads out"),
    "link upwards": (render_tar(folder("d"), link("d/l", "../../x")), "leads out"),
    "link through a link": (render_tar(folder("a"), link("a/up", ".."), link("l", "a/up/../x")), "leads out"),
    "file through a link": (render_tar(folder("d"), link("l", "d"), file("l/x")), "'l' is no folder"),
    "folder through a link": (render_tar(folder("d"), link("l", "d"), folder("l/e")), "'l' is no folder"),
    "folder over a link": (render_tar(folder("d"), link("l", "d"), folder("l")), "'l' is no folder"),
    "file over a link": (render_tar(link("l", "x"), file("l")), "there already"),
    "link over a folder": (render_tar(folder("d"), link("d", "x")), "there already"),
    "file twice": (render_tar(file("a"), file("./a")), "refused: it is there already$"),
    "file twice below a folder": (render_tar(file("d//a"), file("d/a")), "there already"),
    "file below a file": (render_tar(file("a"), file("a/b")), "'a' is no folder"),
    "file deep below a file": (render_tar(file("a/b"), file("a/b/c/d")), "'a/b/c' .* refused: 'a/b' is no folder$"),
    "file in place of the folder itself": (render_tar(file(".")), "there already"),
    "hard link out": (render_tar(hard_link("h", "/etc/passwd")), "out of the folder"),
    "hard link upwards": (render_tar(hard_link("h", "../x")), "out of the folder"),
    "hard link to a link": (render_tar(link("l", "x"), hard_link("h", "l")), "no file before it"),
    "hard link to nothing": (render_tar(hard_link("h", "later"), file("later")), "no file before it"),
    "character device": (render_tar(entry("c", tarfile.CHRTYPE)), "refused: it is no plain file, folder or link$"),
    "block device": (render_tar(entry("b", tarfile.BLKTYPE)), "no plain file"),
    "named pipe": (render_tar(entry("f", tarfile.FIFOTYPE)), "no plain file"),
    "declared size": (render_cut_tar(entry("bomb", tarfile.REGTYPE, size=10**12)), "limit max_bytes"),
    "sum of sizes": (render_tar(file("a", b"x" * 6000), file("b", b"x" * 6000)), "limit max_bytes"),
    "real size": (render_tar(file("a", b"x" * 200_000)), "too large"),
    "content cut short": (render_cut_tar(file("a"), entry("b", tarfile.REGTYPE, size=9000)), "cut short|no sound"),
    "sparse file": (render_cut_tar(entry("s", tarfile.GNUTYPE_SPARSE, size=9)), "no plain file"),
    "many entries": (render_tar(*(file(f"f{number}") for number in range(21))), "limit max_files"),
    "many links": (render_tar(file("f"), *(link(f"l{number}", "f") for number in range(20))), "limit max_files"),
    "many folders unsaid": (render_tar(file("a/" * 30 + "f")), "limit max_files"),
    "bottomless": (render_tar(file("a/" * 70 + "f")), "too deep"),
    "bottomless by one": (render_tar(file("a/" * 64 + "f")), "too deep"),
    "long name that leads out": (render_tar(file("/" + "n" * 300)), "^'/n{199}' in the tar is refused"),
    "long name of a device": (render_tar(entry("n" * 300, tarfile.CHRTYPE)), "^'n{200}' in the tar is refused"),
    "long name": (render_tar(file("n" * 300)), "could not be unpacked"),
    "huge name": (render_long_header(tarfile.GNUTYPE_LONGNAME, 2**33), "claims"),
    "huge pax header": (render_long_header(tarfile.XHDTYPE, 2**33), "claims"),
    "negative size": (render_long_header(tarfile.GNUTYPE_LONGNAME, -1), "no sound tar file"),
    "chain of headers": (render_long_header(tarfile.XHDTYPE, 0) * 1500 + bytes(1024), "too large|no sound"),
    "compressed": (gzip.compress(render_tar(file("a"))), "no sound tar file"),
    "no tar": (b"<html>not found</html>" * 100, "no sound tar file"),
    "empty": (b"", "no sound tar file"),
    "no end": (render_tar(file("a"))[:1024], "cut short"),
    "damaged header": (render_tar(file("a")) [:1024] + b"\xff" * 512 + bytes(1024), "damaged"),
}  # fmt: skip


@pytest.mark.parametrize(("data", "words"), HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_tar_is_refused_and_leaves_nothing(room: Path, data: bytes, words: str) -> None:
    inner = room / "inner"
    inner.mkdir()
    (inner / "t.tar").write_bytes(data)
    with pytest.raises(SandboxError, match=words):
        unpack(inner / "t.tar", inner / "place", LIMITS)
    assert [path.name for path in inner.iterdir()] == ["t.tar"]
    assert [path.name for path in room.iterdir()] == ["inner"]


def test_a_good_tar_is_unpacked_for_us_alone(room: Path) -> None:
    data = render_tar(
        folder("./"),
        file("./run", b"#!", 0o4755),
        file("deep/er/file", b"text", 0o000),
        link("deep/up", "../run"),
        hard_link("deep/twin", "run"),
        folder("deep"),
        file("deep/also/file", b"more", 0o641),
        file("deep/by/group", b"", 0o610),
    )
    (room / "t.tar").write_bytes(data)
    place = room / "place"
    unpack(room / "t.tar", place, LIMITS)
    assert (place / "deep" / "er" / "file").read_bytes() == b"text"
    assert (place / "deep" / "up").readlink() == Path("../run")
    assert (place / "deep" / "twin").samefile(place / "run")
    entries = [place, *(path for path in place.rglob("*") if not path.is_symlink())]
    assert {path.stat().st_mode & 0o7777 for path in entries if path.is_dir()} == {0o700}
    modes = {str(path.relative_to(place)): path.stat().st_mode & 0o7777 for path in entries if path.is_file()}
    assert modes == {
        "run": 0o700, "deep/twin": 0o700, "deep/er/file": 0o600, "deep/also/file": 0o700, "deep/by/group": 0o700,
    }  # fmt: skip


def unpacks(room: Path, data: bytes, limits: TarLimits = LIMITS) -> bool:
    (room / "t.tar").write_bytes(data)
    try:
        unpack(room / "t.tar", room / "place", limits)
    except SandboxError:
        return False
    return True


OVERHEAD = 24 * 4096
"""What a tar of twenty entries may have beside the content of its files."""


@pytest.mark.parametrize(
    ("data", "limits", "taken"),
    [
        pytest.param(render_tar(file("a", b"x" * 10_000)), LIMITS, True, id="as many bytes as may be"),
        pytest.param(render_tar(file("a", b"x" * 10_001)), LIMITS, False, id="a byte more"),
        pytest.param(GOOD, TarLimits(5, 10_000), True, id="as many entries as may be"),
        pytest.param(GOOD, TarLimits(4, 10_000), False, id="an entry more"),
        pytest.param(GOOD.ljust(10_000 + OVERHEAD, b"\0"), LIMITS, True, id="as large as may be"),
        pytest.param(GOOD.ljust(10_001 + OVERHEAD, b"\0"), LIMITS, False, id="larger"),
        pytest.param(render_tar(file("a/" * 63 + "f")), TarLimits(64, 1), True, id="as deep as may be"),
        pytest.param(render_pax_comment(1 << 20) + GOOD, TarLimits(500, 1000), True, id="a header of a mebibyte"),
        pytest.param(render_pax_comment((1 << 20) + 1) + GOOD, TarLimits(500, 1000), False, id="a longer header"),
        pytest.param(render_long_header(tarfile.XHDTYPE, 0) + GOOD, LIMITS, True, id="an empty header"),
    ],
)
def test_a_tar_may_come_up_to_its_limits(room: Path, data: bytes, limits: TarLimits, taken: bool) -> None:
    assert unpacks(room, data, limits) is taken


def test_a_chain_of_headers_is_no_sound_tar_however_large_it_may_be(room: Path) -> None:
    (room / "t.tar").write_bytes(render_long_header(tarfile.XHDTYPE, 0) * 1500 + bytes(1024))
    with pytest.raises(SandboxError, match="no sound tar file"):
        unpack(room / "t.tar", room / "place", TarLimits(1000, 10**6))


def test_names_are_kept_byte_by_byte_in_every_locale(room: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["raw\udcff", "müon"]
    data = render_tar(*map(file, names))
    monkeypatch.setattr(tarfile.TarFile, "encoding", "latin-1")
    assert unpacks(room, data)
    assert sorted(path.name for path in (room / "place").iterdir()) == sorted(names)


def test_what_is_half_unpacked_lies_beside_its_place(room: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    renamed: list[tuple[Path, Path]] = []
    monkeypatch.setattr(Path, "rename", lambda path, target: renamed.append((path, target)))
    assert unpacks(room, GOOD)
    ((aside, place),) = renamed
    assert (aside.parent, place) == (room, room / "place")
    assert aside.name.startswith("place.tmp")


def test_a_place_in_a_folder_that_is_not_there_is_an_error(room: Path) -> None:
    (room / "t.tar").write_bytes(GOOD)
    with pytest.raises(SandboxError, match=r"nowhere/place could not be made: No such file or directory$"):
        unpack(room / "t.tar", room / "nowhere" / "place", LIMITS)


def test_an_empty_folder_may_be_filled_and_a_full_one_not(room: Path) -> None:
    (room / "t.tar").write_bytes(render_tar(file("a")))
    (room / "place").mkdir()
    unpack(room / "t.tar", room / "place", LIMITS)
    (room / "place" / "a").write_text("mine")
    with pytest.raises(SandboxError, match="is no empty folder: name a new one"):
        unpack(room / "t.tar", room / "place", LIMITS)
    assert (room / "place" / "a").read_text() == "mine"
    with contextlib.chdir(room / "place"), pytest.raises(SandboxError, match=r"^\. is there, and is no empty folder"):
        unpack(room / "t.tar", Path(), LIMITS)
    assert sorted(path.name for path in room.iterdir()) == ["place", "t.tar"]


@pytest.mark.parametrize("kind", ["file", "link"])
def test_neither_a_file_nor_a_link_is_replaced(room: Path, kind: str) -> None:
    (room / "t.tar").write_bytes(render_tar(file("a")))
    (room / "target").mkdir()
    if kind == "file":
        (room / "place").write_text("mine")
    else:
        (room / "place").symlink_to("target")
    with pytest.raises(SandboxError, match="is no empty folder: name a new one"):
        unpack(room / "t.tar", room / "place", LIMITS)
    assert list((room / "target").iterdir()) == []


def test_a_full_disk_leaves_nothing_half_made(room: Path) -> None:
    (room / "t.tar").write_bytes(render_tar(file("a"), file("b", b"x" * 9000)))
    with file_size_limit(5000), pytest.raises(SandboxError, match="too large"):
        unpack(room / "t.tar", room / "place", LIMITS)
    assert [path.name for path in room.iterdir()] == ["t.tar"]
    (room / "place").mkdir()
    with file_size_limit(5000), pytest.raises(SandboxError, match=r"t\.tar could not be unpacked .*too large"):
        unpack(room / "t.tar", room / "place", LIMITS)


def test_a_missing_tar_is_an_error(room: Path) -> None:
    with pytest.raises(SandboxError, match=r"/t\.tar cannot be read: No such file or directory$"):
        unpack(room / "t.tar", room / "place", LIMITS)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    changes=st.dictionaries(st.integers(0, len(GOOD) - 1), st.integers(0, 255), max_size=8), end=st.integers(0, 4096)
)
def test_no_damage_makes_anything_but_a_clear_error(room: Path, changes: dict[int, int], end: int) -> None:
    data = bytearray(GOOD)
    for at, byte in changes.items():
        data[at] = byte
    inner = room / os.urandom(8).hex()
    inner.mkdir()
    (inner / "t.tar").write_bytes(data[: len(data) - end])
    try:
        unpack(inner / "t.tar", inner / "place", LIMITS)
    except SandboxError:
        assert [path.name for path in inner.iterdir()] == ["t.tar"]
    assert {path.name for path in inner.iterdir()} <= {"t.tar", "place"}


# --- laid out for the next step

WIDE_LIMITS = TarLimits(100, 10**6)
JOB = "k3f9zq2m"
FOLDERS = {f"{JOB}/{JOB}.{index}.output": f"{index}" for index in (1, 2)}


@pytest.fixture
def tar(room: Path) -> Path:
    """What two local jobs brought back, of which the second left no output."""
    output = room / "results" / f"{JOB}.1.output"
    (output / "deep").mkdir(parents=True)
    (output / "events").write_text("1 2 3\n")
    (output / "deep" / "more").write_text("4\n")
    (output / "link").symlink_to("nowhere")
    return gather(room)


def gather(room: Path) -> Path:
    ends = [End(1, "1", "succeeded", None), End(2, "2", "failed", "signal")]
    write_output(JOB, room / "results", lambda: ends, {}, room / "out.tar", WIDE_LIMITS)
    return room / "out.tar"


def names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_the_outputs_lie_under_their_new_names_and_what_is_not_there_is_left_out(tar: Path, room: Path) -> None:
    place = room / "not" / "yet" / "inputs"
    lay_out(tar, FOLDERS, place, WIDE_LIMITS)
    assert names(place) == ["1", "1/deep", "1/deep/more", "1/events", "1/link"]
    assert (place / "1" / "events").read_text() == "1 2 3\n"
    assert place.stat().st_mode & 0o777 == 0o700
    assert names(place.parent) == ["inputs", *(f"inputs/{name}" for name in names(place))], "nothing else stays"


def test_what_was_laid_out_stays_as_it_is(tar: Path, room: Path) -> None:
    lay_out(tar, FOLDERS, room / "inputs", WIDE_LIMITS)
    tar.unlink()
    lay_out(tar, FOLDERS, room / "inputs", WIDE_LIMITS)
    assert "1/events" in names(room / "inputs")


def test_what_a_kill_left_is_done_anew(tar: Path, room: Path) -> None:
    for word in ("unpacked", "chosen"):
        (room / f".inputs.{word}" / "1").mkdir(parents=True)
        (room / f".inputs.{word}" / "1" / "half").touch()
    lay_out(tar, FOLDERS, room / "inputs", WIDE_LIMITS)
    assert names(room / "inputs") == ["1", "1/deep", "1/deep/more", "1/events", "1/link"]
    assert list(room.glob(".inputs*")) == []


def test_a_tar_that_is_not_sound_gives_nothing(room: Path) -> None:
    (room / "out.tar").write_text("nonsense")
    with pytest.raises(SandboxError, match="no sound tar file"):
        lay_out(room / "out.tar", FOLDERS, room / "inputs", WIDE_LIMITS)
    assert not (room / "inputs").exists()


def test_a_link_in_place_of_an_output_is_laid_out_nowhere(room: Path) -> None:
    (room / "out.tar").write_bytes(render_tar(folder("job"), folder("theirs"), link("job/a.output", "../theirs")))
    lay_out(room / "out.tar", {"job/a.output": "1"}, room / "inputs", WIDE_LIMITS)
    assert names(room / "inputs") == []


def test_a_folder_that_cannot_be_made_is_an_error(tar: Path, room: Path) -> None:
    (room / "file").touch()
    with pytest.raises(SandboxError, match=r"file/inputs could not be made: .*Not a directory"):
        lay_out(tar, FOLDERS, room / "file" / "inputs", WIDE_LIMITS)


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
    before = open_descriptors()
    lay_out(tar, FOLDERS, room / "inputs", WIDE_LIMITS)
    laid_out = [room / "inputs", *(path for path in (room / "inputs").rglob("*") if not path.is_symlink())]
    assert {path.stat().st_ino for path in laid_out} <= synced.keys()
    assert open_descriptors() <= before


def test_headers_are_not_kept_however_many_a_tar_has(room: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = []
    add = _Unpacking.add

    def look(unpacking: _Unpacking, member: tarfile.TarInfo) -> None:
        kept.append(len(unpacking._archive.members))  # type: ignore[attr-defined]
        add(unpacking, member)

    monkeypatch.setattr(_Unpacking, "add", look)
    tar = room / "many.tar"
    tar.write_bytes(render_tar(*[folder("again")] * 50, file("again/last")))
    unpack(tar, room / "new", LIMITS)
    assert (room / "new" / "again" / "last").read_bytes() == b"x"
    assert len(kept) == 51
    assert max(kept) <= 1


@pytest.mark.parametrize("make", TRAPS)
def test_what_is_no_tar_file_is_not_waited_for(room: Path, make: Callable[[Path], object]) -> None:
    make(room / "tar")
    with pytest.raises(SandboxError):
        unpack(room / "tar", room / "new", LIMITS)
    with pytest.raises(OSError, match="tar"):
        list(read_manifest(room / "tar", "a"))
    assert names(room) == ["tar"]


# --- the manifest


def write_manifest(room: Path, content: bytes) -> Path:
    """A tar of nothing but a file and a manifest."""
    (room / "out.tar").write_bytes(render_tar(file(f"{JOB}/{JOB}.log", b""), file(f"{JOB}/manifest.json", content)))
    return room / "out.tar"


@pytest.mark.parametrize("indent", [None, 1], ids=["as it is", "as it was"])
def test_the_manifest_can_be_read_item_by_item(tar: Path, room: Path, indent: int | None) -> None:
    name = 'a"b\n  }\\'
    (room / "results" / f"{JOB}.1.output" / name).touch()
    gather(room)
    with tarfile.open(tar) as archive:
        member = archive.extractfile(f"{JOB}/manifest.json")
        assert member is not None
        manifest = json.load(member)
    if indent:
        write_manifest(room, json.dumps(manifest, indent=indent).encode() + b"\n")
    items = list(read_manifest(tar, JOB))
    assert items == [(kind, item) for kind, found in manifest.items() if kind != "grid_job" for item in found]
    assert f"{JOB}.1.output/{name}" in {item["path"] for kind, item in items if kind == "files"}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        pytest.param(b"", r"^its manifest\.json is cut short$", id="empty"),
        pytest.param(b'{\n "files": [\n  {"path": "a"},\n', r"^its manifest\.json is cut short$", id="cut short"),
        pytest.param(b'{\n "files": [\n  {"path": }\n ]\n}\n', "Expecting value", id="garbage"),
    ],
)
def test_a_manifest_that_is_not_whole_is_an_error(room: Path, content: bytes, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        list(read_manifest(write_manifest(room, content), JOB))


def test_a_tar_without_a_manifest_is_an_error(room: Path) -> None:
    with pytest.raises(LookupError, match=r"^there is no manifest\.json in it$"):
        list(read_manifest(write_manifest(room, b""), "other"))
