"""Unpacking tars that nobody vouches for."""

import io
import os
import tarfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sandbox.limits import Limits, SandboxError
from sandbox.unpack import unpack
from tests.conftest import file_size_limit

LIMITS = Limits(20, 10_000)
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
    "file twice": (render_tar(file("a"), file("./a")), "there already"),
    "file below a file": (render_tar(file("a"), file("a/b")), "'a' is no folder"),
    "file in place of the folder itself": (render_tar(file(".")), "there already"),
    "hard link out": (render_tar(hard_link("h", "/etc/passwd")), "out of the folder"),
    "hard link upwards": (render_tar(hard_link("h", "../x")), "out of the folder"),
    "hard link to a link": (render_tar(link("l", "x"), hard_link("h", "l")), "no file before it"),
    "hard link to nothing": (render_tar(hard_link("h", "later"), file("later")), "no file before it"),
    "character device": (render_tar(entry("c", tarfile.CHRTYPE)), "no plain file"),
    "block device": (render_tar(entry("b", tarfile.BLKTYPE)), "no plain file"),
    "named pipe": (render_tar(entry("f", tarfile.FIFOTYPE)), "no plain file"),
    "declared size": (render_cut_tar(entry("bomb", tarfile.REGTYPE, size=10**12)), "limit max_bytes"),
    "sum of sizes": (render_tar(file("a", b"x" * 6000), file("b", b"x" * 6000)), "limit max_bytes"),
    "real size": (render_tar(file("a", b"x" * 200_000)), "too large"),
    "content cut short": (render_cut_tar(file("a"), entry("b", tarfile.REGTYPE, size=9000)), "cut short|no sound"),
    "sparse file": (render_cut_tar(entry("s", tarfile.GNUTYPE_SPARSE, size=9)), "no plain file"),
    "many entries": (render_tar(*(file(f"f{number}") for number in range(21))), "limit max_files"),
    "many folders unsaid": (render_tar(file("a/" * 30 + "f")), "limit max_files"),
    "bottomless": (render_tar(file("a/" * 70 + "f")), "too deep"),
    "long name": (render_tar(file("n" * 300)), "could not be unpacked"),
    "huge name": (render_long_header(tarfile.GNUTYPE_LONGNAME, 2**33), "claims"),
    "huge pax header": (render_long_header(tarfile.XHDTYPE, 2**33), "claims"),
    "negative size": (render_long_header(tarfile.GNUTYPE_LONGNAME, -1), "no sound tar file"),
    "chain of headers": (render_long_header(tarfile.XHDTYPE, 0) * 1500 + bytes(1024), "too large|no sound"),
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
    )
    (room / "t.tar").write_bytes(data)
    place = room / "place"
    unpack(room / "t.tar", place, LIMITS)
    assert (place / "deep" / "er" / "file").read_bytes() == b"text"
    assert (place / "deep" / "up").readlink() == Path("../run")
    assert (place / "deep" / "twin").samefile(place / "run")
    modes = {path.name: path.lstat().st_mode & 0o7777 for path in (place, *place.rglob("*")) if not path.is_symlink()}
    assert modes == {"place": 0o700, "deep": 0o700, "er": 0o700, "run": 0o700, "twin": 0o700, "file": 0o600}


def test_an_empty_folder_may_be_filled_and_a_full_one_not(room: Path) -> None:
    (room / "t.tar").write_bytes(render_tar(file("a")))
    (room / "place").mkdir()
    unpack(room / "t.tar", room / "place", LIMITS)
    (room / "place" / "a").write_text("mine")
    with pytest.raises(SandboxError, match="is no empty folder: name a new one"):
        unpack(room / "t.tar", room / "place", LIMITS)
    assert (room / "place" / "a").read_text() == "mine"
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


def test_a_missing_tar_is_an_error(room: Path) -> None:
    with pytest.raises(SandboxError, match=r"t\.tar could not be unpacked"):
        unpack(room / "t.tar", room / "place", LIMITS)


GOOD = render_tar(file("a", b"x" * 700), folder("d"), link("d/l", "../a"), hard_link("h", "a"), file("n" * 150))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
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
