"""The tables of command lines, as drivers read them (test_driver.py runs them)."""

import hashlib
from pathlib import Path

import pytest

from sandbox.driver import LINES_PER_FILE, LocalJobEntry, read_lines_per_file, render_table, write_submission_table
from sandbox.files import SandboxError


def test_each_local_job_has_one_line_with_its_sum_and_index() -> None:
    variables = (("A", "x y"), ("B", "it's\n"))
    entries = [
        LocalJobEntry(("a", "b\nc\n"), 1, 2, 3),
        LocalJobEntry(("it's\udcff",)),
        LocalJobEntry(("a",), environment=variables),
    ]
    table = render_table(entries)
    sums, lines = zip(*(line.split(b" ", 1) for line in table.splitlines(keepends=True)), strict=True)
    assert lines == (
        b"1 first_event=1 events=2 seed=3; set -- a 'b'\"$NL\"'c'\"$NL\"''\n",
        b"2 set -- 'it'\"'\"'s\xff'\n",
        b"3 vary() { export A='x y' B='it'\"'\"'s'\"$NL\"''; }; set -- a\n",
    )
    assert sums == tuple(hashlib.sha256(line).hexdigest().encode() for line in lines)


@pytest.mark.parametrize(("command", "words"), [((), "no command"), (("",), "no command"), (("a", "b\0"), "NUL")])
def test_a_command_that_cannot_be_is_refused(command: tuple[str, ...], words: str) -> None:
    with pytest.raises(SandboxError, match=words):
        render_table([LocalJobEntry(command)])


def test_a_submissions_table_has_its_lines_in_files_for_its_owner(tmp_path: Path) -> None:
    table = tmp_path / "local-jobs"
    table.write_bytes(render_table([LocalJobEntry(("x", str(index))) for index in range(1, 1001)]))
    indexes = [*range(950, 1001, 2)]
    for _ in range(2):
        write_submission_table(table, "k-7", indexes)
        parts = [tmp_path / f"k-7.{number}" for number in range(3)]
        assert sorted(tmp_path.iterdir()) == [*parts, table]
        assert b"".join(part.read_bytes() for part in parts) == b"".join(
            b"%d set -- x %d\n" % (index, index) * 2 for index in indexes
        )
        assert [part.read_bytes().count(b"\n") // 2 for part in parts] == [LINES_PER_FILE, LINES_PER_FILE, 6]
        assert {part.stat().st_mode & 0o777 for part in parts} == {0o600}


def test_a_driver_of_an_earlier_version_has_its_lines_with_their_sums(tmp_path: Path) -> None:
    driver = tmp_path / "driver.sh"
    driver.write_text("    table=$token.$(((position - 1) / 20))\n    skipped=$(((position - 1) % 20))\n")
    table = tmp_path / "local-jobs"
    table.write_bytes(render_table([LocalJobEntry(("x", str(index))) for index in range(1, 31)]))
    write_submission_table(table, "k-7", range(1, 31), read_lines_per_file(driver))
    lines = table.read_bytes().splitlines(keepends=True)
    assert [(tmp_path / f"k-7.{number}").read_bytes() for number in (0, 1)] == [
        b"".join(lines[:20]),
        b"".join(lines[20:]),
    ]


def test_a_line_whose_sum_is_wrong_is_given_to_no_driver_and_moves_no_other(tmp_path: Path) -> None:
    table = tmp_path / "local-jobs"
    table.write_bytes(render_table([LocalJobEntry(("x", str(index))) for index in range(1, 4)]).replace(b"x 2", b"y 2"))
    write_submission_table(table, "k-7", [1, 2, 3])
    assert (tmp_path / "k-7.0").read_bytes() == b"1 set -- x 1\n" * 2 + b"\n\n" + b"3 set -- x 3\n" * 2


def test_each_line_is_found_wherever_it_lies(tmp_path: Path) -> None:
    table = tmp_path / "local-jobs"
    table.write_bytes(render_table([LocalJobEntry(("x" * (index**2 % 97 + 1),)) for index in range(1, 60)]))
    for index, line in enumerate(table.read_bytes().splitlines(keepends=True), 1):
        write_submission_table(table, "k-7", [index])
        assert (tmp_path / "k-7.0").read_bytes() == line.split(b" ", 1)[1] * 2


def test_for_one_line_of_a_large_table_little_of_it_is_read(tmp_path: Path) -> None:
    table = tmp_path / "local-jobs"
    table.write_bytes(render_table([LocalJobEntry(("x", str(index))) for index in range(1, 20_001)]))
    before = read_so_far()
    write_submission_table(table, "k-7", [19_999])
    assert b"19999 set -- x 19999\n" in (tmp_path / "k-7.0").read_bytes()
    assert read_so_far() - before < table.stat().st_size / 4


def read_so_far() -> int:
    """Bytes that this process has read."""
    return int(Path("/proc/self/io").read_text().split()[1])


@pytest.mark.parametrize("text", ["", "#!/bin/sh\ntable=local-jobs\n"])
def test_a_driver_that_does_not_say_how_it_reads_a_table_reads_as_todays(tmp_path: Path, text: str) -> None:
    driver = tmp_path / "driver.sh"
    assert read_lines_per_file(driver) == LINES_PER_FILE
    driver.write_text(text)
    assert read_lines_per_file(driver) == LINES_PER_FILE
