"""One host at a time works with a state folder; the others are told which, and how that is changed."""

import errno
import os
from pathlib import Path

import pytest

from jobmanager.site import host
from jobmanager.site.host import (
    Host,
    OtherHost,
    check_host,
    claim_host,
    find_active_host,
    put_stamp,
    release_stamp,
    take_over,
)
from jobmanager.site.places import StateFolderError, StatePlaces
from sandbox.files import make_file

ALPHA, BETA = Host("alpha", "a1"), Host("beta", "b2")


@pytest.fixture
def places(tmp_path: Path) -> StatePlaces:
    return StatePlaces(tmp_path)


def be(monkeypatch: pytest.MonkeyPatch, this: Host) -> None:
    """From now on this process runs on that host."""
    monkeypatch.setattr(host, "find_this_host", lambda: this)


def test_the_first_host_stays_the_active_one(places: StatePlaces, monkeypatch: pytest.MonkeyPatch) -> None:
    be(monkeypatch, ALPHA)
    check_host(places)
    assert find_active_host(places) is None
    claim_host(places)
    be(monkeypatch, BETA)
    with pytest.raises(OtherHost, match=r"in use on host alpha.* samgrid take-over on beta$"):
        claim_host(places)
    be(monkeypatch, ALPHA)
    claim_host(places)
    assert os.listdir(places.root) == ["active-host"]  # noqa: PTH208 names
    assert places.active_host.stat().st_mode & 0o777 == 0o600


def test_a_copy_of_a_machine_is_another_host(places: StatePlaces, monkeypatch: pytest.MonkeyPatch) -> None:
    be(monkeypatch, ALPHA)
    claim_host(places)
    be(monkeypatch, Host("alpha", "of the copy"))
    with pytest.raises(OtherHost):
        check_host(places)


def test_of_two_hosts_that_begin_at_once_one_is_told_of_the_other(
    places: StatePlaces, monkeypatch: pytest.MonkeyPatch
) -> None:
    be(monkeypatch, ALPHA)

    def write_late(path: Path, content: bytes) -> None:
        """Alpha has looked already, and beta is faster."""
        be(monkeypatch, BETA)
        monkeypatch.setattr(host, "make_file", make_file)
        claim_host(places)
        be(monkeypatch, ALPHA)
        make_file(path, content)

    monkeypatch.setattr(host, "make_file", write_late)
    with pytest.raises(OtherHost, match="in use on host beta"):
        claim_host(places)
    assert find_active_host(places) == BETA


def test_a_host_whose_monitor_is_at_work_is_only_taken_over_from_by_who_fenced_it(
    places: StatePlaces, monkeypatch: pytest.MonkeyPatch
) -> None:
    be(monkeypatch, ALPHA)
    put_stamp(places)
    be(monkeypatch, BETA)
    with pytest.raises(OtherHost, match=r"host alpha was at work [0-9]+ s ago: .*samgrid take-over --fenced"):
        take_over(places, is_fenced=False)
    assert find_active_host(places) == ALPHA
    assert take_over(places, is_fenced=True) == ALPHA
    assert take_over(places, is_fenced=False) is None
    check_host(places)
    be(monkeypatch, ALPHA)
    with pytest.raises(OtherHost, match="in use on host beta"):
        put_stamp(places)


def test_a_host_is_taken_over_from_when_its_monitor_has_ended_or_is_silent_for_a_minute(
    places: StatePlaces, monkeypatch: pytest.MonkeyPatch
) -> None:
    be(monkeypatch, ALPHA)
    put_stamp(places)
    release_stamp(places)
    be(monkeypatch, BETA)
    assert take_over(places, is_fenced=False) == ALPHA
    put_stamp(places)
    silent_since = places.active_host.stat().st_mtime - 61
    os.utime(places.active_host, (silent_since, silent_since))
    be(monkeypatch, ALPHA)
    assert take_over(places, is_fenced=False) == BETA
    assert os.listdir(places.root) == ["active-host"]  # noqa: PTH208 names


def test_who_takes_over_where_nobody_works_is_the_active_host(
    places: StatePlaces, monkeypatch: pytest.MonkeyPatch
) -> None:
    be(monkeypatch, ALPHA)
    assert take_over(places, is_fenced=False) is None
    assert find_active_host(places) == ALPHA


@pytest.mark.parametrize("note", [b"", b"alpha\n", b"alpha a1 more\n", b"\xff\n"])
def test_half_a_note_stops_everybody_until_a_person_writes_it_anew(
    places: StatePlaces, monkeypatch: pytest.MonkeyPatch, note: bytes
) -> None:
    places.active_host.write_bytes(note)
    be(monkeypatch, ALPHA)
    with pytest.raises(StateFolderError, match="samgrid take-over writes it anew"):
        claim_host(places)
    assert take_over(places, is_fenced=True) is not None
    assert find_active_host(places) == ALPHA


def test_a_link_in_place_of_the_note_is_not_followed(places: StatePlaces, tmp_path: Path) -> None:
    places.active_host.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic links"):
        check_host(places)


def test_this_host_has_a_name_and_an_id_without_blanks() -> None:
    this = host.find_this_host()
    assert (this.name, len(this.machine.split())) == (os.uname().nodename, 1)


def test_a_stamp_that_cannot_be_put_names_its_file(places: StatePlaces, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: Path) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(os, "utime", fail)
    with pytest.raises(OSError, match=f"{places.active_host}"):
        put_stamp(places)
