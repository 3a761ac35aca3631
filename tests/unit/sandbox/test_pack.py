"""Packing a work area."""

import fcntl
import hashlib
import os
import socket
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from sandbox.files import SandboxError, SandboxRefused, TarLimits, stays_inside
from sandbox.pack import write_report, write_sandbox
from tests.conftest import file_size_limit

LIMITS = TarLimits(100, 10**6)


@pytest.fixture
def work_area(room: Path) -> Path:
    folder = room / "work"
    (folder / "sub" / "empty").mkdir(parents=True)
    (folder / "run").write_text("#!/bin/sh\n")
    (folder / "run").chmod(0o700)
    (folder / "sub" / "data").write_bytes(b"12345")
    (folder / "sub" / "link").symlink_to("../run")
    Path(os.fsdecode(os.fsencode(folder) + b"/raw\xff name")).write_bytes(b"")
    return folder


def test_the_sandbox_holds_the_work_area_behind_its_manifest(work_area: Path, room: Path) -> None:
    digest = write_sandbox(work_area, room / "s.tar", LIMITS)
    assert digest == hashlib.sha256((room / "s.tar").read_bytes()).hexdigest()
    with tarfile.open(room / "s.tar", "r:") as tar:
        own = [".samgrid", ".samgrid/manifest.sha256", ".samgrid/samgrid-report", "output"]
        assert tar.getnames() == [*own, "raw\udcff name", "run", "sub", "sub/data", "sub/empty", "sub/link"]
        assert {(member.uid, member.gid, member.mtime, member.uname) for member in tar} == {(0, 0, 0, "")}
        assert (tar.getmember("run").mode, tar.getmember("sub/data").mode) == (0o755, 0o644)
        assert tar.getmember("sub/link").linkname == "../run"


def test_sha256sum_and_tar_understand_the_sandbox(work_area: Path, room: Path) -> None:
    write_sandbox(work_area, room / "s.tar", LIMITS)
    place = room / "place"
    place.mkdir()
    subprocess.run(["tar", "-xf", room / "s.tar"], cwd=place, check=True)
    check = ["sha256sum", "-c", ".samgrid/manifest.sha256"]
    subprocess.run(check, cwd=place, check=True, capture_output=True)
    (place / "sub" / "data").write_bytes(b"12346")
    assert subprocess.run(check, cwd=place, check=False, capture_output=True).returncode == 1


def test_the_same_work_area_gives_the_same_bytes(work_area: Path, room: Path) -> None:
    first = write_sandbox(work_area, room / "one.tar", LIMITS)
    twin = room / "twin"
    subprocess.run(["cp", "-R", work_area, twin], check=True)
    for path in twin.iterdir():
        os.utime(path, (1, 1), follow_symlinks=False)
    (twin / "run").chmod(0o711)
    assert write_sandbox(twin, room / "two.tar", LIMITS) == first
    assert (room / "one.tar").read_bytes() == (room / "two.tar").read_bytes()
    (twin / "sub" / "data").write_bytes(b"54321")
    assert write_sandbox(twin, room / "three.tar", LIMITS) != first


def put_socket(folder: Path) -> None:
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(folder / "culprit"))


HOSTILE: dict[str, Callable[[Path], object]] = {
    "absolute link": lambda folder: (folder / "culprit").symlink_to("/etc/passwd"),
    "link upwards": lambda folder: (folder / "culprit").symlink_to("../outside"),
    "link through a name": lambda folder: (folder / "culprit").symlink_to("sub/empty/../../../x"),
    "named pipe": lambda folder: os.mkfifo(folder / "culprit"),
    "socket": put_socket,
    "line break": lambda folder: (folder / "culprit\n").touch(),
    "backslash": lambda folder: (folder / "culprit\\").touch(),
}


@pytest.mark.parametrize("make", HOSTILE.values(), ids=HOSTILE.keys())
def test_what_cannot_travel_is_named(work_area: Path, room: Path, make: Callable[[Path], object]) -> None:
    make(work_area)
    with pytest.raises(SandboxError, match=r"culprit.* cannot be packed"):
        write_sandbox(work_area, room / "s.tar", LIMITS)
    assert sorted(path.name for path in room.iterdir()) == ["work"]


def test_the_sandboxs_own_folder_is_reserved(work_area: Path, room: Path) -> None:
    (work_area / ".samgrid").mkdir()
    with pytest.raises(SandboxError, match="sandbox's own"):
        write_sandbox(work_area, room / "s.tar", LIMITS)


@pytest.mark.parametrize(
    ("limits", "name"), [(TarLimits(5, 10**6), "max_files is 5"), (TarLimits(100, 14), "max_bytes is 14")]
)
def test_too_much_is_refused_with_the_limits_name(work_area: Path, room: Path, limits: TarLimits, name: str) -> None:
    with pytest.raises(SandboxError, match=name):
        write_sandbox(work_area, room / "s.tar", limits)
    write_sandbox(work_area, room / "s.tar", TarLimits(6, 15))


def test_a_full_disk_is_one_clear_error_and_leaves_the_old_sandbox(work_area: Path, room: Path) -> None:
    (room / "s.tar").write_text("old")
    (work_area / "big").write_bytes(os.urandom(200_000))
    with file_size_limit(100_000), pytest.raises(SandboxError, match=r"s\.tar could not be written: .*too large"):
        write_sandbox(work_area, room / "s.tar", LIMITS)
    assert (room / "s.tar").read_text() == "old"
    assert sorted(path.name for path in room.iterdir()) == ["s.tar", "work"]


def test_a_disk_that_takes_little_at_a_time_gets_it_all(
    work_area: Path, room: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = write_sandbox(work_area, room / "whole.tar", LIMITS)
    real = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: real(descriptor, data[:100]))
    assert write_sandbox(work_area, room / "parts.tar", LIMITS) == whole
    assert (room / "parts.tar").read_bytes() == (room / "whole.tar").read_bytes()


def test_a_file_that_changes_meanwhile_is_an_error(
    work_area: Path, room: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def change(*_: object) -> bytes:
        (work_area / "sub" / "data").write_bytes(b"54321")
        return b""

    monkeypatch.setattr("sandbox.pack._render_manifest", change)
    with pytest.raises(SandboxError, match="sub/data changed"):
        write_sandbox(work_area, room / "s.tar", LIMITS)
    assert not (room / "s.tar").exists()


def test_two_writers_of_one_sandbox_do_not_mix(work_area: Path, room: Path) -> None:
    with open(room / "s.tar.tmp", "wb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(SandboxError, match="another process"):
            write_sandbox(work_area, room / "s.tar", LIMITS)
    write_sandbox(work_area, room / "s.tar", LIMITS)
    assert sorted(path.name for path in room.iterdir()) == ["s.tar", "work"]


def test_a_link_at_the_temporary_name_is_not_followed(work_area: Path, room: Path) -> None:
    (room / "victim").write_text("precious")
    (room / "s.tar.tmp").symlink_to("victim")
    with pytest.raises(SandboxError, match=r"s\.tar could not be written: symbolic links"):
        write_sandbox(work_area, room / "s.tar", LIMITS)
    assert (room / "victim").read_text() == "precious"


def test_the_sandbox_is_ours_alone(work_area: Path, room: Path) -> None:
    write_sandbox(work_area, room / "s.tar", LIMITS)
    assert (room / "s.tar").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("target", "depth", "inside"),
    [
        ("a", 0, True),
        ("./a//b/", 0, True),
        ("..", 1, True),
        ("../a", 0, False),
        ("../../a", 2, True),
        ("../../../a", 2, False),
        ("a/../b", 5, False),
        ("a/..", 5, False),
        ("/a", 5, False),
        ("", 5, False),
        ("...", 0, True),
        ("a", -1, False),
    ],
)
def test_links_are_judged_by_where_they_could_lead(target: str, depth: int, inside: bool) -> None:
    assert stays_inside(target, depth) is inside


def test_the_name_of_samgrid_report_is_on_the_disk_before_anybody_relies_on_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(os, "fsync", lambda number: synced.append(Path(f"/proc/self/fd/{number}").readlink()))
    write_report(tmp_path)
    assert synced[-1] == tmp_path / ".samgrid"


# --- the site's own files


@pytest.fixture
def clients(room: Path) -> Path:
    """A site's folder of programs."""
    folder = room / "site" / "clients"
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "sam").write_text("#!/bin/sh\n")
    (folder / "bin" / "sam").chmod(0o755)
    (folder / "bin" / "sam-2").symlink_to("../bin/sam")
    return folder


def test_the_sites_files_are_in_the_sandbox_and_its_manifest(work_area: Path, room: Path, clients: Path) -> None:
    (room / "site" / "setup.sh").write_text("x")
    write_sandbox(work_area, room / "s.tar", LIMITS, [clients, room / "site" / "setup.sh"])
    place = room / "place"
    place.mkdir()
    subprocess.run(["tar", "-xf", room / "s.tar"], cwd=place, check=True)
    check = ["sha256sum", "-c", ".samgrid/manifest.sha256"]
    said = subprocess.run(check, cwd=place, check=True, capture_output=True).stdout
    assert b".samgrid/site/setup.sh: OK" in said
    assert os.access(place / ".samgrid/site/clients/bin/sam-2", os.X_OK)
    assert (place / "run").exists()


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        pytest.param(lambda folder: [folder.with_name("none")], "none cannot be read: No such file", id="missing"),
        pytest.param(lambda folder: [folder, folder.parent / "x" / ".." / "clients"], "no name of its own", id="twice"),
        pytest.param(lambda folder: [folder / ".."], "no name of its own", id="the folder above"),
        pytest.param(lambda folder: [Path("/")], "no name of its own", id="everything"),
        pytest.param(lambda folder: [folder / "bin" / "sam-2"], "is a symbolic link: name what", id="a link"),
    ],
)
def test_site_files_that_cannot_be_packed_wait_for_the_site(
    work_area: Path, room: Path, clients: Path, spoil: Callable[[Path], list[Path]], words: str
) -> None:
    with pytest.raises(SandboxError, match=words) as caught:
        write_sandbox(work_area, room / "s.tar", LIMITS, spoil(clients))
    assert str(caught.value).startswith("site_files: ")
    assert not isinstance(caught.value, SandboxRefused)
    assert not (room / "s.tar").exists()


@pytest.mark.parametrize("target", ["/etc/passwd", "../../setup.sh"])
def test_no_link_leads_out_of_a_folder_of_the_sites(work_area: Path, room: Path, clients: Path, target: str) -> None:
    (clients / "bin" / "out").symlink_to(target)
    with pytest.raises(SandboxError, match="out cannot be packed: the link leads out"):
        write_sandbox(work_area, room / "s.tar", LIMITS, [clients])


def test_the_sites_files_count_against_the_limits(work_area: Path, room: Path, clients: Path) -> None:
    write_sandbox(work_area, room / "s.tar", TarLimits(10, 10**6), [clients])
    for limits in (TarLimits(9, 10**6), TarLimits(10, 20)):
        with pytest.raises(SandboxRefused, match="the work area holds"):
            write_sandbox(work_area, room / "s.tar", limits, [clients])
